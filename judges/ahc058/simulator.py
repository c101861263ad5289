"""The rules of the production chain: reads what a program printed, plays it, and says how many apples are left.

It follows the contest's tester to its finer points (what counts as a line, when reading ends, 64-bit arithmetic that
wraps around), and looks at nothing a candidate controls except its standard output.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from judges.ahc058.generator import IDS, INITIAL_APPLES, LEVELS, TURNS

MESSAGE_CHARS = 200
IDLE = -1
_INT64_HALF = 1 << 63
# What Unicode calls white space; Python's own `split` also cuts at four control characters that are none.
_GAP = "\t\v\f\r \u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_WORD = re.compile(f"[^\n{_GAP}]+")
# A line that is neither blank nor a comment.  One expression for it, because a program may print a million others.
_ACTION_LINE = re.compile(f"^[{_GAP}]*([^#\n{_GAP}][^\n]*)", re.MULTILINE)
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}", re.ASCII)


@dataclass(frozen=True)
class Case:
    """One input, parsed: the yields, and the prices by level and ID."""

    yields: tuple[int, ...]
    prices: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Outcome:
    """What one output is worth: the case's score, 0 when it breaks a rule, with the sentence that says which."""

    accepted: bool
    score: int
    apples: int
    message: str


class _Rejected(Exception):
    """The output breaks a rule; carries the sentence to show."""


def parse_case(text: str) -> Case:
    """Read one input; it is ours, so it is trusted to be well formed."""
    rows = [tuple(map(int, line.split())) for line in text.splitlines()]
    return Case(yields=rows[1], prices=tuple(rows[2:]))


def judge_output(case: Case, output: bytes) -> Outcome:
    """Play one output: up to 500 actions, one a line; whatever follows the last one is ignored."""
    try:
        apples = _play(case, _actions(output))
    except _Rejected as rejected:
        return Outcome(accepted=False, score=0, apples=0, message=str(rejected)[:MESSAGE_CHARS])
    if apples <= 0:
        return Outcome(accepted=False, score=0, apples=apples, message=f"{apples} apples are left; none count")
    return Outcome(accepted=True, score=case_score(apples), apples=apples, message="")


def case_score(apples: int) -> int:
    """100,000 times the binary logarithm, to the nearest integer (halves up, as no logarithm here is negative)."""
    return math.floor(100_000 * math.log2(float(apples)) + 0.5)


def _actions(output: bytes) -> Iterator[tuple[int, int]]:
    """The actions as (level, ID), with (-1, -1) for an idle turn; raises `_Rejected` when there are too few."""
    try:
        text = output.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _Rejected(f"the output is not UTF-8 (byte {error.start})") from None
    found = 0
    for line in _ACTION_LINE.finditer(text):
        found += 1
        # More than two words are wrong, however many there are.
        yield _action([word[0] for word in islice(_WORD.finditer(line[1]), 3)], found)
        if found == TURNS:
            return
    raise _Rejected(f"the output ends after {found} of {TURNS} actions")


def _action(words: list[str], number: int) -> tuple[int, int]:
    level = _number(words[0], f"the level of action {number}", IDLE, LEVELS - 1)
    wanted = 1 if level == IDLE else 2
    if len(words) < wanted:
        raise _Rejected(f"action {number} names a level but no ID")
    if len(words) > wanted:
        raise _Rejected(f"action {number} is followed by {_shown(words[wanted])} on its line; nothing may")
    if level == IDLE:
        return IDLE, IDLE
    return level, _number(words[1], f"the ID of action {number}", 0, IDS - 1)


def _number(word: str, place: str, low: int, high: int) -> int:
    if not _INTEGER.fullmatch(word):
        raise _Rejected(f"{place} is {_shown(word)}, not an integer")
    value = int(word)
    if not low <= value <= high:
        raise _Rejected(f"{place} is {_shown(word)}, outside {low}..{high}")
    return value


def _play(case: Case, actions: Iterator[tuple[int, int]]) -> int:
    """Apples after the last turn."""
    apples = INITIAL_APPLES
    machines = [[1] * LEVELS for _ in range(IDS)]
    powers = [[0] * LEVELS for _ in range(IDS)]
    # Most programs use few IDs; those without any power change nothing.
    active: list[int] = []
    for turn, (level, machine) in enumerate(actions, start=1):
        if level != IDLE:
            price = case.prices[level][machine] * (powers[machine][level] + 1)
            if price > apples:
                raise _Rejected(f"turn {turn}: upgrade {level} {machine} costs {price}, but there are {apples} apples")
            apples -= price
            powers[machine][level] += 1
            if machine not in active:
                active.append(machine)
        for machine in active:
            count, power = machines[machine], powers[machine]
            apples += case.yields[machine] * count[0] * power[0]
            # From the lowest level up, so that what a level makes is used from the next turn on.
            for lower in range(LEVELS - 1):
                count[lower] += count[lower + 1] * power[lower + 1]
        # Machines stay far below 64 bits: 500 purchases on three levels make less than (500 / 3)^3 * 500^3 / 6 of them.
        apples = _wrapped(apples)
    return apples


def _wrapped(value: int) -> int:
    """The value in signed 64-bit arithmetic that wraps around, as the contest's tester computes."""
    return (value + _INT64_HALF) % (2 * _INT64_HALF) - _INT64_HALF


def _shown(word: str) -> str:
    """A candidate's word, cut short and with everything unprintable escaped."""
    cut = word if len(word) <= 24 else word[:24] + "..."
    return ascii(cut)
