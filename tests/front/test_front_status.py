"""`guidance-ttt status`: where a run stands, read from its directory while it may be running."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from front_state import Journal, large_state, searched, write_identity

from guidance_ttt.run_health import probe_services, read_holder, service_urls
from guidance_ttt.status import RunStatus, read_status, render_status, status_line, watch
from harness.errors import StateError
from harness.grid import Grid
from harness.storage import StateLock, process_start_s

GRID = Grid(2, 2)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "guidance-run").mkdir()
    write_identity(tmp_path, GRID)
    return tmp_path


def event(state: Path, name: str, **fields: object) -> None:
    with (state / "guidance-run" / "events.jsonl").open("a") as events:
        events.write(json.dumps({"event": name, "time": "2026-01-02T03:04:05Z", **fields}) + "\n")


# --- the unfinished step ----------------------------------------------------------------------------------------------


def test_an_unfinished_step_shows_what_each_of_its_rollouts_waits_for(state: Path) -> None:
    journal = Journal(state, grid=GRID)
    for group, rollout, upto in ((0, 0, "guidance"), (0, 1, "execution"), (1, 0, "verdict")):
        journal.write(journal.rollout(group, rollout, upto))
    position = read_status(state).position
    assert position is not None
    assert (position.policy, position.executor, position.judge, position.report, position.reported) == (1, 1, 1, 1, 0)
    text = render_status(read_status(state))
    assert "now        step 1: 0/4 rollouts done; waiting for policy 1  executor 1  judge 1  report 1" in text


def test_malformed_guidance_waits_for_no_executor(state: Path) -> None:
    journal = Journal(state, grid=GRID)
    journal.write(journal.rollout(0, 0, "guidance", text="no block at all"))
    position = read_status(state).position
    assert position is not None
    assert (position.executor, position.report) == (0, 1)


def test_a_complete_grid_waits_for_training_and_then_for_its_commit(state: Path) -> None:
    journal = Journal(state, grid=GRID)
    for group, rollout in ((0, 0), (0, 1), (1, 0), (1, 1)):
        journal.write(journal.rollout(group, rollout, "reported"))
    assert "all 4 rollouts reported, training" in render_status(read_status(state))
    journal.write([{"kind": "committed", "attempt": 1, "summary": {}}])
    assert "step 1: trained, being committed" in render_status(read_status(state))


def test_a_step_that_has_not_begun_and_a_voided_one_have_no_position(state: Path) -> None:
    assert read_status(state).position is None
    Journal(state, grid=GRID).write([{"kind": "void", "attempt": 1, "reason": "other weights"}])
    assert read_status(state).position is None


def test_a_line_that_is_just_being_written_is_left_out(state: Path) -> None:
    journal = Journal(state, grid=GRID)
    journal.write(journal.rollout(0, 0, "guidance"))
    with journal.path.open("ab") as stream:
        stream.write(b'{"kind":"exec')
    position = read_status(state).position
    assert position is not None
    assert position.executor == 1


def test_a_damaged_journal_is_named_and_hides_nothing_else(state: Path) -> None:
    Journal(state, grid=GRID).path.write_text("not json\n")
    status = read_status(state)
    assert status.position is None
    assert "step-000001.jsonl, line 1, is not a journal record" in render_status(status)
    assert "steps      0 done" in render_status(status)


def test_a_state_of_3840_rollouts_is_read_without_its_archive(tmp_path: Path) -> None:
    grid = large_state(tmp_path)
    archive = tmp_path / "guidance-run" / "committed-library.json"
    assert json.loads(archive.read_text())["puct_T"] == 30 * grid.size
    archive.write_text("unreadable")
    status = read_status(tmp_path, ask_services=True)
    assert (status.steps_done, status.best_step) == (30, 1)
    position = status.position
    assert position is not None
    assert (position.step, position.rollouts) == (31, 128)
    assert (position.executor, position.judge, position.report, position.reported) == (32, 32, 32, 32)


# --- the process ------------------------------------------------------------------------------------------------------


def test_a_live_run_is_named_by_its_process_and_a_released_directory_is_not(state: Path) -> None:
    assert read_status(state).live is False
    with StateLock(state / "guidance-run"):
        status = read_status(state)
        assert status.live is True
        assert f"run        live: process {os.getpid()}" in render_status(status)
    assert read_status(state).live is False


@pytest.mark.parametrize(
    ("change", "live", "said"),
    [
        ({"process_start_s": 1000.0}, False, "ended without giving the directory back"),
        ({"pid": 2**22 + 1}, False, "ended without giving the directory back"),
        ({"host": "elsewhere"}, None, "this machine cannot tell"),
    ],
    ids=["number-used-again", "no-such-process", "another-machine"],
)
def test_a_holder_that_is_not_this_very_process_is_not_called_live(
    state: Path, change: dict[str, object], live: bool | None, said: str
) -> None:
    me = {"host": socket.gethostname(), "pid": os.getpid(), "process_start_s": process_start_s(os.getpid())}
    (state / "guidance-run" / "state.lock").write_text(json.dumps({**me, **change}))
    holder = read_holder(state / "guidance-run")
    assert holder is not None
    assert holder.live is live
    assert said in render_status(read_status(state))


def test_a_lock_file_of_nonsense_holds_nothing(state: Path) -> None:
    for content in ("", "{", "[]", '{"pid": "x"}'):
        (state / "guidance-run" / "state.lock").write_text(content)
        assert read_status(state).live is False


# --- services ---------------------------------------------------------------------------------------------------------


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def healthy_port() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), Healthy)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def started(state: Path, name: str, port: int) -> None:
    log = state / "stack" / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as stream:
        stream.write(f"\n=== {name} started 2026-01-01: python -m {name} --host 127.0.0.1 --port {port} --x y\n")


def test_each_service_of_the_last_launch_is_asked(state: Path, healthy_port: int) -> None:
    started(state, "judge", 1)
    started(state, "judge", healthy_port)
    started(state, "executor", closed_port())
    silent = socket.create_server(("127.0.0.1", 0))
    (state / "stack" / "logs" / "reef.log").write_text("=== reef started\n")
    runtime = state / "stack" / "reef" / "runtime.yaml"
    runtime.parent.mkdir()
    port = silent.getsockname()[1]
    runtime.write_text(f"other:\n  port: 1\nreef:\n  host: 127.0.0.1\n  port: {port}\n  token: hush\n")
    with silent, StateLock(state / "guidance-run"):
        status = read_status(state, ask_services=True)
    assert {item.name: item.answers for item in status.services} == {"judge": True, "executor": False, "reef": False}
    assert "judge: answers  executor: not running  reef: takes connections but" in render_status(status)
    assert "not answering: executor, reef" in status_line(status)
    assert "hush" not in json.dumps(status.as_json())


def test_a_service_elsewhere_is_not_looked_for(state: Path) -> None:
    assert service_urls(state) == {}
    assert probe_services({}) == []
    log = state / "stack" / "logs" / "judge.log"
    log.parent.mkdir(parents=True)
    log.write_text("")
    assert service_urls(state) == {}


# --- errors -----------------------------------------------------------------------------------------------------------


def test_the_last_error_is_shown_until_the_run_gets_on(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-sentinel")
    event(state, "guidance_step_started", step=0, total_steps=5)
    event(state, "run_failed", error="ExecutorUnavailable", message="HTTP 500 \x1b[2Jfor key sk-sentinel")
    text = render_status(read_status(state))
    assert "error      2026-01-02T03:04:05Z ExecutorUnavailable: HTTP 500 \\x1b[2Jfor key [redacted]" in text
    assert "GUIDANCE_STEPS=5 ./run.sh" in text
    event(state, "guidance_step_started", step=0, total_steps=5)
    assert "error " not in render_status(read_status(state))


def test_an_early_stop_is_told_until_the_run_goes_on(state: Path) -> None:
    event(state, "run_stopped", next_step=1, reason="the budget is spent")
    assert "stopped    the budget is spent" in render_status(read_status(state))
    event(state, "guidance_step_started", step=1, total_steps=5)
    assert read_status(state).stopped is None


def test_a_dead_services_own_words_are_shown(state: Path) -> None:
    started(state, "judge", closed_port())
    with (state / "stack" / "logs" / "judge.log").open("a") as log:
        log.write("OSError: disk full\nbye\n")
    with StateLock(state / "guidance-run"):
        assert "problem    judge's log: OSError: disk full" in render_status(read_status(state, ask_services=True))


# --- going on ---------------------------------------------------------------------------------------------------------


def test_the_command_to_go_on_repeats_what_the_directory_is_bound_to(state: Path) -> None:
    write_identity(state, Grid(8, 16), run_seed=3, executor="openai", executor_model="m 1")
    backend = {"base_url": "http://h:1/v1", "api_key_env": "MY_KEY"}
    resume = {"format_version": 1, "next_step": 1, "step_summaries": [{}], "executor_backend": backend}
    (state / "guidance-run" / "resume-state.json").write_text(json.dumps(resume))
    assert read_status(state).next_command == (
        f"GUIDANCE_TASK=toy GUIDANCE_STATE_DIR={state} GUIDANCE_GROUPS=8 GUIDANCE_ROLLOUTS=16 GUIDANCE_RUN_SEED=3 "
        "GUIDANCE_EXECUTOR=openai GUIDANCE_EXECUTOR_MODEL='m 1' GUIDANCE_EXECUTOR_URL=http://h:1/v1 "
        "GUIDANCE_EXECUTOR_KEY_ENV=MY_KEY GUIDANCE_STEPS=2 ./run.sh"
    )


def test_the_best_keeps_the_step_where_it_was_found(tmp_path: Path) -> None:
    searched(tmp_path, steps=3)
    status = read_status(tmp_path)
    summaries = json.loads((tmp_path / "guidance-run" / "resume-state.json").read_text())["step_summaries"]
    best = summaries[-1]["best_entry_id"]
    expected = next(item["step"] for item in summaries if item["best_entry_id"] == best) + 1
    assert status.best_step == expected
    assert f"found in step {expected}" in render_status(status)


# --- watching ---------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Looks:
    """Successive states; ends with Ctrl-C, as a person does."""

    def __init__(self, *found: RunStatus | StateError) -> None:
        self._found = list(found)

    def read(self) -> RunStatus:
        item = self._found.pop(0)
        if isinstance(item, StateError):
            raise item
        return item

    def pause(self) -> None:
        if not self._found:
            raise KeyboardInterrupt


def a_status(steps: int) -> RunStatus:
    return RunStatus(Path("/s"), "toy", steps, None, None)


def watched(out: io.StringIO, *found: RunStatus | StateError, as_json: bool = False) -> str:
    looks = Looks(*found)
    watch(looks.read, out, as_json=as_json, pause=looks.pause)
    return out.getvalue()


def test_a_watch_writes_a_plain_line_for_each_change() -> None:
    text = watched(io.StringIO(), a_status(1), a_status(1), a_status(2))
    assert text.splitlines() == ["not running  steps 1  best none  idle", "not running  steps 2  best none  idle"]


def test_a_watch_draws_over_its_last_picture_on_a_terminal() -> None:
    text = watched(Terminal(), a_status(1), a_status(2))
    first, second = text.split("\x1b[J")
    picture, _, jump = first.rpartition("\x1b[")
    assert jump == f"{len(picture.splitlines())}F"
    assert "steps      2 done" in second


def test_a_watch_as_json_is_one_object_a_line() -> None:
    text = watched(io.StringIO(), a_status(1), a_status(2), as_json=True)
    assert [json.loads(line)["steps_done"] for line in text.splitlines()] == [1, 2]


def test_a_watch_survives_a_state_that_cannot_be_read_for_a_moment() -> None:
    text = watched(Terminal(), a_status(1), StateError("being replaced"), a_status(2))
    assert "problem    being replaced" in text
    assert "steps      2 done" in text
    with pytest.raises(StateError):
        watched(io.StringIO(), StateError("holds no run"))


def test_a_status_loads_no_http_client_no_model_library_and_no_settings() -> None:
    code = "import sys, guidance_ttt.status, guidance_ttt.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    heavy = {"torch", "httpx", "openai", "pydantic", "aiohttp", "ray", "harbor", "scipy", "reef", "harness.config"}
    assert heavy & set(done.stdout.split()) == set()
