"""What a training step reports, refuses and leaves alone; `test_local_trainer_exact.py` checks what it computes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_support import forward_log_probabilities, grid_rows, tiny_policy, visible_adapter
from plain_training import PlainTrainer
from torch import Tensor

from tttd.local.checkpoint import AdamState
from tttd.local.policy import PolicyModel
from tttd.local.token_scores import micro_batches
from tttd.local.trainer import MAX_LOG_RATIO, TrainedStep, TrainingRow, train_step
from tttd.token_loss import surrogate

KL_COEF = 0.3
RATE = 0.01


@pytest.fixture(scope="module")
def policy(tiny_model: Path) -> PolicyModel:
    return tiny_policy(tiny_model)


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


# --- what it reports -------------------------------------------------------------------------------------------------


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
    assert metrics["train/train_rollout_logprob_abs_diff"] == pytest.approx(0.0, abs=1e-4)
    assert metrics["train/ppo_kl"] == pytest.approx(0.0, abs=1e-4)
    assert metrics["train/kl"] == pytest.approx(0.0, abs=1e-4)
    assert 0 < metrics["train/entropy"] < math.log(policy.vocabulary)
    assert metrics["train/response_length"] == pytest.approx(sum(len(row.response) for row in rows) / len(rows))
    assert metrics["train/micro_batches"] == 2
    assert metrics["train/train_s"] > 0


def test_how_far_the_rollouts_are_from_the_policy_is_reported(policy: PolicyModel) -> None:
    adapter = visible_adapter(policy)
    shifted = [
        replace(row, log_probabilities=tuple(value + (0.5 if index % 2 else -0.5) for value in row.log_probabilities))
        for index, row in enumerate(grid_rows(policy, adapter))
    ]
    metrics = step(policy, shifted, adapter).metrics
    high, low = sum(len(row.response) for row in shifted[1::2]), sum(len(row.response) for row in shifted[::2])
    assert metrics["train/train_rollout_logprob_abs_diff"] == pytest.approx(0.5, abs=1e-3)
    expected = (high * math.exp(-0.5) + low * math.exp(0.5)) / (high + low)
    assert metrics["train/importance_ratio"] == pytest.approx(expected, rel=1e-3)
    assert metrics["train/ppo_kl"] == pytest.approx(0.5 * (high - low) / (high + low), abs=1e-3)


def test_the_entropy_is_that_of_the_policy_at_every_answer_token(policy: PolicyModel) -> None:
    adapter = visible_adapter(policy)
    rows = grid_rows(policy, adapter)
    policy.use_for_training(adapter)
    total = 0.0
    for row in rows:
        with torch.no_grad():
            logits = policy.training_model(input_ids=torch.tensor([[*row.prompt, *row.response]])).logits[0]
        distribution = torch.softmax(logits[len(row.prompt) - 1 : -1].double(), dim=-1)
        total -= float((distribution * distribution.log()).sum())
    expected = total / sum(len(row.response) for row in rows)
    for budget in (2048, 1):
        found = step(policy, rows, adapter, budget=budget).metrics["train/entropy"]
        assert found == pytest.approx(expected, rel=1e-4)


def test_training_moves_the_policy_towards_what_was_rewarded(policy: PolicyModel) -> None:
    rows = grid_rows(policy, None)
    rows = [replace(row, advantage=1.0 if index == 4 else -0.2) for index, row in enumerate(rows)]
    trained = step(policy, rows, None)
    policy.use_for_training(trained.adapter)
    with torch.no_grad():
        after = forward_log_probabilities(policy.training_model, rows[4].prompt, rows[4].response).sum()
    assert float(after) > sum(rows[4].log_probabilities)


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


# --- what it leaves alone --------------------------------------------------------------------------------------------


def test_a_learning_rate_of_zero_changes_no_bit_and_still_reports(policy: PolicyModel) -> None:
    adapter = visible_adapter(policy)
    rows = grid_rows(policy, adapter)
    before = step(policy, rows, adapter)
    frozen = step(policy, rows, before.adapter, before.optimizer, rate=0.0)
    assert all(torch.equal(frozen.adapter[name], before.adapter[name]) for name in adapter)
    assert frozen.optimizer.steps == before.optimizer.steps == 1
    for name, moment in before.optimizer.first.items():
        assert torch.equal(frozen.optimizer.first[name], moment)
        assert torch.equal(frozen.optimizer.second[name], before.optimizer.second[name])
    assert frozen.metrics["train/grad_norm"] > 0
    assert frozen.metrics["train/entropy"] > 0


def test_a_frozen_first_step_keeps_the_initial_adapter_and_no_moments(policy: PolicyModel) -> None:
    frozen = step(policy, grid_rows(policy, None), None, rate=0.0)
    assert all(torch.equal(frozen.adapter[name], tensor) for name, tensor in policy.initial_adapter.items())
    assert frozen.optimizer.steps == 0
    assert not any(tensor.any() for tensor in (*frozen.optimizer.first.values(), *frozen.optimizer.second.values()))
    assert frozen.metrics["train/grad_norm"] > 0


def test_nothing_that_is_passed_in_is_changed(policy: PolicyModel) -> None:
    adapter = visible_adapter(policy)
    rows = grid_rows(policy, adapter)
    before = step(policy, rows, adapter)
    stored = {name: tensor.clone() for name, tensor in before.adapter.items()}
    moments = {name: tensor.clone() for name, tensor in before.optimizer.second.items()}
    step(policy, rows, before.adapter, before.optimizer)
    assert all(torch.equal(before.adapter[name], tensor) for name, tensor in stored.items())
    assert all(torch.equal(before.optimizer.second[name], tensor) for name, tensor in moments.items())


def test_a_group_without_signal_leaves_the_initial_adapter_alone(policy: PolicyModel) -> None:
    rows = [replace(row, advantage=0.0) for row in grid_rows(policy, None)]
    trained = step(policy, rows, None)
    # The divergence from the base model is zero up to rounding, and so is everything else.
    assert trained.metrics["train/grad_norm"] < 1e-2


# --- what it refuses -------------------------------------------------------------------------------------------------


def with_recorded(row: TrainingRow, place: int, value: float) -> TrainingRow:
    recorded = list(row.log_probabilities)
    recorded[place] = value
    return replace(row, log_probabilities=tuple(recorded))


@pytest.mark.parametrize(("recorded", "sign"), [(-50.0, r"\+4\d"), (-1e30, r"\+1e\+30"), (60.0, "-6")])
def test_a_rollout_of_another_policy_is_refused_and_named(policy: PolicyModel, recorded: float, sign: str) -> None:
    rows = grid_rows(policy, None)
    rows[4] = with_recorded(rows[4], 2, recorded)
    for budget in (2048, 1):
        with pytest.raises(FloatingPointError, match=rf"token 2 of trajectory 4 .* {sign}.* sample them again"):
            step(policy, rows, None, budget=budget)
    # Nothing of the refused step is left behind.
    clean, again = step(policy, grid_rows(policy, None), None), step(policy, grid_rows(policy, None), None)
    assert all(torch.equal(clean.adapter[name], again.adapter[name]) for name in clean.adapter)


def test_a_large_ratio_below_the_limit_is_neither_refused_nor_clipped(policy: PolicyModel) -> None:
    rows = grid_rows(policy, None)
    rows[4] = with_recorded(rows[4], 0, rows[4].log_probabilities[0] - (MAX_LOG_RATIO - 1))
    trained = step(policy, rows, None)
    tokens = sum(len(row.response) for row in rows)
    assert trained.metrics["train/importance_ratio"] == pytest.approx(math.exp(MAX_LOG_RATIO - 1) / tokens, rel=1e-3)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in trained.adapter.values())


def test_a_diverged_adapter_is_refused(policy: PolicyModel) -> None:
    adapter = {name: torch.full_like(tensor, 1e30) for name, tensor in policy.initial_adapter.items()}
    with pytest.raises(FloatingPointError, match=r"token 0 of trajectory 0.*earlier release"):
        step(policy, grid_rows(policy, None), adapter)


def test_a_gradient_that_is_not_finite_is_refused(policy: PolicyModel) -> None:
    rows = [replace(row, advantage=1e38) for row in grid_rows(policy, None)]
    with pytest.raises(FloatingPointError, match="gradient"):
        step(policy, rows, None)


def test_moments_that_overflow_are_refused(policy: PolicyModel) -> None:
    # The gradient fits into float32, its square does not: Adam would never move these weights again.
    rows = [replace(row, advantage=1e22) for row in grid_rows(policy, None)]
    with pytest.raises(FloatingPointError, match="Adam state"):
        step(policy, rows, None)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"response": ()}, "trajectory 1 has 6 prompt and 0 answer tokens"),
        ({"prompt": ()}, "trajectory 1 has 0 prompt"),
        ({"mask": (1,)}, "1 mask values"),
        ({"log_probabilities": (-1.0,)}, "1 log-probabilities"),
        ({"log_probabilities": (math.nan,) * 7}, "not finite"),
        ({"advantage": math.inf}, "not finite"),
    ],
)
def test_a_row_that_cannot_be_trained_on_is_named(
    policy: PolicyModel, change: dict[str, object], reason: str
) -> None:
    row = TrainingRow((258, 84, 82, 68, 81, 198), (1,) * 7, (1,) * 7, (-5.0,) * 7, 1.0)
    with pytest.raises(ValueError, match=reason):
        step(policy, [row, replace(row, **change)], None)  # type: ignore[arg-type]


def test_an_empty_batch_and_foreign_moments_are_refused(policy: PolicyModel) -> None:
    with pytest.raises(ValueError, match="no trajectory"):
        step(policy, [], None)
    other = {"x": torch.zeros(2)}
    with pytest.raises(ValueError, match="other parameters"):
        step(policy, grid_rows(policy, None), None, AdamState(1, other, other))


def test_a_model_whose_logits_are_changed_after_its_head_is_refused(tiny_llama: Path) -> None:
    policy = tiny_policy(tiny_llama)
    rows = grid_rows(policy, None)

    def halve(_module: object, _inputs: object, output: dict[str, Tensor]) -> None:
        output["logits"] = output["logits"] * 0.5

    policy.training_model.get_base_model().register_forward_hook(halve)
    with pytest.raises(ValueError, match=r"LlamaForCausalLM changes its logits after the output embedding"):
        step(policy, rows, None)


# --- every device and type -------------------------------------------------------------------------------------------

ENGINES = [
    pytest.param("cpu", torch.float32, id="cpu-float32"),
    pytest.param("cpu", torch.bfloat16, id="cpu-bfloat16"),
    pytest.param(
        "cuda",
        torch.bfloat16,
        id="cuda-bfloat16",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
        ],
    ),
]


@pytest.mark.parametrize(("device", "dtype"), ENGINES)
@pytest.mark.parametrize("budget", [2048, 20])
def test_one_code_path_trains_on_every_device(
    tiny_model: Path, device: str, dtype: torch.dtype, budget: int
) -> None:
    policy = PolicyModel(tiny_model, rank=4, alpha=8, seed=3, device=device, dtype=dtype)
    adapter = visible_adapter(policy)
    rows = grid_rows(policy, adapter)
    plain = PlainTrainer(tiny_model, dict(adapter), 2.0, RATE, KL_COEF)
    plain.round_base_to(dtype)
    plain.step(rows)
    trained = step(policy, rows, adapter, budget=budget)
    exact = dtype == torch.float32
    metrics = trained.metrics
    assert metrics["train/importance_ratio"] == pytest.approx(1.0, abs=1e-4 if exact else 0.02)
    assert metrics["train/train_rollout_logprob_abs_diff"] < (1e-4 if exact else 0.03)
    assert metrics["train/loss"] == pytest.approx(plain.loss, abs=(1e-5 if exact else 0.03) * plain.loss_size)
    for tensors in (trained.adapter, trained.optimizer.first, trained.optimizer.second):
        assert {(tensor.dtype, tensor.device.type) for tensor in tensors.values()} == {(torch.float32, "cpu")}
    found = {name.replace(".default.", "."): moment / 0.1 for name, moment in trained.optimizer.first.items()}
    error = math.sqrt(sum(float((found[name] - g).pow(2).sum()) for name, g in plain.gradients.items()))
    size = math.sqrt(sum(float(g.pow(2).sum()) for g in plain.gradients.values()))
    assert error / size < (1e-5 if exact else 0.1)
    again = step(policy, rows, trained.adapter, trained.optimizer, budget=budget)
    assert again.optimizer.steps == 2
    assert any(not torch.equal(again.adapter[name], trained.adapter[name]) for name in adapter)
