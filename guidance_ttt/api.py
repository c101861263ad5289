"""The Python API: one call that does what `./run.sh` does, and hands back what it found.

    from guidance_ttt import run

    result = run("polyomino_packing", steps=2, state_dir="work/demo")
    print(result.best_score, result.reward)
    print(result.program.read_text())
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guidance_ttt.wings import PROJECT_ROOT


@dataclass(frozen=True)
class RunResult:
    """What a run found.  Scores are the search problem's; `reward` is the task's own verifier's.

    `stopped` says which limit ended the run before its last step; `state_dir` continues it.
    """

    task: str
    steps_done: int
    seed_score: float
    best_score: float
    reward: float
    program: Path
    state_dir: Path
    stopped: str | None
    details: Mapping[str, Any]


def run(
    task: str,
    *,
    steps: int = 1,
    state_dir: Path | str | None = None,
    policy: Path | str | None = None,
    executor: str | None = None,
    judge: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> RunResult:
    """Run, or continue, a search up to `steps` training steps in all, and return its result.

    `policy` is a Hugging Face model directory, `executor` one of the names of `GUIDANCE_EXECUTOR`, `judge` the URL of a
    judge; None takes the default.  `settings` are further ones of docs/configuration.md, by their names or without the
    prefix: `{"rollouts": 8}` is `GUIDANCE_ROLLOUTS=8`.  Progress goes to standard output and error, as with `./run.sh`.
    The run is a child process: an interrupt stops it with a saved state and is raised again here.

    Raises `ConfigError` for wrong settings and `GuidanceError` when the run fails; the state is resumable.
    """
    from harness.errors import ConfigError, GuidanceError
    from harness.storage import read_json_object

    state = Path(state_dir).absolute() if state_dir is not None else PROJECT_ROOT / "work" / task
    named = {
        "GUIDANCE_TASK": task,
        "GUIDANCE_STEPS": steps,
        "GUIDANCE_STATE_DIR": state,
        "GUIDANCE_MODEL_PATH": None if policy is None else Path(policy).absolute(),
        "GUIDANCE_EXECUTOR": executor,
        "GUIDANCE_JUDGE_URL": judge,
    }
    further = {setting_name(name): value for name, value in (settings or {}).items()}
    if both := sorted(set(further) & {name for name, value in named.items() if value is not None}):
        raise ConfigError(f"settings holds {', '.join(both)}, which has an argument of its own; give it once")
    environ = {**os.environ, **{name: str(value) for name, value in {**named, **further}.items() if value is not None}}
    code = _run_child(environ)
    if code == 2:
        raise ConfigError("the settings were refused; the reason is on standard error")
    if code != 0:
        raise GuidanceError(f"the run ended with exit code {code}; the state in {state} is kept, run again to continue")
    found = read_json_object(state / "guidance-run" / "result.json")
    return RunResult(
        task=found["task"],
        steps_done=found["steps_done"],
        seed_score=found["seed_score"],
        best_score=found["best_score"],
        reward=float(found["rewards"]["reward"]),
        program=Path(found["program"]),
        state_dir=state,
        stopped=found["stopped"],
        details=found,
    )


def setting_name(name: str) -> str:
    """`rollouts` and `GUIDANCE_ROLLOUTS` both mean the latter."""
    upper = name.upper()
    return upper if upper.startswith("GUIDANCE_") else f"GUIDANCE_{upper}"


def _run_child(environ: Mapping[str, str]) -> int:
    """The launcher as a child; an interrupt here is passed on and waited for, then raised."""
    child = subprocess.Popen(
        [sys.executable, "-m", "guidance_ttt.launch"], cwd=PROJECT_ROOT, env=dict(environ), process_group=0
    )
    try:
        return child.wait()
    except BaseException:
        child.send_signal(signal.SIGINT)
        try:
            child.wait()
        except KeyboardInterrupt:  # asked twice: stop at once
            child.send_signal(signal.SIGINT)
            child.wait()
        raise
