"""The launcher: what it does when the run ends, when a service ends, and when somebody presses Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from guidance_ttt import launch
from guidance_ttt.launch import SignalDesk, resume_command, supervise
from guidance_ttt.plan import LaunchPlan
from guidance_ttt.services import Stack

SAVES_ON_INTERRUPT = """
import signal, sys, time
def save(*_):
    open("saved", "w").close()
    sys.exit(130)
signal.signal(signal.SIGINT, save)
open("started", "w").close()
time.sleep(60)
"""
IGNORES_INTERRUPT = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("started", "w").close()
time.sleep(60)
"""


def launched(fakes: Any, run: str, *modes: str, presses: tuple[int, ...] = ()) -> tuple[int, str]:
    """Supervise a Python snippet as the run; `presses` are signals sent to this process once the run has started."""
    lines: list[str] = []
    argv = (sys.executable, "-I", "-S", "-c", run)
    plan = LaunchPlan(
        services=tuple(fakes.spec(f"service{index}", mode) for index, mode in enumerate(modes)),
        run_argv=argv,
        run_env={"PATH": os.environ["PATH"]},
        cwd=fakes.folder,
    )

    def press() -> None:
        deadline = time.monotonic() + 10
        while not (fakes.folder / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        for number in presses:
            os.kill(os.getpid(), number)
            time.sleep(0.6)

    with SignalDesk() as desk:
        stack = Stack(plan.services, say=lines.append, hurry=lambda: desk.hurried)
        with stack:
            presser = threading.Thread(target=press, daemon=True)
            if presses:
                presser.start()
            code = supervise(plan, stack, desk, say=lines.append, resume="./run.sh")
            if presses:
                presser.join(10)
    return code, "\n".join(lines)


def test_the_runs_exit_code_is_the_launchers(fakes: Any) -> None:
    assert launched(fakes, "pass", "healthy")[0] == 0
    code, output = launched(fakes, "raise SystemExit(5)", "healthy")
    assert code == 5
    assert "continue with: ./run.sh" in output
    assert fakes.all_gone()


def test_a_service_that_dies_stops_the_run_in_order_and_names_the_cure_and_the_way_back(fakes: Any) -> None:
    code, output = launched(fakes, SAVES_ON_INTERRUPT, "healthy", "dies-later")
    assert code == 1
    assert "service1 ended with exit code 4" in output
    assert "out of memory" in output
    assert "Look after service1." in output
    assert output.endswith("continue with: ./run.sh")
    assert (fakes.folder / "saved").exists()
    assert fakes.all_gone()


def test_a_run_that_fails_because_a_service_died_says_so(fakes: Any) -> None:
    code, output = launched(fakes, "import time; time.sleep(1.5); raise SystemExit(1)", "dies-later")
    assert code == 1
    assert "service0 ended with exit code 4" in output


def test_ctrl_c_lets_the_run_save_and_exits_with_130(fakes: Any) -> None:
    code, output = launched(fakes, SAVES_ON_INTERRUPT, "healthy", presses=(signal.SIGINT,))
    assert code == 130
    assert (fakes.folder / "saved").exists()
    assert "continue with: ./run.sh" in output
    assert fakes.all_gone()


def test_sigterm_is_handled_like_ctrl_c_with_its_own_exit_code(fakes: Any) -> None:
    code, _ = launched(fakes, SAVES_ON_INTERRUPT, "healthy", presses=(signal.SIGTERM,))
    assert code == 143
    assert (fakes.folder / "saved").exists()


def test_a_second_ctrl_c_ends_a_deaf_run_at_once(fakes: Any) -> None:
    started = time.monotonic()
    code, _ = launched(fakes, IGNORES_INTERRUPT, "stubborn", presses=(signal.SIGINT, signal.SIGINT))
    assert code == 130
    assert time.monotonic() - started < 20
    assert fakes.all_gone()


def test_the_resume_command_repeats_the_settings_without_secrets() -> None:
    command = resume_command(
        {
            "GUIDANCE_STEPS": "3",
            "GUIDANCE_STATE_DIR": "/tmp/a b",
            "GUIDANCE_REEF_TOKEN": "hush",
            "GUIDANCE_EXECUTOR_URL": "https://me:hush@example.org/v1",
            "GUIDANCE_EXECUTOR": " ",
            "OPENROUTER_API_KEY": "hush",
        }
    )
    assert command == "GUIDANCE_EXECUTOR_URL=... GUIDANCE_STATE_DIR='/tmp/a b' GUIDANCE_STEPS=3 ./run.sh"


@pytest.mark.parametrize("quiet", ["1", "0"])
def test_a_quiet_launch_says_nothing_while_all_goes_well(
    fakes: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quiet: str
) -> None:
    plan = LaunchPlan(
        services=(fakes.spec("service0", "healthy"),),
        run_argv=(sys.executable, "-I", "-S", "-c", "raise SystemExit(0)"),
        run_env={"PATH": os.environ["PATH"]},
        cwd=fakes.folder,
        notes=("executor: using another one",),
    )
    lines: list[str] = []
    monkeypatch.setattr(launch, "plan_from_config", lambda config, environ: plan)
    monkeypatch.setattr(launch, "prepare_model", lambda config, environ, *, say: say("converting the model"))
    monkeypatch.setattr(launch, "closing_report", lambda state_dir, environ, *, say: None)
    environ = {"GUIDANCE_STATE_DIR": str(tmp_path), "GUIDANCE_QUIET": quiet}
    assert launch.launch(environ, say=lines.append) == 0
    assert bool(lines) == (quiet == "0")
    if lines:
        assert lines[:3] == ["converting the model", "executor: using another one", "starting service0"]


def test_a_quiet_launch_still_says_what_went_wrong(
    fakes: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = LaunchPlan(
        services=(fakes.spec("service0", "healthy"),),
        run_argv=(sys.executable, "-I", "-S", "-c", "raise SystemExit(5)"),
        run_env={"PATH": os.environ["PATH"]},
        cwd=fakes.folder,
    )
    lines: list[str] = []
    monkeypatch.setattr(launch, "plan_from_config", lambda config, environ: plan)
    monkeypatch.setattr(launch, "prepare_model", lambda config, environ, *, say: None)
    environ = {"GUIDANCE_STATE_DIR": str(tmp_path), "GUIDANCE_QUIET": "1"}
    assert launch.launch(environ, say=lines.append) == 5
    assert len(lines) == 1
    assert "the run ended with exit code 5; continue with: GUIDANCE_QUIET=1" in lines[0]


@pytest.mark.parametrize(
    ("arguments", "setting", "message"),
    [
        (["--steps"], {}, "unexpected argument '--steps'"),
        ([], {"GUIDANCE_TASK": "../etc"}, "GUIDANCE_TASK='../etc' is unknown"),
        ([], {"GUIDANCE_CONFIG": "no-such.yaml"}, "config file not found"),
    ],
)
def test_a_wrong_setting_ends_with_one_line_and_code_2(
    arguments: list[str], setting: dict[str, str], message: str, tmp_path: Path
) -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GUIDANCE_")}
    done = subprocess.run(
        [sys.executable, "-m", "guidance_ttt.launch", *arguments],
        env={**plain, "GUIDANCE_STATE_DIR": str(tmp_path), **setting},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
