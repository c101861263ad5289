"""When a run ends before its last step: budgets, a score that is good enough, or a search that stands still.

Pure functions over the summaries of the committed steps.  A run stops only between steps, because a half-scored grid
cannot be trained on; a budget therefore ends the run before a step that would exceed it, judging by the largest step so
far.  Stopping is not failing: the best program is graded as usual, and a higher limit continues the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StopRules:
    """Limits of a run as a whole, over all its launches; None means no limit.

    `patience` counts updates in a row that found no better program.  `max_time_s` counts the time spent in steps.
    """

    max_evaluations: int | None = None
    max_time_s: float | None = None
    max_cost_usd: float | None = None
    target_score: float | None = None
    patience: int | None = None

    def reason(self, summaries: Sequence[Mapping[str, Any]], *, grid_size: int, direction: str) -> str | None:
        """Why no further step may begin, with the setting that decides it; None to go on."""
        checks = (
            self._target(summaries, direction),
            self._standstill(summaries),
            self._evaluations(summaries, grid_size),
            self._time(summaries),
            self._cost(summaries),
        )
        return next((reason for reason in checks if reason is not None), None)

    def _target(self, summaries: Sequence[Mapping[str, Any]], direction: str) -> str | None:
        best = summaries[-1]["best_raw_score"] if summaries else None
        if self.target_score is None or best is None:
            return None
        reached = best >= self.target_score if direction == "max" else best <= self.target_score
        return f"the best score {best:g} reaches GUIDANCE_TARGET_SCORE={self.target_score:g}" if reached else None

    def _standstill(self, summaries: Sequence[Mapping[str, Any]]) -> str | None:
        if self.patience is None or len(summaries) < self.patience:
            return None
        if any(summary["best_gain"] for summary in summaries[-self.patience :]):
            return None
        return f"no better program in {self.patience} updates (GUIDANCE_PATIENCE={self.patience})"

    def _evaluations(self, summaries: Sequence[Mapping[str, Any]], grid_size: int) -> str | None:
        done = sum(summary["sampled_rollouts"] for summary in summaries)
        if self.max_evaluations is None or done + grid_size <= self.max_evaluations:
            return None
        return f"{done} evaluations done, {grid_size} more would exceed GUIDANCE_MAX_EVALUATIONS={self.max_evaluations}"

    def _time(self, summaries: Sequence[Mapping[str, Any]]) -> str | None:
        if self.max_time_s is None or not summaries:
            return None
        steps_s = [summary["rollout_s"] + summary["train_s"] for summary in summaries]
        if sum(steps_s) + max(steps_s) <= self.max_time_s:
            return None
        return (
            f"{sum(steps_s):.0f} s spent, another step of up to {max(steps_s):.0f} s would exceed "
            f"GUIDANCE_MAX_TIME={self.max_time_s:g}"
        )

    def _cost(self, summaries: Sequence[Mapping[str, Any]]) -> str | None:
        if self.max_cost_usd is None or not summaries:
            return None
        costs = [summary.get("cost_usd") for summary in summaries]
        known = [cost for cost in costs if cost is not None]
        if len(known) < len(costs):
            return (
                f"the cost of {len(costs) - len(known)} step(s) is unknown, so GUIDANCE_MAX_COST={self.max_cost_usd:g} "
                "cannot be kept: set GUIDANCE_EXECUTOR_PRICE"
            )
        if sum(known) + max(known) <= self.max_cost_usd:
            return None
        return (
            f"${sum(known):.2f} spent, another step of up to ${max(known):.2f} would exceed "
            f"GUIDANCE_MAX_COST={self.max_cost_usd:g}"
        )
