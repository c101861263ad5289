"""The arithmetic of timing: when enough runs were made, what they come to, and the reward for it.

Pure functions of measured microseconds.  The rule for stopping is the public evaluator's: the mean is known to 0.1 %,
or enough time was spent.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

MIN_RUNS = 3
MAX_RUNS = 100
TARGET_RELATIVE_ERROR = 0.001
MAX_MEASURED_S = 30.0
MAX_ELAPSED_S = 120.0
REWARD_SCALE_US = 1500.0


@dataclass(frozen=True)
class Timing:
    """What the runs of one case came to, in microseconds."""

    runs: int
    mean_us: float
    std_us: float
    error_us: float
    best_us: float
    worst_us: float

    def artifact(self) -> dict[str, Any]:
        """As it appears in a verdict."""
        return {name: round(value, 3) for name, value in asdict(self).items()}


def summarize(samples_us: Sequence[float]) -> Timing:
    """Mean, spread, standard error and extremes; a single run has no spread.  ValueError for an impossible time."""
    if not samples_us:
        raise ValueError("no run was timed")
    for sample in samples_us:
        if not (math.isfinite(sample) and sample > 0):
            raise ValueError(f"a run took {sample!r} microseconds, which is no time")
    spread = statistics.stdev(samples_us) if len(samples_us) > 1 else 0.0
    return Timing(
        runs=len(samples_us),
        mean_us=statistics.fmean(samples_us),
        std_us=spread,
        error_us=spread / math.sqrt(len(samples_us)),
        best_us=min(samples_us),
        worst_us=max(samples_us),
    )


def is_enough(samples_us: Sequence[float], elapsed_s: float) -> bool:
    """Whether a case needs no further run."""
    runs = len(samples_us)
    if runs >= MAX_RUNS:
        return True
    if runs < MIN_RUNS:
        return False
    timing = summarize(samples_us)
    return (
        timing.error_us < TARGET_RELATIVE_ERROR * timing.mean_us
        or timing.mean_us * runs > MAX_MEASURED_S * 1e6
        or elapsed_s > MAX_ELAPSED_S
    )


def latency_us(means_us: Sequence[float]) -> float:
    """The geometric mean over the cases; ValueError for none, or for one that is not a positive number."""
    if not means_us:
        raise ValueError("no case was timed")
    for mean in means_us:
        if not (math.isfinite(mean) and mean > 0):
            raise ValueError(f"a case took {mean!r} microseconds, which is no time")
    return math.exp(math.fsum(math.log(mean) for mean in means_us) / len(means_us))


def reward(latency: float) -> float:
    """1 at 1500 microseconds, larger for a faster kernel."""
    return REWARD_SCALE_US / latency
