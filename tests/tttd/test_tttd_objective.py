"""The advantages against fixed numbers, and the properties that make them independent of a task's reward scale."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reef.core.batches import TrainingBatch, TrajectoryItem

from tttd.objective import PAIR_ADVANTAGE_BOUND, TttdObjective, adaptive_beta, entropic_advantages

unhurried = settings(deadline=None)
"""A busy machine may take its time over an example."""

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


# --- the published search, written down a second time -----------------------------------------------------------------


def published_beta(rewards: list[float]) -> float:
    """Doubling to at most 2^20, then exactly 60 bisections, as the method's own text has it."""

    def spends_the_budget(beta: float) -> bool:
        tilted = [math.exp(beta * (reward - max(rewards))) for reward in rewards]
        shares = [weight / sum(tilted) for weight in tilted]
        return sum(share * math.log(share * len(rewards)) for share in shares if share > 0) >= math.log(2)

    high = 1.0
    while not spends_the_budget(high) and high < 1e6:
        high *= 2
    if not spends_the_budget(high):
        return high
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if spends_the_budget(middle) else (middle, high)
    return high


def published_advantages(rewards: list[float]) -> list[float]:
    """Weight over the mean weight of the others, less one, without any bound."""
    tilted = [math.exp(published_beta(rewards) * (reward - max(rewards))) for reward in rewards]
    others = [sum(tilted[:index] + tilted[index + 1 :]) / (len(rewards) - 1) for index in range(len(rewards))]
    return [weight / (mean + 1e-12) - 1 for weight, mean in zip(tilted, others, strict=True)]


ordinary = st.floats(-1e6, 1e6, allow_subnormal=False)
whole = st.integers(0, 1000).map(float)


@unhurried
@given(st.lists(ordinary | whole, min_size=3, max_size=32))
def test_ordinary_rewards_get_the_published_advantages(rewards: list[float]) -> None:
    assert entropic_advantages(rewards) == pytest.approx(published_advantages(rewards), rel=1e-6, abs=1e-6)


def test_rewards_too_far_apart_for_the_published_search_get_the_advantages_of_nearer_ones() -> None:
    far, near = [0.0, 1.0, 2.0, 1e300], [0.0, 0.0, 0.0, 1.0]
    assert published_beta(far) == 2.0**-60
    assert entropic_advantages(far) == pytest.approx(entropic_advantages(near), rel=1e-5)
    assert adaptive_beta(far) == pytest.approx(adaptive_beta(near) / 1e300, rel=1e-5)


def test_a_close_race_beside_a_far_loser_is_still_resolved() -> None:
    far, near = [0.0, 1e13, 1e13 + 1], [-1e3, 0.0, 1.0]
    assert entropic_advantages(far) == pytest.approx(entropic_advantages(near), rel=1e-9)


def test_rewards_that_differ_by_less_than_the_search_can_tell_apart_carry_little_signal() -> None:
    assert adaptive_beta([0.0, 0.0, 0.0, 1e-7]) == 2.0**20
    assert 0 < max(entropic_advantages([0.0, 0.0, 0.0, 1e-7])) < 0.2
    assert entropic_advantages([0.0, 1e-300, 2e-300]) == pytest.approx([0, 0, 0], abs=1e-11)


# --- properties -------------------------------------------------------------------------------------------------------

magnitudes = st.tuples(st.integers(-300, 300), st.floats(1, 9.9), st.sampled_from((-1, 1))).map(
    lambda parts: parts[2] * parts[1] * 10.0 ** parts[0]
)
any_reward = whole | ordinary | magnitudes | st.just(0.0)
groups = st.lists(whole, min_size=3, max_size=24)
any_group = st.lists(any_reward, min_size=2, max_size=40)
large_groups = st.integers(0, 2**32).flatmap(
    lambda seed: st.tuples(st.integers(65, 512), st.integers(1, 400)).map(
        lambda shape: [float(random.Random(seed + index).randrange(shape[1])) for index in range(shape[0])]
    )
)


def largest_possible(count: int) -> float:
    """The winner's advantage when all others tie, by its own bisection on the winner's probability."""
    low, high = 1 / count, 1 - 1e-12
    for _ in range(100):
        middle = (low + high) / 2
        spent = math.log(count) + middle * math.log(middle) + (1 - middle) * math.log((1 - middle) / (count - 1))
        low, high = (middle, high) if spent < math.log(2) else (low, middle)
    return high * (count - 1) / (1 - high) - 1


def check_group(rewards: list[float]) -> None:
    """What holds for every group."""
    advantages = entropic_advantages(rewards)
    beta = adaptive_beta(rewards)
    assert math.isfinite(beta)
    assert all(map(math.isfinite, advantages))
    assert min(advantages) >= -1
    bound = PAIR_ADVANTAGE_BOUND if len(rewards) == 2 else largest_possible(len(rewards))
    assert max(advantages) <= bound * (1 + 1e-4)
    assert math.fsum(advantages) >= -1e-9
    ranked = sorted(zip(rewards, advantages, strict=True))
    assert all(low[1] <= high[1] for low, high in itertools.pairwise(ranked))
    assert all(low[1] == high[1] for low, high in itertools.pairwise(ranked) if low[0] == high[0])


@unhurried
@given(any_group)
@example([0.0, 1.0, 2.0, 1e300])
@example([-1.7e308, -1.7e308, 1.7e308])
@example([0.0, 5e-324, 1e-300, 1e300])
@example([1e300, math.nextafter(1e300, 0), 0.0])
@example([0.0, 0.0, 1.0, 1.0 + 1e-12])
def test_rewards_of_any_size_give_ordered_advantages_that_the_budget_allows(rewards: list[float]) -> None:
    check_group(rewards)


@settings(max_examples=25, deadline=None)
@given(large_groups)
def test_hundreds_of_rollouts_keep_the_same_rules(rewards: list[float]) -> None:
    check_group(rewards)


@unhurried
@given(st.tuples(any_reward, any_reward))
def test_the_winner_of_two_gets_at_most_the_bound_and_the_loser_at_least_minus_one(pair: tuple[float, float]) -> None:
    low, high = sorted(entropic_advantages(list(pair)))
    assert -1 <= low <= 1e-9
    assert -1e-9 <= high <= PAIR_ADVANTAGE_BOUND


@unhurried
@given(groups, st.integers(-1000, 1000))
def test_an_offset_of_all_rewards_changes_nothing(rewards: list[float], offset: int) -> None:
    assert entropic_advantages([reward + offset for reward in rewards]) == entropic_advantages(rewards)


@unhurried
@given(groups, st.integers(-9, 980))
@example([0.0, 0.0, 1.0, 1.0], 900)
def test_the_unit_of_rewards_changes_nothing(rewards: list[float], exponent: int) -> None:
    # Below 2^-9 the smallest gap of these groups could need a beta above 2^20, the search's limit.
    scaled = [math.ldexp(reward, exponent) for reward in rewards]
    assert entropic_advantages(scaled) == pytest.approx(entropic_advantages(rewards), rel=1e-4, abs=1e-4)


@unhurried
@given(any_group, st.randoms(use_true_random=False))
def test_the_order_of_rollouts_changes_nothing(rewards: list[float], random_source: random.Random) -> None:
    order = list(range(len(rewards)))
    random_source.shuffle(order)
    moved = entropic_advantages([rewards[index] for index in order])
    expected = entropic_advantages(rewards)
    assert moved == pytest.approx([expected[index] for index in order], rel=1e-5, abs=1e-6)


@unhurried
@given(st.integers(1, 256), st.integers(0, 256), st.floats(0.01, 1e200))
def test_when_half_or_more_tie_for_the_maximum_they_share_what_the_others_lose(
    losers: int, more: int, gap: float
) -> None:
    winners, count = losers + more, 2 * losers + more
    if winners < 2:
        return
    advantages = entropic_advantages([0.0] * losers + [gap] * winners)
    assert advantages[:losers] == pytest.approx([-1.0] * losers, abs=1e-6)
    assert advantages[losers:] == pytest.approx([(count - 1) / (winners - 1) - 1] * winners, rel=1e-6, abs=1e-6)
    if more:
        assert adaptive_beta([0.0] * losers + [gap] * winners) == 2.0**20


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
