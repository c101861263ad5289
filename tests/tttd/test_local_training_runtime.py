"""Candidates always branch from the served checkpoint, and a retry never trains twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from engine_support import grid_rows, tiny_policy
from reef.core.batches import StepScheduling, TrainingBatch, TrajectoryItem
from reef.runtime.interfaces import ModelCandidate, StaleCandidate, TrainingMethod, TrainingRuntimeError

from tttd.local.checkpoint import BASE_CHECKPOINT, Manifest
from tttd.local.policy import PolicyModel
from tttd.local.settings import LocalTorchSettings
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
    trainer.runtime = LocalTrainingRuntime(trainer.policy, trainer.state, replace(trainer.settings, kl_coef=0.5))
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


def test_a_row_whose_tensors_do_not_fit_is_refused(trainer: Trainer) -> None:
    with pytest.raises(ValueError, match="rollout_log_probs length 1"):
        trainer.payload(rollout_log_probs=[-1.0])


def test_another_schedule_than_one_step_per_batch_is_refused(trainer: Trainer) -> None:
    for schedule in (StepScheduling(batch_size=2), StepScheduling(batch_size="actual", epochs=2)):
        with pytest.raises(ValueError, match="one optimizer step per batch"):
            trainer.runtime.prepare_training_step(TrainingBatch("b"), METHOD, {}, schedule, 0)
