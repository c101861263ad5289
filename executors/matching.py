"""Which mechanisms a piece of guidance asks for.

Plain keyword matching: names and usual phrases, any case, whole words, hyphen or space.  The first two mechanisms that
are named count, in order of appearance; a phrase inside a longer phrase does not count, nor does one that the guidance
speaks against ("avoid shelves", "replace the single row").
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from executors.catalogue import Catalogue, Mechanism, normal_wording

MAX_MECHANISMS = 2
MAX_GUIDANCE_CHARS = 20_000

# Words that turn the mechanism after them into something not wanted, when they stand close before it.
_AGAINST = re.compile(
    r"not|no|never|avoid(ing)?|without|remov(e|ing)|replac(e|ing)|abandon(ing)?|stop(ping)?|skip(ping)?|than|do(es)?n'?t"
)
_INSTEAD = re.compile(r"\binstead\s+of\b", re.IGNORECASE)
_WORDS_BACK = 3
# "Use" begins a new clause ("instead of shelves use ..."), but not in "don't use ...".
_CLAUSE_END = re.compile(
    r"[.,;:!?\n]|\b(?:by|with|but|and)\b|(?<!n't )(?<!not )(?<!never )\b(?:use|using)\b", re.IGNORECASE
)


@dataclass(frozen=True)
class Refusal:
    """A mechanism that was named but could not be applied together with one named before it."""

    mechanism: Mechanism
    because_of: Mechanism


@dataclass(frozen=True)
class Match:
    """What the guidance asked for, in order of appearance."""

    applied: tuple[Mechanism, ...] = ()
    refused: tuple[Refusal, ...] = ()


@dataclass(frozen=True)
class _Hit:
    start: int
    end: int
    mechanism: Mechanism


class Matcher:
    """Finds a catalogue's mechanisms in text; compiled once, safe to share."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._patterns = [
            (_pattern(wording), mechanism) for mechanism in catalogue.data.mechanisms for wording in mechanism.wordings
        ]

    def match(self, guidance: str) -> Match:
        """The first one or two mechanisms that the guidance names, and those that their conflicts ruled out."""
        text = guidance[:MAX_GUIDANCE_CHARS]
        named: list[Mechanism] = []
        for hit in self._hits(text):
            if hit.mechanism not in named and not _spoken_against(text, hit.start):
                named.append(hit.mechanism)
        applied: list[Mechanism] = []
        refused: list[Refusal] = []
        for mechanism in named[:MAX_MECHANISMS]:
            rival = next((other for other in applied if self._conflict(mechanism, other)), None)
            if rival is None:
                applied.append(mechanism)
            else:
                refused.append(Refusal(mechanism, rival))
        return Match(tuple(applied), tuple(refused))

    def _conflict(self, one: Mechanism, other: Mechanism) -> bool:
        if other.id in one.conflicts or one.id in other.conflicts:
            return True
        if any(other.sets.get(key, value) != value for key, value in one.sets.items()):
            return True
        return self._catalogue.withholds(one, other) or self._catalogue.withholds(other, one)

    def _hits(self, text: str) -> list[_Hit]:
        """Matches in order of appearance; where several overlap, the one that starts first, then the longest."""
        found = [
            _Hit(match.start(), match.end(), mechanism)
            for pattern, mechanism in self._patterns
            for match in pattern.finditer(text)
        ]
        found.sort(key=lambda hit: (hit.start, -hit.end, hit.mechanism.id))
        kept: list[_Hit] = []
        for hit in found:
            if not kept or hit.start >= kept[-1].end:
                kept.append(hit)
        return kept


def _pattern(wording: str) -> re.Pattern[str]:
    """Whole words, hyphen or space between them, an optional plural at the end."""
    words = [re.escape(word) for word in normal_wording(wording).split(" ")]
    gap = r"(?:\s+|\s*[-\u2010-\u2015]\s*)"
    return re.compile(rf"(?<!\w){gap.join(words)}(?:s|es)?(?!\w)", re.IGNORECASE)


def _spoken_against(text: str, start: int) -> bool:
    """Whether the words just before `start`, within the same clause, say that the mechanism is not wanted."""
    before = text[max(0, start - 200) : start].replace("\u2019", "'")
    clause = _CLAUSE_END.split(before)[-1]
    words = re.findall(r"[\w']+", clause.casefold())
    return _INSTEAD.search(clause) is not None or any(_AGAINST.fullmatch(word) for word in words[-_WORDS_BACK:])
