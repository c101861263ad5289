"""What is recorded of a peer's run, and the same rows as of our own runs made from it.  Pure functions, no files."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from benchmarks.experiment.records import UpdateRow, update_rows
from executors.catalogue import Catalogue
from executors.matching import Matcher
from harness.state import VerdictStatus

UNCHANGED = "unchanged"
"""Status of a rollout whose program equals its parent; OpenEvolve drops it, so the parent's reward counts for it."""


@dataclass(frozen=True)
class PeerRollout:
    """One evaluation of the budget, in the order in which they ended; `ended_s` counts from the run's start.

    `status` is the harness's verdict status or `UNCHANGED`; `number` is the place in the order of requests, from 0.
    """

    number: int
    parent_sha256: str
    parent_score: float
    guidance: str
    program_sha256: str | None
    status: str
    reward: float
    raw_score: float | None
    ended_s: float

    @property
    def well_formed(self) -> bool:
        """Whether the policy's text was accepted as guidance."""
        return self.status != VerdictStatus.GUIDANCE_FORMAT_ERROR

    @property
    def valid(self) -> bool:
        """Whether there is an accepted program, be it the parent's."""
        return self.status in (VerdictStatus.VALID, UNCHANGED)

    def to_dict(self) -> dict[str, Any]:
        """The rollout as the run's file holds it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse; an unknown or missing key is a TypeError."""
        return cls(**data)


def updates_of(rollouts: Sequence[PeerRollout], size: int) -> list[Sequence[PeerRollout]]:
    """The rollouts in updates of `size`; a part of an update at the end is left out."""
    return [rollouts[start : start + size] for start in range(0, len(rollouts) - size + 1, size)]


def step_summaries(rollouts: Sequence[PeerRollout], size: int, seed_score: float) -> list[dict[str, Any]]:
    """One summary per update, with the keys of `resume-state.json` that a row is made from.

    Groups do not exist here, so no update is one without signal; scores are those of a problem to maximise.
    """
    summaries: list[dict[str, Any]] = []
    best, before_s = seed_score, 0.0
    for step, update in enumerate(updates_of(rollouts, size)):
        best = max([best, *(each.raw_score for each in update if each.valid and each.raw_score is not None)])
        summaries.append(
            {
                "step": step,
                "sampled_rollouts": len(update),
                "reward_mean": statistics.fmean(each.reward for each in update),
                "reward_max": max(each.reward for each in update),
                "best_raw_score": best,
                "valid_rollouts": sum(each.valid for each in update),
                "well_formed_guidance": sum(each.well_formed for each in update),
                "zero_signal": False,
                "rollout_s": update[-1].ended_s - before_s,
            }
        )
        before_s = update[-1].ended_s
    return summaries


def named_by_update(rollouts: Sequence[PeerRollout], size: int, catalogue: Catalogue) -> list[Counter[str]]:
    """Per update: how often each mechanism was named, and under `guidance` how many texts named any."""
    matcher = Matcher(catalogue)
    counts: list[Counter[str]] = []
    for update in updates_of(rollouts, size):
        count = Counter[str]()
        for rollout in update:
            applied = matcher.match(rollout.guidance).applied
            count.update(mechanism.id for mechanism in applied)
            count["guidance"] += bool(applied)
        counts.append(count)
    return counts


def peer_rows(
    seed: int, arm: str, rollouts: Sequence[PeerRollout], size: int, seed_score: float, named: Sequence[Counter[str]]
) -> list[UpdateRow]:
    """The rows of one run, in the shape of our own runs'."""
    return update_rows(seed, arm, step_summaries(rollouts, size, seed_score), named)
