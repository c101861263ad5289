"""Scores a C++20 program on the production cases: compile once, run every case, play every output.

A failed case scores 0 and the others still count, so every case is run.  The only exception is a program whose first
`GIVE_UP_AFTER` cases all run out of time: it is given up, and the cases that were not run count as failed.  That keeps
an endless loop from holding a worker for minutes, and with it the longest judgement stays within the clients' patience
(a compilation and 150 runs into the wall limit).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from judges.ahc058.scoring import REWARD_DIVISOR, RUN_STATUS, CaseReport, CaseStatus, Summary, summarise
from judges.ahc058.simulator import judge_output
from judges.ahc058.suite import FULL_PROBLEM, LABEL, QUICK_PROBLEM, Suite
from judges.protocol import MESSAGE_CHARS, BadSubmission, Submission, Verdict
from judges.sandbox import MIB, Bind, Command, Compiled, Limits, RunResult, Sandbox, compile_cpp

TIME_LIMIT_S = 2.0
MEMORY_LIMIT_BYTES = 1024 * MIB
# What the jail itself needs (some 5 ms) and the grain of measuring (20 ms) must not count against a program that
# watches the clock and ends just in time.
_MEASURING_S = 0.05
RUN_LIMITS = Limits(
    cpu_s=TIME_LIMIT_S + _MEASURING_S,
    wall_s=2.5,
    memory_bytes=MEMORY_LIMIT_BYTES,
    stack_bytes=MEMORY_LIMIT_BYTES,
    stdout_bytes=MIB,
)
COMPILE_LIMITS = Limits(
    cpu_s=30.0,
    wall_s=45.0,
    memory_bytes=1024 * MIB,
    pids=64,
    stdout_bytes=64 * MIB,
    scratch_bytes=256 * MIB,
    file_bytes=128 * MIB,
)
# The contest's flags for C++20, without warnings, which would hide an error in the message's first lines.
COMPILE_FLAGS = (
    "-O2",
    "-pipe",
    "-std=gnu++20",
    "-DONLINE_JUDGE",
    "-DATCODER",
    "-march=native",
    "-mtune=native",
    "-fconstexpr-depth=2147483647",
    "-fconstexpr-loop-limit=2147483647",
    "-fconstexpr-ops-limit=4294967295",
)
GIVE_UP_AFTER = 20
_LANGUAGES = frozenset({"cpp", "c++", "cpp20", "c++20", "cxx"})
_PROGRAM = "/w/program"
_SHOWN_STDERR_BYTES = 120


class AppleJudge:
    """The judge behind problems `ahc058` (150 cases) and `ahc058-quick` (10 of them)."""

    name = "ahc058"
    problems = (FULL_PROBLEM, QUICK_PROBLEM)

    def __init__(self, sandbox: Sandbox, suite: Suite, *, case_workers: int = 1) -> None:
        self._sandbox = sandbox
        self._suite = suite
        self._case_workers = case_workers

    def language(self, lang: str) -> str:
        """`cpp` for every accepted spelling of it."""
        if lang.strip().lower() not in _LANGUAGES:
            raise BadSubmission(f"unsupported lang {lang[:40]!r}", "this judge takes C++20 only: send lang=cpp")
        return "cpp"

    def describe(self) -> dict[str, Any]:
        """Tier, case set and limits, for `/health`."""
        return {
            "tier": self._sandbox.tier.value,
            "suite": LABEL,
            "suite_sha256": self._suite.sha256,
            "case_workers": self._case_workers,
            "limits": {
                "time_s": TIME_LIMIT_S,
                "cpu_s": RUN_LIMITS.cpu_s,
                "wall_s": RUN_LIMITS.wall_s,
                "memory_bytes": RUN_LIMITS.memory_bytes,
                "output_bytes": RUN_LIMITS.stdout_bytes,
                "processes": RUN_LIMITS.pids,
                "give_up_after_time_outs": GIVE_UP_AFTER,
                "compile_cpu_s": COMPILE_LIMITS.cpu_s,
                "compile_memory_bytes": COMPILE_LIMITS.memory_bytes,
                "compile_flags": list(COMPILE_FLAGS),
            },
        }

    def stop(self) -> None:
        """Kill the running candidates; `judge` calls in progress raise `SandboxStopped`."""
        self._sandbox.stop()

    def judge(self, submission: Submission) -> Verdict:
        """Compile, run all cases of the problem, score; a program that fails on some still has its training reward."""
        seeds = self._suite.seeds(submission.pid)
        compiled = compile_cpp(self._sandbox, submission.code, flags=COMPILE_FLAGS, limits=COMPILE_LIMITS)
        if compiled.ok:
            with self._sandbox.executable(compiled.binary) as program:
                reports = self._run_cases(seeds, program)
        else:
            reports = [CaseReport(seed, CaseStatus.COMPILATION_ERROR) for seed in seeds]
        summary = summarise(reports)
        return Verdict(
            valid=summary.valid,
            score=summary.reward,
            score_unbounded=summary.raw,
            message=_message(summary, reports, compiled),
            training_reward_on_invalid=True,
            artifacts=self._artifacts(submission.pid, summary, reports, compiled),
            failure_domain=None if summary.valid else "candidate",
        )

    # --- running ------------------------------------------------------------------------------------------------------

    def _run_cases(self, seeds: Sequence[int], program: Path) -> list[CaseReport]:
        """The reports of all cases, in the order of the seeds."""
        first, rest = seeds[:GIVE_UP_AFTER], seeds[GIVE_UP_AFTER:]
        # The threads outlive their runs, because a jail dies with the thread that started it.
        with ThreadPoolExecutor(self._case_workers, thread_name_prefix="case") as pool:
            try:
                reports = list(pool.map(lambda seed: self._run_case(seed, program), first))
                if all(report.status is CaseStatus.TIME_LIMIT_EXCEEDED for report in reports):
                    return reports + [CaseReport(seed, CaseStatus.NOT_RUN) for seed in rest]
                return reports + list(pool.map(lambda seed: self._run_case(seed, program), rest))
            finally:
                pool.shutdown(cancel_futures=True)

    def _run_case(self, seed: int, program: Path) -> CaseReport:
        run = self._sandbox.run(
            Command(
                argv=(_PROGRAM,),
                limits=RUN_LIMITS,
                binds=(Bind(program, _PROGRAM),),
                stdin=self._suite.inputs[seed].encode("ascii"),
            )
        )
        if run.accepted:
            outcome = judge_output(self._suite.cases[seed], run.stdout)
            status = CaseStatus.ACCEPTED if outcome.accepted else CaseStatus.WRONG_ANSWER
            score, message = outcome.score, outcome.message
        else:
            status, score, message = RUN_STATUS[run.status], 0, _explain(run)
        return CaseReport(seed, status, score, message, run.cpu_s, run.wall_s, run.memory_bytes)

    # --- telling ------------------------------------------------------------------------------------------------------

    def _artifacts(
        self, problem: str, summary: Summary, reports: Sequence[CaseReport], compiled: Compiled
    ) -> dict[str, Any]:
        return {
            "problem": problem,
            "suite": LABEL,
            "suite_sha256": self._suite.sha256,
            "tier": self._sandbox.tier.value,
            "stage": "run" if compiled.ok else "compile",
            "case_count": len(reports),
            "score_aggregation": "mean",
            "absolute_score_total": summary.total,
            "judge_result": summary.worst.value,
            "case_status_counts": summary.counts,
            "not_run": summary.counts.get(CaseStatus.NOT_RUN.value, 0),
            "max_cpu_s": round(max(report.cpu_s for report in reports), 4),
            "max_wall_s": round(max(report.wall_s for report in reports), 4),
            "max_memory_bytes": max(report.memory_bytes for report in reports),
            "time_limit_s": TIME_LIMIT_S,
            "memory_limit_bytes": MEMORY_LIMIT_BYTES,
            "reward_divisor": REWARD_DIVISOR,
            "compile": {
                "status": compiled.status.value,
                "cpu_s": round(compiled.cpu_s, 4),
                "wall_s": round(compiled.wall_s, 4),
            },
            "cases": [report.artifact() for report in reports if report.status is not CaseStatus.NOT_RUN]
            if compiled.ok
            else [],
        }


def _message(summary: Summary, reports: Sequence[CaseReport], compiled: Compiled) -> str:
    """One line for a person: the mean, and the first thing that went wrong."""
    if not compiled.ok:
        return compiled.message
    accepted = summary.counts.get(CaseStatus.ACCEPTED.value, 0)
    if summary.valid:
        return f"accepted: {accepted} cases, mean score {summary.raw:.2f}"
    text = f"{accepted} of {len(reports)} cases accepted, mean score {summary.raw:.2f}"
    failed = next((report for report in reports if report.status is not CaseStatus.ACCEPTED), None)
    if failed is not None:
        text += f"; seed {failed.seed}: {failed.status.value}: {failed.message}"
    if given_up := summary.counts.get(CaseStatus.NOT_RUN.value):
        text += f"; {given_up} cases were not run, because the first {GIVE_UP_AFTER} all ran out of time"
    return text[:MESSAGE_CHARS]


def _explain(run: RunResult) -> str:
    """What a run that was not accepted did, with the end of what it said on stderr."""
    match run.exit_code:
        case None:
            what = f"after {run.cpu_s:.2f} s CPU, {run.wall_s:.2f} s in all"
        case code if code > 128:
            what = f"killed by signal {code - 128}"
        case code:
            what = f"exit code {code}"
    said = run.stderr[-_SHOWN_STDERR_BYTES:].decode("utf-8", errors="replace").strip()
    return f"{what}; stderr: {said}" if said else what
