"""Training against the textbook computation: one sequence at a time, no shared prompt, hand-written Adam."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_support import forward_log_probabilities, grid_rows, tiny_policy, visible_adapter
from torch import Tensor

from tttd.local.checkpoint import AdamState
from tttd.local.policy import PolicyModel
from tttd.local.token_scores import micro_batches
from tttd.local.trainer import TrainedStep, TrainingRow, adapter_parameters, surrogate, train_step

KL_COEF = 0.3
RATE = 0.01


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def policy(request: pytest.FixtureRequest, tiny_model: Path, tiny_llama: Path) -> PolicyModel:
    return tiny_policy(tiny_model if request.param == "qwen3" else tiny_llama)


def step(
    policy: PolicyModel,
    rows: Sequence[TrainingRow],
    adapter: Mapping[str, Tensor] | None,
    optimizer: AdamState | None = None,
    *,
    rate: float = RATE,
    budget: int = 2048,
) -> TrainedStep:
    return train_step(
        policy, rows, adapter=adapter, optimizer=optimizer, learning_rate=rate, kl_coef=KL_COEF, token_budget=budget
    )


def plain_gradients(
    policy: PolicyModel, rows: Sequence[TrainingRow], adapter: Mapping[str, Tensor] | None
) -> tuple[dict[str, Tensor], float]:
    """Gradients of the summed loss, sequence by sequence, and the loss."""
    policy.use_for_training(adapter)
    model = policy.training_model
    with torch.no_grad(), model.disable_adapter():
        base = [forward_log_probabilities(model, row.prompt, row.response) for row in rows]
    masks = [torch.tensor(row.mask, dtype=torch.float32) for row in rows]
    gaps = [(torch.tensor(row.log_probabilities) - b) * m for row, b, m in zip(rows, base, masks, strict=True)]
    mean = sum(gap.sum() for gap in gaps) / sum(mask.sum() for mask in masks)
    parameters = adapter_parameters(policy)
    for parameter in parameters.values():
        parameter.grad = None
    total = 0.0
    for row, gap, mask in zip(rows, gaps, masks, strict=True):
        log_probabilities = forward_log_probabilities(model, row.prompt, row.response)
        advantage = row.advantage + KL_COEF * mask * (mean - gap)
        loss = (-torch.exp(log_probabilities - torch.tensor(row.log_probabilities)) * advantage).sum()
        loss.backward()
        total += float(loss.detach())
    return {name: p.grad.clone() for name, p in parameters.items() if p.grad is not None}, total


def relative_error(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    assert found.keys() == expected.keys()
    difference = math.sqrt(sum(float((found[name] - expected[name]).pow(2).sum()) for name in expected))
    return difference / math.sqrt(sum(float(tensor.pow(2).sum()) for tensor in expected.values()))


@pytest.mark.parametrize("budget", [2048, 40, 1])
def test_gradients_equal_the_plain_computation(policy: PolicyModel, budget: int) -> None:
    adapter = visible_adapter(policy)
    rows = grid_rows(policy, adapter)
    expected, loss = plain_gradients(policy, rows, adapter)
    trained = step(policy, rows, adapter, budget=budget)
    # After one step Adam's first moment is (1 - beta1) times the gradient.
    gradients = {name: tensor / 0.1 for name, tensor in trained.optimizer.first.items()}
    assert relative_error(gradients, expected) < 1e-5
    assert trained.metrics["train/loss"] == pytest.approx(loss, rel=1e-4, abs=1e-4)
    assert trained.metrics["train/grad_norm"] == pytest.approx(
        math.sqrt(sum(float(g.pow(2).sum()) for g in expected.values())), rel=1e-4
    )


def test_two_steps_equal_a_hand_written_adam(policy: PolicyModel) -> None:
    adapter = visible_adapter(policy)
    rows = grid_rows(policy, adapter)
    names = list(adapter)
    weights = {name: adapter[name].double() for name in names}
    first = dict.fromkeys(names, torch.tensor(0.0, dtype=torch.float64))
    second = dict(first)
    found: TrainedStep | None = None
    for count in (1, 2):
        current = {name: weights[name].float() for name in names}
        gradients, _ = plain_gradients(policy, rows, current)
        by_name = {name.replace(".default.", "."): gradient.double() for name, gradient in gradients.items()}
        for name in names:
            first[name] = 0.9 * first[name] + 0.1 * by_name[name]
            second[name] = 0.95 * second[name] + 0.05 * by_name[name].pow(2)
            corrected = (second[name] / (1 - 0.95**count)).sqrt() + 1e-8
            weights[name] = weights[name] - RATE * first[name] / (1 - 0.9**count) / corrected
        found = step(
            policy, rows, adapter if found is None else found.adapter, None if found is None else found.optimizer
        )
    assert found is not None
    assert found.optimizer.steps == 2
    moved = {name: found.adapter[name] - adapter[name] for name in names}
    assert relative_error(moved, {name: weights[name].float() - adapter[name] for name in names}) < 1e-3


def test_the_step_reports_what_the_gate_reads(policy: PolicyModel) -> None:
    rows = grid_rows(policy, None)
    metrics = step(policy, rows, None).metrics
    assert metrics["train/global_batch_size"] == len(rows)
    assert metrics["train/grad_norm"] > 0
    assert metrics["train/lora_trainable_parameters"] == sum(t.numel() for t in policy.initial_adapter.values())
    assert metrics["train/lora_base_trainable_parameters"] == 0
    assert metrics["train/lora_b_nonzero"] > 0
    assert metrics["train/lora_b_l1"] > 0
    assert metrics["train/importance_ratio"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["train/ppo_kl"] == pytest.approx(0.0, abs=1e-4)
    assert metrics["train/kl"] == pytest.approx(0.0, abs=1e-4)
    assert 0 < metrics["train/entropy"] < math.log(policy.vocabulary)
    assert metrics["train/response_length"] == pytest.approx(sum(len(row.response) for row in rows) / len(rows))
    assert metrics["train/train_s"] > 0


def test_training_moves_the_policy_towards_what_was_rewarded(policy: PolicyModel) -> None:
    rows = grid_rows(policy, None)
    rows = [replace(row, advantage=1.0 if index == 4 else -0.2) for index, row in enumerate(rows)]
    trained = step(policy, rows, None)
    policy.use_for_training(trained.adapter)
    with torch.no_grad():
        after = forward_log_probabilities(policy.training_model, rows[4].prompt, rows[4].response).sum()
    assert float(after) > sum(rows[4].log_probabilities)


def test_the_same_step_twice_gives_the_same_bits(policy: PolicyModel) -> None:
    adapter = visible_adapter(policy)
    rows = grid_rows(policy, adapter)
    one, two = step(policy, rows, adapter), step(policy, rows, adapter)
    assert all(torch.equal(one.adapter[name], two.adapter[name]) for name in adapter)


def test_a_learning_rate_of_zero_changes_no_weight(policy: PolicyModel) -> None:
    adapter = visible_adapter(policy)
    trained = step(policy, grid_rows(policy, adapter), adapter, rate=0.0)
    assert all(torch.equal(trained.adapter[name], adapter[name]) for name in adapter)
    assert trained.metrics["train/grad_norm"] > 0


def test_a_group_without_signal_leaves_the_initial_adapter_alone(policy: PolicyModel) -> None:
    rows = [replace(row, advantage=0.0) for row in grid_rows(policy, None)]
    trained = step(policy, rows, None)
    # The divergence from the base model is zero up to rounding, and so is everything else.
    assert trained.metrics["train/grad_norm"] < 1e-2


def test_a_gradient_that_is_not_finite_is_refused(policy: PolicyModel) -> None:
    rows = [replace(row, advantage=float("inf")) for row in grid_rows(policy, None)]
    with pytest.raises(FloatingPointError, match="gradient"):
        step(policy, rows, None)


def test_a_bfloat16_policy_trains_a_float32_adapter(tiny_model: Path) -> None:
    policy = PolicyModel(tiny_model, rank=4, alpha=8, seed=3, device="cpu", dtype=torch.bfloat16)
    trained = step(policy, grid_rows(policy, None), None)
    assert all(tensor.dtype == torch.float32 for tensor in trained.adapter.values())
    assert trained.metrics["train/grad_norm"] > 0
    assert trained.metrics["train/importance_ratio"] == pytest.approx(1.0, abs=0.2)


def test_the_surrogate_is_unclipped() -> None:
    new = torch.tensor([0.0, 2.0], requires_grad=True)
    losses = surrogate(new, torch.tensor([0.0, 0.0]), torch.tensor([1.0, -3.0]))
    losses.sum().backward()
    assert losses.tolist() == pytest.approx([-1.0, 3.0 * math.e**2])
    assert new.grad is not None
    assert new.grad.tolist() == pytest.approx([-1.0, 3.0 * math.e**2])


def test_micro_batches_share_prompts_and_respect_the_budget() -> None:
    pairs = [((1, 2), (0,) * length) for length in (3, 3, 4)] + [((9,), (0,) * 50)]
    assert [batch.rows for batch in micro_batches(pairs, 100)] == [(0, 1, 2), (3,)]
    assert [batch.rows for batch in micro_batches(pairs, 8)] == [(0, 1), (2,), (3,)]
    assert [batch.rows for batch in micro_batches(pairs, 1)] == [(0,), (1,), (2,), (3,)]
