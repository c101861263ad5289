"""`guidance-ttt inspect --config`: the settings in force, and where each value comes from."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from guidance_ttt.config_view import READ_ELSEWHERE, ROWS, inspect_config, view_config
from guidance_ttt.peek import trace_config
from harness.config import Limits, RunConfig
from harness.errors import ConfigError
from harness.stopping import StopRules
from harness.storage import write_json

SETTINGS = """
reef: {port: "${GUIDANCE_REEF_PORT:?}", token: "${GUIDANCE_REEF_TOKEN:?}"}
recipe: {config: {groups-per-step: "${GUIDANCE_GROUPS:?}", rollouts-per-group: 4}}
training:
  config: {steps: 3, max_tokens: 64, seq_length: 1024, lora_rank: 32, judge_concurrency: 5}
  options: {learning-rate: "${GUIDANCE_LEARNING_RATE:?}", kl-coef: "0.1"}
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "settings.yaml").write_text(SETTINGS)
    names = {"CONFIG": "settings.yaml", "STATE_DIR": "state", "MODEL_PATH": "model"}
    return {f"GUIDANCE_{name}": str(tmp_path / value) for name, value in names.items()}


def sources(environ: dict[str, str]) -> dict[str, tuple[Any, str]]:
    return {item.name: (item.value, item.source) for item in view_config(environ).settings}


def test_each_setting_names_where_its_value_comes_from(environ: dict[str, str]) -> None:
    more = {"GUIDANCE_VERIFIER_TIMEOUT": "7", "GUIDANCE_GROUPS": "3", "GUIDANCE_FREEZE_POLICY": "0"}
    found = sources({**environ, **more})
    assert found["verifier_timeout_s"] == (7.0, "environment (GUIDANCE_VERIFIER_TIMEOUT)")
    assert found["groups"] == (3, "environment (GUIDANCE_GROUPS)")
    assert found["rollouts"] == (4, "file (recipe.config.rollouts-per-group)")
    assert found["steps"] == (3, "file (training.config.steps)")
    assert found["limits.judge"] == (5, "file (training.config.judge_concurrency)")
    assert found["limits.policy"] == (128, "default")
    assert found["learning_rate"] == (1e-4, "profile default")
    assert found["executor"] == ("offline", "profile default")
    assert found["environment"] == ("auto", "default")
    assert sources({**environ, "GUIDANCE_STEPS": "9"})["steps"] == (9, "environment (GUIDANCE_STEPS)")
    frozen = sources({**environ, "GUIDANCE_FREEZE_POLICY": "1"})["learning_rate"]
    assert frozen == (0.0, "environment (GUIDANCE_FREEZE_POLICY)")


def test_a_value_that_the_file_fixes_is_the_files_even_when_the_environment_agrees(environ: dict[str, str]) -> None:
    assert sources({**environ, "GUIDANCE_ROLLOUTS": "4"})["rollouts"][1] == "file (recipe.config.rollouts-per-group)"


def test_every_field_and_every_variable_of_the_settings_is_in_the_table(environ: dict[str, str]) -> None:
    shown = {re.split(r"[ .]", row.name)[0] for row in ROWS}
    assert {field.name for field in fields(RunConfig)} - shown == {"service_environ"}
    nested = {row.name.partition(".")[2] for row in ROWS if "." in row.name}
    assert {field.name for kind in (StopRules, Limits) for field in fields(kind)} - nested == set()
    openai = {"GUIDANCE_EXECUTOR": "openai", "GUIDANCE_EXECUTOR_MODEL": "m", "GUIDANCE_EXECUTOR_URL": "http://h/v1"}
    _, asked = trace_config({**environ, **openai})
    named = {name for row in ROWS for name in row.variables} | READ_ELSEWHERE
    assert {name for name in asked if name.startswith("GUIDANCE_")} - named == set()
    assert len(asked) > 25


@pytest.mark.parametrize(
    ("variable", "value", "row"),
    [
        ("GUIDANCE_RUN_SEED", "5", "run_seed"),
        ("GUIDANCE_TRAIN_TIMEOUT", "5", "train_timeout_s"),
        ("GUIDANCE_POLICY_CONCURRENCY", "5", "limits.policy"),
        ("GUIDANCE_EXECUTOR_TIMEOUT", "5", "backend.timeout_s"),
        ("GUIDANCE_SEARCH_PROBLEM", "p", "judge_problem_id"),
        ("GUIDANCE_REEF_PORT", "5", "service_url"),
        ("GUIDANCE_PROMPT_STYLE", "zero-shot", "prompt_style"),
        ("GUIDANCE_SEED", "/s.cpp", "seed_path"),
        ("GUIDANCE_PATIENCE", "5", "stop_rules.patience"),
        ("GUIDANCE_REMEASURE", "5", "remeasured_programs"),
    ],
)
def test_a_variable_changes_its_own_setting_and_no_other(
    environ: dict[str, str], variable: str, value: str, row: str
) -> None:
    before, after = sources(environ), sources({**environ, variable: value})
    assert {name for name in before if before[name] != after[name]} == {row}
    assert after[row][1] == f"environment ({variable})"


def test_variables_without_effect_are_named(environ: dict[str, str]) -> None:
    extra = {"GUIDANCE_STEP": "3", "GUIDANCE_EXECUTOR_MODEL": "m", "GUIDANCE_JUDGE_ARGS": "--workers 1"}
    assert view_config({**environ, **extra}).unused == (
        "GUIDANCE_EXECUTOR_MODEL is set but has no effect with these settings",
        "GUIDANCE_STEP is set but no setting has this name; did you mean GUIDANCE_STEPS?",
    )


def test_secrets_are_hidden_and_a_look_writes_nothing(environ: dict[str, str], tmp_path: Path) -> None:
    secrets = {
        "GUIDANCE_REEF_TOKEN": "token-sentinel",
        "GUIDANCE_JUDGE_URL": "http://user:pass-sentinel@h:1",
        "GUIDANCE_EXECUTOR": "openrouter",
        "OPENROUTER_API_KEY": "key-sentinel",
    }
    before = sorted(tmp_path.rglob("*"))
    for form in (True, False):
        text = inspect_config({**environ, **secrets}, as_json=form)
        assert "sentinel" not in text
        assert "http://h:1" in text
        assert "OPENROUTER_API_KEY" in text
    assert "made by the first run" in inspect_config(environ, as_json=False)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_missing_key_hides_no_settings_and_a_wrong_one_is_refused(environ: dict[str, str]) -> None:
    assert sources({**environ, "GUIDANCE_EXECUTOR": "openrouter"})["backend.model"][0] == "z-ai/glm-5.2"
    with pytest.raises(ConfigError, match="GUIDANCE_TASK='nope' is unknown"):
        inspect_config({**environ, "GUIDANCE_TASK": "nope"}, as_json=False)


def test_a_state_directory_of_other_settings_is_told(environ: dict[str, str], tmp_path: Path) -> None:
    run_dir = tmp_path / "state" / "guidance-run"
    write_json(run_dir / "task-identity.json", {"format_version": 1, "groups_per_step": 9})
    text = inspect_config(environ, as_json=False)
    assert "the state directory belongs to other settings" in text
    assert "groups_per_step: bound to 9, now 2" in text
