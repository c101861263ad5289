"""The rules of the packing problem: reads what a program printed and says whether it is a packing, and how dense.

It looks at nothing a candidate controls except its standard output, and every sentence it produces is its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from judges.polyomino.pieces import Piece

MAX_SIDE = 4 * 10**12
MAX_SHIFT = 4 * 10**12
_INT64 = 1 << 63
_SEPARATORS = re.compile("[ \t\r\n]+")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
MESSAGE_CHARS = 200
Placement = tuple[int, int, int, int]
# The numbers of a placement: name, least and greatest value.
_MOVE = (("X", -MAX_SHIFT, MAX_SHIFT), ("Y", -MAX_SHIFT, MAX_SHIFT), ("R", 0, 3), ("F", 0, 1))
# A cell's new column and row from its x and y: first the reflection (x becomes -x), then as many clockwise quarter
# turns as the index says, each of which takes (x, y) to (y, -x).
_TURNS = (
    ((1, 0, 0, 1), (0, 1, -1, 0), (-1, 0, 0, -1), (0, -1, 1, 0)),
    ((-1, 0, 0, 1), (0, 1, 1, 0), (1, 0, 0, -1), (0, -1, -1, 0)),
)


@dataclass(frozen=True)
class Case:
    """One input, parsed: its pieces in the order in which placements are printed."""

    pieces: tuple[Piece, ...]
    cells: int


@dataclass(frozen=True)
class CheckResult:
    """The verdict on one output.  `ratio` is filled cells over rectangle area, unrounded, and 0.0 when invalid."""

    valid: bool
    ratio: float
    message: str


@dataclass(frozen=True)
class Layout:
    """A valid packing: the rectangle, and each piece's cells as (column, row) in it."""

    width: int
    height: int
    pieces: tuple[Piece, ...]


class _Rejected(Exception):
    """The output breaks a rule; carries the sentence to show."""


def parse_case(data: bytes) -> Case:
    """Read one input file; it is ours, so it is trusted to be well formed."""
    numbers = [int(word) for word in data.split()]
    position = 1
    pieces: list[Piece] = []
    for _ in range(numbers[0]):
        size = numbers[position]
        flat = numbers[position + 1 : position + 1 + 2 * size]
        pieces.append(tuple(zip(flat[::2], flat[1::2], strict=True)))
        position += 1 + 2 * size
    return Case(pieces=tuple(pieces), cells=sum(len(piece) for piece in pieces))


def check_output(case: Case, output: bytes) -> CheckResult:
    """Judge one output: `W H`, then `X Y R F` for every piece, separated by blanks, tabs and line ends only."""
    words = [word for word in _SEPARATORS.split(output.decode("utf-8", errors="replace")) if word]
    try:
        ratio = _check(case, words)
    except _Rejected as rejected:
        return CheckResult(valid=False, ratio=0.0, message=str(rejected)[:MESSAGE_CHARS])
    return CheckResult(valid=True, ratio=ratio, message="")


def read_layout(case: Case, output: bytes) -> Layout:
    """Where a valid output puts every piece, for drawing it; raises ValueError for one that `check_output` rejects."""
    checked = check_output(case, output)
    if not checked.valid:
        raise ValueError(checked.message)
    width, height, *moves = (int(word) for word in output.split())
    placed = (
        tuple(_cells(piece, placement)) for piece, placement in zip(case.pieces, _placements(moves), strict=True)
    )
    return Layout(width=width, height=height, pieces=tuple(placed))


def _check(case: Case, words: Sequence[str]) -> float:
    numbers = _sound_numbers(words, len(case.pieces))
    if numbers is None:
        numbers = _numbers_one_by_one(words, len(case.pieces))
    width, height, *moves = numbers
    area = width * height
    if area >= _INT64:
        raise _Rejected(f"W * H = {area} does not fit 64 bits")
    _place(case, _placements(moves), width, height)
    return case.cells / area


def _sound_numbers(words: Sequence[str], pieces: int) -> list[int] | None:
    """All numbers of an output in which nothing is wrong with any of them; None for every other output.

    Most outputs are of this kind, and this is several times as fast as one by one.
    """
    if len(words) != 2 + 4 * pieces or "-0" in words or not all(map(_INTEGER.fullmatch, words)):
        return None
    numbers = list(map(int, words))
    ranges = [(numbers[:2], 1, MAX_SIDE)]
    ranges += [(numbers[2 + place :: 4], low, high) for place, (_, low, high) in enumerate(_MOVE)]
    sound = all(low <= min(values) and max(values) <= high for values, low, high in ranges)
    return numbers if sound else None


def _numbers_one_by_one(words: Sequence[str], pieces: int) -> list[int]:
    """The same numbers, or `_Rejected` with what is wrong with the first one that is not sound."""
    stream = iter(words)
    numbers = [_number(stream, "W", 1, MAX_SIDE), _number(stream, "H", 1, MAX_SIDE)]
    for index in range(1, pieces + 1):
        numbers += [_number(stream, name, low, high, index) for name, low, high in _MOVE]
    surplus = next(stream, None)
    if surplus is not None:
        raise _Rejected(f"{_shown(surplus)} follows the last placement; nothing may")
    return numbers


def _placements(moves: Sequence[int]) -> list[Placement]:
    """The numbers after `W H`, piece by piece."""
    return list(zip(moves[::4], moves[1::4], moves[2::4], moves[3::4], strict=True))


def _cells(piece: Piece, placement: Placement) -> list[tuple[int, int]]:
    """Where a placement puts a piece's cells, as (column, row)."""
    shift_x, shift_y, turns, flip = placement
    xx, xy, yx, yy = _TURNS[flip][turns]
    return [(xx * x + xy * y + shift_x, yx * x + yy * y + shift_y) for x, y in piece]


def _place(case: Case, placements: Sequence[Placement], width: int, height: int) -> None:
    taken: set[int] = set()
    for index, (piece, placement) in enumerate(zip(case.pieces, placements, strict=True), start=1):
        for column, row in _cells(piece, placement):
            if not (0 <= column < width and 0 <= row < height):
                raise _Rejected(f"piece {index} covers ({column}, {row}), outside the {width} x {height} rectangle")
            # One integer per cell is cheaper than a pair; rows never overlap because row < height.
            cell = column * height + row
            if cell in taken:
                raise _Rejected(f"piece {index} overlaps another piece at ({column}, {row})")
            taken.add(cell)


def _number(words: Iterator[str], name: str, low: int, high: int, piece: int = 0) -> int:
    """The next integer, canonical decimal and in range; raises `_Rejected` naming what was expected where."""
    word = next(words, None)
    if word is not None and _INTEGER.fullmatch(word) and word != "-0" and low <= (value := int(word)) <= high:
        return value
    place = f"{name} of piece {piece}" if piece else name
    if word is None:
        raise _Rejected(f"the output ends before {place}")
    if not _INTEGER.fullmatch(word) or word == "-0":
        raise _Rejected(f"{place} is {_shown(word)}, not a plain decimal integer")
    raise _Rejected(f"{place} is {_shown(word)}, outside {low}..{high}")


def _shown(word: str) -> str:
    """A candidate's word, cut short and with everything unprintable escaped."""
    cut = word if len(word) <= 24 else word[:24] + "..."
    return ascii(cut)
