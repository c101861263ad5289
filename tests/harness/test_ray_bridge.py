"""The GPU profile's training barrier: what the trainer and Reef must both say before a step counts."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml
from training_documents import SCENARIO, Scripted, health, status

from harness.errors import ConfigError, ServiceUnavailable, TrainingFailed, TrainingStalled
from harness.ray_bridge import (
    Baseline,
    RayTrainer,
    RayTrainingBridge,
    TrainerAddress,
    TrainerUnavailable,
    trained_exactly,
    trainer_address,
    trainer_fault,
    trainer_state,
)

ADDRESS = TrainerAddress("127.0.0.1:6379", "reef", "reef-train-bridge")


def bridge(reef: Scripted, trainer: Scripted, **times: float) -> RayTrainingBridge:
    settings = {"timeout_s": 5.0, "poll_interval_s": 0.0, "error_grace_s": 0.05, "outage_grace_s": 0.05, **times}
    return RayTrainingBridge(reef, trainer, SCENARIO, **settings)


async def started(reef: Scripted, trainer: Scripted, **times: float) -> RayTrainingBridge:
    """A bridge that has read the state before step 0, as a run does."""
    waiting = bridge(reef, trainer, **times)
    await waiting.state()
    return waiting


# --- a step ---------------------------------------------------------------------------------------------------------


async def test_a_step_counts_once_reef_has_committed_it_and_the_trainer_serves_it() -> None:
    reef = Scripted(status(0), status(0), status(1), status(1))
    trainer = Scripted(health(0), health(0, phase="training"), health(1, phase="awaiting_commit"), health(1))
    serving = await (await started(reef, trainer)).wait_for_step(0, 1)
    assert (serving.completed_steps, serving.load_id, serving.open) == (1, "x:1", True)
    assert serving.metrics["train/grad_norm"] == 0.1
    assert trainer.reads == 4


async def test_a_trained_step_is_not_done_before_reef_has_committed_it() -> None:
    reef = Scripted(status(0), status(0), status(0), status(1))
    waiting = await started(reef, Scripted(health(0), health(1)))
    assert (await waiting.wait_for_step(0, 1)).completed_steps == 1
    assert reef.reads == 4


async def test_another_rollout_than_the_next_one_is_refused() -> None:
    other = health(1, last_train_rollout_id=4)
    with pytest.raises(TrainingFailed, match="last_train_rollout_id is 4, 0 expected"):
        await (await started(Scripted(status(0), status(1)), Scripted(health(0), other))).wait_for_step(0, 1)


async def test_more_updates_than_one_are_refused() -> None:
    reef, trainer = Scripted(status(0), status(1)), Scripted(health(0), health(2))
    with pytest.raises(TrainingFailed, match="made 2 updates since its start, 1 expected"):
        await (await started(reef, trainer)).wait_for_step(0, 1)


async def test_a_run_that_is_continued_on_a_running_trainer_counts_from_there() -> None:
    reef, trainer = Scripted(status(3), status(4), status(5)), Scripted(health(1, next_id=3), health(2, next_id=4))
    waiting = await started(reef, trainer)
    assert (await waiting.wait_for_step(3, 1)).completed_steps == 4
    trainer.answers = [health(3, next_id=5)]
    assert (await waiting.wait_for_step(4, 1)).completed_steps == 5


async def test_a_trainer_that_was_replaced_in_mid_step_does_not_hold_up_a_committed_step() -> None:
    reef = Scripted(status(5), status(5), status(6))
    trainer = Scripted(health(5, next_id=5), TrainerUnavailable("gone"), health(0, next_id=6))
    waiting = await started(reef, trainer, outage_grace_s=60.0)
    serving = await waiting.wait_for_step(5, 1)
    assert serving.metrics["train/grad_norm"] == 0.1  # of Reef's commit: the new trainer has none
    trainer.answers, reef.answers = [health(1, next_id=7)], [status(7)]
    assert (await waiting.wait_for_step(6, 1)).completed_steps == 7


async def test_a_discarded_step_fails_at_once_with_reason_and_releases() -> None:
    failed = {"failed_steps": [{"step": 0, "reason": "mixed_release_ids", "release_ids": ["a", "b"]}]}
    reef = Scripted(status(0), status(0, processor=failed))
    with pytest.raises(TrainingFailed, match=r"step 0: mixed_release_ids \(releases: a, b\)"):
        await (await started(reef, Scripted(health(0)))).wait_for_step(0, 1)


@pytest.mark.parametrize("ok", [False, None, 1, "true"])
async def test_a_trainer_that_is_not_well_fails_the_step_with_its_phase(ok: object) -> None:
    ill = health(0, phase="training_failed", ok=ok)
    with pytest.raises(TrainingFailed, match=r"phase 'training_failed', job 'COMPLETE'.*slime-driver"):
        await (await started(Scripted(status(0)), Scripted(health(0), ill))).wait_for_step(0, 1)


async def test_a_fault_that_the_trainer_says_it_will_mend_is_given_time_but_not_for_ever() -> None:
    ill = health(0, phase="weight_sync_failed", ok=False, recoverable=True)
    reef = Scripted(status(0), status(0), status(1))
    waiting = await started(reef, Scripted(health(0), ill, health(1)), error_grace_s=60.0)
    assert (await waiting.wait_for_step(0, 1)).completed_steps == 1
    with pytest.raises(TrainingFailed, match="weight_sync_failed"):
        await (await started(Scripted(status(0)), Scripted(health(0), ill))).wait_for_step(0, 1)


async def test_a_short_silence_of_the_trainer_is_tolerated_and_a_long_one_is_not() -> None:
    away = TrainerUnavailable("no such actor")
    reef = Scripted(status(0), status(1))
    waiting = await started(reef, Scripted(health(0), away, health(1)), outage_grace_s=60.0)
    assert (await waiting.wait_for_step(0, 1)).completed_steps == 1
    with pytest.raises(ServiceUnavailable, match="no such actor"):
        await (await started(Scripted(status(0)), Scripted(health(0), away))).wait_for_step(0, 1)


async def test_the_deadline_is_a_training_error_that_carries_both_last_documents() -> None:
    trainer = Scripted(health(0), health(0, phase="training"))
    both = r"Reef's last status: .*scenario_step.*trainer's last health: .*training"
    with pytest.raises(TrainingStalled, match=both) as caught:
        await (await started(Scripted(status(0)), trainer, timeout_s=0.05)).wait_for_step(0, 1)
    assert not isinstance(caught.value, TimeoutError)


async def test_a_run_does_not_begin_while_an_earlier_grid_is_training() -> None:
    reef = Scripted(status(0, admission=False), status(1))
    trainer = Scripted(health(0, phase="training"), health(1, phase="awaiting_commit"), health(1))
    waiting = bridge(reef, trainer, outage_grace_s=0.0)  # an update is no outage, however long it takes
    assert (await waiting.state()).completed_steps == 1
    reef.answers, trainer.answers = [status(2)], [health(2)]
    assert (await waiting.wait_for_step(1, 1)).completed_steps == 2


async def test_a_run_does_not_begin_on_a_trainer_that_is_not_well() -> None:
    with pytest.raises(TrainingFailed, match="training_failed"):
        await bridge(Scripted(status(0)), Scripted(health(0, ok=False, phase="training_failed"))).state()


# --- the rules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trainer", "baseline", "step", "expected"),
    [
        (health(0), Baseline(0, 0, 0), 0, False),
        (health(1), Baseline(0, 0, 0), 0, True),
        (health(3, next_id=9), Baseline(7, 2, 8), 7, True),
        (health(2, next_id=8), Baseline(7, 2, 8), 7, False),
        (health(0, next_id=9), Baseline(7, 2, 8), 7, True),  # replaced; its update was found finished
        (health(0, next_id=8), Baseline(7, 2, 8), 7, False),  # replaced; its update is to be made again
        (health(4, next_id=10), Baseline(7, 2, 8), 8, True),
    ],
)
def test_when_the_trainer_has_made_the_update(
    trainer: dict[str, Any], baseline: Baseline, step: int, expected: bool
) -> None:
    assert trained_exactly(trainer_state(trainer), baseline, step) is expected


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"completed_train_steps": True}, "completed_train_steps"),
        ({"completed_train_steps": "1"}, "completed_train_steps"),
        ({"completed_train_steps": -1}, "completed_train_steps"),
        ({"completed_train_steps": None}, "completed_train_steps"),
        ({"start_rollout_id": 1.0}, "start_rollout_id"),
        ({"last_train_rollout_id": True}, "last_train_rollout_id"),
        ({"last_train_metrics": [1]}, "last_train_metrics"),
        ({"phase": None}, "phase"),
        ({"phase": 3}, "phase"),
    ],
)
def test_a_malformed_health_is_refused_by_name(changed: dict[str, Any], name: str) -> None:
    with pytest.raises(TrainingFailed, match=name):
        trainer_state(health(1, **changed))


@pytest.mark.parametrize("times", [{"timeout_s": 0.0}, {"timeout_s": -1.0}, {"poll_interval_s": -0.1}])
def test_impossible_times_are_refused_before_ray_is_needed(
    times: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtins, "__import__", forbidding("ray"))
    with pytest.raises(ValueError, match="must be positive"):
        bridge(Scripted({}), RayTrainer(ADDRESS), **times)  # type: ignore[arg-type]


# --- Reef's own coordinator -----------------------------------------------------------------------------------------


def coordinator(phase: str = "serving", next_id: int = 0) -> Any:
    """Reef's training coordinator without workers: its health and its counting are the real ones."""
    from reef.runtime.scheduler import TrainingCoordinator

    real = object.__new__(TrainingCoordinator)
    real._training = SimpleNamespace(check_health=lambda: None)
    real._publication = SimpleNamespace(phase=phase)
    real._context = SimpleNamespace(next_rollout_id=next_id, history=None)
    real._config = SimpleNamespace(save_hf_template="hf/{rollout_id}", colocate=True, lora=True)
    real._weight_publisher = SimpleNamespace(residency=None)
    real._store = SimpleNamespace(read=lambda: {"status": "COMPLETE", "job_id": "j", "runtime_load_id": "x:1"})
    real._inference_url = "http://10.0.0.2:30000"
    real._operation_lock = Lock()
    real._completed_train_steps, real._last_train_rollout_id, real._last_train_metrics = 0, None, {}
    return real


def test_reefs_own_health_is_read_before_and_after_an_update() -> None:
    real = coordinator(next_id=7)
    before = trainer_state(real.health())
    assert (before.phase, before.completed_steps, before.next_rollout_id) == ("serving", 0, 7)
    assert before.last_rollout_id is None
    real._record_completed_step({"rollout_id": 7, "train_metrics": {"train/grad_norm": 0.5}})
    after = trainer_state(real.health())
    assert (after.completed_steps, after.next_rollout_id, after.last_rollout_id) == (1, 8, 7)
    assert (after.load_id, after.metrics) == ("x:1", {"train/grad_norm": 0.5})
    assert trained_exactly(after, Baseline(7, before.completed_steps, before.next_rollout_id), 7)


@pytest.mark.parametrize("phase", ["training_failed", "checkpoint_failed", "weight_sync_failed", "stopped"])
def test_reefs_failed_phases_are_faults(phase: str) -> None:
    with pytest.raises(TrainingFailed, match=phase):
        trainer_fault(coordinator(phase).health())


def test_a_failed_publication_that_reef_can_repeat_is_a_fault_that_may_heal() -> None:
    real = coordinator("weight_sync_failed")
    real._store = SimpleNamespace(read=lambda: {"status": "UPDATING_WEIGHTS", "job_id": "j"})
    assert "weight_sync_failed" in (trainer_fault(real.health()) or "")
    assert trainer_fault(coordinator().health()) is None


# --- the address ----------------------------------------------------------------------------------------------------


def runtime_file(state_dir: Path, text: str) -> Path:
    path = state_dir / "stack/slime-driver/runtime.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_the_trainer_is_where_reef_wrote_that_it_is(tmp_path: Path) -> None:
    section = {"ray_address": "10.0.0.2:6379", "ray_namespace": "reef", "ray_actor_name": "trainer", "tokens": ["t"]}
    runtime_file(tmp_path, yaml.safe_dump({"reef": section, "services": []}))
    assert trainer_address(tmp_path) == TrainerAddress("10.0.0.2:6379", "reef", "trainer")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "FileNotFoundError"),
        ("reef: {ray_address: 'sentinel-token", "ScannerError"),
        ("[]", "no reef.ray_address, reef.ray_namespace, reef.ray_actor_name"),
        ("reef: {ray_address: null, ray_namespace: n, ray_actor_name: ' ', token: sentinel-token}", "ray_actor_name"),
    ],
)
def test_a_missing_address_is_a_wrong_setting_that_shows_no_secret(
    tmp_path: Path, text: str | None, reason: str
) -> None:
    if text is not None:
        runtime_file(tmp_path, text)
    with pytest.raises(ConfigError, match=reason) as caught:
        trainer_address(tmp_path)
    assert "runtime.yaml" in str(caught.value)
    assert "GPU profile" in str(caught.value)
    assert "sentinel" not in str(caught.value)


# --- the actor ------------------------------------------------------------------------------------------------------


def forbidding(name: str) -> Callable[..., ModuleType]:
    real = builtins.__import__

    def guarded(module: str, *arguments: Any, **named: Any) -> ModuleType:
        if module == name:
            raise ImportError(f"No module named {name!r}")
        return real(module, *arguments, **named)

    return guarded


class FakeRay(ModuleType):
    """The few calls of Ray that are used, with one actor; `fault` is raised by `get`."""

    class exceptions:
        class RayError(Exception):
            pass

    def __init__(self, answer: Any, fault: Exception | None = None, missing: bool = False) -> None:
        super().__init__("ray")
        self.answer, self.fault, self.missing = answer, fault, missing
        self.connected: list[dict[str, Any]] = []

    def is_initialized(self) -> bool:
        return bool(self.connected)

    def init(self, **settings: Any) -> None:
        self.connected.append(settings)

    def get_actor(self, name: str, namespace: str) -> SimpleNamespace:
        if self.missing:
            raise ValueError(f"Failed to look up actor {name!r}")
        assert (name, namespace) == ("reef-train-bridge", "reef")
        return SimpleNamespace(health=SimpleNamespace(remote=lambda: "reference"))

    def get(self, reference: str, timeout: float) -> Any:
        assert (reference, timeout) == ("reference", 30.0)
        if self.fault is not None:
            raise self.fault
        return self.answer


async def test_the_actor_is_found_by_name_over_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay(health(2))
    monkeypatch.setitem(sys.modules, "ray", ray)
    trainer = RayTrainer(ADDRESS)
    assert await trainer() == health(2)
    await trainer()
    assert [(call["address"], call["namespace"]) for call in ray.connected] == [("127.0.0.1:6379", "reef")]


@pytest.mark.parametrize(
    "ray",
    [
        FakeRay(None, FakeRay.exceptions.RayError("Traceback ...\nActorDiedError: the node is gone")),
        FakeRay(None, ConnectionError("ActorDiedError: the node is gone")),
        FakeRay(None, missing=True),
    ],
)
async def test_a_silent_actor_is_a_fault_that_may_pass(monkeypatch: pytest.MonkeyPatch, ray: FakeRay) -> None:
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(TrainerUnavailable, match=r"'reef-train-bridge' \(Ray at 127.0.0.1:6379.*(is gone|look up)"):
        await RayTrainer(ADDRESS)()


async def test_an_answer_that_is_no_object_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", FakeRay(["ok"]))
    with pytest.raises(TrainingFailed, match="health is list"):
        await RayTrainer(ADDRESS)()


async def test_without_ray_the_setting_is_wrong_and_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "__import__", forbidding("ray"))
    with pytest.raises(ConfigError, match=r"ray is not installed here.*docs/gpu\.md.*GUIDANCE_PROFILE=local"):
        await RayTrainer(ADDRESS)()
