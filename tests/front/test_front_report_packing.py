"""The drawing of a packing: what the judge's checker accepts is what is drawn, and what prevents it is a sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from front_report import archive_of, change, report_on
from front_state import searched

from guidance_ttt.report.facts import RunFacts, read_facts
from guidance_ttt.report.packing import COLOURS, MIN_BAND, CannotDraw, Drawing, Packed, draw_packing, to_paths
from harness.grid import Grid
from harness.storage import write_json
from judges.polyomino.checker import Layout, check_output, parse_case, read_layout
from judges.polyomino.generator import generate_case
from judges.polyomino.pieces import piece_pool
from judges.polyomino.suite import OWN_LABEL, Suite

SEED = Path(__file__).resolve().parents[2] / "harbor" / "polyomino_packing" / "solution" / "seed.cpp"
CASE = parse_case(b"3\n1\n0 0\n2\n0 0\n1 0\n3\n0 0\n1 0\n1 1\n")
"""One cell, two in a row, and three in a corner."""
VALID = b"3 2\n0 1 0 0\n2 0 0 0\n0 0 0 0\n"


def squares(packed: Packed) -> list[tuple[int, int, int]]:
    """Colour, column and row of every cell that is drawn."""
    return [
        (colour, int(x), int(y))
        for colour, fill in enumerate(packed.fills)
        for x, y in re.findall(r"M(\d+) (\d+)h1v1h-1z", fill)
    ]


def test_a_layout_is_what_the_checker_accepts() -> None:
    assert not check_output(CASE, VALID).valid  # the second piece leaves the rectangle
    with pytest.raises(ValueError, match="piece 2 covers"):
        read_layout(CASE, VALID)
    good = b"4 2\n0 1 0 0\n2 0 0 0\n0 0 0 0\n"
    assert check_output(CASE, good).valid
    layout = read_layout(CASE, good)
    assert (layout.width, layout.height) == (4, 2)
    assert layout.pieces == (((0, 1),), ((2, 0), (3, 0)), ((0, 0), (1, 0), (1, 1)))


def test_turned_and_mirrored_pieces_lie_where_the_checker_puts_them() -> None:
    for turns in range(4):
        for flip in range(2):
            output = f"9 9\n8 8 0 0\n6 0 0 0\n4 4 {turns} {flip}\n".encode()
            assert check_output(CASE, output).valid
            corner = read_layout(CASE, output).pieces[2]
            assert len(set(corner)) == 3
            assert (4, 4) in corner


def test_every_cell_is_drawn_once_and_neighbours_differ_in_colour() -> None:
    pieces = tuple(((x, y), (x + 1, y)) for x in range(0, 20, 2) for y in range(12))
    packed = to_paths(Layout(20, 12, pieces), 48)
    drawn = squares(packed)
    assert len(drawn) == len({cell[1:] for cell in drawn}) == 240
    assert packed.density == 100
    assert packed.outline.count("M") == 13 * 20 + 11 * 12  # every border once, none inside a piece
    colours = {(x, y): colour for colour, x, y in drawn}
    assert set(colours.values()) <= set(range(COLOURS))
    for piece in pieces:
        own = {colours[x, 11 - y] for x, y in piece}
        assert len(own) == 1
        around = {(x + dx, 11 - y + dy) for x, y in piece for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1))}
        assert not own & {colours[cell] for cell in around - {(x, 11 - y) for x, y in piece} if cell in colours}


def test_a_high_packing_lies_and_a_long_one_is_broken_into_bands() -> None:
    column = tuple(((0, y),) for y in range(100))
    packed = to_paths(Layout(2, 100, column), 48)
    assert (packed.width, packed.height, packed.bands) == (100, 2, (48, 48, 4))
    assert packed.canvas == (48, 8)
    assert packed.boards == [(0, 48), (3, 48), (6, 4)]
    rows = {top for top, _ in packed.boards} | {top + 1 for top, _ in packed.boards}
    assert len(squares(packed)) == 100
    assert all(y in rows and x < 48 for _, x, y in squares(packed))
    assert packed.density == 50
    small = to_paths(Layout(3, 2, (((0, 0),),)), 48)
    assert (small.canvas, small.bands) == ((48, 2), (3,))  # the same scale as a wide one beside it


# --- running programs -------------------------------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state of the packing task whose seed and best program are the task's real seed, over small cases."""
    pool = piece_pool(4)
    suite = Suite(OWN_LABEL, "f" * 64, tuple(generate_case(number, pool) for number in range(1, 71)))
    monkeypatch.setattr("judges.polyomino.suite.load_own_suite", lambda cache, generate=None: suite)
    folder = tmp_path / "state"
    searched(folder, steps=1, grid=Grid(1, 2))
    run_dir = folder / "guidance-run"
    change(run_dir / "task-identity.json", task="polyomino_packing", judge_suite="own", search_problem="0")
    seed = SEED.read_text(encoding="utf-8")
    programs(folder, seed, f"// the same once more\n{seed}")
    return folder


def programs(state: Path, seed: str, best: str) -> None:
    archive = archive_of(state)
    winner = archive["nodes"][archive["best_node_id"]]["entry_id"]
    for key, entry in archive["entries"].items():
        entry["solution"] = best if key == winner else seed if entry["timestep"] == 0 else entry["solution"]
    write_json(state / "guidance-run" / "committed-library.json", archive)


def facts_of(state: Path) -> RunFacts:
    return read_facts(state, {})


def test_seed_and_best_program_are_run_on_the_smallest_case_and_drawn(state: Path, tmp_path: Path) -> None:
    drawing = draw_packing(facts_of(state), {})
    assert isinstance(drawing, Drawing)
    assert drawing.pieces == 102
    assert drawing.after is not None
    assert drawing.before == drawing.after
    assert drawing.before.canvas == drawing.after.canvas
    assert drawing.before.breaks >= MIN_BAND
    page = report_on(state, tmp_path / "r.html").page
    assert f"Case {drawing.case} of the judge's set, 102 pieces" in page.text
    fills = {attrs["d"] for tag, attrs in page.tags if tag == "path" and str(attrs.get("class")).startswith("p")}
    assert set(drawing.before.fills) <= fills


@pytest.mark.parametrize(
    ("best", "reason"),
    [
        ("int main() { nonsense", "the best program does not compile here"),
        ("int main() { return 3; }", "the best program did not end well on this case here: Nonzero Exit Status"),
        ("int main() { return 0; }", "the best program printed no valid packing here: the output ends before W"),
        ("int main() { for (;;) {} }", "Time Limit Exceeded"),
    ],
)
def test_a_program_that_cannot_be_drawn_is_a_sentence_in_the_report(
    state: Path, tmp_path: Path, best: str, reason: str
) -> None:
    programs(state, SEED.read_text(encoding="utf-8"), best)
    with pytest.raises(CannotDraw, match=re.escape(reason)):
        draw_packing(facts_of(state), {})


def test_the_reason_stands_in_the_report_as_text(state: Path, tmp_path: Path) -> None:
    programs(state, '#error "<img src=x onerror=alert(1)>"\n', "int main() {}")
    page = report_on(state, tmp_path / "r.html").page
    assert "Not drawn: the seed does not compile here" in page.text
    assert "<img src=x onerror=alert(1)>" in page.text
    assert "img" not in {tag for tag, _ in page.tags}


def test_cases_that_are_not_those_of_the_run_are_not_drawn(state: Path) -> None:
    identity = state / "guidance-run" / "task-identity.json"
    change(identity, judge_suite_sha256="0" * 64)
    with pytest.raises(CannotDraw, match="not those that the run was scored on"):
        draw_packing(facts_of(state), {})
    change(identity, judge_suite="frontiercs")
    with pytest.raises(CannotDraw, match="set FRONTIERCS_DIR to draw one"):
        draw_packing(facts_of(state), {})
    with pytest.raises(CannotDraw, match="no FrontierCS data"):
        draw_packing(facts_of(state), {"FRONTIERCS_DIR": str(state)})
    change(identity, task="toy")
    with pytest.raises(CannotDraw, match="only packings"):
        draw_packing(facts_of(state), {})


def test_damaged_cases_of_a_state_are_left_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    searched(folder, steps=1, grid=Grid(1, 2))
    change(folder / "guidance-run" / "task-identity.json", task="polyomino_packing", judge_suite="own")
    cases = folder / "judge" / "polyomino-cases"
    cases.mkdir(parents=True)
    (cases / "1.in").write_bytes(b"1\n1\n0 0\n")
    with pytest.raises(CannotDraw, match="stored cases are damaged"):
        draw_packing(facts_of(folder), {})
    assert [path.name for path in cases.iterdir()] == ["1.in"]
