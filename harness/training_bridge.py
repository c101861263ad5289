"""How the search waits for Reef to train, publish and serve one step.

`ServiceTrainingBridge` reads nothing but `/reef/status`; `harness.ray_bridge` adds what the GPU profile's trainer says
of itself.  The rules (what counts as done, as failed, as still waiting) are pure functions over those documents; the
classes only poll.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from harness.errors import ServiceUnavailable, TrainingFailed, TrainingStalled

Document = Mapping[str, Any]
DocumentReader = Callable[[], Awaitable[Document]]
"""Reads one document; raises `ServiceUnavailable` when it cannot be had now."""

STATUS = "Reef's last status"


@dataclass(frozen=True)
class ServingState:
    """What Reef serves: how many steps are committed, which weights answer, and the last step's metrics."""

    completed_steps: int
    load_id: str | None
    open: bool
    metrics: Mapping[str, Any]


class TrainingBridge(Protocol):
    """The seam between the search and whatever trains."""

    async def state(self) -> ServingState:
        """The serving state now; raises `TrainingFailed` when Reef reports an error."""

    async def wait_for_step(self, step: int, attempt: int) -> ServingState:
        """Return once step `step` (from 0) is committed and its weights are served; earlier attempts do not matter."""


def serving_state(status: Mapping[str, Any], scenario: str) -> ServingState:
    """Read one scenario's block; raises `TrainingFailed` when it is missing or malformed."""
    scenarios = status.get("scenarios")
    block = scenarios.get(scenario) if isinstance(scenarios, Mapping) else None
    if not isinstance(block, Mapping):
        raise TrainingFailed(f"Reef's status has no scenario {scenario!r}{_preload_reason(status, scenario)}")
    completed = block.get("scenario_step")
    if isinstance(completed, bool) or not isinstance(completed, int) or completed < 0:
        raise TrainingFailed(f"Reef's scenario_step of {scenario!r} is {completed!r}, a whole number is needed")
    last = block.get("last_committed_step")
    metrics = last.get("metrics") if isinstance(last, Mapping) else None
    admission = block.get("inference_admission")
    load_id = block.get("current_runtime_load_id")
    return ServingState(
        completed_steps=completed,
        load_id=load_id if isinstance(load_id, str) else None,
        open=not isinstance(admission, Mapping) or admission.get("open") is True,
        metrics=dict(metrics) if isinstance(metrics, Mapping) else {},
    )


def recorded_error(status: Mapping[str, Any], scenario: str) -> str | None:
    """The training error Reef recorded for this scenario (other scenarios' errors are not ours)."""
    error = status.get("error")
    if error is None:
        return None
    if not isinstance(error, str) or not error:
        return f"an unreadable error: {error!r}"
    ours = [line for line in error.splitlines() if line.startswith(f"{scenario}: ")]
    others = [line for line in error.splitlines() if line.split(": ", 1)[0] in (status.get("scenarios") or {})]
    return "\n".join(ours) or (None if others else error)


def failed_step(status: Mapping[str, Any], scenario: str, step: int, attempt: int) -> str | None:
    """Why the barrier refused this attempt for good, or None; what it says of earlier attempts is history."""
    block = (status.get("scenarios") or {}).get(scenario) or {}
    failed = (block.get("processor") or {}).get("failed_steps") or []
    if not isinstance(failed, list):
        raise TrainingFailed(f"Reef's failed_steps of {scenario!r} is {failed!r}, a list is needed")
    for entry in failed:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("reason"), str) or not entry["reason"]:
            raise TrainingFailed(f"Reef's failed_steps of {scenario!r} holds {entry!r}, which names no reason")
        if entry.get("step") == step and entry.get("attempt", attempt) == attempt:
            return f"{entry['reason']} (releases: {', '.join(map(str, entry.get('release_ids') or [])) or 'none'})"
    return None


def _preload_reason(status: Mapping[str, Any], scenario: str) -> str:
    errors = status.get("preload_errors")
    reason = errors.get(scenario) if isinstance(errors, Mapping) else None
    return f": {reason}" if reason else ""


class ServiceTrainingBridge:
    """Waits by polling Reef's status document.

    A recorded training error is fatal only once it has stood for `error_grace_s`: Reef retries a failed step by
    itself a few times.  Polling faults are tolerated for `outage_grace_s` in a row.
    """

    def __init__(
        self,
        read_status: DocumentReader,
        scenario: str,
        *,
        timeout_s: float,
        poll_interval_s: float = 0.5,
        error_grace_s: float = 20.0,
        outage_grace_s: float = 60.0,
    ) -> None:
        if timeout_s <= 0 or poll_interval_s < 0:
            raise ValueError(
                f"timeout_s={timeout_s} must be positive and poll_interval_s={poll_interval_s} not negative"
            )
        self._read_status = read_status
        self._scenario = scenario
        self._timeout_s = timeout_s
        self._poll_interval_s = poll_interval_s
        self._error_grace_s = error_grace_s
        self._outage_grace_s = outage_grace_s
        self._settle_s = outage_grace_s
        """How long `state()` waits for an update that is under way."""

    async def state(self) -> ServingState:
        """The serving state now, once admission is open; waits a bounded time for a service that is still loading."""
        started = time.monotonic()
        while True:
            waited_s = time.monotonic() - started
            try:
                seen = await self._look()
                state = self._serving(seen)
                if self._at_rest(seen, state):
                    return state
            except (ServiceUnavailable, TrainingFailed):
                if waited_s >= self._outage_grace_s:
                    raise
            else:
                if waited_s >= self._settle_s:
                    raise TrainingStalled(
                        f"an update is under way in Reef and did not end within {self._settle_s:g} s: "
                        f"no requests for {self._scenario!r} are admitted{_described(seen)}"
                    )
            await asyncio.sleep(self._poll_interval_s)

    async def wait_for_step(self, step: int, attempt: int) -> ServingState:
        """Poll until step `step` is committed and served.

        Raises `TrainingFailed` with Reef's reason for a step that cannot succeed, `TrainingStalled` at the deadline and
        `ServiceUnavailable` when Reef stays unreachable.
        """
        deadline = time.monotonic() + self._timeout_s
        outage_since: float | None = None
        error_since: float | None = None
        seen: Mapping[str, Document] = {}
        while True:
            now = time.monotonic()
            try:
                seen = await self._look()
                outage_since = None
            except ServiceUnavailable:
                outage_since = now if outage_since is None else outage_since
                if now - outage_since > self._outage_grace_s:
                    raise
            else:
                state = self._serving(seen)
                if self._done(seen, state, step):
                    return state
                error = self._error(seen, step, attempt)
                error_since = None if error is None else now if error_since is None else error_since
                if error is not None and error_since is not None and now - error_since > self._error_grace_s:
                    raise TrainingFailed(f"training step {step} failed in Reef: {error}")
            if now >= deadline:
                raise TrainingStalled(f"step {step} was not committed within {self._timeout_s:g} s{_described(seen)}")
            await asyncio.sleep(self._poll_interval_s)

    # --- what a bridge with more to look at does differently ----------------------------------------------------------

    async def _look(self) -> Mapping[str, Document]:
        """One look at everything, by name."""
        return {STATUS: await self._read_status()}

    def _serving(self, seen: Mapping[str, Document]) -> ServingState:
        return serving_state(seen[STATUS], self._scenario)

    def _at_rest(self, seen: Mapping[str, Document], state: ServingState) -> bool:
        """Whether a step may begin."""
        return state.open

    def _done(self, seen: Mapping[str, Document], state: ServingState, step: int) -> bool:
        if state.completed_steps > step + 1:
            raise TrainingFailed(f"Reef committed {state.completed_steps} steps while step {step} was waited for")
        return state.completed_steps == step + 1 and self._at_rest(seen, state)

    def _error(self, seen: Mapping[str, Document], step: int, attempt: int) -> str | None:
        """An error that may still heal; raises `TrainingFailed` for one that cannot."""
        reason = failed_step(seen[STATUS], self._scenario, step, attempt)
        if reason is not None:
            raise TrainingFailed(f"Reef discarded step {step}: {reason}")
        return recorded_error(seen[STATUS], self._scenario)


def _described(seen: Mapping[str, Document]) -> str:
    return "".join(f"; {name}: {str(dict(document))[:1500]}" for name, document in seen.items())
