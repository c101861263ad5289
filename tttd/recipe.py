"""The Reef recipe `tttd`: which grid a step has, which scenario is served, and the stages and objective that train
it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from reef.core.errors import UnknownScenario
from reef.core.plugins import PluginReference
from reef.core.reports import ReportBase
from reef.recipe.base import WeightTrainingRecipe, WeightTrainingSpec
from reef.recipe.checkpoint_strategy import EveryNVersions
from reef.recipe.config_fields import config_field, resolve_config_field_values
from reef.recipe.errors import RecipeConfigError
from reef.surface import Surface
from reef.train.algos import StepScheduling
from reef.train.pipeline import PipelineConfig, PipelineSpec

from tttd.report import report_for_grid
from tttd.stages import GridBatches, GridRecords, GridTasks, require_grid


@dataclass(frozen=True, kw_only=True)
class TTTDRecipe(WeightTrainingRecipe):
    """Trains the policy's adapter on one complete grid of scored rollouts per step."""

    name: str = "tttd"
    groups_per_step: int = config_field(
        8, env="REEF_TTTD_GROUPS_PER_STEP", help="Comparison groups (parents) in one step."
    )
    rollouts_per_group: int = config_field(
        64, env="REEF_TTTD_ROLLOUTS_PER_GROUP", help="Rollouts of one parent; at least 2."
    )
    scenario: str = config_field(
        "", env="REEF_TTTD_SCENARIO", help="The only scenario served; every other name is refused. Empty accepts any."
    )
    state_dir: str = config_field(
        "", env="REEF_TTTD_STATE_DIR", help="Where discarded steps are remembered; empty keeps them in memory only."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_grid(self.groups_per_step, self.rollouts_per_group)
        if isinstance(self.checkpoint_strategy, EveryNVersions):
            require_every_step_durable(self.checkpoint_strategy.n)

    @property
    def report_type(self) -> type[ReportBase]:
        """The report contract, which Reef enforces before it stores a report."""
        return report_for_grid(self.groups_per_step, self.rollouts_per_group)

    @classmethod
    def training_spec(cls) -> WeightTrainingSpec:
        """One optimizer step over the whole retained grid."""
        return WeightTrainingSpec(
            objective="tttd.objective:TttdObjective",
            scheduling=StepScheduling(unit="sample", batch_size="actual"),
        )

    @classmethod
    def pipeline_spec(cls) -> PipelineSpec:
        """The three stages that make a grid of records a batch."""
        return PipelineSpec(record2record=GridRecords, record2task=GridTasks, task2batch=GridBatches)

    def stages(self) -> PipelineConfig:
        """The stages with this recipe's grid; Reef itself gives a stage only the deployment's `pipeline` section."""
        stages = super().stages()
        settings = {
            "groups_per_step": self.groups_per_step,
            "rollouts_per_group": self.rollouts_per_group,
            "failed_steps_file": str(self._failed_steps_file(self.scenario)) if self._remembers else "",
            **stages.record2record.config,
        }
        return PipelineConfig(
            record2record=PluginReference(stages.record2record.plugin_class, settings),
            record2task=stages.record2task,
            task2batch=stages.task2batch,
            environ=stages.environ,
        )

    def scenario_state_dirs(self, scenario: str) -> tuple[Path, ...]:
        """The folder Reef archives together with a deleted scenario."""
        own = (self._failed_steps_file(scenario).parent,) if self._remembers and scenario == self.scenario else ()
        return (*super().scenario_state_dirs(scenario), *own)

    def build_surface(self, scenario: str) -> Surface:
        """Refuse every scenario but the configured one.

        Reef asks for the surface before it registers a scenario. Without this a mistyped name would be registered,
        start from the trained weights, and might be the one that Reef binds to training at the next start.
        """
        if self.scenario and scenario != self.scenario:
            raise UnknownScenario(f"this service trains scenario {self.scenario!r}, not {scenario!r}")
        return super().build_surface(scenario)

    @classmethod
    def service_config(cls, settings: Mapping[str, Any], *, model_path: str) -> dict[str, Any]:
        """Translate the deployment file, with the checks that `reef serve --print-config` can make."""
        config: dict[str, Any] = super().service_config(settings, model_path=model_path)
        values = resolve_config_field_values(cls, config["data"], {})
        try:
            require_grid(values["groups_per_step"], values["rollouts_per_group"])
            require_every_step_durable(settings.get("checkpoint_every_n_versions", 1))
        except ValueError as error:
            raise RecipeConfigError(f"recipe.config: {error}") from error
        return config

    @property
    def _remembers(self) -> bool:
        return bool(self.state_dir and self.scenario)

    def _failed_steps_file(self, scenario: str) -> Path:
        return Path(self.state_dir).expanduser().resolve() / quote(scenario, safe="") / "failed-steps.json"


def require_every_step_durable(interval: object) -> None:
    """Raise `ValueError` for a checkpoint interval other than 1.

    Reef keeps a step between two checkpoints in memory only: after a restart it counts the step as trained but serves,
    and trains from, the weights before it.  The search would go on without noticing.
    """
    if str(interval).strip() != "1":
        raise ValueError(
            f"checkpoint-every-n-versions must be 1, got {interval}: a restart would lose the steps since the last "
            "checkpoint while counting them as trained"
        )
