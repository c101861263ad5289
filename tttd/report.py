"""The report a harness sends for one scored rollout, and everything that makes Reef refuse it with 400.

Refusing at the door matters more here than elsewhere: Reef stores what it accepts and replays it for ever, so one
accepted report that training later chokes on would stop the scenario for good.  The grid a service is configured for is
checked only at the door (`report_for_grid`): stored reports are replayed under whatever the configuration has become,
and the pipeline stages skip what no longer fits instead of raising.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reef.core.reports import ReportValidationError, ScoredRolloutReport

ALGORITHMS = ("tttd", "ttt-discover")

_LARGEST_INTEGER = 2**53
"""Above this a JSON number no longer names one integer."""


@dataclass(frozen=True)
class TTTDGroupedRolloutReport(ScoredRolloutReport):
    """One score, addressed into the groups x rollouts grid of a step.

    `attempt` counts how often the whole step was started over; reports of different attempts never share a grid.
    """

    step: int
    group: int
    rollout: int
    groups_per_step: int
    rollouts_per_group: int
    algorithm: str = "tttd"
    comparison_set: str | None = None
    attempt: int = 0

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> TTTDGroupedRolloutReport:
        """Parse the whole report body; raises `ReportValidationError` that names the broken field."""
        _require_one_reference(payload.get("references"))
        _require_plain_numbers(payload)
        report = super().from_dict(payload)
        if not isinstance(report, cls):
            raise TypeError(f"expected a {cls.__name__}, parsed a {type(report).__name__}")
        return report

    def validate(self) -> None:
        """The rules that involve more than one field."""
        _require(self.step >= 0, f"metadata.step must be >= 0, got {self.step}")
        _require(self.attempt >= 0, f"metadata.attempt must be >= 0, got {self.attempt}")
        _require(self.groups_per_step >= 1, f"metadata.groups_per_step must be >= 1, got {self.groups_per_step}")
        _require(
            self.rollouts_per_group >= 2, f"metadata.rollouts_per_group must be >= 2, got {self.rollouts_per_group}"
        )
        _require(
            0 <= self.group < self.groups_per_step,
            f"metadata.group must be in 0..{self.groups_per_step - 1}, got {self.group}",
        )
        _require(
            0 <= self.rollout < self.rollouts_per_group,
            f"metadata.rollout must be in 0..{self.rollouts_per_group - 1}, got {self.rollout}",
        )
        _require(
            self.algorithm in ALGORITHMS, f"metadata.algorithm must be one of {ALGORITHMS}, got {self.algorithm!r}"
        )
        expected = comparison_set(self.step, self.group)
        _require(
            self.comparison_set in (None, expected),
            f"metadata.comparison_set must be {expected!r}, got {self.comparison_set!r}",
        )


@functools.cache
def report_for_grid(groups_per_step: int, rollouts_per_group: int) -> type[TTTDGroupedRolloutReport]:
    """The report contract of a service that trains grids of this shape: a report of another grid is refused.

    Accepting it would leave its sender waiting for a step that can never be complete.
    """

    class ServedGridReport(TTTDGroupedRolloutReport):
        """A report whose announced grid is the served one."""

        def validate(self) -> None:
            super().validate()
            announced = f"{self.groups_per_step} x {self.rollouts_per_group}"
            served = f"{groups_per_step} x {rollouts_per_group}"
            _require(
                announced == served,
                f"metadata.groups_per_step x metadata.rollouts_per_group is {announced}, this service trains {served}",
            )

    return ServedGridReport


def comparison_set(step: int, group: int) -> str:
    """The name of a group of rollouts that are compared with each other."""
    return f"tttd-step-{step}-group-{group}"


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ReportValidationError(message)


def _require_one_reference(references: object) -> None:
    """Reef admits a report without references and then fails on it at every training attempt."""
    if not isinstance(references, list | tuple) or len(references) != 1:
        raise ReportValidationError("references must hold exactly one inference receipt")
    if not isinstance(references[0], str) or not references[0]:
        raise ReportValidationError(f"references[0] must be a receipt id, got {references[0]!r}")


def _require_plain_numbers(payload: Mapping[str, Any]) -> None:
    """Refuse integers too large for a float: Reef's own field parser raises an OverflowError on them."""
    metadata = payload.get("metadata")
    fields = {f"metadata.{name}": value for name, value in metadata.items()} if isinstance(metadata, Mapping) else {}
    for path, value in {**fields, "score": payload.get("score")}.items():
        if isinstance(value, int) and abs(value) > _LARGEST_INTEGER:
            raise ReportValidationError(f"{path} must lie between -2**53 and 2**53")
