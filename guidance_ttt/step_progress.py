"""Where the rollouts of the unfinished step wait, read from its journal alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.journal import read_records
from harness.parsing import extract_strict_guidance
from harness.rollout_log import RolloutProgress, StepLog

STAGES = ("policy", "executor", "judge", "report", "reported")
"""What a rollout waits for, in order; the last means that nothing is left."""


@dataclass(frozen=True)
class StepPosition:
    """One unfinished step: how many of its rollouts wait for what.  Steps count from 1, like everything shown."""

    step: int
    attempt: int
    rollouts: int
    policy: int
    executor: int
    judge: int
    report: int
    reported: int
    trained: bool
    """Whether the update is committed and only the bookkeeping is left."""

    @property
    def training(self) -> bool:
        """Whether the whole grid is reported and the update is awaited."""
        return self.reported == self.rollouts and not self.trained

    def as_json(self) -> dict[str, Any]:
        """The same facts as plain JSON values."""
        return {**asdict(self), "training": self.training}

    def describe(self) -> str:
        """One line: who is waited for."""
        if self.trained:
            return f"step {self.step}: trained, being committed"
        if self.training:
            return f"step {self.step}: all {self.rollouts} rollouts reported, training"
        waiting = "  ".join(f"{stage} {getattr(self, stage)}" for stage in STAGES[:-1])
        again = f" (attempt {self.attempt})" if self.attempt > 1 else ""
        return f"step {self.step}{again}: {self.reported}/{self.rollouts} rollouts done; waiting for {waiting}"


def journal_path(run_dir: Path, step: int) -> Path:
    """The journal of a step, counted from 1."""
    return run_dir / "rollouts" / f"step-{step:06d}.jsonl"


def read_position(run_dir: Path, step: int, rollouts_per_group: int) -> StepPosition | None:
    """The position within step `step` (from 1), or None when it has not begun.

    Safe while the run writes: an unfinished last line is left out.  Raises `StateCorrupt` for a damaged journal.
    """
    path = journal_path(run_dir, step)
    if not path.is_file():
        return None
    log = StepLog.replay(read_records(path))
    attempt = log.current()
    if attempt is None:
        return None
    slots = [(parent["group"], rollout) for parent in attempt.parents for rollout in range(rollouts_per_group)]
    waiting = Counter(waits_for(log.progress(group, rollout)) for group, rollout in slots)
    return StepPosition(
        step=step,
        attempt=attempt.number,
        rollouts=len(slots),
        trained=attempt.committed,
        **{stage: waiting[stage] for stage in STAGES},
    )


def waits_for(done: RolloutProgress) -> str:
    """The one of `STAGES` that a rollout is in."""
    if done.reported:
        return "reported"
    if done.verdict is not None:
        return "report"
    if done.execution is not None:
        return "judge"
    if done.guidance is None:
        return "policy"
    guidance = extract_strict_guidance(str(done.guidance.get("text", "")), done.guidance.get("finish_reason"))
    return "executor" if guidance.guidance is not None else "report"
