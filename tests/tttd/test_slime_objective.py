"""The GPU hooks give the local engine's numbers on the same tensors, and the pinned numbers of the method."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support import forward_log_probabilities, grid_rows, tiny_policy, visible_adapter
from slime_support import (
    ARGS,
    KL_COEF,
    install_runtime,
    join_workers,
    mean_over_trajectories,
    other_worker,
    rollout_data,
    tensors,
)
from torch import Tensor

from tttd.local.policy import PolicyModel
from tttd.local.token_scores import micro_batches
from tttd.local.trainer import TrainingRow, adapter_parameters, kl_shaped_advantages, train_step
from tttd.slime.objective import tttd_advantages, tttd_loss
from tttd.token_loss import surrogate


@pytest.fixture(scope="module")
def policy(tiny_model: Path) -> PolicyModel:
    return tiny_policy(tiny_model)


# --- the local engine's numbers -------------------------------------------------------------------------------------


def training_data(policy: PolicyModel, rows: Sequence[TrainingRow]) -> dict[str, Any]:
    """What a Slime worker holds for these rows before the advantage hook: one advantage for every response token."""
    with torch.no_grad(), policy.training_model.disable_adapter():
        base = [forward_log_probabilities(policy.training_model, row.prompt, row.response) for row in rows]
    return {
        "advantages": tensors(*([row.advantage] * len(row.response) for row in rows)),
        "rollout_log_probs": tensors(*(row.log_probabilities for row in rows)),
        "ref_log_probs": base,
        "loss_masks": [torch.tensor(row.mask) for row in rows],
    }


def micro_batch(rows: Sequence[TrainingRow], data: dict[str, Any], numbers: Sequence[int]) -> dict[str, Any]:
    """A micro-batch as Slime hands it to the loss hook."""
    return {
        "unconcat_tokens": [torch.tensor([*rows[number].prompt, *rows[number].response]) for number in numbers],
        "total_lengths": [len(rows[number].prompt) + len(rows[number].response) for number in numbers],
        "response_lengths": [len(rows[number].response) for number in numbers],
        "advantages": [data["advantages"][number] for number in numbers],
        "rollout_log_probs": [data["rollout_log_probs"][number] for number in numbers],
        "step_global_batch_size": len(rows),
    }


def logits_of(policy: PolicyModel, tokens: Tensor) -> Tensor:
    logits: Tensor = policy.training_model(input_ids=tokens[None], use_cache=False).logits
    return logits


def test_advantages_loss_and_gradient_equal_the_local_engines(
    policy: PolicyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_runtime(monkeypatch)
    adapter = visible_adapter(policy)
    rows = grid_rows(policy, adapter)
    policy.use_for_training(adapter)
    pairs = [(row.prompt, row.response) for row in rows]
    expected, mean = kl_shaped_advantages(policy, rows, micro_batches(pairs, 2048), KL_COEF)

    data = training_data(policy, rows)
    tttd_advantages(ARGS, data)
    for found, wanted in zip(data["advantages"], expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert float(data["tttd_base_logp_diff"][0][0]) == pytest.approx(mean, rel=1e-4)

    parameters = adapter_parameters(policy)
    policy.training_model.zero_grad()
    logged: dict[str, float] = {}
    for numbers in ([0, 3], [1, 2, 4], [5]):
        batch = micro_batch(rows, data, numbers)
        # Slime packs a micro-batch into one row; here each sequence is run alone and the logits are put together.
        logits = torch.cat([logits_of(policy, tokens) for tokens in batch["unconcat_tokens"]], dim=1)
        loss, metrics = tttd_loss(ARGS, batch, logits, mean_over_trajectories)
        (loss / len(rows)).backward()  # Slime's outer division
        for name, value in metrics.items():
            logged[name] = logged.get(name, 0.0) + float(value) / len(rows)
    gradients = {name: parameter.grad.clone() for name, parameter in parameters.items() if parameter.grad is not None}

    trained = train_step(
        policy, rows, adapter=adapter, optimizer=None, learning_rate=0.01, kl_coef=KL_COEF, token_budget=2048
    )
    # After one step Adam's first moment is (1 - beta1) times the gradient.
    assert gradients.keys() == trained.optimizer.first.keys()
    for name, moment in trained.optimizer.first.items():
        difference = (gradients[name] - moment / 0.1).norm() / (moment / 0.1).norm()
        assert float(difference) < 1e-4, name
    assert logged["loss"] == pytest.approx(trained.metrics["train/loss"], rel=1e-4, abs=1e-4)
    assert logged["importance_ratio"] == pytest.approx(trained.metrics["train/importance_ratio"], abs=1e-3)
    assert logged["ppo_kl"] == pytest.approx(trained.metrics["train/ppo_kl"], abs=1e-3)


# --- the advantage hook ---------------------------------------------------------------------------------------------


def test_the_divergence_is_centred_over_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    install_runtime(monkeypatch)
    data = rollout_data()
    result = tttd_advantages(type(ARGS)(kl_coef=0.1), data)
    assert [row.tolist() for row in data["advantages"]] == [
        pytest.approx([1.0 + 0.1 * (0.45 - 0.5), 2.0 + 0.1 * (0.45 - 0.35)]),
        pytest.approx([3.0 + 0.1 * (0.45 - 0.5)]),
    ]
    assert result is not None
    assert [row.tolist() for row in data["tttd_base_logp_diff"]] == [pytest.approx([0.45, 0.45]), pytest.approx([0.45])]


def test_the_pinned_numbers_of_the_centred_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    install_runtime(monkeypatch)
    data = rollout_data(
        rollout_log_probs=tensors([-1.0, -1.0], [-1.0]), ref_log_probs=tensors([-1.3, -1.15], [-1.0])
    )
    tttd_advantages(type(ARGS)(kl_coef=0.1), data)
    assert [row.tolist() for row in data["advantages"]] == [pytest.approx([0.985, 2.0]), pytest.approx([3.015])]


def test_a_masked_token_neither_counts_nor_is_shaped(monkeypatch: pytest.MonkeyPatch) -> None:
    install_runtime(monkeypatch)
    data = rollout_data(loss_masks=[torch.tensor([1, 0]), torch.tensor([1])])
    tttd_advantages(type(ARGS)(kl_coef=0.1), data)
    assert data["advantages"][0][1].item() == 2.0
    assert data["tttd_base_logp_diff"][0][0].item() == pytest.approx(0.5)


def test_returns_are_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    install_runtime(monkeypatch)
    data = rollout_data()
    tttd_advantages(ARGS, data)
    data["advantages"][0].zero_()
    assert data["returns"][0].tolist() != [0.0, 0.0]


def test_an_earlier_pipeline_stage_has_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    install_runtime(monkeypatch, last_stage=False)
    assert tttd_advantages(ARGS, {}) is None


def test_context_parallelism_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install_runtime(monkeypatch, context_parallel=2)
    with pytest.raises(NotImplementedError, match="context-parallel-size 1"):
        tttd_advantages(ARGS, rollout_data())


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        *(({name: None}, f"no {name}") for name in ("advantages", "rollout_log_probs", "ref_log_probs", "loss_masks")),
        ({"advantages": torch.zeros(2, 2)}, "advantages must be one tensor per trajectory, got Tensor"),
        ({"loss_masks": [torch.ones(2)]}, "2, 2 and 1"),
        ({"loss_masks": [torch.ones(2)] * 3}, "2, 2 and 3"),
        ({"ref_log_probs": tensors([-1.0, -1.0])}, "2, 1 and 2"),
        ({"ref_log_probs": tensors([-1.0], [-1.0])}, r"trajectory 0: .*\(2,\).*\(1,\)"),
        ({"loss_masks": [torch.ones(2), torch.ones(2)]}, r"trajectory 1: .*mask \(2,\)"),
        ({"advantages": tensors([1.0], [3.0])}, r"advantages has the shapes \[\(1,\), \(1,\)\]"),
        ({"advantages": tensors([1.0, 2.0])}, r"advantages has the shapes \[\(2,\)\]"),
        ({"loss_masks": [torch.zeros(2), torch.zeros(1)]}, "no token of the batch is selected"),
    ],
)
def test_incomplete_training_data_is_refused_by_name(
    changed: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_runtime(monkeypatch)
    with pytest.raises(ValueError, match=reason):
        tttd_advantages(ARGS, rollout_data(**changed))


# --- several workers ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_mean_is_taken_over_all_data_parallel_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    other = context.Process(target=other_worker, args=(tmp_path / "meet", results))
    other.start()
    data = join_workers(0, tmp_path / "meet")
    theirs = results.get(timeout=120)
    other.join(timeout=60)
    assert other.exitcode == 0
    mean = (0.5 + 0.35) / 2  # the other worker's share has no selected token
    assert data["advantages"][0].tolist() == pytest.approx([1.0 + 0.1 * (mean - 0.5), 2.0 + 0.1 * (mean - 0.35)])
    assert data["tttd_base_logp_diff"][0].tolist() == pytest.approx([mean, mean])
    assert theirs == ([3.0], [pytest.approx(mean)])


# --- the loss hook --------------------------------------------------------------------------------------------------


def loss_batch(**changed: Any) -> dict[str, Any]:
    """One prompt token and a response of two; every token has probability 1/2 under flat logits."""
    batch = {
        "unconcat_tokens": [torch.tensor([0, 1, 0])],
        "total_lengths": [3],
        "response_lengths": [2],
        "advantages": tensors([1.0, -3.0]),
        "rollout_log_probs": tensors([math.log(0.5), math.log(0.25)]),
        "loss_masks": [torch.tensor([1, 0])],
        "step_global_batch_size": 1,
    }
    return batch | changed


def flat_logits(tokens: int = 3) -> Tensor:
    return torch.zeros(1, tokens, 2, requires_grad=True)


def test_the_loss_is_the_unclipped_sum_over_all_response_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    install_runtime(monkeypatch)
    logits = flat_logits()
    loss, metrics = tttd_loss(ARGS, loss_batch(), logits, mean_over_trajectories)
    # ratios 1 and 2, the second token although the mask leaves it out
    assert loss.item() == pytest.approx(-1.0 * 1.0 + 2.0 * 3.0)
    loss.backward()
    assert logits.grad is not None
    # d log p / d logit of the sampled token is 1/2, times -ratio * advantage
    assert logits.grad[0, 0, 1].item() == pytest.approx(-0.5)
    assert logits.grad[0, 1, 0].item() == pytest.approx(3.0)
    assert {name: value.item() for name, value in metrics.items()} == {
        "loss": pytest.approx(5.0),
        "pg_loss": pytest.approx(5.0),
        "importance_ratio": pytest.approx(1.5),
        "ppo_kl": pytest.approx(-math.log(2.0) / 2),
    }
    assert not any(value.requires_grad for value in metrics.values())


def test_slimes_division_by_the_batch_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    install_runtime(monkeypatch)
    whole, _ = tttd_loss(ARGS, loss_batch(step_global_batch_size=128), flat_logits(), mean_over_trajectories)
    assert whole.item() / 128 == pytest.approx(5.0)


def test_an_empty_micro_batch_keeps_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    install_runtime(monkeypatch)
    logits = flat_logits()
    nothing = {
        "unconcat_tokens": [],
        "total_lengths": [],
        "response_lengths": [],
        "advantages": [],
        "rollout_log_probs": [],
    }
    loss, metrics = tttd_loss(ARGS, loss_batch(**nothing), logits, mean_over_trajectories)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.abs().sum() == 0
    assert {name: value.item() for name, value in metrics.items()} == dict.fromkeys(
        ("loss", "pg_loss", "importance_ratio", "ppo_kl"), 0.0
    )


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"step_global_batch_size": None}, "step_global_batch_size .* got None"),
        ({"step_global_batch_size": True}, "got True"),
        ({"step_global_batch_size": 0}, "got 0"),
        ({"step_global_batch_size": 8.0}, "got 8.0"),
        ({"advantages": None}, "no advantages"),
        ({"rollout_log_probs": None}, "no rollout_log_probs"),
        ({"advantages": tensors([1.0])}, "advantages has the shapes"),
        ({"rollout_log_probs": tensors([1.0, 1.0], [1.0])}, "rollout_log_probs has the shapes"),
    ],
)
def test_an_incomplete_micro_batch_is_refused_by_name(
    changed: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_runtime(monkeypatch)
    with pytest.raises(ValueError, match=reason):
        tttd_loss(ARGS, loss_batch(**changed), flat_logits(), mean_over_trajectories)


def test_the_surrogate_refuses_shapes_that_would_broadcast() -> None:
    with pytest.raises(ValueError, match=r"one shape, got \(2,\), \(1,\), \(2,\)"):
        surrogate(torch.zeros(2), torch.zeros(1), torch.zeros(2))
