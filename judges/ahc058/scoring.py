"""From case results to one verdict: totals, means and rewards.  Pure functions over plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from judges.sandbox import Status

REWARD_DIVISOR = 3_000_000.0
"""What the mean score is divided by to become a training reward: a little above half of what good programs reach."""


class CaseStatus(StrEnum):
    """How one case ended, from the worst to the best; the first that occurs names the whole submission."""

    WRONG_ANSWER = "WRONG_ANSWER"
    """The program ended well, but what it printed breaks a rule."""
    RUNTIME_ERROR = "RUNTIME_ERROR"
    """The program crashed or returned another exit code than 0."""
    TIME_LIMIT_EXCEEDED = "TIME_LIMIT_EXCEEDED"
    """The program did not end in time."""
    MEMORY_LIMIT_EXCEEDED = "MEMORY_LIMIT_EXCEEDED"
    """The program was ended because it used too much memory."""
    OUTPUT_LIMIT_EXCEEDED = "OUTPUT_LIMIT_EXCEEDED"
    """The program was ended because it printed too much."""
    COMPILATION_ERROR = "COMPILATION_ERROR"
    """There is no program to run."""
    NOT_RUN = "NOT_RUN"
    """Given up, because every case before it ran out of time."""
    ACCEPTED = "ACCEPTED"
    """The program followed the rules; only such a case has a score."""


RUN_STATUS = {
    Status.TIME_LIMIT: CaseStatus.TIME_LIMIT_EXCEEDED,
    Status.MEMORY_LIMIT: CaseStatus.MEMORY_LIMIT_EXCEEDED,
    Status.OUTPUT_LIMIT: CaseStatus.OUTPUT_LIMIT_EXCEEDED,
    Status.SIGNALLED: CaseStatus.RUNTIME_ERROR,
    Status.NONZERO_EXIT: CaseStatus.RUNTIME_ERROR,
}
"""What a run that was not accepted means for its case."""


@dataclass(frozen=True)
class CaseReport:
    """One judged case; `score` is 0 unless it was accepted.  Times are in seconds."""

    seed: int
    status: CaseStatus
    score: int = 0
    message: str = ""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    memory_bytes: int = 0

    def artifact(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "seed": self.seed,
            "status": self.status.value,
            "score": self.score,
            "cpu_s": round(self.cpu_s, 4),
            "wall_s": round(self.wall_s, 4),
            "memory_bytes": self.memory_bytes,
            "message": self.message,
        }


@dataclass(frozen=True)
class Summary:
    """What all cases of a submission add up to."""

    total: int
    raw: float
    """The mean over all cases of the problem, failed ones counting 0."""
    reward: float
    valid: bool
    counts: dict[str, int]
    worst: CaseStatus


def summarise(reports: Sequence[CaseReport]) -> Summary:
    """Add up the reports, one for each case of the problem: failed cases score 0, and only a submission without any
    failed case is valid."""
    total = sum(report.score for report in reports)
    raw = total / len(reports)
    occurring = Counter(report.status for report in reports)
    return Summary(
        total=total,
        raw=raw,
        reward=raw / REWARD_DIVISOR if raw > 0 else 0.0,
        valid=raw > 0 and set(occurring) == {CaseStatus.ACCEPTED},
        counts={status.value: occurring[status] for status in CaseStatus if occurring[status]},
        worst=next(status for status in CaseStatus if occurring[status]),
    )
