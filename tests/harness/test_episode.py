"""The episode's end: a trial without a usable reward says why, where to look and that nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_config import YAML

from harness.config import RunConfig
from harness.episode import EpisodeFailed, episode_key, require_reward


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    (tmp_path / "serve.local.yaml").write_text(YAML, encoding="utf-8")
    return RunConfig.load({"GUIDANCE_STEPS": "3"}, root=tmp_path)


@pytest.mark.parametrize("rewards", [{}, {"score": 1.0}, {"reward": True}, {"reward": "1"}, {"reward": float("nan")}])
def test_a_missing_or_unusable_reward_names_the_file_and_what_belongs_in_it(
    config: RunConfig, rewards: dict[str, Any]
) -> None:
    with pytest.raises(EpisodeFailed, match=r"/trial/verifier/reward\.json.*safe in .*guidance-run"):
        require_reward(config, {}, rewards, "file:///trial")


def test_a_failed_trial_is_told_with_its_reason_and_place(config: RunConfig) -> None:
    with pytest.raises(EpisodeFailed, match=r"(?s)no reward file.*trial: /trial.*safe in"):
        require_reward(config, {"error": "no reward file"}, {"reward": 1.0}, "file:///trial")


def test_a_reward_of_zero_is_a_reward(config: RunConfig) -> None:
    require_reward(config, {}, {"reward": 0}, "file:///trial")


def test_raising_the_total_is_another_episode(config: RunConfig) -> None:
    assert episode_key(config) == "guidance-ttt-polyomino-packing:steps-3"
