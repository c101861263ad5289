"""Judges a kernel for the triangle multiplicative update: correct on every case first, then timed on a GPU.

On a machine without a GPU there is no latency, and a made-up one would be worse than none: a submission there is an
infrastructure fault, unless the judge was started for correctness only.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from judges.errors import JudgeError, SandboxFault
from judges.protocol import BadSubmission, Submission, Verdict
from judges.sandbox import MIB, Bind, Command, Limits, RunResult, Sandbox, Status
from judges.sandbox.cage import Cage
from judges.trimul.cases import BENCHMARKS, PROBLEM, Case, Rules, cases_up_to, suite_sha256
from judges.trimul.host import boot_argv
from judges.trimul.jail import PythonRuntime
from judges.trimul.timing import REWARD_SCALE_US, reward
from judges.trimul.wire import Link, LinkBroken, Listener

BUDGET_S = 1100.0
CPU_MAX_SEQLEN = 64
"""The largest correctness case on a machine without a GPU, where Triton kernels are interpreted."""
_LANGUAGES = frozenset({"python", "py", "python3", "py3"})
_SUBMISSION = "/w/submission.py"
_SHARED = "/w/shared"
_MARGIN_S = 30.0
_LEAVE_S = 3.0
_START_S = 120.0


@dataclass(frozen=True)
class Mode:
    """What this judge does with a submission."""

    correctness_only: bool = False
    rules: Rules = field(default_factory=Rules)
    max_seqlen: int | None = None
    device: str | None = "cuda:0"
    """Where kernels run; None when there is no GPU although one is needed."""
    budget_s: float = BUDGET_S
    in_jail: bool = True
    """Whether the checking happens in the jail as well, which sharing a GPU's memory takes."""

    @property
    def tests(self) -> tuple[Case, ...]:
        """The correctness cases."""
        return cases_up_to(self.max_seqlen)

    @property
    def benchmarks(self) -> tuple[Case, ...]:
        """The timed cases."""
        return () if self.correctness_only else BENCHMARKS

    @property
    def suite(self) -> str:
        """A name for what is judged."""
        parts = ["correctness-only" if self.correctness_only else "timed"]
        if self.max_seqlen is not None:
            parts.append(f"seqlen<={self.max_seqlen}")
        if self.rules.quirks:
            parts.append("reference-quirks")
        return " ".join(parts)


class TriMulJudge:
    """The judge behind problem `trimul`."""

    name = "trimul"
    problems = (PROBLEM,)

    @property
    def max_workers(self) -> int | None:
        """How many submissions may be judged at once: one where they are timed, because they share a GPU."""
        return 1 if self._mode.benchmarks else None

    def __init__(self, sandbox: Sandbox | None, runtime: PythonRuntime, mode: Mode, about: dict[str, Any]) -> None:
        """`sandbox` is its own, made by `open_python_sandbox` and closed by `stop`; None where nothing can be run."""
        self._sandbox = sandbox
        self._runtime = runtime
        self._mode = mode
        self._about = about
        # A kernel that shares its GPU with another is slower, so timed submissions run one at a time.
        self._gpu = threading.Lock() if not mode.correctness_only else contextlib.nullcontext()

    def language(self, lang: str) -> str:
        """`python` for every accepted spelling of it."""
        if lang.strip().lower() not in _LANGUAGES:
            raise BadSubmission(f"unsupported lang {lang[:40]!r}", "this judge takes Python only: send lang=python")
        return "python"

    def describe(self) -> dict[str, Any]:
        """Tier, device, case set and limits, for `/health`."""
        mode = self._mode
        return {
            "tier": self._sandbox.tier.value if self._sandbox is not None else None,
            "suite": mode.suite,
            "suite_sha256": suite_sha256(mode.tests, mode.benchmarks, mode.rules),
            "can_judge": self._sandbox is not None,
            "timed": bool(mode.benchmarks) and mode.device is not None,
            "device": mode.device,
            "runtime": self._about,
            "tests": len(mode.tests),
            "benchmarks": len(mode.benchmarks),
            "limits": {"wall_s": mode.budget_s, "memory_bytes": limits_for(mode).memory_bytes},
        }

    def stop(self) -> None:
        """Kill the running candidates and give the jail back."""
        if self._sandbox is not None:
            self._sandbox.close()

    def judge(self, submission: Submission) -> Verdict:
        """Check every case, then time; `JudgeError` where there is no GPU to time on."""
        if self._sandbox is None:
            raise JudgeError(NO_GPU)
        artifacts: dict[str, Any] = {
            "problem": submission.pid,
            "suite": self._mode.suite,
            "suite_sha256": suite_sha256(self._mode.tests, self._mode.benchmarks, self._mode.rules),
            "tier": self._sandbox.tier.value,
            "timed": bool(self._mode.benchmarks),
            "device": self._mode.device,
            "runtime": self._about,
        }
        with self._gpu:
            report = _Evaluation(self._sandbox, self._runtime, self._mode).run(submission.code)
        return verdict_of(report, self._mode, artifacts)


NO_GPU = (
    "this machine has no CUDA device, so a kernel cannot be timed here; run the judge on a machine with an NVIDIA GPU "
    "and point GUIDANCE_JUDGE_URL at it, or start it with --correctness-only, which gives no latency"
)


def verdict_of(report: dict[str, Any], mode: Mode, artifacts: dict[str, Any]) -> Verdict:
    """The verdict on a finished report; `JudgeError` for one that no sound evaluation gives."""
    artifacts = {**artifacts, "stage": report["stage"], "tests": report["tests"], "benchmarks": report["benchmarks"]}
    if report["failure"] is not None:
        return Verdict(
            False, 0.0, 0.0, str(report["failure"]), artifacts=artifacts, failure_domain="candidate"
        )
    if report["stage"] != "done" or report["tests"] != len(mode.tests):
        raise JudgeError(f"{report['tests']} of {len(mode.tests)} correctness cases were judged")
    if mode.correctness_only:
        message = f"correct on {report['tests']} cases; not timed, so the score 1 says only that"
        return Verdict(True, 1.0, 1.0, message, artifacts=artifacts)
    if len(report["benchmarks"]) != len(mode.benchmarks):
        raise JudgeError(f"{len(report['benchmarks'])} of {len(mode.benchmarks)} cases were timed")
    latency = report.get("latency_us")
    if isinstance(latency, bool) or not isinstance(latency, int | float) or not (0 < latency < math.inf):
        raise JudgeError(f"the measured latency is {latency!r} microseconds")
    artifacts["reward_formula"] = f"{REWARD_SCALE_US:g} / latency in microseconds"
    return Verdict(
        valid=True,
        score=reward(latency),
        score_unbounded=latency,
        message=f"correct on {report['tests']} cases; geometric mean {latency:.2f} microseconds",
        artifacts=artifacts,
    )


def limits_for(mode: Mode) -> Limits:
    """Bounds of one evaluation: generous in memory on a GPU machine, because large cases pass through the host."""
    cores = len(os.sched_getaffinity(0))
    gpu = mode.device is not None and mode.device != "cpu"
    return Limits(
        cpu_s=(mode.budget_s + _MARGIN_S) * max(4, cores),
        wall_s=mode.budget_s + _MARGIN_S,
        memory_bytes=(32768 if gpu else 6144) * MIB,
        pids=1024 if gpu else 256,
        stdout_bytes=1 * MIB,
        # Address space says nothing here: torch and the GPU's driver reserve far more than they use.
        address_space_bytes=1 << 46,
        scratch_bytes=2048 * MIB,
        file_bytes=1 << 36,
        open_files=4096,
    )


class _Evaluation:
    """One submission, from its jail to its report."""

    def __init__(self, sandbox: Sandbox, runtime: PythonRuntime, mode: Mode) -> None:
        self._sandbox = sandbox
        self._runtime = runtime
        self._mode = mode

    def run(self, code: bytes) -> dict[str, Any]:
        """The report: stage reached, cases judged, benchmarks, and what the candidate did wrong or None."""
        with self._sandbox.directory() as directory:
            path = directory / "submission.py"
            path.write_bytes(code)
            path.chmod(0o644)
            shared = directory / "shared"
            shared.mkdir()
            shared.chmod(0o711)
            with self._jailed(path, shared) as (link, jailed):
                report = self._talk_in_jail(link) if self._mode.in_jail else self._check_here(link, shared)
            result = jailed.result()
        return self._explained(report, result)

    @contextlib.contextmanager
    def _jailed(self, submission: Path, shared: Path) -> Iterator[tuple[Link, Future[RunResult]]]:
        """A running jail and the connection to it; afterwards the jail has ended, by itself or not."""
        listener = Listener(shared / "link")
        command = self._command(submission, shared)
        cage = self._sandbox.new_cage(command.limits)
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="trimul-jail") as threads:
            jailed = threads.submit(self._sandbox.run, command, cage)
            try:
                link = self._meet(listener, jailed, cage)
                try:
                    yield link, jailed
                finally:
                    link.close()
            finally:
                self._end(jailed, cage)

    def _meet(self, listener: Listener, jailed: Future[RunResult], cage: Cage) -> Link:
        starts_until = time.monotonic() + _START_S
        try:
            return listener.accept(gone=lambda: jailed.done() or time.monotonic() > starts_until)
        except LinkBroken as error:
            self._end(jailed, cage)
            result = jailed.result()  # raises what stopped it, a shutdown for one
            said = result.stderr[-300:].decode("utf-8", errors="replace").strip()
            raise SandboxFault(f"{error} ({result.status.value}): {said}") from error

    def _end(self, jailed: Future[RunResult], cage: Cage) -> None:
        """Give the jail a moment to end by itself, then kill it."""
        with contextlib.suppress(Exception):
            jailed.exception(timeout=_LEAVE_S)
        if not jailed.done():
            cage.kill()

    def _command(self, submission: Path, shared: Path) -> Command:
        mode, runtime = self._mode, self._runtime
        options = ["--link", f"{_SHARED}/link", "--submission", _SUBMISSION, "--device", str(mode.device)]
        if mode.in_jail:
            options += ["--path", ":".join((runtime.code_root, *runtime.site))]
        else:
            options += ["--shared", _SHARED]
        module = "inside" if mode.in_jail else "host"
        return Command(
            argv=boot_argv(runtime.executable, module, runtime.code_root, runtime.site, *options),
            limits=limits_for(mode),
            binds=(*runtime.binds, Bind(submission, _SUBMISSION), Bind(shared, _SHARED)),
            # Triton builds a small extension module for each kernel with the system's compiler.
            toolchain=mode.device != "cpu",
        )

    # --- the two ways -------------------------------------------------------------------------------------------------

    def _talk_in_jail(self, link: Link) -> dict[str, Any]:
        """Let the judge's own process in the jail do the work."""
        mode = self._mode
        link.send(
            {
                "quirks": mode.rules.quirks,
                "tests": [asdict(case) for case in mode.tests],
                "benchmarks": [asdict(case) for case in mode.benchmarks],
                "seed": 0 if mode.rules.quirks else secrets.randbelow(2**31),
                "budget_s": mode.budget_s,
            }
        )
        try:
            answer = link.receive(deadline=time.monotonic() + mode.budget_s + _MARGIN_S).header
        except LinkBroken as error:
            return {"stage": "unknown", "tests": 0, "benchmarks": [], "failure": str(error)}
        if "fault" in answer:
            raise JudgeError(f"the evaluation failed: {answer['fault']}")
        report: dict[str, Any] = answer["report"]
        return report

    def _check_here(self, link: Link, shared: Path) -> dict[str, Any]:
        """Check in this process, with files as the way for tensors."""
        from judges.trimul.bench import CandidateFault, Session

        mode = self._mode
        session = Session(link, "cpu", shared, time.monotonic() + mode.budget_s, mode.rules)
        report: dict[str, Any] = {"stage": "import", "tests": len(mode.tests), "benchmarks": [], "failure": None}
        try:
            session.expect_ready()
        except LinkBroken as error:
            raise SandboxFault(f"the program that runs candidates did not start: {error}") from error
        try:
            session.load()
            report["stage"] = "tests"
            session.check_all(mode.tests)
        except CandidateFault as fault:
            return {**report, "failure": str(fault)}
        return {**report, "stage": "done"}

    def _explained(self, report: dict[str, Any], result: RunResult) -> dict[str, Any]:
        """The report, with the limit that a broken connection was due to."""
        if report["failure"] is None:
            return report
        reasons = {
            Status.TIME_LIMIT: f"more than {self._mode.budget_s:.0f} s were used",
            Status.MEMORY_LIMIT: f"more than {limits_for(self._mode).memory_bytes // MIB} MiB of memory were used",
            Status.OUTPUT_LIMIT: "too much was printed",
        }
        reason = reasons.get(result.status)
        if reason is None:
            return report
        return {**report, "failure": f"{report['failure']} ({reason})"}
