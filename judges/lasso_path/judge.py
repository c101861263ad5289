"""Scores a lasso path solver: compile once, run every case four times on new data, check every answer.

The first run of a case only shows that the solver is correct; of the other three the fastest counts.  Every answer is
checked in full, so nothing is gained by telling one kind of run from the other.  The first answer that is wrong ends
the evaluation, because a submission counts only if all are right.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from judges.errors import SuiteError
from judges.lasso_path.cases import FULL_PROBLEM, QUICK_PROBLEM, CaseSpec, cases_sha256, draw_instance, problem_cases
from judges.lasso_path.checker import TOLERANCE, check_output
from judges.lasso_path.reference import ROUNDS, ReferenceBook
from judges.lasso_path.stopwatch import Stopwatch, TimedProgram, TimedRun
from judges.lasso_path.wrapper import ALLOWED_FLAGS, WrapperError, read_wrapper
from judges.protocol import BadSubmission, Submission, Verdict
from judges.sandbox import MIB, Limits, Sandbox, compile_cpp

EIGEN_DIR = Path("/usr/include/eigen3")
BASE_FLAGS = ("-O3", "-march=native", "-std=c++17", f"-I{EIGEN_DIR}")
COMPILE_LIMITS = Limits(
    cpu_s=120.0,
    wall_s=120.0,
    memory_bytes=2048 * MIB,
    pids=64,
    stdout_bytes=64 * MIB,
    scratch_bytes=256 * MIB,
    file_bytes=128 * MIB,
)
RUN_LIMITS = Limits(
    # Four threads for the whole wall time.
    cpu_s=32.0,
    wall_s=8.0,
    memory_bytes=2048 * MIB,
    # The jail takes two and the program one, which leaves it three more threads.
    pids=6,
    stdout_bytes=MIB,
)
# Everything that a candidate takes, compilation included; the clients' time limit (660 s) leaves room for the checks.
BUDGET_S = 540.0
_LANGUAGES = frozenset({"python", "py", "python3", "py3"})
_MESSAGE_CHARS = 300


@dataclass
class _CaseRecord:
    """What is known of one case so far."""

    spec: CaseSpec
    seeds: tuple[int, ...]
    times_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    overhead_s: list[float] = field(default_factory=list)
    max_gap: float | None = None
    error: str = ""

    @property
    def valid(self) -> bool:
        """True once all runs were right."""
        return not self.error and len(self.times_s) == ROUNDS

    @property
    def best_ms(self) -> float | None:
        """The fastest timed run; the first run of a case is not timed."""
        return 1e3 * min(self.times_s[1:]) if len(self.times_s) > 1 else None

    def artifact(self) -> dict[str, Any]:
        return {
            "problem_idx": self.spec.number,
            "n": self.spec.rows,
            "p": self.spec.columns,
            "generator": self.spec.kind,
            "sol_time_ms": self.best_ms,
            "runs_ms": [round(1e3 * value, 4) for value in self.times_s],
            "cpu_ms": [round(1e3 * value, 2) for value in self.cpu_s],
            "max_gap": self.max_gap,
            "valid": self.valid,
            "error": self.error or None,
        }


class LassoJudge:
    """The judge behind problems `lasso_path` (17 cases) and `lasso_path-quick` (5 of them)."""

    name = "lasso_path"
    problems = (FULL_PROBLEM, QUICK_PROBLEM)

    def __init__(self, sandbox: Sandbox, book: ReferenceBook, fixed_seed: int | None = None) -> None:
        """Raises `SuiteError` without the Eigen headers, whose lack would look like every candidate's fault."""
        if not (EIGEN_DIR / "Eigen" / "Core").is_file():
            raise SuiteError(
                f"no Eigen headers in {EIGEN_DIR}, which programs of this task may include; "
                "install them with: apt-get install -y libeigen3-dev"
            )
        self._sandbox = sandbox
        self._book = book
        self._fixed_seed = fixed_seed
        self._stopwatch = Stopwatch(sandbox)

    def language(self, lang: str) -> str:
        """`python` for every accepted spelling of it."""
        if lang.strip().lower() not in _LANGUAGES:
            raise BadSubmission(
                f"unsupported lang {lang[:40]!r}", "this judge takes a Python file with CPP_CODE: send lang=python"
            )
        return "python"

    def describe(self) -> dict[str, Any]:
        """Tier, cases and limits, for `/health`."""
        data = "random instances" if self._fixed_seed is None else f"fixed seed {self._fixed_seed}"
        return {
            "tier": self._sandbox.tier.value,
            "suite": f"own generators, {data}",
            "suite_sha256": cases_sha256(),
            "limits": {
                "wall_s": RUN_LIMITS.wall_s,
                "cpu_s": RUN_LIMITS.cpu_s,
                "memory_bytes": RUN_LIMITS.memory_bytes,
                "processes": RUN_LIMITS.pids,
                "compile_wall_s": COMPILE_LIMITS.wall_s,
                "compile_memory_bytes": COMPILE_LIMITS.memory_bytes,
                "compile_flags": list(BASE_FLAGS),
                "allowed_flags": ALLOWED_FLAGS,
                "total_s": BUDGET_S,
                "tolerance": TOLERANCE,
            },
        }

    def stop(self) -> None:
        """Kill the running candidates; `judge` calls in progress raise `SandboxStopped`."""
        self._sandbox.stop()

    def judge(self, submission: Submission) -> Verdict:
        """Read, compile, run and check; a rejected submission names the first thing that was wrong."""
        specs = problem_cases(submission.pid)
        records = [_CaseRecord(spec, self._book.seeds(spec)) for spec in specs]
        artifacts: dict[str, Any] = {
            "problem": submission.pid,
            "suite": self.describe()["suite"],
            "suite_sha256": cases_sha256(),
            "tier": self._sandbox.tier.value,
            "stage": "parse",
            **_summary(records),
        }
        try:
            wrapper = read_wrapper(submission.code)
        except WrapperError as error:
            return _rejected(str(error), artifacts)
        artifacts["stage"] = "compile"
        compiled = compile_cpp(self._sandbox, wrapper.source, (*BASE_FLAGS, *wrapper.flags), COMPILE_LIMITS)
        artifacts["compile"] = {
            "status": compiled.status.value,
            "flags": list(wrapper.flags),
            "cpu_s": round(compiled.cpu_s, 3),
            "wall_s": round(compiled.wall_s, 3),
        }
        if not compiled.ok:
            return _rejected(compiled.message, artifacts)
        artifacts["stage"] = "run"
        with self._stopwatch.program(compiled.binary) as program:
            failed = self._run_rounds(program, records, BUDGET_S - compiled.wall_s)
        artifacts |= _summary(records)
        if failed is not None:
            where = f"case {failed.spec.number} ({failed.spec.rows} x {failed.spec.columns}, {failed.spec.kind})"
            return _rejected(f"{where}: {failed.error}", artifacts)
        mean_ms = geometric_mean([record.best_ms for record in records if record.best_ms is not None])
        return Verdict(
            valid=True,
            score=1.0 / mean_ms,
            score_unbounded=1.0 / mean_ms,
            message=f"accepted: {len(records)} cases, geometric mean {mean_ms:.3f} ms",
            artifacts=artifacts,
        )

    def _run_rounds(self, program: TimedProgram, records: Sequence[_CaseRecord], budget_s: float) -> _CaseRecord | None:
        """Run all cases, round after round, so that a disturbance of some seconds does not hit all runs of one case.

        Returns the record with the first error, or None.
        """
        for number in range(ROUNDS):
            for record in records:
                budget_s -= self._run_case(program, record, number)
                if not record.error and budget_s < 0:
                    record.error = f"the program has used the {BUDGET_S:g} s that all its runs may take together"
                if record.error:
                    return record
        return None

    def _run_case(self, program: TimedProgram, record: _CaseRecord, number: int) -> float:
        """One run with its check; returns the seconds that the candidate used."""
        instance = draw_instance(record.spec, record.seeds[number])
        timed = program.run(instance.payload(), record.spec.output_bytes, RUN_LIMITS)
        record.cpu_s.append(timed.run.cpu_s)
        # A program that writes too much is stopped by that, so its end would not tell what was wrong.
        if not timed.run.accepted and len(timed.output) <= timed.expected_bytes:
            record.error = f"run {number + 1}: {_explain(timed)}"
            return timed.run.wall_s
        checked = check_output(instance, timed.output, self._book.objectives(instance))
        if checked.max_gap is not None:
            record.max_gap = max(checked.max_gap, record.max_gap if record.max_gap is not None else -math.inf)
        if not checked.valid:
            record.error = f"run {number + 1}: {checked.message}"
        elif timed.solve_s is not None:
            record.times_s.append(timed.solve_s)
            record.overhead_s.append(timed.overhead_s)
        return timed.run.wall_s


def geometric_mean(values: Sequence[float]) -> float:
    """exp of the mean logarithm."""
    return math.exp(sum(map(math.log, values)) / len(values))


def _summary(records: Sequence[_CaseRecord]) -> dict[str, Any]:
    """The part of the artifacts that tells how the runs went; all means are None until every case is valid."""
    best = [record.best_ms for record in records if record.valid and record.best_ms is not None]
    complete = len(best) == len(records)
    overheads = [1e3 * value for record in records for value in record.overhead_s]
    spreads = [max(record.times_s[1:]) / min(record.times_s[1:]) for record in records if record.valid]
    mean_ms = geometric_mean(best) if complete else None
    return {
        "problems": [record.artifact() for record in records],
        "n_valid": sum(record.valid for record in records),
        "n_total": len(records),
        "geo_mean_sol_ms": mean_ms,
        "raw_speed_score": None if mean_ms is None else 1.0 / mean_ms,
        "timing": {
            "scored": "start of the program in its finished jail to its last byte of output, timed outside of the jail",
            "timed_runs": ROUNDS - 1,
            "sandbox_overhead_ms": round(statistics.median(overheads), 2) if overheads else None,
            "slowest_to_fastest_run": round(statistics.median(spreads), 3) if spreads else None,
        },
    }


def _rejected(message: str, artifacts: dict[str, Any]) -> Verdict:
    return Verdict(
        valid=False,
        score=0.0,
        score_unbounded=0.0,
        message=message,
        artifacts=artifacts,
        failure_domain="candidate",
    )


def _explain(timed: TimedRun) -> str:
    """How a run that was not accepted ended, with the end of what it said on stderr."""
    run = timed.run
    match run.exit_code:
        case None:
            what = f"{run.status.value}: after {run.cpu_s:.2f} s CPU, {run.wall_s:.2f} s in all"
        case code if code > 128:
            what = f"{run.status.value}: killed by signal {code - 128}"
        case code:
            what = f"{run.status.value}: exit code {code}"
    said = run.stderr[-120:].decode("utf-8", errors="replace").strip()
    return (f"{what}; stderr: {said}" if said else what)[:_MESSAGE_CHARS]
