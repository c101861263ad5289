"""The figures of a report: which numbers go into which chart, and how it is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from guidance_ttt.report.baselines import Baselines
from guidance_ttt.report.charts import Bars, Dots, Figure, Line, Marker, Rule
from guidance_ttt.report.facts import LABEL_CHARS, RunFacts
from guidance_ttt.report.series import STATUS_NAMES, NewBest, Update, elapsed_s, new_bests, spent_usd
from guidance_ttt.report.words import score_text
from guidance_ttt.terminal import one_line

MAX_MARKERS = 60
FEW_DOTS = 500
_TIME_UNITS = ((5400.0, 3600.0, "hours"), (240.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


def by_evaluations(facts: RunFacts, baselines: Baselines) -> Figure:
    """Best score so far against evaluations, with every valid candidate behind it."""
    bests = new_bests(facts)
    last = len(facts.candidates)
    points: list[tuple[float, float]] = [(best.number, best.score) for best in bests]
    if points and points[-1][0] < last:
        points.append((last, points[-1][1]))
    label = facts.score_label
    return Figure(
        title=f"Best {label} so far",
        x_label="evaluations",
        y_label=label,
        lines=[Line("best", points, "best so far", steps=True)],
        dots=[_dots("one", _scored(facts), "valid candidates")],
        markers=[_marker(best) for best in bests[-MAX_MARKERS:]],
        rules=[Rule(row.value, row.mark) for row in baselines.lines],
        may_be_log=True,
        note="Candidates of one update run side by side; they are drawn in the order of their groups and rollouts.",
    )


def close_up(facts: RunFacts) -> Figure | None:
    """The same from the first improvement on, where the way up from the seed hides what came later; else None."""
    bests = new_bests(facts)[1:]
    if len(bests) < 2:
        return None
    floor = bests[0].score
    points = [*((float(best.number), best.score) for best in bests), (float(len(facts.candidates)), bests[-1].score)]
    return Figure(
        title="Close-up: from the first improvement on",
        x_label="evaluations",
        y_label=facts.score_label,
        lines=[Line("best", points, steps=True)],
        dots=[_dots("one", [point for point in _scored(facts) if not facts.better(floor, point[1])])],
        markers=[_marker(best) for best in bests[-MAX_MARKERS:]],
        may_be_log=True,
    )


def _scored(facts: RunFacts) -> list[tuple[float, float]]:
    return [(float(item.number), item.score) for item in facts.candidates if item.score is not None]


def _dots(css: str, points: Sequence[tuple[float, float]], label: str = "") -> Dots:
    """Larger dots where there are few."""
    return Dots(f"{css} few" if len(points) < FEW_DOTS else css, points, label)


def _marker(best: NewBest) -> Marker:
    where = "seed" if best.step == 0 else f"update {best.step}, evaluation {best.number}"
    return Marker("best", (best.number, best.score), f"{score_text(best.score)} ({where})")


def by_time(facts: RunFacts, rows: Sequence[Update]) -> Figure | None:
    """Best score so far against the time spent in updates; None when it was not recorded."""
    spent = elapsed_s(rows)
    if spent is None:
        return None
    unit_s, unit = next((size, name) for limit, size, name in _TIME_UNITS if spent[-1] >= limit)
    return _by_spending(facts, rows, [value / unit_s for value in spent], f"{unit} spent in updates", "time")


def by_cost(facts: RunFacts, rows: Sequence[Update]) -> Figure | None:
    """Best score so far against dollars; None when the cost is unknown or nothing."""
    spent = spent_usd(rows)
    if spent is None or spent[-1] <= 0:
        return None
    return _by_spending(facts, rows, spent, "US dollars paid to the executor", "cost")


def _by_spending(facts: RunFacts, rows: Sequence[Update], spent: Sequence[float], x_label: str, against: str) -> Figure:
    points = [(at, row.best) for at, row in zip(spent, rows, strict=True) if row.best is not None]
    seed = facts.seed.verifier_raw_score
    start = [] if seed is None else [(0.0, seed)]
    improved = [
        Marker("best", (at, row.best), f"{score_text(row.best)} (update {row.step})")
        for at, row in zip(spent, rows, strict=True)
        if row.gain and row.best is not None
    ]
    return Figure(
        title=f"Best {facts.score_label} against {against}",
        x_label=x_label,
        y_label=facts.score_label,
        lines=[Line("best", [*start, *points], steps=True)],
        markers=improved[-MAX_MARKERS:],
        may_be_log=True,
        whole_x=False,
    )


# --- training ---------------------------------------------------------------------------------------------------------


def training_panels(rows: Sequence[Update]) -> list[Figure]:
    """Small multiples over the updates; a quantity that no update records has no panel."""
    reward = Figure(
        "Reward",
        "update",
        "reward",
        lines=[
            _line(rows, "max", lambda row: row.reward_max, "max"),
            _line(rows, "mean", lambda row: row.reward_mean, "mean"),
        ],
    )
    seconds = Figure(
        "Step time",
        "update",
        "seconds",
        lines=[
            _line(rows, "max", lambda row: row.rollout_s, "rollouts"),
            _line(rows, "mean", lambda row: row.train_s, "training"),
        ],
        y_zero=True,
    )
    panels = [
        reward,
        _panel(rows, "KL to the base model", "nats", lambda row: row.kl),
        _panel(rows, "Entropy", "nats", lambda row: row.entropy),
        _panel(rows, "Guidance length", "tokens", lambda row: row.guidance_tokens),
        _panel(rows, "Gradient norm", "norm", lambda row: row.grad_norm),
        seconds,
    ]
    return [panel for panel in panels if not panel.empty]


def _panel(rows: Sequence[Update], title: str, unit: str, value: Callable[[Update], float | None]) -> Figure:
    return Figure(title, "update", unit, lines=[_line(rows, "mean", value)], may_be_log=False)


def _line(rows: Sequence[Update], css: str, value: Callable[[Update], float | None], label: str = "") -> Line:
    found = [(float(row.step), value(row)) for row in rows]
    return Line(css, [(step, number) for step, number in found if number is not None], label)


# --- verdicts and archive ---------------------------------------------------------------------------------------------


def verdict_stack(rows: Sequence[Update]) -> Figure:
    """For each update, how its candidates ended."""
    known = list(STATUS_NAMES)
    others = sorted({status for row in rows for status in row.statuses} - set(known))
    feet = dict.fromkeys((row.step for row in rows), 0)
    layers = []
    for status in [*known, *others]:
        bars = []
        for row in rows:
            if count := row.statuses[status]:
                bars.append((float(row.step), float(feet[row.step]), float(feet[row.step] + count)))
                feet[row.step] += count
        if bars:
            css = f"v{known.index(status)}" if status in known else "v9"
            layers.append(Bars(css, STATUS_NAMES.get(status, one_line(status, LABEL_CHARS)), bars))
    return Figure("Verdicts by update", "update", "candidates", bars=layers, y_zero=True, whole_y=True)


def archive_scatter(facts: RunFacts) -> Figure:
    """Every state of the archive: how good it is and how much of the search went through it."""
    roots: list[tuple[float, float]] = []
    others: list[tuple[float, float]] = []
    for node in facts.view.nodes.values():
        if node.raw_score is not None and node.id != facts.view.best_node_id:
            (roots if node.is_root else others).append((max(1.0, float(facts.view.visits(node.id))), node.raw_score))
    winner = facts.view.node_of(facts.best.id)
    best = []
    if winner is not None and winner.raw_score is not None:
        visits = facts.view.visits(winner.id)
        title = f"the best: {score_text(winner.raw_score)}, {visits} visits"
        best = [Marker("best", (max(1.0, float(visits)), winner.raw_score), title)]
    return Figure(
        title=f"{facts.score_label.capitalize()} against visits",
        x_label="rollouts at or below a state",
        y_label=facts.score_label,
        dots=[_dots("one", others, "states"), Dots("root", roots, "the seed's replicas")],
        markers=best,
        may_be_log=True,
        x_log=True,
        note="States without visits are drawn at 1.",
    )
