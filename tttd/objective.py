"""Adaptive-beta entropic advantages: the pure maths of the method, and the Reef objective built on it.

Torch-free on purpose: Reef imports the objective before any worker exists, and both training engines (local and GPU)
take their per-trajectory advantages from here. Nothing in this module knows how a loss is computed.

The idea: inside one group of rollouts, tilt a uniform distribution towards high rewards, `p_i ~ exp(beta * r_i)`, and
pick `beta` so that the tilt always costs the same information, log 2 nats. The advantages are then independent of the
reward's scale and offset.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from reef.core.batches import TrainingBatch, trajectory_groups
from reef.core.trajectories import trajectory_reward
from reef.train.algos import TrainingObjective
from reef.train.algos.helpers import next_steps
from reef.train.algos.registry import register_loss_family_ref
from reef.train.algos.signals import StepSignal

KL_BUDGET_NATS = math.log(2.0)
"""How far the tilted distribution may lie from uniform."""

BETA_SEARCH_LIMIT = 1e6
"""Doubling stops at the first power of two above this, 2^20, which is the largest beta ever returned."""

BISECTIONS = 60
"""Bisections of the published search; it then returns the upper end of the interval that is left."""

BETA_RESOLUTION = 2.0**-20
"""The search may not end with an interval wider than this share of beta.

The published 60 bisections satisfy it by far, unless beta is below 2^-40, because rewards lie about 1e12 or more apart.
There the published interval gets as wide as beta itself, and beyond 1e18 its upper end spends up to log N nats: one
advantage of 1e12, -1 for all others.  Nothing but the number of bisections causes that, so the search goes on.
"""

PAIR_ADVANTAGE_BOUND = 32.0
"""Largest advantage of a group of two.

With two rollouts the budget log 2 is only approached as beta grows, so the winner's advantage would be about 1e12.
Larger groups reach the budget at a finite beta and need no bound: the winner of N gets most when all others tie, which
is 16.3 for N = 3, 10.6 for N = 6 (the least), and 118 for N = 512.
"""

_DENOMINATOR_FLOOR = 1e-12


def adaptive_beta(rewards: Sequence[float]) -> float:
    """The inverse temperature whose tilt of `rewards` spends exactly the KL budget.

    Returns 0 for a single reward and 2^20 when no smaller beta reaches the budget: all rewards are equal, most share
    the maximum, or they differ by less than about 1e-6.  This is exactly the published search, except for rewards so
    far apart that it would return a beta below 2^-40 (see `BETA_RESOLUTION`).

    Raises `ValueError` for an empty group or a reward that is not finite.
    """
    gaps = _gaps_to_best(rewards)
    if len(gaps) < 2:
        return 0.0
    upper = 1.0
    while _divergence(upper, gaps) < KL_BUDGET_NATS and upper < BETA_SEARCH_LIMIT:
        upper *= 2.0
    if _divergence(upper, gaps) < KL_BUDGET_NATS:
        return upper
    lower, bisections = 0.0, 0
    # This ends: for the widest gap between two floats beta is about 1e-308, still far above the smallest float.
    while bisections < BISECTIONS or upper - lower > BETA_RESOLUTION * upper:
        middle = (lower + upper) / 2.0
        if _divergence(middle, gaps) < KL_BUDGET_NATS:
            lower = middle
        else:
            upper = middle
        bisections += 1
    return upper


def entropic_advantages(rewards: Sequence[float]) -> list[float]:
    """Each rollout's tilted weight relative to the mean weight of its siblings, minus one.

    All lie between -1 and what the budget allows, and a better reward never gets less.  They add up to at least 0.  A
    group of two is bounded at `PAIR_ADVANTAGE_BOUND`.  Raises `ValueError` as `adaptive_beta` does.
    """
    gaps = _gaps_to_best(rewards)
    beta = adaptive_beta(rewards)
    weights = [math.exp(beta * gap) for gap in gaps]
    total = math.fsum(weights)
    siblings = len(weights) - 1
    advantages = []
    for weight in weights:
        others = (total - weight) / siblings if siblings else weight
        advantages.append(weight / (others + _DENOMINATOR_FLOOR) - 1.0)
    if len(advantages) == 2:
        return [min(advantage, PAIR_ADVANTAGE_BOUND) for advantage in advantages]
    return advantages


def _gaps_to_best(rewards: Sequence[float]) -> list[float]:
    """Rewards shifted so that the best is 0; a gap too wide for a float becomes the widest one that is not."""
    values = [float(reward) for reward in rewards]
    if not values:
        raise ValueError("a comparison group needs at least one reward, got none")
    if not all(map(math.isfinite, values)):
        raise ValueError(f"rewards must be finite numbers, got {values}")
    best = max(values)
    return [max(value - best, -sys.float_info.max) for value in values]


def _divergence(beta: float, gaps: Sequence[float]) -> float:
    """KL of the tilted distribution against uniform, in nats."""
    logits = [beta * gap for gap in gaps]
    log_total = math.log(sum(map(math.exp, logits)))
    log_count = math.log(len(gaps))
    divergence = 0.0
    for logit in logits:
        log_probability = logit - log_total
        probability = math.exp(log_probability)
        if probability > 0.0:
            divergence += probability * (log_probability + log_count)
    return divergence


class TttdObjective(TrainingObjective):
    """One advantage per trajectory, computed inside its comparison group; the KL term belongs to the engine."""

    name = "tttd"
    loss_family = "tttd"

    def prepare(self, batch: TrainingBatch, state: Mapping[str, Any]) -> StepSignal:
        """Advantages in batch order, and the step counter that Reef commits with the update."""
        rewards = [[trajectory_reward(item) for item in group] for group in trajectory_groups(batch)]
        if not rewards:
            raise ValueError(f"batch {batch.batch_id!r} holds no comparison group")
        advantages = tuple(advantage for group in rewards for advantage in entropic_advantages(group))
        steps = next_steps(state)
        metrics = {
            "advantages": list(advantages),
            "adaptive_betas": [adaptive_beta(group) for group in rewards],
            "constant_groups_retained": int(all(len(set(group)) == 1 for group in rewards)),
            "steps": steps,
        }
        return StepSignal("train", {"steps": steps}, metrics, advantages)


# By name only: Reef imports the family where Slime runs, and the local engine has its own loss.
register_loss_family_ref(TttdObjective.loss_family, "tttd.slime:TttdAlgorithm")
