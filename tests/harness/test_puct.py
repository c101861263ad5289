"""The PUCT rules as pure functions."""

from __future__ import annotations

import math

import pytest

from harness.puct import (
    archive_puct_score,
    archive_q,
    compute_scale,
    normalize_puct_q_mode,
    rank_archive_nodes,
    rank_priors,
)
from harness.state import LibraryNode


def node(node_id: str, value: float, parent_id: str | None = "root") -> LibraryNode:
    return LibraryNode(node_id, "0", 0 if parent_id is None else 1, None, value, value, 0, parent_id)


@pytest.mark.parametrize("mode", ["best", "blended2", "best-child"])
def test_an_unknown_q_mode_is_refused_with_the_choices(mode: str) -> None:
    with pytest.raises(ValueError, match="blended, best_child"):
        normalize_puct_q_mode(mode)


@pytest.mark.parametrize(
    ("mode", "name"), [(None, "blended"), ("", "blended"), (" Best_Child ", "best_child"), ("BLENDED", "blended")]
)
def test_q_modes_are_normalised(mode: str | None, name: str) -> None:
    assert normalize_puct_q_mode(mode) == name


def test_the_scale_is_the_spread_of_the_nodes_that_the_search_made() -> None:
    roots = [node("r1", 0.0, None), node("r2", 100.0, None)]
    assert compute_scale([], initial_ids=()) == 1.0
    assert compute_scale(roots, initial_ids={"r1", "r2"}) == 100.0
    assert compute_scale([*roots, node("a", 5.0)], initial_ids={"r1", "r2"}) == 1e-6
    assert compute_scale([*roots, node("a", 5.0), node("b", 8.0)], initial_ids={"r1", "r2"}) == 3.0


def test_priors_are_linear_in_the_rank_and_sum_to_one() -> None:
    priors = rank_priors([node("a", 1.0), node("b", 3.0), node("c", 2.0)])
    assert priors == {"b": 3 / 6, "c": 2 / 6, "a": 1 / 6}
    assert sum(priors.values()) == pytest.approx(1.0)
    assert rank_priors([]) == {}


def test_equal_values_keep_their_input_order_in_the_priors() -> None:
    priors = rank_priors([node("b", 1.0), node("a", 1.0)])
    assert priors["b"] > priors["a"]


def test_the_best_child_replaces_the_own_value_even_when_it_is_worse() -> None:
    assert archive_q(100.0, 1, 50.0, "best_child") == 50.0
    assert archive_q(100.0, 1, 50.0, "blended") == pytest.approx(90.0)
    assert archive_q(100.0, 0, 50.0, "best_child") == 100.0
    assert archive_q(100.0, 3, None, "best_child") == 100.0


def test_one_score_follows_the_formula() -> None:
    score = archive_puct_score(
        node=node("a", 10.0),
        visit_count=3,
        best_reachable_value=12.0,
        prior=0.25,
        scale=8.0,
        total_visits=15,
        puct_c=2.0,
        q_mode="best_child",
    )
    assert score == pytest.approx(12.0 + 2.0 * 8.0 * 0.25 * math.sqrt(16) / 4)


def test_ties_go_to_the_higher_own_value_then_to_the_larger_id() -> None:
    ranked = rank_archive_nodes(
        [node("a", 5.0), node("b", 5.0), node("c", 7.0)],
        initial_ids=(),
        visit_counts={"c": 4},
        best_reachable_values={"c": 5.0},
        total_visits=4,
        puct_c=0.0,
        q_mode="best_child",
    )
    assert [item.node.id for item in ranked] == ["c", "b", "a"]
    assert [item.score for item in ranked] == [5.0, 5.0, 5.0]


def test_many_visits_let_a_less_visited_state_overtake() -> None:
    nodes = [node("good", 10.0), node("fair", 9.0), node("poor", 0.0)]
    ranked = rank_archive_nodes(
        nodes,
        initial_ids=(),
        visit_counts={"good": 50},
        best_reachable_values={"good": 10.0},
        total_visits=50,
        puct_c=1.0,
        q_mode="best_child",
    )
    assert ranked[0].node.id == "fair"


def test_an_archive_of_equal_values_still_ranks() -> None:
    nodes = [node(name, 1.0) for name in "abc"]
    ranked = rank_archive_nodes(
        nodes, initial_ids=(), visit_counts={}, best_reachable_values={}, total_visits=0, puct_c=1.0
    )
    assert [item.node.id for item in ranked] == ["a", "b", "c"]
    assert all(math.isfinite(item.score) for item in ranked)
