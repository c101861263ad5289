"""The numbers behind the figures and the table of updates; pure functions over the facts of a run."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from guidance_ttt.report.facts import Candidate, RunFacts, number_in
from harness.state import VerdictStatus

STATUS_NAMES: Mapping[str, str] = {
    VerdictStatus.VALID: "valid",
    VerdictStatus.INVALID: "rejected by the judge",
    VerdictStatus.GUIDANCE_FORMAT_ERROR: "guidance malformed",
    VerdictStatus.PARSE_ERROR: "no program found",
    VerdictStatus.EXECUTION_ERROR: "answer unusable",
    VerdictStatus.EMPTY_RESPONSE: "empty answer",
}
"""How a report calls each verdict, in the order in which they are stacked."""


@dataclass(frozen=True)
class Update:
    """One committed update (from 1).  None: the state does not say.  Times are in seconds, lengths in tokens."""

    step: int
    evaluations: int
    statuses: Counter[str]
    reward_mean: float | None
    reward_max: float | None
    step_best: float | None
    best: float | None
    gain: float
    found_at: str | None
    well_formed: int | None
    kl: float | None
    entropy: float | None
    guidance_tokens: float | None
    grad_norm: float | None
    importance_ratio: float | None
    rollout_s: float | None
    train_s: float | None
    tokens: int | None
    cost_usd: float | None
    retries: int
    quarantined: int
    zero_signal: bool
    frozen: bool

    @property
    def valid(self) -> int:
        """How many candidates the judge accepted."""
        return self.statuses[VerdictStatus.VALID]

    @property
    def seconds(self) -> float | None:
        """The whole step; None when a part of it is not recorded."""
        return None if self.rollout_s is None or self.train_s is None else self.rollout_s + self.train_s


def updates(facts: RunFacts) -> list[Update]:
    """One row for each update in the archive, also where its summary is missing."""
    by_step: dict[int, list[Candidate]] = {}
    for candidate in facts.candidates:
        by_step.setdefault(candidate.place.step, []).append(candidate)
    summaries = {int(item["step"]) + 1: item for item in facts.summaries if isinstance(item.get("step"), int)}
    rows = []
    best = facts.seed.verifier_raw_score
    for step in sorted(by_step):
        scores = [candidate.score for candidate in by_step[step] if candidate.score is not None]
        step_best = (min if facts.lower_is_better else max)(scores, default=None)
        gain = 0.0
        if step_best is not None and (best is None or facts.better(step_best, best)):
            gain, best = (0.0 if best is None else step_best - best), step_best
        rows.append(_update(facts, step, by_step[step], summaries.get(step, {}), (step_best, best, gain)))
    return rows


def _update(
    facts: RunFacts,
    step: int,
    members: Sequence[Candidate],
    summary: Mapping[str, Any],
    found: tuple[float | None, float | None, float],
) -> Update:
    metrics = summary.get("train_metrics")
    metrics = metrics if isinstance(metrics, dict) else {}
    rewards = [member.entry.verifier_reward for member in members]
    kinds = ("prompt_tokens", "completion_tokens", "executor_prompt_tokens", "executor_completion_tokens")
    counts = [number_in(summary, kind) for kind in kinds]
    known = [count for count in counts if count is not None]
    where = summary.get("best_found_at")
    return Update(
        step=step,
        evaluations=len(members),
        statuses=Counter(member.entry.verifier_status for member in members),
        reward_mean=statistics.fmean(rewards),
        reward_max=max(rewards),
        step_best=found[0],
        best=found[1],
        gain=found[2],
        found_at=where if isinstance(where, str) else None,
        well_formed=_whole(summary, "well_formed_guidance"),
        kl=number_in(metrics, "train/kl"),
        entropy=number_in(metrics, "train/entropy"),
        guidance_tokens=_guidance_tokens(summary, len(members)),
        grad_norm=number_in(summary, "grad_norm"),
        importance_ratio=number_in(metrics, "train/importance_ratio"),
        rollout_s=number_in(summary, "rollout_s"),
        train_s=number_in(summary, "train_s"),
        tokens=int(sum(known)) if len(known) == len(kinds) else None,
        cost_usd=number_in(summary, "cost_usd"),
        retries=facts.history.retries.get(step, Counter()).total(),
        quarantined=_whole(summary, "quarantined") or 0,
        zero_signal=summary.get("zero_signal") is True,
        frozen=summary.get("policy_frozen") is True,
    )


def _guidance_tokens(summary: Mapping[str, Any], evaluations: int) -> float | None:
    """Mean length of an answer of the policy, over all rollouts of the step."""
    total = number_in(summary, "completion_tokens")
    return None if not total else total / evaluations


def _whole(values: Mapping[str, Any], key: str) -> int | None:
    value = number_in(values, key)
    return None if value is None else int(value)


# --- over the whole run -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NewBest:
    """The moment at which a candidate became the best so far; the seed stands at 0."""

    number: int
    step: int
    score: float


def new_bests(facts: RunFacts) -> list[NewBest]:
    """Every improvement in the order of evaluation, the seed first."""
    found = []
    score = facts.seed.verifier_raw_score
    if score is not None:
        found.append(NewBest(0, 0, score))
    for candidate in facts.candidates:
        if candidate.score is not None and (score is None or facts.better(candidate.score, score)):
            score = candidate.score
            found.append(NewBest(candidate.number, candidate.place.step, score))
    return found


def elapsed_s(rows: Sequence[Update]) -> list[float] | None:
    """Seconds spent in steps up to the end of each update; None when one of them is not recorded."""
    parts = [row.seconds for row in rows]
    return None if not parts or None in parts else list(accumulate(part or 0.0 for part in parts))


def spent_usd(rows: Sequence[Update]) -> list[float] | None:
    """Dollars up to the end of each update; None when one is unknown."""
    parts = [row.cost_usd for row in rows]
    return None if not parts or None in parts else list(accumulate(part or 0.0 for part in parts))
