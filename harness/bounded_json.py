"""Reads JSON of any size in bounded memory: long strings lose their beginning, and say so.

A judge's answer may quote all that a candidate printed.  What decides (numbers, flags, the end of a message) is small,
so a huge answer is still readable; only one with too many *values* is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any

MAX_STRING_BYTES = 64 * 1024
MAX_KEPT_BYTES = 8 * 1024 * 1024
MAX_READ_BYTES = 256 * 1024 * 1024

_STRING_RUN = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_BACKSLASH = ord("\\")


class JsonTooLarge(ValueError):
    """The text has more values than fit, or more bytes than are worth reading."""


class BoundedJsonReader:
    """Fed with the pieces of one JSON text; `value()` gives what it says, with long strings cut from the left."""

    def __init__(
        self,
        *,
        max_string_bytes: int = MAX_STRING_BYTES,
        max_kept_bytes: int = MAX_KEPT_BYTES,
        max_read_bytes: int = MAX_READ_BYTES,
    ) -> None:
        self._max_string = max_string_bytes
        self._max_kept = max_kept_bytes
        self._max_read = max_read_bytes
        self._kept = bytearray()
        self._string: bytearray | None = None
        self._escaped = False
        self._dropped = 0
        self._hash = hashlib.sha256()
        self.read_bytes = 0
        self.cut_strings = 0

    @property
    def sha256(self) -> str:
        """Hash of everything read so far, also of what was cut."""
        return self._hash.hexdigest()

    def feed(self, data: bytes) -> None:
        """Take the next piece; raises `JsonTooLarge`."""
        self.read_bytes += len(data)
        if self.read_bytes > self._max_read:
            raise JsonTooLarge(f"the answer has more than {self._max_read} bytes")
        self._hash.update(data)
        at = 0
        while at < len(data):
            at = self._outside(data, at) if self._string is None else self._inside(data, at)
        if len(self._kept) > self._max_kept:
            raise JsonTooLarge(f"the answer needs more than {self._max_kept} bytes")

    def value(self) -> Any:
        """The decoded text; raises ValueError for what is not strict JSON (also NaN and infinite numbers)."""
        if self._string is not None:
            raise ValueError("the text ends inside a string")
        text = self._kept.decode("utf-8")
        try:
            value = json.loads(text, parse_constant=_no_constant, parse_float=_finite_float)
            return _without_surrogates(value) if _SURROGATE_ESCAPE.search(text) else value
        except RecursionError:
            raise ValueError("the text is nested too deeply") from None

    def _outside(self, data: bytes, at: int) -> int:
        quote = data.find(b'"', at)
        if quote < 0:
            self._kept += data[at:]
            return len(data)
        self._kept += data[at:quote]
        self._string = bytearray()
        self._dropped = 0
        return quote + 1

    def _inside(self, data: bytes, at: int) -> int:
        if self._escaped:
            self._append(data[at : at + 1])
            self._escaped = False
            return at + 1
        run = _STRING_RUN.match(data, at)
        stop = at if run is None else run.end()
        self._append(data[at:stop])
        if stop == len(data):
            return stop
        # Either the closing quote, or a backslash whose other half is in the next piece.
        if data[stop] == _BACKSLASH:
            self._append(data[stop : stop + 1])
            self._escaped = True
        else:
            self._end_string()
        return stop + 1

    def _append(self, piece: bytes) -> None:
        assert self._string is not None
        self._string += piece
        if len(self._string) > 2 * self._max_string:
            self._dropped += _cut_left(self._string, self._max_string)

    def _end_string(self) -> None:
        assert self._string is not None
        if self._dropped or len(self._string) > self._max_string:
            self._dropped += _cut_left(self._string, self._max_string)
            self._kept += b'"[truncated %d bytes] ' % self._dropped
            self.cut_strings += 1
        else:
            self._kept += b'"'
        self._kept += self._string + b'"'
        self._string = None


def _cut_left(source: bytearray, keep: int) -> int:
    """Drop the beginning of a string's JSON source, never inside an escape or a UTF-8 sequence; bytes dropped."""
    cut = max(0, len(source) - keep)
    before = cut
    while before > 0 and source[before - 1] == _BACKSLASH:
        before -= 1
    if (cut - before) % 2 == 1:
        cut += 1
    while cut < len(source) and source[cut] & 0xC0 == 0x80:
        cut += 1
    del source[:cut]
    return cut


def _without_surrogates(value: Any) -> Any:
    """The value with lone surrogates replaced: they could not be written as UTF-8 later."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is not a finite number")
    return value
