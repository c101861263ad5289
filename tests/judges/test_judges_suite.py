"""The case sets: reproducible, verified, and with the statistics they claim."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from judges.errors import SuiteError
from judges.polyomino.checker import check_output, parse_case
from judges.polyomino.generator import (
    CASE_COUNT,
    LOG_UNIFORM_CASES,
    OWN_PIECE_COUNTS,
    OWN_SHA256,
    SplitMix64,
    case_generator,
    cases_sha256,
    draw_piece_count,
)
from judges.polyomino.judge import mean_score
from judges.polyomino.pieces import free_polyominoes, has_hole, normalise, orientations, piece_pool
from judges.polyomino.suite import Suite, load_official_suite, load_own_suite


def test_the_random_generator_gives_the_published_splitmix64_numbers() -> None:
    generator = SplitMix64(1234567)
    assert [generator.next_u64() for _ in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert all(0 <= SplitMix64(seed).below(7) < 7 for seed in range(100))
    assert all(0.0 <= SplitMix64(seed).unit() < 1.0 for seed in range(100))


def test_free_polyominoes_are_counted_as_in_the_literature() -> None:
    sizes = free_polyominoes(8)
    assert [len(size) for size in sizes] == [1, 1, 2, 5, 12, 35, 108, 369]
    assert [sum(not has_hole(piece) for piece in size) for size in sizes] == [1, 1, 2, 5, 12, 35, 107, 363]


def test_a_hole_is_found_only_where_the_outside_cannot_reach() -> None:
    ring = tuple((x, y) for x in range(3) for y in range(3) if (x, y) != (1, 1))
    assert has_hole(ring)
    # A missing corner opens nothing, because cells connect along edges only; a missing edge does.
    assert has_hole(tuple(cell for cell in ring if cell != (0, 0)))
    assert not has_hole(tuple(cell for cell in ring if cell != (0, 1)))


def test_every_piece_is_the_smallest_of_its_orientations() -> None:
    pool = piece_pool(7)
    assert all(piece == min(orientations(piece)) == normalise(piece) for piece in pool)
    assert len(set(pool)) == len(pool)


def test_the_own_set_hashes_to_the_pinned_value(own_suite: Suite) -> None:
    assert len(own_suite.inputs) == CASE_COUNT
    assert cases_sha256(own_suite.inputs) == OWN_SHA256 == own_suite.sha256
    assert own_suite.label == "own"


def test_the_own_set_has_the_distribution_of_the_official_one(own_suite: Suite) -> None:
    assert tuple(draw_piece_count(case, case_generator(case)) for case in range(1, CASE_COUNT + 1)) == OWN_PIECE_COUNTS
    cases = [parse_case(data) for data in own_suite.inputs]
    assert tuple(len(case.pieces) for case in cases) == OWN_PIECE_COUNTS
    large, small = OWN_PIECE_COUNTS[:LOG_UNIFORM_CASES], OWN_PIECE_COUNTS[LOG_UNIFORM_CASES:]
    assert abs(sum(map(math.log10, large)) / len(large) - 2.974) < 0.01
    assert abs(sum(small) / len(small) - 148.5) < 0.5
    assert abs(sum(OWN_PIECE_COUNTS) - 35310) < 400
    sizes = [len(piece) for case in cases for piece in case.pieces]
    assert abs(sum(sizes) / len(sizes) - 9.583) < 0.02
    assert abs(sizes.count(10) / len(sizes) - 0.712) < 0.01


def test_quick_cases_are_two_large_and_six_small(own_suite: Suite) -> None:
    counts = [OWN_PIECE_COUNTS[number - 1] for number in own_suite.case_numbers("0-quick")]
    assert len(counts) == 8
    assert all(500 <= count <= 1100 for count in counts[:2])
    assert all(100 <= count <= 200 for count in counts[2:])
    assert own_suite.case_numbers("0") == tuple(range(1, 71))


def test_a_damaged_cache_is_replaced(own_suite: Suite, tmp_path: Path) -> None:
    cache = tmp_path / "cases"
    cache.mkdir()

    def generate() -> list[bytes]:
        return list(own_suite.inputs)

    for number, data in enumerate(own_suite.inputs, start=1):
        (cache / f"{number}.in").write_bytes(data if number != 30 else data[:-1])
    assert load_own_suite(cache, generate).inputs == own_suite.inputs
    assert (cache / "30.in").read_bytes() == own_suite.inputs[29]
    (cache / "1.in").unlink()
    assert load_own_suite(cache, generate).inputs == own_suite.inputs
    assert [path.name for path in tmp_path.iterdir()] == ["cases"]


def test_another_generator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="generator was changed"):
        load_own_suite(tmp_path / "cases", lambda: [b"1\n1\n0 0\n"] * CASE_COUNT)
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_cache_is_named(own_suite: Suite, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SuiteError, match="cannot store the case set"):
        load_own_suite(tmp_path / "file/cases", lambda: list(own_suite.inputs))


def test_a_directory_without_official_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="no FrontierCS data"):
        load_official_suite(tmp_path)


def test_changed_official_data_is_refused_unless_accepted(own_suite: Suite, tmp_path: Path) -> None:
    testdata = tmp_path / "algorithmic/problems/0/testdata"
    testdata.mkdir(parents=True)
    for number, data in enumerate(own_suite.inputs, start=1):
        (testdata / f"{number}.in").write_bytes(data)
    with pytest.raises(SuiteError, match="--accept-changed-data"):
        load_official_suite(tmp_path)
    changed = load_official_suite(tmp_path, accept_changed=True)
    assert (changed.label, changed.verified) == ("frontiercs", False)
    shutil.rmtree(testdata)
    testdata.mkdir()
    with pytest.raises(SuiteError, match=r"1\.in to 70\.in"):
        load_official_suite(tmp_path, accept_changed=True)


def row_packing(data: bytes) -> bytes:
    """Every piece's bounding box beside the last one, unturned."""
    left, height, lines = 0, 0, []
    for piece in parse_case(data).pieces:
        xs, ys = [x for x, _ in piece], [y for _, y in piece]
        lines.append(f"{left - min(xs)} {-min(ys)} 0 0")
        left += max(xs) - min(xs) + 1
        height = max(height, max(ys) - min(ys) + 1)
    return "\n".join([f"{left} {height}", *lines]).encode()


def test_the_row_packing_scores_the_published_number_on_the_official_data(official_dir: Path) -> None:
    suite = load_official_suite(official_dir)
    assert (suite.label, suite.verified) == ("frontiercs", True)
    results = [check_output(parse_case(data), row_packing(data)) for data in suite.inputs]
    assert all(result.valid for result in results)
    # All 17 digits: rounding to nine decimals and the order of additions both matter.
    assert mean_score([round(result.ratio, 9) for result in results], 70) == 27.810517627142843
    counts = [len(parse_case(suite.inputs[number - 1]).pieces) for number in suite.case_numbers("0-quick")]
    assert all(500 <= count <= 1100 for count in counts[:2])
    assert all(100 <= count <= 200 for count in counts[2:])


def test_missing_cases_count_as_zero_in_the_mean() -> None:
    assert mean_score([0.5, 1.0], 4) == 37.5
    assert mean_score([], 8) == 0.0
