"""Reef's serving side: which checkpoint answers, under which load id, and when that changes.

Reef freezes a release for every request and asks this runtime to serve exactly that release. A load id is minted only
when other weights start to be served; binding the same weights again keeps the id, so that answers in flight stay
valid.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any

from reef.artifact.artifact import Artifact, LiveWeightArtifactRef
from reef.runtime.interfaces import (
    ActivatedModel,
    InferenceHandler,
    InferenceRuntime,
    ModelCandidate,
    StaleCandidate,
    TrainingRuntimeError,
)

from tttd.local.chat import ChatHandler
from tttd.local.checkpoint import BASE_CHECKPOINT
from tttd.local.policy import PolicyModel
from tttd.local.sampler import BatchedSampler
from tttd.local.state import StateDirectory

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServedWeights:
    """What answers a request: a checkpoint, and the load id that the answer is stamped with."""

    load_id: str
    checkpoint_id: str


class LocalInferenceRuntime(InferenceRuntime):
    """One published load, and at most one activated candidate that Reef has not committed yet."""

    def __init__(
        self, policy: PolicyModel, state: StateDirectory, sampler: BatchedSampler, *, timeout_s: float
    ) -> None:
        # Reef insists on a URL; nothing listens behind this one.
        super().__init__(base_url="http://in-process.invalid", inference_timeout_s=timeout_s)
        self._policy = policy
        self._state = state
        self._sampler = sampler
        self._lock = RLock()
        self._releases: dict[str, ServedWeights] = {}
        self._pending_job: str | None = None
        self._bound = False
        self._active = self._resumed()
        self._handler = ChatHandler(policy, sampler, self.weights_of, timeout_s=timeout_s)
        self.mark_published()

    @property
    def inference_handler(self) -> InferenceHandler:
        """Answers chat requests."""
        return self._handler

    @property
    def model_path(self) -> str:
        """The served model, as the deployment names it."""
        return str(self._policy.model_path)

    def serving_runtime_load_id(self) -> str:
        """The load that answers new requests."""
        with self._lock:
            return self._active.load_id

    def mark_published(self) -> None:
        """Reef has committed what is served; a restart begins with it, and old checkpoints can go."""
        with self._lock:
            super().mark_published()
            try:
                self._state.loads.publish(self._active.load_id)
            except OSError as error:
                # Reef's commit stands; a restart finds the load again by the release that Reef activates.
                logger.warning("cannot write down that load %s is published: %s", self._active.load_id, error)
            self._state.prune()

    def weights_of(self, artifact: Artifact) -> ServedWeights:
        """The weights of exactly the release that was frozen for a request."""
        with self._lock:
            ref = artifact.ref
            if isinstance(ref, LiveWeightArtifactRef):
                return ServedWeights(ref.runtime_load_id, self._state.loads.checkpoint_of(ref.runtime_load_id))
            known = self._releases.get(ref.release_id)
            if known is None:
                known = self._weights_of_checkpoint(self._state.import_tree(_tree(artifact)))
                self._releases[ref.release_id] = known
            return known

    def activate_checkpoint(self, artifact: Artifact) -> str:
        """Serve a release: at start-up, after each publication, and on a rollback."""
        with self._lock:
            checkpoint_id = self._state.import_tree(_tree(artifact))
            if checkpoint_id != self._active.checkpoint_id:
                # Not an update, and so no new id: a failed publication is undone by binding the durable head again,
                # and a new process may find that an update was committed just as the previous one ended.
                failed = self._pending_job is not None
                resumes = failed or not self._bound
                self._pending_job = None
                self._active = self._weights_of_checkpoint(checkpoint_id, mint=not resumes)
                if failed:
                    self.resume_admission()  # Reef closed it for the publication and never opens it after a failure
            self._bound = True
            self._releases[artifact.ref.release_id] = self._active
            if self._pending_job is None:
                self.mark_published()
            return self._active.load_id

    def restore_checkpoint(self, artifact: Artifact) -> str:
        """Check that a rollback's target can be served; `activate_checkpoint` then binds it."""
        return self.weights_of(artifact).load_id

    def activate_candidate(self, candidate: ModelCandidate) -> ActivatedModel:
        """Serve a trained candidate behind closed admission, until Reef commits or drops it."""
        with self._lock:
            if self._pending_job != candidate.training_job_id:
                if candidate.current_runtime_load_id not in (None, self._active.load_id):
                    raise StaleCandidate({"train/stale_candidate": 1})
                checkpoint_id = self._state.import_tree(Path(candidate.checkpoint_path))
                self._active = self._weights_of_checkpoint(checkpoint_id)
                self._pending_job = candidate.training_job_id
            return ActivatedModel(candidate.candidate_id, self._active.load_id)

    def acknowledge_publication(self, training_job_id: str) -> None:
        """Reef has committed exactly the job whose candidate is active."""
        with self._lock:
            if self._pending_job not in (None, training_job_id):
                raise TrainingRuntimeError(
                    f"Reef committed job {training_job_id}, but job {self._pending_job} is the one that is active"
                )
            self._pending_job = None

    def adapter_residency_status(self) -> Mapping[str, Any]:
        """Shown in Reef's status: what is served, and how busy sampling is."""
        with self._lock:
            active = self._active
        return {"load_id": active.load_id, "checkpoint_id": active.checkpoint_id, "sampling": self._sampler.load()}

    def shutdown(self) -> None:
        """Stop sampling."""
        self.pause_admission()
        self._sampler.close()

    def _resumed(self) -> ServedWeights:
        """The load that was published when the previous process ended, or the initial adapter."""
        loads = self._state.loads
        published = loads.published
        if published is not None and self._state.has_checkpoint(loads.checkpoint_of(published)):
            return ServedWeights(published, loads.checkpoint_of(published))
        return self._weights_of_checkpoint(BASE_CHECKPOINT)

    def _weights_of_checkpoint(self, checkpoint_id: str, *, mint: bool = False) -> ServedWeights:
        """A checkpoint under the id it is, or was last, served by; `mint` insists on a new one (a rollback)."""
        loads = self._state.loads
        published = loads.published
        if mint:
            known = None
        elif published is not None and loads.checkpoint_of(published) == checkpoint_id:
            known = published
        else:
            known = loads.latest(checkpoint_id)
        return ServedWeights(known or loads.mint(checkpoint_id), checkpoint_id)


def _tree(artifact: Artifact) -> Path:
    tree: Path | None = artifact.materialize().local_path
    if tree is None:
        raise TrainingRuntimeError(f"release {artifact.ref.release_id} has no files to serve")
    return tree
