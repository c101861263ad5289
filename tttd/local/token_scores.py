"""Log-probabilities of given answers under a model, and gradients through them, in bounded memory.

All answers to one prompt share one run of it. Its last state, keys and values are then cut off from their history:
they become leaves, on which the gradients of the answers gather, and one backward pass of the prompt at the end turns
them into gradients of the weights. By the chain rule that is exact, and it lets a group be computed piece by piece: no
more than the prompt and one piece of answers is held at a time, and the prompt is still run only once.

The answers of a piece stand side by side in one row. Each token sees the prompt and the earlier tokens of its own
answer, at the positions it would have alone, so nothing is padded. The vocabulary's logits are made for answer tokens
only and for a few positions at a time, since together they would take more memory than the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from tttd.local.kv_cache import prompt_layers

HEAD_POSITIONS = 128
"""Positions whose logits exist at the same time."""

PartLoss = Callable[[slice, Tensor, Tensor], Tensor]
"""The loss of some of a piece's tokens, from which ones they are, their log-probabilities and their entropies."""


@dataclass(frozen=True)
class MicroBatch:
    """Answers to one prompt that are run together; `rows` are their numbers in the whole batch."""

    prompt: tuple[int, ...]
    responses: tuple[tuple[int, ...], ...]
    rows: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens that are held at the same time."""
        return len(self.prompt) + sum(map(len, self.responses))

    @property
    def lengths(self) -> list[int]:
        """Tokens of each answer."""
        return [len(response) for response in self.responses]


def micro_batches(pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], token_budget: int) -> list[MicroBatch]:
    """Group (prompt, response) pairs by prompt and cut the groups so that prompt plus answers stay in the budget.

    The pieces of a group follow each other. An answer that exceeds the budget alone is still run, alone.  Order is
    kept, so results do not depend on hashing.
    """
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for row, (prompt, _) in enumerate(pairs):
        by_prompt.setdefault(prompt, []).append(row)
    batches: list[MicroBatch] = []
    for prompt, rows in by_prompt.items():
        piece: list[int] = []
        held = len(prompt)
        for row in rows:
            length = len(pairs[row][1])
            if piece and held + length > token_budget:
                batches.append(_micro_batch(prompt, pairs, piece))
                piece, held = [], len(prompt)
            piece.append(row)
            held += length
        batches.append(_micro_batch(prompt, pairs, piece))
    return batches


class SharedPrompt:
    """One prompt that has been run, and the answers that are run after it, one micro-batch at a time."""

    def __init__(self, model: Any, prompt: Sequence[int], device: torch.device) -> None:
        """`model` is a `peft.PeftModel` of a causal language model whose logits are its output embedding of its last
        state.

        Raises `ValueError` for a model that computes its logits in another way.
        """
        base: Any = model.get_base_model()
        self._model = model
        self._name = type(base).__name__
        self._head: nn.Module = base.get_output_embeddings()
        self._device = device
        self._length = len(prompt)
        self._cache = DynamicCache()
        states = self._run(list(prompt))
        self._sources = [states[-1:]]
        for _, keys, values in prompt_layers(self._cache):
            self._sources += [keys, values]
        self._dtype = states.dtype
        # float32, so that the gradients of many pieces add up without the rounding of bfloat16.
        self._leaves = [source.detach().float() for source in self._sources]
        if torch.is_grad_enabled():
            for leaf in self._leaves:
                leaf.requires_grad_()
        self._rewind()

    @torch.no_grad()
    def log_probabilities(self, batch: MicroBatch) -> list[Tensor]:
        """The log-probability of each token of each answer, in float32."""
        found = [chosen for _, chosen, _ in self._scores(self._states(batch), batch)]
        return list(torch.split(torch.cat(found), batch.lengths))

    def backward(self, batch: MicroBatch, loss: PartLoss) -> None:
        """Add the gradients of `loss`, summed over all answer tokens, except for what still is to go through the
        prompt."""
        states = self._states(batch)
        leaf = states.detach().requires_grad_()
        for part, log_probabilities, entropies in self._scores(leaf, batch):
            loss(part, log_probabilities, entropies).backward()  # type: ignore[no-untyped-call]
        states.backward(leaf.grad)  # type: ignore[no-untyped-call]

    def finish(self) -> None:
        """Take the gradients that the answers left on the prompt through it, once."""
        pairs = [(source, leaf.grad) for source, leaf in zip(self._sources, self._leaves, strict=True)]
        reached = [(source, gradient.to(source.dtype)) for source, gradient in pairs if gradient is not None]
        torch.autograd.backward([source for source, _ in reached], [gradient for _, gradient in reached])

    def _states(self, batch: MicroBatch) -> Tensor:
        """The state that predicts each answer token, one answer after the other ([tokens, width])."""
        first = self._leaves[0].to(self._dtype)
        inputs = [token for response in batch.responses for token in response[:-1]]
        if not inputs:
            return first.expand(len(batch.responses), -1)
        sizes = [len(response) - 1 for response in batch.responses]
        owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        offset = torch.cat([torch.arange(size) for size in sizes])
        visible = torch.ones((len(inputs), self._length + len(inputs)), dtype=torch.bool)
        visible[:, self._length :] = (owner[:, None] == owner) & (offset[:, None] >= offset)
        # Additive and in the model's own type: a boolean mask is converted anew in every layer, and kept there.
        mask = torch.zeros(visible.shape, dtype=self._dtype).masked_fill_(~visible, float("-inf"))
        following = self._run(
            inputs,
            attention_mask=mask.to(self._device)[None, None],
            position_ids=(self._length + offset).to(self._device)[None],
        )
        self._rewind()
        return torch.cat([part for own in torch.split(following, sizes) for part in (first, own)])

    def _rewind(self) -> None:
        """Let the cache hold the prompt alone."""
        keys_and_values = iter(self._leaves[1:])
        for layer, _, _ in prompt_layers(self._cache):
            layer.keys = next(keys_and_values).to(self._dtype)
            layer.values = next(keys_and_values).to(self._dtype)

    def _run(self, tokens: list[int], **placement: Tensor) -> Tensor:
        """The states of one row of tokens after what the cache holds ([tokens, width])."""
        output = self._model(
            input_ids=torch.tensor([tokens], device=self._device),
            cache=self._cache,
            use_cache=True,
            logits_to_keep=1,
            output_hidden_states=True,
            **placement,
        )
        states: Tensor = output.hidden_states[-1]
        with torch.no_grad():
            same = torch.allclose(self._head(states[:, -1:]), output.logits, rtol=1e-3, atol=1e-3, equal_nan=True)
        if not same:
            raise ValueError(
                f"{self._name} changes its logits after the output embedding; "
                "Llama-like and Qwen3-like models are supported"
            )
        return states[0]

    def _scores(self, states: Tensor, batch: MicroBatch) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """For a few positions at a time: which ones, each token's log-probability, each distribution's entropy."""
        tokens = torch.tensor([token for response in batch.responses for token in response], device=self._device)
        for start in range(0, len(tokens), HEAD_POSITIONS):
            part = slice(start, min(start + HEAD_POSITIONS, len(tokens)))
            logits = self._head(states[part]).float()
            normaliser = logits.logsumexp(-1)
            log_probabilities = logits.gather(1, tokens[part, None])[:, 0] - normaliser
            with torch.no_grad():
                probabilities = (logits - normaliser[:, None]).exp_()
                entropies = normaliser - (probabilities * logits).sum(-1)
            yield part, log_probabilities, entropies


def _micro_batch(
    prompt: tuple[int, ...], pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], rows: Sequence[int]
) -> MicroBatch:
    return MicroBatch(prompt, tuple(pairs[row][1] for row in rows), tuple(rows))
