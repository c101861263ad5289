"""The judge protocol: what a judge is asked, what it answers, and the JSON that crosses the wire.

Knows no task and no transport.  A judge returns a `Verdict`; only this module turns verdicts, faults and waiting
submissions into the objects that `GET /result/<sid>` serves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

MESSAGE_CHARS = 4000


class BadSubmission(Exception):
    """A request that cannot be judged at all; it is answered with a 4xx and never enters the queue."""

    def __init__(self, error: str, hint: str, status: int = 400) -> None:
        super().__init__(error)
        self.error = error
        self.hint = hint
        self.status = status


@dataclass(frozen=True)
class Submission:
    """One candidate to judge.  The code is bytes, exactly as they were sent."""

    sid: str
    pid: str
    lang: str
    code: bytes = field(repr=False)


@dataclass(frozen=True)
class Verdict:
    """What a judge found out about one candidate.

    `score` is what training sees and is at least 0; `score_unbounded` is the task's own measure.  `failure_domain` is
    "candidate" when the candidate is at fault, and None otherwise; a judge whose own work failed raises instead.
    """

    valid: bool
    score: float
    score_unbounded: float
    message: str = ""
    training_reward_on_invalid: bool = False
    artifacts: Mapping[str, Any] = field(default_factory=dict)
    failure_domain: str | None = None


class Judge(Protocol):
    """One task's judge.  `judge` blocks and is called from several threads; everything else is quick."""

    @property
    def name(self) -> str:
        """Short name shown by `/health`."""
        ...

    @property
    def problems(self) -> tuple[str, ...]:
        """The problem ids that can be submitted to."""
        ...

    def language(self, lang: str) -> str:
        """The canonical name of an accepted language; raises `BadSubmission` for any other."""
        ...

    def describe(self) -> dict[str, Any]:
        """What `/health` adds for this judge: tier, limits, which cases."""
        ...

    def judge(self, submission: Submission) -> Verdict:
        """Judge one candidate; an exception means that the judge failed, not the candidate."""
        ...

    def stop(self) -> None:
        """Kill what runs; `judge` calls in progress end soon with `SandboxStopped`."""
        ...


def verdict_result(verdict: Verdict) -> dict[str, Any]:
    """The final result for a verdict; one with an impossible score becomes an infrastructure fault."""
    for name, value in (("score", verdict.score), ("scoreUnbounded", verdict.score_unbounded)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return fault_result(f"the judge computed {name} = {value!r}, which is not a finite number")
    if verdict.score < 0:
        return fault_result(f"the judge computed a negative score, {verdict.score!r}")
    done = verdict.valid or verdict.training_reward_on_invalid
    return {
        "status": "done" if done else "error",
        "valid": verdict.valid,
        "trainingRewardOnInvalid": verdict.training_reward_on_invalid,
        "score": float(verdict.score),
        "scoreUnbounded": float(verdict.score_unbounded),
        "message": (verdict.message or ("accepted" if verdict.valid else "rejected"))[:MESSAGE_CHARS],
        "artifacts": dict(verdict.artifacts),
        "failureDomain": verdict.failure_domain,
    }


def fault_result(reason: str) -> dict[str, Any]:
    """The final result when the judge itself failed: it never carries a score a trainer could use."""
    return {
        "status": "environment_error",
        "valid": False,
        "trainingRewardOnInvalid": False,
        "score": 0.0,
        "scoreUnbounded": 0.0,
        "message": f"judge infrastructure failure: {reason}"[:MESSAGE_CHARS],
        "artifacts": {},
        "failureDomain": "infrastructure",
    }
