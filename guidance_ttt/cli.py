"""The `guidance-ttt` command.  Every verb imports what it needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
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
    rich_markup_mode=None,  # rich takes a third of a second to import
)
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
StateDir = Annotated[
    Path | None, typer.Option("--state-dir", help="State directory; default: GUIDANCE_STATE_DIR or work/<task>.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def run(
    freeze_policy: Annotated[
        bool, typer.Option("--freeze-policy", help="A control run: no update changes the policy.")
    ] = False,
    max_evaluations: Annotated[int | None, typer.Option(help="Stop before a step that would exceed this.")] = None,
    max_time: Annotated[float | None, typer.Option(help="The same for seconds spent in steps.")] = None,
    max_cost: Annotated[float | None, typer.Option(help="The same for dollars paid to the executor.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print warnings, errors and the result only.")] = False,
) -> None:
    """Start the services and run (or continue) the search; the same as ./run.sh. Set up by GUIDANCE_* variables."""
    from guidance_ttt.launch import main as launch_main

    if freeze_policy:
        os.environ["GUIDANCE_FREEZE_POLICY"] = "1"
    if quiet:
        os.environ["GUIDANCE_QUIET"] = "1"
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
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every 2 s until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show where a run stands: steps, best score, whether it is live and what it waits for, how to continue."""
    from guidance_ttt import status as run_status
    from guidance_ttt.terminal import emit, safe_json

    folder = state_dir or _state_dir(_task())

    def read() -> run_status.RunStatus:
        return run_status.read_status(folder, ask_services=True)

    with _errors_in_one_line():
        if watch:
            run_status.watch(read, as_json=as_json)
            return
        found = read()
        emit(safe_json(found.as_json()) if as_json else run_status.render_status(found))


@app.command()
def inspect(
    entry: Annotated[
        str | None, typer.Argument(help="An id or its beginning, `best`, `seed` or `submitted`.")
    ] = None,
    lineage: Annotated[
        bool, typer.Option("--lineage", help="The way from the seed to ENTRY (default: the best), with each guidance.")
    ] = False,
    config: Annotated[
        bool, typer.Option("--config", help="The settings a run started now would have, and where each comes from.")
    ] = False,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Show the archive as a tree, one candidate in full, its lineage, or the settings in force."""
    from guidance_ttt.terminal import emit

    with _errors_in_one_line():
        if config:
            from guidance_ttt.config_view import inspect_config

            environ = dict(os.environ)
            if state_dir is not None:
                environ["GUIDANCE_STATE_DIR"] = str(state_dir.absolute())
            emit(inspect_config(environ, as_json=as_json))
            return
        from guidance_ttt.inspect import inspect_archive

        emit(inspect_archive(state_dir or _state_dir(_task()), entry, lineage=lineage, as_json=as_json))


@app.command()
def export(
    program: Annotated[Path | None, typer.Option(help="Write the best program to this file.")] = None,
    entry: Annotated[
        str, typer.Option(help="Whose program: `best`, `submitted`, or an id; see `inspect`.", show_default=True)
    ] = "best",
    adapter: Annotated[
        Path | None, typer.Option(help="Write the served adapter to this directory, as PEFT loads it.")
    ] = None,
    archive: Annotated[
        Path | None, typer.Option(help="Write every candidate to this file, one JSON object a line.")
    ] = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Copy the best program, the adapter or the archive out of a state directory; never replaces anything."""
    from guidance_ttt.export import export as export_state
    from guidance_ttt.terminal import emit, safe_json, visible

    with _errors_in_one_line():
        done = export_state(
            state_dir or _state_dir(_task()), program=program, adapter=adapter, archive=archive, entry=entry
        )
    if as_json:
        emit(safe_json([item.as_json() for item in done]))
        return
    for item in done:
        emit(visible(item.describe()))


@app.command()
def report(
    output: Annotated[
        Path | None, typer.Option(help="The page, FILE.html; default: guidance-run/report/report.html of the state.")
    ] = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Write one HTML page and two CSV tables about a run: scores, training, lineage, program, settings, caveats."""
    from guidance_ttt.report.writing import write_report
    from guidance_ttt.terminal import emit, safe_json, visible

    with _errors_in_one_line():
        written = write_report(state_dir or _state_dir(_task()), output, environ=os.environ)
    emit(safe_json(written.as_json()) if as_json else visible(written.describe()))


@app.command()
def doctor(
    profile: Annotated[str | None, typer.Option(help="local or gpu; default: GUIDANCE_PROFILE or local.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Make no call to the executor and no remote one.")] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also hash the model and score the seed, starting the judge if needed.")
    ] = False,
    wait_s: Annotated[
        float, typer.Option("--wait", min=0, max=600, help="Seconds to wait for a judge that is starting.")
    ] = 30.0,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Check everything a run needs; each problem comes with its cure. Exit code 0: fine, 1: failures, 2: a setting."""
    from guidance_ttt.doctor.command import run_doctor

    environ = dict(os.environ)
    if profile is not None:
        environ["GUIDANCE_PROFILE"] = profile
    if state_dir is not None:
        environ["GUIDANCE_STATE_DIR"] = str(state_dir.absolute())
    raise typer.Exit(run_doctor(environ, offline=offline, deep=deep, wait_s=wait_s, as_json=as_json))


def main() -> None:
    """Entry point of the console script."""
    app()


def _task() -> str:
    """The task that the environment names."""
    return os.environ.get("GUIDANCE_TASK", "").strip() or "polyomino_packing"


@contextlib.contextmanager
def _errors_in_one_line() -> Iterator[None]:
    """End with one line and code 1, or 2 for a wrong setting, instead of a traceback."""
    from harness.errors import ConfigError, GuidanceError

    try:
        yield
    except GuidanceError as error:
        from guidance_ttt.terminal import visible

        _fail(visible(str(error)), code=2 if isinstance(error, ConfigError) else 1)


def _state_dir(task: str) -> Path:
    """The state directory as a run resolves it, without reading (or writing) anything."""
    named = Path(os.environ.get("GUIDANCE_STATE_DIR", "").strip() or f"work/{task}").expanduser()
    return named if named.is_absolute() else PROJECT_ROOT / named


def _exec(*argv: str) -> NoReturn:
    """Become another program of this project, so that signals and the exit code are its own."""
    os.chdir(PROJECT_ROOT)
    os.execv(argv[0], argv)


def _fail(message: str, code: int = 1) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(code)
