"""The advantages against fixed numbers, and the properties that make them independent of a task's reward scale."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reef.core.batches import TrainingBatch, TrajectoryItem

from tttd.objective import PAIR_ADVANTAGE_BOUND, TttdObjective, adaptive_beta, entropic_advantages

VECTORS = [
    ([1, 2, 3, 4], 1.44586, [-0.969633, -0.866698, -0.338701, 8.865418]),
    (
        [0, 1, 0, 1, 2, 3, 5, 8],
        0.400245,
        [-0.831375, -0.745361, -0.831375, -0.745361, -0.613102, -0.406531, 0.474810, 8.595551],
    ),
    ([0, 0, 0, 1], 2.55324, [-0.797963, -0.797963, -0.797963, 11.8487]),
    ([0, 1, 1, 1], 2.0**20, [-1, 0.5, 0.5, 0.5]),
    ([0, 0, 1, 1], 41.8402, [-1, -1, 2, 2]),
]


@pytest.mark.parametrize(("rewards", "beta", "advantages"), VECTORS)
def test_known_groups_have_the_known_beta_and_advantages(
    rewards: list[float], beta: float, advantages: list[float]
) -> None:
    assert adaptive_beta(rewards) == pytest.approx(beta, rel=2e-6)
    assert entropic_advantages(rewards) == pytest.approx(advantages, rel=2e-5, abs=1e-6)


def test_a_group_of_two_is_bounded_instead_of_diverging() -> None:
    assert adaptive_beta([0, 1]) == pytest.approx(41.1297, rel=1e-5)
    assert entropic_advantages([0, 1]) == pytest.approx([-1, PAIR_ADVANTAGE_BOUND])


def test_the_bound_is_reached_by_no_larger_group() -> None:
    assert max(entropic_advantages([0.0] * 127 + [1.0])) > PAIR_ADVANTAGE_BOUND


@pytest.mark.parametrize("rewards", [[], [math.nan, 1.0], [math.inf, 0.0]])
def test_an_empty_group_or_a_reward_that_is_no_number_is_refused(rewards: list[float]) -> None:
    with pytest.raises(ValueError, match=r"reward"):
        entropic_advantages(rewards)


def test_equal_rewards_carry_no_signal() -> None:
    assert adaptive_beta([7.0, 7.0, 7.0]) == 2.0**20
    assert entropic_advantages([7.0, 7.0, 7.0]) == pytest.approx([0, 0, 0], abs=1e-11)
    assert adaptive_beta([7.0]) == 0.0


groups = st.lists(st.integers(0, 1000).map(float), min_size=3, max_size=12).filter(
    lambda rewards: len(set(rewards)) > 1
)


@given(groups, st.floats(0.5, 50), st.integers(-1000, 1000))
def test_advantages_do_not_depend_on_the_scale_or_offset_of_rewards(
    rewards: list[float], scale: float, offset: int
) -> None:
    if adaptive_beta(rewards) > 20:  # at the edge of the budget only rounding decides
        return
    moved = [scale * reward + offset for reward in rewards]
    assert entropic_advantages(moved) == pytest.approx(entropic_advantages(rewards), rel=1e-5, abs=1e-5)


@given(groups)
def test_better_rewards_never_get_smaller_advantages(rewards: list[float]) -> None:
    pairs = sorted(zip(rewards, entropic_advantages(rewards), strict=True))
    assert all(low[1] <= high[1] for low, high in itertools.pairwise(pairs))


def trajectory(reward: float, group: str) -> TrajectoryItem:
    document = {
        "schema_version": "ATIF-v1.7",
        "agent": {"name": "a"},
        "steps": [{}],
        "extra": {"reef": {"reward": reward}},
    }
    return TrajectoryItem(document, group_id=group)


def test_the_objective_concatenates_the_groups_in_batch_order() -> None:
    rewards = [1.0, 2.0, 3.0, 4.0]
    batch = TrainingBatch("b", tuple(trajectory(r, g) for g in "01" for r in rewards))
    signal = TttdObjective().prepare(batch, {"steps": 4})
    assert signal.action == "train"
    assert signal.next_algorithm_state == {"steps": 5}
    assert signal.advantages == tuple(entropic_advantages(rewards) * 2)
    assert signal.metrics["advantages"] == list(signal.advantages)
    assert signal.metrics["adaptive_betas"] == [adaptive_beta(rewards)] * 2
    assert signal.metrics["constant_groups_retained"] == 0
    assert signal.metrics["steps"] == 5


def test_the_objective_says_when_only_a_constant_group_is_left() -> None:
    batch = TrainingBatch("b", tuple(trajectory(2.0, "0") for _ in range(4)))
    assert TttdObjective().prepare(batch, {}).metrics["constant_groups_retained"] == 1


def test_the_objective_refuses_an_ungrouped_or_empty_batch() -> None:
    with pytest.raises(ValueError, match="group"):
        TttdObjective().prepare(TrainingBatch("b"), {})
    with pytest.raises(ValueError, match="group_id"):
        TttdObjective().prepare(TrainingBatch("b", (replace(trajectory(1.0, "0"), group_id=None),)), {})
