"""One optimizer step on one grid: unclipped importance sampling with a centred KL towards the frozen base model.

With `d_t = log p_rollout - log p_base` and its mean `avg` over all masked tokens of the grid, the advantage of a
token is

    A_t = A + kl_coef * mask_t * (avg - d_t)

and the loss is the plain sum `-exp(log p - log p_rollout) * A_t` over every response token of every trajectory.  It is
summed, not averaged, as the method defines it.  That needs no tuning: Adam divides a gradient by its own magnitude, so
the learning rate means the same whatever the loss is multiplied by.

Trajectories of one group start with the same prompt. It is run once, with gradient, and its keys and values are
expanded to the group's answers, which is exact and saves most of the work.
"""

from __future__ import annotations

import ctypes
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tttd.local.checkpoint import AdamState
from tttd.local.policy import PolicyModel
from tttd.local.token_scores import MicroBatch, TokenScores, micro_batches, score_tokens

ADAM_BETAS = (0.9, 0.95)
ADAM_EPSILON = 1e-8


@dataclass(frozen=True)
class TrainingRow:
    """One trajectory: its exact tokens, what the policy that sampled it thought of them, and its advantage."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    mask: tuple[int, ...]
    log_probabilities: tuple[float, ...]
    advantage: float


@dataclass(frozen=True)
class TrainedStep:
    """The new adapter, the optimizer's state after the step, and what the step reported."""

    adapter: dict[str, Tensor]
    optimizer: AdamState
    metrics: dict[str, Any]


@dataclass
class _Sums:
    """Totals over the response tokens of a step."""

    tokens: int = 0
    loss: float = 0.0
    reward_loss: float = 0.0
    ratio: float = 0.0
    divergence: float = 0.0
    entropy: float = 0.0
    lengths: list[int] = field(default_factory=list)


def train_step(
    policy: PolicyModel,
    rows: Sequence[TrainingRow],
    *,
    adapter: Mapping[str, Tensor] | None,
    optimizer: AdamState | None,
    learning_rate: float,
    kl_coef: float,
    token_budget: int,
) -> TrainedStep:
    """Train from `adapter` and `optimizer` (None: the initial ones); nothing that is passed in is changed.

    Raises `FloatingPointError` when the gradient is not finite.
    """
    started = time.monotonic()
    policy.use_for_training(adapter)
    batches = micro_batches([(row.prompt, row.response) for row in rows], token_budget)
    token_advantages, base_divergence = kl_shaped_advantages(policy, rows, batches, kl_coef)
    parameters = adapter_parameters(policy)
    adam = restored_adam(parameters, optimizer, learning_rate)
    sums = _Sums()
    for batch in batches:
        _backward(policy, batch, rows, token_advantages, sums)
    grad_norm = gradient_norm(parameters.values())
    if not math.isfinite(grad_norm):
        raise FloatingPointError(f"the gradient norm is {grad_norm}; the step is given up and nothing is changed")
    adam.step()
    trained = policy.trained_adapter()
    adam.zero_grad(set_to_none=True)
    return_memory()
    metrics = {
        "train/global_batch_size": len(rows),
        "train/grad_norm": grad_norm,
        **adapter_metrics(policy, trained),
        "train/loss": sums.loss,
        "train/pg_loss": sums.reward_loss,
        "train/importance_ratio": sums.ratio / sums.tokens,
        "train/ppo_kl": sums.divergence / sums.tokens,
        "train/kl": base_divergence,
        "train/entropy": sums.entropy / sums.tokens,
        "train/response_length": sum(sums.lengths) / len(rows),
        "train/train_s": time.monotonic() - started,
    }
    return TrainedStep(trained, adam_state(parameters, adam), metrics)


def kl_shaped_advantages(
    policy: PolicyModel, rows: Sequence[TrainingRow], batches: Sequence[MicroBatch], kl_coef: float
) -> tuple[list[Tensor], float]:
    """Every row's advantage per token, and the mean divergence from the base model per masked token."""
    base: list[Tensor] = [torch.empty(0)] * len(rows)
    with torch.no_grad(), policy.training_model.disable_adapter():
        for batch in batches:
            scores = score_tokens(policy.training_model, batch, policy.device)
            for row, log_probabilities in zip(batch.rows, scores.log_probabilities, strict=True):
                base[row] = log_probabilities
    masks = [torch.tensor(row.mask, dtype=torch.float32, device=policy.device) for row in rows]
    differences = [
        (torch.tensor(row.log_probabilities, device=policy.device) - log_probabilities) * mask
        for row, log_probabilities, mask in zip(rows, base, masks, strict=True)
    ]
    masked_tokens = sum(float(mask.sum()) for mask in masks)
    if masked_tokens == 0:
        raise ValueError("no token of the batch is selected by its loss mask")
    mean = sum(float(difference.sum()) for difference in differences) / masked_tokens
    shaped = [
        row.advantage + kl_coef * mask * (mean - difference)
        for row, mask, difference in zip(rows, masks, differences, strict=True)
    ]
    return shaped, mean


def surrogate(log_probabilities: Tensor, rollout_log_probabilities: Tensor, advantages: Tensor) -> Tensor:
    """The unclipped importance-sampling loss, one value per token."""
    return -torch.exp(log_probabilities - rollout_log_probabilities) * advantages


def _backward(
    policy: PolicyModel, batch: MicroBatch, rows: Sequence[TrainingRow], advantages: Sequence[Tensor], sums: _Sums
) -> None:
    scores: TokenScores = score_tokens(policy.training_model, batch, policy.device, with_entropy=True)
    losses = []
    for row, log_probabilities, entropy in zip(batch.rows, scores.log_probabilities, scores.entropies, strict=True):
        old = torch.tensor(rows[row].log_probabilities, device=policy.device)
        losses.append(surrogate(log_probabilities, old, advantages[row]).sum())
        with torch.no_grad():
            ratio = torch.exp(log_probabilities - old)
            sums.tokens += len(old)
            sums.lengths.append(len(old))
            sums.reward_loss -= float((ratio * rows[row].advantage).sum())
            sums.ratio += float(ratio.sum())
            sums.divergence += float((old - log_probabilities).sum())
            sums.entropy += float(entropy.sum())
    loss = torch.stack(losses).sum()
    sums.loss += float(loss.detach())
    loss.backward()  # type: ignore[no-untyped-call]


def adapter_parameters(policy: PolicyModel) -> dict[str, torch.nn.Parameter]:
    """The trained parameters by name: the adapter's, and only those."""
    parameters = {}
    for name, parameter in policy.training_model.named_parameters():
        is_adapter = ".lora_" in name
        parameter.requires_grad_(is_adapter)
        if is_adapter:
            parameters[name] = parameter
    return parameters


def adapter_metrics(policy: PolicyModel, adapter: Mapping[str, Tensor]) -> dict[str, Any]:
    """What was trainable, and how far the adapter is from changing nothing (its B matrices start at zero)."""
    trainable = {n: p.numel() for n, p in policy.training_model.named_parameters() if p.requires_grad}
    up = [tensor for name, tensor in adapter.items() if ".lora_B." in name]
    return {
        "train/lora_trainable_parameters": sum(count for name, count in trainable.items() if ".lora_" in name),
        "train/lora_base_trainable_parameters": sum(count for name, count in trainable.items() if ".lora_" not in name),
        "train/lora_b_nonzero": sum(int(torch.count_nonzero(tensor)) for tensor in up),
        "train/lora_b_l1": sum(float(tensor.abs().sum()) for tensor in up),
    }


def gradient_norm(parameters: Any) -> float:
    """Euclidean norm over all gradients."""
    return math.sqrt(sum(float(p.grad.double().pow(2).sum()) for p in parameters if p.grad is not None))


def restored_adam(
    parameters: Mapping[str, torch.nn.Parameter], state: AdamState | None, learning_rate: float
) -> torch.optim.Adam:
    """Adam as the method fixes it (no decay, no clipping), continued from `state`."""
    for parameter in parameters.values():
        parameter.grad = None
    adam = torch.optim.Adam(parameters.values(), lr=learning_rate, betas=ADAM_BETAS, eps=ADAM_EPSILON)
    if state is None:
        return adam
    if set(state.first) != set(parameters) or set(state.second) != set(parameters):
        raise ValueError("the stored optimizer state belongs to other parameters")
    for name, parameter in parameters.items():
        adam.state[parameter] = {
            "step": torch.tensor(float(state.steps)),
            "exp_avg": state.first[name].to(parameter.device, copy=True),
            "exp_avg_sq": state.second[name].to(parameter.device, copy=True),
        }
    return adam


def adam_state(parameters: Mapping[str, torch.nn.Parameter], adam: torch.optim.Adam) -> AdamState:
    """Adam's state, detached from the optimizer."""
    states = {name: adam.state[parameter] for name, parameter in parameters.items()}
    steps = {int(state["step"]) for state in states.values()}
    if len(steps) != 1:
        raise ValueError(f"the parameters were stepped differently often: {sorted(steps)}")
    return AdamState(
        steps.pop(),
        {name: state["exp_avg"].detach().to("cpu", copy=True) for name, state in states.items()},
        {name: state["exp_avg_sq"].detach().to("cpu", copy=True) for name, state in states.items()},
    )


def return_memory() -> None:
    """Give memory that training has freed back to the system; glibc would keep gigabytes of it."""
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
