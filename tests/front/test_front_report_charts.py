"""The geometry of the report's charts: scales, ticks and paths."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guidance_ttt.report.charts import (
    LABEL_HEIGHT,
    MARGIN_LEFT,
    MARGIN_TOP,
    Bars,
    Dots,
    Figure,
    Line,
    Marker,
    Rule,
    Scale,
    even_ticks,
    lay_out,
    log_ticks,
    tick_text,
)
from guidance_ttt.report.words import Excerpt, clock, duration, score_text, short, signed

WIDTH, HEIGHT = 400, 200
SIZES = st.floats(min_value=-1e12, max_value=1e12, allow_nan=False)


def numbers(path: str) -> list[float]:
    return [float(text) for text in re.findall(r"-?\d+(?:\.\d+)?", path)]


def figure(*points: tuple[float, float], **more: object) -> Figure:
    return Figure("t", "x", "y", lines=[Line("best", points)], **more)  # type: ignore[arg-type]


def test_a_scale_maps_its_ends_to_the_ends_of_the_canvas() -> None:
    scale = Scale(10, 20, 50, 250)
    assert [scale(value) for value in (10, 15, 20)] == [50, 150, 250]
    log = Scale(1, 100, 200, 0, log=True)
    assert [log(value) for value in (1, 10, 100)] == [200, 100, 0]


@given(SIZES, SIZES)
def test_ticks_lie_within_the_range_and_are_few(first: float, second: float) -> None:
    low, high = min(first, second), max(first, second)
    if high - low <= max(abs(low), abs(high)) * 1e-6 or high - low < 1e-9:
        return
    ticks = even_ticks(low, high, 5)
    assert 2 <= len(ticks) <= 12
    slack = (high - low) * 1e-6
    assert all(low - slack <= tick <= high + slack for tick in ticks)
    steps = {round((b - a) / (high - low), 6) for a, b in pairwise(ticks)}
    assert len(steps) <= 2  # equal up to rounding


def test_whole_ticks_are_whole_numbers_also_on_a_short_axis() -> None:
    assert even_ticks(0.4, 3.6, 6, whole=True) == [1, 2, 3]
    assert all(tick == int(tick) for tick in even_ticks(0.4, 31.6, 7, whole=True))


@given(st.floats(min_value=1e-6, max_value=1e6), st.floats(min_value=1.5, max_value=1e9))
def test_logarithmic_ticks_lie_within_the_range(low: float, ratio: float) -> None:
    ticks = log_ticks(low, low * ratio, 5)
    assert all(low * 0.99 <= tick <= low * ratio * 1.01 for tick in ticks)
    assert len(ticks) <= 7


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (12500, "12,500"),
        (3e6, "3M"),
        (2e-7, "2e-7"),
        (-1500, "-1,500"),
        (850082731, "850.083M"),
    ],
)
def test_tick_labels_are_short(value: float, text: str) -> None:
    assert tick_text(value) == text


@given(st.lists(st.tuples(SIZES, SIZES), min_size=2, max_size=30))
def test_every_point_lies_on_the_canvas(points: list[tuple[float, float]]) -> None:
    drawn = lay_out(Figure("t", "x", "y", lines=[Line("a", points)], dots=[Dots("b", points)]), WIDTH, HEIGHT)
    path = numbers(drawn.lines[0].d)
    assert all(MARGIN_LEFT - 0.1 <= x <= WIDTH for x in path[0::2])
    assert all(MARGIN_TOP - 0.1 <= y <= HEIGHT for y in path[1::2])


def test_a_step_line_holds_its_value_until_the_next_point() -> None:
    drawn = lay_out(Figure("t", "x", "y", lines=[Line("best", [(0, 1), (4, 3)], steps=True)]), WIDTH, HEIGHT)
    assert re.fullmatch(r"M52 [\d.]+H[\d.]+V[\d.]+", drawn.lines[0].d)


def test_one_value_and_equal_values_are_drawn_and_nothing_is_no_figure() -> None:
    assert len(lay_out(figure((1, 5)), WIDTH, HEIGHT).spots) == 1
    flat = numbers(lay_out(figure((1, 5), (2, 5)), WIDTH, HEIGHT).lines[0].d)
    assert flat[1] == flat[3]
    assert math.isfinite(flat[1])
    assert figure().empty
    assert not figure((0, 0)).empty


def test_an_axis_becomes_logarithmic_only_where_it_may_and_helps() -> None:
    far = [(0.0, 10_000.0), (1.0, 100.0), (2.0, 1.0)]
    gaps = {}
    for may in (True, False):
        ys = numbers(lay_out(figure(*far, may_be_log=may), WIDTH, HEIGHT).lines[0].d)[1::2]
        gaps[may] = (ys[1] - ys[0]) / (ys[2] - ys[1])
    assert gaps[True] == pytest.approx(1, rel=0.01)
    assert gaps[False] > 50
    near = lay_out(figure((0, 10), (1, 100), (2, 0), may_be_log=True), WIDTH, HEIGHT)
    assert near.y_ticks[0].text == "0"


def test_bars_stand_on_each_other_and_begin_at_zero() -> None:
    layers = [Bars("v0", "valid", [(1, 0, 6), (2, 0, 8)]), Bars("v1", "rejected", [(1, 6, 8)])]
    drawn = lay_out(Figure("t", "x", "y", bars=layers, y_zero=True), WIDTH, HEIGHT)
    lower, upper = (re.match(r"M([\d.]+) ([\d.]+)h([\d.]+)V([\d.]+)", area.d) for area in drawn.areas)
    assert lower is not None
    assert upper is not None
    assert lower[4] == f"{drawn.bottom:g}"
    assert upper[4] == lower[2]
    assert drawn.y_ticks[0].text == "0"


def test_dots_that_would_cover_each_other_are_drawn_once() -> None:
    many = [(float(index % 50), float(index % 7)) for index in range(10_000)]
    drawn = lay_out(Figure("t", "x", "y", dots=[Dots("one", many)]), WIDTH, HEIGHT)
    assert drawn.dots[0].d.count("M") == 350


def test_labels_of_close_rules_do_not_cover_each_other() -> None:
    rules = [Rule(value, str(value)) for value in (84.2, 83.8, 83.72, 91.9)]
    drawn = lay_out(Figure("t", "x", "y", lines=[Line("a", [(0, 20), (5, 90)])], rules=rules), WIDTH, HEIGHT)
    heights = sorted(mark.text_at for mark in drawn.rules)
    assert all(b - a >= LABEL_HEIGHT for a, b in pairwise(heights))


def test_markers_keep_their_names() -> None:
    drawn = lay_out(Figure("t", "x", "y", markers=[Marker("best", (1, 2), "<the best>")]), WIDTH, HEIGHT)
    assert [spot.title for spot in drawn.spots] == ["<the best>"]


def test_numbers_read_as_words() -> None:
    scores = {None: None, 79.14896: "79.1490", -2.0: "-2.0000", 850082731.0: "850,082,731.0"}
    assert {value: score_text(value) for value in scores} == scores
    assert [signed(v) for v in (None, 1.5, -1.5)] == [None, "+1.5000", "-1.5000"]
    assert [short(v) for v in (None, 0.000123456, 1234.5)] == [None, "0.0001235", "1,234"]
    assert [clock(v) for v in (None, 41.2, 200, 7500)] == [None, "0:41", "3:20", "2:05:00"]
    assert [duration(v) for v in (None, 41.2, 200, 7500)] == [None, "41 s", "3 min 20 s", "2 h 05 min"]


def test_an_excerpt_says_how_much_it_leaves_out() -> None:
    assert Excerpt.of("abc", 3) == Excerpt("abc", 0)
    cut = Excerpt.of("line\n" * 300, 1000)
    assert len(cut.text) + cut.left_out == 1500
    assert cut.text.endswith("line")
    assert len(Excerpt.of("x" * 5000, 100).text) == 100
