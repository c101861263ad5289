"""Scores a C++ program on the packing cases: compile once, run every case, check every output.

A submission counts only if every case is valid.  The first case that is not ends it, because the verdict is then
certain and a program that runs into its time limit on all 70 cases would hold a worker for minutes.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from judges.polyomino.checker import MESSAGE_CHARS, Case, check_output, parse_case
from judges.polyomino.suite import FULL_PROBLEM, QUICK_PROBLEM, Suite
from judges.protocol import BadSubmission, Submission, Verdict
from judges.sandbox import MIB, Bind, Command, Limits, RunResult, Sandbox, compile_cpp
from judges.sandbox.cpp import COMPILE_LIMITS, DEFAULT_FLAGS

RUN_LIMITS = Limits(
    cpu_s=2.0,
    wall_s=4.0,
    memory_bytes=256 * MIB,
    # As the public FrontierCS judge sets them; a side effect is that threads with default stacks cannot be created.
    address_space_bytes=256 * MIB,
    stack_bytes=256 * MIB,
    pids=32,
    stdout_bytes=16 * MIB,
)
MAX_UNCHECKED = 4
"""Outputs that may wait for their check while the next case runs; each can be as large as `RUN_LIMITS` allows."""
_LANGUAGES = frozenset({"cpp", "c++", "cpp17", "cxx"})
_PROGRAM = "/w/program"


@dataclass(frozen=True)
class _CaseReport:
    """One judged case; `ratio` is already rounded to the nine decimals that count."""

    number: int
    pieces: int
    valid: bool
    verdict: str
    ratio: float
    message: str
    run: RunResult

    def artifact(self) -> dict[str, Any]:
        return {
            "case": self.number,
            "n": self.pieces,
            "valid": self.valid,
            "verdict": self.verdict,
            "ratio": self.ratio,
            "cpu_s": round(self.run.cpu_s, 4),
            "wall_s": round(self.run.wall_s, 4),
            "memory_bytes": self.run.memory_bytes,
            "message": self.message,
        }


class PolyominoJudge:
    """The judge behind problems `0` (all cases) and `0-quick` (8 of them)."""

    name = "polyomino"
    problems = (FULL_PROBLEM, QUICK_PROBLEM)

    def __init__(self, sandbox: Sandbox, suite: Suite) -> None:
        self._sandbox = sandbox
        self._suite = suite
        self._cases: dict[int, Case] = {}

    def language(self, lang: str) -> str:
        """`cpp` for every accepted spelling of it."""
        if lang.strip().lower() not in _LANGUAGES:
            raise BadSubmission(f"unsupported lang {lang[:40]!r}", "this judge takes C++ only: send lang=cpp")
        return "cpp"

    def describe(self) -> dict[str, Any]:
        """Tier, case set and limits, for `/health`."""
        return {
            "tier": self._sandbox.tier.value,
            "suite": self._suite.label,
            "suite_sha256": self._suite.sha256,
            "suite_verified": self._suite.verified,
            "limits": {
                "cpu_s": RUN_LIMITS.cpu_s,
                "wall_s": RUN_LIMITS.wall_s,
                "memory_bytes": RUN_LIMITS.memory_bytes,
                "output_bytes": RUN_LIMITS.stdout_bytes,
                "processes": RUN_LIMITS.pids,
                "compile_cpu_s": COMPILE_LIMITS.cpu_s,
                "compile_memory_bytes": COMPILE_LIMITS.memory_bytes,
                "compile_flags": list(DEFAULT_FLAGS),
            },
        }

    def stop(self) -> None:
        """Kill the running candidates; `judge` calls in progress raise `SandboxStopped`."""
        self._sandbox.stop()

    def judge(self, submission: Submission) -> Verdict:
        """Compile, run case after case until one is invalid, score; `artifacts["skipped"]` counts the cases not run."""
        numbers = self._suite.case_numbers(submission.pid)
        artifacts: dict[str, Any] = {
            "problem": submission.pid,
            "suite": self._suite.label,
            "suite_sha256": self._suite.sha256,
            "tier": self._sandbox.tier.value,
            "stage": "compile",
            "case_count": len(numbers),
            "cases": [],
            "skipped": len(numbers),
        }
        compiled = compile_cpp(self._sandbox, submission.code)
        artifacts["compile"] = {
            "status": compiled.status.value,
            "cpu_s": round(compiled.cpu_s, 4),
            "wall_s": round(compiled.wall_s, 4),
        }
        if not compiled.ok:
            return _rejected(compiled.message, 0.0, artifacts)
        artifacts["stage"] = "run"
        reports = self._run_cases(numbers, compiled.binary)
        artifacts["cases"] = [report.artifact() for report in reports]
        artifacts["skipped"] = len(numbers) - len(reports)
        score = mean_score([report.ratio for report in reports], len(numbers))
        last = reports[-1]
        if not last.valid:
            return _rejected(f"case {last.number}: {last.verdict}: {last.message}", score, artifacts)
        return Verdict(
            valid=True,
            score=score,
            score_unbounded=score,
            message=f"accepted: {len(reports)} cases, mean density {score:.6f} %",
            artifacts=artifacts,
        )

    def _run_cases(self, numbers: Sequence[int], binary: bytes) -> list[_CaseReport]:
        """Run case after case up to the first that is not valid; outputs are checked while later cases run."""
        reports: list[_CaseReport] = []
        checks: deque[Future[_CaseReport]] = deque()
        with self._sandbox.executable(binary) as program, ThreadPoolExecutor(1, "polyomino-check") as checker:
            for number in numbers:
                run = self._run_case(number, program)
                checks.append(checker.submit(self._report, number, run))
                while checks and (checks[0].done() or len(checks) > MAX_UNCHECKED):
                    reports.append(checks.popleft().result())
                if not run.accepted or not all(report.valid for report in reports):
                    break
        reports += [check.result() for check in checks]
        valid = list(itertools.takewhile(lambda report: report.valid, reports))
        return reports[: len(valid) + 1]

    def _run_case(self, number: int, program: Path) -> RunResult:
        return self._sandbox.run(
            Command(
                argv=(_PROGRAM,),
                limits=RUN_LIMITS,
                binds=(Bind(program, _PROGRAM),),
                stdin=self._suite.inputs[number - 1],
            )
        )

    def _report(self, number: int, run: RunResult) -> _CaseReport:
        case = self._case(number)
        if not run.accepted:
            return _CaseReport(number, len(case.pieces), False, run.status.value, 0.0, _explain(run), run)
        checked = check_output(case, run.stdout)
        return _CaseReport(
            number=number,
            pieces=len(case.pieces),
            valid=checked.valid,
            verdict="ok" if checked.valid else "wrong answer",
            ratio=round(checked.ratio, 9),
            message=checked.message,
            run=run,
        )

    def _case(self, number: int) -> Case:
        # Parsing all cases takes a while, so each is parsed when first needed; parsing one twice does no harm.
        case = self._cases.get(number)
        if case is None:
            case = self._cases[number] = parse_case(self._suite.inputs[number - 1])
        return case


def mean_score(ratios: list[float], case_count: int) -> float:
    """100 times the mean ratio; cases that were not run count as 0.

    Adds from left to right in plain floating point, as the public judge does: `sum` compensates rounding errors since
    Python 3.12 and would differ from it in the last digits.
    """
    total = 0.0
    for ratio in ratios:
        total += ratio
    return total / case_count * 100


def _rejected(message: str, score_unbounded: float, artifacts: dict[str, Any]) -> Verdict:
    return Verdict(
        valid=False,
        score=0.0,
        score_unbounded=score_unbounded,
        message=message,
        artifacts=artifacts,
        failure_domain="candidate",
    )


def _explain(run: RunResult) -> str:
    """What a run that was not accepted did, with the end of what it said on stderr."""
    match run.exit_code:
        case None:
            what = f"after {run.cpu_s:.2f} s CPU, {run.wall_s:.2f} s in all"
        case code if code > 128:
            what = f"killed by signal {code - 128}"
        case code:
            what = f"exit code {code}"
    said = run.stderr[-120:].decode("utf-8", errors="replace").strip()
    return (f"{what}; stderr: {said}" if said else what)[:MESSAGE_CHARS]
