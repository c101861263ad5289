"""`guidance-ttt inspect --config`: every setting a run started now would have, and where its value comes from.

The values are `RunConfig`'s own; this module only knows which variable and which key of the YAML file may set each.
A test compares the table below with what `RunConfig.load` really reads.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from guidance_ttt.peek import NO_TOKEN, trace_config
from guidance_ttt.terminal import safe_json, visible
from harness.config import PROJECT_ROOT, RunConfig, option_key
from harness.contract import load_task
from harness.errors import GuidanceError, StateError
from harness.redaction import strip_url
from harness.run_state import IDENTITY_FILE, JUDGE_FIELDS, run_identity
from harness.setting_values import YamlValues
from harness.settings_file import load_settings, setting
from harness.storage import read_json_object

READ_ELSEWHERE = frozenset(
    {
        "GUIDANCE_JUDGE_ARGS",
        "GUIDANCE_REUSE_SERVICES",
        "GUIDANCE_PYTHON",
        "GUIDANCE_TORCH_INDEX",
        "GUIDANCE_SCENARIO",
        "GUIDANCE_GLOBAL_BATCH",
    }
)
"""Variables that `RunConfig` does not read: the launcher's, the set-up's, and those that are made for the YAML file."""

_FOR_EXECUTORS: Mapping[str, tuple[str, ...]] = {
    "GUIDANCE_EXECUTOR_MODEL": ("openai",),
    "GUIDANCE_EXECUTOR_KEY_ENV": ("openai",),
    "GUIDANCE_EXECUTOR_URL": ("offline", "openai", "local"),
}
"""Variables that only some executors take."""

_VARIABLE = re.compile(r"\$\{(\w+)(?::\?)?\}")
_TRAINING = ("training", "config")


@dataclass(frozen=True)
class Row:
    """One setting: its name with the unit, where it may come from, and how to read it off the settings.

    `file_decides` marks values that the environment only reaches through a `${VARIABLE}` in the file, `by_profile`
    those whose default depends on the profile.
    """

    name: str
    value: Callable[[RunConfig], Any]
    variables: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    file_decides: bool = False
    by_profile: bool = False


@dataclass(frozen=True)
class Setting:
    """One setting as it would be in force."""

    name: str
    value: Any
    source: str


def _limit(kind: str) -> Row:
    name = f"{kind}_concurrency"
    return Row(
        f"limits.{kind}",
        lambda config: getattr(config.limits, kind),
        (f"GUIDANCE_{name.upper()}",),
        (*_TRAINING, name),
    )


def _stop(name: str, variable: str) -> Row:
    return Row(f"stop_rules.{name}", lambda config: getattr(config.stop_rules, name), (variable,))


def _price(config: RunConfig) -> str | None:
    price = config.backend.price
    return None if price is None else "/".join(f"{getattr(price, field.name):g}" for field in fields(price))


ROWS: tuple[Row, ...] = (
    Row("profile", lambda c: c.profile, ("GUIDANCE_PROFILE",)),
    Row("task", lambda c: c.task, ("GUIDANCE_TASK",)),
    Row("task_dir", lambda c: str(c.task_dir), ("GUIDANCE_TASK",)),
    Row("scenario", lambda c: c.scenario, ("GUIDANCE_TASK",)),
    Row("config_path", lambda c: str(c.config_path), ("GUIDANCE_CONFIG",), by_profile=True),
    Row("state_dir", lambda c: str(c.state_dir), ("GUIDANCE_STATE_DIR",)),
    Row("steps", lambda c: c.steps, ("GUIDANCE_STEPS",), (*_TRAINING, "steps")),
    _stop("max_evaluations", "GUIDANCE_MAX_EVALUATIONS"),
    _stop("max_time_s", "GUIDANCE_MAX_TIME"),
    _stop("max_cost_usd", "GUIDANCE_MAX_COST"),
    _stop("target_score", "GUIDANCE_TARGET_SCORE"),
    _stop("patience", "GUIDANCE_PATIENCE"),
    Row(
        "groups", lambda c: c.groups, ("GUIDANCE_GROUPS",), ("recipe", "config", "groups-per-step"), file_decides=True
    ),
    Row(
        "rollouts",
        lambda c: c.rollouts,
        ("GUIDANCE_ROLLOUTS",),
        ("recipe", "config", "rollouts-per-group"),
        file_decides=True,
    ),
    Row("run_seed", lambda c: c.run_seed, ("GUIDANCE_RUN_SEED",)),
    Row("seed_path", lambda c: None if c.seed_path is None else str(c.seed_path), ("GUIDANCE_SEED",)),
    Row("model_name", lambda c: c.model_name, ("GUIDANCE_MODEL",), by_profile=True),
    Row("model_path", lambda c: str(c.model_path), ("GUIDANCE_MODEL_PATH", "GUIDANCE_MODEL")),
    Row(
        "prompt_style",
        lambda c: c.prompt_style,
        ("GUIDANCE_PROMPT_STYLE",),
        (*_TRAINING, "prompt_style"),
        by_profile=True,
    ),
    Row("max_tokens", lambda c: c.max_tokens, (), (*_TRAINING, "max_tokens")),
    Row("sequence_length (tokens)", lambda c: c.sequence_length, (), (*_TRAINING, "seq_length")),
    Row("training_backend", lambda c: c.training_backend, (), ("training", "backend"), by_profile=True),
    Row("lora_rank", lambda c: c.lora_rank, (), (*_TRAINING, "lora_rank")),
    Row(
        "learning_rate",
        lambda c: c.learning_rate,
        ("GUIDANCE_FREEZE_POLICY", "GUIDANCE_LEARNING_RATE"),
        ("training", "options", "learning-rate"),
        file_decides=True,
        by_profile=True,
    ),
    Row("kl_coef", lambda c: c.kl_coef, (), ("training", "options", "kl-coef")),
    Row("tensor_parallel_size", lambda c: c.tensor_parallel_size, (), (*_TRAINING, "tensor_parallel_size")),
    Row("policy_timeout_s", lambda c: c.policy_timeout_s, ("GUIDANCE_POLICY_TIMEOUT",)),
    Row("train_timeout_s", lambda c: c.train_timeout_s, ("GUIDANCE_TRAIN_TIMEOUT",)),
    Row("service_url", lambda c: c.service_url, ("GUIDANCE_REEF_PORT",), ("reef", "port"), file_decides=True),
    Row(
        "token",
        lambda c: "made by the first run" if c.token == NO_TOKEN else "(hidden)",
        ("GUIDANCE_REEF_TOKEN",),
        ("reef", "token"),
        file_decides=True,
    ),
    _limit("policy"),
    Row("executor", lambda c: c.executor, ("GUIDANCE_EXECUTOR",), by_profile=True),
    Row("backend.model", lambda c: c.backend.model, ("GUIDANCE_EXECUTOR_MODEL", "GUIDANCE_EXECUTOR")),
    Row(
        "backend.base_url",
        lambda c: strip_url(c.backend.base_url),
        ("GUIDANCE_EXECUTOR_URL", "GUIDANCE_EXECUTOR"),
    ),
    Row(
        "backend.api_key_env",
        lambda c: c.backend.api_key_env,
        ("GUIDANCE_EXECUTOR_KEY_ENV", "GUIDANCE_EXECUTOR"),
    ),
    Row("backend.temperature", lambda c: c.backend.temperature, ("GUIDANCE_EXECUTOR",)),
    Row(
        "backend.max_tokens",
        lambda c: c.backend.max_tokens,
        ("GUIDANCE_EXECUTOR_MAX_TOKENS", "GUIDANCE_EXECUTOR"),
    ),
    Row(
        "backend.timeout_s",
        lambda c: c.backend.timeout_s,
        ("GUIDANCE_EXECUTOR_TIMEOUT", "GUIDANCE_EXECUTOR"),
    ),
    Row(
        "backend.price (USD per million tokens)", _price, ("GUIDANCE_EXECUTOR_PRICE", "GUIDANCE_EXECUTOR")
    ),
    Row("backend.max_retries", lambda c: c.backend.max_retries, ("GUIDANCE_EXECUTOR",)),
    _limit("executor"),
    Row("judge_url", lambda c: strip_url(c.judge_url), ("GUIDANCE_JUDGE_URL",)),
    Row(
        "judge_problem_id",
        lambda c: c.judge_problem_id,
        ("GUIDANCE_SEARCH_PROBLEM",),
        (*_TRAINING, "judge_problem_id"),
        by_profile=True,
    ),
    Row("verifier_timeout_s", lambda c: c.verifier_timeout_s, ("GUIDANCE_VERIFIER_TIMEOUT",)),
    _limit("judge"),
    Row("remeasured_programs", lambda c: c.remeasured_programs, ("GUIDANCE_REMEASURE",)),
    Row("environment", lambda c: c.environment, ("GUIDANCE_ENVIRONMENT",)),
    Row("quiet", lambda c: c.quiet, ("GUIDANCE_QUIET",)),
    Row("wandb_project", lambda c: c.wandb_project, ("GUIDANCE_WANDB",)),
)


@dataclass(frozen=True)
class ConfigView:
    """All settings with their sources, what has no effect, and what the state directory is bound to otherwise."""

    settings: tuple[Setting, ...]
    unused: tuple[str, ...]
    differences: tuple[str, ...]


def view_config(environ: Mapping[str, str], *, root: Path = PROJECT_ROOT) -> ConfigView:
    """Read the settings; raises `ConfigError` as a run would.  Writes nothing."""
    config, asked = trace_config(environ, root=root)
    idle = {name for name, executors in _FOR_EXECUTORS.items() if config.executor not in executors}
    off = set() if config.policy_frozen else {"GUIDANCE_FREEZE_POLICY"}
    effective = {name: value for name, value in environ.items() if name not in idle | off}
    raw = load_settings(config.config_path, _keep_variables(environ, config))
    in_file = set(_VARIABLE.findall(config.config_path.read_text(encoding="utf-8")))
    return ConfigView(
        settings=tuple(Setting(row.name, row.value(config), source_of(row, raw, effective)) for row in ROWS),
        unused=tuple(unused_variables(environ, (asked - idle) | in_file | READ_ELSEWHERE)),
        differences=tuple(identity_differences(config)),
    )


def source_of(row: Row, raw: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Where a row's value comes from; `raw` is the file with its variables still written as `${NAME}`."""
    given = [name for name in row.variables if environ.get(name, "").strip()]
    key = row.key
    if key == ("training", "options", "learning-rate"):
        key = ("training", "options", option_key(YamlValues(raw, Path()), "learning-rate", "lr"))
    written = setting(raw, *key) if key else None
    through = _VARIABLE.findall(written) if isinstance(written, str) else []
    if written is not None and not through and (row.file_decides or not given):
        return f"file ({'.'.join(key)})"
    if given:
        return f"environment ({given[0]})"
    if through and (named := [name for name in through if environ.get(name, "").strip()]):
        return f"environment ({named[0]}, named by the file)"
    return "profile default" if row.by_profile else "default"


def unused_variables(environ: Mapping[str, str], known: set[str] | frozenset[str]) -> list[str]:
    """One line for each `GUIDANCE_*` variable that is set and read by nothing: a typing error, or of no use here."""
    lines = []
    for name in sorted(environ):
        if name.startswith("GUIDANCE_") and environ[name].strip() and name not in known:
            close = difflib.get_close_matches(name, [*known, *_all_variables()], n=1, cutoff=0.85)
            if name in _all_variables():
                lines.append(f"{name} is set but has no effect with these settings")
            else:
                hint = f"; did you mean {close[0]}?" if close else ""
                lines.append(f"{name} is set but no setting has this name{hint}")
    return lines


def _all_variables() -> set[str]:
    return {name for row in ROWS for name in row.variables}


def identity_differences(config: RunConfig) -> list[str]:
    """What the state directory is bound to otherwise, field by field; a run would be refused for each."""
    path = config.run_dir / IDENTITY_FILE
    if not path.is_file():
        return []
    try:
        saved = read_json_object(path)
        wanted = run_identity(config, load_task(config.task_dir), {})
    except (StateError, GuidanceError) as error:
        return [str(error)]
    return [
        f"{key}: bound to {saved.get(key)!r}, now {wanted[key]!r}"
        for key in sorted(wanted)
        if key not in JUDGE_FIELDS and saved.get(key) != wanted[key]
    ]


def _keep_variables(environ: Mapping[str, str], config: RunConfig) -> dict[str, str]:
    """An environment under which every `${NAME}` of the file stands for itself."""
    names = set(_VARIABLE.findall(config.config_path.read_text(encoding="utf-8")))
    return {name: f"${{{name}}}" for name in names}


# --- showing ----------------------------------------------------------------------------------------------------------


def inspect_config(environ: Mapping[str, str] | None = None, *, as_json: bool) -> str:
    """The text that `inspect --config` prints; raises `ConfigError` for a wrong setting."""
    view = view_config(os.environ if environ is None else environ)
    if as_json:
        return safe_json(
            {
                "settings": {item.name: {"value": item.value, "source": item.source} for item in view.settings},
                "unused_variables": list(view.unused),
                "state_differs": list(view.differences),
            }
        )
    width = max(len(item.name) for item in view.settings)
    lines = [f"{item.name:<{width}}  {_shown(item.value):<44}  {item.source}" for item in view.settings]
    lines += [f"warning: {text}" for text in view.unused]
    if view.differences:
        lines += ["warning: the state directory belongs to other settings, so a run would be refused:"]
        lines += [f"  {text}" for text in view.differences]
    return visible("\n".join(lines))


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)
