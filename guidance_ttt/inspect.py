"""`guidance-ttt inspect`: the archive as a tree, one candidate in full, and the way from the seed to it.

Reads a state directory alone, also while a run is live.  Whatever a model or a candidate wrote is shown as text
(`guidance_ttt.terminal`) and is never taken for markup.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guidance_ttt.archive_view import ArchiveView, JournalReference, Place, place_of, program_sha256
from guidance_ttt.terminal import indented, one_line, safe_json, visible
from harness.state import LibraryEntry

MAX_DIFF_LINES = 6000
"""Above this many lines in all, two programs are not compared: it would take too long."""
GUIDANCE_CHARS = 70


def inspect_archive(state_dir: Path, name: str | None, *, lineage: bool, as_json: bool) -> str:
    """The text that `inspect` prints; raises `GuidanceError` with the cure for what cannot be shown."""
    view = ArchiveView.load(state_dir)
    if lineage:
        hops = hops_to(view, view.find(name or "best"))
        return safe_json([hop.as_json() for hop in hops]) if as_json else render_lineage(view, hops)
    if name is not None:
        facts = EntryFacts.of(view, view.find(name))
        return safe_json(facts.as_json()) if as_json else render_entry(view, facts)
    return safe_json(archive_json(view)) if as_json else render_archive(view)


# --- the whole archive ------------------------------------------------------------------------------------------------


def archive_json(view: ArchiveView) -> dict[str, Any]:
    """Every state with its score and visits, in the order of the tree; programs are left out."""
    lost = view.lost_children()
    states = []
    for depth, node in view.tree():
        entry = None if node.entry_id is None else view.entry(node.entry_id)
        states.append(
            {
                "node_id": node.id,
                "entry_id": node.entry_id,
                "parent_id": node.parent_id,
                "depth": depth,
                "raw_score": node.raw_score,
                "visits": view.visits(node.id),
                "selected": node.visits,
                "selectable": bool(node.metadata.get("archive_candidate", True)),
                "best": node.id == view.best_node_id,
                **(_place_json(place_of(entry)) if entry is not None else {}),
                "guidance": None if entry is None else entry.guidance,
                "not_kept": dict(lost.get(node.id, {})),
            }
        )
    return {
        "archive": str(view.path),
        "score_direction": "min" if view.lower_is_better else "max",
        "best_entry_id": view.best.id,
        "candidates": dict(view.statuses()),
        "states": states,
    }


def render_archive(view: ArchiveView) -> str:
    """The archive as an indented tree, better states first."""
    best = view.best
    statuses = view.statuses()
    ended = ", ".join(f"{status} {count}" for status, count in statuses.most_common()) or "none yet"
    order = "lower" if view.lower_is_better else "higher"
    lines = [
        f"archive     {view.path}",
        f"candidates  {statuses.total()} ({ended})",
        f"states      {len(view.nodes)}",
        f"best        {_score(best.verifier_raw_score)} ({order} is better): {view.short_id(best.id)}, "
        f"{place_of(best).describe()}",
        "",
        f"{'score':<24}{'visits':>7}  {'entry':<10}  {'found':<16}  guidance",
    ]
    lost = view.lost_children()
    for depth, node in view.tree():
        entry = None if node.entry_id is None else view.entry(node.entry_id)
        marks = "* " if node.id == view.best_node_id else ""
        if not node.metadata.get("archive_candidate", True):
            marks += "(kept for its descendants) "
        place = place_of(entry).describe() if entry is not None else "no program"
        guidance = one_line(entry.guidance, GUIDANCE_CHARS) if entry is not None else ""
        score = "  " * depth + _score(node.raw_score)
        short = view.short_id(node.entry_id or node.id)
        lines.append(f"{score:<24}{view.visits(node.id):>7}  {short:<10}  {place:<16}  {marks}{guidance}".rstrip())
        if node.id in lost:
            missing = ", ".join(f"{status} {count}" for status, count in sorted(lost[node.id].items()))
            lines.append("  " * (depth + 1) + f"not kept: {missing}")
    lines += ["", "* the best; `guidance-ttt inspect ENTRY` shows one in full, `inspect --lineage` how it came about"]
    return visible("\n".join(lines))


# --- one candidate ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EntryFacts:
    """Everything that is known of one candidate."""

    entry: LibraryEntry
    parent: LibraryEntry | None
    node: Mapping[str, Any] | None
    best: bool
    journal: JournalReference | None
    diff: str | None

    @classmethod
    def of(cls, view: ArchiveView, entry: LibraryEntry) -> EntryFacts:
        """Collect them; reads the journal of the entry's step."""
        node = view.node_of(entry.id)
        parent = view.parent_of(entry)
        return cls(
            entry=entry,
            parent=parent,
            node=None
            if node is None
            else {
                "node_id": node.id,
                "visits": view.visits(node.id),
                "selected": node.visits,
                "children": len(node.children),
                "selectable": bool(node.metadata.get("archive_candidate", True)),
            },
            best=node is not None and node.id == view.best_node_id,
            journal=view.journal_of(entry),
            diff=None if parent is None else program_diff(parent, entry),
        )

    @property
    def receipt(self) -> str | None:
        """Reef's record id of the guidance call."""
        value = self.entry.metadata.get("agent_record_id")
        return value if isinstance(value, str) else None

    def as_json(self) -> dict[str, Any]:
        """The same facts as plain JSON values; the program is bit-exact."""
        return {
            "entry": self.entry.to_dict(),
            **_place_json(place_of(self.entry)),
            "best": self.best,
            "state": self.node,
            "parent_entry_id": None if self.parent is None else self.parent.id,
            "parent_raw_score": None if self.parent is None else self.parent.verifier_raw_score,
            "receipt": self.receipt,
            "journal": None
            if self.journal is None
            else {"path": str(self.journal.path), "lines": dict(self.journal.lines)},
            "verdict": None if self.journal is None else self.journal.verdict,
            "diff_to_parent": self.diff,
        }


def program_diff(parent: LibraryEntry, entry: LibraryEntry) -> str | None:
    """A unified diff of the two programs; None when there is no program or comparing them would take too long."""
    before, after = parent.solution.splitlines(), entry.solution.splitlines()
    if not entry.has_program or len(before) + len(after) > MAX_DIFF_LINES:
        return None
    lines = difflib.unified_diff(before, after, f"parent {parent.id}", f"entry {entry.id}", lineterm="")
    return "\n".join(lines)


def render_entry(view: ArchiveView, facts: EntryFacts) -> str:
    """One candidate in full: verdict, origin, guidance, summary, what changed, program."""
    entry = facts.entry
    sections = [
        "\n".join(_entry_head(view, facts)),
        _section("guidance", entry.guidance or "(none: its format was refused)" if entry.timestep else "(the seed)"),
        _section("summary", entry.summary),
    ]
    if facts.parent is not None:
        why = "(no program)" if not entry.has_program else "(too long to compare)"
        sections.append(_section("changes from the parent", why if facts.diff is None else facts.diff or "(none)"))
    title = f"program ({len(entry.solution.splitlines())} lines, sha256 {program_sha256(entry.solution)})"
    sections.append(_section(title, entry.solution or "(none)"))
    return "\n\n".join(sections)


def _entry_head(view: ArchiveView, facts: EntryFacts) -> list[str]:
    entry, parent, node = facts.entry, facts.parent, facts.node
    score = _score(entry.verifier_raw_score)
    if parent is not None:
        score += f"   (parent {_score(parent.verifier_raw_score)}{_gain(parent, entry)})"
    rows = [
        ("entry", entry.id + ("   (the best)" if facts.best else "")),
        ("found", place_of(entry).describe()),
        ("verdict", f"{entry.verifier_status}: {one_line(entry.verifier_message, 400)}"),
        ("score", f"{score}   reward {entry.verifier_reward:g}"),
    ]
    if parent is not None:
        rows.append(("parent", f"{parent.id}   {place_of(parent).describe()}"))
    if node is None:
        rows.append(("state", "none: not valid, a repetition, or pruned since"))
    else:
        counts = f"{node['visits']} visits, {node['children']} children, selected {node['selected']} times"
        rows.append(("state", f"{node['node_id']}   {counts}" + ("" if node["selectable"] else "   (not selectable)")))
    if facts.receipt is not None:
        rows.append(("receipt", facts.receipt))
    if facts.journal is not None:
        lines = ", ".join(f"{kind} line {number}" for kind, number in facts.journal.lines.items())
        rows.append(("journal", f"{facts.journal.path}: {lines or 'no record of it'}"))
        artifacts = (facts.journal.verdict or {}).get("artifacts")
        if artifacts:
            rows.append(("judge", one_line(safe_json(artifacts, indent=None), 600)))
    return [f"{name:<9} {visible(text)}" for name, text in rows]


# --- lineage ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hop:
    """One improvement on the way: the candidate and what it was made from."""

    entry: LibraryEntry
    parent: LibraryEntry | None

    def as_json(self) -> dict[str, Any]:
        """The hop without its program."""
        entry = self.entry
        return {
            "entry_id": entry.id,
            "parent_entry_id": None if self.parent is None else self.parent.id,
            **_place_json(place_of(entry)),
            "verifier_status": entry.verifier_status,
            "raw_score": entry.verifier_raw_score,
            "reward": entry.verifier_reward,
            "guidance": entry.guidance,
            "summary": entry.summary,
            "receipt": entry.metadata.get("agent_record_id"),
        }


def hops_to(view: ArchiveView, entry: LibraryEntry) -> list[Hop]:
    """The hops from the seed to a candidate."""
    path = view.lineage(entry)
    return [Hop(item, parent) for item, parent in zip(path, [None, *path], strict=False)]


def render_lineage(view: ArchiveView, hops: list[Hop]) -> str:
    """Each hop with its score, its gain and the guidance that produced it."""
    blocks = []
    for hop in hops:
        entry = hop.entry
        gain = "" if hop.parent is None else _gain(hop.parent, entry)
        best = "   (the best)" if entry.id == view.best.id else ""
        head = f"{place_of(entry).describe():<16} {_score(entry.verifier_raw_score)}{gain}   {view.short_id(entry.id)}"
        text = entry.summary if entry.timestep == 0 else entry.guidance or "(its format was refused)"
        blocks.append(visible(head + best) + "\n" + indented(text.strip()))
    return "\n\n".join(blocks)


# --- small parts ------------------------------------------------------------------------------------------------------


def _section(title: str, text: str) -> str:
    return f"--- {title}\n{visible(text)}"


def _score(value: float | None) -> str:
    return "no score" if value is None else f"{value:.4f}" if abs(value) < 1e7 else f"{value:.6g}"


def _gain(parent: LibraryEntry, entry: LibraryEntry) -> str:
    before, after = parent.verifier_raw_score, entry.verifier_raw_score
    return "" if before is None or after is None else f", {after - before:+.4f}"


def _place_json(place: Place) -> dict[str, int | None]:
    return {"step": place.step, "attempt": place.attempt, "group": place.group, "rollout": place.rollout}
