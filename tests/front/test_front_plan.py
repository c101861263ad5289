"""From settings to command lines: which services are started, with which ports, paths and secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from guidance_ttt.model import MARKER_FILE, MODEL_NAME
from guidance_ttt.plan import LaunchPlan, plan_from_config, prepare_model, require_profile
from guidance_ttt.services import ServiceSpec
from harness.config import RunConfig
from harness.errors import ConfigError, GuidanceError

SETTINGS = """
reef: {host: 127.0.0.1, port: "${GUIDANCE_REEF_PORT}", token: "${GUIDANCE_REEF_TOKEN}"}
recipe: {config: {groups-per-step: 2, rollouts-per-group: 4}}
training:
  config: {steps: 1, max_tokens: 64, seq_length: 1024, lora_rank: 32}
  options: {learning-rate: "2e-4", kl-coef: "0.1"}
"""


def config_of(tmp_path: Path, **settings: str) -> tuple[RunConfig, dict[str, str]]:
    path = tmp_path / "settings.yaml"
    path.write_text(SETTINGS, encoding="utf-8")
    environ = {"GUIDANCE_CONFIG": str(path), "GUIDANCE_STATE_DIR": str(tmp_path / "state"), "PATH": "/usr/bin"}
    environ["GUIDANCE_MODEL_PATH"] = str(tmp_path / "model")
    environ |= settings
    return RunConfig.load(environ), environ


def plan_of(tmp_path: Path, **settings: str) -> LaunchPlan:
    return plan_from_config(*config_of(tmp_path, **settings))


def service(plan: LaunchPlan, name: str) -> ServiceSpec:
    return next(spec for spec in plan.services if spec.name == name)


def test_the_default_run_needs_judge_executor_and_reef(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert [(spec.name, spec.port) for spec in plan.services] == [("judge", 8081), ("executor", 8000), ("reef", 8900)]
    assert plan.notes == ()
    assert plan.run_argv[-1].endswith("run.py")
    judge = " ".join(service(plan, "judge").argv)
    assert "-m judges polyomino --host 127.0.0.1 --port 8081" in judge
    assert str(tmp_path / "state" / "judge") in judge
    executor = " ".join(service(plan, "executor").argv)
    assert "-m executors --host 127.0.0.1 --port 8000 --task polyomino_packing --catalogue /" in executor
    assert service(plan, "executor").health_url == "http://127.0.0.1:8000/health"


def test_ports_follow_the_settings(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        GUIDANCE_JUDGE_URL="http://127.0.0.1:9001/",
        GUIDANCE_EXECUTOR_URL="http://localhost:9002/v1",
        GUIDANCE_REEF_PORT="9003",
    )
    assert [spec.port for spec in plan.services] == [9001, 9002, 9003]
    assert "GUIDANCE_REEF_PORT" in service(plan, "reef").port_setting


def test_reef_gets_absolute_paths_and_the_settings_of_its_file(tmp_path: Path) -> None:
    reef = service(plan_of(tmp_path), "reef")
    assert reef.env["GUIDANCE_STATE_DIR"] == str(tmp_path / "state")
    assert reef.env["GUIDANCE_MODEL_PATH"] == str(tmp_path / "model")
    assert reef.env["GUIDANCE_SCENARIO"] == "guidance-ttt-polyomino-packing"
    assert reef.env["GUIDANCE_REEF_PORT"] == "8900"
    assert reef.env["GUIDANCE_REEF_TOKEN"]
    assert reef.env["HF_HUB_OFFLINE"] == "1"
    assert reef.argv[-1] == str(tmp_path / "settings.yaml")


def test_keys_reach_the_run_but_neither_judge_nor_executor_nor_reef(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, OPENROUTER_API_KEY="hush", WANDB_API_KEY="for-reef")
    assert plan.run_env["OPENROUTER_API_KEY"] == "hush"
    for spec in plan.services:
        assert "hush" not in spec.env.values()
    assert "WANDB_API_KEY" in service(plan, "reef").env
    assert "WANDB_API_KEY" not in service(plan, "judge").env
    assert "GUIDANCE_REEF_TOKEN" not in service(plan, "judge").env


def test_local_addresses_never_go_through_a_proxy(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, HTTP_PROXY="http://proxy:3128", NO_PROXY="example.org")
    assert plan.run_env["NO_PROXY"].split(",") == ["example.org", "127.0.0.1", "localhost", "::1"]
    assert plan.run_env["no_proxy"].split(",") == ["127.0.0.1", "localhost", "::1"]


def test_another_executor_and_a_judge_elsewhere_are_named_without_secrets_and_not_started(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        GUIDANCE_EXECUTOR="openai",
        GUIDANCE_EXECUTOR_URL="https://user:hush@models.example.org/v1",
        GUIDANCE_EXECUTOR_MODEL="some-model",
        GUIDANCE_JUDGE_URL="http://judge.example.org:81",
    )
    assert [spec.name for spec in plan.services] == ["reef"]
    assert plan.notes == (
        "judge: using http://judge.example.org:81",
        "executor: using some-model at https://models.example.org/v1",
    )


def test_further_options_of_the_judge_are_split_as_in_a_shell(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, GUIDANCE_JUDGE_ARGS="--workers 2 --frontiercs-dir '/a b'")
    assert service(plan, "judge").argv[-4:] == ("--workers", "2", "--frontiercs-dir", "/a b")
    with pytest.raises(ConfigError, match="GUIDANCE_JUDGE_ARGS"):
        plan_of(tmp_path, GUIDANCE_JUDGE_ARGS="'")


def test_the_offline_executor_cannot_be_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"GUIDANCE_EXECUTOR_URL names http://elsewhere:8000/v1"):
        plan_of(tmp_path, GUIDANCE_EXECUTOR_URL="http://elsewhere:8000/v1")


def test_the_gpu_profile_starts_judge_and_reef_only_and_says_what_is_missing(tmp_path: Path) -> None:
    config, environ = config_of(tmp_path, GUIDANCE_PROFILE="gpu")
    plan = plan_from_config(config, environ)
    assert [spec.name for spec in plan.services] == ["judge", "reef"]
    assert service(plan, "reef").env["CUDA_VISIBLE_DEVICES"] == "0,1"
    with pytest.raises(GuidanceError, match=r"not found here: .*slime.*GUIDANCE_PROFILE=local"):
        require_profile(config)
    require_profile(config_of(tmp_path)[0])


def test_a_model_that_cannot_be_made_is_a_wrong_setting_with_its_cure(tmp_path: Path) -> None:
    config, environ = config_of(tmp_path, GUIDANCE_MODEL="some/other-model")
    with pytest.raises(ConfigError, match=r"some/other-model is not at .*GUIDANCE_MODEL_PATH"):
        prepare_model(config, environ, say=print)


@pytest.mark.parametrize("name", ["my-model", MODEL_NAME])
def test_the_users_own_model_directory_is_taken_as_it_is(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text('{"max_position_embeddings": 8192}')
    config, environ = config_of(tmp_path, GUIDANCE_MODEL_PATH=str(folder))
    prepare_model(config, environ, say=print)
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    assert not (folder / MARKER_FILE).exists()
