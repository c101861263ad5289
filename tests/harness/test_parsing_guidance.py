"""The strict guidance parser: one terminal block in the answer part, or a reason why not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.parsing import extract_strict_guidance


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no answer text"),
        ("  \n ", "no answer text"),
        ("just prose", "exactly one complete"),
        ("<guidance></guidance>", "empty"),
        ("<guidance> \n </guidance>", "empty"),
        ("<guidance>open", "exactly one complete"),
        ("closed</guidance>", "exactly one complete"),
        ("</guidance>x<guidance>", "terminal"),
        ("<guidance>a</guidance> and more", "terminal"),
        ("<guidance>a</guidance><guidance>b</guidance>", "exactly one complete"),
        ("<guidance>a<guidance>b</guidance>", "exactly one complete"),
        ("<Guidance>a</Guidance>", "exactly one complete"),
        ('<guidance lang="en">a</guidance>', "exactly one complete"),
        ("```\n<guidance>a</guidance>\n```", "terminal"),
        ("<guidance>a\ud800b</guidance>", "not valid Unicode"),
    ],
)
def test_a_malformed_block_is_refused_and_never_repaired(text: str, words: str) -> None:
    parsed = extract_strict_guidance(text)
    assert parsed.guidance is None
    assert parsed.error is not None
    assert words in parsed.error


@pytest.mark.parametrize(
    ("text", "guidance"),
    [
        ("<guidance>sort first</guidance>", "sort first"),
        ("a preamble\n<guidance>\n sort first \n</guidance>\n\n", "sort first"),
        ("<guidance>two\r\nlines</guidance>", "two\nlines"),
    ],
)
def test_one_terminal_block_is_accepted_with_a_preamble(text: str, guidance: str) -> None:
    parsed = extract_strict_guidance(text)
    assert (parsed.guidance, parsed.error) == (guidance, None)


def test_tags_inside_the_thinking_part_do_not_count() -> None:
    text = "<think>maybe <guidance>a</guidance> or</think>\n<guidance>b</guidance>"
    assert extract_strict_guidance(text).guidance == "b"
    assert extract_strict_guidance("thought <guidance>a</guidance></think><guidance>b</guidance>").guidance == "b"


@pytest.mark.parametrize(
    "text",
    [
        "<think>so I would say <guidance>draft</guidance>",
        "<think>a</think> <think>b <guidance>draft</guidance>",
        "<think>only <guidance>draft</guidance></think>",
    ],
)
def test_a_draft_in_an_unfinished_or_only_thought_is_malformed(text: str) -> None:
    assert extract_strict_guidance(text).guidance is None


def test_a_reply_cut_by_the_token_limit_counts_only_with_a_complete_terminal_block() -> None:
    cut = extract_strict_guidance("<guidance>half of a", "length")
    assert cut.guidance is None
    assert "token limit" in str(cut.error)
    assert extract_strict_guidance("<guidance>whole</guidance>", "length").guidance == "whole"


@given(st.text())
def test_every_text_gives_either_guidance_or_a_reason(text: str) -> None:
    parsed = extract_strict_guidance(text)
    assert (parsed.guidance is None) != (parsed.error is None)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])).filter(lambda t: t.strip() and "<" not in t))
def test_every_plain_text_in_the_documented_form_comes_back(text: str) -> None:
    expected = text.strip().replace("\r\n", "\n")
    assert extract_strict_guidance(f"<think>x</think>\n<guidance>\n{text}\n</guidance>\n").guidance == expected
