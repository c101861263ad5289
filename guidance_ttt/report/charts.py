"""From numbers to SVG geometry: scales, ticks and path strings.  Knows nothing about runs and writes no markup.

A `Figure` says what is drawn; `lay_out` places it on a canvas of a given size (in pixels), so that one figure can be
drawn for a wide and for a narrow screen.  Thousands of dots are one path: a page with few elements opens quickly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Point = tuple[float, float]

MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 52.0, 14.0, 14.0, 34.0
TICK_SPACING_X, TICK_SPACING_Y = 80.0, 44.0
RULE_NAMES = 96.0
"""Room for the names of the rules at the right, where there are any."""

LABEL_HEIGHT = 14.0
MAX_DOTS = 8000
LOG_RATIO = 12.0
"""Positive values that span more than this factor are drawn on a logarithmic axis, where the figure allows it."""


@dataclass(frozen=True)
class Line:
    """A connected series; with `steps`, each value holds until the next point."""

    css: str
    points: Sequence[Point]
    label: str = ""
    steps: bool = False


@dataclass(frozen=True)
class Dots:
    """Many small dots of one kind, none of them named."""

    css: str
    points: Sequence[Point]
    label: str = ""


@dataclass(frozen=True)
class Marker:
    """One dot that has a name."""

    css: str
    point: Point
    title: str


@dataclass(frozen=True)
class Bars:
    """One layer of a stack: for each bar its centre, lower and upper end."""

    css: str
    label: str
    bars: Sequence[tuple[float, float, float]]


@dataclass(frozen=True)
class Rule:
    """A horizontal line for comparison."""

    value: float
    label: str


@dataclass(frozen=True)
class Figure:
    """What is drawn.

    `y_zero` begins the axis at 0, `may_be_log` allows a logarithmic one; with `whole_x` and `whole_y` ticks are whole.
    """

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line] = ()
    dots: Sequence[Dots] = ()
    markers: Sequence[Marker] = ()
    bars: Sequence[Bars] = ()
    rules: Sequence[Rule] = ()
    y_zero: bool = False
    may_be_log: bool = False
    x_log: bool = False
    whole_x: bool = True
    whole_y: bool = False
    note: str = ""

    @property
    def legend(self) -> list[tuple[str, str, str]]:
        """Kind, style and label of each series that has one."""
        named = [("line", item.css, item.label) for item in self.lines]
        named += [("bar", item.css, item.label) for item in self.bars]
        named += [("dot", item.css, item.label) for item in self.dots]
        return [entry for entry in named if entry[2]]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to see."""
        return not (
            any(line.points for line in self.lines)
            or any(dots.points for dots in self.dots)
            or any(layer.bars for layer in self.bars)
        )


@dataclass(frozen=True)
class Tick:
    """A labelled place on an axis, in pixels."""

    at: float
    text: str


@dataclass(frozen=True)
class Path:
    """One SVG path."""

    css: str
    d: str


@dataclass(frozen=True)
class Spot:
    """A marker in pixels."""

    css: str
    x: float
    y: float
    title: str


@dataclass(frozen=True)
class RuleMark:
    """A rule in pixels; its label stands a little higher or lower where it would cover another one."""

    at: float
    text_at: float
    text: str


@dataclass(frozen=True)
class Drawn:
    """A figure on its canvas, all in pixels."""

    figure: Figure
    width: int
    height: int
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    areas: Sequence[Path] = ()
    dots: Sequence[Path] = ()
    lines: Sequence[Path] = ()
    spots: Sequence[Spot] = ()
    rules: Sequence[RuleMark] = ()
    log: bool = False
    """Whether the y axis is logarithmic."""


# --- scales -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """Maps values to pixels; a logarithmic one takes positive values only."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value, to a tenth."""
        low, high, at = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return round(self.start + (at - low) / (high - low) * (self.end - self.start), 1)

    def ticks(self, spacing: float, *, whole: bool = False) -> list[Tick]:
        """Labelled places about `spacing` pixels apart."""
        wanted = max(2, int(abs(self.end - self.start) / spacing))
        values = log_ticks(self.low, self.high, wanted) if self.log else even_ticks(self.low, self.high, wanted, whole)
        return [Tick(self(value), tick_text(value)) for value in values]


def even_ticks(low: float, high: float, wanted: int, whole: bool = False) -> list[float]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten within a range, about `wanted` of them."""
    power = 10.0 ** math.floor(math.log10((high - low) / wanted))
    steps = [factor * power for factor in (1, 2, 5, 10)] if whole else [factor * power for factor in (1, 2, 2.5, 5, 10)]
    step = min(steps, key=lambda size: abs((high - low) / size - wanted))
    if whole:
        step = max(1.0, round(step))
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, wanted: int) -> list[float]:
    """1, 2 and 5 times powers of ten within a range, thinned to about `wanted`."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        values = [factor * 10.0**power for power in powers for factor in factors]
        inside = [value for value in values if low * 0.999 <= value <= high * 1.001]
        if len(inside) <= wanted + 1 or factors == (1,):
            return inside[:: max(1, math.ceil(len(inside) / (wanted + 1)))]
    raise AssertionError("unreachable")


def tick_text(value: float) -> str:
    """A short label: 12,500, 3M, 0.25, 2e-7."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.6g}M" if size < 1e12 else f"{value:.3g}"
    if size >= 1000:
        return f"{value:,.0f}"
    if value == 0 or size >= 1e-3:
        return f"{value:.6g}"
    mantissa, _, exponent = f"{value:.3g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


def _range(values: Iterable[float], *, zero: bool, pad: float) -> tuple[float, float]:
    found = [value for value in values if math.isfinite(value)]
    low, high = min(found, default=0.0), max(found, default=1.0)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    span = high - low
    if span <= abs(high) * 1e-12:
        span = abs(high) or 1.0
        low, high = (low, low + span) if zero else (low - span / 2, high + span / 2)
    below = 0.0 if zero and low == 0.0 else span * pad
    return low - below, high + span * pad


def _scale_y(figure: Figure, values: Sequence[float], height: int) -> Scale:
    start, end = height - MARGIN_BOTTOM, MARGIN_TOP
    if figure.may_be_log and values and min(values) > 0 and max(values) / min(values) > LOG_RATIO:
        return Scale(min(values) / 1.15, max(values) * 1.15, start, end, log=True)
    return Scale(*_range(values, zero=figure.y_zero, pad=0.06), start, end)


def _right(figure: Figure, width: int) -> float:
    return width - MARGIN_RIGHT - (RULE_NAMES if figure.rules else 0.0)


def _scale_x(figure: Figure, values: Sequence[float], width: int) -> Scale:
    start, end = MARGIN_LEFT, _right(figure, width)
    if figure.x_log and values and max(values) > 0:
        return Scale(0.7, max(max(values), 2.0) * 1.4, start, end, log=True)
    if figure.bars:
        return Scale(min(values, default=0.0) - 0.6, max(values, default=1.0) + 0.6, start, end)
    low, high = min(values, default=0.0), max(values, default=1.0)
    return Scale(*((low - 0.5, high + 0.5) if high <= low else (low, high + (high - low) * 0.01)), start, end)


# --- drawing ----------------------------------------------------------------------------------------------------------


def lay_out(figure: Figure, width: int, height: int) -> Drawn:
    """Place a figure on a canvas."""
    points = [point for line in figure.lines for point in line.points]
    points += [point for dots in figure.dots for point in dots.points]
    points += [marker.point for marker in figure.markers]
    bars = [bar for layer in figure.bars for bar in layer.bars]
    x = _scale_x(figure, [point[0] for point in points] + [bar[0] for bar in bars], width)
    values = [point[1] for point in points] + [rule.value for rule in figure.rules]
    y = _scale_y(figure, values + [end for bar in bars for end in bar[1:]], height)
    return Drawn(
        figure=figure,
        width=width,
        height=height,
        left=MARGIN_LEFT,
        right=_right(figure, width),
        top=MARGIN_TOP,
        bottom=height - MARGIN_BOTTOM,
        x_ticks=x.ticks(TICK_SPACING_X, whole=figure.whole_x),
        y_ticks=y.ticks(TICK_SPACING_Y, whole=figure.whole_y),
        areas=[Path(layer.css, _bars_path(layer.bars, x, y)) for layer in figure.bars if layer.bars],
        dots=[Path(item.css, _dots_path(item.points, x, y)) for item in figure.dots if item.points],
        lines=[Path(item.css, _line_path(item, x, y)) for item in figure.lines if len(item.points) > 1],
        spots=[
            *(Spot(m.css, x(m.point[0]), y(m.point[1]), m.title) for m in figure.markers),
            *(Spot(i.css, x(i.points[0][0]), y(i.points[0][1]), i.label) for i in figure.lines if len(i.points) == 1),
        ],
        rules=_rule_marks(figure.rules, y),
        log=y.log,
    )


def _rule_marks(rules: Sequence[Rule], y: Scale) -> list[RuleMark]:
    marks: list[RuleMark] = []
    for rule in sorted(rules, key=lambda rule: y(rule.value)):
        at = y(rule.value)
        free = marks[-1].text_at + LABEL_HEIGHT if marks else 0.0
        marks.append(RuleMark(at, max(at + 4, free), rule.label))
    return marks


def _line_path(line: Line, x: Scale, y: Scale) -> str:
    parts: list[str] = []
    for index, point in enumerate(line.points):
        left, top = x(point[0]), y(point[1])
        if index == 0:
            parts.append(f"M{left:g} {top:g}")
        else:
            parts.append(f"H{left:g}V{top:g}" if line.steps else f"L{left:g} {top:g}")
    return "".join(parts)


def _dots_path(points: Sequence[Point], x: Scale, y: Scale) -> str:
    """Dots as strokes of no length with round ends; those that would cover each other are drawn once."""
    places = sorted({(round(x(px)), round(y(py))) for px, py in points})
    every = max(1, math.ceil(len(places) / MAX_DOTS))
    return "".join(f"M{left} {top}h0" for left, top in places[::every])


def _bars_path(bars: Sequence[tuple[float, float, float]], x: Scale, y: Scale) -> str:
    wide = round(max(1.0, min(28.0, abs(x(1.0) - x(0.0)) * 0.78)), 1)
    parts = []
    for centre, low, high in bars:
        if high > low:
            left, top, foot = x(centre) - wide / 2, y(high), y(low)
            parts.append(f"M{left:.1f} {top:g}h{wide:g}V{foot:g}h-{wide:g}z")
    return "".join(parts)
