"""The `guidance-ttt` command, as a user types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from guidance_ttt.cli import app
from guidance_ttt.status import read_status, render_status
from harness.errors import StateCorrupt, StateError


def guidance_ttt(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GUIDANCE_")}
    command = [sys.executable, "-c", "from guidance_ttt.cli import main; main()", *arguments]
    return subprocess.run(command, env={**plain, **environ}, capture_output=True, text=True, timeout=60, check=False)


def a_run(folder: Path, summaries: list[dict[str, object]], next_step: object) -> Path:
    run_dir = folder / "guidance-run"
    run_dir.mkdir()
    (run_dir / "task-identity.json").write_text('{"task": "polyomino_packing"}')
    resume = {"format_version": 1, "next_step": next_step, "step_summaries": summaries}
    (run_dir / "resume-state.json").write_text(json.dumps(resume))
    return folder


def test_help_lists_the_verbs_and_loads_neither_torch_nor_the_services() -> None:
    done = guidance_ttt("--help")
    assert done.returncode == 0
    for verb in ("run", "judge", "executor", "model", "status", "inspect", "export", "doctor"):
        assert verb in done.stdout
    loaded = "import sys, guidance_ttt.cli; print(*sys.modules)"
    check = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, timeout=60, check=True)
    assert not {"torch", "httpx", "openai", "pydantic", "aiohttp"} & set(check.stdout.split())


def test_status_of_a_directory_without_a_run_says_how_to_start_one(tmp_path: Path) -> None:
    done = guidance_ttt("status", "--state-dir", str(tmp_path))
    assert done.returncode == 1
    assert "holds no run; start one with ./run.sh" in done.stderr
    assert "Traceback" not in done.stderr


def test_status_shows_steps_best_score_program_and_the_next_command(tmp_path: Path) -> None:
    a_run(tmp_path, [{"best_raw_score": 50.0}, {"best_raw_score": 61.25}], 2)
    (tmp_path / "guidance-run" / "best.cpp").write_text("int main() {}")
    done = guidance_ttt("status", "--json", GUIDANCE_STATE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    expected = {
        "state_dir": str(tmp_path),
        "task": "polyomino_packing",
        "policy_frozen": False,
        "steps_done": 2,
        "best_raw_score": 61.25,
        "best_program": str(tmp_path / "guidance-run" / "best.cpp"),
        "next_command": f"GUIDANCE_TASK=polyomino_packing GUIDANCE_STATE_DIR={tmp_path} GUIDANCE_STEPS=3 ./run.sh",
    }
    assert json.loads(done.stdout).items() >= expected.items()
    text = render_status(read_status(tmp_path))
    assert "steps      2 done" in text
    assert "best       61.25" in text


def test_status_of_a_control_run_says_so_and_continues_it_as_one(tmp_path: Path) -> None:
    a_run(tmp_path, [{"best_raw_score": 50.0}], 1)
    resume = tmp_path / "guidance-run" / "resume-state.json"
    resume.write_text(json.dumps({**json.loads(resume.read_text()), "policy_frozen": True}))
    text = render_status(read_status(tmp_path))
    assert "policy     frozen" in text
    assert "GUIDANCE_FREEZE_POLICY=1" in text


def test_status_before_the_first_commit_has_no_best(tmp_path: Path) -> None:
    (tmp_path / "guidance-run").mkdir()
    status = read_status(tmp_path)
    assert (status.steps_done, status.best_raw_score, status.best_program) == (0, None, None)
    assert "best       none yet" in render_status(status)


@pytest.mark.parametrize("next_step", [True, "2", -1, None])
def test_status_refuses_an_unreadable_resume_state(tmp_path: Path, next_step: object) -> None:
    with pytest.raises(StateCorrupt, match="resume-state"):
        read_status(a_run(tmp_path, [], next_step))


def test_status_refuses_broken_json(tmp_path: Path) -> None:
    a_run(tmp_path, [], 1)
    (tmp_path / "guidance-run" / "resume-state.json").write_text("{")
    with pytest.raises(StateError):
        read_status(tmp_path)


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        (["--quiet"], {"GUIDANCE_QUIET": "1"}),
        (["--freeze-policy"], {"GUIDANCE_FREEZE_POLICY": "1"}),
        (["--max-cost", "2.5", "--max-time", "9"], {"GUIDANCE_MAX_COST": "2.5", "GUIDANCE_MAX_TIME": "9.0"}),
        ([], {}),
    ],
)
def test_the_options_of_run_are_settings_of_the_launcher(
    monkeypatch: pytest.MonkeyPatch, options: list[str], setting: dict[str, str]
) -> None:
    names = ("QUIET", "FREEZE_POLICY", "MAX_COST", "MAX_EVALUATIONS", "MAX_TIME")
    for name in names:
        monkeypatch.setenv(f"GUIDANCE_{name}", "")
    seen: dict[str, str] = {}

    def launched(arguments: list[str]) -> int:
        seen.update({name: value for part in names if (value := os.environ[name := f"GUIDANCE_{part}"])})
        return 7

    monkeypatch.setattr("guidance_ttt.launch.main", launched)
    assert CliRunner().invoke(app, ["run", *options]).exit_code == 7
    assert seen == setting


def test_an_executor_without_a_catalogue_is_refused_by_path() -> None:
    done = guidance_ttt("executor", "no_such_task")
    assert done.returncode == 1
    assert "no_such_task" in done.stderr
    assert "offline does not exist" in done.stderr
