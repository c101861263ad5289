"""The page: what each section is given, how much of each text is shown, and the template that arranges it.

Autoescaping is on and every value passes through one function on its way out, which takes secrets and active
characters from it; the page itself forbids scripts and any request.  Long texts are cut before they reach the template,
and each cut is told, so that the page stays small however long a run is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from guidance_ttt.archive_view import place_of
from guidance_ttt.inspect import hops_to, program_diff
from guidance_ttt.report import words
from guidance_ttt.report.charts import Drawn, Figure, lay_out
from guidance_ttt.report.facts import RunFacts
from guidance_ttt.report.words import Excerpt
from harness.progress import short_count
from harness.state import LibraryEntry

TEMPLATES = Path(__file__).parent / "templates"
MAX_PAGE_BYTES = 3_000_000
"""No page is larger than this, whatever the state holds; a test fills one with the worst."""

MAX_PAGE_NODES = 12_000
"""Nor does one have more elements."""

MAX_PROGRAM_CHARS = 100_000
MAX_GUIDANCE_CHARS = 4_000
MAX_SUMMARY_CHARS = 1_200
MAX_DIFF_CHARS = 24_000
MAX_ALL_DIFFS_CHARS = 120_000
MAX_DIFF_RUNS = 200
MAX_COMPARISONS = 16_000_000
"""Pairs of lines that may be compared for all diffs together; at the worst this takes a few seconds."""

MAX_HOPS = 24
MAX_UPDATE_ROWS = 200
MISSING = "\N{EN DASH}"

WIDE, NARROW = (1040, 330), (358, 260)
HALF, PANEL = (512, 280), (336, 190)
_DIFF_KINDS = {"+": "added", "-": "removed", "@": "place"}


@dataclass(frozen=True)
class Pair:
    """One figure drawn for a wide and for a narrow screen."""

    figure: Figure
    wide: Drawn
    narrow: Drawn


@dataclass(frozen=True)
class HopView:
    """One hop of the winner's lineage, ready to show."""

    number: int
    found: str
    short_id: str
    score: float | None
    gain: float | None
    best: bool
    guidance: Excerpt
    summary: Excerpt
    diff: Sequence[tuple[str, str]] | None
    diff_note: str


@dataclass(frozen=True)
class Lineage:
    """The hops that are shown, and how many between the seed and the first of them are not."""

    hops: Sequence[HopView]
    skipped: int


@dataclass
class _Budget:
    """What the diffs of one page may still cost."""

    chars: int = MAX_ALL_DIFFS_CHARS
    comparisons: int = MAX_COMPARISONS


def pair(figure: Figure | None, wide: tuple[int, int] = HALF, narrow: tuple[int, int] = NARROW) -> Pair | None:
    """Both drawings of a figure; None when there is nothing to draw."""
    if figure is None or figure.empty:
        return None
    return Pair(figure, lay_out(figure, *wide), lay_out(figure, *narrow))


def lineage(facts: RunFacts) -> Lineage:
    """The way from the seed to the winner: the seed and the last hops, each with its guidance and its diff."""
    hops = list(enumerate(hops_to(facts.view, facts.best)))
    shown = hops if len(hops) <= MAX_HOPS else [hops[0], *hops[1 - MAX_HOPS :]]
    budget = _Budget()
    views = []
    for number, hop in shown:
        diff, note = _diff(facts, hop.parent, hop.entry, budget)
        views.append(_hop_view(facts, number, hop.entry, hop.parent, diff, note))
    return Lineage(views, len(hops) - len(shown))


def _hop_view(
    facts: RunFacts,
    number: int,
    entry: LibraryEntry,
    parent: LibraryEntry | None,
    diff: Sequence[tuple[str, str]] | None,
    note: str,
) -> HopView:
    before, after = None if parent is None else parent.verifier_raw_score, entry.verifier_raw_score
    return HopView(
        number=number,
        found=place_of(entry).describe().replace("step", "update"),
        short_id=facts.view.short_id(entry.id),
        score=after,
        gain=None if before is None or after is None else after - before,
        best=entry.id == facts.best.id,
        guidance=Excerpt.of(facts.clean(entry.guidance), MAX_GUIDANCE_CHARS),
        summary=Excerpt.of(facts.clean(entry.summary), MAX_SUMMARY_CHARS),
        diff=diff,
        diff_note=note,
    )


def _diff(
    facts: RunFacts, parent: LibraryEntry | None, entry: LibraryEntry, budget: _Budget
) -> tuple[list[tuple[str, str]] | None, str]:
    """Runs of lines of one kind, and what is missing; None where there is nothing to compare with."""
    if parent is None:
        return None, ""
    command = f"guidance-ttt inspect {facts.view.short_id(entry.id)}"
    pairs = (parent.solution.count("\n") + 1) * (entry.solution.count("\n") + 1)
    budget.comparisons -= pairs
    text = program_diff(parent, entry) if budget.chars > 0 and budget.comparisons >= 0 else None
    if text is None:
        return None, f"What it changed is too long to show here; {command} shows the program."
    if not text:
        return [], ""
    shown = Excerpt.of(facts.clean(text), min(budget.chars, MAX_DIFF_CHARS))
    budget.chars -= len(shown.text)
    lines = shown.text.split("\n")[2:]  # without the names of the two sides
    runs = [(kind, "\n".join(group)) for kind, group in groupby(lines, key=lambda line: _DIFF_KINDS.get(line[:1], ""))]
    left_out = shown.left_out + sum(len(part) + 1 for _, part in runs[MAX_DIFF_RUNS:])
    note = f"{left_out:,} more characters are not shown here; {command} shows them all." if left_out else ""
    return runs[:MAX_DIFF_RUNS], note


def program(facts: RunFacts, entry: LibraryEntry) -> Excerpt:
    """A program as far as the page shows it."""
    return Excerpt.of(facts.clean(entry.solution), MAX_PROGRAM_CHARS)


def render(context: dict[str, Any], clean: Callable[[str], str]) -> Iterator[bytes]:
    """The page as UTF-8, in pieces."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: _finalize(value, clean),
    )
    environment.filters |= {
        "score": words.score_text,
        "signed": words.signed,
        "short": words.short,
        "clock": words.clock,
        "count": short_count,
    }
    for part in environment.get_template("report.html.jinja").generate(context):
        yield part.encode("utf-8")


def _finalize(value: Any, clean: Callable[[str], str]) -> Any:
    """What a value looks like on the page: missing ones as a dash, texts without secrets and active characters."""
    if value is None:
        return MISSING
    if isinstance(value, Markup):
        return value
    return clean(value) if isinstance(value, str) else value
