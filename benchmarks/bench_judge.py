"""How much the judge costs beside the programs that it runs: one run in the sandbox, and one submission of 70 cases.

    python benchmarks/bench_judge.py [--runs 60] [--submissions 3]

Prints one JSON object.  The same program gets the same input, alternately as a bare process and in the sandbox, so
that a busy machine slows both.  The submission is the packing task's seed, which takes a few milliseconds a case, so
that whatever the judge adds shows.  `targets` says which of the project's own limits hold.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from judges.polyomino.judge import RUN_LIMITS, PolyominoJudge  # noqa: E402
from judges.polyomino.suite import FULL_PROBLEM, Suite, load_own_suite  # noqa: E402
from judges.protocol import Submission  # noqa: E402
from judges.sandbox import Bind, Command, Sandbox, compile_cpp, open_sandbox  # noqa: E402

SEED = ROOT / "harbor/polyomino_packing/solution/seed.cpp"
MAX_OVERHEAD_MS = 40.0
MAX_RATIO = 1.5
CASE = 31


def run_times(sandbox: Sandbox, suite: Suite, runs: int) -> dict[str, float]:
    """Milliseconds of a bare run and of a jailed one, and the median of their differences pair by pair."""
    compiled = compile_cpp(sandbox, SEED.read_bytes())
    if not compiled.ok:
        raise SystemExit(f"the seed does not compile: {compiled.message}")
    data = suite.inputs[CASE - 1]
    bare: list[float] = []
    jailed: list[float] = []
    with sandbox.executable(compiled.binary) as program:
        command = Command(("/w/program",), RUN_LIMITS, (Bind(program, "/w/program"),), data)
        for _ in range(runs):
            started = time.perf_counter()
            subprocess.run([str(program)], input=data, capture_output=True, check=True)
            bare.append((time.perf_counter() - started) * 1e3)
            started = time.perf_counter()
            result = sandbox.run(command)
            jailed.append((time.perf_counter() - started) * 1e3)
            if not result.accepted:
                raise SystemExit(f"the seed ended with {result.status.value}: {result.stderr!r}")
    differences = [inside - outside for inside, outside in zip(jailed, bare, strict=True)]
    return {
        "bare_run_ms": statistics.median(bare),
        "sandbox_run_ms": statistics.median(jailed),
        "overhead_ms": statistics.median(differences),
        "overhead_p90_ms": statistics.quantiles(differences, n=10)[-1],
    }


def submission_times(sandbox: Sandbox, suite: Suite, submissions: int) -> dict[str, float]:
    """Seconds of whole submissions without their compilation, beside those of the same 70 runs alone (medians).

    `submission_ratio` is what the judge adds to its runs in the sandbox: checking, reports, files.
    `submission_ratio_inside` compares with the times in the verdict, which begin when the jail has been launched.
    """
    judge = PolyominoJudge(sandbox, suite)
    parallelism = int(getattr(judge, "parallelism", 1))
    walls: list[float] = []
    alone: list[float] = []
    inside: list[float] = []
    compiles: list[float] = []
    binary = compile_cpp(sandbox, SEED.read_bytes()).binary
    # The first submission also parses the cases, once for all that follow.
    for number in range(submissions + 1):
        started = time.perf_counter()
        verdict = judge.judge(Submission(f"{number:032x}", FULL_PROBLEM, "cpp", SEED.read_bytes()))
        wall = time.perf_counter() - started
        if not verdict.valid:
            raise SystemExit(f"the seed is rejected: {verdict.message}")
        if number == 0:
            continue
        compiles.append(verdict.artifacts["compile"]["wall_s"])
        walls.append(wall - compiles[-1])
        inside.append(sum(case["wall_s"] for case in verdict.artifacts["cases"]))
        with sandbox.executable(binary) as program:
            started = time.perf_counter()
            for data in suite.inputs:
                sandbox.run(Command(("/w/program",), RUN_LIMITS, (Bind(program, "/w/program"),), data))
            alone.append(time.perf_counter() - started)
    return {
        "submission_s": statistics.median(walls),
        "submission_runs_s": statistics.median(alone),
        "submission_ratio": statistics.median(w / (s / parallelism) for w, s in zip(walls, alone, strict=True)),
        "submission_ratio_inside": statistics.median(w / (s / parallelism) for w, s in zip(walls, inside, strict=True)),
        "compile_s": statistics.median(compiles),
        "parallelism": parallelism,
    }


def targets(result: dict[str, Any]) -> dict[str, bool]:
    """Which of the project's own limits hold."""
    return {
        f"overhead < {MAX_OVERHEAD_MS:g} ms": result["overhead_ms"] < MAX_OVERHEAD_MS,
        f"70 cases within {MAX_RATIO:g} x their runs": result["submission_ratio"] < MAX_RATIO,
    }


def main() -> None:
    """Measure both on this machine's best sandbox."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=60, help="pairs of runs (at least 2)")
    parser.add_argument("--submissions", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, open_sandbox() as sandbox:
        suite = load_own_suite(Path(folder) / "cases")
        result: dict[str, Any] = {
            **run_times(sandbox, suite, max(2, options.runs)),
            **submission_times(sandbox, suite, max(1, options.submissions)),
            "runs": options.runs,
            "tier": sandbox.tier.value,
        }
    print(json.dumps({**result, "targets": targets(result)}, indent=2))


if __name__ == "__main__":
    main()
