"""What the checks of recorded results are made of; needs nothing but Python."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SAME = 1e-9
"""Largest relative difference of two numbers that stand for the same measurement."""


class ResultsWrong(Exception):
    """A recorded number contradicts another one; the message names both."""


def require(condition: bool, message: str) -> None:
    """Raise `ResultsWrong` unless the condition holds."""
    if not condition:
        raise ResultsWrong(message)


def require_same(name: str, first: float, second: float, *, tolerance: float = SAME) -> None:
    """Two records of one number must agree."""
    require(math.isclose(first, second, rel_tol=tolerance), f"{name}: {first!r} is not {second!r}")


def require_monotone(name: str, values: Sequence[float], direction: str) -> None:
    """A best-so-far series never gets worse."""
    for number, (before, after) in enumerate(itertools.pairwise(values)):
        worse = after < before if direction == "max" else after > before
        require(not worse, f"{name}: the best so far gets worse after row {number} ({before!r} -> {after!r})")


def require_numbered(name: str, rows: Sequence[dict[str, str]], column: str, count: int) -> None:
    """Rows are numbered 0..count-1 without a gap."""
    found = [row[column] for row in rows]
    require(found == [str(n) for n in range(count)], f"{name}: {column} is {found}, 0..{count - 1} is needed")


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file with a header."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_object(path: Path) -> dict[str, Any]:
    """One JSON object."""
    value = json.loads(path.read_text(encoding="utf-8"))
    require(isinstance(value, dict), f"{path.name} is not a JSON object")
    return dict(value)
