"""How the project's own servers are started as commands, and where the project lies.  Imports nothing heavy."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

PROJECT_ROOT = Path(__file__).resolve().parent.parent

JUDGES: Mapping[str, str] = {"polyomino_packing": "polyomino"}
"""Task -> name of its embedded judge; a task that is not listed has a judge of its own name."""


def judge_argv(task: str, *, host: str, port: int, state_dir: Path) -> tuple[str, ...]:
    """Command line of a task's judge: `harbor/<task>/judge.py` where there is one, else the embedded judge.

    `state_dir` is the run's; the judge gets a folder of its own in it.
    """
    own = PROJECT_ROOT / "harbor" / task / "judge.py"
    program = (str(own),) if own.is_file() else ("-m", "judges", JUDGES.get(task, task))
    address = ("--host", host, "--port", str(port))
    return (sys.executable, *program, *address, "--state-dir", str(state_dir / "judge"))


def executor_argv(task: str, *, host: str, port: int, task_dir: Path) -> tuple[str, ...]:
    """Command line of the offline executor with a task's catalogue."""
    address = ("--host", host, "--port", str(port))
    return (sys.executable, "-m", "executors", *address, "--task", task, "--catalogue", str(task_dir / "offline"))
