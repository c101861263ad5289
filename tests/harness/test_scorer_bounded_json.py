"""Huge or hostile JSON is read in bounded memory, without ever changing what a small text says."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bounded_json import BoundedJsonReader, JsonTooLarge

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def read(data: bytes, *, piece: int = 7, **limits: int) -> Any:
    reader = BoundedJsonReader(**limits)
    for at in range(0, len(data), piece):
        reader.feed(data[at : at + piece])
    return reader.value()


@given(JSON_VALUES, st.booleans(), st.integers(1, 9))
def test_a_small_text_says_what_it_says_however_it_is_cut_into_pieces(value: Any, ascii_only: bool, piece: int) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    if b"\\ud" in data.lower() or "\ufffd" in str(value):
        return
    assert read(data, piece=piece) == value


@given(st.text(alphabet=st.sampled_from('ab"\\\n\té😀u0')), st.booleans(), st.integers(1, 5), st.integers(8, 16))
def test_a_long_string_keeps_its_end_and_stays_readable(text: str, ascii_only: bool, piece: int, keep: int) -> None:
    text += "the end"
    got = read(json.dumps({"m": text}, ensure_ascii=ascii_only).encode(), piece=piece, max_string_bytes=keep)["m"]
    assert got.endswith("the end") if got.startswith("[truncated ") else got == text


def test_fifty_megabytes_in_one_string_are_read_quickly_and_their_loss_is_said() -> None:
    line = json.dumps("spam and eggs\n" * 1000).encode()[1:-1]
    reader = BoundedJsonReader()
    started = time.monotonic()
    reader.feed(b'{"score": 7.5, "message": "')
    for _ in range(50_000_000 // len(line)):
        reader.feed(line)
    reader.feed(b'the end"}')
    value = reader.value()
    assert time.monotonic() - started < 20
    assert value["score"] == 7.5
    assert value["message"].startswith("[truncated ")
    assert value["message"].endswith("the end")
    assert len(value["message"]) < 70_000
    assert (reader.cut_strings, len(reader.sha256)) == (1, 64)


def test_too_many_values_or_bytes_are_refused() -> None:
    with pytest.raises(JsonTooLarge, match="more than 100 bytes"):
        read(b"[" + b"1," * 200 + b"1]", max_kept_bytes=100)
    with pytest.raises(JsonTooLarge, match="more than 100 bytes"):
        read(b'"' + b"x" * 200 + b'"', max_read_bytes=100)


@pytest.mark.parametrize(
    "text", ["NaN", "[Infinity]", "-Infinity", "1e999", '{"a": 1', '"open', "", "<html>", "[" * 100_000, "\xff"]
)
def test_anything_but_strict_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        read(text.encode("latin-1"), piece=5000)


def test_lone_surrogates_do_not_survive() -> None:
    assert read(b'{"a\\ud800": ["\\udc00x", "\\ud83d\\ude00"]}') == {"a?": ["?x", "😀"]}
