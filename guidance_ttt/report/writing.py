"""Writes a report: reads the state once, fills the page, and puts page and tables beside each other."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guidance_ttt.archive_view import program_sha256
from guidance_ttt.report import caveats, default_output, figures, headline, page, provenance, tables
from guidance_ttt.report.baselines import find_baselines
from guidance_ttt.report.facts import RunFacts, read_facts
from guidance_ttt.report.packing import CannotDraw, Drawing, draw_packing
from guidance_ttt.report.series import Update, updates
from harness.errors import ConfigError, StateWriteFailed
from harness.storage import write_chunks

GENERATOR = "guidance-ttt report"
_SUFFIXES = (".html", ".htm")


@dataclass(frozen=True)
class Written:
    """The files of one report."""

    page: Path
    updates: Path
    rollouts: Path

    def as_json(self) -> dict[str, str]:
        """The same paths as plain JSON values."""
        return {name: str(path) for name, path in vars(self).items()}

    def describe(self) -> str:
        """One line for each file."""
        return f"report   {self.page}\nupdates  {self.updates}\nrollouts {self.rollouts}"


def write_report(state_dir: Path, output: Path | None = None, *, environ: Mapping[str, str]) -> Written:
    """Write the page and the two tables; each appears completely or not at all, and an earlier report is replaced.

    Raises `ConfigError` for a place that cannot take a report, and `StateError` for a state that gives none.
    """
    target = output or default_output(state_dir)
    _require_place(target)
    facts = read_facts(state_dir, environ)
    rows = updates(facts)
    written = Written(target, *(target.with_name(f"{target.stem}-{name}.csv") for name in ("updates", "rollouts")))
    write_chunks(written.updates, tables.updates_csv(facts, rows))
    write_chunks(written.rollouts, tables.rollouts_csv(facts))
    write_chunks(target, page.render(context(facts, rows, written, environ), facts.clean))
    return written


def context(facts: RunFacts, rows: Sequence[Update], written: Written, environ: Mapping[str, str]) -> dict[str, Any]:
    """Everything that the template shows."""
    baselines = find_baselines(facts.task, facts.identity)
    drawing, no_drawing = _drawing(facts, environ)
    stack = figures.verdict_stack(rows)
    return {
        **headline.as_context(facts, rows),
        "generator": GENERATOR,
        "written_at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "facts": facts,
        "rows": rows[-page.MAX_UPDATE_ROWS :],
        "rows_left_out": max(0, len(rows) - page.MAX_UPDATE_ROWS),
        "drawing": drawing,
        "no_drawing": no_drawing,
        "main": page.pair(figures.by_evaluations(facts, baselines), page.WIDE),
        "spending": [
            drawn
            for figure in (figures.close_up(facts), figures.by_time(facts, rows), figures.by_cost(facts, rows))
            if (drawn := page.pair(figure)) is not None
        ],
        "baselines": baselines,
        "panels": [page.pair(panel, page.PANEL, page.PANEL) for panel in figures.training_panels(rows)],
        "verdicts": page.pair(stack),
        "verdict_totals": [(layer.css, layer.label, sum(int(b - a) for _, a, b in layer.bars)) for layer in stack.bars],
        "archive": page.pair(figures.archive_scatter(facts)),
        "lineage": page.lineage(facts),
        "program": page.program(facts, facts.best),
        "program_lines": len(facts.best.solution.splitlines()),
        "program_sha256": program_sha256(facts.best.solution),
        "configuration": provenance.configuration(facts, environ),
        "identity": provenance.identity_rows(facts),
        "hashes": provenance.hashes(facts),
        "recipes": provenance.recipes(facts),
        "caveats": caveats.caveats(facts, rows),
        "tables": (written.updates.name, written.rollouts.name),
        "state": provenance.shown_path(facts.state_dir),
    }


def _drawing(facts: RunFacts, environ: Mapping[str, str]) -> tuple[Drawing | None, str | None]:
    """The packing, or why there is none; neither for a task without packings."""
    if facts.task != "polyomino_packing":
        return None, None
    try:
        return draw_packing(facts, environ), None
    except CannotDraw as error:
        return None, str(error)


def _require_place(target: Path) -> None:
    """Refuse to write over anything but an earlier report."""
    if target.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"a report is an HTML file: --output {target} must end in .html")
    if not target.exists():
        return
    if not target.is_file():
        raise ConfigError(f"{target} exists and is no file; choose another name")
    try:
        with target.open("rb") as stream:
            ours = GENERATOR.encode() in stream.read(2000)
    except OSError as error:
        raise StateWriteFailed(f"cannot read {target}, which a report would replace: {error.strerror}") from error
    if not ours:
        raise ConfigError(f"{target} exists, is no earlier report and is not replaced; choose another name")
