"""From next-token logits to tokens: what one request asks for, and one draw for every running request at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SamplingOptions:
    """How one answer is drawn.  `temperature` 0 takes the likeliest token; `top_k` 0 and `top_p` 1 cut nothing off."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    @property
    def plain(self) -> bool:
        """Whether the answer is drawn from the policy as it is."""
        return self.temperature == 1.0 and self.top_p >= 1.0 and self.top_k == 0


class TokenStream:
    """One request's own random numbers: which tokens it gets does not depend on its neighbours."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator()
        self._generator.manual_seed(seed)

    def draw(self) -> float:
        """The next number in [0, 1)."""
        return float(torch.rand((), generator=self._generator, dtype=torch.float64))


def choose_tokens(
    logits: Tensor, options: Sequence[SamplingOptions], streams: Sequence[TokenStream]
) -> tuple[list[int], list[float]]:
    """One token per row of `logits` ([rows, vocabulary]) and its log-probability under the temperature-1 policy.

    Raises `FloatingPointError` when the model produced NaN or infinity.
    """
    log_probabilities = torch.log_softmax(logits.float(), dim=-1)
    weights = log_probabilities.double().exp()
    for row, option in enumerate(options):
        if not option.plain:
            weights[row] = _reshaped(log_probabilities[row].double(), option)
    cumulative = weights.cumsum(-1)
    totals = cumulative[:, -1]
    if not bool(torch.isfinite(totals).all()):
        raise FloatingPointError("the policy's logits are not finite; its adapter has diverged")
    draws = torch.tensor([stream.draw() for stream in streams], dtype=torch.float64, device=logits.device)
    # Strictly below the total, so that the search never runs past the last token that has any weight.
    targets = torch.minimum(draws * totals, torch.nextafter(totals, torch.zeros_like(totals)))
    tokens = torch.searchsorted(cumulative, targets[:, None], right=True)[:, 0]
    chosen = log_probabilities.gather(1, tokens[:, None])[:, 0]
    return [int(token) for token in tokens.tolist()], [float(value) for value in chosen.tolist()]


def _reshaped(log_probabilities: Tensor, option: SamplingOptions) -> Tensor:
    """Unnormalised sampling weights of one row after temperature, top-k and top-p."""
    if option.temperature == 0.0:
        weights = torch.zeros_like(log_probabilities)
        weights[int(log_probabilities.argmax())] = 1.0
        return weights
    scaled = log_probabilities / option.temperature
    weights = (scaled - scaled.max()).exp()
    if 0 < option.top_k < weights.shape[0]:
        kept = weights.topk(option.top_k).indices
        weights = torch.zeros_like(weights).index_copy_(0, kept, weights[kept])
    if option.top_p < 1.0:
        order = weights.argsort(descending=True, stable=True)
        sorted_weights = weights[order] / weights.sum()
        before = sorted_weights.cumsum(0) - sorted_weights
        kept = order[before < option.top_p]
        weights = torch.zeros_like(weights).index_copy_(0, kept, weights[kept])
    return weights
