"""Reads the parent program and the guidance out of an ordinary execution request.

The request is what any executor gets: a user message with a `<selected_parent>` block (in it `<parent_code>` with one
fenced program) and a `<guidance>` block.  The program may contain anything, also look-alikes of these tags, so the end
of the code is found by the whole sequence of closing lines, searched from the end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_OPEN = re.compile(r"^<parent_code>[ \t]*\n[ \t]*(?P<fence>`{3,}|~{3,})[^\n]*\n", re.MULTILINE)
_GUIDANCE = re.compile(r"\s*</parent_code>\s*</selected_parent>\s*<guidance>(?P<text>.*?)</guidance>", re.DOTALL)


class PromptError(ValueError):
    """A request does not hold what an executor needs; the message names the missing part."""


@dataclass(frozen=True)
class ExecutionRequest:
    """The two things the offline executor looks at."""

    parent_code: str
    guidance: str


def message_text(content: Any) -> str:
    """The text of one chat message, whether given as a string or as a list of text parts; raises `PromptError`."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        if len(parts) == len(content) and all(isinstance(part, str) for part in parts):
            return "\n".join(str(part) for part in parts)
    raise PromptError("a message's content must be a string or a list of text parts")


def read_request(messages: list[dict[str, Any]]) -> ExecutionRequest:
    """The parent program and the guidance of the last user message; raises `PromptError`."""
    users = [message for message in messages if message.get("role") == "user"]
    if not users:
        raise PromptError("the request has no user message")
    text = message_text(users[-1].get("content")).replace("\r\n", "\n")
    opening = _OPEN.search(text)
    if opening is None:
        raise PromptError("the last user message has no <parent_code> block with a fenced program")
    fence = opening["fence"]
    closings = re.compile(rf"^[ \t]*{re.escape(fence)}{re.escape(fence[0])}*[ \t]*$", re.MULTILINE)
    for closing in reversed(list(closings.finditer(text, opening.end()))):
        guidance = _GUIDANCE.match(text, closing.end())
        if guidance is not None:
            code = text[opening.end() : closing.start()].strip("\n")
            if not code.strip():
                raise PromptError("the <parent_code> block holds no program")
            return ExecutionRequest(code, guidance["text"].strip())
    raise PromptError("after the program there is no </parent_code>, </selected_parent> and <guidance> in this order")
