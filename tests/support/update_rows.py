"""Rows of an experiment's records for tests."""

from __future__ import annotations

from typing import Any

from benchmarks.experiment.records import UpdateRow


def update_row(seed: int, arm: str, update: int, reward: float, **changed: Any) -> UpdateRow:
    """A whole row of a 1 x 8 or 2 x 4 grid; `reward` is its mean reward."""
    values: dict[str, Any] = {
        "evaluations": 8 * update,
        "reward_max": reward + 1.0,
        "best_score": reward + 2.0,
        "valid": 8,
        "well_formed": 7,
        "named": 4,
        "zero_signal": 0,
        "kl": 0.01,
        "entropy": None,
        "grad_norm": 1.0,
        "importance_ratio": 1.0,
        "response_length": 40.0,
        "rollout_s": 10.0,
        "train_s": 5.0,
    }
    return UpdateRow(seed=seed, arm=arm, update=update, reward_mean=reward, **{**values, **changed})
