"""A tiny checker and runner for packing programs, written from the problem statement alone.

It exists so that the tests of the executor do not depend on the judge's code: two readings of the same rules that
agree.
"""

from __future__ import annotations

import random
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

Cell = tuple[int, int]
Piece = list[Cell]
_LIMIT = 4 * 10**12
_INTEGER = re.compile(r"0|-?[1-9][0-9]*")


@dataclass(frozen=True)
class Verdict:
    """What one program's answer to one instance is worth."""

    ratio: float
    reason: str

    @property
    def valid(self) -> bool:
        """Whether the answer was a packing at all."""
        return self.reason == "ok"


def read_case(text: str) -> list[Piece]:
    """The pieces of an instance in input order."""
    numbers = iter(map(int, text.split()))
    return [[(next(numbers), next(numbers)) for _ in range(next(numbers))] for _ in range(next(numbers))]


def write_case(pieces: list[Piece]) -> str:
    """An instance's input text."""
    lines = [str(len(pieces))]
    for piece in pieces:
        lines.append(str(len(piece)))
        lines.extend(f"{x} {y}" for x, y in piece)
    return "\n".join(lines) + "\n"


def check(pieces: list[Piece], output: str) -> Verdict:
    """Judge one output against the statement's rules."""
    tokens = [token for token in re.split(r"[ \t\r\n]+", output) if token]
    if any(not _INTEGER.fullmatch(token) for token in tokens):
        return Verdict(0.0, "not an integer")
    numbers = [int(token) for token in tokens]
    if len(numbers) != 2 + 4 * len(pieces):
        return Verdict(0.0, f"{len(numbers)} numbers instead of {2 + 4 * len(pieces)}")
    width, height = numbers[:2]
    if not (1 <= width <= _LIMIT and 1 <= height <= _LIMIT and width * height < 2**63):
        return Verdict(0.0, "size out of range")
    taken: set[Cell] = set()
    for index, piece in enumerate(pieces):
        shift_x, shift_y, turns, mirrored = numbers[2 + 4 * index : 6 + 4 * index]
        if turns not in range(4) or mirrored not in (0, 1) or max(abs(shift_x), abs(shift_y)) > _LIMIT:
            return Verdict(0.0, f"piece {index + 1}: move out of range")
        for x, y in piece:
            if mirrored:
                x = -x
            for _ in range(turns):
                x, y = y, -x
            cell = (x + shift_x, y + shift_y)
            if not (0 <= cell[0] < width and 0 <= cell[1] < height):
                return Verdict(0.0, f"piece {index + 1}: outside the rectangle")
            if cell in taken:
                return Verdict(0.0, f"piece {index + 1}: overlap at {cell}")
            taken.add(cell)
    return Verdict(round(len(taken) / (width * height), 9), "ok")


def make_case(count: int, seed: int) -> list[Piece]:
    """An instance of randomly grown pieces, some holed, some with negative coordinates, mostly large."""
    rng = random.Random(seed)
    pieces: list[Piece] = []
    for _ in range(count):
        size = rng.choice([1, 2, 4, 6, 8, 9, 9, 10, 10, 10, 10, 10])
        origin = (rng.randrange(-5, 6), rng.randrange(-5, 6))
        cells = {origin}
        while len(cells) < size:
            x, y = rng.choice(sorted(cells))
            dx, dy = rng.choice([(1, 0), (-1, 0), (0, 1), (0, -1)])
            cells.add((x + dx, y + dy))
        pieces.append(rng.sample(sorted(cells), size))
    return pieces


def compile_program(source: str, directory: Path, name: str = "program") -> Path:
    """Compile one C++ source as the judge does; raises AssertionError with the compiler's words when it fails."""
    directory.mkdir(parents=True, exist_ok=True)
    source_path = directory / f"{name}.cpp"
    source_path.write_text(source, encoding="utf-8")
    binary = directory / name
    command = ["g++", "-O2", "-pipe", "-std=gnu++17", "-Wall", "-Wextra", "-o", str(binary), str(source_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{name} does not compile:\n{done.stderr[:3000]}"
    assert not done.stderr.strip(), f"{name} compiles with warnings:\n{done.stderr[:3000]}"
    return binary


def run_program(binary: Path, case_text: str, *, timeout_s: float = 20.0) -> str:
    """The program's output; raises AssertionError on a crash (a hang is cut by the generous wall limit)."""
    command = [str(binary)]
    done = subprocess.run(command, input=case_text, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, f"{binary.name} ended with {done.returncode}: {done.stderr[:500]}"
    return done.stdout
