"""The production judge as a user runs it: from the command line, asked over HTTP."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from judges_testkit import JudgeProcess, first_line

from judges.ahc058 import command
from judges.ahc058.generator import PINNED_SHA256
from judges.ahc058.suite import QUICK_SEEDS
from judges.errors import JudgeError
from judges.sandbox import Sandbox

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SEED = ROOT / "harbor/ahc058/solution/seed.cpp"
CORES = len(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def judge(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeProcess]:
    start = [sys.executable, "-m", "judges", "ahc058", "--port", "0", "--workers", "1", "--case-workers", str(CORES)]
    process = subprocess.Popen(
        [*start, "--state-dir", str(tmp_path_factory.mktemp("judge"))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        banner = first_line(process)
        found = re.search(r"http://\S+", banner)
        assert found, banner
        yield JudgeProcess(process, url=found[0], banner=banner)
    finally:
        process.terminate()
        process.communicate(timeout=20)


def submitted(url: str, code: bytes, pid: str, timeout_s: float = 120.0) -> dict[str, Any]:
    answer = httpx.post(f"{url}/submit", data={"pid": pid, "lang": "cpp"}, files={"code": ("solution.cpp", code)})
    assert answer.status_code == 200, answer.text
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        result: dict[str, Any] = httpx.get(f"{url}/result/{answer.json()['sid']}").json()
        if result["status"] not in ("queued", "running"):
            return result
        time.sleep(0.05)
    raise AssertionError("no final result in time")


def test_it_says_what_it_scores_on(judge: JudgeProcess) -> None:
    assert "case set public-150" in judge.banner
    health = httpx.get(f"{judge.url}/health").json()
    assert (health["judge"], health["suite_sha256"], health["case_workers"]) == ("ahc058", PINNED_SHA256, CORES)
    assert health["limits"]["time_s"] == 2.0
    problems = httpx.get(f"{judge.url}/problems").json()["problems"]
    assert [problem["id"] for problem in problems] == ["ahc058", "ahc058-quick"]


def test_the_seed_is_valid_on_the_quick_problem(judge: JudgeProcess) -> None:
    result = submitted(judge.url, SEED.read_bytes(), "ahc058-quick")
    assert (result["status"], result["valid"], result["failureDomain"]) == ("done", True, None)
    cases = result["artifacts"]["cases"]
    assert [case["seed"] for case in cases] == list(QUICK_SEEDS)
    total = sum(case["score"] for case in cases)
    assert result["scoreUnbounded"] == total / len(QUICK_SEEDS)
    assert result["score"] == total / len(QUICK_SEEDS) / 3_000_000


def test_the_seed_has_its_measured_score_on_all_150_cases(judge: JudgeProcess) -> None:
    result = submitted(judge.url, SEED.read_bytes(), "ahc058")
    assert result["artifacts"]["absolute_score_total"] == 254_336_005
    assert result["scoreUnbounded"] == 254_336_005 / 150
    assert result["artifacts"]["case_status_counts"] == {"ACCEPTED": 150}


@pytest.mark.parametrize("workers", [-1, 0, 4096])
def test_case_workers_that_do_not_suit_the_cores_are_refused(sandbox: Sandbox, workers: int) -> None:
    parser = argparse.ArgumentParser()
    command.add_options(parser)
    options = parser.parse_args(["--case-workers", str(workers)])
    options.workers = 1
    with pytest.raises(JudgeError, match=f"--case-workers {workers} does not suit .* use 1 to"):
        command.open_judge(options, sandbox)


def test_as_many_case_workers_as_cores_are_fine(sandbox: Sandbox) -> None:
    judge = command.open_judge(argparse.Namespace(workers=1, case_workers=CORES), sandbox)
    assert judge.describe()["case_workers"] == CORES
