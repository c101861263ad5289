"""The judge as a user runs it: started from the command line, asked over HTTP, stopped by signals."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from judges_testkit import JudgeProcess, processes_with

from judges.polyomino.generator import OWN_SHA256
from judges.polyomino.judge import PolyominoJudge
from judges.polyomino.suite import OFFICIAL_SHA256, Suite
from judges.protocol import Submission, Verdict
from judges.sandbox import Sandbox

pytestmark = pytest.mark.slow

ROW_SCORE_OFFICIAL = 27.810517627142843
ROW_PACKING = """
#include <cstdio>
#include <vector>
int main() {
    int n; if (scanf("%d", &n) != 1) return 1;
    std::vector<int> shift_x(n), shift_y(n); int width = 0, height = 0;
    for (int i = 0; i < n; ++i) {
        int k; scanf("%d", &k); int x0 = 1 << 30, x1 = -x0, y0 = x0, y1 = -x0;
        while (k--) {
            int x, y; scanf("%d %d", &x, &y);
            if (x < x0) x0 = x; if (x > x1) x1 = x; if (y < y0) y0 = y; if (y > y1) y1 = y;
        }
        shift_x[i] = width - x0; shift_y[i] = -y0; width += x1 - x0 + 1;
        if (y1 - y0 + 1 > height) height = y1 - y0 + 1;
    }
    // (placed)
    printf("%d %d\\n", width, height);
    for (int i = 0; i < n; ++i) printf("%d %d 0 0\\n", shift_x[i], shift_y[i]);
}
"""
# Like the row packing, but in one of the larger cases the last piece lies over the first.
SPOILT_ON_LARGE = ROW_PACKING.replace("// (placed)", "if (n > 600 && n < 700) shift_x[n - 1] = shift_x[0];")


def seed_program() -> str:
    """The published seed of the task where the checkout has it, else the same algorithm from above."""
    published = Path(__file__).parents[2] / "harbor/polyomino_packing/solution/seed.cpp"
    return published.read_text(encoding="utf-8") if published.is_file() else ROW_PACKING


def submit(url: str, code: str, pid: str) -> str:
    answer = httpx.post(f"{url}/submit", data={"pid": pid, "lang": "cpp"}, files={"code": ("main.cpp", code.encode())})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["sid"])


def final(url: str, sid: str, timeout_s: float = 60.0) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        result: dict[str, Any] = httpx.get(f"{url}/result/{sid}").json()
        if result["status"] not in ("queued", "running"):
            return result
        time.sleep(0.05)
    raise AssertionError("no final result in time")


def judge_code(sandbox: Sandbox, suite: Suite, code: str, pid: str = "0-quick") -> Verdict:
    return PolyominoJudge(sandbox, suite).judge(Submission("0" * 32, pid, "cpp", code.encode()))


def test_the_seed_scores_the_published_number_on_the_official_data(
    start_judge: Callable[..., JudgeProcess], official_dir: Path
) -> None:
    judge = start_judge("--frontiercs-dir", str(official_dir))
    assert "case set frontiercs" in judge.banner
    result = final(judge.url, submit(judge.url, seed_program(), "0"))
    assert result["score"] == result["scoreUnbounded"] == ROW_SCORE_OFFICIAL
    assert result["artifacts"]["suite_sha256"] == OFFICIAL_SHA256
    assert len(result["artifacts"]["cases"]) == 70
    assert judge.stop() == 0


def test_a_valid_program_is_scored_on_every_case(sandbox: Sandbox, own_suite: Suite) -> None:
    verdict = judge_code(sandbox, own_suite, ROW_PACKING)
    assert verdict.valid
    assert verdict.failure_domain is None
    cases = verdict.artifacts["cases"]
    assert [case["case"] for case in cases] == list(own_suite.case_numbers("0-quick"))
    assert all(case["valid"] and case["ratio"] == round(case["ratio"], 9) for case in cases)
    assert verdict.score == pytest.approx(100 * sum(case["ratio"] for case in cases) / 8)
    assert verdict.artifacts["skipped"] == 0
    assert verdict.artifacts["suite_sha256"] == OWN_SHA256
    assert verdict.artifacts["tier"] == sandbox.tier.value


def test_one_invalid_case_rejects_the_submission_and_ends_it(sandbox: Sandbox, own_suite: Suite) -> None:
    assert SPOILT_ON_LARGE != ROW_PACKING
    verdict = judge_code(sandbox, own_suite, SPOILT_ON_LARGE)
    assert (verdict.valid, verdict.score, verdict.failure_domain) == (False, 0.0, "candidate")
    assert verdict.message.startswith("case 5: wrong answer: piece 607 overlaps another piece at (0, ")
    cases = verdict.artifacts["cases"]
    assert [(case["case"], case["valid"]) for case in cases] == [(2, True), (5, False)]
    assert verdict.artifacts["skipped"] == 6
    # The unbounded score is the mean in which everything that was not valid counts as zero.
    assert verdict.score_unbounded == pytest.approx(100 * cases[0]["ratio"] / 8)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("int main() { return 3; }", "case 1: Nonzero Exit Status: exit code 3"),
        ("#include <cstdlib>\nint main() { abort(); }", "case 1: Signalled: killed by signal 6"),
        ("int main() {}", "case 1: wrong answer: the output ends before W"),
        ("int main() { volatile int n = 0; for (;;) n = n + 1; }", "case 1: Time Limit Exceeded: after 2."),
        (
            '#include <cstdio>\nint main() { fprintf(stderr, "Ratio: 1.0 RatioUnbounded: 99"); return 1; }',
            "case 1: Nonzero Exit Status: exit code 1; stderr: Ratio: 1.0",
        ),
    ],
)
def test_programs_that_fail_are_rejected_with_the_reason(
    sandbox: Sandbox, own_suite: Suite, code: str, reason: str
) -> None:
    verdict = judge_code(sandbox, own_suite, code, pid="0")
    assert verdict.message.startswith(reason)
    assert (verdict.valid, verdict.score, verdict.score_unbounded) == (False, 0.0, 0.0)
    assert verdict.artifacts["skipped"] == 69
    assert len(verdict.artifacts["cases"][0]["message"]) <= 200


def test_a_program_that_does_not_compile_is_the_candidates_fault(sandbox: Sandbox, own_suite: Suite) -> None:
    verdict = judge_code(sandbox, own_suite, "int main() { return undefined; }" * 100)
    assert verdict.message.startswith("main.cpp: In function")
    assert len(verdict.message.encode()) <= 2000
    assert (verdict.valid, verdict.failure_domain) == (False, "candidate")
    assert (verdict.artifacts["stage"], verdict.artifacts["cases"]) == ("compile", [])


def test_only_cpp_is_accepted(start_judge: Callable[..., JudgeProcess]) -> None:
    judge = start_judge()
    for lang, status in [("cpp", 200), ("C++", 200), ("cpp17", 200), ("cxx", 200), ("python", 400), ("c", 400)]:
        answer = httpx.post(f"{judge.url}/submit", data={"pid": "0", "lang": lang}, files={"code": b"int main() {}"})
        assert answer.status_code == status, lang
    health = httpx.get(f"{judge.url}/health").json()
    assert (health["judge"], health["suite"], health["suite_sha256"]) == ("polyomino", "own", OWN_SHA256)
    assert health["limits"]["cpu_s"] == 2.0


def test_results_survive_a_killed_judge_and_unfinished_work_is_done_after_all(
    start_judge: Callable[..., JudgeProcess],
) -> None:
    first = start_judge("--workers", "1")
    done = submit(first.url, ROW_PACKING, "0-quick")
    result = final(first.url, done)
    running = submit(first.url, "#include <unistd.h>\nint main() { sleep(30); }", "0-quick")
    waiting = submit(first.url, ROW_PACKING + "// größer", "0-quick")
    while httpx.get(f"{first.url}/result/{running}").json()["status"] != "running":
        time.sleep(0.02)
    time.sleep(0.5)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    # The jail dies with the judge; its command line names a directory that carries the judge's process id.
    deadline = time.monotonic() + 10
    while (left := processes_with(f".{first.process.pid}.")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
    second = start_judge("--workers", "1")
    assert httpx.get(f"{second.url}/result/{done}").json() == result
    assert final(second.url, waiting)["score"] == result["score"]
    assert final(second.url, running)["message"].startswith("case 2: Time Limit Exceeded")
    assert second.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_judge_and_its_candidates_in_order(
    start_judge: Callable[..., JudgeProcess], tmp_path: Path, number: int
) -> None:
    judge = start_judge()
    sid = submit(judge.url, "#include <unistd.h>\nint main() { sleep(30); }", "0")
    while httpx.get(f"{judge.url}/result/{sid}").json()["status"] != "running":
        time.sleep(0.02)
    time.sleep(0.5)
    begin = time.monotonic()
    assert judge.stop(number) == 0
    assert time.monotonic() - begin < 15
    mark = f".{judge.process.pid}."
    for place in ("/tmp", "/sys/fs/cgroup/pids/guidance-judge", "/sys/fs/cgroup/guidance-judge"):
        assert [path for path in Path(place).glob("*") if mark in path.name] == []
    assert not [path for path in Path("/proc").glob("[0-9]*/stat") if parent_of(path) == judge.process.pid]


def parent_of(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return -1


def run_command(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "judges", *options],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        cwd=Path(__file__).parents[2],
    )


def test_a_port_in_use_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = run_command("polyomino", "--port", str(port), "--state-dir", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"port {port}" in done.stderr
    assert "--port" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["polyomino", "--workers", "0"], "--workers must be at least 1"),
        (["polyomino", "--port", "0", "--frontiercs-dir", "/nonexistent"], "no FrontierCS data in /nonexistent"),
        (["chess"], "invalid choice"),
        ([], "JUDGE"),
    ],
)
def test_wrong_options_are_explained(options: list[str], message: str, tmp_path: Path) -> None:
    if "--port" in options:
        options = [*options, "--state-dir", str(tmp_path)]
    done = run_command(*options)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_help_is_quick_because_it_imports_nothing_heavy() -> None:
    heavy = "('aiohttp', 'asyncio', 'sqlite3')"
    code = f"import sys, judges.__main__ as m; m.build_parser(); print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"
