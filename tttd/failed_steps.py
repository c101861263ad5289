"""The steps that will never train, remembered across restarts.

Reef rebuilds its barrier from records that no commit consumed. A discarded step's records are released with the next
commit, so after a restart nothing in Reef would know that the step had failed; a harness waiting for it, or retrying
it under the same attempt number, would never be told. One small JSON file per scenario keeps that.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reef.runtime.recovery import write_json

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FailedStep:
    """One attempt of a step that was discarded, and the releases that produced it."""

    step: int
    attempt: int
    reason: str
    release_ids: tuple[str, ...]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FailedStep:
        """Read one stored entry; raises `ValueError` for anything else."""
        step, attempt, reason, releases = (value.get(key) for key in ("step", "attempt", "reason", "release_ids"))
        if not isinstance(step, int) or not isinstance(attempt, int) or not isinstance(reason, str):
            raise ValueError(f"not a failed step: {dict(value)!r}")
        if not isinstance(releases, list) or not all(isinstance(release, str) for release in releases):
            raise ValueError(f"not a list of release ids: {releases!r}")
        return cls(step, attempt, reason, tuple(releases))


class FailedStepLog:
    """The discarded attempts of one scenario, in memory and (given a path) on disk."""

    def __init__(self, path: Path | None, scenario: str) -> None:
        """Reads the file at `path` when it exists.

        Raises `ValueError` when the file is damaged or belongs to another scenario: guessing would let a discarded step
        train.
        """
        self._path = path
        self._scenario = scenario
        self._steps: dict[tuple[int, int], FailedStep] = {}
        if path is not None and path.exists():
            for failed in self._read(path):
                self._steps[failed.step, failed.attempt] = failed

    def add(self, failed: FailedStep) -> None:
        """Remember one attempt; durable when this returns, and not remembered at all when an `OSError` is raised."""
        key = (failed.step, failed.attempt)
        if self._steps.get(key) == failed:
            return
        steps = {**self._steps, key: failed}
        if self._path is not None:
            write_json(self._path, {"scenario": self._scenario, "failed_steps": _entries(steps)})
        self._steps = steps

    def contains(self, step: int, attempt: int) -> bool:
        """Whether this attempt of the step was discarded."""
        return (step, attempt) in self._steps

    def entries(self) -> list[dict[str, Any]]:
        """JSON objects `{step, attempt, reason, release_ids}`, in step order."""
        return _entries(self._steps)

    def _read(self, path: Path) -> list[FailedStep]:
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(value, dict) or not isinstance(value.get("failed_steps"), list):
                raise ValueError("not an object with a failed_steps list")
            if value.get("scenario") != self._scenario:
                raise ValueError(f"it belongs to scenario {value.get('scenario')!r}, not {self._scenario!r}")
            return [FailedStep.from_json(entry) for entry in value["failed_steps"]]
        except (ValueError, AttributeError) as error:
            raise ValueError(f"cannot read the discarded steps in {path} ({error}); restore or remove it") from error


def _entries(steps: Mapping[tuple[int, int], FailedStep]) -> list[dict[str, Any]]:
    return [{**asdict(failed), "release_ids": list(failed.release_ids)} for _, failed in sorted(steps.items())]
