"""The gate: a step counts only when it is the step that the search reported, whichever engine trained it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.tiny_model import build_tiny_model
from training_documents import SCENARIO, Scripted, health, status

from harness.errors import TrainingFailed
from harness.qualification import expected_step, require_step_success
from harness.ray_bridge import RayTrainingBridge
from harness.training_bridge import ServiceTrainingBridge, TrainingBridge

GOOD: dict[str, Any] = {
    "train/global_batch_size": 4,
    "train/grad_norm": 0.5,
    "train/lora_trainable_parameters": 1000,
    "train/lora_base_trainable_parameters": 0,
    "train/lora_b_nonzero": 10,
    "train/lora_b_l1": 0.1,
}
UNTOUCHED = {"lora_b_nonzero": 0, "lora_b_l1": 0.0}
VARIED = [[0.0, 1.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0]]
CONSTANT = [[0.0] * 4, [2.0] * 4]


def over_service(completed: int, metrics: dict[str, Any]) -> TrainingBridge:
    """A local run: everything is in Reef's status."""
    block = {"last_committed_step": {"step": completed, "metrics": metrics}}
    return ServiceTrainingBridge(Scripted(status(completed, **block)), SCENARIO, timeout_s=1.0)


def over_ray(completed: int, metrics: dict[str, Any]) -> TrainingBridge:
    """A GPU run whose commit carries no metrics: they come from the trainer."""
    reef = Scripted(status(completed, last_committed_step={"step": completed, "metrics": {}}))
    trainer = Scripted(health(completed, last_train_metrics=metrics))
    return RayTrainingBridge(reef, trainer, SCENARIO, timeout_s=1.0)


Bridge = Callable[[int, dict[str, Any]], TrainingBridge]
bridges = pytest.mark.parametrize("bridge", [over_service, over_ray])


async def qualify(
    bridge: Bridge,
    rewards: list[list[float]],
    metrics: dict[str, Any],
    *,
    completed: int = 1,
    rollouts: int = 8,
    frozen: bool = False,
) -> float:
    serving = await bridge(completed, metrics).state()
    return require_step_success(
        expected_step(0, rewards, frozen=frozen),
        actual_rollouts=rollouts,
        completed_steps=serving.completed_steps,
        metrics=serving.metrics,
    )


def changed(**values: Any) -> dict[str, Any]:
    """Good metrics with some changed, or left out (...)."""
    metrics = {**GOOD, **{f"train/{name}": value for name, value in values.items()}}
    return {name: value for name, value in metrics.items() if value is not ...}


@bridges
@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"grad_norm": 0.0}, "grad_norm is 0"),
        ({"grad_norm": float("nan")}, "finite number"),
        ({"grad_norm": float("inf")}, "finite number"),
        ({"grad_norm": True}, "finite number"),
        ({"grad_norm": "0.5"}, "finite number"),
        ({"grad_norm": ...}, "grad_norm is None"),
        ({"grad_norm": -1.0}, "grad_norm is -1"),
        ({"global_batch_size": 8}, "consumed"),
        ({"global_batch_size": ...}, "global_batch_size is None"),
        ({"lora_trainable_parameters": 0}, "lora_trainable_parameters is 0"),
        ({"lora_trainable_parameters": ...}, "lora_trainable_parameters is None"),
        ({"lora_base_trainable_parameters": 1}, "frozen base model was trained"),
        ({"lora_base_trainable_parameters": False}, "finite number"),
        ({"lora_b_nonzero": 0}, "lora_b_nonzero is 0"),
        ({"lora_b_l1": 0.0}, "lora_b_l1 is 0"),
        ({"lora_b_l1": float("nan")}, "finite number"),
    ],
)
async def test_a_step_that_is_not_what_was_reported_is_refused_with_its_reason(
    bridge: Bridge, values: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TrainingFailed, match=reason):
        await qualify(bridge, VARIED, changed(**values))


@bridges
@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ({"completed": 2}, "2 completed steps"),
        ({"completed": 0}, "0 completed steps"),
        ({"rollouts": 7}, "7 rollouts were made"),
    ],
)
async def test_a_step_with_other_counts_is_refused(bridge: Bridge, counts: dict[str, int], reason: str) -> None:
    with pytest.raises(TrainingFailed, match=reason):
        await qualify(bridge, VARIED, GOOD, **counts)  # type: ignore[arg-type]


@bridges
async def test_a_complete_update_returns_its_gradient_norm(bridge: Bridge) -> None:
    assert await qualify(bridge, VARIED, GOOD) == 0.5


@bridges
async def test_a_grid_without_signal_may_leave_the_adapter_untouched(bridge: Bridge) -> None:
    assert await qualify(bridge, CONSTANT, changed(grad_norm=0.0, **UNTOUCHED)) == 0.0


@bridges
async def test_a_grid_without_signal_still_may_not_train_the_base_model(bridge: Bridge) -> None:
    with pytest.raises(TrainingFailed, match="frozen base model"):
        await qualify(bridge, CONSTANT, changed(grad_norm=0.0, lora_base_trainable_parameters=5, **UNTOUCHED))


@bridges
async def test_a_frozen_policys_adapter_is_untouched_and_its_gradient_is_still_measured(bridge: Bridge) -> None:
    assert await qualify(bridge, VARIED, changed(**UNTOUCHED), frozen=True) == 0.5
    with pytest.raises(TrainingFailed, match="grad_norm is 0"):
        await qualify(bridge, VARIED, changed(grad_norm=0.0, **UNTOUCHED), frozen=True)


@bridges
@pytest.mark.parametrize("values", [{"lora_b_nonzero": 1, "lora_b_l1": 0.0}, {"lora_b_nonzero": 0, "lora_b_l1": 1e-9}])
@pytest.mark.parametrize("rewards", [VARIED, CONSTANT])
async def test_a_frozen_policy_that_moved_is_refused(
    bridge: Bridge, values: dict[str, float], rewards: list[list[float]]
) -> None:
    with pytest.raises(TrainingFailed, match="the policy is frozen, yet its adapter moved"):
        await qualify(bridge, rewards, changed(**values), frozen=True)


def test_one_group_is_retained_when_all_are_constant_and_only_varied_ones_otherwise() -> None:
    assert expected_step(3, CONSTANT).retained == 4
    assert expected_step(3, CONSTANT).zero_signal
    assert expected_step(3, VARIED).retained == 4
    assert expected_step(3, [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]).retained == 4


# --- metrics of the local engine ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[float], dict[str, Any]]:
    """Metrics of a real update of a tiny model on a group of four, at a learning rate."""
    from tttd.local.policy import PolicyModel
    from tttd.local.trainer import TrainingRow, train_step

    policy = PolicyModel(build_tiny_model(tmp_path_factory.mktemp("tiny")), rank=4, alpha=8, seed=3, device="cpu")
    rows = [
        TrainingRow((1, 2, 3), (10 + number, 20, 30), (1, 1, 1), (-4.0, -4.0, -4.0), advantage=float(number) - 1.5)
        for number in range(4)
    ]

    def train(learning_rate: float) -> dict[str, Any]:
        step = train_step(
            policy, rows, adapter=None, optimizer=None, learning_rate=learning_rate, kl_coef=0.1, token_budget=256
        )
        return step.metrics

    return train


async def test_an_update_of_the_local_engine_passes(trained: Callable[[float], dict[str, Any]]) -> None:
    metrics = trained(0.01)
    assert await qualify(over_service, VARIED, metrics) == metrics["train/grad_norm"]
    with pytest.raises(TrainingFailed, match="yet its adapter moved"):
        await qualify(over_service, VARIED, metrics, frozen=True)
    with pytest.raises(TrainingFailed, match="consumed train/global_batch_size=4 trajectories, 8 were retained"):
        await qualify(over_service, [[0.0, 1.0, 0.0, 0.0]] * 2, metrics)


async def test_a_local_update_that_moves_nothing_passes_for_a_frozen_policy_only(
    trained: Callable[[float], dict[str, Any]],
) -> None:
    metrics = trained(0.0)
    assert await qualify(over_service, VARIED, metrics, frozen=True) > 0
    with pytest.raises(TrainingFailed, match="lora_b_nonzero is 0"):
        await qualify(over_service, VARIED, metrics)


# --- metrics of the GPU trainer -------------------------------------------------------------------------------------


def slime_metrics(
    *, adapter_b: float = 0.0, train_base: bool = False, train_adapter: bool = True, grad_norm: float = 0.5
) -> dict[str, Any]:
    """What Reef's own functions report of a Megatron-like model with one adapter, as its bridge hands it on."""
    import torch
    from reef.train.slime_backend.reef_adapters.megatron.lora import collect_lora_train_metrics
    from reef.train.slime_backend.reef_adapters.worker_hooks import drain_worker_metrics, record_worker_metrics

    def weight(value: float, trainable: bool) -> torch.nn.ParameterDict:
        tensor = torch.full((2, 3), value)
        return torch.nn.ParameterDict({"weight": torch.nn.Parameter(tensor, requires_grad=trainable)})

    adapter = {"linear_in": weight(0.3, train_adapter), "linear_out": weight(adapter_b, train_adapter)}
    projection = {"to_wrap": weight(1.0, train_base), "adapter": torch.nn.ModuleDict(adapter)}
    model = torch.nn.ModuleDict({"linear_qkv": torch.nn.ModuleDict(projection)})
    drain_worker_metrics()
    record_worker_metrics({"train/grad_norm": grad_norm, "train/global_batch_size": 4, "train/loss": 1.0})
    record_worker_metrics(collect_lora_train_metrics([model]))
    return drain_worker_metrics()


async def test_an_update_of_the_gpu_trainer_passes() -> None:
    metrics = slime_metrics(adapter_b=0.01)
    assert metrics["train/lora_trainable_parameters"] == 12
    assert metrics["train/lora_b_nonzero"] == 6
    assert await qualify(over_ray, VARIED, metrics) == 0.5


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ({}, "lora_b_nonzero is 0"),
        ({"adapter_b": 0.01, "train_base": True}, "train/lora_base_trainable_parameters=6: the frozen base model"),
        ({"adapter_b": 0.01, "train_adapter": False}, "lora_trainable_parameters is 0"),
        ({"adapter_b": float("nan")}, "lora_b_l1 is None"),  # Reef drops numbers that are not finite
        ({"adapter_b": 0.01, "grad_norm": float("nan")}, "grad_norm is None"),
        ({"adapter_b": 0.01, "grad_norm": 0.0}, "grad_norm is 0"),
    ],
)
async def test_an_update_of_the_gpu_trainer_that_went_wrong_is_refused(model: dict[str, Any], reason: str) -> None:
    with pytest.raises(TrainingFailed, match=reason):
        await qualify(over_ray, VARIED, slime_metrics(**model))


async def test_a_frozen_policy_on_gpus_passes_only_untouched() -> None:
    assert await qualify(over_ray, VARIED, slime_metrics(), frozen=True) == 0.5
    with pytest.raises(TrainingFailed, match="yet its adapter moved"):
        await qualify(over_ray, VARIED, slime_metrics(adapter_b=0.01), frozen=True)
