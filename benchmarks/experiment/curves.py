"""The picture of an experiment: mean reward and best score per update, one line per arm, seeds behind it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.experiment.comparison import runs
from benchmarks.experiment.records import UpdateRow

COLOURS = {"trained": "#1b6ca8", "frozen": "#c8553d", "uniform": "#7a7a7a", "openevolve": "#5a8f3c"}


def draw_curves(path: Path, rows: Sequence[UpdateRow]) -> None:
    """Write an SVG file; the same rows give the same bytes."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    panels: tuple[tuple[str, Callable[[UpdateRow], float]], ...] = (
        ("mean reward of the update", lambda row: row.reward_mean),
        ("best score so far", lambda row: row.best_score),
    )
    with pyplot.rc_context({"svg.hashsalt": "guidance-ttt", "font.size": 9}):
        figure, axes = pyplot.subplots(1, len(panels), figsize=(9, 3.4), constrained_layout=True)
        for axis, (title, value) in zip(axes, panels, strict=True):
            for arm, colour in COLOURS.items():
                _draw_arm(axis, arm, colour, runs(rows, arm), value)
            axis.set_title(title)
            axis.set_xlabel("update")
            axis.grid(alpha=0.3)
        axes[-1].legend(frameon=False)
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


def _draw_arm(
    axis: object, arm: str, colour: str, by_seed: dict[int, list[UpdateRow]], value: Callable[[UpdateRow], float]
) -> None:
    if not by_seed:
        return
    for run in by_seed.values():
        axis.plot([row.update for row in run], [value(row) for row in run], color=colour, alpha=0.25, linewidth=0.8)  # type: ignore[attr-defined]
    updates = sorted({row.update for run in by_seed.values() for row in run})
    means = [
        statistics.fmean(value(row) for run in by_seed.values() for row in run if row.update == update)
        for update in updates
    ]
    axis.plot(updates, means, color=colour, linewidth=1.8, label=f"{arm} ({len(by_seed)} seeds)")  # type: ignore[attr-defined]
