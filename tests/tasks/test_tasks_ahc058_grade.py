"""The production grader against a scripted judge: only a clean, valid verdict is worth anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.scripted_judge import Result, accepted, broken, rejected, scripted_judge

GRADER = Path(__file__).resolve().parents[2] / "harbor/ahc058/tests/grade.py"
REWARD = 1.8543


def grade(tmp_path: Path, url: str, code: bytes | None = b"int main() {}", deadline_s: float = 5) -> tuple[float, str]:
    """Run the grader as the verifier does and read what it left."""
    solution = tmp_path / "solution.cpp"
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
    code = "// größer 漢\r\nint main() {}\n"
    with scripted_judge("ahc058", lambda _: accepted(REWARD, 5_562_883.0)) as judge:
        assert grade(tmp_path, judge.url, code.encode()) == (REWARD, f"valid, score {REWARD}: accepted")
    assert judge.programs == [{"pid": "ahc058", "lang": "cpp", "code": code}]


PARTIAL = {**accepted(1.2, 3_600_000.0), "valid": False, "trainingRewardOnInvalid": True}
BAD: list[tuple[str, Result, str]] = [
    ("a partial reward", PARTIAL, "did not call the program valid"),
    ("rejected", rejected("does not compile"), "rejected the program (error): does not compile"),
    ("a broken sandbox", broken("no sandbox"), "infrastructure failure, not a verdict about the program: no sandbox"),
    ("no validity", {"status": "done", "score": REWARD}, "did not call the program valid"),
    ("a bool as score", {**accepted(REWARD), "score": True}, "infrastructure failure"),
]


@pytest.mark.parametrize(("what", "answer", "words"), BAD, ids=[row[0] for row in BAD])
def test_a_doubtful_verdict_is_worth_nothing(tmp_path: Path, what: str, answer: Any, words: str) -> None:
    with scripted_judge("ahc058", lambda _: answer) as judge:
        reward, reason = grade(tmp_path, judge.url)
    assert reward == 0
    assert words in reason


@pytest.mark.parametrize("code", [None, b" \n\t\n"])
def test_a_missing_or_blank_solution_is_worth_nothing_and_never_sent(tmp_path: Path, code: bytes | None) -> None:
    with scripted_judge("ahc058", lambda _: accepted(REWARD)) as judge:
        reward, reason = grade(tmp_path, judge.url, code)
    assert (reward, judge.programs) == (0, [])
    assert reason.startswith("no solution: ")


def test_an_unreachable_judge_is_told_as_infrastructure(tmp_path: Path) -> None:
    with scripted_judge("ahc058", lambda _: accepted(REWARD)) as judge:
        url = judge.url
    reward, reason = grade(tmp_path, url, deadline_s=0.5)
    assert reward == 0
    assert "infrastructure failure" in reason
