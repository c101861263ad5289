"""The gate: a step counts only when it is the step that the search reported."""

from __future__ import annotations

from typing import Any

import pytest

from harness.errors import TrainingFailed
from harness.qualification import expected_step, require_step_success

GOOD: dict[str, Any] = {
    "train/global_batch_size": 4,
    "train/grad_norm": 0.5,
    "train/lora_trainable_parameters": 1000,
    "train/lora_base_trainable_parameters": 0,
    "train/lora_b_nonzero": 10,
    "train/lora_b_l1": 0.1,
}
VARIED = [[0.0, 1.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0]]
CONSTANT = [[0.0] * 4, [2.0] * 4]


def qualify(rewards: list[list[float]], completed: int = 1, rollouts: int = 8, **changed: Any) -> float:
    metrics = {**GOOD, **{f"train/{name}": value for name, value in changed.items()}}
    metrics = {name: value for name, value in metrics.items() if value is not ...}
    return require_step_success(
        expected_step(0, rewards), actual_rollouts=rollouts, completed_steps=completed, metrics=metrics
    )


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"grad_norm": 0.0}, "grad_norm is 0"),
        ({"grad_norm": float("nan")}, "finite number"),
        ({"grad_norm": float("inf")}, "finite number"),
        ({"grad_norm": True}, "finite number"),
        ({"grad_norm": "0.5"}, "finite number"),
        ({"grad_norm": ...}, "grad_norm is None"),
        ({"grad_norm": -1.0}, "grad_norm is -1"),
        ({"global_batch_size": 8}, "consumed"),
        ({"lora_trainable_parameters": 0}, "lora_trainable_parameters is 0"),
        ({"lora_base_trainable_parameters": 1}, "frozen base model was trained"),
        ({"lora_b_nonzero": 0}, "lora_b_nonzero is 0"),
        ({"lora_b_l1": 0.0}, "lora_b_l1 is 0"),
        ({"lora_b_l1": float("nan")}, "finite number"),
        ({"completed": 2}, "2 completed steps"),
        ({"completed": 0}, "0 completed steps"),
        ({"rollouts": 7}, "7 rollouts were made"),
    ],
)
def test_a_step_that_is_not_what_was_reported_is_refused_with_its_reason(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(TrainingFailed, match=reason):
        qualify(VARIED, **changed)


def test_a_complete_update_returns_its_gradient_norm() -> None:
    assert qualify(VARIED) == 0.5


def test_a_grid_without_signal_may_leave_the_adapter_untouched() -> None:
    assert qualify(CONSTANT, grad_norm=0.0, lora_b_nonzero=0, lora_b_l1=0.0) == 0.0


def test_a_grid_without_signal_still_may_not_train_the_base_model() -> None:
    with pytest.raises(TrainingFailed, match="frozen base model"):
        qualify(CONSTANT, grad_norm=0.0, lora_b_nonzero=0, lora_b_l1=0.0, lora_base_trainable_parameters=5)


def test_one_group_is_retained_when_all_are_constant_and_only_varied_ones_otherwise() -> None:
    assert expected_step(3, CONSTANT).retained == 4
    assert expected_step(3, CONSTANT).zero_signal
    assert expected_step(3, VARIED).retained == 4
    assert expected_step(3, [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]).retained == 4
