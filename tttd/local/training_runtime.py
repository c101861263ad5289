"""Reef's training side: turn a batch into rows, train a candidate checkpoint, and learn which candidate was committed.

Every attempt starts from the checkpoint that is served (its adapter and its Adam state), never from an earlier attempt.
A retry after a failed commit therefore cannot apply a gradient twice, and since a candidate's id is derived from
everything that determines it, a retry finds a finished candidate on disk instead of computing it again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from reef.artifact.artifact import Artifact
from reef.core.batches import StepScheduling, TrainingBatch, trajectories
from reef.runtime.interfaces import (
    ModelCandidate,
    PreparedTrainingStep,
    StaleCandidate,
    TrainingMethod,
    TrainingRuntime,
    TrainingRuntimeError,
    learning_rate_metrics,
)
from reef.train.algos.registry import resolve_objective
from reef.train.types import policy_row_violation

from tttd.local.checkpoint import Manifest, read_adapter, read_optimizer, write_checkpoint
from tttd.local.policy import PolicyModel
from tttd.local.settings import LocalTorchSettings
from tttd.local.shared_files import SharedFiles
from tttd.local.state import StateDirectory
from tttd.local.trainer import TrainingRow, train_step

logger = logging.getLogger(__name__)

LOSS_FAMILY = "tttd"


class LocalTrainingRuntime(TrainingRuntime):
    """Trains on the calling thread; sampling goes on meanwhile, with its own copy of the adapted weights."""

    def __init__(self, policy: PolicyModel, state: StateDirectory, settings: LocalTorchSettings) -> None:
        self._policy = policy
        self._state = state
        self._settings = settings
        self._lock = RLock()
        git_dirs = (Path(folder).expanduser() for folder in settings.git_dirs)
        self._files = SharedFiles([*git_dirs, state.root / "checkpoints"])

    def prepare_training_step(
        self,
        batch: TrainingBatch,
        method: TrainingMethod,
        algorithm_state: Mapping[str, Any],
        scheduling: StepScheduling,
        scenario_step: int,
        *,
        serving_runtime_load_id: str | None = None,
    ) -> PreparedTrainingStep:
        """Advantages and exact tokens of a batch as a JSON payload; notes whether other weights sampled any of it."""
        objective = resolve_objective(method.objective)
        self._require_supported(objective.loss_family, method, scheduling)
        objective.validate_scheduling(scheduling)
        signal = objective.prepare(batch, algorithm_state)
        if signal.action == "skip":
            return PreparedTrainingStep("skip", signal.next_algorithm_state, signal.metrics)
        items = trajectories(batch)
        if signal.advantages is None or len(signal.advantages) != len(items):
            raise ValueError(f"objective {method.objective!r} gave no advantage for each of {len(items)} trajectories")
        rows = [payload_row(item.training, advantage) for item, advantage in zip(items, signal.advantages, strict=True)]
        stale = sum(item.training.get("runtime_load_id") != serving_runtime_load_id for item in items)
        payload = {
            "batch_id": batch.batch_id,
            "method": method.to_dict(),
            "rows": rows,
            "source_runtime_load_id": serving_runtime_load_id,
            "stale_rows": stale,
            "scenario_step": scenario_step,
        }
        return PreparedTrainingStep("train", signal.next_algorithm_state, signal.metrics, payload)

    def train_candidate(self, payload: Mapping[str, Any]) -> ModelCandidate:
        """Train one step and write its checkpoint; the served weights do not change.

        Raises `StaleCandidate` when some rollout was not sampled by the served weights, `TrainingRuntimeError` when the
        step itself fails (Reef keeps the batch and tries again).
        """
        if payload["stale_rows"]:
            raise StaleCandidate({"train/stale_rollouts": payload["stale_rows"]})
        load_id = payload["source_runtime_load_id"]
        with self._lock:
            parent = self._state.loads.checkpoint_of(load_id)
            checkpoint_id = self._checkpoint_id(parent, payload)
            folder = self._state.checkpoint_path(checkpoint_id)
            if self._state.has_checkpoint(checkpoint_id):
                logger.info("step %s was already trained; its checkpoint is used", payload["scenario_step"])
            else:
                self._train(parent, checkpoint_id, payload)
            return ModelCandidate(
                candidate_id=checkpoint_id,
                training_job_id=checkpoint_id,
                checkpoint_path=str(folder),
                current_runtime_load_id=load_id,
                training_metrics=Manifest.read(folder).metrics,
                metadata={"scenario_step": payload["scenario_step"]},
            )

    def reject_candidate(self, candidate: ModelCandidate) -> None:
        """Nothing to undo: the served checkpoint was never touched."""
        logger.info("candidate %s was not selected", candidate.candidate_id)

    def commit_candidate(self, training_job_id: str) -> None:
        """Store what the new release holds several times only once.  A failure to do so never fails the commit."""
        try:
            freed = self._files.link_copies()
        except OSError as error:
            logger.warning("the copies of %s stay on the disk: %s", training_job_id, error)
        else:
            logger.info("%.0f MB of copies are stored as links to Reef's own files", freed / 1e6)

    @property
    def supports_checkpoint_restore(self) -> bool:
        """A release holds the adapter and the optimizer state, so training can go on from any of them."""
        return True

    def restore_checkpoint(self, artifact: Artifact) -> None:
        """Bring an older release's checkpoint back; training branches from it once it is served."""
        tree = artifact.materialize().local_path
        if tree is None:
            raise TrainingRuntimeError("a rollback needs the release's files, and there are none")
        with self._lock:
            self._state.import_tree(tree)

    def shutdown(self) -> None:
        """Release the state directory."""
        self._state.close()

    def _train(self, parent: str, checkpoint_id: str, payload: Mapping[str, Any]) -> None:
        started = time.monotonic()
        folder = self._state.checkpoint(parent)
        try:
            trained = train_step(
                self._policy,
                [row_from_payload(row) for row in payload["rows"]],
                adapter=None if folder is None else read_adapter(folder),
                optimizer=None if folder is None else read_optimizer(folder),
                learning_rate=self._settings.learning_rate,
                kl_coef=self._settings.kl_coef,
                token_budget=self._settings.train_token_budget,
            )
        except torch.OutOfMemoryError as error:
            cure = f"lower training.options.train-token-budget, now {self._settings.train_token_budget}"
            raise TrainingRuntimeError(f"training step {payload['scenario_step']} ran out of memory; {cure}") from error
        except (FloatingPointError, MemoryError, ValueError) as error:
            raise TrainingRuntimeError(f"training step {payload['scenario_step']} failed: {error}") from error
        metrics = {**trained.metrics, **learning_rate_metrics((self._settings.learning_rate,), None)}
        manifest = Manifest(checkpoint_id, parent, self._state.identity, trained.optimizer.steps, metrics)
        write_checkpoint(
            self._state.checkpoint_path(checkpoint_id),
            manifest,
            trained.adapter,
            self._policy.adapter_config(),
            trained.optimizer,
        )
        self._note_duration(payload["scenario_step"], time.monotonic() - started)

    def _note_duration(self, step: int, seconds: float) -> None:
        limit = self._settings.train_timeout_s
        if limit is not None and seconds > limit:
            logger.warning(
                "step %s took %.1f s, longer than training.timeout-s (%g s); an update is not cut off, since it would "
                "only be computed again",
                step,
                seconds,
                limit,
            )

    def _checkpoint_id(self, parent: str, payload: Mapping[str, Any]) -> str:
        """Derived from everything that determines the result, and from nothing else."""
        settings = [self._settings.learning_rate, self._settings.kl_coef, self._settings.seed, self._state.identity]
        inputs = [parent, settings, payload["rows"], payload["scenario_step"]]
        return hashlib.sha256(json.dumps(inputs, sort_keys=True, allow_nan=False).encode()).hexdigest()

    @staticmethod
    def _require_supported(loss_family: str, method: TrainingMethod, scheduling: StepScheduling) -> None:
        if loss_family != LOSS_FAMILY:
            raise ValueError(f"the local backend trains the loss family {LOSS_FAMILY!r}, not {loss_family!r}")
        if method.learning_rate_schedule is not None:
            raise ValueError("the local backend has one learning rate; remove the learning-rate schedule")
        if scheduling.batch_size != "actual" or scheduling.epochs != 1:
            raise ValueError(f"the local backend makes one optimizer step per batch, not {scheduling}")


def payload_row(training: Mapping[str, Any], advantage: float) -> dict[str, Any]:
    """One trajectory as JSON; raises `ValueError` for tensors that do not fit together."""
    violation = policy_row_violation(training["tokens"], training["loss_mask"], training["rollout_log_probs"])
    if violation is not None:
        raise ValueError(f"a trajectory {violation}")
    return {
        "tokens": list(training["tokens"]),
        "mask": list(training["loss_mask"]),
        "log_probabilities": list(training["rollout_log_probs"]),
        "advantage": advantage,
    }


def row_from_payload(row: Mapping[str, Any]) -> TrainingRow:
    """The trainer's view of a payload row."""
    response = len(row["mask"])
    return TrainingRow(
        prompt=tuple(row["tokens"][:-response]),
        response=tuple(row["tokens"][-response:]),
        mask=tuple(row["mask"]),
        log_probabilities=tuple(row["log_probabilities"]),
        advantage=float(row["advantage"]),
    )
