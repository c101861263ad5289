"""Candidates always branch from the served checkpoint, and a retry never trains twice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support import grid_rows, tiny_policy
from reef.core.batches import StepScheduling, TrainingBatch, TrajectoryItem
from reef.runtime.interfaces import ModelCandidate, StaleCandidate, TrainingMethod, TrainingRuntimeError

from tttd.local import checkpoint, training_runtime
from tttd.local.checkpoint import BASE_CHECKPOINT, Manifest
from tttd.local.policy import PolicyModel
from tttd.local.settings import LocalTorchSettings
from tttd.local.shared_files import SharedFiles
from tttd.local.state import StateDirectory
from tttd.local.training_runtime import LocalTrainingRuntime

METHOD = TrainingMethod("tttd.objective:TttdObjective")
SCHEDULING = StepScheduling(unit="sample", batch_size="actual")


@dataclass
class Trainer:
    """A runtime whose state directory already serves the initial adapter."""

    policy: PolicyModel
    root: Path
    settings: LocalTorchSettings

    def __post_init__(self) -> None:
        self.state = StateDirectory(self.root, identity=self.policy.identity)
        self.load = self.state.loads.mint(BASE_CHECKPOINT)
        self.state.loads.publish(self.load)
        self.runtime = LocalTrainingRuntime(self.policy, self.state, self.settings)
        self.rows = grid_rows(self.policy, None, per_prompt=2)

    def payload(self, *, step: int = 0, best: int = 0, load: str | None = None, **changes: Any) -> dict[str, Any]:
        items = []
        for index, row in enumerate(self.rows):
            training = {
                "tokens": [*row.prompt, *row.response],
                "loss_mask": list(row.mask),
                "rollout_log_probs": list(row.log_probabilities),
                "runtime_load_id": load or self.load,
                **changes,
            }
            document = {
                "schema_version": "ATIF-v1.7",
                "agent": {"name": "a"},
                "steps": [{}],
                "extra": {"reef": {"reward": float(index % 2 == best), "training": training}},
            }
            items.append(TrajectoryItem(document, group_id=str(index // 2), source_agent_record_ids=(f"r{index}",)))
        prepared = self.runtime.prepare_training_step(
            TrainingBatch(f"batch-{step}", tuple(items)),
            METHOD,
            {"steps": step},
            SCHEDULING,
            step,
            serving_runtime_load_id=self.load,
        )
        assert prepared.action == "train"
        assert prepared.next_algorithm_state == {"steps": step + 1}
        assert prepared.payload is not None
        return dict(prepared.payload)

    def use(self, **changes: Any) -> None:
        """Other settings, on the same state directory."""
        self.runtime = LocalTrainingRuntime(self.policy, self.state, replace(self.settings, **changes))

    def train(self, **changes: Any) -> ModelCandidate:
        return self.runtime.train_candidate(self.payload(**changes))

    def publish(self, candidate: ModelCandidate) -> None:
        self.load = self.state.loads.mint(candidate.candidate_id)
        self.state.loads.publish(self.load)


@pytest.fixture(scope="module")
def policy(tiny_model: Path) -> PolicyModel:
    return tiny_policy(tiny_model)


@pytest.fixture
def trainer(policy: PolicyModel, tmp_path: Path) -> Iterator[Trainer]:
    trainer = Trainer(policy, tmp_path, LocalTorchSettings(str(tmp_path), lora_rank=4, learning_rate=0.01))
    yield trainer
    trainer.runtime.shutdown()


def steps(candidate: ModelCandidate) -> int:
    return Manifest.read(Path(candidate.checkpoint_path)).optimizer_steps


def parent(candidate: ModelCandidate) -> str:
    return Manifest.read(Path(candidate.checkpoint_path)).parent


def test_a_candidate_is_a_complete_checkpoint_with_metrics(trainer: Trainer) -> None:
    candidate = trainer.train()
    assert candidate.current_runtime_load_id == trainer.load
    assert candidate.training_metrics["train/global_batch_size"] == 4
    assert candidate.training_metrics["learning_rate"] == 0.01
    assert parent(candidate) == BASE_CHECKPOINT
    assert {path.name for path in Path(candidate.checkpoint_path).iterdir()} == {
        "adapter_model.safetensors",
        "adapter_config.json",
        "optimizer.safetensors",
        "tttd-checkpoint.json",
    }


def test_a_retry_of_the_same_step_finds_the_finished_candidate(trainer: Trainer) -> None:
    first = trainer.train()
    manifest = Path(first.checkpoint_path) / "tttd-checkpoint.json"
    written = manifest.stat().st_mtime_ns
    again = trainer.train()
    assert again.candidate_id == first.candidate_id
    assert manifest.stat().st_mtime_ns == written


def test_attempts_that_are_not_committed_never_build_on_each_other(trainer: Trainer) -> None:
    first, second = trainer.train(), trainer.train(best=1)
    assert first.candidate_id != second.candidate_id
    assert (steps(first), steps(second)) == (1, 1)
    assert parent(second) == BASE_CHECKPOINT


def test_the_next_step_continues_adapter_and_optimizer_of_the_served_one(trainer: Trainer) -> None:
    first = trainer.train()
    trainer.publish(first)
    second = trainer.train(step=1)
    assert parent(second) == first.candidate_id
    assert steps(second) == 2


def test_the_candidate_id_depends_on_the_settings_that_change_the_result(trainer: Trainer) -> None:
    first = trainer.train()
    trainer.use(kl_coef=0.5)
    assert trainer.train().candidate_id != first.candidate_id


def test_a_batch_sampled_by_other_weights_is_stale(trainer: Trainer) -> None:
    with pytest.raises(StaleCandidate) as stale:
        trainer.train(load="other:0")
    assert stale.value.metrics == {"train/stale_rollouts": 4}


def test_a_diverged_step_fails_and_leaves_no_checkpoint(trainer: Trainer) -> None:
    payload = trainer.payload()
    payload["rows"][0]["log_probabilities"][0] = -1e30
    with pytest.raises(TrainingRuntimeError, match="step 0 failed"):
        trainer.runtime.train_candidate(payload)
    assert list((trainer.root / "checkpoints").iterdir()) == []


def test_rollouts_of_another_policy_fail_the_step_with_the_token_and_the_cure(trainer: Trainer) -> None:
    payload = trainer.payload()
    payload["rows"][1]["log_probabilities"][0] -= 30.0
    with pytest.raises(TrainingRuntimeError, match=r"step 0 failed: token 0 of trajectory 1 .* sample them again"):
        trainer.runtime.train_candidate(payload)
    # Reef tries the same batch again, and it fails in the same way; other batches are not affected.
    with pytest.raises(TrainingRuntimeError, match="token 0 of trajectory 1"):
        trainer.runtime.train_candidate(payload)
    assert steps(trainer.train(step=1)) == 1


def test_running_out_of_memory_names_the_setting_to_lower(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(training_runtime, "train_step", fail)
    with pytest.raises(TrainingRuntimeError, match=r"out of memory; lower .*train-token-budget, now"):
        trainer.train()


def test_an_update_longer_than_its_timeout_is_finished_and_logged(
    trainer: Trainer, caplog: pytest.LogCaptureFixture
) -> None:
    trainer.use(train_timeout_s=1e-6)
    candidate = trainer.train()
    assert steps(candidate) == 1
    assert "longer than training.timeout-s (1e-06 s)" in caplog.text


def test_an_update_within_its_timeout_is_not_mentioned(trainer: Trainer, caplog: pytest.LogCaptureFixture) -> None:
    trainer.use(train_timeout_s=1e6)
    trainer.train()
    assert "timeout" not in caplog.text


def test_a_timeout_that_is_not_positive_is_refused() -> None:
    for seconds in (0.0, -1.0):
        with pytest.raises(ValueError, match=r"training\.timeout-s must be positive"):
            LocalTorchSettings("x", train_timeout_s=seconds)


def test_a_frozen_control_run_trains_candidates_that_change_nothing(trainer: Trainer) -> None:
    trainer.use(learning_rate=0.0)
    first = trainer.train()
    trainer.publish(first)
    second = trainer.train(step=1)
    assert second.candidate_id != first.candidate_id
    assert (steps(first), steps(second)) == (0, 0)
    assert second.training_metrics["train/grad_norm"] > 0
    one, two = Path(first.checkpoint_path), Path(second.checkpoint_path)
    for name in ("adapter_model.safetensors", "optimizer.safetensors"):
        assert (one / name).read_bytes() == (two / name).read_bytes()


def test_a_checkpoint_that_cannot_be_written_leaves_nothing_behind(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "_write_json", full)
    with pytest.raises(OSError, match="No space left"):
        trainer.train()
    assert list((trainer.root / "checkpoints").iterdir()) == []
    monkeypatch.undo()
    assert steps(trainer.train()) == 1


def test_a_commit_stores_the_copies_of_a_release_once(policy: PolicyModel, tmp_path: Path) -> None:
    settings = LocalTorchSettings(str(tmp_path / "state"), git_dirs=(str(tmp_path / "r.git"), str(tmp_path / "cache")))
    trainer = Trainer(policy, tmp_path / "state", settings)
    data = bytes(range(256)) * 8192
    name = hashlib.sha256(data).hexdigest()
    stored = tmp_path / "r.git" / "lfs" / "objects" / name[:2] / name[2:4] / name
    cached = tmp_path / "cache" / ("0" * 40) / "optimizer.safetensors"
    for path in (stored, cached):
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
    trainer.runtime.commit_candidate("job")
    assert cached.stat().st_ino == stored.stat().st_ino
    trainer.runtime.shutdown()


def test_a_commit_never_fails_because_copies_cannot_be_found(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: SharedFiles) -> int:
        raise OSError("stale file handle")

    monkeypatch.setattr(SharedFiles, "link_copies", fail)
    trainer.runtime.commit_candidate("job")
    assert "the copies of job stay" in caplog.text


def test_a_row_whose_tensors_do_not_fit_is_refused(trainer: Trainer) -> None:
    with pytest.raises(ValueError, match="rollout_log_probs length 1"):
        trainer.payload(rollout_log_probs=[-1.0])


def test_another_schedule_than_one_step_per_batch_is_refused(trainer: Trainer) -> None:
    for schedule in (StepScheduling(batch_size=2), StepScheduling(batch_size="actual", epochs=2)):
        with pytest.raises(ValueError, match="one optimizer step per batch"):
            trainer.runtime.prepare_training_step(TrainingBatch("b"), METHOD, {}, schedule, 0)
