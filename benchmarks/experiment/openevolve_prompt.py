"""Reads the parent program and its fitness out of OpenEvolve's full-rewrite prompt, and writes the answer it expects.

The prompt begins with the parent's fitness; further down, between the line `# Current Program` with a fence and a fence
with the line `# Task`, stands the program.  Other programs stand in between (the best ones, for inspiration) and any
program may hold look-alikes of these lines: a prompt that could be read in two ways is refused, never guessed at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEAD = re.compile(r"\A# Current Program Information\n- Fitness: (?P<fitness>-?\d+\.\d+)\n")
_OPENING = re.compile(r"^# Current Program\n```(?P<language>[^\n`]*)\n", re.MULTILINE)
_CLOSING = re.compile(r"\n```\n\n# Task$", re.MULTILINE)
_FENCE = "```"


class PromptUnreadable(ValueError):
    """A prompt does not hold exactly one parent program with its fitness; the message says what is wrong."""


@dataclass(frozen=True)
class ParentInPrompt:
    """What OpenEvolve wants improved: a program (without white space around it) and its fitness, to four decimals."""

    program: str
    fitness: float


def read_parent(prompt: str, language: str) -> ParentInPrompt:
    """The parent in a user message; `language` is the fence's label.  Raises `PromptUnreadable`."""
    head = _HEAD.match(prompt)
    if head is None:
        raise PromptUnreadable("the prompt does not begin with the fitness of the current program")
    openings = list(_OPENING.finditer(prompt))
    if len(openings) != 1:
        raise PromptUnreadable(f"the prompt has {len(openings)} current programs in a fenced block; one is needed")
    if openings[0]["language"] != language:
        raise PromptUnreadable(f"the current program is labelled {openings[0]['language']!r}, not {language!r}")
    begin = openings[0].end()
    closings = list(_CLOSING.finditer(prompt, begin - 1))
    if len(closings) != 1:
        raise PromptUnreadable(f"the current program ends in {len(closings)} places; one is needed")
    program = prompt[begin : max(begin, closings[0].start())].strip()
    if not program:
        raise PromptUnreadable("the current program is empty")
    return ParentInPrompt(program, float(head["fitness"]))


def can_be_answered(program: str) -> bool:
    """Whether OpenEvolve would read the program back whole: it takes the first fence inside for the end."""
    return _FENCE not in program


def rewrite_answer(program: str, language: str) -> str:
    """The answer that OpenEvolve takes `program` from."""
    return f"{_FENCE}{language}\n{program}\n{_FENCE}"
