"""Whole Harbor trials of a toy task, through Harbor's own API and through reef-eval's Lab."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from harbor.models.trial.config import TrialConfig
from harbor.trial.trial import Trial
from reef_eval import Lab
from support.jail_fixture import http_server, leftovers, needs_jail, processes_with
from support.toy_task import write_toy_task

from harness.environment_choice import choose_environment

pytestmark = [needs_jail, pytest.mark.slow]

AGENT = {"name": "support.toy_agent:ToyAgent", "model_name": "toy/model"}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HARBOR_TELEMETRY", "off")
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    yield
    assert leftovers() == set()


async def _trial(
    tmp_path: Path, task: Path, *, agent: dict[str, Any] | None = None, judge_url: str = "http://127.0.0.1:1"
) -> Any:
    config = TrialConfig.model_validate(
        {
            "task": {"path": task},
            "trials_dir": tmp_path / "trials",
            "agent": {**AGENT, "kwargs": agent or {}},
            "environment": choose_environment("local", judge_url=judge_url),
        }
    )
    async with asyncio.timeout(120):
        return await (await Trial.create(config)).run()


def _directory(result: Any) -> Path:
    return Path(urlsplit(result.trial_uri).path)


async def test_a_reward_planted_by_the_agent_does_not_count(tmp_path: Path) -> None:
    plant = "mkdir -p /logs/verifier && echo '{\"reward\": 99}' > /logs/verifier/reward.json"
    result = await _trial(tmp_path, write_toy_task(tmp_path), agent={"command": plant, "answer": 7})
    assert result.exception_info is None
    assert result.verifier_result.rewards == {"reward": 0.0}


async def test_a_link_planted_among_the_artifacts_is_not_followed_on_the_host(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("sentinel")
    plant = f"mkdir -p /workspace/extra && cd /workspace/extra && ln -s {secret} leak && echo kept > kept"
    result = await _trial(tmp_path, write_toy_task(tmp_path), agent={"command": plant})
    extra = _directory(result) / "artifacts/workspace/extra"
    assert [path.name for path in extra.iterdir()] == ["kept"]
    assert not any("sentinel" in path.read_text() for path in _directory(result).rglob("*") if path.is_file())


async def test_an_agent_past_its_time_limit_is_stopped_and_still_graded(tmp_path: Path) -> None:
    token = "300.424242424"
    task = write_toy_task(tmp_path, agent_timeout_s=1.5)
    result = await _trial(tmp_path, task, agent={"command": f"sleep {token} & sleep {token}"})
    assert result.exception_info.exception_type == "AgentTimeoutError"
    assert result.verifier_result.rewards == {"reward": 0.0}
    assert processes_with(token) == []


async def test_a_trial_ends_with_its_reward_logs_and_artifacts_in_place(tmp_path: Path) -> None:
    result = await _trial(tmp_path, write_toy_task(tmp_path))
    directory = _directory(result)
    assert result.exception_info is None
    assert result.verifier_result.rewards == {"reward": 1.0}
    setup = (directory / "agent/setup.txt").read_text()
    assert setup.startswith("/workspace\nseed\n")
    assert setup.endswith("yes\n")
    assert setup.count("No such file") == 2  # neither tests nor solution are visible to the agent
    assert (directory / "artifacts/workspace/answer.txt").read_text() == "42\n"
    assert json.loads((directory / "agent/trajectory.json").read_text())["steps"][1]["extra"]["receipt"] == "receipt-1"


async def test_the_grader_reaches_the_judge_by_the_name_on_the_tasks_allowlist(tmp_path: Path) -> None:
    task = write_toy_task(
        tmp_path, allowed_host="host.docker.internal", judge_url="http://host.docker.internal:8081/health"
    )
    with http_server("the judge") as port:
        result = await _trial(tmp_path, task, judge_url=f"http://127.0.0.1:{port}")
    assert result.verifier_result.rewards == {"reward": 1.0}
    assert (_directory(result) / "verifier/judge.txt").read_text() == "the judge"


async def test_a_separate_verifier_finds_the_tests_and_the_artifacts(tmp_path: Path) -> None:
    result = await _trial(tmp_path, write_toy_task(tmp_path, separate_verifier=True))
    assert result.exception_info is None
    assert result.verifier_result.rewards == {"reward": 1.0}


async def test_a_lab_runs_a_task_with_a_compose_file_whose_names_the_env_file_gives(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "lab")
    environment = choose_environment("local", judge_url="http://127.0.0.1:1")
    async with asyncio.timeout(120):
        row = await lab.run(str(write_toy_task(tmp_path, compose=True)), AGENT, key="toy:1:1", environment=environment)
    assert row.key == "toy:1:1"
    assert "error" not in row.tags or row.tags["error"] is None
    assert row.rewards == {"reward": 1.0}
