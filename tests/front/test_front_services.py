"""Starting, watching and stopping services, with tiny HTTP servers in their place."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from guidance_ttt import guard, ports
from guidance_ttt.services import PortInUse, ServiceFailed, Stack, describe_exit, log_tail
from harness.errors import RunCancelled


def quiet(line: str) -> None:
    pass


def test_a_busy_port_is_refused_by_name_setting_and_holder_before_anything_starts(fakes: Any) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        specs = [fakes.spec("first", "healthy"), fakes.spec("second", "healthy", port=port)]
        with pytest.raises(PortInUse) as caught, Stack(specs, say=quiet):
            pytest.fail("the stack must not start")
    message = str(caught.value)
    assert f"port {port}" in message
    assert "second" in message
    assert "FAKE_SECOND_PORT" in message
    assert f"process {os.getpid()}" in message
    assert fakes.pids() == []


def test_a_service_that_dies_early_is_reported_with_its_exit_code_log_tail_and_cure(fakes: Any) -> None:
    specs = [fakes.spec("good", "healthy"), fakes.spec("bad", "dies-early")]
    with pytest.raises(ServiceFailed) as caught, Stack(specs, say=quiet):
        pytest.fail("the stack must not start")
    message = str(caught.value)
    assert "bad ended with exit code 3" in message
    assert "complaint 59" in message
    assert "complaint 19" not in message
    assert "Look after bad." in message
    assert fakes.all_gone()


def test_a_command_that_does_not_exist_is_reported_like_an_early_death(fakes: Any, tmp_path: Path) -> None:
    good = fakes.spec("ghost", "healthy")
    spec = type(good)(**{**vars(good), "argv": (str(tmp_path / "no-such-program"),)})
    with pytest.raises(ServiceFailed, match=r"(?s)ghost ended with exit code 127.*cannot start .*no-such-program"):
        Stack([spec], say=quiet).__enter__()


@pytest.mark.parametrize("mode", ["never-healthy", "unwell"])
def test_a_service_that_never_becomes_healthy_is_given_up_after_its_time(fakes: Any, mode: str) -> None:
    with pytest.raises(ServiceFailed) as caught, Stack([fakes.spec("slow", mode, ready_timeout_s=1.0)], say=quiet):
        pytest.fail("the stack must not start")
    assert "did not answer" in str(caught.value)
    assert f"hello from {mode}" in str(caught.value)
    assert fakes.all_gone()


def test_secrets_in_a_log_are_not_shown(fakes: Any) -> None:
    stack = Stack(
        [fakes.spec("bad", "dies-early")], say=quiet, redact=lambda text: text.replace("complaint 59", "[redacted]")
    )
    with pytest.raises(ServiceFailed, match=r"\[redacted\]") as caught:
        stack.__enter__()
    assert "complaint 59" not in str(caught.value)


def test_a_service_that_dies_during_the_run_is_noticed(fakes: Any) -> None:
    with Stack([fakes.spec("good", "healthy"), fakes.spec("frail", "dies-later")], say=quiet) as stack:
        deadline = time.monotonic() + 10
        while (ended := stack.watch()) is None and time.monotonic() < deadline:
            time.sleep(0.05)
    assert ended is not None
    assert (ended.spec.name, ended.exit_code) == ("frail", 4)
    assert "out of memory" in ended.log_tail
    assert fakes.all_gone()


def test_stop_ends_grandchildren_in_their_own_sessions_and_may_be_called_twice(fakes: Any) -> None:
    with Stack([fakes.spec("family", "family")], say=quiet) as stack:
        assert len(fakes.pids()) == 2
        stack.stop()
        assert fakes.all_gone(0.5)
        stack.stop()


def test_a_service_that_ignores_sigterm_is_killed_after_its_grace_time(fakes: Any) -> None:
    with Stack([fakes.spec("stubborn", "stubborn")], say=quiet):
        started = time.monotonic()
    assert 0.9 < time.monotonic() - started < 10
    assert fakes.all_gone(0.5)


def test_a_hurried_stop_does_not_wait_for_the_grace_time(fakes: Any) -> None:
    spec = fakes.spec("stubborn", "stubborn")
    patient = type(spec)(**{**vars(spec), "grace_s": 60.0})
    started = time.monotonic()
    with Stack([patient], say=quiet, hurry=lambda: True):
        pass
    assert time.monotonic() - started < 15
    assert fakes.all_gone(0.5)


def test_a_cancelled_start_stops_what_was_started(fakes: Any) -> None:
    with pytest.raises(RunCancelled):
        Stack([fakes.spec("slow", "never-healthy")], say=quiet, cancelled=lambda: True).__enter__()
    assert fakes.all_gone()


def test_an_error_inside_the_block_still_stops_the_services(fakes: Any) -> None:
    with pytest.raises(ZeroDivisionError), Stack([fakes.spec("good", "healthy")], say=quiet):
        raise ZeroDivisionError
    assert fakes.all_gone(0.5)


def test_logs_grow_by_one_header_per_start(fakes: Any) -> None:
    spec = fakes.spec("good", "healthy")
    for _ in range(2):
        with Stack([spec], say=quiet):
            pass
    text = spec.log_path.read_text()
    assert len(re.findall(r"^=== good started ", text, re.MULTILINE)) == 2
    assert text.count("hello from healthy") == 2


def test_readiness_is_said_once_per_service(fakes: Any) -> None:
    lines: list[str] = []
    with Stack([fakes.spec("one", "healthy"), fakes.spec("two", "healthy")], say=lines.append):
        pass
    assert lines[0] == "starting one, two"
    assert sorted(line.split(" (")[0] for line in lines[1:]) == ["one is ready", "two is ready"]


def test_a_running_service_is_taken_over_only_when_allowed_and_recognised(fakes: Any) -> None:
    spec = fakes.spec("good", "healthy")
    stranger = type(spec)(**{**vars(spec), "identity": "somebody else"})
    with Stack([spec], say=quiet):
        with pytest.raises(PortInUse):
            Stack([spec], say=quiet).__enter__()
        with pytest.raises(PortInUse):
            Stack([stranger], say=quiet, reuse=True).__enter__()
        with Stack([spec], say=quiet, reuse=True):
            assert len(fakes.pids()) == 1
        assert ports.fetch(spec.health_url, 2.0) is not None  # still there: not ours to stop


LAUNCHER = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from conftest import Fakes
from guidance_ttt.services import Stack

fakes = Fakes(Path({folder!r}))
with Stack([fakes.spec("family", "family"), fakes.spec("stubborn", "stubborn")], say=print):
    print("up", flush=True)
    time.sleep(60)
"""


def test_a_launcher_that_is_killed_outright_leaves_no_orphan(fakes: Any, tmp_path: Path) -> None:
    script = LAUNCHER.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    launcher = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert launcher.stdout is not None
        assert any(line == "up\n" for line in launcher.stdout)
        assert len(fakes.pids()) == 3
    finally:
        launcher.kill()
        launcher.wait()
    assert fakes.all_gone()


def test_the_guard_reports_exit_codes_and_signals_as_a_shell_does() -> None:
    def guarded(*argv: str) -> int:
        process = subprocess.Popen([sys.executable, guard.__file__, "1", *argv], stdin=subprocess.PIPE)
        try:
            return process.wait(timeout=10)
        finally:
            assert process.stdin is not None
            process.stdin.close()

    assert guarded("true") == 0
    assert guarded("sh", "-c", "exit 7") == 7
    assert guarded("sh", "-c", "kill -9 $$") == 137
    assert describe_exit(137) == "signal 9 (SIGKILL)"
    assert describe_exit(7) == "exit code 7"
    assert describe_exit(255) == "exit code 255"


def test_the_guard_passes_ctrl_c_on_and_lets_the_command_finish() -> None:
    script = "trap 'exit 9' INT; echo ready; while :; do sleep 0.05; done"
    process = subprocess.Popen(
        [sys.executable, guard.__file__, "5", "bash", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == 9


def test_log_tail_says_when_there_is_no_log(tmp_path: Path) -> None:
    assert log_tail(tmp_path / "none.log") == "(no log: No such file or directory)"
    (tmp_path / "empty.log").write_text("")
    assert log_tail(tmp_path / "empty.log") == "(the log is empty)"


def test_the_holder_of_a_free_port_is_nobody(fakes: Any) -> None:
    port = fakes.spec("none", "healthy").port
    assert ports.is_free("127.0.0.1", port)
    assert ports.holder(port) is None
    assert ports.fetch(f"http://127.0.0.1:{port}/", 0.5) is None
