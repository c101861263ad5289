"""`guidance-ttt doctor`: settings, keys, the task's files and the state directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from front_doctor import context_of, levels

from guidance_ttt.doctor import settings
from guidance_ttt.doctor.model import Level
from harness.storage import write_json


def test_time_limits_are_told_with_their_unit_and_misspelt_variables_are_found(tmp_path: Path) -> None:
    found = list(settings.check_settings(context_of(tmp_path, GUIDANCE_EXECUTOR_TIMEOUT="1200", GUIDANCE_STEP="1")))
    assert "1200 s an executor call" in found[1].fact
    assert "340 s a verdict" in found[1].fact
    assert found[2].level is Level.WARNING
    assert "did you mean GUIDANCE_STEPS?" in found[2].fact


@pytest.mark.parametrize(
    ("value", "level", "fact"),
    [
        ("", "failure", "MY_KEY is not set"),
        ("sk-sentinel\nx", "failure", "the key in MY_KEY holds blanks"),
        ("sk-sentinel", "ok", "MY_KEY is set"),
    ],
)
def test_a_key_is_told_by_its_name_alone(value: str, level: str, fact: str) -> None:
    found = settings.key_finding("MY_KEY", {"MY_KEY": value}, "executor x")
    assert (found.level.value, fact in found.fact) == (level, True)
    assert "sentinel" not in found.fact + found.cure


def test_a_missing_executor_key_is_a_failure_and_not_a_wrong_setting(tmp_path: Path) -> None:
    context = context_of(tmp_path, GUIDANCE_EXECUTOR="openrouter")
    assert [item.fact for item in settings.check_keys(context)] == [
        "executor openrouter needs a key, and OPENROUTER_API_KEY is not set"
    ]


def test_the_tasks_files_and_the_seed_are_read(tmp_path: Path) -> None:
    assert levels(settings.check_task(context_of(tmp_path))) == ["ok"]
    (found,) = settings.check_task(context_of(tmp_path, GUIDANCE_SEED=str(tmp_path / "none.cpp")))
    assert "the seed program is missing" in found.fact


def test_a_state_directory_is_new_continued_or_refused_with_every_difference(tmp_path: Path) -> None:
    context = context_of(tmp_path)
    assert [item.fact for item in settings.check_state(context)] == [f"{tmp_path / 'state'} holds no run yet"]
    run_dir = tmp_path / "state" / "guidance-run"
    write_json(run_dir / "task-identity.json", {"format_version": 1, "groups_per_step": 9})
    (found,) = settings.check_state(context)
    assert (found.level, "groups_per_step: bound to 9, now 2" in found.fact) == (Level.FAILURE, True)
    (run_dir / "resume-state.json").write_text("{")
    (found,) = settings.check_state(context)
    assert "is not a valid state file" in found.fact
