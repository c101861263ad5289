"""Reads the policy's guidance and the executor's program out of free text, by strict and documented rules.

A reply is either accepted as it stands or refused with a reason: nothing is repaired, guessed or asked again.  The
table of what is accepted is docs/answers.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.contract import Language
from harness.fences import Fence, Outline, outline
from harness.summaries import clean_unicode

MAX_PROGRAM_CHARS = 60_000

_OPEN_GUIDANCE, _CLOSE_GUIDANCE = "<guidance>", "</guidance>"
_OPEN_THINK, _CLOSE_THINK = "<think>", "</think>"
_LABELS = {
    "cpp": re.compile(r"(?:cpp|c\+\+|cxx|cc|gnu\+\+|g\+\+)(?:\d\w?)?\d?"),
    "python": re.compile(r"(?:python|py)(?:\d(?:\.\d+)?)?"),
}
_LABEL_END = re.compile(r"[\s,;:{(\[]")
_LINE_RUN = re.compile(r"^[ \t]*(`{3,})", re.MULTILINE)
_SURROGATE = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True)
class GuidanceParse:
    """Exactly one of `guidance` (non-empty text) and `error` (why there is none) is set."""

    guidance: str | None
    error: str | None


@dataclass(frozen=True)
class SolutionParse:
    """Exactly one of `code` (a non-empty program, LF line ends) and `error` (why there is none) is set."""

    code: str | None
    error: str | None


def extract_strict_guidance(text: str, finish_reason: str | None = None) -> GuidanceParse:
    """Accept exactly one non-empty guidance block that ends the answer part of a policy's reply.

    Everything up to the last `</think>` is thinking.  A thought that was never closed, or a reply that the token limit
    cut before its block was complete, is malformed, whatever draft tags it holds.
    """
    answer = text[text.rfind(_CLOSE_THINK) + len(_CLOSE_THINK) :] if _CLOSE_THINK in text else text
    answer = answer.strip()
    error = _guidance_error(answer)
    if error is not None:
        cut = " (the reply was cut by the token limit)" if finish_reason == "length" else ""
        return GuidanceParse(None, error + cut)
    inner = answer[answer.find(_OPEN_GUIDANCE) + len(_OPEN_GUIDANCE) : answer.find(_CLOSE_GUIDANCE)]
    return GuidanceParse(inner.strip().replace("\r\n", "\n"), None)


def _guidance_error(answer: str) -> str | None:
    if not answer:
        return "the reply has no answer text"
    if _OPEN_THINK in answer:
        return "the thinking part is not closed"
    if answer.count(_OPEN_GUIDANCE) != 1 or answer.count(_CLOSE_GUIDANCE) != 1:
        return "the answer needs exactly one complete guidance block"
    begin, end = answer.find(_OPEN_GUIDANCE), answer.find(_CLOSE_GUIDANCE)
    if end < begin or answer[end + len(_CLOSE_GUIDANCE) :].strip():
        return "the guidance block must be terminal"
    inner = answer[begin + len(_OPEN_GUIDANCE) : end]
    if not inner.strip():
        return "the guidance block is empty"
    if _SURROGATE.search(inner):
        return "the guidance is not valid Unicode"
    return None


def extract_solution_code(text: str, language: str, *, max_chars: int = MAX_PROGRAM_CHARS) -> SolutionParse:
    """Take the program out of an executor's reply; `language` in any spelling that a task contract may use.

    The last complete pair of top-level `<solution>` tags is searched (when there is none: the text after an opening tag
    that is never closed, else the whole answer).  Of the fenced blocks there whose label fits the language or is
    absent, the longest is the program.  One of more than `max_chars` characters is refused: it could not be a parent.
    """
    language = Language.parse(language).key
    answer = _executor_answer(text.replace("\r\n", "\n"))
    if answer is None:
        return SolutionParse(None, "the thinking part is not closed")
    if not answer.strip():
        return SolutionParse(None, "the reply has no answer text")
    found = outline(answer, language)
    fences = _searched_fences(found)
    if fences is None:
        return SolutionParse(None, "the last fenced block is not closed")
    return _choose_program(fences, language, max_chars)


def _executor_answer(text: str) -> str | None:
    """The text after the thinking part; None when that part never ends.

    `</think>` counts only at the start or the end of a line, so that a program may print it.
    """
    lines = text.split("\n")
    for index in range(len(lines) - 1, -1, -1):
        line = lines[index].strip().lower()
        if line.startswith(_CLOSE_THINK) or line.endswith(_CLOSE_THINK):
            at = lines[index].lower().rfind(_CLOSE_THINK) + len(_CLOSE_THINK)
            return "\n".join([lines[index][at:], *lines[index + 1 :]])
    return None if text.lstrip().lower().startswith(_OPEN_THINK) else text


def _searched_fences(found: Outline) -> list[Fence] | None:
    """The fences in which the program is looked for; None when the reply ends inside the one that counts."""
    region = found.last_complete
    newest = found.regions[-1] if found.regions else None
    if region is not None and (newest is region or not found.ends_in_open_fence):
        return region.fences
    if found.ends_in_open_fence:
        return None
    return newest.fences if newest is not None else list(found.fences)


def _choose_program(fences: list[Fence], language: str, max_chars: int) -> SolutionParse:
    if not fences:
        return SolutionParse(None, "there is no fenced block with a program")
    fitting = [fence for fence in fences if _label_fits(fence.info, language)]
    if not fitting:
        labels = ", ".join(dict.fromkeys(repr(fence.info[:30]) for fence in fences[:5]))
        return SolutionParse(None, f"no fenced block is labelled as {language} or left unlabelled (found {labels})")
    code = max((fence.body.strip() for fence in reversed(fitting)), key=len)
    if not code:
        return SolutionParse(None, "the fenced block is empty")
    if len(code) > max_chars:
        return SolutionParse(None, f"the program has {len(code)} characters, more than the limit of {max_chars}")
    if _SURROGATE.search(code):
        return SolutionParse(None, "the program is not valid Unicode")
    return SolutionParse(code, None)


def _label_fits(info: str, language: str) -> bool:
    label = _LABEL_END.split(info.strip().lower(), maxsplit=1)[0].strip(".")
    return not label or _LABELS[language].fullmatch(label) is not None


def extract_terminal_tag_or_none(text: str, tag: str) -> str | None:
    """The text of the block `tag` (upper or lower case) that ends the reply; None when it is missing or blank."""
    stripped = clean_unicode(text).strip()
    lowered = stripped.lower()
    opening, closing = f"<{tag.lower()}>", f"</{tag.lower()}>"
    if not lowered.endswith(closing) or len(lowered) != len(stripped):
        return None
    body_end = len(stripped) - len(closing)
    start = lowered.rfind(opening, 0, body_end)
    if start < 0:
        return None
    return stripped[start + len(opening) : body_end].strip() or None


def fence_for(code: str) -> str:
    """The shortest run of back-ticks that can fence `code` without being closed by one of its lines."""
    longest = max((len(run) for run in _LINE_RUN.findall(code)), default=2)
    return "`" * max(3, longest + 1)


def format_solution(code: str, label: str, summary: str) -> str:
    """An executor's reply in the documented form; the parser gives back `code.strip()` for every text."""
    fence = fence_for(code)
    return f"<solution>\n{fence}{label}\n{code}\n{fence}\n</solution>\n<summary>\n{summary}\n</summary>"
