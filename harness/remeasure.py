"""Measures the best programs of a timing task again before one of them is submitted.

The best of many noisy timings is lucky as a rule, not fast: what was picked for its number is no longer judged fairly
by that number.  The few best are therefore timed again in turn, round by round, so that a slow minute of the machine
hits all of them alike, and the best mean is submitted.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.state import LibraryEntry, VerificationResult

ROUNDS = 3

Evaluate = Callable[[str], Awaitable[VerificationResult]]


@dataclass(frozen=True)
class Remeasured:
    """One program: the score that the search saw, and what it scored again (None where it was not valid)."""

    entry_id: str
    search_score: float | None
    scores: tuple[float | None, ...]

    @property
    def mean(self) -> float | None:
        """Mean of the new scores; None for a program that failed once, which is not to be submitted."""
        valid = [score for score in self.scores if score is not None]
        return statistics.fmean(valid) if valid and len(valid) == len(self.scores) else None

    def as_dict(self) -> dict[str, Any]:
        """JSON values, with the mean."""
        return {**asdict(self), "scores": list(self.scores), "mean": self.mean}


async def remeasure(
    candidates: Sequence[LibraryEntry], evaluate: Evaluate, *, rounds: int = ROUNDS
) -> list[Remeasured]:
    """Score every candidate once a round, one after the other; raises `JudgeUnavailable` as `evaluate` does."""
    scores: dict[str, list[float | None]] = {entry.id: [] for entry in candidates}
    for _ in range(rounds):
        for entry in candidates:
            verdict = await evaluate(entry.solution)
            scores[entry.id].append(verdict.raw_score if verdict.valid else None)
    return [Remeasured(entry.id, entry.verifier_raw_score, tuple(scores[entry.id])) for entry in candidates]


def steadiest(results: Sequence[Remeasured], direction: str) -> Remeasured | None:
    """The best mean (the lowest when lower is better), the earlier one of equals; None when every program failed."""
    sign = 1.0 if direction == "max" else -1.0
    sound = [result for result in results if result.mean is not None]
    return max(sound, key=lambda result: sign * (result.mean or 0.0), default=None)
