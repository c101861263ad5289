"""Finds fenced blocks and top-level `<solution>` tags in a model's reply, line by line.

A reply is read as lines of prose and fenced blocks.  Tags count only outside fences and at the start of a line.  A
closing fence inside a literal or comment of the program that spans lines (a raw or triple-quoted string, `/* */`) does
not close.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_OPENER = re.compile(r"[ \t]*(?:(?P<ticks>`{3,})[ \t]*(?P<info>[^`]*)|(?P<tildes>~{3,})[ \t]*(?P<tilde_info>.*))$")
_CLOSER = re.compile(r"[ \t]*(?P<run>`{3,}|~{3,})[ \t]*(?P<rest></solution>.*)?$", re.IGNORECASE)
_TAG = re.compile(r"[ \t]*<(?P<slash>/?)solution>(?P<rest>.*)$", re.IGNORECASE)
_AFTER_SOLUTION = re.compile(r"[ \t]*</solution>[ \t]*(?P<rest>.*)$", re.IGNORECASE)
_SUMMARY = re.compile(r"[ \t]*<summary>", re.IGNORECASE)

_CPP_TOKENS = re.compile(
    r"//[^\n]*|(?P<block>/\*)|(?:\b(?:u8|u|U|L))?(?P<raw>R\"(?P<delimiter>[^()\\\s\"]{0,16})\()"
    r"|\"(?:\\.|[^\"\\\n])*\"?|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])*'?"
)
_PYTHON_TOKENS = re.compile(r"#[^\n]*|(?P<triple>\"\"\"|''')|\"(?:\\.|[^\"\\\n])*\"?|'(?:\\.|[^'\\\n])*'?")


@dataclass(frozen=True)
class Fence:
    """One fenced block: the words after its opening run, its text, and whether a closing run was found."""

    info: str
    body: str
    closed: bool


@dataclass
class Region:
    """The fences of one stretch of a reply, and whether it is a complete pair of tags."""

    fences: list[Fence] = field(default_factory=list)
    complete: bool = False


@dataclass(frozen=True)
class Outline:
    """What a reply holds: all its fences, and the regions that a `<solution>` tag opened."""

    fences: tuple[Fence, ...]
    regions: tuple[Region, ...]

    @property
    def last_complete(self) -> Region | None:
        """The region of the last complete pair of tags."""
        return next((region for region in reversed(self.regions) if region.complete), None)

    @property
    def ends_in_open_fence(self) -> bool:
        """True when the text ends inside a fence that holds something."""
        return bool(self.fences) and not self.fences[-1].closed and bool(self.fences[-1].body.strip())


def outline(text: str, language: str) -> Outline:
    """Read a reply (LF line ends); `language` (`cpp` or `python`) decides which literals may span lines."""
    return _Scanner(text.split("\n"), language).run()


class LiteralTracker:
    """Follows program text and knows whether its end lies inside a literal or comment that spans lines."""

    def __init__(self, language: str) -> None:
        self._python = language == "python"
        self._terminator: str | None = None

    @property
    def inside(self) -> bool:
        """True when such a literal is still open."""
        return self._terminator is not None

    def feed(self, text: str) -> None:
        """Read further text, which must start at the beginning of a line."""
        position = 0
        while True:
            if self._terminator is not None:
                end = self._find_end(text, position)
                if end < 0:
                    return
                position = end
                self._terminator = None
            match = (_PYTHON_TOKENS if self._python else _CPP_TOKENS).search(text, position)
            if match is None:
                return
            position = match.end()
            self._terminator = self._terminator_of(match)

    def _terminator_of(self, match: re.Match[str]) -> str | None:
        if self._python:
            return match.group("triple")
        if match.group("block"):
            return "*/"
        return f'){match.group("delimiter")}"' if match.group("raw") else None

    def _find_end(self, text: str, position: int) -> int:
        assert self._terminator is not None
        if not self._python:
            found = text.find(self._terminator, position)
            return found + len(self._terminator) if found >= 0 else -1
        escape_or_end = re.compile(rf"\\.|{self._terminator}", re.DOTALL)
        ends = (match.end() for match in escape_or_end.finditer(text, position) if match.group() == self._terminator)
        return next(ends, -1)


class _Scanner:
    def __init__(self, lines: list[str], language: str) -> None:
        self._lines = lines
        self._language = language
        self._literals_help = True
        self._fences: list[Fence] = []
        self._regions: list[Region] = []
        self._open: Region | None = None

    def run(self) -> Outline:
        index = 0
        while index < len(self._lines):
            index = self._step(index)
        return Outline(tuple(self._fences), tuple(self._regions))

    def _step(self, index: int) -> int:
        """Handle the line at `index`, which is outside every fence; returns the index to go on with."""
        line = self._lines[index]
        tag = _TAG.match(line)
        if tag is not None:
            if tag.group("slash"):
                if self._open is not None:
                    self._open.complete = True
                self._open = None
            else:
                self._open = Region()
                self._regions.append(self._open)
            # The rest of the line (a fence, another tag) is read as a line of its own.
            self._lines[index] = tag.group("rest")
            return index
        opener = _OPENER.match(line)
        return index + 1 if opener is None else self._fence(index, opener)

    def _fence(self, index: int, opener: re.Match[str]) -> int:
        run = opener.group("ticks") or opener.group("tildes")
        info = (opener.group("info") or opener.group("tilde_info") or "").strip()
        end = self._closing_line(index, run)
        if end is None:
            self._add(Fence(info, "\n".join(self._lines[index + 1 :]), closed=False))
            return len(self._lines)
        self._add(Fence(info, "\n".join(self._lines[index + 1 : end]), closed=True))
        closer = _CLOSER.match(self._lines[end])
        # What follows on the closing line can only be the closing tag.
        self._lines[end] = (closer.group("rest") or "") if closer is not None else ""
        return end

    def _closing_line(self, index: int, run: str) -> int | None:
        tracker = LiteralTracker(self._language)
        first: int | None = None
        fed = index + 1
        for candidate in range(index + 1, len(self._lines)):
            if not self._closes(candidate, run):
                continue
            if first is None:
                first = candidate
            if not self._literals_help or self._ends_the_answer(candidate):
                return candidate
            tracker.feed("".join(f"{line}\n" for line in self._lines[fed:candidate]))
            fed = candidate
            if not tracker.inside:
                return candidate
        if first is not None:
            # A literal that never ends: the tracker misread this text, and would only cost time from here on.
            self._literals_help = False
        return first

    def _closes(self, candidate: int, run: str) -> bool:
        match = _CLOSER.match(self._lines[candidate])
        return match is not None and match.group("run")[0] == run[0] and len(match.group("run")) >= len(run)

    def _ends_the_answer(self, candidate: int) -> bool:
        """True for a closing fence with only `</solution>` and the summary (or the end of the text) behind it."""
        closer = _CLOSER.match(self._lines[candidate])
        rest = closer.group("rest") if closer is not None else None
        at = candidate
        if rest is None:
            at = self._next_text(candidate + 1)
            if at >= len(self._lines):
                return True
            rest = self._lines[at]
        match = _AFTER_SOLUTION.match(rest)
        if match is None:
            return False
        tail = match.group("rest")
        if not tail.strip():
            at = self._next_text(at + 1)
            if at >= len(self._lines):
                return True
            tail = self._lines[at]
        return _SUMMARY.match(tail) is not None

    def _next_text(self, index: int) -> int:
        while index < len(self._lines) and not self._lines[index].strip():
            index += 1
        return index

    def _add(self, fence: Fence) -> None:
        self._fences.append(fence)
        if self._open is not None:
            self._open.fences.append(fence)
