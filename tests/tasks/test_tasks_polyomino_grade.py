"""The grader against a scripted judge: only a clean, valid verdict is worth anything, and nothing makes it crash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

GRADER = Path(__file__).resolve().parents[2] / "harbor" / "polyomino_packing" / "tests" / "grade.py"
SID = "0123456789abcdef0123456789abcdef"
VALID = {"status": "done", "valid": True, "score": 91.25, "message": "accepted", "failureDomain": None}


class ScriptedJudge(ThreadingHTTPServer):
    """Answers each path from a list of replies, the last of which stays; None hangs up, else (status, body)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.submit: list[tuple[int, bytes] | None] = [(200, json.dumps({"sid": SID}).encode())]
        self.result: list[tuple[int, bytes] | None] = []
        self.bodies: list[tuple[str, bytes]] = []
        self.paths: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def say(self, *replies: Any) -> None:
        self.result = [r if r is None or isinstance(r, tuple) else (200, json.dumps(r).encode()) for r in replies]


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedJudge

    def do_POST(self) -> None:
        size = int(self.headers["Content-Length"])
        self.server.bodies.append((self.headers["Content-Type"], self.rfile.read(size)))
        self._reply(self.server.submit)

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        self._reply(self.server.result)

    def _reply(self, replies: list[tuple[int, bytes] | None]) -> None:
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        if reply is None:
            self.close_connection = True
            return
        status, body = reply
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def judge() -> Iterator[ScriptedJudge]:
    server = ScriptedJudge()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def grade(tmp_path: Path, url: str, code: bytes | None = b"int main() {}", deadline_s: float = 5) -> tuple[float, str]:
    """Run the grader as the verifier does and read what it left."""
    solution = tmp_path / "solution.cpp"
    if code is not None:
        solution.write_bytes(code)
    logs = tmp_path / "logs"
    command = [sys.executable, "-I", str(GRADER), "--solution", str(solution), "--logs-dir", str(logs)]
    command += ["--deadline-s", str(deadline_s), "--poll-s", "0.05"]
    environment = {"PATH": os.environ["PATH"], "GUIDANCE_JUDGE_CONTAINER_URL": url}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    written = json.loads((logs / "reward.json").read_text())
    reason = (logs / "reason.txt").read_text().strip()
    assert list(written) == ["reward"]
    assert json.loads(done.stdout) == {"reward": written["reward"], "reason": reason}
    assert "\n" not in reason
    return written["reward"], reason


BAD_VERDICTS: list[tuple[str, dict[str, Any], str]] = [
    ("invalid", {"valid": False}, "did not call the packing valid"),
    ("valid as a number", {"valid": 1}, "did not call the packing valid"),
    ("valid as text", {"valid": "true"}, "did not call the packing valid"),
    ("valid is null", {"valid": None}, "did not call the packing valid"),
    ("partial reward", {"valid": False, "trainingRewardOnInvalid": True}, "did not call the packing valid"),
    ("rejected", {"status": "error", "message": "compile failed"}, "rejected the program (error): compile failed"),
    ("no score", {"score": None}, "infrastructure failure"),
    ("score as a bool", {"score": True}, "infrastructure failure"),
    ("score as text", {"score": "91.5"}, "infrastructure failure"),
    ("score as a list", {"score": [91]}, "infrastructure failure"),
    ("score not a number", {"score": float("nan")}, "infrastructure failure"),
    ("endless score", {"score": float("inf")}, "infrastructure failure"),
    ("score beyond floats", {"score": 10**400}, "infrastructure failure"),
    ("negative score", {"score": -1}, "infrastructure failure"),
    ("broken judge", {"status": "environment_error", "message": "no sandbox"}, "not a verdict about the program: no"),
    ("infrastructure domain", {"failureDomain": "infrastructure"}, "not a verdict about the program"),
]


@pytest.mark.parametrize(("what", "changes", "words"), BAD_VERDICTS, ids=[row[0] for row in BAD_VERDICTS])
def test_a_doubtful_verdict_is_worth_nothing(
    judge: ScriptedJudge, tmp_path: Path, what: str, changes: dict[str, Any], words: str
) -> None:
    judge.say({**VALID, **changes})
    reward, reason = grade(tmp_path, judge.url)
    assert reward == 0
    assert words in reason


@pytest.mark.parametrize("code", [None, b"", b" \n\t\n"])
def test_a_missing_or_blank_solution_is_worth_nothing_and_never_sent(
    judge: ScriptedJudge, tmp_path: Path, code: bytes | None
) -> None:
    reward, reason = grade(tmp_path, judge.url, code)
    assert (reward, judge.bodies) == (0, [])
    assert reason.startswith("no solution: ")


def test_an_unreachable_judge_is_told_as_infrastructure(tmp_path: Path) -> None:
    server = ScriptedJudge()
    server.server_close()
    reward, reason = grade(tmp_path, server.url, deadline_s=0.5)
    assert reward == 0
    assert "infrastructure failure" in reason
    assert "refused" in reason


@pytest.mark.parametrize("replies", [[(404, b"{}")], [(500, b"oops")], [(200, b"<html>")], [(200, b"[]")], [None]])
def test_a_judge_that_never_gives_a_verdict_ends_at_the_deadline(
    judge: ScriptedJudge, tmp_path: Path, replies: list[Any]
) -> None:
    judge.say(*replies)
    reward, reason = grade(tmp_path, judge.url, deadline_s=0.6)
    assert reward == 0
    assert f"waiting for submission {SID}: gave up at the deadline" in reason
    assert len(judge.paths) > 2


def test_a_refused_submission_ends_at_once(judge: ScriptedJudge, tmp_path: Path) -> None:
    judge.submit = [(400, b'{"error": "unknown pid"}')]
    reward, reason = grade(tmp_path, judge.url, deadline_s=30)
    assert reward == 0
    assert "refused the request with HTTP 400" in reason
    assert len(judge.bodies) == 1


@pytest.mark.parametrize("sid", [None, True, "", " ", [1], {}])
def test_a_submission_without_a_usable_id_is_infrastructure(judge: ScriptedJudge, tmp_path: Path, sid: Any) -> None:
    judge.submit = [(200, json.dumps({"sid": sid}).encode())]
    reward, reason = grade(tmp_path, judge.url, deadline_s=0.3)
    assert reward == 0
    assert "no submission id" in reason


def test_single_failures_do_not_lose_the_verdict(judge: ScriptedJudge, tmp_path: Path) -> None:
    judge.submit = [(503, b""), None, *judge.submit]
    judge.say((404, b"{}"), None, (502, b"<html>"), (200, b"{"), {"status": "queued"}, {"status": "running"}, VALID)
    reward, reason = grade(tmp_path, judge.url, deadline_s=20)
    assert reward == 91.25
    assert reason.startswith("valid, score 91.25")


@pytest.mark.parametrize("score", [0, 0.0, 27.810517627142843, 100])
def test_a_valid_score_is_the_reward_to_every_digit(judge: ScriptedJudge, tmp_path: Path, score: float) -> None:
    judge.say({**VALID, "score": score})
    assert grade(tmp_path, judge.url)[0] == score


def test_the_program_arrives_byte_for_byte_with_problem_and_language(judge: ScriptedJudge, tmp_path: Path) -> None:
    judge.say(VALID)
    code = "// \u00e4\u00f6\u00fc \u6f22\r\nint main() {}\n".encode() + bytes(range(256))
    grade(tmp_path, judge.url, code)
    content_type, body = judge.bodies[0]
    form = BytesParser(policy=HTTP).parsebytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body)
    assert b"\r\n\r\n" + code + b"\r\n--" in body
    names = {part.get_param("name", header="content-disposition") for part in form.iter_parts()}
    assert names == {"pid", "lang", "code"}
    assert b'name="pid"\r\n\r\n0\r\n' in body
    assert b'name="lang"\r\n\r\ncpp\r\n' in body


def test_a_number_serves_as_id_and_odd_ids_are_quoted(judge: ScriptedJudge, tmp_path: Path) -> None:
    judge.say(VALID)
    judge.submit = [(200, b'{"sid": 17}')]
    grade(tmp_path, judge.url)
    judge.submit = [(200, b'{"sid": "a/../b?c"}')]
    grade(tmp_path, judge.url)
    assert judge.paths == ["/result/17", "/result/a%2F..%2Fb%3Fc"]


AWARDED = {"msg": "points 0.5 Ratio: 0.5 (cells=1)", "output": "1 1"}


@pytest.mark.parametrize(
    ("cases", "reward"),
    [
        ([AWARDED, AWARDED], 50.0),
        ([], 0),
        ([AWARDED, {"msg": "wrong answer", "output": "1 1"}], 0),
        ([AWARDED, {"msg": "points 0.9 Ratio: 0.9"}], 0),
        ([AWARDED, "points"], 0),
        ("points", 0),
    ],
)
def test_a_judge_without_a_validity_is_believed_only_if_every_case_was_awarded(
    judge: ScriptedJudge, tmp_path: Path, cases: Any, reward: float
) -> None:
    judge.say({"status": "done", "score": 50.0, "cases": cases})
    assert grade(tmp_path, judge.url)[0] == reward


def test_a_long_message_with_control_characters_becomes_one_bounded_line(judge: ScriptedJudge, tmp_path: Path) -> None:
    judge.say({**VALID, "status": "error", "message": "x\n\x1b[31m" * 5000})
    assert len(grade(tmp_path, judge.url)[1]) < 600


def test_an_empty_variable_means_the_default_address() -> None:
    code = f"import runpy, sys; g = runpy.run_path({str(GRADER)!r}); print(g['DEFAULT_JUDGE_URL'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "http://host.docker.internal:8081"
