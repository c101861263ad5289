"""Waiting for a step on the GPU profile, where the trainer is an actor in a Ray cluster.

Reef's status says what is committed and served; the trainer's own `health()` says what was trained.  A step counts
only when both agree.  The rules are pure functions over the two documents.  `ray` is imported when the actor is first
read, and only then: nothing else of the search needs it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from harness.errors import ConfigError, ServiceUnavailable, TrainingFailed
from harness.training_bridge import Document, DocumentReader, ServiceTrainingBridge, ServingState

HEALTH = "the trainer's last health"
SERVING = "serving"
READ_TIMEOUT_S = 30.0


class TrainerUnavailable(ServiceUnavailable):
    """The trainer's actor did not answer."""


# --- where the trainer is -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainerAddress:
    """A named actor of a Ray cluster."""

    ray_address: str
    namespace: str
    actor_name: str


def trainer_address(state_dir: Path) -> TrainerAddress:
    """Where Reef, running on this state directory, put its trainer; Reef writes this down when it starts.

    Raises `ConfigError` when that file is missing or names no trainer.
    """
    path = state_dir / "stack" / "slime-driver" / "runtime.yaml"
    cure = "is Reef running with the GPU profile on this state directory?"
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        # The parser's own text would quote the file, which holds the service's token.
        why = type(error).__name__
        raise ConfigError(f"the trainer's address cannot be read from {path} ({why}); {cure}") from None
    section = document.get("reef") if isinstance(document, dict) else None
    found = {key: (section.get(key) if isinstance(section, dict) else None) for key in _ADDRESS_KEYS}
    missing = [key for key, value in found.items() if not isinstance(value, str) or not value.strip()]
    if missing:
        raise ConfigError(f"{path} has no reef.{', reef.'.join(missing)}; {cure}")
    return TrainerAddress(*(str(found[key]).strip() for key in _ADDRESS_KEYS))


_ADDRESS_KEYS = ("ray_address", "ray_namespace", "ray_actor_name")


class RayTrainer:
    """Reads the trainer's health; connects to the cluster at the first read and never starts or stops one."""

    def __init__(self, address: TrainerAddress, *, timeout_s: float = READ_TIMEOUT_S) -> None:
        self._address = address
        self._timeout_s = timeout_s

    async def __call__(self) -> Document:
        """The health document; raises `TrainerUnavailable` for a fault that may pass, `ConfigError` without Ray."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> Document:
        ray = _import_ray()
        name, namespace = self._address.actor_name, self._address.namespace
        try:
            if not ray.is_initialized():
                ray.init(
                    address=self._address.ray_address,
                    namespace=namespace,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            actor = ray.get_actor(name, namespace=namespace)
            health = ray.get(actor.health.remote(), timeout=self._timeout_s)
        except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
            # An actor's own failure arrives with its traceback; the last line is its reason.
            reason = (str(error).strip().splitlines() or [""])[-1][:300]
            raise TrainerUnavailable(
                f"the trainer {name!r} (Ray at {self._address.ray_address}, namespace {namespace!r}) "
                f"did not answer: {type(error).__name__}: {reason}"
            ) from None
        if not isinstance(health, Mapping):
            raise TrainingFailed(f"the trainer's health is {type(health).__name__}, an object is needed")
        return health


def _import_ray() -> Any:
    try:
        import ray  # type: ignore[import-not-found]
    except ImportError:
        raise ConfigError(
            "training.backend slime is followed over Ray, and the package ray is not installed here; "
            "run in the GPU image (docs/gpu.md), or choose GUIDANCE_PROFILE=local"
        ) from None
    return ray


# --- what the trainer says ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainerState:
    """What a healthy trainer reports; `completed_steps` counts since it started, rollout ids since its first start."""

    phase: str
    completed_steps: int
    next_rollout_id: int
    last_rollout_id: int | None
    load_id: str | None
    metrics: Mapping[str, Any]


@dataclass(frozen=True)
class Baseline:
    """What both sides had completed when the search last agreed with them."""

    committed_steps: int
    trained_steps: int
    next_rollout_id: int


def trainer_fault(health: Document) -> str | None:
    """Why the trainer is not well although it says that it will recover; None when it is well.

    Raises `TrainingFailed` when it does not say so.
    """
    if health.get("ok") is True:
        return None
    job = health.get("training_job")
    status = job.get("status") if isinstance(job, Mapping) else None
    fault = f"the trainer is not well: ok={health.get('ok')!r}, phase {health.get('phase')!r}, job {status!r}"
    if health.get("recoverable") is not True:
        raise TrainingFailed(f"{fault}; its log is stack/slime-driver.log in the state directory")
    return fault


def trainer_state(health: Document) -> TrainerState:
    """Read a health document; raises `TrainingFailed` when it is malformed."""
    phase, last, metrics = health.get("phase"), health.get("last_train_rollout_id"), health.get("last_train_metrics")
    job = health.get("training_job")
    if not isinstance(phase, str) or not phase:
        raise TrainingFailed(f"the trainer's phase is {phase!r}, a word is needed")
    if not isinstance(metrics, Mapping | None):
        raise TrainingFailed(f"the trainer's last_train_metrics is {type(metrics).__name__}, an object is needed")
    load_id = job.get("runtime_load_id") if isinstance(job, Mapping) else None
    return TrainerState(
        phase=phase,
        completed_steps=_count(health, "completed_train_steps"),
        next_rollout_id=_count(health, "start_rollout_id"),
        last_rollout_id=None if last is None else _count(health, "last_train_rollout_id"),
        load_id=load_id if isinstance(load_id, str) else None,
        metrics=dict(metrics or {}),
    )


def trained_exactly(trainer: TrainerState, baseline: Baseline, step: int) -> bool:
    """Whether the trainer has made the update of `step` (from 0), and nothing else since the baseline.

    A trainer that was replaced meanwhile counts from 0 again, and an update that it found finished on disk it does not
    count at all; its next rollout id tells.  False while the update is not made; raises `TrainingFailed` when it made
    more updates, or trained another rollout than the one that follows.
    """
    ahead = step + 1 - baseline.committed_steps
    expected, next_id = baseline.trained_steps + ahead, baseline.next_rollout_id + ahead
    if trainer.completed_steps > expected:
        raise TrainingFailed(
            f"step {step}: the trainer made {trainer.completed_steps} updates since its start, {expected} expected"
        )
    if trainer.completed_steps < expected:
        return trainer.next_rollout_id >= next_id
    if ahead and trainer.last_rollout_id != next_id - 1:
        raise TrainingFailed(
            f"step {step}: the trainer's last_train_rollout_id is {trainer.last_rollout_id!r}, {next_id - 1} expected"
        )
    return True


def _count(health: Document, name: str) -> int:
    value = health.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TrainingFailed(f"the trainer's {name} is {value!r}, a whole number is needed")
    return value


# --- the bridge ---------------------------------------------------------------------------------------------------


class RayTrainingBridge(ServiceTrainingBridge):
    """Follows a step in Reef's status and in the trainer's health.

    The trainer counts its updates from its own start, so what it had counted when both last agreed is kept as the
    baseline.  A trainer that is replaced loads its models anew, hence the long `outage_grace_s`.
    """

    def __init__(
        self,
        read_status: DocumentReader,
        read_health: DocumentReader,
        scenario: str,
        *,
        timeout_s: float,
        poll_interval_s: float = 2.0,
        error_grace_s: float = 60.0,
        outage_grace_s: float = 900.0,
    ) -> None:
        super().__init__(
            read_status,
            scenario,
            timeout_s=timeout_s,
            poll_interval_s=poll_interval_s,
            error_grace_s=error_grace_s,
            outage_grace_s=outage_grace_s,
        )
        self._settle_s = timeout_s  # a grid of an earlier run may be training, and nothing is served meanwhile
        self._read_health = read_health
        self._health: Document = {}
        self._baseline: Baseline | None = None

    async def state(self) -> ServingState:
        """As for the service, once the trainer is well and at rest."""
        self._baseline = None
        return self._agreed(await super().state())

    async def wait_for_step(self, step: int, attempt: int) -> ServingState:
        """As for the service; besides, the trainer must have made exactly this update."""
        return self._agreed(await super().wait_for_step(step, attempt))

    def _agreed(self, serving: ServingState) -> ServingState:
        trainer = trainer_state(self._health)
        self._baseline = Baseline(serving.completed_steps, trainer.completed_steps, trainer.next_rollout_id)
        return replace(
            serving, load_id=serving.load_id or trainer.load_id, metrics={**trainer.metrics, **serving.metrics}
        )

    async def _look(self) -> Mapping[str, Document]:
        self._health = await self._read_health()
        return {**await super()._look(), HEALTH: self._health}

    def _at_rest(self, seen: Mapping[str, Document], state: ServingState) -> bool:
        return (
            trainer_fault(seen[HEALTH]) is None
            and trainer_state(seen[HEALTH]).phase == SERVING
            and super()._at_rest(seen, state)
        )

    def _done(self, seen: Mapping[str, Document], state: ServingState, step: int) -> bool:
        if not super()._done(seen, state, step):
            return False
        return self._baseline is None or trained_exactly(trainer_state(seen[HEALTH]), self._baseline, step)

    def _error(self, seen: Mapping[str, Document], step: int, attempt: int) -> str | None:
        return super()._error(seen, step, attempt) or trainer_fault(seen[HEALTH])
