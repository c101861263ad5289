"""One optimizer step on one grid: unclipped importance sampling with a centred KL towards the frozen base model.

The loss is that of `tttd.token_loss`, the plain sum over every response token of every trajectory.  It is summed, not
averaged, as the method defines it.  That needs no tuning: Adam divides a gradient by its own magnitude, so the learning
rate means the same whatever the loss is multiplied by.

`log p_rollout` is what was recorded when the token was sampled. In float32 sampling and training agree to about 1e-5,
so ratios start at 1. In bfloat16 they do not agree: batches of another shape round differently, which is a few
hundredths per token, and the ratio corrects for it as for any other difference between the two.
`train/train_rollout_logprob_abs_diff` shows how far apart they are. Adapter, gradients, Adam and everything after the
logits are float32 in both cases.

Trajectories of one group start with the same prompt, which is run once for all of them (see `token_scores`).
"""

from __future__ import annotations

import ctypes
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from tttd.local.adam import adam_state, initial_adam, restored_adam
from tttd.local.checkpoint import AdamState
from tttd.local.policy import PolicyModel
from tttd.local.token_scores import MicroBatch, SharedPrompt, micro_batches
from tttd.token_loss import base_differences, divergence_sums, mean_divergence, shaped_advantages, surrogate

MAX_LOG_RATIO = 20.0
"""A token that the policy finds this much (in log-probability) likelier or less likely than its sampler was not sampled
by it. The gradient is never clipped; past this it would be one token's, or overflow."""


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
    totals: dict[str, float] = field(default_factory=dict)

    def add(self, **values: Tensor) -> None:
        """Add up tensors of one value per token."""
        for name, value in values.items():
            self.totals[name] = self.totals.get(name, 0.0) + float(value.detach().double().sum())

    def metrics(self) -> dict[str, float]:
        """The step's losses, and means per answer token."""
        mean = {name: total / self.tokens for name, total in self.totals.items()}
        return {
            "train/loss": self.totals["loss"],
            "train/pg_loss": self.totals["reward_loss"],
            "train/importance_ratio": mean["ratio"],
            "train/train_rollout_logprob_abs_diff": mean["abs_difference"],
            "train/ppo_kl": mean["divergence"],
            "train/entropy": mean["entropy"],
        }


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

    A learning rate of 0 changes nothing at all, not even Adam's moments: a frozen control run. Raises `ValueError` for
    rows that cannot be trained on, and `FloatingPointError` when the rollouts were sampled by another policy or the
    step has a result that is not finite.
    """
    started = time.monotonic()
    check_rows(rows)
    policy.use_for_training(adapter)
    parameters = adapter_parameters(policy)
    before = initial_adam(parameters) if optimizer is None else optimizer
    adam = restored_adam(parameters, before, learning_rate)
    batches = micro_batches([(row.prompt, row.response) for row in rows], token_budget)
    sums = _Sums()
    try:
        token_advantages, base_divergence = kl_shaped_advantages(policy, rows, batches, kl_coef)
        for prompt, group in groupby(batches, key=lambda batch: batch.prompt):
            _add_gradients(policy, prompt, group, rows, token_advantages, sums)
        grad_norm = gradient_norm(parameters.values())
        _require_finite("gradient", [torch.tensor(grad_norm)])
        if learning_rate:
            adam.step()
        trained = policy.trained_adapter()
        after = adam_state(parameters, adam) if learning_rate else before
    finally:
        adam.zero_grad(set_to_none=True)
        return_memory()
    _require_finite("adapter", trained.values())
    _require_finite("Adam state", [*after.first.values(), *after.second.values()])
    metrics = {
        "train/global_batch_size": len(rows),
        "train/grad_norm": grad_norm,
        **adapter_metrics(policy, trained),
        **sums.metrics(),
        "train/kl": base_divergence,
        "train/response_length": sums.tokens / len(rows),
        "train/micro_batches": len(batches),
        "train/micro_batch_tokens_max": max(batch.tokens for batch in batches),
        "train/train_s": time.monotonic() - started,
    }
    return TrainedStep(trained, after, metrics)


def check_rows(rows: Sequence[TrainingRow]) -> None:
    """Raises `ValueError` naming the first row whose parts do not fit together or are not numbers."""
    if not rows:
        raise ValueError("the batch holds no trajectory")
    for number, row in enumerate(rows):
        if not row.prompt or not row.response:
            raise ValueError(f"trajectory {number} has {len(row.prompt)} prompt and {len(row.response)} answer tokens")
        if not len(row.response) == len(row.mask) == len(row.log_probabilities):
            raise ValueError(
                f"trajectory {number} has {len(row.response)} answer tokens, {len(row.mask)} mask values and "
                f"{len(row.log_probabilities)} log-probabilities"
            )
        if not math.isfinite(row.advantage) or not all(map(math.isfinite, row.log_probabilities)):
            raise ValueError(f"trajectory {number} has an advantage or log-probability that is not finite")


def kl_shaped_advantages(
    policy: PolicyModel, rows: Sequence[TrainingRow], batches: Sequence[MicroBatch], kl_coef: float
) -> tuple[list[Tensor], float]:
    """Every row's advantage per token, and the mean divergence from the base model per masked token."""
    base: list[Tensor] = [torch.empty(0)] * len(rows)
    with torch.no_grad(), policy.training_model.disable_adapter():
        for prompt, group in groupby(batches, key=lambda batch: batch.prompt):
            shared = SharedPrompt(policy.training_model, prompt, policy.device)
            for batch in group:
                for row, log_probabilities in zip(batch.rows, shared.log_probabilities(batch), strict=True):
                    base[row] = log_probabilities
    masks = [torch.tensor(row.mask, dtype=torch.float32, device=policy.device) for row in rows]
    rollout = [torch.tensor(row.log_probabilities, device=policy.device) for row in rows]
    differences = base_differences(rollout, base, masks)
    mean = mean_divergence(*divergence_sums(differences, masks))
    return shaped_advantages([row.advantage for row in rows], differences, masks, mean=mean, kl_coef=kl_coef), mean


def _add_gradients(
    policy: PolicyModel,
    prompt: Sequence[int],
    batches: Iterable[MicroBatch],
    rows: Sequence[TrainingRow],
    advantages: Sequence[Tensor],
    sums: _Sums,
) -> None:
    """Gradients of all answers to one prompt."""
    shared = SharedPrompt(policy.training_model, prompt, policy.device)
    for batch in batches:
        shared.backward(batch, _AnswerLoss(batch, rows, advantages, sums, policy.device))
    shared.finish()


class _AnswerLoss:
    """The loss of one micro-batch's answer tokens, given some of them at a time; reports into `sums`."""

    def __init__(
        self,
        batch: MicroBatch,
        rows: Sequence[TrainingRow],
        advantages: Sequence[Tensor],
        sums: _Sums,
        device: torch.device,
    ) -> None:
        chosen = [rows[row] for row in batch.rows]
        self._batch = batch
        self._old = torch.tensor([value for row in chosen for value in row.log_probabilities], device=device)
        self._outcome = torch.tensor([row.advantage for row in chosen for _ in row.response], device=device)
        self._shaped = torch.cat([advantages[row] for row in batch.rows])
        self._sums = sums

    def __call__(self, part: slice, log_probabilities: Tensor, entropies: Tensor) -> Tensor:
        old = self._old[part]
        difference = log_probabilities.detach() - old
        _require_same_policy(difference, self._batch, part.start)
        losses = surrogate(log_probabilities, old, self._shaped[part])
        ratio = difference.exp()
        self._sums.tokens += len(old)
        self._sums.add(
            loss=losses,
            reward_loss=-ratio * self._outcome[part],
            ratio=ratio,
            divergence=-difference,
            abs_difference=difference.abs(),
            entropy=entropies,
        )
        return losses.sum()


def _require_same_policy(difference: Tensor, batch: MicroBatch, start: int) -> None:
    """Raises `FloatingPointError` naming the first token whose log-probability is NaN or unlike the recorded one."""
    wrong = ~(difference.abs() <= MAX_LOG_RATIO)
    if not bool(wrong.any()):
        return
    index = int(wrong.nonzero()[0])
    place = start + index
    for row, length in zip(batch.rows, batch.lengths, strict=True):
        if place < length:
            raise FloatingPointError(
                f"token {place} of trajectory {row} has a log-probability {float(difference[index]):+.4g} away from "
                f"the one recorded when it was sampled (at most {MAX_LOG_RATIO:g} is accepted): the rollouts belong "
                "to another policy, or the adapter has diverged; sample them again, or go back to an earlier release"
            )
        place -= length


def _require_finite(name: str, tensors: Iterable[Tensor]) -> None:
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
        raise FloatingPointError(f"the {name} of the step is not finite; it is given up and nothing is changed")


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


def gradient_norm(parameters: Iterable[torch.nn.Parameter]) -> float:
    """Euclidean norm over all gradients."""
    return math.sqrt(sum(float(p.grad.double().pow(2).sum()) for p in parameters if p.grad is not None))


def return_memory() -> None:
    """Give memory that training has freed back to the system; glibc would keep gigabytes of it."""
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
