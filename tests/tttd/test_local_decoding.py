"""From logits to tokens and from tokens to text: truncation, diverged models, and characters that span tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tttd.local.decoding import SamplingOptions, TextPieces, TokenStream, choose_tokens
from tttd.local.policy import load_tokenizer

PROBABILITIES = (0.5, 0.25, 0.15, 0.1)
LOGITS = torch.log(torch.tensor([PROBABILITIES]))
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
    ),
]


def drawn(option: SamplingOptions, count: int = 300, device: str = "cpu") -> tuple[list[int], set[float]]:
    """How often each token came, and the log-probabilities that were recorded."""
    stream, counts, values = TokenStream(0), [0] * len(PROBABILITIES), set()
    for _ in range(count):
        tokens, recorded = choose_tokens(LOGITS.to(device), [option], [stream])
        counts[tokens[0]] += 1
        values.add(round(recorded[0], 4))
    return counts, values


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("option", "possible"),
    [
        (SamplingOptions(1, temperature=0.0), {0}),
        (SamplingOptions(1, temperature=5e-324), {0}),
        (SamplingOptions(1, top_k=2), {0, 1}),
        (SamplingOptions(1, top_p=0.5), {0}),
        (SamplingOptions(1, top_p=0.51), {0, 1}),
        (SamplingOptions(1, top_p=0.9, top_k=3), {0, 1, 2}),
        (SamplingOptions(1), {0, 1, 2, 3}),
        (SamplingOptions(1, temperature=2.0), {0, 1, 2, 3}),
        (SamplingOptions(1, top_k=99), {0, 1, 2, 3}),
        (SamplingOptions(1, top_p=1e-300), {0}),
    ],
)
def test_truncation_limits_the_tokens_but_not_the_recorded_probability(
    option: SamplingOptions, possible: set[int], device: str
) -> None:
    counts, values = drawn(option, device=device)
    assert {token for token, count in enumerate(counts) if count} == possible
    assert values == {round(float(LOGITS[0, token]), 4) for token in possible}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.5])
def test_tokens_are_drawn_as_often_as_their_probability_at_that_temperature_says(
    temperature: float, device: str
) -> None:
    counts, _ = drawn(SamplingOptions(1, temperature=temperature), 4000, device)
    sharpened = [probability ** (1 / temperature) for probability in PROBABILITIES]
    expected = [weight / sum(sharpened) for weight in sharpened]
    assert [count / 4000 for count in counts] == pytest.approx(expected, abs=0.03)


def test_truncated_weights_keep_their_proportions() -> None:
    counts, _ = drawn(SamplingOptions(1, top_k=2), 4000)
    assert counts[0] / counts[1] == pytest.approx(2.0, rel=0.12)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "option",
    [
        SamplingOptions(1),
        SamplingOptions(1, temperature=0.0),
        SamplingOptions(1, temperature=0.7),
        SamplingOptions(1, top_p=0.5),
        SamplingOptions(1, top_k=2),
    ],
)
def test_logits_that_are_no_numbers_are_an_error_however_one_samples(bad: float, option: SamplingOptions) -> None:
    logits = LOGITS.clone()
    logits[0, 2] = bad
    with pytest.raises(FloatingPointError, match="diverged"):
        choose_tokens(logits, [option], [TokenStream(0)])


def test_a_token_that_the_model_rules_out_is_never_drawn() -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf]])
    for option in (SamplingOptions(1), SamplingOptions(1, temperature=50.0), SamplingOptions(1, top_p=0.9)):
        assert choose_tokens(logits, [option], [TokenStream(1)]) == ([1], [0.0])


# --- text -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Any:
    return load_tokenizer(tiny_model)


def decoder(tokenizer: Any):  # type: ignore[no-untyped-def]
    return lambda tokens: tokenizer.decode(list(tokens), skip_special_tokens=True)


def told(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    """The pieces of an answer whose tokens come one by one, with what is left at its end as the last one."""
    decode = decoder(tokenizer)
    pieces = TextPieces(decode)
    return [*(pieces.add([token]) for token in tokens), pieces.rest(decode(tokens))]


def test_a_character_is_told_with_its_last_token(tokenizer: Any) -> None:
    text = "naïve 日本 🙂!"
    pieces = told(tokenizer, tokenizer.encode(text))
    assert [piece for piece in pieces if piece] == list(text)
    assert [len(text[index].encode()) for index in range(len(text))] == [
        1 + run for run in empty_runs_before_pieces(pieces)
    ]


def empty_runs_before_pieces(pieces: Sequence[str]) -> list[int]:
    runs, run = [], 0
    for piece in pieces[:-1]:
        if piece:
            runs.append(run)
        run = 0 if piece else run + 1
    return runs


def test_a_character_that_never_ends_is_told_at_the_end(tokenizer: Any) -> None:
    tokens = tokenizer.encode("a🙂")[:-1]
    assert told(tokenizer, tokens) == ["a", "", "", "", "\ufffd"]


def test_special_tokens_are_no_text(tokenizer: Any) -> None:
    tokens = [tokenizer.eos_token_id, *tokenizer.encode("é"), tokenizer.eos_token_id]
    assert told(tokenizer, tokens) == ["", "", "é", "", ""]


answers = st.lists(st.integers(0, 258) | st.sampled_from("aé日🙂\ufffd"), max_size=40)


@settings(deadline=None, max_examples=200)
@given(answers, st.integers(1, 4), st.integers(0, 3))
@example(["é", 258, "日", 258, "🙂"], 1, 1)
def test_all_pieces_together_are_the_text_whatever_the_bytes(
    tokenizer: Any, answer: list[int | str], at_once: int, cut: int
) -> None:
    decode = decoder(tokenizer)
    tokens = [token for part in answer for token in (tokenizer.encode(part) if isinstance(part, str) else [part])]
    tokens = tokens[: max(0, len(tokens) - cut)]
    text = decode(tokens)
    pieces = TextPieces(decode)
    parts = [pieces.add(tokens[start : start + at_once]) for start in range(0, len(tokens), at_once)]
    assert "".join([*parts, pieces.rest(text)]) == text


def test_a_tokenizer_that_drops_a_leading_blank_keeps_those_between_words() -> None:
    words = ["Hello", "▁big", "▁world"]

    def decode(tokens: Sequence[int]) -> str:
        return "".join(words[token] for token in tokens).replace("▁", " ").lstrip(" ")

    pieces = TextPieces(decode)
    assert [pieces.add([token]) for token in range(3)] == ["Hello", " big", " world"]


def test_a_tokenizer_that_rewrites_what_was_told_is_an_error_not_another_text() -> None:
    pieces = TextPieces(lambda tokens: "x" * len(tokens))
    pieces.add([1])
    with pytest.raises(ValueError, match="rewrites"):
        pieces.rest("y")
