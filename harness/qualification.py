"""The gate a training step must pass before its archive is committed.

The point of the gate is that "the step counter moved" proves nothing: a step that consumed other trajectories,
trained the base model, or moved no LoRA weight must stop the run, not be built upon.  Pure functions over the
reported numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import TrainingFailed

GLOBAL_BATCH_SIZE = "train/global_batch_size"
GRAD_NORM = "train/grad_norm"
LORA_TRAINABLE = "train/lora_trainable_parameters"
BASE_TRAINABLE = "train/lora_base_trainable_parameters"
LORA_B_NONZERO = "train/lora_b_nonzero"
LORA_B_L1 = "train/lora_b_l1"


@dataclass(frozen=True)
class ExpectedStep:
    """What the search knows of the step it just reported.

    `step` counts from 0; `rollouts` is the whole grid; `retained` is what training keeps of it (constant groups carry
    no signal and are dropped; one group stays when all are constant, which is the zero-signal case).
    """

    step: int
    rollouts: int
    retained: int
    zero_signal: bool
    frozen: bool = False


def expected_step(step: int, group_rewards: Sequence[Sequence[float]], *, frozen: bool = False) -> ExpectedStep:
    """Derive the expectation from the rewards, one inner sequence (length R) per group."""
    varied = sum(any(reward != rewards[0] for reward in rewards) for rewards in group_rewards)
    rollouts_per_group = len(group_rewards[0])
    return ExpectedStep(
        step=step,
        rollouts=sum(len(rewards) for rewards in group_rewards),
        retained=(varied or 1) * rollouts_per_group,
        zero_signal=varied == 0,
        frozen=frozen,
    )


def require_step_success(
    expected: ExpectedStep, *, actual_rollouts: int, completed_steps: int, metrics: Mapping[str, Any]
) -> float:
    """Return the gradient norm of a step that is what the search reported; raise `TrainingFailed` otherwise.

    A zero gradient and an untouched adapter are accepted only when no group carried a signal; a frozen policy's adapter
    must be untouched.  Nothing may ever have trained the base model.
    """
    if actual_rollouts != expected.rollouts:
        raise TrainingFailed(
            f"step {expected.step}: {actual_rollouts} rollouts were made, {expected.rollouts} expected"
        )
    if completed_steps != expected.step + 1:
        raise TrainingFailed(
            f"step {expected.step}: the trainer reports {completed_steps} completed steps, {expected.step + 1} expected"
        )
    grad_norm = _metric(expected, metrics, GRAD_NORM)
    _require(expected, GRAD_NORM, grad_norm, positive=not expected.zero_signal)
    consumed = _metric(expected, metrics, GLOBAL_BATCH_SIZE)
    if consumed != expected.retained:
        raise TrainingFailed(
            f"step {expected.step}: the trainer consumed {GLOBAL_BATCH_SIZE}={consumed:g} trajectories, "
            f"{expected.retained} were retained"
        )
    _require(expected, LORA_TRAINABLE, _metric(expected, metrics, LORA_TRAINABLE), positive=True)
    base = _metric(expected, metrics, BASE_TRAINABLE)
    if base != 0:
        raise TrainingFailed(f"step {expected.step}: {BASE_TRAINABLE}={base:g}: the frozen base model was trained")
    for name in (LORA_B_NONZERO, LORA_B_L1):
        value = _metric(expected, metrics, name)
        if expected.frozen and value != 0:
            raise TrainingFailed(f"step {expected.step}: {name}={value:g}: the policy is frozen, yet its adapter moved")
        _require(expected, name, value, positive=not (expected.zero_signal or expected.frozen))
    return grad_norm


def _metric(expected: ExpectedStep, metrics: Mapping[str, Any], name: str) -> float:
    value = metrics.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TrainingFailed(f"step {expected.step}: the trainer's {name} is {value!r}, a finite number is needed")
    return float(value)


def _require(expected: ExpectedStep, name: str, value: float, *, positive: bool) -> None:
    if value < 0 or (positive and value == 0):
        raise TrainingFailed(
            f"step {expected.step}: the trainer's {name} is {value:g}, "
            f"{'a positive number' if positive else 'zero or more'} is needed"
        )
