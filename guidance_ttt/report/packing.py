"""The packing before and after: the seed and the best program run on one small case, drawn from what they printed.

Programs are compiled and run in the judge's sandbox under the judge's limits, and their output is read by the judge's
own checker; nothing of the rules is repeated here.  What prevents a drawing is a sentence, never an error.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from guidance_ttt.report.facts import RunFacts
from harness.errors import GuidanceError

if TYPE_CHECKING:
    from judges.polyomino.checker import Case, Layout
    from judges.polyomino.suite import Suite
    from judges.sandbox import Sandbox

TASK = "polyomino_packing"
COLOURS = 6
MIN_BAND = 72
BAND_GAP = 1
_CASE_FOLDER = Path("judge") / "polyomino-cases"

Cell = tuple[int, int]


class CannotDraw(GuidanceError):
    """There is no drawing; the message says why."""


@dataclass(frozen=True)
class Packed:
    """One packing: its size in cells, its density in percent, and its drawing in units of cells.

    A long one is drawn as a column of bands, as a line of text is broken: `bands` holds the width of each.  The drawing
    is `breaks` cells wide however wide the packing is, so that drawings beside each other have one scale.
    """

    width: int
    height: int
    density: float
    breaks: int
    bands: tuple[int, ...]
    fills: tuple[str, ...]
    outline: str

    @property
    def canvas(self) -> tuple[int, int]:
        """Width and height of the drawing."""
        return self.breaks, len(self.bands) * (self.height + BAND_GAP) - BAND_GAP

    @property
    def boards(self) -> list[tuple[int, int]]:
        """Where each band's rectangle begins, and how wide it is."""
        return [(index * (self.height + BAND_GAP), width) for index, width in enumerate(self.bands)]


@dataclass(frozen=True)
class Drawing:
    """The same case packed by the seed and by the best program; `after` is None when the seed is the best."""

    case: int
    pieces: int
    before: Packed
    after: Packed | None


def draw_packing(facts: RunFacts, environ: Mapping[str, str]) -> Drawing:
    """Run the programs and draw; raises `CannotDraw` with the reason."""
    if facts.task != TASK:
        raise CannotDraw("only packings are drawn")
    from judges.errors import JudgeError
    from judges.polyomino.checker import parse_case
    from judges.sandbox import open_sandbox

    try:
        suite = _suite(facts, environ)
        number = _smallest_case(suite, facts.problem or "0")
        case = parse_case(suite.inputs[number - 1])
        with open_sandbox() as sandbox:
            programs = {"seed": facts.seed.solution, "best program": facts.best.solution}
            if programs["best program"] == programs["seed"]:
                del programs["best program"]
            with ThreadPoolExecutor(len(programs)) as pool:
                before, *others = pool.map(
                    lambda name: _pack(sandbox, programs[name], case, suite.inputs[number - 1], name), programs
                )
    except JudgeError as error:
        raise CannotDraw(str(error)) from error
    after = others[0] if others else None
    breaks = max(MIN_BAND, max(after.width, after.height) if after is not None else 0)
    return Drawing(
        number, len(case.pieces), to_paths(before, breaks), None if after is None else to_paths(after, breaks)
    )


def _suite(facts: RunFacts, environ: Mapping[str, str]) -> Suite:
    """The cases that this run was scored on; the state directory is only read."""
    from judges.polyomino.suite import OFFICIAL_LABEL, load_official_suite, load_own_suite

    label, digest = (facts.identity.get(key) for key in ("judge_suite", "judge_suite_sha256"))
    if label == OFFICIAL_LABEL:
        official = environ.get("FRONTIERCS_DIR", "").strip()
        if not official:
            raise CannotDraw("the run was scored on the official cases; set FRONTIERCS_DIR to draw one of them")
        suite = load_official_suite(Path(official), accept_changed=True)
    else:
        cases = facts.state_dir / _CASE_FOLDER
        if cases.is_dir():
            suite = load_own_suite(cases, generate=_refuse_to_repair)
        else:
            with tempfile.TemporaryDirectory() as scratch:
                suite = load_own_suite(Path(scratch) / "cases")
    if digest is not None and digest != suite.sha256:
        raise CannotDraw("the cases at hand are not those that the run was scored on")
    return suite


def _refuse_to_repair() -> list[bytes]:
    raise CannotDraw("the judge's stored cases are damaged; its next start makes them anew")


def _smallest_case(suite: Suite, problem: str) -> int:
    """The case with the fewest pieces among those of a problem: the one whose pieces can be seen best."""
    return min(suite.case_numbers(problem), key=lambda number: int(suite.inputs[number - 1].split(maxsplit=1)[0]))


def _pack(sandbox: Sandbox, program: str, case: Case, data: bytes, name: str) -> Layout:
    from judges.polyomino.checker import read_layout
    from judges.polyomino.judge import RUN_LIMITS
    from judges.sandbox import Bind, Command, compile_cpp

    compiled = compile_cpp(sandbox, program.encode("utf-8", "replace"))
    if not compiled.ok:
        raise CannotDraw(f"the {name} does not compile here: {compiled.message[:200]}")
    with sandbox.executable(compiled.binary) as path:
        inside = "/w/program"
        done = sandbox.run(Command(argv=(inside,), limits=RUN_LIMITS, binds=(Bind(path, inside),), stdin=data))
    if not done.accepted:
        raise CannotDraw(f"the {name} did not end well on this case here: {done.status.value}")
    try:
        return read_layout(case, done.stdout)
    except ValueError as error:
        raise CannotDraw(f"the {name} printed no valid packing here: {error}") from error


# --- drawing ----------------------------------------------------------------------------------------------------------


def to_paths(layout: Layout, breaks: int) -> Packed:
    """A packing, lying if it is higher than wide, in bands of `breaks` cells; y grows downwards."""
    lying = layout.height > layout.width
    width, height = (layout.height, layout.width) if lying else (layout.width, layout.height)
    colours = _colours(layout.pieces)
    owner = {
        ((y, x) if lying else (x, height - 1 - y)): index for index, piece in enumerate(layout.pieces) for x, y in piece
    }
    fills: list[list[str]] = [[] for _ in range(COLOURS)]
    edges: list[str] = []
    for (column, row), index in owner.items():
        left, top = column % breaks, row + column // breaks * (height + BAND_GAP)
        fills[colours[index]].append(f"M{left} {top}h1v1h-1z")
        for dx, dy, edge in (
            (1, 0, f"M{left + 1} {top}v1"),
            (-1, 0, f"M{left} {top}v1"),
            (0, 1, f"M{left} {top + 1}h1"),
            (0, -1, f"M{left} {top}h1"),
        ):
            beside = owner.get((column + dx, row + dy))
            if beside is None or beside < index:  # each border between two pieces once
                edges.append(edge)
    filled = len(owner) / (width * height) * 100
    bands = tuple(min(breaks, width - start) for start in range(0, width, breaks))
    return Packed(width, height, filled, breaks, bands, tuple("".join(parts) for parts in fills), "".join(edges))


def _colours(pieces: Iterable[tuple[Cell, ...]]) -> list[int]:
    """A colour for each piece, the least used one that none of its coloured neighbours has."""
    taken: dict[Cell, int] = {}
    used = [0] * COLOURS
    chosen: list[int] = []
    for piece in pieces:
        around = {taken.get((x + dx, y + dy)) for x, y in piece for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1))}
        free = [colour for colour in range(COLOURS) if colour not in around] or list(range(COLOURS))
        colour = min(free, key=lambda item: used[item])
        used[colour] += 1
        chosen.append(colour)
        taken |= dict.fromkeys(piece, colour)
    return chosen
