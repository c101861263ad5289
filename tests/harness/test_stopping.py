"""Stop rules: a budget is never knowingly exceeded, and a run that stops can go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.search_fixture import World
from test_config import YAML

from harness.config import RunConfig
from harness.episode import stop_reason
from harness.errors import ConfigError
from harness.stopping import StopRules


def step(**changed: Any) -> dict[str, Any]:
    values = {"sampled_rollouts": 8, "rollout_s": 20.0, "train_s": 10.0, "best_raw_score": 50.0, "best_gain": 1.0}
    return {**values, "cost_usd": 0.5, **changed}


def reason(rules: StopRules, *summaries: dict[str, Any], direction: str = "max") -> str | None:
    return rules.reason(summaries, grid_size=8, direction=direction)


def test_without_rules_nothing_stops() -> None:
    assert reason(StopRules(), *[step()] * 100) is None


@pytest.mark.parametrize(
    ("rules", "goes_on", "stops", "said"),
    [
        (StopRules(max_evaluations=24), [step()] * 2, [step()] * 3, "24 evaluations done, 8 more would exceed"),
        (StopRules(max_evaluations=23), [step()], [step()] * 2, "16 evaluations done"),
        (StopRules(max_time_s=90.0), [step()] * 2, [step()] * 3, "90 s spent"),
        (StopRules(max_time_s=90.0), [step()] * 2, [step(), step(rollout_s=21.0)], "another step of up to 31 s"),
        (StopRules(max_cost_usd=1.5), [step()] * 2, [step()] * 3, "$1.50 spent"),
        (StopRules(max_cost_usd=9.0), [step()], [step(), step(cost_usd=None)], "the cost of 1 step(s) is unknown"),
        (StopRules(target_score=50.5), [step()], [step(best_raw_score=50.5)], "GUIDANCE_TARGET_SCORE=50.5"),
        (StopRules(patience=2), [step(best_gain=0.0), step()], [step(), *[step(best_gain=0.0)] * 2], "in 2 updates"),
        (StopRules(patience=2), [step(best_gain=0.0)], [step(best_gain=0.0)] * 2, "GUIDANCE_PATIENCE=2"),
    ],
)
def test_a_rule_stops_a_run_between_steps_and_says_which_setting_did_it(
    rules: StopRules, goes_on: list[dict[str, Any]], stops: list[dict[str, Any]], said: str
) -> None:
    assert reason(rules, *goes_on) is None
    assert said in (reason(rules, *stops) or "")


def test_a_target_that_is_to_be_undercut_is_reached_from_above() -> None:
    rules = StopRules(target_score=40.0)
    assert reason(rules, step(), direction="min") is None
    assert reason(rules, step(best_raw_score=39.9), direction="min") is not None
    assert reason(rules, step(best_raw_score=None), direction="min") is None


async def test_a_run_that_stopped_goes_on_with_a_higher_limit_to_the_same_end(tmp_path: Path) -> None:
    whole, stopped = World(tmp_path / "whole"), World(tmp_path / "stopped")
    await whole.run(3)
    size = stopped.grid.size
    first = await stopped.run(3, StopRules(max_evaluations=2 * size))
    assert (first.next_step, first.stopped is not None) == (2, True)
    assert "stopped after step 2/3" in stopped.out.getvalue()
    again = await stopped.run(3, StopRules(max_evaluations=2 * size))
    assert (again.next_step, len(again.outcomes)) == (2, 0)
    last = await stopped.run(3, StopRules(max_evaluations=3 * size))
    assert (last.next_step, last.stopped) == (3, None)
    assert stopped.committed() == whole.committed()


def load(root: Path, **environ: str) -> RunConfig:
    (root / "serve.local.yaml").write_text(YAML, encoding="utf-8")
    return RunConfig.load(environ, root=root)


def test_the_settings_become_rules(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        GUIDANCE_MAX_EVALUATIONS="80",
        GUIDANCE_MAX_TIME="3600",
        GUIDANCE_MAX_COST="2.5",
        GUIDANCE_TARGET_SCORE="-1.5",
        GUIDANCE_PATIENCE="4",
    )
    assert config.stop_rules == StopRules(80, 3600.0, 2.5, -1.5, 4)
    assert load(tmp_path).stop_rules == StopRules()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GUIDANCE_MAX_EVALUATIONS", "7"),
        ("GUIDANCE_MAX_EVALUATIONS", "0"),
        ("GUIDANCE_MAX_TIME", "0"),
        ("GUIDANCE_MAX_TIME", "2h"),
        ("GUIDANCE_MAX_COST", "-1"),
        ("GUIDANCE_TARGET_SCORE", "nan"),
        ("GUIDANCE_PATIENCE", "0"),
        ("GUIDANCE_EXECUTOR_PRICE", "0.5"),
        ("GUIDANCE_EXECUTOR_PRICE", "a/b"),
        ("GUIDANCE_EXECUTOR_PRICE", "-1/2"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_by_name_and_value(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}='?{value}"):
        load(tmp_path, **{name: value})


def test_a_cost_limit_needs_a_price_that_somebody_knows(tmp_path: Path) -> None:
    paid = {
        "GUIDANCE_EXECUTOR": "openai",
        "GUIDANCE_EXECUTOR_URL": "http://127.0.0.1:9/v1",
        "GUIDANCE_EXECUTOR_MODEL": "big",
        "GUIDANCE_MAX_COST": "5",
    }
    with pytest.raises(ConfigError, match="what big costs: set GUIDANCE_EXECUTOR_PRICE"):
        load(tmp_path, **paid)
    price = load(tmp_path, **paid, GUIDANCE_EXECUTOR_PRICE="0.5/2").backend.price
    assert price is not None
    assert price.cost_usd(2_000_000, 1_000_000) == pytest.approx(3.0)
    offline = load(tmp_path, GUIDANCE_MAX_COST="5").backend.price
    assert offline is not None
    assert offline.cost_usd(10**9, 10**9) == 0.0


def test_whether_a_stopped_run_goes_on_is_decided_by_the_settings_of_now(tmp_path: Path) -> None:
    task = tmp_path / "harbor/polyomino_packing"
    task.mkdir(parents=True)
    source = Path(__file__).resolve().parents[2] / "harbor/polyomino_packing"
    for name in ("contract.json", "instruction.md"):
        (task / name).write_text((source / name).read_text(encoding="utf-8"), encoding="utf-8")
    done = [step()] * 2
    assert stop_reason(load(tmp_path, GUIDANCE_MAX_EVALUATIONS="16"), done) is not None
    assert stop_reason(load(tmp_path, GUIDANCE_MAX_EVALUATIONS="24"), done) is None
