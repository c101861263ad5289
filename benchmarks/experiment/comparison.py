"""What the rows of an experiment say: pure functions, no files.

Runs are compared in pairs: the same seed once with each policy.  The interval is Student's t over the seeds'
differences, because rollouts within one run depend on each other and seeds do not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.experiment.records import UpdateRow

Measure = Callable[[Sequence[UpdateRow]], float]


@dataclass(frozen=True)
class Difference:
    """Mean of the paired differences with its two-sided 95 % interval; infinite for fewer than two seeds."""

    pairs: int
    mean: float
    low: float
    high: float


def last_third(rows: Sequence[UpdateRow]) -> Sequence[UpdateRow]:
    """The last third of a run's updates, at least one."""
    ordered = sorted(rows, key=lambda row: row.update)
    return ordered[-max(1, len(ordered) // 3) :]


def late_reward(rows: Sequence[UpdateRow]) -> float:
    """Mean reward of the last third: every rollout counts the same."""
    return statistics.fmean(row.reward_mean for row in last_third(rows))


def final_best(rows: Sequence[UpdateRow]) -> float:
    """Best score of the whole run."""
    return max(row.best_score for row in rows)


def mean_best(rows: Sequence[UpdateRow]) -> float:
    """Best score so far, averaged over the updates: the area under the curve that a search is judged by."""
    return statistics.fmean(row.best_score for row in rows)


def late_naming(rows: Sequence[UpdateRow]) -> float:
    """Share of guidance in the last third that names a mechanism of the catalogue."""
    late = last_third(rows)
    rollouts = sum(_rollouts(row, rows) for row in late)
    return sum(row.named for row in late) / rollouts


def late_well_formed(rows: Sequence[UpdateRow]) -> float:
    """Share of well-formed guidance in the last third."""
    late = last_third(rows)
    return sum(row.well_formed for row in late) / sum(_rollouts(row, rows) for row in late)


MEASURES: dict[str, Measure] = {
    "mean reward, last third": late_reward,
    "best score": final_best,
    "best score, mean over updates": mean_best,
    "guidance naming a mechanism, last third": late_naming,
    "well-formed guidance, last third": late_well_formed,
}


def runs(rows: Sequence[UpdateRow], arm: str) -> dict[int, list[UpdateRow]]:
    """The rows of one arm by seed."""
    found: dict[int, list[UpdateRow]] = {}
    for row in rows:
        if row.arm == arm:
            found.setdefault(row.seed, []).append(row)
    return found


def paired(rows: Sequence[UpdateRow], arm: str, other: str, measure: Measure) -> Difference:
    """`arm` minus `other` over the seeds that both have, each run cut to the updates that both have."""
    first, second = runs(rows, arm), runs(rows, other)
    differences = []
    for seed in sorted(set(first) & set(second)):
        updates = min(len(first[seed]), len(second[seed]))
        ours, theirs = (sorted(run[seed], key=lambda row: row.update)[:updates] for run in (first, second))
        differences.append(measure(ours) - measure(theirs))
    return interval(differences)


def interval(differences: Sequence[float]) -> Difference:
    """Student's t interval of the mean."""
    from scipy.stats import t

    if not differences:
        return Difference(0, math.nan, -math.inf, math.inf)
    mean = statistics.fmean(differences)
    count = len(differences)
    if count == 1:
        return Difference(1, mean, -math.inf, math.inf)
    half = float(t.ppf(0.975, count - 1)) * statistics.stdev(differences) / math.sqrt(count)
    return Difference(count, mean, mean - half, mean + half)


def table(rows: Sequence[UpdateRow], arms: Sequence[str]) -> str:
    """The comparison as text: every arm's mean, and the first arm against each other one."""
    lines = [f"{'measure':42}" + "".join(f"{arm:>12}" for arm in arms)]
    for name, measure in MEASURES.items():
        values = [[measure(run) for run in runs(rows, arm).values()] for arm in arms]
        lines.append(f"{name:42}" + "".join(f"{statistics.fmean(v):12.3f}" if v else f"{'-':>12}" for v in values))
    for other in arms[1:]:
        lines.append("")
        lines.append(f"{arms[0]} minus {other}, paired by seed, 95 % interval")
        for name, measure in MEASURES.items():
            found = paired(rows, arms[0], other, measure)
            lines.append(f"  {name:42}{found.mean:+9.3f}  [{found.low:+.3f}, {found.high:+.3f}]  {found.pairs} seeds")
    return "\n".join(lines)


def _rollouts(row: UpdateRow, rows: Sequence[UpdateRow]) -> int:
    """Rollouts of one update: evaluations are counted from the start of the run."""
    before = max((other.evaluations for other in rows if other.update < row.update), default=0)
    return row.evaluations - before
