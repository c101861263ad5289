"""Run settings: every wrong value is refused by name before anything starts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness.config import TASKS, RunConfig
from harness.errors import ConfigError

YAML = """
reef: {host: 127.0.0.1, port: "${GUIDANCE_REEF_PORT}", token: "${GUIDANCE_REEF_TOKEN}"}
recipe: {config: {groups-per-step: 2, rollouts-per-group: 4}}
training:
  config: {steps: 1, max_tokens: 128, seq_length: 1024, lora_rank: 32, judge_problem_id: 0-quick}
  options: {learning-rate: "2e-4", kl-coef: "0.1"}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "serve.local.yaml").write_text(YAML, encoding="utf-8")
    return tmp_path


def load(root: Path, **environ: str) -> RunConfig:
    return RunConfig.load(environ, root=root)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GUIDANCE_TASK", "../../etc"),
        ("GUIDANCE_TASK", "knapsack"),
        ("GUIDANCE_PROFILE", "cloud"),
        ("GUIDANCE_EXECUTOR", "gpt"),
        ("GUIDANCE_ENVIRONMENT", "podman"),
        ("GUIDANCE_PROMPT_STYLE", "one-shot"),
        ("GUIDANCE_STEPS", "0"),
        ("GUIDANCE_STEPS", "-1"),
        ("GUIDANCE_STEPS", "1.5"),
        ("GUIDANCE_STEPS", "three"),
        ("GUIDANCE_RUN_SEED", "4294967296"),
        ("GUIDANCE_VERIFIER_TIMEOUT", "nan"),
        ("GUIDANCE_VERIFIER_TIMEOUT", "0"),
        ("GUIDANCE_VERIFIER_TIMEOUT", "inf"),
        ("GUIDANCE_JUDGE_URL", "localhost:8081"),
        ("GUIDANCE_JUDGE_URL", "http://127.0.0.1:99999"),
        ("GUIDANCE_EXECUTOR_URL", "ftp://127.0.0.1"),
        ("GUIDANCE_EXECUTOR_MAX_TOKENS", "0"),
        ("GUIDANCE_REEF_PORT", "70000"),
        ("GUIDANCE_FREEZE_POLICY", "yes"),
        ("GUIDANCE_JUDGE_CONCURRENCY", "0"),
        ("GUIDANCE_CONFIG", "missing.yaml"),
    ],
)
def test_a_wrong_environment_value_is_refused_by_name_and_value(root: Path, name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(value.rsplit("/", 1)[-1])) as caught:
        load(root, **{name: value})
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("rollouts-per-group: 4", "rollouts-per-group: 1", "recipe.config.rollouts-per-group=1"),
        ("groups-per-step: 2", "groups-per-step: 0", "recipe.config.groups-per-step=0"),
        ("groups-per-step: 2", "groups-per-step: true", "recipe.config.groups-per-step=True"),
        ("max_tokens: 128", "max_tokens: 1024", "leaves no room for a prompt"),
        ('learning-rate: "2e-4"', "learning-rate: fast", "learning-rate='fast'"),
        ("steps: 1", "steps: x", "training.config.steps='x'"),
        ('kl-coef: "0.1"', 'kl-coef: "0.1", global-batch-size: 6', "global-batch-size=6 must equal .* 2 x 4 = 8"),
    ],
)
def test_a_wrong_yaml_value_is_refused_by_key(root: Path, old: str, new: str, reason: str) -> None:
    (root / "serve.local.yaml").write_text(YAML.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError, match=reason):
        load(root)


def test_a_sequence_longer_than_the_models_context_is_refused(root: Path) -> None:
    model = root / "work/models/SmolLM2-135M-Instruct"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps({"max_position_embeddings": 512}), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"seq_length=1024 exceeds .*\(512 tokens\)"):
        load(root)


def test_a_grid_size_that_the_file_would_ignore_is_refused(root: Path) -> None:
    assert load(root, GUIDANCE_GROUPS="2").groups == 2
    with pytest.raises(ConfigError, match="GUIDANCE_ROLLOUTS=8 has no effect"):
        load(root, GUIDANCE_ROLLOUTS="8")


def test_an_openai_executor_needs_its_url_and_model(root: Path) -> None:
    with pytest.raises(ConfigError, match="GUIDANCE_EXECUTOR_URL and GUIDANCE_EXECUTOR_MODEL"):
        load(root, GUIDANCE_EXECUTOR="openai", OPENAI_API_KEY="sk-not-ours")


def test_an_executors_key_is_asked_for_before_anything_starts(root: Path) -> None:
    with pytest.raises(ConfigError, match="set OPENROUTER_API_KEY"):
        load(root, GUIDANCE_EXECUTOR="openrouter")
    assert load(root, GUIDANCE_EXECUTOR="openrouter", OPENROUTER_API_KEY="sk-x").backend.model == "z-ai/glm-5.2"


def test_defaults_are_the_local_profile_of_one_machine(root: Path) -> None:
    config = load(root, GUIDANCE_STEPS="", GUIDANCE_TASK="  ")
    assert (config.groups, config.rollouts, config.steps) == (2, 4, 1)
    assert config.executor == "offline"
    assert config.prompt_style == "few-shot"
    assert config.judge_problem_id == "0-quick"
    assert config.judge_port == TASKS["polyomino_packing"].judge_port
    assert config.state_dir == root / "work/polyomino_packing"
    assert config.learning_rate == pytest.approx(2e-4)


def test_the_environment_wins_over_the_file(root: Path) -> None:
    config = load(
        root,
        GUIDANCE_STEPS="3",
        GUIDANCE_REEF_PORT="8901",
        GUIDANCE_SEARCH_PROBLEM="0",
        GUIDANCE_EXECUTOR="openai",
        GUIDANCE_EXECUTOR_URL="http://127.0.0.1:9/v1/",
        GUIDANCE_EXECUTOR_MODEL="m",
        GUIDANCE_EXECUTOR_CONCURRENCY="2",
    )
    assert config.steps == 3
    assert config.service_url == "http://127.0.0.1:8901"
    assert config.judge_problem_id == "0"
    assert (config.backend.model, config.backend.concurrency) == ("m", 2)


FOLLOWING = YAML.replace('"2e-4"', '"${GUIDANCE_LEARNING_RATE}"')


def test_a_frozen_policy_is_a_learning_rate_of_zero_for_search_and_service(root: Path) -> None:
    (root / "serve.local.yaml").write_text(FOLLOWING, encoding="utf-8")
    trained, frozen = load(root), load(root, GUIDANCE_FREEZE_POLICY="1")
    assert (trained.learning_rate, trained.policy_frozen) == (pytest.approx(1e-4), False)
    assert (frozen.learning_rate, frozen.policy_frozen) == (0.0, True)
    assert frozen.service_environ["GUIDANCE_LEARNING_RATE"] == "0"
    assert load(root, GUIDANCE_LEARNING_RATE="1e-3").learning_rate == pytest.approx(1e-3)
    assert not load(root, GUIDANCE_FREEZE_POLICY="0").policy_frozen


@pytest.mark.parametrize("name", ["GUIDANCE_LEARNING_RATE", "GUIDANCE_FREEZE_POLICY"])
def test_a_learning_rate_that_the_file_would_ignore_is_refused(root: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}=1 has no effect: the config file fixes .*learning-rate at 0\.0002"):
        load(root, **{name: "1"})


@pytest.mark.parametrize("value", ["0", "-1e-4", "nan", "fast"])
def test_a_learning_rate_of_nothing_is_asked_for_by_freezing(root: Path, value: str) -> None:
    (root / "serve.local.yaml").write_text(FOLLOWING, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"GUIDANCE_LEARNING_RATE=.* must be a finite number greater than 0"):
        load(root, GUIDANCE_LEARNING_RATE=value)


def test_the_local_profile_searches_on_the_tasks_quick_problem(root: Path) -> None:
    (root / "serve.local.yaml").write_text(YAML.replace(", judge_problem_id: 0-quick", ""), encoding="utf-8")
    assert load(root).judge_problem_id == "0-quick"
    assert load(root, GUIDANCE_TASK="ahc058").judge_problem_id == "ahc058-quick"
    assert load(root, GUIDANCE_TASK="trimul").judge_problem_id is None
    assert load(root, GUIDANCE_SEARCH_PROBLEM="0").judge_problem_id == "0"


def test_w_and_b_is_off_unless_asked_for(root: Path) -> None:
    assert load(root, WANDB_PROJECT="packing").wandb_project is None
    assert load(root, GUIDANCE_WANDB="1").wandb_project == "guidance-ttt"
    assert load(root, GUIDANCE_WANDB="1", WANDB_PROJECT="packing").wandb_project == "packing"
    with pytest.raises(ConfigError, match="GUIDANCE_WANDB='yes' is unknown"):
        load(root, GUIDANCE_WANDB="yes")


def test_the_service_token_is_made_once_and_kept_private(root: Path) -> None:
    first = load(root)
    path = first.state_dir / "stack/reef-token"
    assert load(root).token == first.token
    assert len(first.token) >= 24
    assert path.stat().st_mode & 0o077 == 0
    assert first.token not in repr(first)
