"""While outputs are checked the next cases run, but only a few outputs may wait: each can be megabytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from judges.polyomino import judge as module
from judges.polyomino.checker import Case, CheckResult, check_output
from judges.polyomino.judge import MAX_UNCHECKED, PolyominoJudge
from judges.polyomino.suite import FULL_PROBLEM, Suite
from judges.protocol import Submission, Verdict
from judges.sandbox import Command, Compiled, RunResult, Sandbox, Status, Tier

CASES = 20
INPUT, OUTPUT = b"1\n1\n0 0\n", b"1 1\n0 0 0 0\n"
WAIT_S = 30.0


class InstantSandbox:
    """Runs nothing: every program prints a right answer at once."""

    tier = Tier.UNSAFE

    def __init__(self) -> None:
        self.runs = 0
        self.changed = threading.Condition()

    @contextmanager
    def executable(self, binary: bytes) -> Iterator[Path]:
        yield Path("program")

    def run(self, command: Command) -> RunResult:
        with self.changed:
            self.runs += 1
            self.changed.notify_all()
        return RunResult(Status.ACCEPTED, 0, 0.0, 0.0, 0.0, 0, OUTPUT, b"")

    def wait_for_runs(self, count: int, timeout_s: float) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.runs >= count, timeout_s)


def test_no_more_outputs_wait_for_their_check_than_the_limit_says(monkeypatch: pytest.MonkeyPatch) -> None:
    held = threading.Event()

    def slow_check(case: Case, output: bytes) -> CheckResult:
        assert held.wait(WAIT_S)
        return check_output(case, output)

    monkeypatch.setattr(module, "check_output", slow_check)
    monkeypatch.setattr(module, "compile_cpp", lambda sandbox, code: Compiled(b"x", "", Status.ACCEPTED, 0.0, 0.0))
    sandbox = InstantSandbox()
    suite = Suite("toy", "0" * 64, (INPUT,) * CASES, True)
    verdicts: list[Verdict] = []

    def judge() -> None:
        own = PolyominoJudge(cast(Sandbox, sandbox), suite)
        verdicts.append(own.judge(Submission("0" * 32, FULL_PROBLEM, "cpp", b"int main() {}")))

    thread = threading.Thread(target=judge)
    thread.start()
    try:
        assert sandbox.wait_for_runs(MAX_UNCHECKED + 1, WAIT_S)
        assert not sandbox.wait_for_runs(MAX_UNCHECKED + 2, 0.3)
    finally:
        held.set()
        thread.join(WAIT_S)
    assert sandbox.runs == CASES
    assert [verdict.score for verdict in verdicts] == [100.0]
    assert [case["case"] for case in verdicts[0].artifacts["cases"]] == list(range(1, CASES + 1))
