"""From next-token logits to tokens, and from tokens to text that can be sent on while the answer still grows.

What one request asks for, one draw for every running request at once, and the pieces of text of a streamed answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    # One NaN or infinite logit makes the whole row NaN.
    if bool(log_probabilities[:, 0].isnan().any()):
        raise FloatingPointError("the policy's logits are not finite; its adapter has diverged")
    weights = log_probabilities.double().exp()
    for row, option in enumerate(options):
        if not option.plain:
            weights[row] = _reshaped(log_probabilities[row].double(), option)
    cumulative = weights.cumsum(-1)
    totals = cumulative[:, -1]
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
    # The likeliest token is 0 before the division, so that no temperature is too small for it.
    weights = ((log_probabilities - log_probabilities.max()) / option.temperature).exp()
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


class TextPieces:
    """The text of a growing answer, piece by piece; all pieces together are exactly the text of the whole answer.

    Text is held back while more tokens could still change it: one character may take several tokens, and until the
    last of them is there a tokenizer shows U+FFFD.  Only the latest tokens are decoded each time, together with those
    of the piece before, because a tokenizer may treat the first token of a text differently.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._told = 0
        self._pieces: list[str] = []

    def add(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete; may be empty."""
        self._tokens += tokens
        text = self._decode(self._tokens)
        piece = text[len(self._decode(self._tokens[: self._told])) :]
        if not piece or text.endswith("\ufffd"):
            return ""
        del self._tokens[: self._told]
        self._told = len(self._tokens)
        self._pieces.append(piece)
        return piece

    def rest(self, whole: str) -> str:
        """What has not been told yet of the whole answer's text.

        Raises `ValueError` when the tokenizer now words differently what has been told, which byte-level tokenizers
        never do.
        """
        told = "".join(self._pieces)
        if not whole.startswith(told):
            raise ValueError("the tokenizer rewrites text that was already sent; ask for this answer without stream")
        return whole[len(told) :]
