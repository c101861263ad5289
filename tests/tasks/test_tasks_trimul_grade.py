"""The grader against a scripted judge: only a clean, valid verdict is worth anything, and nothing makes it crash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.scripted_judge import Result, accepted, broken, rejected, scripted_judge

GRADER = Path(__file__).resolve().parents[2] / "harbor/trimul/tests/grade.py"


def grade(tmp_path: Path, url: str, code: bytes | None = b"x = 1\n", deadline_s: float = 5) -> tuple[float, str]:
    """Run the grader as the verifier does and read what it left."""
    solution = tmp_path / "solution.py"
    if code is not None:
        solution.write_bytes(code)
    command = [sys.executable, "-I", str(GRADER), "--solution", str(solution), "--logs-dir", str(tmp_path / "logs")]
    command += ["--deadline-s", str(deadline_s), "--poll-s", "0.05"]
    environment = {"PATH": os.environ["PATH"], "GUIDANCE_JUDGE_CONTAINER_URL": url}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    written = json.loads((tmp_path / "logs/reward.json").read_text())
    reason = (tmp_path / "logs/reason.txt").read_text().strip()
    assert json.loads(done.stdout) == {"reward": written["reward"], "reason": reason}
    return written["reward"], reason


def test_the_reward_is_the_judges_score_and_the_program_arrives_as_it_is(tmp_path: Path) -> None:
    code = "# größer 漢\r\ndef custom_kernel(data): ...\n"
    with scripted_judge("trimul", lambda _: accepted(1.25, 1200.0)) as judge:
        assert grade(tmp_path, judge.url, code.encode()) == (1.25, "valid, score 1.25: accepted")
    assert judge.programs == [{"pid": "trimul", "lang": "python", "code": code}]


BAD: list[tuple[str, Result, str]] = [
    ("rejected", rejected("test 2: wrong"), "rejected the program (error): test 2: wrong"),
    ("no GPU", broken("no CUDA device"), "infrastructure failure, not a verdict about the program: no CUDA device"),
    ("no validity", {"status": "done", "score": 1.25}, "did not call it valid"),
    ("validity as text", {**accepted(1.25), "valid": "true"}, "did not call it valid"),
    ("invalid", {**accepted(1.25), "valid": False}, "did not call it valid"),
    ("a bool as score", {**accepted(1.25), "score": True}, "infrastructure failure"),
    ("text as score", {**accepted(1.25), "score": "1.25"}, "infrastructure failure"),
    ("no number", {**accepted(1.25), "score": float("nan")}, "infrastructure failure"),
    ("negative", {**accepted(1.25), "score": -1}, "infrastructure failure"),
]


@pytest.mark.parametrize(("what", "answer", "words"), BAD, ids=[row[0] for row in BAD])
def test_a_doubtful_verdict_is_worth_nothing(tmp_path: Path, what: str, answer: Any, words: str) -> None:
    with scripted_judge("trimul", lambda _: answer) as judge:
        reward, reason = grade(tmp_path, judge.url)
    assert reward == 0
    assert words in reason


def test_without_a_program_or_a_judge_the_reward_is_nothing_and_the_reason_says_which(tmp_path: Path) -> None:
    with scripted_judge("trimul", lambda _: {"status": "running"}) as judge:
        assert grade(tmp_path, judge.url, None)[1].startswith("no solution: ")
        assert grade(tmp_path, judge.url, b" \n")[1].endswith("is blank")
        assert judge.programs == []
        reward, reason = grade(tmp_path, judge.url, deadline_s=0.4)
    assert reward == 0
    assert "gave up at the deadline" in reason
    assert "gave no verdict" in grade(tmp_path, judge.url, deadline_s=0.4)[1]
