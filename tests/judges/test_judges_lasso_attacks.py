"""Programs that are wrong, lazy or hostile: each is rejected with its own reason, and none leaves anything behind."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from judges_lasso_testkit import SOLVED, TINY_CASES, run_judge, seed_code, spoiled, tiny_judge, wrapped

import judges.lasso_path.judge as judge_module
from judges.lasso_path.cases import draw_instance
from judges.lasso_path.judge import COMPILE_LIMITS, RUN_LIMITS, LassoJudge
from judges.protocol import Verdict, verdict_result
from judges.sandbox import MIB, Sandbox

pytestmark = pytest.mark.slow

MAIN = "int main() {\n"


@pytest.fixture(scope="module")
def judge(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LassoJudge]:
    with tiny_judge(sandbox, tmp_path_factory.mktemp("lasso")) as opened:
        yield opened


@pytest.fixture
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that only waste time need not waste the whole limit."""
    monkeypatch.setattr(judge_module, "RUN_LIMITS", replace(RUN_LIMITS, wall_s=1.0, cpu_s=1.0))


def rejected(verdict: Verdict, stage: str = "run") -> str:
    """The reason of a rejection; everything else about it must be in order."""
    assert (verdict.valid, verdict.score, verdict.score_unbounded) == (False, 0.0, 0.0)
    assert verdict.failure_domain == "candidate"
    assert verdict.artifacts["stage"] == stage
    assert verdict.artifacts["geo_mean_sol_ms"] is None
    result = verdict_result(verdict)
    json.dumps(result, allow_nan=False)
    assert result["status"] == "error"
    return verdict.message


# --- wrong answers ----------------------------------------------------------------------------------------------------

FIRST = "case 1 (40 x 30, g): run 1: "


ONLY_THE_FIRST = "std::vector<double> w(q.p, 0.0); if (lambda == q.lambda[0]) w = solver.solve(lambda);"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("Solver solver(q);", "Solver solver(q); q.lambda.pop_back();", "wrote 11760 of the 12000 bytes"),
        ("Solver solver(q);", "Solver solver(q); q.lambda.push_back(1);", "wrote more than the 12000 bytes"),
        (SOLVED, "std::vector<double> w(q.p, std::nan(\"\"));", "the coefficients for lambda 1 are not finite"),
        (SOLVED, ONLY_THE_FIRST, "the objective at lambda 50 of 50 exceeds the reference by "),
        ("    return 0;\n}\n\"\"\"", "    return 3;\n}\n\"\"\"", "Nonzero Exit Status: exit code 3"),
        ("    return 0;\n}\n\"\"\"", "    std::abort();\n}\n\"\"\"", "Signalled: killed by signal 6"),
        (MAIN, MAIN + "    return 0;\n", "wrote 0 of the 12000 bytes"),
    ],
)
def test_a_wrong_answer_is_rejected_at_the_first_run(
    judge: LassoJudge, old: str, new: str, reason: str
) -> None:
    message = rejected(run_judge(judge, spoiled(old, new, top="#include <cstdlib>")))
    assert message.startswith(FIRST)
    assert reason in message


def test_the_error_output_of_a_failed_program_is_told(judge: LassoJudge) -> None:
    code = spoiled(MAIN, f'{MAIN}    std::fputs("no memory left", stderr); return 9;\n')
    assert rejected(run_judge(judge, code)).endswith("exit code 9; stderr: no memory left")


def test_a_program_that_knows_the_instances_of_the_correctness_runs_gains_nothing(judge: LassoJudge) -> None:
    """It solves what it recognises as a correctness run and answers zeros, fast, in all other runs."""
    book = judge._book
    known = [float(draw_instance(spec, book.seeds(spec)[0]).y[0]) for spec in TINY_CASES]
    guard = " && ".join(f"q.y[0] != {value!r}" for value in known)
    cheat = f"const std::vector<double> zero(q.p, 0.0);\n        const std::vector<double> &w = ({guard}) ? zero : "
    verdict = run_judge(judge, spoiled(SOLVED, f"{cheat}solver.solve(lambda);"))
    assert rejected(verdict).startswith("case 1 (40 x 30, g): run 2: the objective at lambda 50 of 50 exceeds the")
    assert [len(problem["runs_ms"]) for problem in verdict.artifacts["problems"]] == [1, 1]


# --- waste and harm ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short_runs")
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("sleep(60);", "Time Limit Exceeded: after 0."),
        ("for (volatile int i = 0;; i = i + 1) {}", "Time Limit Exceeded: after "),
        ("for (;;) if (write(1, big, sizeof big) < 0) return 0;", "wrote more than the 12000 bytes"),
        ("for (;;) if (write(2, big, sizeof big) < 0) return 0;", "Time Limit Exceeded"),
        ("while (true) if (fork() < 0) break; sleep(60);", "Time Limit Exceeded"),
        ("for (;;) memset(malloc(16 << 20), 1, 16 << 20);", "Memory Limit Exceeded"),
        ("kill(-1, SIGKILL); kill(1, SIGKILL); return 7;", "exit code 7"),
    ],
)
def test_a_program_that_only_wastes_is_cut_and_rejected(
    judge: LassoJudge, cgroup_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, body: str, reason: str
) -> None:
    """The process limit is a control group's, set and read back by the sandbox: a program that forks is contained."""
    monkeypatch.setattr(judge_module, "RUN_LIMITS", replace(judge_module.RUN_LIMITS, memory_bytes=128 * MIB))
    head = "".join(f"#include <{name}>\n" for name in ("csignal", "cstdlib", "cstring", "unistd.h"))
    source = f"{head}static char big[1 << 16];\nint main() {{ {body} return 0; }}"
    message = rejected(run_judge(judge, wrapped(source)))
    assert message.startswith(FIRST)
    assert reason in message


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.0)
        yield server


def test_files_and_connections_are_of_no_use(judge: LassoJudge, listener: socket.socket) -> None:
    """A right program that leaves files for its next run and calls home, and spoils its answer if either works."""
    top = """
    #include <arpa/inet.h>
    #include <cstdio>
    #include <initializer_list>
    #include <netinet/in.h>
    #include <sys/socket.h>
    #include <unistd.h>
    static bool meddled() {
        bool found = false;
        for (const char *path : {"/tmp/left", "/w/left", "/left", "/usr/lib/left", "/dev/shm/left", "/var/tmp/left"}) {
            if (access(path, F_OK) == 0) found = true;
            if (FILE *file = std::fopen(path, "w")) std::fclose(file);
        }
        for (const char *path : {"/etc/passwd", "/proc/self/maps", "/root", "/home", "/usr/bin", "/work"})
            if (access(path, F_OK) == 0) found = true;
        sockaddr_in home{};
        home.sin_family = AF_INET, home.sin_port = htons(PORT), home.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        const int line = socket(AF_INET, SOCK_STREAM, 0);
        return found || (line >= 0 && connect(line, reinterpret_cast<sockaddr *>(&home), sizeof home) == 0);
    }
    """.replace("PORT", str(listener.getsockname()[1]))
    code = spoiled(MAIN, f"{MAIN}    if (meddled()) return 5;\n", top=top)
    verdict = run_judge(judge, code)
    assert verdict.valid, verdict.message
    with pytest.raises(BlockingIOError):
        listener.accept()


# --- the file and the compiler ----------------------------------------------------------------------------------------


def test_python_in_the_file_never_runs(judge: LassoJudge, tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    rest = f"\nopen({str(witness)!r}, 'w').close()\nraise SystemExit(1)\n"
    assert run_judge(judge, seed_code() + rest).valid
    assert not witness.exists()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("CPP_CODE = ''.join(['int main', '() {}'])", "line 1: CPP_CODE must be one string literal"),
        ("COMPILE_FLAGS = ['-O2']", "CPP_CODE is missing"),
        (wrapped("int main() {}", "COMPILE_FLAGS = ['-fplugin=/tmp/x.so']"), "'-fplugin=/tmp/x.so' is not allowed"),
        ("int main() { return 0; }", "the file is not valid Python"),
    ],
)
def test_a_file_that_cannot_be_read_is_rejected_before_anything_runs(
    judge: LassoJudge, code: str, reason: str
) -> None:
    assert reason in rejected(run_judge(judge, code), stage="parse")


@pytest.mark.parametrize(
    ("cpp", "reason"),
    [
        ("int main() { return missing; }", "main.cpp:2:21: error: 'missing' was not declared"),
        ("#include </etc/passwd>\nint main() {}", "/etc/passwd: No such file"),
        ('asm(".incbin \\"/etc/shadow\\"");\nint main() {}', "/etc/shadow"),
        (
            "constexpr long f(long n) { long s = 0; for (long i = 0; i < n; ++i) s += i * n; return s; }\n"
            "template <int N> struct T { static constexpr long v = f(30000 + N) + T<N - 1>::v; };\n"
            "template <> struct T<0> { static constexpr long v = 0; };\nint main() { return T<800>::v; }",
            "compilation exceeded its time limit (1 s CPU, 3 s in all)",
        ),
        ("char big[3000000000u] = {1};\nint main() { return big[7]; }", ""),
    ],
)
def test_a_program_that_does_not_compile_in_the_jail_is_rejected(
    judge: LassoJudge, monkeypatch: pytest.MonkeyPatch, cpp: str, reason: str
) -> None:
    limits = replace(COMPILE_LIMITS, cpu_s=1.0, wall_s=3.0, memory_bytes=512 * MIB, file_bytes=64 * MIB)
    monkeypatch.setattr(judge_module, "COMPILE_LIMITS", limits)
    assert reason in rejected(run_judge(judge, wrapped(cpp)), stage="compile")


def test_the_time_of_all_runs_together_is_bounded(judge: LassoJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module, "BUDGET_S", 0.001)
    assert rejected(run_judge(judge, seed_code())).endswith("that all its runs may take together")
