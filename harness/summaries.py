"""The summary-only rule: what a guidance model may read about a program, with every piece of the program removed.

Summaries come from executors and from seed files, judge messages from judges; both are untrusted.  They pass through
here before they reach a prompt, so that neither fences, nor program lines, nor look-alikes of our own block tags do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

MAX_SUMMARY_CHARS = 2_000
MAX_JUDGE_MESSAGE_CHARS = 300
CODE_REMOVED = "[code removed]"
NO_SUMMARY = "No summary of this program is available."

_MIN_SUMMARY_LINE_CHARS = 12
_MIN_PROMPT_LINE_CHARS = 24
_CODE_PUNCTUATION = re.compile(r"[;{}()\[\]=<>#&|*+/\\]|->|::")
_SPACES = re.compile(r"\s+")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})")
_RESERVED_TAG = re.compile(
    r"<(\s*/?\s*(?:problem|selected_parent|selected_summary|parent_code|guidance|solution|summary|think)\s*)>",
    re.IGNORECASE,
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]")


class CodeLeak(RuntimeError):
    """A guidance prompt was about to show program text: a mistake in this project, never in a candidate."""


@dataclass(frozen=True)
class CleanSummary:
    """A summary fit for a prompt, and how many lines and fenced blocks lost code on the way."""

    text: str
    removed_lines: int
    removed_fences: int


def canonical_summary(text: str, program: str, *, max_chars: int = MAX_SUMMARY_CHARS) -> CleanSummary:
    """Remove fenced blocks and program lines from a summary, and bound its length (a cut is said in the text)."""
    known = ProgramLines(program)
    prose, fences = _without_fences(clean_unicode(text))
    named = [line for line in prose if not known.is_code_line(line)]
    plain = [neutralise_tags(_CONTROL.sub(" ", line)).rstrip() for line in named]
    body = _cut_end(re.sub(r"\n{3,}", "\n\n", "\n".join(plain)).strip(), max_chars)
    # Searched last, when nothing can change a line any more: what remains here is what a prompt shows.
    shown = body.split("\n")
    safe = [known.excise(line) for line in shown]
    removed = len(prose) - len(named) + sum(1 for before, after in zip(shown, safe, strict=True) if before != after)
    kept = [line for line in safe if line.strip("`-* ") != CODE_REMOVED]
    return CleanSummary("\n".join(kept).strip(), removed, fences)


def clean_judge_message(message: str, program: str = "", *, max_chars: int = MAX_JUDGE_MESSAGE_CHARS) -> str:
    """One bounded line of a judge's message, without code; when it is too long its end is kept (errors come last)."""
    known = ProgramLines(program)
    prose, _ = _without_fences(clean_unicode(message))
    line = neutralise_tags(one_line(" ".join(part for part in prose if not known.is_code_line(part))))
    if len(line) > max_chars:
        line = f"[truncated {len(line) - max_chars} characters] {line[-max_chars:]}"
    return known.excise(line)


class ProgramLines:
    """The lines of one program that are recognisable as code, for finding them in other text."""

    def __init__(self, program: str) -> None:
        lines = {collapse(line) for line in program.splitlines()}
        code = (line for line in lines if _CODE_PUNCTUATION.search(line))
        self._short = {line for line in code if len(line) >= _MIN_SUMMARY_LINE_CHARS}
        self._long = sorted(line for line in self._short if len(line) >= _MIN_PROMPT_LINE_CHARS)

    def is_code_line(self, line: str) -> bool:
        """True when the whole line (list markers and back-ticks aside) is a line of the program."""
        text = collapse(line)
        return text in self._short or text.strip("`-* ").strip() in self._short

    def found_in(self, line: str) -> str | None:
        """A program line of 24 or more characters that is part of `line`, or None."""
        text = collapse(line)
        if len(text) < _MIN_PROMPT_LINE_CHARS:
            return None
        return next((code for code in self._long if code in text), None)

    def excise(self, line: str) -> str:
        """The line with every program line of 24 or more characters replaced by a marker."""
        text = line
        while (code := self.found_in(text)) is not None:
            text = collapse(text).replace(code, CODE_REMOVED)
        return text


def assert_no_code(texts: Iterable[str], program: str, *, public: str = "") -> None:
    """Last check before a guidance prompt leaves: raises `CodeLeak` when a line of `program` is part of any text.

    Lines that are the same for every program (`public`: the statement, the examples, our words) tell nothing about it.
    """
    known = ProgramLines(program)
    published = {collapse(line) for line in public.splitlines()}
    for text in texts:
        for line in text.splitlines():
            if collapse(line) in published:
                continue
            code = known.found_in(line)
            if code is not None:
                raise CodeLeak(f"a guidance prompt would show program text: {code[:60]!r}")


def collapse(text: str) -> str:
    """The text stripped, with each run of white space made one space."""
    return _SPACES.sub(" ", text).strip()


def one_line(text: str) -> str:
    """The text as one line without control characters."""
    return collapse(_CONTROL.sub(" ", text))


def neutralise_tags(text: str) -> str:
    """Turn look-alikes of our own block tags into square brackets, so that no text can open or close a block."""
    return _RESERVED_TAG.sub(lambda match: f"[{match.group(1).strip()}]", text)


def clean_unicode(text: str) -> str:
    """The text with LF line ends and without lone surrogates (they cannot be written as UTF-8)."""
    return text.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8", "replace").decode("utf-8")


def _without_fences(text: str) -> tuple[list[str], int]:
    """The lines outside fenced blocks, and how many blocks there were (an unclosed one runs to the end)."""
    kept: list[str] = []
    opener: str | None = None
    count = 0
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if opener is None and match is not None:
            opener = match.group(1)
            count += 1
        elif opener is None:
            kept.append(line)
        elif line.strip().startswith(opener) and not line.strip().strip(opener[0]):
            opener = None
    return kept, count


def _cut_end(text: str, max_chars: int) -> str:
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars].rstrip()} [cut: {len(text) - max_chars} more characters]"
