"""What Reef's status and the GPU profile's trainer say, and a reader that plays such documents back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SCENARIO = "guidance-ttt-toy"


def status(step: int, *, admission: bool = True, error: str | None = None, **block: Any) -> dict[str, Any]:
    """Reef's `/reef/status` with `step` committed steps."""
    return {
        "error": error,
        "scenarios": {
            SCENARIO: {
                "scenario_step": step,
                "current_runtime_load_id": f"x:{step}",
                "inference_admission": {"open": admission},
                "last_committed_step": {"step": step, "metrics": {"train/grad_norm": 0.1}},
                "processor": {"failed_steps": []},
                **block,
            }
        },
    }


def health(completed: int, *, next_id: int | None = None, phase: str = "serving", **changed: Any) -> dict[str, Any]:
    """The trainer's health after `completed` updates since its start."""
    next_id = completed if next_id is None else next_id
    return {
        "ok": True,
        "recoverable": False,
        "start_rollout_id": next_id,
        "phase": phase,
        "completed_train_steps": completed,
        "last_train_rollout_id": next_id - 1 if completed else None,
        "last_train_metrics": {"train/grad_norm": 0.1} if completed else {},
        "training_job": {"status": "COMPLETE", "training_job_id": "job", "runtime_load_id": f"x:{next_id}"},
        **changed,
    }


class Scripted:
    """Answers each read with the next item; the last one for ever.  An exception is raised instead."""

    def __init__(self, *answers: Mapping[str, Any] | Exception) -> None:
        self.answers = list(answers)
        self.reads = 0

    async def __call__(self) -> Mapping[str, Any]:
        self.reads += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer
