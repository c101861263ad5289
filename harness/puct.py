"""PUCT over the archive, as pure functions: which state is worth expanding next.

    score(i) = Q(i) + c * s * P(i) * sqrt(1 + T) / (1 + n_i)

`T` counts all rollouts ever submitted, `n_i` those submitted in the subtree of `i`, `s` is the spread of the archive's
values, `P` falls with the rank of a state's own value and `Q` is its own value or that of its best child.  Knows
nothing about files, groups or blocking.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from harness.state import LibraryNode

PUCT_Q_BLEND = "blended"
PUCT_Q_BEST_CHILD = "best_child"
SUPPORTED_PUCT_Q_MODES = (PUCT_Q_BLEND, PUCT_Q_BEST_CHILD)
OWN_VALUE_WEIGHT = 0.8
BEST_CHILD_WEIGHT = 0.2
MIN_SCALE = 1e-6


class RankedNode(NamedTuple):
    """One node with its score and the terms that make it up, so that `inspect` can explain a choice."""

    score: float
    value: float
    node: LibraryNode
    visit_count: int
    q: float
    prior: float
    bonus: float


def normalize_puct_q_mode(mode: str | None) -> str:
    """Return the canonical name of a Q mode (blank means `blended`); ValueError lists the choices for any other."""
    name = (mode or "").strip().lower() or PUCT_Q_BLEND
    if name not in SUPPORTED_PUCT_Q_MODES:
        raise ValueError(f"puct_q_mode must be one of {', '.join(SUPPORTED_PUCT_Q_MODES)}; got {mode!r}")
    return name


def compute_scale(nodes: Sequence[LibraryNode], *, initial_ids: Collection[str]) -> float:
    """Return the spread of values among the nodes that the search made (among all while there are none)."""
    if not nodes:
        return 1.0
    values = [node.value for node in nodes if node.id not in initial_ids] or [node.value for node in nodes]
    return max(max(values) - min(values), MIN_SCALE)


def rank_priors(nodes: Sequence[LibraryNode]) -> dict[str, float]:
    """Return each node's prior: linear in its rank by value and summing to 1; equal values keep their input order."""
    count = len(nodes)
    total = count * (count + 1) / 2
    ordered = sorted(nodes, key=lambda node: node.value, reverse=True)
    return {node.id: (count - rank) / total for rank, node in enumerate(ordered)}


def archive_q(value: float, visit_count: int, best_reachable_value: float | None, q_mode: str) -> float:
    """Return the exploitation term; an expanded node with only worse children falls below its own value on purpose."""
    if visit_count <= 0 or best_reachable_value is None:
        return value
    if q_mode == PUCT_Q_BEST_CHILD:
        return best_reachable_value
    return OWN_VALUE_WEIGHT * value + BEST_CHILD_WEIGHT * best_reachable_value


def exploration_bonus(*, prior: float, scale: float, total_visits: int, visit_count: int, puct_c: float) -> float:
    """Return the exploration term."""
    return puct_c * scale * prior * math.sqrt(1.0 + total_visits) / (1.0 + visit_count)


def archive_puct_score(
    *,
    node: LibraryNode,
    visit_count: int,
    best_reachable_value: float | None,
    prior: float,
    scale: float,
    total_visits: int,
    puct_c: float,
    q_mode: str = PUCT_Q_BLEND,
) -> float:
    """Return the PUCT score of one node."""
    q = archive_q(node.value, visit_count, best_reachable_value, normalize_puct_q_mode(q_mode))
    return q + exploration_bonus(
        prior=prior, scale=scale, total_visits=total_visits, visit_count=visit_count, puct_c=puct_c
    )


def rank_archive_nodes(
    nodes: Sequence[LibraryNode],
    *,
    initial_ids: Collection[str],
    visit_counts: Mapping[str, int],
    best_reachable_values: Mapping[str, float],
    total_visits: int,
    puct_c: float,
    q_mode: str = PUCT_Q_BLEND,
) -> list[RankedNode]:
    """Return the nodes best first; ties go to the higher own value, then to the lexically larger id."""
    mode = normalize_puct_q_mode(q_mode)
    scale = compute_scale(nodes, initial_ids=initial_ids)
    priors = rank_priors(nodes)
    ranked: list[RankedNode] = []
    for node in nodes:
        count = visit_counts.get(node.id, 0)
        q = archive_q(node.value, count, best_reachable_values.get(node.id), mode)
        bonus = exploration_bonus(
            prior=priors[node.id], scale=scale, total_visits=total_visits, visit_count=count, puct_c=puct_c
        )
        ranked.append(RankedNode(q + bonus, node.value, node, count, q, priors[node.id], bonus))
    ranked.sort(key=lambda item: (item.score, item.value, item.node.id), reverse=True)
    return ranked
