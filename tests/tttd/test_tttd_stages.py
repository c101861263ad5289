"""The barrier, driven through Reef's own pipeline with hand-made records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from reef.core.artifact_ref import ArtifactRef
from reef.core.batches import TrainingBatch, trajectories
from reef.core.records_types import AgentRecord, RequestType
from reef.core.trajectories import trajectory_reward
from reef.observability import ExperimentLogger
from reef.pipeline_context import PipelineContext
from reef.train.pipeline import TrainingPipeline

from tttd.failed_steps import FailedStep, FailedStepLog
from tttd.report import report_for_grid
from tttd.stages import GridBatches, GridRecords, GridSettings, GridTasks, step_metrics

SCENARIO = "packing"


class MetricLog(ExperimentLogger):
    """Keeps what the stages log."""

    def __init__(self) -> None:
        self.logged: list[tuple[str, dict[str, Any]]] = []

    def log(self, metrics: Mapping[str, Any], *, namespace: str) -> None:
        self.logged.append((namespace, dict(metrics)))


@dataclass
class Barrier:
    """A pipeline and the means to feed it."""

    path: Path | None = None
    groups: int = 2
    rollouts: int = 2
    log: MetricLog = field(default_factory=MetricLog)

    def __post_init__(self) -> None:
        report_type = report_for_grid(self.groups, self.rollouts)
        context = PipelineContext(SCENARIO, report_type, experiment_logger=self.log)
        config = {
            "groups_per_step": self.groups,
            "rollouts_per_group": self.rollouts,
            "failed_steps_file": "" if self.path is None else str(self.path),
        }
        self.records = GridRecords.from_config(config, context=context, environ={})
        tasks = GridTasks.from_config({}, context=context, record2record=self.records, environ={})
        batches = GridBatches.from_config(
            {}, context=context, record2record=self.records, record2task=tasks, environ={}
        )
        self.pipeline = TrainingPipeline(context, record2record=self.records, record2task=tasks, task2batch=batches)

    def infer(self, receipt: str, release: str = "r1", *, training: dict[str, Any] | None = None) -> None:
        block = {
            "tokens": [1, 2, 3],
            "loss_mask": [1, 1],
            "rollout_log_probs": [-0.5, -0.25],
            "runtime_load_id": "run:0",
        }
        self.pipeline.ingest(
            AgentRecord.create(
                scenario=SCENARIO,
                request_type=RequestType.INFERENCE,
                agent_record_id=receipt,
                payload={
                    "messages": [{"role": "user", "content": "q"}],
                    "response": {
                        "choices": [{"message": {"role": "assistant", "content": "a"}}],
                        "training": block if training is None else training,
                    },
                },
                artifact_ref=ArtifactRef("c", release, None),
            )
        )

    def report(
        self, receipt: str, step: int, group: int, rollout: int, score: float = 1.0, name: str = "", **metadata: Any
    ) -> None:
        fields = {
            "step": step,
            "group": group,
            "rollout": rollout,
            "groups_per_step": self.groups,
            "rollouts_per_group": self.rollouts,
            **metadata,
        }
        self.pipeline.ingest(
            AgentRecord.create(
                scenario=SCENARIO,
                request_type=RequestType.REPORT,
                agent_record_id=name or f"report-{receipt}",
                payload={"score": score, "references": [receipt], "metadata": fields},
            )
        )

    def fill(
        self,
        step: int,
        scores: tuple[float, ...] = (0.0, 1.0, 0.0, 2.0),
        releases: tuple[str, ...] = ("r1",) * 4,
        only: range = range(4),
        **metadata: Any,
    ) -> None:
        """Report the slots of a 2x2 step."""
        for slot in only:
            receipt = f"i-{step}-{metadata.get('attempt', 0)}-{slot}"
            self.infer(receipt, releases[slot])
            self.report(receipt, step, slot // 2, slot % 2, scores[slot], **metadata)

    def failed(self) -> list[dict[str, Any]]:
        failed: list[dict[str, Any]] = self.pipeline.status()["failed_steps"]
        return failed

    def train(self) -> TrainingBatch:
        batch = self.pipeline.build_batch()
        self.pipeline.acknowledge(batch.batch_id)
        return batch


def rewards(batch: TrainingBatch) -> list[float]:
    return [trajectory_reward(item) for item in trajectories(batch)]


def groups(batch: TrainingBatch) -> list[str | None]:
    return [item.group_id for item in trajectories(batch)]


def test_a_step_waits_for_every_slot() -> None:
    barrier = Barrier()
    barrier.fill(0, only=range(3))
    assert not barrier.pipeline.ready()
    barrier.fill(0, only=range(3, 4))
    assert barrier.pipeline.ready()


def test_a_batch_holds_one_step_in_grid_order_whatever_the_arrival_order() -> None:
    barrier = Barrier()
    for slot in (3, 0, 2, 1):
        barrier.fill(0, only=range(slot, slot + 1))
    batch = barrier.train()
    assert batch.batch_id == f"{SCENARIO}:tttd:0"
    assert rewards(batch) == [0.0, 1.0, 0.0, 2.0]
    assert groups(batch) == ["0", "0", "1", "1"]


def test_ready_steps_train_in_ascending_order_and_never_mix() -> None:
    barrier = Barrier()
    barrier.fill(1)
    barrier.fill(0)
    assert [barrier.train().batch_id for _ in range(2)] == [f"{SCENARIO}:tttd:0", f"{SCENARIO}:tttd:1"]


def test_the_first_report_of_a_slot_wins() -> None:
    barrier = Barrier()
    barrier.fill(0, only=range(3))
    barrier.infer("again")
    barrier.report("again", 0, 0, 0, score=99.0)
    barrier.fill(0, only=range(3, 4))
    assert rewards(barrier.train()) == [0.0, 1.0, 0.0, 2.0]
    assert {"again", "report-again"} <= barrier.pipeline.releasable_record_ids()


def test_an_inference_trains_at_most_once() -> None:
    barrier = Barrier()
    barrier.fill(0)
    barrier.train()
    barrier.report("i-0-0-0", 1, 0, 0, name="second-use")
    assert "second-use" in barrier.pipeline.releasable_record_ids()


def test_a_stored_report_of_another_grid_is_skipped_and_does_not_block() -> None:
    barrier = Barrier()  # stored when another grid was served
    barrier.infer("other")
    barrier.report("other", 0, 0, 0, groups_per_step=3)
    barrier.fill(0)
    assert rewards(barrier.train()) == [0.0, 1.0, 0.0, 2.0]


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"tokens": [1, 2], "loss_mask": [1, 1], "rollout_log_probs": [-1.0, -1.0]},
        {"tokens": [1, 2, 3], "loss_mask": [1, 2], "rollout_log_probs": [-1.0, -1.0]},
        {"tokens": [1, 2, 3], "loss_mask": [1, 1], "rollout_log_probs": [-1.0]},
        {"tokens": [1, 2, 3], "loss_mask": [1, 1], "rollout_log_probs": [-1.0, float("nan")]},
        {"tokens": ["x"], "loss_mask": [1], "rollout_log_probs": [0.0]},
        {"tokens": None, "loss_mask": [1], "rollout_log_probs": [0.0]},
    ],
)
def test_an_unusable_inference_record_is_skipped_and_does_not_block(training: dict[str, Any]) -> None:
    barrier = Barrier()
    barrier.infer("bad", training=training)
    barrier.report("bad", 0, 0, 0)
    barrier.fill(0)
    assert rewards(barrier.train()) == [0.0, 1.0, 0.0, 2.0]


def test_a_step_that_spans_releases_is_discarded_and_published(tmp_path: Path) -> None:
    path = tmp_path / "state" / "failed.json"
    barrier = Barrier(path)
    barrier.fill(4, releases=("r2", "r1", "r1", "r1"))
    expected = [{"step": 4, "attempt": 0, "reason": "mixed_release_ids", "release_ids": ["r1", "r2"]}]
    assert not barrier.pipeline.ready()
    assert barrier.failed() == expected
    assert len(barrier.pipeline.releasable_record_ids()) == 8
    # A restarted service still knows, and still refuses the step.
    restarted = Barrier(path)
    assert restarted.failed() == expected
    restarted.fill(4)
    assert not restarted.pipeline.ready()


def test_an_incomplete_older_attempt_does_not_block_and_is_released() -> None:
    barrier = Barrier()
    barrier.fill(0, only=range(3))
    barrier.fill(0, scores=(5.0, 6.0, 7.0, 8.0), attempt=1)
    assert rewards(barrier.train()) == [5.0, 6.0, 7.0, 8.0]
    assert {f"i-0-0-{slot}" for slot in range(3)} <= barrier.pipeline.releasable_record_ids()
    # Its last report comes too late.
    barrier.fill(0, only=range(3, 4))
    assert not barrier.pipeline.ready()


def test_a_discarded_attempt_can_be_tried_again_and_leaves_the_status() -> None:
    barrier = Barrier()
    barrier.fill(0, releases=("r1", "r1", "r2", "r2"))
    assert barrier.failed()
    barrier.fill(0, attempt=1)
    assert barrier.failed() == []
    assert rewards(barrier.train()) == [0.0, 1.0, 0.0, 2.0]


def test_a_late_report_of_an_older_attempt_never_enters_the_newer_grid() -> None:
    barrier = Barrier()
    barrier.fill(0, only=range(3), attempt=1)
    barrier.fill(0, only=range(3, 4))
    assert not barrier.pipeline.ready()
    barrier.fill(0, only=range(3, 4), attempt=1)
    assert barrier.pipeline.ready()


def test_a_batch_already_handed_out_survives_a_newer_attempt() -> None:
    barrier = Barrier()
    barrier.fill(0)
    batch = barrier.pipeline.build_batch()
    barrier.fill(0, only=range(1), attempt=1)
    assert barrier.pipeline.build_batch() is batch
    barrier.pipeline.acknowledge(batch.batch_id)
    assert not barrier.pipeline.ready()


def test_a_grid_dropped_as_stale_is_published_instead_of_vanishing() -> None:
    barrier = Barrier()
    barrier.fill(0)
    barrier.pipeline.acknowledge(barrier.pipeline.build_batch().batch_id, trained=False)
    assert barrier.failed() == [{"step": 0, "attempt": 0, "reason": "stale_release", "release_ids": ["r1"]}]
    barrier.fill(0, attempt=1)
    assert barrier.pipeline.ready()


def test_groups_without_a_reward_difference_are_dropped_and_the_rest_renumbered() -> None:
    barrier = Barrier()
    barrier.fill(2, scores=(1.0, 1.0, 3.0, 4.0))
    batch = barrier.train()
    assert rewards(batch) == [3.0, 4.0]
    assert groups(batch) == ["0", "0"]
    assert barrier.log.logged == [
        (
            "tttd",
            {
                "step": 2,
                "grid_groups": 2,
                "grid_rollouts": 4,
                "reward_min": 1.0,
                "reward_max": 4.0,
                "reward_mean": 2.25,
                "reward_std": pytest.approx(1.299038),
                "reward_zero_fraction": 0.0,
                "constant_groups": 1,
                "constant_groups_removed": 1,
                "training_groups": 1,
                "training_rollouts": 2,
            },
        )
    ]


def test_group_0_stays_when_no_group_carries_a_signal() -> None:
    barrier = Barrier()
    barrier.fill(0, scores=(0.0, 0.0, 3.0, 3.0))
    assert rewards(barrier.train()) == [0.0, 0.0]
    metrics = barrier.log.logged[0][1]
    assert (metrics["constant_groups"], metrics["constant_groups_removed"]) == (2, 1)
    assert metrics["reward_zero_fraction"] == 0.5


def test_metrics_of_huge_rewards_do_not_overflow() -> None:
    metrics = step_metrics(0, [[1.7e308, -1.7e308], [1.7e308, 1.7e308]], training_groups=1)
    assert metrics["reward_mean"] == pytest.approx(0.85e308)
    assert metrics["reward_std"] == pytest.approx(1.7e308 * 0.75**0.5)


@pytest.mark.parametrize("content", ["{", "[]", '{"failed_steps": 1}', '{"scenario": "other", "failed_steps": []}'])
def test_a_damaged_memory_of_discarded_steps_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "failed.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="discarded steps"):
        Barrier(path)


def test_a_discarded_step_that_cannot_be_written_down_is_not_taken_for_remembered(tmp_path: Path) -> None:
    in_the_way = tmp_path / "state"
    in_the_way.touch()
    path = in_the_way / "failed.json"
    log, failed = FailedStepLog(path, SCENARIO), FailedStep(4, 0, "mixed_release_ids", ("r1", "r2"))
    with pytest.raises(OSError, match="state"):
        log.add(failed)
    assert not log.contains(4, 0)
    in_the_way.unlink()
    log.add(failed)
    assert FailedStepLog(path, SCENARIO).contains(4, 0)


@pytest.mark.parametrize(("groups", "rollouts"), [(0, 2), (1, 1), (-1, 4)])
def test_a_grid_that_cannot_be_compared_is_refused(groups: int, rollouts: int) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        GridSettings(groups_per_step=groups, rollouts_per_group=rollouts)
