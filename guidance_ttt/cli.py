"""The `guidance-ttt` command.  Every verb imports what it needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from guidance_ttt.wings import PROJECT_ROOT, executor_argv, judge_argv

app = typer.Typer(
    name="guidance-ttt",
    help="Train a small guidance policy at test time, on one discovery problem, for a frozen executor.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
StateDir = Annotated[
    Path | None, typer.Option("--state-dir", help="State directory; default: GUIDANCE_STATE_DIR or work/<task>.")
]


@app.command()
def run(
    freeze_policy: Annotated[
        bool, typer.Option("--freeze-policy", help="A control run: no update changes the policy.")
    ] = False,
    max_evaluations: Annotated[int | None, typer.Option(help="Stop before a step that would exceed this.")] = None,
    max_time: Annotated[float | None, typer.Option(help="The same for seconds spent in steps.")] = None,
    max_cost: Annotated[float | None, typer.Option(help="The same for dollars paid to the executor.")] = None,
) -> None:
    """Start the services and run (or continue) the search; the same as ./run.sh. Set up by GUIDANCE_* variables."""
    from guidance_ttt.launch import main as launch_main

    if freeze_policy:
        os.environ["GUIDANCE_FREEZE_POLICY"] = "1"
    for name, value in (("EVALUATIONS", max_evaluations), ("TIME", max_time), ("COST", max_cost)):
        if value is not None:
            os.environ[f"GUIDANCE_MAX_{name}"] = str(value)
    raise typer.Exit(launch_main([]))


@app.command(context_settings=PASS_ON)
def judge(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help="Task or judge name, e.g. polyomino_packing.")],
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8081,
    state_dir: StateDir = None,
) -> None:
    """Serve the embedded judge of a task on 127.0.0.1. Further options go to `python -m judges`."""
    folder = (state_dir or _state_dir(task)).absolute()
    _exec(*judge_argv(task, host="127.0.0.1", port=port, state_dir=folder), *context.args)


@app.command(context_settings=PASS_ON)
def executor(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help="Task name, e.g. polyomino_packing.")],
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
) -> None:
    """Serve the offline executor of a task on 127.0.0.1. Further options go to `python -m executors`."""
    task_dir = PROJECT_ROOT / "harbor" / task
    if not (task_dir / "offline").is_dir():
        _fail(f"task {task!r} has no offline catalogue: {task_dir / 'offline'} does not exist")
    _exec(*executor_argv(task, host="127.0.0.1", port=port, task_dir=task_dir), *context.args)


@app.command()
def model(
    models_dir: Annotated[
        Path | None, typer.Option(help="Where the model directory belongs; default: work/models.")
    ] = None,
    verify: Annotated[bool, typer.Option(help="Also compare every file with its recorded SHA-256.")] = False,
) -> None:
    """Convert the packaged SmolLM2 weights into a model directory, once, and print its path."""
    from guidance_ttt.model import main as model_main

    options = ["--models-dir", str(models_dir or PROJECT_ROOT / "work" / "models")]
    raise typer.Exit(model_main([*options, "--verify"] if verify else options))


@app.command()
def status(
    state_dir: StateDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show how far a run is: steps done, best score, where the best program is, how to continue."""
    import json

    from guidance_ttt.status import read_status, render_status
    from harness.errors import GuidanceError

    task = os.environ.get("GUIDANCE_TASK", "").strip() or "polyomino_packing"
    try:
        found = read_status(state_dir or _state_dir(task))
    except GuidanceError as error:
        _fail(str(error))
    typer.echo(json.dumps(found.as_json(), indent=2) if as_json else render_status(found))


def main() -> None:
    """Entry point of the console script."""
    app()


def _state_dir(task: str) -> Path:
    """The state directory as a run resolves it, without reading (or writing) anything."""
    named = Path(os.environ.get("GUIDANCE_STATE_DIR", "").strip() or f"work/{task}").expanduser()
    return named if named.is_absolute() else PROJECT_ROOT / named


def _exec(*argv: str) -> NoReturn:
    """Become another program of this project, so that signals and the exit code are its own."""
    os.chdir(PROJECT_ROOT)
    os.execv(argv[0], argv)


def _fail(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(1)
