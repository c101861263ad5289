"""Text on a terminal: what models and candidates wrote is shown as text and never acts on the terminal.

Control characters, escape sequences, text-direction overrides and lone surrogates are written out as escapes, so that a
hostile answer can neither move the cursor nor hide a line.  No markup is interpreted anywhere.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, TextIO

_ACTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters other than tab and line feed
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line separators and text direction
    "\ud800-\udfff]"  # surrogates, which no terminal can be sent
)


def visible(text: str) -> str:
    """The text with every character that acts on a terminal written out (`\\x1b`, `\\u202e`); CRLF becomes LF."""
    return _ACTIVE.sub(_escape, text.replace("\r\n", "\n"))


def one_line(text: str, limit: int = 200) -> str:
    """The text on one line of at most `limit` characters, safe to show."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= limit else line[: max(0, limit - 3)] + "..."


def indented(text: str, by: int = 2) -> str:
    """Several lines, safe to show, each moved to the right."""
    return "\n".join(" " * by + line if line else "" for line in visible(text).split("\n"))


def safe_json(value: Any, *, indent: int | None = 2) -> str:
    """Strict JSON in plain ASCII: any text survives a round trip and none acts on a terminal."""
    return json.dumps(value, indent=indent, allow_nan=False)


def emit(text: str, out: TextIO | None = None) -> None:
    """Print and flush; a character that the stream's encoding lacks is written as an escape."""
    stream = out or sys.stdout
    try:
        stream.write(text + "\n")
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write((text + "\n").encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
