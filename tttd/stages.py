"""The three pipeline stages between Reef's records and a training batch: barrier, trajectory, grid.

* `GridRecords` waits until every slot of a step's groups x rollouts grid holds a report, and trains or discards the
  whole step;
* `GridTasks` turns one report and its inference record into a trajectory;
* `GridBatches` lays a step's trajectories out as the grid and drops the groups that carry no signal.

None of them raises for anything a client can send: Reef replays its records, so such an error would come back for ever.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from reef.core.config import config_option
from reef.core.plugins import NoSettings, PluginConfigError, PluginSettings
from reef.core.trajectories import trajectory_reward
from reef.pipeline_context import PipelineContext
from reef.record2record import (
    GroupDecision,
    Record2Record,
    RecordSet,
    ReportContext,
    ReportGrouping,
    ReportRecord2Record,
)
from reef.record2record.reports import candidate_context, report_sets
from reef.record2task import Record2Task, ReportTasks
from reef.record2task.reports import SkippedReport
from reef.record2task.samples import make_policy_trajectory
from reef.task2batch import Task2Batch
from reef.train.types import TrainDataItem, TrainingBatch, policy_row_violation, trajectories

from tttd.failed_steps import FailedStep, FailedStepLog
from tttd.report import TTTDGroupedRolloutReport

logger = logging.getLogger(__name__)

StepKey = tuple[int, int]
"""(step, attempt): what one grid belongs to. Sorts in training order."""


@dataclass(frozen=True)
class GridSettings(PluginSettings):
    """What the recipe hands to the record stage."""

    groups_per_step: int = config_option(8, help="Comparison groups (parents) in one step.")
    rollouts_per_group: int = config_option(64, help="Rollouts of one parent.")
    failed_steps_file: str = config_option("", help="Where discarded steps are remembered; empty keeps them in memory.")

    def __post_init__(self) -> None:
        require_grid(self.groups_per_step, self.rollouts_per_group)

    @property
    def grid(self) -> tuple[int, int]:
        """(groups, rollouts) of a step."""
        return self.groups_per_step, self.rollouts_per_group


def require_grid(groups_per_step: int, rollouts_per_group: int) -> None:
    """Raise `ValueError` for a grid that cannot be compared or trained."""
    if groups_per_step < 1:
        raise ValueError(f"groups_per_step must be at least 1, got {groups_per_step}")
    if rollouts_per_group < 2:
        raise ValueError(f"rollouts_per_group must be at least 2 (rollouts are compared), got {rollouts_per_group}")


class GridGrouping(ReportGrouping):
    """One attempt of one step is one ingestion group; (group, rollout) is the slot in it."""

    def __init__(self, settings: GridSettings, scenario: str) -> None:
        self._slots = settings.groups_per_step * settings.rollouts_per_group
        path = Path(settings.failed_steps_file) if settings.failed_steps_file else None
        self.failed = FailedStepLog(path, scenario)
        self._newest_attempt: dict[int, int] = {}

    def placement(self, context: ReportContext) -> tuple[Hashable | None, Hashable | None]:
        """Batching key and slot of a report."""
        report = grid_report(context)
        return (report.step, report.attempt), (report.group, report.rollout)

    def decide(self, key: Hashable, members: tuple[ReportContext, ...]) -> GroupDecision:
        """Ready when the grid is full and one release produced all of it; a full grid of several is discarded."""
        if len(members) < self._slots:
            return GroupDecision.INCOMPLETE
        releases = release_ids(members)
        if len(releases) <= 1:
            return GroupDecision.READY
        self.fail(step_key(key), "mixed_release_ids", releases)
        return GroupDecision.DISCARD

    def fail(self, key: StepKey, reason: str, releases: tuple[str, ...]) -> None:
        """Remember that this attempt will never train."""
        step, attempt = key
        logger.error("step %d (attempt %d) never trains: %s, releases %s", step, attempt, reason, ", ".join(releases))
        self.failed.add(FailedStep(step, attempt, reason, releases))

    def closed(self, key: StepKey) -> bool:
        """Whether reports for this attempt can no longer train: it was discarded, or a newer attempt has begun."""
        step, attempt = key
        return self.failed.contains(step, attempt) or attempt < self._newest_attempt.get(step, 0)

    def begin(self, key: StepKey) -> None:
        """Note that this attempt has a report; older attempts of the step are closed from now on."""
        step, attempt = key
        self._newest_attempt[step] = max(attempt, self._newest_attempt.get(step, 0))

    def status(self) -> Mapping[str, Any]:
        """What a waiting client needs to see: the steps that will never train, unless a newer attempt has begun."""
        entries = self.failed.entries()
        return {"failed_steps": [e for e in entries if e["attempt"] >= self._newest_attempt.get(e["step"], 0)]}


class GridRecords(ReportRecord2Record):
    """The barrier: whole steps only, each inference trained at most once, ready steps in ascending order.

    An attempt that never filled its grid does not hold anything up: the first report of a newer attempt ends it.
    """

    def __init__(self, context: PipelineContext, settings: GridSettings) -> None:
        self.steps = GridGrouping(settings, context.scenario)
        super().__init__(context, self.steps, exclusive_sources=True, ordered_groups=True)
        self.report_type = TTTDGroupedRolloutReport  # what is stored must parse whatever grid is served now
        self.settings = settings

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, context: PipelineContext, environ: Mapping[str, str]) -> Self:
        """Build the stage from the settings the recipe injects."""
        return cls(context, GridSettings.parse(config, plugin_class=cls))

    def accept(self, record_set: RecordSet, runtime_load_id: str | None) -> None:
        """Place a report in its grid, or end it when its attempt is over."""
        report = candidate_context(record_set).report
        key, _ = self.steps.placement(candidate_context(record_set))
        current = step_key(key)
        if self.steps.closed(current):
            self.end_report(report)
            return
        self.steps.begin(current)
        self._end_older_attempts(current)
        super().accept(record_set, runtime_load_id)

    def consume(self, record_sets: tuple[RecordSet, ...], *, trained: bool) -> frozenset[str]:
        """End what a batch used; a grid that the backend dropped as stale is a failed step, not a silent one."""
        if not trained:
            for grid in report_sets(record_sets):
                self.steps.fail(
                    step_key(grid.group_key), "stale_release", release_ids(entry.context for entry in grid.entries)
                )
        consumed: frozenset[str] = super().consume(record_sets, trained=trained)
        return consumed

    def _end_older_attempts(self, current: StepKey) -> None:
        reserved = {record_set.group_key for record_set in self.pool.reserved_sets()}
        older = [key for key in map(step_key, self.groups) if key[0] == current[0] and key < current]
        for key in older:
            if key not in reserved and not self.groups[key].discarded:
                logger.info("step %d: attempt %d replaces attempt %d", current[0], current[1], key[1])
                self.discard_group(key)


class GridTasks(ReportTasks):
    """One report and the inference it scores, as one trajectory with the exact sampled tokens."""

    def __init__(self, settings: GridSettings) -> None:
        self._settings = settings

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        *,
        context: PipelineContext,
        record2record: Record2Record,
        environ: Mapping[str, str],
    ) -> Self:
        """Build the stage for the grid of the record stage before it."""
        NoSettings.parse(config, plugin_class=cls)
        return cls(grid_settings(record2record))

    def make_sample(self, context: ReportContext) -> TrainDataItem | SkippedReport:
        """The trajectory, or why this report can never train."""
        report = grid_report(context)
        announced = (report.groups_per_step, report.rollouts_per_group)
        if announced != self._settings.grid:
            return _skip(context, f"it announces a {announced} grid, {self._settings.grid} is served")
        if len(context.inferences) != 1:
            return _skip(context, f"it scores {len(context.inferences)} inferences, exactly one is needed")
        try:
            sample = make_policy_trajectory(context.inferences[0], context.require_score())
        except (ValueError, TypeError, KeyError) as error:
            return _skip(context, f"its inference record cannot be read: {error}")
        row = sample.training
        violation = policy_row_violation(row["tokens"], row["loss_mask"], row["rollout_log_probs"])
        if violation is not None:
            return _skip(context, f"its inference record {violation}")
        return sample.with_metadata(
            tttd={"step": report.step, "attempt": report.attempt, "group": report.group, "rollout": report.rollout}
        )


class GridBatches(Task2Batch):
    """One step is one batch: rows in grid order, groups without a reward difference left out."""

    def __init__(self, context: PipelineContext, settings: GridSettings) -> None:
        super().__init__(context, 1)  # one record set is one whole step
        self._settings = settings

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        *,
        context: PipelineContext,
        record2record: Record2Record,
        record2task: Record2Task,
        environ: Mapping[str, str],
    ) -> Self:
        """Build the stage for the grid of the record stage before it."""
        NoSettings.parse(config, plugin_class=cls)
        return cls(context, grid_settings(record2record))

    def make_batch(self, tasks: tuple[TrainDataItem, ...], batch_number: int) -> TrainingBatch:
        """The step's retained groups, renumbered from 0; group 0 stays when no group carries a signal."""
        items = trajectories(TrainingBatch(f"{self.scenario}:tttd", tasks))
        step = items[0].metadata["tttd"]["step"]
        slots = {(item.metadata["tttd"]["group"], item.metadata["tttd"]["rollout"]): item for item in items}
        groups, rollouts = self._settings.grid
        grid = [[slots[group, rollout] for rollout in range(rollouts)] for group in range(groups)]
        rewards = [[trajectory_reward(item) for item in row] for row in grid]
        varied = [row for row, scores in zip(grid, rewards, strict=True) if any(score != scores[0] for score in scores)]
        retained = varied or grid[:1]
        self.experiment_logger.log(step_metrics(step, rewards, training_groups=len(retained)), namespace="tttd")
        rows = tuple(replace(item, group_id=str(index)) for index, row in enumerate(retained) for item in row)
        return TrainingBatch(f"{self.scenario}:tttd:{step}", rows)


def step_metrics(step: int, rewards: Sequence[Sequence[float]], *, training_groups: int) -> dict[str, float | int]:
    """What a step looked like before any group was dropped.

    Mean and deviation are taken of scaled-down rewards so that very large scores do not overflow.
    """
    flat = [score for row in rewards for score in row]
    scale = max(1.0, *(abs(score) for score in flat))
    scaled = [score / scale for score in flat]
    mean = math.fsum(scaled) / len(scaled)
    deviation = math.sqrt(math.fsum((score - mean) ** 2 for score in scaled) / len(scaled))
    constant = sum(all(score == row[0] for score in row) for row in rewards)
    return {
        "step": step,
        "grid_groups": len(rewards),
        "grid_rollouts": len(flat),
        "reward_min": min(flat),
        "reward_max": max(flat),
        "reward_mean": mean * scale,
        "reward_std": deviation * scale,
        "reward_zero_fraction": sum(score == 0 for score in flat) / len(flat),
        "constant_groups": constant,
        "constant_groups_removed": len(rewards) - training_groups,
        "training_groups": training_groups,
        "training_rollouts": training_groups * len(rewards[0]),
    }


def grid_report(context: ReportContext) -> TTTDGroupedRolloutReport:
    """The parsed report of a context; Reef parses it with the recipe's report type before any stage sees it."""
    report = context.parsed_report
    if not isinstance(report, TTTDGroupedRolloutReport):
        raise TypeError(f"the tttd stages read {TTTDGroupedRolloutReport.__name__}, got {type(report).__name__}")
    return report


def grid_settings(record2record: Record2Record) -> GridSettings:
    """The grid of the record stage; the three stages only work together."""
    if not isinstance(record2record, GridRecords):
        raise PluginConfigError(f"the tttd stages need GridRecords before them, got {type(record2record).__name__}")
    return record2record.settings


def release_ids(contexts: Iterable[ReportContext]) -> tuple[str, ...]:
    """The distinct releases that produced the reported inferences; an unknown release counts as none."""
    refs = [inference.artifact_ref for context in contexts for inference in context.inferences]
    return tuple(sorted({ref.release_id for ref in refs if ref is not None and ref.release_id}))


def step_key(key: Hashable | None) -> StepKey:
    """A batching key with its type back."""
    if not (isinstance(key, tuple) and len(key) == 2 and all(isinstance(part, int) for part in key)):
        raise TypeError(f"a tttd batching key is (step, attempt), got {key!r}")
    return key


def _skip(context: ReportContext, reason: str) -> SkippedReport:
    logger.warning("report %s never trains: %s", context.report.agent_record_id, reason)
    return SkippedReport(reason)
