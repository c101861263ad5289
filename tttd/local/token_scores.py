"""Log-probabilities of given answers under a model: each distinct prompt is run once for all of its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from tttd.local.kv_cache import prompt_layers


@dataclass(frozen=True)
class MicroBatch:
    """Answers to one prompt that are run together; `rows` are their numbers in the whole batch."""

    prompt: tuple[int, ...]
    responses: tuple[tuple[int, ...], ...]
    rows: tuple[int, ...]


@dataclass(frozen=True)
class TokenScores:
    """Per answer, in order: the log-probability of each token, and the entropy of each distribution (if asked for)."""

    log_probabilities: tuple[Tensor, ...]
    entropies: tuple[Tensor, ...]


def micro_batches(pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], token_budget: int) -> list[MicroBatch]:
    """Group (prompt, response) pairs by prompt and cut the groups so that prompt plus answers stay in the budget.

    An answer that exceeds the budget alone is still run, alone.  Order is kept, so results do not depend on hashing.
    """
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for row, (prompt, _) in enumerate(pairs):
        by_prompt.setdefault(prompt, []).append(row)
    batches: list[MicroBatch] = []
    for prompt, rows in by_prompt.items():
        chunk: list[int] = []
        for row in rows:
            longest = max(len(pairs[other][1]) for other in (*chunk, row))
            if chunk and len(prompt) + longest * (len(chunk) + 1) > token_budget:
                batches.append(_micro_batch(prompt, pairs, chunk))
                chunk = []
            chunk.append(row)
        batches.append(_micro_batch(prompt, pairs, chunk))
    return batches


def score_tokens(
    model: nn.Module, batch: MicroBatch, device: torch.device, *, with_entropy: bool = False
) -> TokenScores:
    """Run the prompt once and all answers after it; gradients flow through both."""
    cache = DynamicCache()
    prompt = torch.tensor([batch.prompt], device=device)
    first = model(input_ids=prompt, cache=cache, use_cache=True, logits_to_keep=1).logits[0]
    longest = max(map(len, batch.responses))
    following = _following_logits(model, batch, cache, device) if longest > 1 else None
    log_probabilities, entropies = [], []
    for number, response in enumerate(batch.responses):
        logits = first if following is None else torch.cat((first, following[number, : len(response) - 1]))
        distribution = torch.log_softmax(logits.float(), dim=-1)
        tokens = torch.tensor(response, device=device)
        log_probabilities.append(distribution.gather(1, tokens[:, None])[:, 0])
        if with_entropy:
            with torch.no_grad():
                entropies.append(-(distribution.exp() * distribution).sum(-1))
    return TokenScores(tuple(log_probabilities), tuple(entropies))


def _following_logits(model: nn.Module, batch: MicroBatch, cache: DynamicCache, device: torch.device) -> Tensor:
    """The logits after each answer token but the last, right-padded to the longest answer."""
    count = len(batch.responses)
    for layer, keys, values in prompt_layers(cache):
        layer.keys = keys.expand(count, -1, -1, -1)
        layer.values = values.expand(count, -1, -1, -1)
    width = max(map(len, batch.responses)) - 1
    inputs = torch.zeros((count, width), dtype=torch.long, device=device)
    mask = torch.zeros((count, len(batch.prompt) + width), dtype=torch.long, device=device)
    mask[:, : len(batch.prompt)] = 1
    for number, response in enumerate(batch.responses):
        inputs[number, : len(response) - 1] = torch.tensor(response[:-1], dtype=torch.long, device=device)
        mask[number, len(batch.prompt) : len(batch.prompt) + len(response) - 1] = 1
    positions = torch.arange(len(batch.prompt), len(batch.prompt) + width, device=device)[None, :].expand(count, -1)
    output = model(input_ids=inputs, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True)
    logits: Tensor = output.logits
    return logits


def _micro_batch(
    prompt: tuple[int, ...], pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], rows: Sequence[int]
) -> MicroBatch:
    return MicroBatch(prompt, tuple(pairs[row][1] for row in rows), tuple(rows))
