"""Waiting for an update: what counts as done, as failed and as still under way."""

from __future__ import annotations

import pytest
from training_documents import SCENARIO, Scripted, status

from harness.errors import PolicyUnavailable, TrainingFailed, TrainingStalled
from harness.training_bridge import ServiceTrainingBridge, failed_step, recorded_error, serving_state


def bridge(reef: Scripted, **times: float) -> ServiceTrainingBridge:
    settings = {"timeout_s": 5.0, "poll_interval_s": 0.0, "error_grace_s": 0.05, "outage_grace_s": 0.05, **times}
    return ServiceTrainingBridge(reef, SCENARIO, **settings)


async def test_a_step_discarded_for_mixed_releases_fails_at_once_with_the_releases() -> None:
    failed = {"failed_steps": [{"step": 0, "reason": "mixed_release_ids", "release_ids": ["a", "b"]}]}
    with pytest.raises(TrainingFailed, match=r"mixed_release_ids \(releases: a, b\)"):
        await bridge(Scripted(status(0, processor=failed))).wait_for_step(0, 1)


def test_a_discarded_earlier_attempt_does_not_fail_the_current_one() -> None:
    entry = {"step": 0, "attempt": 1, "reason": "stale_release", "release_ids": ["a"]}
    document = status(0, processor={"failed_steps": [entry]})
    assert failed_step(document, SCENARIO, 0, 2) is None
    assert failed_step(document, SCENARIO, 0, 1) == "stale_release (releases: a)"


async def test_a_standing_training_error_fails_with_its_text() -> None:
    with pytest.raises(TrainingFailed, match="out of memory"):
        await bridge(Scripted(status(0, error=f"{SCENARIO}: RuntimeError: out of memory"))).wait_for_step(0, 1)


async def test_an_error_that_heals_itself_does_not_stop_the_run() -> None:
    reef = Scripted(status(0, error=f"{SCENARIO}: RuntimeError: once"), status(0), status(1))
    assert (await bridge(reef, error_grace_s=60.0).wait_for_step(0, 1)).completed_steps == 1


async def test_a_short_outage_is_tolerated_and_a_long_one_is_not() -> None:
    away = PolicyUnavailable("connection refused")
    assert (await bridge(Scripted(away, status(1)), outage_grace_s=60.0).wait_for_step(0, 1)).load_id == "x:1"
    with pytest.raises(PolicyUnavailable):
        await bridge(Scripted(away)).wait_for_step(0, 1)


async def test_the_deadline_is_a_training_error_that_carries_the_last_status() -> None:
    with pytest.raises(TrainingStalled, match="scenario_step") as caught:
        await bridge(Scripted(status(0)), timeout_s=0.05).wait_for_step(0, 1)
    assert not isinstance(caught.value, TimeoutError)


async def test_a_committed_step_is_not_done_before_its_weights_are_served() -> None:
    reef = Scripted(status(1, admission=False), status(1, admission=False), status(1))
    assert (await bridge(reef).wait_for_step(0, 1)).open
    assert reef.reads == 3


async def test_a_run_begins_once_admission_is_open_and_not_at_a_service_that_never_opens() -> None:
    assert (await bridge(Scripted(status(1, admission=False), status(1)), outage_grace_s=60.0).state()).open
    with pytest.raises(TrainingStalled, match="an update is under way"):
        await bridge(Scripted(status(1, admission=False))).state()


async def test_a_run_waits_for_a_scenario_that_is_still_loading() -> None:
    loading = {"scenarios": {}}
    assert (await bridge(Scripted(loading, status(2)), outage_grace_s=60.0).state()).completed_steps == 2
    with pytest.raises(TrainingFailed, match="no scenario"):
        await bridge(Scripted(loading)).state()


async def test_more_committed_steps_than_waited_for_is_refused() -> None:
    with pytest.raises(TrainingFailed, match="committed 3 steps"):
        await bridge(Scripted(status(3))).wait_for_step(0, 1)


def test_another_scenarios_error_is_not_ours() -> None:
    document = status(0, error="other: RuntimeError: broken")
    document["scenarios"]["other"] = {}
    assert recorded_error(document, SCENARIO) is None
    assert recorded_error(status(0, error="training thread died"), SCENARIO) == "training thread died"
    assert recorded_error(status(0, error=7), SCENARIO) is not None  # type: ignore[arg-type]


def test_a_status_without_the_scenario_names_the_preload_error() -> None:
    with pytest.raises(TrainingFailed, match="disk full"):
        serving_state({"scenarios": {}, "preload_errors": {SCENARIO: "disk full"}}, SCENARIO)


@pytest.mark.parametrize("step", [True, -1, "1", None, 1.0])
def test_a_step_counter_that_is_no_whole_number_is_refused(step: object) -> None:
    with pytest.raises(TrainingFailed, match="scenario_step"):
        serving_state(status(step), SCENARIO)  # type: ignore[arg-type]


@pytest.mark.parametrize("entries", ["x", [3], [{"step": 0}], [{"step": 0, "reason": ""}]])
def test_malformed_failed_steps_are_refused(entries: object) -> None:
    with pytest.raises(TrainingFailed):
        failed_step(status(0, processor={"failed_steps": entries}), SCENARIO, 0, 1)


@pytest.mark.parametrize("times", [{"timeout_s": 0.0}, {"timeout_s": -1.0}, {"poll_interval_s": -0.1}])
def test_impossible_times_are_refused(times: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        bridge(Scripted({}), **times)
