"""The lasso judge as a user runs it: what a right program scores, and the service around it."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from judges_lasso_testkit import SOLVED, need_eigen, run_judge, seed_code, spoiled, tiny_judge
from judges_testkit import JudgeProcess, first_line

import judges.lasso_path.judge as judge_module
from judges.errors import SuiteError
from judges.lasso_path.cases import cases_sha256
from judges.lasso_path.judge import LassoJudge, geometric_mean
from judges.lasso_path.reference import ReferenceBook
from judges.protocol import BadSubmission
from judges.sandbox import Sandbox

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def judge(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LassoJudge]:
    with tiny_judge(sandbox, tmp_path_factory.mktemp("lasso")) as opened:
        yield opened


def test_the_score_is_the_inverse_geometric_mean_of_the_best_timed_runs(judge: LassoJudge) -> None:
    verdict = run_judge(judge, seed_code())
    assert verdict.valid, verdict.message
    problems = verdict.artifacts["problems"]
    for problem in problems:
        assert problem["sol_time_ms"] == pytest.approx(min(problem["runs_ms"][1:]), abs=1e-3)
    mean_ms = math.sqrt(problems[0]["sol_time_ms"] * problems[1]["sol_time_ms"])
    assert verdict.artifacts["geo_mean_sol_ms"] == pytest.approx(mean_ms)
    assert verdict.score == verdict.score_unbounded == pytest.approx(1 / mean_ms)
    assert verdict.artifacts["raw_speed_score"] == verdict.score
    assert verdict.message == f"accepted: 2 cases, geometric mean {mean_ms:.3f} ms"
    assert verdict.failure_domain is None
    # A jail takes longer to be built than such small instances take to be solved: that is told and not scored.
    assert verdict.artifacts["timing"]["sandbox_overhead_ms"] > 1.0
    assert verdict.artifacts["timing"]["timed_runs"] == 3


def test_time_that_a_program_wastes_counts(judge: LassoJudge) -> None:
    verdict = run_judge(judge, spoiled(SOLVED, f"{SOLVED} usleep(1000);", top="#include <unistd.h>"))
    assert verdict.valid, verdict.message
    assert all(problem["sol_time_ms"] > 50 for problem in verdict.artifacts["problems"])
    assert verdict.score < 1 / 50


def test_an_eigen_program_compiles_with_its_flags(judge: LassoJudge) -> None:
    norm = "double norm(const double *a, int n) { return Eigen::Map<const Eigen::VectorXd>(a, n).norm(); }"
    top = "#include <Eigen/Core>\n#ifndef FLAG\n#error no flag\n#endif"
    code = spoiled("double dot(", f"{norm}\ndouble dot(", top=top)
    verdict = run_judge(judge, code.replace("COMPILE_FLAGS: list[str] = []", 'COMPILE_FLAGS = ["-DFLAG", "-O0"]'))
    assert verdict.valid, verdict.message
    assert verdict.artifacts["compile"]["flags"] == ["-DFLAG", "-O0"]


def test_only_python_files_are_taken(judge: LassoJudge) -> None:
    assert {judge.language(name) for name in ("python", "py", " Python3 ")} == {"python"}
    with pytest.raises(BadSubmission, match="unsupported lang 'cpp'"):
        judge.language("cpp")


def test_without_eigen_the_judge_does_not_start(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_module, "EIGEN_DIR", tmp_path)
    with pytest.raises(SuiteError, match="apt-get install -y libeigen3-dev"):
        LassoJudge(sandbox, ReferenceBook(tmp_path / "book.json"))


def test_the_geometric_mean_is_one() -> None:
    assert geometric_mean([1.0, 10.0, 100.0]) == pytest.approx(10.0)


# --- as a service -----------------------------------------------------------------------------------------------------


@pytest.fixture
def service(sandbox: Sandbox, tmp_path: Path) -> Iterator[JudgeProcess]:
    need_eigen()
    process = subprocess.Popen(
        [sys.executable, "-m", "judges", "lasso_path", "--port", "0", "--state-dir", str(tmp_path), "--seed", "7"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        banner = first_line(process)
        found = re.search(r"http://\S+", banner)
        assert found, banner
        yield JudgeProcess(process, url=found.group(0), banner=banner)
    finally:
        process.terminate()
        process.communicate(timeout=20)


def test_the_service_judges_over_http_one_at_a_time(service: JudgeProcess, tmp_path: Path) -> None:
    health = httpx.get(f"{service.url}/health").json()
    assert health["judge"] == "lasso_path"
    assert health["workers"] == 1
    assert health["suite"] == "own generators, fixed seed 7"
    assert health["limits"]["tolerance"] == 1e-6
    problems = httpx.get(f"{service.url}/problems").json()["problems"]
    assert [problem["id"] for problem in problems] == ["lasso_path", "lasso_path-quick"]
    refused = httpx.post(
        f"{service.url}/submit", data={"pid": "lasso_path", "lang": "cpp"}, files={"code": ("a.cpp", b"int main(){}")}
    )
    assert (refused.status_code, refused.json()["error"]) == (400, "unsupported lang 'cpp'")
    _require_right_on_every_case(_judged(service.url, spoiled("q.p = size[1];", "q.p = size[1]; // größer")))
    assert (tmp_path / "lasso-references-seed-7.json").is_file()
    assert service.stop() == 0


def _require_right_on_every_case(result: dict[str, Any]) -> None:
    assert result["status"] == "done", result["message"]
    assert result["score"] > 0
    artifacts = result["artifacts"]
    assert (artifacts["n_valid"], artifacts["n_total"]) == (5, 5)
    assert [problem["problem_idx"] for problem in artifacts["problems"]] == [2, 5, 8, 12, 15]
    for problem in artifacts["problems"]:
        assert problem["valid"]
        assert problem["error"] is None
        assert problem["max_gap"] <= 1e-6
        assert len(problem["runs_ms"]) == 4
    assert artifacts["suite_sha256"] == cases_sha256()


def _judged(url: str, code: str) -> dict[str, Any]:
    form = {"pid": "lasso_path-quick", "lang": "python"}
    answer = httpx.post(f"{url}/submit", data=form, files={"code": ("solution.py", code.encode(), "text/x-python")})
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        result: dict[str, Any] = httpx.get(f"{url}/result/{answer.json()['sid']}").json()
        if result["status"] not in ("queued", "running"):
            return result
        time.sleep(0.05)
    raise AssertionError("no final result in time")


def test_the_command_has_its_own_port_and_one_worker() -> None:
    from judges.__main__ import build_parser

    options = build_parser("lasso_path").parse_args(["lasso_path"])
    assert (options.port, options.workers, options.seed) == (8082, 1, None)
    assert build_parser("lasso_path").parse_args(["lasso_path", "--port", "9", "--workers", "3"]).workers == 3


@pytest.mark.parametrize("seed", ["-1", "x", str(2**32)])
def test_an_impossible_seed_is_refused(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    from judges.__main__ import build_parser

    with pytest.raises(SystemExit):
        build_parser("lasso_path").parse_args(["lasso_path", "--seed", seed])
    assert "--seed" in capsys.readouterr().err
