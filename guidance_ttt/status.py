"""Where a run stands, read from its state directory alone: no service has to run."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import StateCorrupt, StateError
from harness.storage import read_json_object


@dataclass(frozen=True)
class RunStatus:
    """The facts of one state directory; `best_raw_score` is None while nothing valid was found."""

    state_dir: Path
    task: str | None
    steps_done: int
    best_raw_score: float | None
    best_program: Path | None
    policy_frozen: bool = False

    @property
    def next_command(self) -> str:
        """What to type to continue for one more step."""
        settings = [f"GUIDANCE_TASK={self.task}"] if self.task else []
        settings += ["GUIDANCE_FREEZE_POLICY=1"] if self.policy_frozen else []
        settings += [f"GUIDANCE_STATE_DIR={shlex.quote(str(self.state_dir))}", f"GUIDANCE_STEPS={self.steps_done + 1}"]
        return " ".join([*settings, "./run.sh"])

    def as_json(self) -> dict[str, Any]:
        """The same facts as plain JSON values."""
        return {
            "state_dir": str(self.state_dir),
            "task": self.task,
            "policy_frozen": self.policy_frozen,
            "steps_done": self.steps_done,
            "best_raw_score": self.best_raw_score,
            "best_program": None if self.best_program is None else str(self.best_program),
            "next_command": self.next_command,
        }


def read_status(state_dir: Path) -> RunStatus:
    """Read a state directory; raises `StateError` when it holds no run and `StateCorrupt` for an unreadable one."""
    run_dir = state_dir / "guidance-run"
    if not run_dir.is_dir():
        raise StateError(f"{state_dir} holds no run; start one with ./run.sh, or name another with --state-dir")
    identity_path, resume_path = run_dir / "task-identity.json", run_dir / "resume-state.json"
    identity = read_json_object(identity_path) if identity_path.is_file() else {}
    resume = read_json_object(resume_path) if resume_path.is_file() else {"next_step": 0, "step_summaries": []}
    steps, summaries = resume.get("next_step"), resume.get("step_summaries")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0 or not isinstance(summaries, list):
        raise StateCorrupt(f"{resume_path} is not a resume state: next_step is {steps!r}")
    last = summaries[-1] if summaries and isinstance(summaries[-1], dict) else {}
    best = last.get("best_raw_score")
    task = identity.get("task")
    return RunStatus(
        state_dir=state_dir,
        task=task if isinstance(task, str) else None,
        steps_done=steps,
        best_raw_score=best if isinstance(best, int | float) and not isinstance(best, bool) else None,
        policy_frozen=resume.get("policy_frozen") is True,
        best_program=next((path for path in sorted(run_dir.glob("best.*")) if path.suffix in (".cpp", ".py")), None),
    )


def render_status(status: RunStatus) -> str:
    """A few lines for a person."""
    best = "none yet" if status.best_raw_score is None else f"{status.best_raw_score:g}"
    lines = [
        f"task       {status.task or 'unknown'}",
        f"state      {status.state_dir}",
        f"steps      {status.steps_done} done",
        f"best       {best}",
    ]
    if status.policy_frozen:
        lines.append("policy     frozen: a control run, no update changes it")
    if status.best_program is not None:
        lines.append(f"program    {status.best_program}")
    lines.append(f"continue   {status.next_command}")
    return "\n".join(lines)
