"""The loss family as Reef's Slime backend uses it: registration, hooks, argument checks and the payload of a step."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
from reef.core.batches import TrainingBatch, TrajectoryItem
from reef.runtime.interfaces import TrainingMethod
from reef.train.algos.registry import loss_family_refs
from reef.train.slime_backend.algorithm import resolve_objective_paths
from reef.train.slime_backend.data_builder import to_slime_rollout_data
from reef.train.slime_backend.loss_families import resolve_loss_family
from reef.train.slime_backend.reef_adapters.preflight import validate_advantage_computation
from reef.train.slime_backend.reef_adapters.preparation import prepare_slime_step

from tttd.objective import entropic_advantages
from tttd.recipe import TTTDRecipe
from tttd.slime import TttdAlgorithm

REFERENCE = "tttd.slime:TttdAlgorithm"


def arguments(**changed: Any) -> Namespace:
    """Parsed Slime arguments under which the method is trained."""
    settings = {
        "loss_family": "tttd",
        "loss_type": "custom_loss",
        "use_rollout_logprobs": True,
        "compute_advantages_and_returns": True,
        "kl_coef": 0.1,
        "context_parallel_size": 1,
        "normalize_advantages": False,
        "calculate_per_token_loss": False,
    }
    return Namespace(**(settings | changed))


def check(**changed: Any) -> None:
    resolve_loss_family(REFERENCE).validate_backend_args(arguments(**changed), recipe="tttd.recipe:TTTDRecipe")


def test_the_recipes_loss_family_is_found_by_name_without_importing_it() -> None:
    assert TTTDRecipe.training_spec().loss_family == "tttd"
    assert loss_family_refs()["tttd"] == REFERENCE
    assert isinstance(resolve_loss_family("tttd"), TttdAlgorithm)


def test_a_fresh_worker_finds_both_hooks() -> None:
    args = arguments(loss_family_ref=REFERENCE)
    resolve_objective_paths(args)
    assert args.custom_loss_function_path == "tttd.slime.objective.tttd_loss"
    assert args.custom_advantage_function_path == "tttd.slime.objective.tttd_advantages"


@pytest.mark.parametrize("kl_coef", [0.1, 1e-9, 7, 1e6])
def test_any_positive_kl_coefficient_is_accepted(kl_coef: float) -> None:
    check(kl_coef=kl_coef)


@pytest.mark.parametrize("kl_coef", [0, 0.0, -0.1, float("nan"), float("inf"), True, None, "0.1"])
def test_a_kl_coefficient_that_is_no_positive_number_is_refused_with_its_value(kl_coef: object) -> None:
    with pytest.raises(RuntimeError, match=f"tttd.recipe:TTTDRecipe: --kl-coef .*{kl_coef}"):
        check(kl_coef=kl_coef)


@pytest.mark.parametrize(
    ("changed", "option"),
    [
        ({"loss_type": "policy_loss"}, "--loss-type custom_loss"),
        ({"use_rollout_logprobs": False}, "--use-rollout-logprobs"),
        ({"compute_advantages_and_returns": False}, "--disable-compute-advantages-and-returns"),
        ({"context_parallel_size": 2}, "--context-parallel-size must be 1, got 2"),
        ({"normalize_advantages": True}, "--normalize-advantages"),
        ({"calculate_per_token_loss": True}, "--calculate-per-token-loss"),
    ],
)
def test_options_that_would_change_the_method_are_refused_by_name(changed: dict[str, Any], option: str) -> None:
    with pytest.raises(RuntimeError, match=option):
        check(**changed)


def test_slimes_advantage_pass_is_allowed_because_the_kl_is_added_there() -> None:
    validate_advantage_computation(arguments(), resolve_loss_family(REFERENCE))  # type: ignore[arg-type]


# --- a step's payload -----------------------------------------------------------------------------------------------

REWARDS = [[0.0, 1.0, 2.0], [5.0, 5.0, 1.0]]


def item(group: int, rollout: int) -> TrajectoryItem:
    response = 2 + rollout
    training = {
        "tokens": [1, 2, 3, *range(10, 10 + response)],
        "loss_mask": [1] * response,
        "rollout_log_probs": [-0.5] * response,
        "runtime_load_id": "x:0",
    }
    document = {
        "schema_version": "ATIF-v1.7",
        "agent": {"name": "a"},
        "steps": [{}],
        "extra": {"reef": {"reward": REWARDS[group][rollout], "training": training}},
    }
    return TrajectoryItem(document, group_id=str(group), source_agent_record_ids=(f"r{group}{rollout}",))


def payload() -> dict[str, Any]:
    batch = TrainingBatch("b", tuple(item(group, rollout) for group in range(2) for rollout in range(3)))
    prepared = prepare_slime_step(
        batch, TrainingMethod("tttd.objective:TttdObjective"), {"steps": 0}, TTTDRecipe.training_spec().scheduling
    )
    assert prepared.action == "train"
    assert prepared.payload is not None
    return dict(prepared.payload)


def test_a_grid_is_one_optimizer_step_with_an_advantage_for_every_response_token() -> None:
    data = to_slime_rollout_data(payload())
    advantages = [value for group in REWARDS for value in entropic_advantages(group)]
    assert data["advantages"] == [
        [advantage] * length for advantage, length in zip(advantages, [2, 3, 4] * 2, strict=True)
    ]
    assert [len(row) for row in data["rollout_log_probs"]] == [2, 3, 4] * 2
    # A configured batch that differs does not cut the grid: groups without a signal have been dropped from it.
    assert data["external_step_sizes"] == [6]


@pytest.mark.parametrize("missing", ["advantages", "rollout_log_probs"])
def test_a_payload_without_advantages_or_sampling_probabilities_is_refused(missing: str) -> None:
    broken = payload()
    if missing == "advantages":
        broken["advantages"] = None
    else:
        broken["samples"] = [[*row[:3], [], row[4]] for row in broken["samples"]]
    with pytest.raises(ValueError, match=r"tttd requires one (Reef advantage|rollout_log_prob)"):
        to_slime_rollout_data(broken)
