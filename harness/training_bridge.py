"""How the search waits for Reef to train, publish and serve one step.

`ServiceTrainingBridge` reads nothing but `/reef/status`.  The rules (what counts as done, as failed, as still
waiting) are pure functions over that document; the class only polls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from harness.errors import PolicyUnavailable, TrainingFailed, TrainingStalled

StatusReader = Callable[[], Awaitable[Mapping[str, Any]]]


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
        read_status: StatusReader,
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

    async def state(self) -> ServingState:
        """The serving state now, once admission is open; waits a bounded time for a service that is still loading."""
        deadline = time.monotonic() + self._outage_grace_s
        while True:
            try:
                status = await self._read_status()
                state = serving_state(status, self._scenario)
            except (PolicyUnavailable, TrainingFailed):
                if time.monotonic() >= deadline:
                    raise
            else:
                if state.open:
                    return state
                if time.monotonic() >= deadline:
                    raise TrainingStalled(
                        f"Reef does not admit requests for {self._scenario!r}: an update is under way"
                    )
            await asyncio.sleep(self._poll_interval_s)

    async def wait_for_step(self, step: int, attempt: int) -> ServingState:
        """Poll until step `step` is committed and served.

        Raises `TrainingFailed` with Reef's reason for a step that cannot succeed, `TrainingStalled` at the deadline and
        `PolicyUnavailable` when Reef stays unreachable.
        """
        deadline = time.monotonic() + self._timeout_s
        outage_since: float | None = None
        error_since: float | None = None
        last: Mapping[str, Any] = {}
        while True:
            now = time.monotonic()
            try:
                last = await self._read_status()
                outage_since = None
            except PolicyUnavailable:
                outage_since = outage_since or now
                if now - outage_since > self._outage_grace_s:
                    raise
            else:
                state = serving_state(last, self._scenario)
                if self._done(state, step):
                    return state
                error_since = self._check_errors(last, step, attempt, now, error_since)
            if now >= deadline:
                raise TrainingStalled(
                    f"step {step} was not committed within {self._timeout_s:g} s; "
                    f"Reef's last status: {str(dict(last))[:1500]}"
                )
            await asyncio.sleep(self._poll_interval_s)

    def _done(self, state: ServingState, step: int) -> bool:
        if state.completed_steps > step + 1:
            raise TrainingFailed(f"Reef committed {state.completed_steps} steps while step {step} was waited for")
        return state.completed_steps == step + 1 and state.open

    def _check_errors(
        self, status: Mapping[str, Any], step: int, attempt: int, now: float, error_since: float | None
    ) -> float | None:
        reason = failed_step(status, self._scenario, step, attempt)
        if reason is not None:
            raise TrainingFailed(f"Reef discarded step {step}: {reason}")
        error = recorded_error(status, self._scenario)
        if error is None:
            return None
        if error_since is not None and now - error_since > self._error_grace_s:
            raise TrainingFailed(f"training step {step} failed in Reef: {error}")
        return error_since if error_since is not None else now
