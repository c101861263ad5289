"""Pruning at the end of a step: which states stay selectable, which stay only as ancestors, which go.

A pure decision (`plan_filter`) and its execution (`apply_filter`).  Entries and groups are never pruned, so nothing
that was paid for is forgotten.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from harness.archive_state import ArchiveSettings, ArchiveState, is_candidate, rank_key
from harness.state import LibraryNode


@dataclass(frozen=True)
class FilterPlan:
    """Ids of the nodes that stay selectable, and of all nodes that stay (candidates and their ancestors)."""

    candidate_ids: frozenset[str]
    kept_ids: frozenset[str]


def plan_filter(state: ArchiveState, settings: ArchiveSettings) -> FilterPlan:
    """Return what to keep: roots, the best children of each parent, no construction twice, within the size limit."""
    candidates = sorted((node for node in state.nodes.values() if is_candidate(node)), key=rank_key, reverse=True)
    roots = [node for node in candidates if node.is_root]
    others = _best_per_parent(candidates, settings.topk_children)
    others = _without_duplicates(state, roots, others)
    if settings.max_buffer_size > 0:
        others = others[: max(0, settings.max_buffer_size - len(roots))]
    candidate_ids = frozenset(node.id for node in [*roots, *others])
    kept = {node.id for node in state.nodes.values() if node.is_root}
    for node_id in candidate_ids:
        for ancestor in state.lineage(node_id):
            kept.add(ancestor.id)
    return FilterPlan(candidate_ids, frozenset(kept))


def apply_filter(state: ArchiveState, plan: FilterPlan) -> None:
    """Delete what the plan drops, with its statistics, and mark what stays only as an ancestor."""
    state.nodes = {node_id: node for node_id, node in state.nodes.items() if node_id in plan.kept_ids}
    for node in state.nodes.values():
        node.metadata["archive_candidate"] = node.id in plan.candidate_ids
        node.children = [child for child in node.children if child in plan.kept_ids]
    state.puct_n = {node_id: count for node_id, count in state.puct_n.items() if node_id in plan.kept_ids}
    state.puct_m = {node_id: value for node_id, value in state.puct_m.items() if node_id in plan.kept_ids}


def _best_per_parent(candidates: list[LibraryNode], topk: int) -> list[LibraryNode]:
    """Keep the first `topk` children of each parent, over the parent's whole life; the input is best first."""
    taken: dict[str, int] = defaultdict(int)
    kept: list[LibraryNode] = []
    for node in candidates:
        if node.parent_id is None:
            continue
        taken[node.parent_id] += 1
        if topk <= 0 or taken[node.parent_id] <= topk:
            kept.append(node)
    return kept


def _without_duplicates(state: ArchiveState, roots: list[LibraryNode], others: list[LibraryNode]) -> list[LibraryNode]:
    """Drop constructions that a root or a better node already has; replicated roots may repeat each other."""
    seen = {key for root in roots if (key := state.node_construction(root)) is not None}
    kept: list[LibraryNode] = []
    for node in others:
        key = state.node_construction(node)
        if key is not None and key in seen:
            continue
        if key is not None:
            seen.add(key)
        kept.append(node)
    return kept
