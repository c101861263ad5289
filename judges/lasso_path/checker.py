"""Checks one answer: complete, finite, and nowhere worse than scikit-learn by more than the tolerance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from judges.lasso_path.cases import Floats, Instance
from judges.lasso_path.reference import objectives

TOLERANCE = 1e-6


@dataclass(frozen=True)
class Checked:
    """Whether an answer counts; `max_gap` is the largest excess over the reference objective, None if unknown."""

    valid: bool
    message: str
    max_gap: float | None = None


def check_output(instance: Instance, output: bytes, reference: Floats) -> Checked:
    """Judge the raw output of a solver: p x m float64, one column of coefficients for each lambda."""
    expected = instance.spec.output_bytes
    if len(output) != expected:
        amount = "more than" if len(output) > expected else f"{len(output)} of"
        return Checked(False, f"wrote {amount} the {expected} bytes that p x m float64 values take")
    path: Floats = np.frombuffer(output, dtype=np.float64).reshape((instance.spec.columns, -1), order="F")
    finite = np.isfinite(path).all(axis=0)
    if not finite.all():
        return Checked(False, f"the coefficients for lambda {int(np.argmin(finite)) + 1} are not finite")
    gaps = objectives(instance.x, instance.y, instance.lambdas, path) - reference
    # A huge coefficient overflows to infinity or to no number at all; both are infinitely bad.
    gaps = np.where(np.isnan(gaps), np.inf, gaps)
    worst = int(np.argmax(gaps))
    gap = float(gaps[worst])
    if gap > TOLERANCE:
        amount = f"{gap:.3g}" if math.isfinite(gap) else "infinity"
        return Checked(
            False,
            f"the objective at lambda {worst + 1} of {len(gaps)} exceeds the reference by {amount}; "
            f"{TOLERANCE:g} is allowed",
            gap if math.isfinite(gap) else None,
        )
    return Checked(True, "ok", gap)
