"""What the engine tests share: a policy with a visible adapter, and the plain computations it is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from tttd.local.decoding import SamplingOptions
from tttd.local.policy import PolicyModel
from tttd.local.sampler import BatchedSampler, SampledAnswer
from tttd.local.trainer import TrainingRow

PROMPTS = ([258, 84, 82, 68, 81, 198], [258, 84, 82, 68, 81, 198, 71, 72, 256, 198], [65])


def tiny_policy(path: Path, *, rank: int = 4) -> PolicyModel:
    return PolicyModel(path, rank=rank, alpha=2 * rank, seed=3, device="cpu")


def visible_adapter(policy: PolicyModel, seed: int = 0, size: float = 0.1) -> dict[str, Tensor]:
    """An adapter that changes the policy: its B matrices are not zero."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(tensor.shape, generator=generator) * size if "lora_B" in name else tensor.clone()
        for name, tensor in policy.initial_adapter.items()
    }


@contextmanager
def sampling(
    policy: PolicyModel, adapters: Mapping[str, Mapping[str, Tensor] | None], **limits: int
) -> Iterator[BatchedSampler]:
    sampler = BatchedSampler(policy, adapters.__getitem__, **limits)
    try:
        yield sampler
    finally:
        sampler.close()


def sample(
    sampler: BatchedSampler,
    prompts: Sequence[Sequence[int]],
    options: Sequence[SamplingOptions],
    checkpoint: str = "base",
) -> list[SampledAnswer]:
    """Submit everything at once and wait."""
    futures = [
        sampler.submit(checkpoint, list(prompt), option) for prompt, option in zip(prompts, options, strict=True)
    ]
    return [future.result(timeout=60) for future in futures]


@torch.no_grad()
def plain_log_probabilities(
    policy: PolicyModel, adapter: Mapping[str, Tensor] | None, prompt: Sequence[int], response: Sequence[int]
) -> Tensor:
    """One full forward pass of the adapted model over one sequence, without cache, batch or merged weights."""
    policy.use_for_training(adapter)
    return forward_log_probabilities(policy.training_model, prompt, response)


def forward_log_probabilities(model: torch.nn.Module, prompt: Sequence[int], response: Sequence[int]) -> Tensor:
    tokens = torch.tensor([[*prompt, *response]])
    logits = model(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    distribution = torch.log_softmax(logits, dim=-1)
    return distribution.gather(1, torch.tensor(list(response))[:, None])[:, 0]


def grid_rows(policy: PolicyModel, adapter: Mapping[str, Tensor] | None, *, per_prompt: int = 3) -> list[TrainingRow]:
    """A small on-policy grid with uneven lengths and one masked-out token."""
    prompts = [prompt for prompt in PROMPTS[:2] for _ in range(per_prompt)]
    options = [SamplingOptions(max_tokens=3 + 4 * index, seed=index) for index in range(len(prompts))]
    with sampling(policy, {"x": adapter}) as sampler:
        answers = sample(sampler, prompts, options, "x")
    rows = []
    for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        mask = [1] * len(answer.tokens)
        if len(mask) > 2:
            mask[1] = 0
        rows.append(
            TrainingRow(
                tuple(prompt), answer.tokens, tuple(mask), answer.log_probabilities, advantage=float(index) - 2.0
            )
        )
    return rows
