"""The packing rules, as a table of crafted outputs."""

from __future__ import annotations

import pytest

from judges.polyomino.checker import MESSAGE_CHARS, Case, check_output, parse_case

# An L of four cells, and a pair given with negative coordinates.
CASE = parse_case(b"2\n4\n0 0\n0 1\n0 2\n1 0\n2\n-1 -1\n0 -1\n")
RING = parse_case(b"1\n8\n0 0\n0 1\n0 2\n1 0\n1 2\n2 0\n2 1\n2 2\n")
GOOD = b"4 3\n0 0 0 0\n3 1 0 0\n"


def test_a_case_is_read_with_its_pieces_in_order() -> None:
    assert Case(pieces=(((0, 0), (0, 1), (0, 2), (1, 0)), ((-1, -1), (0, -1))), cells=6) == CASE


@pytest.mark.parametrize(
    ("output", "ratio"),
    [
        (GOOD, 6 / 12),
        (b"4 3 0 0 0 0 3 1 0 0", 6 / 12),
        (b"4\t3\r\n0 0 0 0\r\n3 1 0 0", 6 / 12),
        (b"\n\n  4   3\n\n0 0 0 0 3 1 0 0\n\n \t", 6 / 12),
        (b"3 3 0 0 0 0 2 3 0 0", 6 / 9),
        # Clockwise turns of the L, and its reflection (x becomes -x) before the turn.
        (b"9 9 0 5 1 0 8 8 0 0", 6 / 81),
        (b"9 9 5 5 2 0 8 8 0 0", 6 / 81),
        (b"9 9 5 5 3 0 8 8 0 0", 6 / 81),
        (b"9 9 5 5 0 1 8 8 0 0", 6 / 81),
        (b"9 9 5 5 1 1 8 8 0 0", 6 / 81),
        (b"4000000000000 3 0 0 0 0 2 3 0 0", 6 / (4 * 10**12 * 3)),
        (b"4000000000000 2000000 0 0 0 0 3 3 0 0", 6 / (4 * 10**12 * 2 * 10**6)),
    ],
)
def test_valid_packings_are_measured(output: bytes, ratio: float) -> None:
    result = check_output(CASE, output)
    assert (result.valid, result.ratio, result.message) == (True, ratio, "")


@pytest.mark.parametrize(
    ("turns", "flip", "cells"),
    [
        (0, 0, {(0, 0), (0, 1), (0, 2), (1, 0)}),
        (1, 0, {(0, 0), (1, 0), (2, 0), (0, -1)}),
        (2, 0, {(0, 0), (0, -1), (0, -2), (-1, 0)}),
        (3, 0, {(0, 0), (-1, 0), (-2, 0), (0, 1)}),
        (0, 1, {(0, 0), (0, 1), (0, 2), (-1, 0)}),
        (1, 1, {(0, 0), (1, 0), (2, 0), (0, 1)}),
    ],
)
def test_reflection_comes_before_the_clockwise_turns(turns: int, flip: int, cells: set[tuple[int, int]]) -> None:
    """A single free cell beside the L shows where the L is: it fits exactly where the L is not."""
    probe = parse_case(b"2\n4\n0 0\n0 1\n0 2\n1 0\n1\n0 0\n")
    for x in range(-3, 4):
        for y in range(-3, 4):
            output = f"9 9 4 4 {turns} {flip} {4 + x} {4 + y} 0 0".encode()
            assert check_output(probe, output).valid is ((x, y) not in cells)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (b"", "the output ends before W"),
        (b"4", "the output ends before H"),
        (b"4 3 0 0 0", "the output ends before F of piece 1"),
        (b"4 3 0 0 0 0 3 1 0", "the output ends before F of piece 2"),
        (GOOD + b"1", "'1' follows the last placement; nothing may"),
        (GOOD + b"x", "'x' follows the last placement; nothing may"),
        (b"0 3 0 0 0 0 3 1 0 0", "W is '0', outside 1..4000000000000"),
        (b"4 -3 0 0 0 0 3 1 0 0", "H is '-3', outside 1..4000000000000"),
        (b"4000000000001 3 0 0 0 0 3 1 0 0", "W is '4000000000001', outside 1..4000000000000"),
        (b"4 3 4000000000001 0 0 0 3 1 0 0", "X of piece 1 is '4000000000001', outside -4000000000000..4000000000000"),
        (b"4 3 0 0 4 0 3 1 0 0", "R of piece 1 is '4', outside 0..3"),
        (b"4 3 0 0 4294967296 0 3 1 0 0", "R of piece 1 is '4294967296', outside 0..3"),
        (b"4 3 0 0 0 2 3 1 0 0", "F of piece 1 is '2', outside 0..1"),
        (b"4 3 0 0 0 0 3 1 -1 0", "R of piece 2 is '-1', outside 0..3"),
        (b"3000000000000 4000000 0 0 0 0 3 3 0 0", "W * H = 12000000000000000000 does not fit 64 bits"),
        (b"4 3 0 0 0 0 1 1 0 0", "piece 2 overlaps another piece at (0, 0)"),
        (b"4 3 0 0 0 0 2 1 0 0", "piece 2 overlaps another piece at (1, 0)"),
        (b"4 3 3 0 0 0 1 1 0 0", "piece 1 covers (4, 0), outside the 4 x 3 rectangle"),
        (b"4 3 0 1 0 0 3 1 0 0", "piece 1 covers (0, 3), outside the 4 x 3 rectangle"),
        (b"4 3 0 0 0 0 0 1 0 0", "piece 2 covers (-1, 0), outside the 4 x 3 rectangle"),
    ],
)
def test_broken_rules_are_named(output: bytes, message: str) -> None:
    result = check_output(CASE, output)
    assert (result.valid, result.ratio, result.message) == (False, 0.0, message)


@pytest.mark.parametrize(
    "word",
    [b"+4", b"04", b"4.0", b"4e0", b"0x4", b"-0", b"-", b"--4", b"4,", b"1_0", b"four", b"\x00", b"4\x00", b"\xd9\xa3",
     b"\xef\xbc\x94", b"\xff", b"nan",
     b"99999999999999999999", b"9223372036854775808", b"9" * 5000, b"4\x0b", b"4\x0c"],
)  # fmt: skip
def test_only_plain_decimal_integers_are_numbers(word: bytes) -> None:
    result = check_output(CASE, word + b" 3 0 0 0 0 3 1 0 0")
    assert not result.valid
    assert result.message.startswith("W is ")
    assert len(result.message) <= MESSAGE_CHARS
    assert result.message.isascii()
    assert result.message.isprintable()


@pytest.mark.parametrize("separator", [b"\x0b", b"\x0c", b"\xc2\xa0", b"\xe2\x80\x83", b"\x1c", b"\x85", b","])
def test_only_blanks_tabs_and_line_ends_separate_numbers(separator: bytes) -> None:
    assert not check_output(CASE, separator.join(GOOD.split())).valid


def test_pieces_with_a_hole_may_hold_others_inside() -> None:
    assert check_output(RING, b"3 3 0 0 0 0").ratio == 8 / 9
    filled = parse_case(b"2\n8\n0 0\n0 1\n0 2\n1 0\n1 2\n2 0\n2 1\n2 2\n1\n5 5\n")
    assert check_output(filled, b"3 3 0 0 0 0 -4 -4 0 0").ratio == 1.0


def test_forged_text_from_the_program_is_never_read_as_a_score() -> None:
    assert not check_output(CASE, b"points 1.0 Ratio: 1.0 RatioUnbounded: 99").valid
