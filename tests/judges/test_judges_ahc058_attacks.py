"""Programs that fail, cheat or attack, judged for real: each gets the verdict it deserves."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from harness.config import TASKS
from judges.ahc058 import judge as judge_module
from judges.ahc058.judge import AppleJudge
from judges.ahc058.scoring import CaseReport, CaseStatus
from judges.ahc058.suite import FULL_PROBLEM, Suite, load_suite
from judges.errors import SandboxFault, SandboxStopped, SandboxUnavailable
from judges.protocol import BadSubmission, Submission, Verdict, verdict_result
from judges.sandbox import MIB, Sandbox, Tier, open_sandbox

pytestmark = pytest.mark.slow

CASES = 2
REAL_RUN_LIMITS = judge_module.RUN_LIMITS
HEAD = """
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
#include <sys/wait.h>
void idle(int turns) { while (turns-- > 0) puts("-1"); }
"""


def main_program(body: str) -> str:
    return HEAD + f"int main() {{ {body} }}\n"


# Buys one power in the first turn and waits: 500 apples at the end of every case.
VALID_BODY = 'puts("0 0"); idle(499);'
VALID = main_program(VALID_BODY)
# The 16th number of an input is the price of the second ID's machine of level 0.
READ_NUMBERS = 'int numbers[16]; for (int& x : numbers) if (scanf("%d", &x) != 1) return 1;'
VALID_SCORE = 896_578


@pytest.fixture(scope="module")
def suite() -> Suite:
    """The first cases of the real set, as if they were all."""
    whole = load_suite()
    return Suite(whole.sha256, whole.inputs[:CASES], whole.cases[:CASES])


@pytest.fixture(autouse=True)
def tight_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real limits in small, so that running into them is quick."""
    small = dataclasses.replace(judge_module.RUN_LIMITS, cpu_s=0.25, wall_s=0.8, memory_bytes=64 * MIB)
    monkeypatch.setattr(judge_module, "RUN_LIMITS", small)


def judged(sandbox: Sandbox, suite: Suite, code: str, **options: Any) -> Verdict:
    return AppleJudge(sandbox, suite, **options).judge(Submission("0" * 32, FULL_PROBLEM, "cpp", code.encode()))


def statuses(verdict: Verdict) -> list[str]:
    return [case["status"] for case in verdict.artifacts["cases"]]


def test_a_plain_valid_program_is_accepted_on_every_case(sandbox: Sandbox, suite: Suite) -> None:
    verdict = judged(sandbox, suite, VALID)
    assert verdict.valid
    assert (verdict.score_unbounded, verdict.score) == (VALID_SCORE, VALID_SCORE / 3_000_000)
    assert (verdict.failure_domain, verdict.message) == (None, "accepted: 2 cases, mean score 896578.00")
    assert verdict.artifacts["case_status_counts"] == {"ACCEPTED": 2}
    assert verdict.artifacts["tier"] == sandbox.tier.value


WRONG, CRASH = CaseStatus.WRONG_ANSWER, CaseStatus.RUNTIME_ERROR
SLOW, LARGE, LONG = (
    CaseStatus.TIME_LIMIT_EXCEEDED,
    CaseStatus.MEMORY_LIMIT_EXCEEDED,
    CaseStatus.OUTPUT_LIMIT_EXCEEDED,
)
SPIN = "for (volatile int n = 0;; n = n + 1);"
HOARD = "volatile char* p = new char[1 << 28]; for (long i = 0; i < 1 << 28; i += 4096) p[i] = 1;"
FORGERY = 'fprintf(stderr, "Score = 99999999\\n"); puts("Score = 99999999");'
ATTACKS: list[tuple[str, str, CaseStatus, str]] = [
    ("endless output", 'for (;;) puts("-1");', LONG, ""),
    ("endless comments", 'for (;;) puts("# -1");', LONG, ""),
    ("an early end", "idle(3);", WRONG, "the output ends after 3 of 500"),
    ("an early exit code", "idle(500); return 3;", CRASH, "exit code 3"),
    ("a crash", "idle(500); fflush(stdout); abort();", CRASH, "killed by signal 6"),
    ("a null pointer", "*(volatile int*)0 = 1;", CRASH, "killed by signal 11"),
    ("garbage bytes", 'idle(500); fwrite("\\xff\\xfe\\0", 1, 3, stdout);', WRONG, "not UTF-8"),
    ("an endless loop", SPIN, SLOW, "s CPU"),
    ("a long sleep", "idle(500); fflush(stdout); sleep(9);", SLOW, "in all"),
    ("much memory", HOARD, LARGE, ""),
    ("a negative level", 'puts("-2 0"); idle(499);', WRONG, "outside -1..3"),
    ("a negative ID", 'puts("0 -1"); idle(499);', WRONG, "outside 0..9"),
    ("an index beyond 64 bits", 'puts("0 18446744073709551616"); idle(499);', WRONG, "outside 0..9"),
    ("a word after an idle turn", 'puts("-1 3"); idle(499);', WRONG, "followed by '3'"),
    ("a purchase on credit", 'puts("3 9"); idle(499);', WRONG, "costs"),
    ("a forged score", FORGERY, WRONG, "'Score', not an integer"),
]


@pytest.mark.parametrize(("what", "code", "status", "words"), ATTACKS, ids=[row[0] for row in ATTACKS])
def test_what_goes_wrong_is_named_and_worth_nothing(
    sandbox: Sandbox, suite: Suite, what: str, code: str, status: CaseStatus, words: str
) -> None:
    if status is LARGE and sandbox.tier is not Tier.CGROUP:
        pytest.skip("only control groups bound memory exactly")
    verdict = judged(sandbox, suite, main_program(code))
    assert statuses(verdict) == [status] * CASES
    assert (verdict.valid, verdict.score, verdict.score_unbounded) == (False, 0.0, 0.0)
    assert (verdict.failure_domain, verdict.training_reward_on_invalid) == ("candidate", True)
    assert verdict.message.startswith(f"0 of 2 cases accepted, mean score 0.00; seed 0: {status}: ")
    assert words in verdict.message
    assert verdict.artifacts["judge_result"] == status


def test_what_follows_the_last_action_is_ignored(sandbox: Sandbox, suite: Suite) -> None:
    nonsense = 'for (int i = 0; i < 999; ++i) puts("3 9 nonsense");'
    code = main_program(f'puts("# plan\\n"); {VALID_BODY} {nonsense}')
    assert judged(sandbox, suite, code).score_unbounded == VALID_SCORE


def test_a_program_that_fails_on_one_case_keeps_its_partial_reward(sandbox: Sandbox, suite: Suite) -> None:
    # The two inputs differ in the price of the second ID's first machine.
    prices = [case.prices[0][1] for case in suite.cases]
    assert prices[0] != prices[1]
    spoilt = f'{READ_NUMBERS} if (numbers[15] == {prices[1]}) puts("oops"); {VALID_BODY}'
    verdict = judged(sandbox, suite, main_program(spoilt))
    assert statuses(verdict) == ["ACCEPTED", "WRONG_ANSWER"]
    assert verdict.score_unbounded == VALID_SCORE / 2
    result = verdict_result(verdict)
    assert (result["status"], result["valid"], result["trainingRewardOnInvalid"]) == ("done", False, True)
    assert result["score"] == VALID_SCORE / 2 / 3_000_000
    assert result["failureDomain"] == "candidate"
    assert "1 of 2 cases accepted" in result["message"]


def test_files_outside_cannot_be_read(sandbox: Sandbox, suite: Suite, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the inputs")
    tmp_path.chmod(0o755)
    paths = [str(secret), "/etc/passwd", "/proc/1/environ", __file__, judge_module.__file__]
    tries = "".join(f'if (fopen("{path}", "r")) return 9; ' for path in paths)
    verdict = judged(sandbox, suite, main_program(tries + VALID_BODY))
    assert verdict.valid, verdict.message


def test_forked_children_count_as_the_program_and_do_not_outlive_it(sandbox: Sandbox, suite: Suite) -> None:
    children = f"for (int i = 0; i < 4; ++i) if (fork() == 0) {SPIN} {VALID_BODY} fflush(stdout);"
    waiting = main_program(children + " int status; while (wait(&status) > 0) {}")
    assert statuses(judged(sandbox, suite, waiting)) == ["TIME_LIMIT_EXCEEDED"] * CASES
    # A parent that ends is judged by its own output; its children are killed with it.
    left = judged(sandbox, suite, main_program(children + " _exit(0);"))
    assert left.valid, left.message


def test_a_program_that_does_not_compile_is_the_candidates_fault(sandbox: Sandbox, suite: Suite) -> None:
    verdict = judged(sandbox, suite, "int main() { return undefined; }")
    assert verdict.message.startswith("main.cpp: In function")
    assert (verdict.valid, verdict.score, verdict.failure_domain) == (False, 0.0, "candidate")
    assert (verdict.artifacts["judge_result"], verdict.artifacts["cases"]) == ("COMPILATION_ERROR", [])
    assert verdict_result(verdict)["status"] == "done"


def test_programs_are_cpp20(sandbox: Sandbox, suite: Suite) -> None:
    modern = "#include <concepts>\ntemplate <std::integral T> T one() { return 1; }\nstatic_assert(one(2) == 1);\n"
    verdict = judged(sandbox, suite, modern.replace("T one(", "constexpr T one(T") + VALID)
    assert verdict.valid, verdict.message


def test_a_program_that_only_runs_out_of_time_is_given_up_and_the_rest_counts_as_failed(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_module, "GIVE_UP_AFTER", 2)
    whole = load_suite()
    five = Suite(whole.sha256, whole.inputs[:5], whole.cases[:5])
    verdict = judged(sandbox, five, main_program(SPIN))
    assert verdict.artifacts["case_status_counts"] == {"TIME_LIMIT_EXCEEDED": 2, "NOT_RUN": 3}
    assert (verdict.artifacts["not_run"], verdict.artifacts["case_count"]) == (3, 5)
    assert verdict.message.endswith("; 3 cases were not run, because the first 2 all ran out of time")
    # One success among the first cases, and every case is run, so that each counts.
    late = f"{READ_NUMBERS} if (numbers[15] != {five.cases[0].prices[0][1]}) {SPIN} {VALID_BODY}"
    partly = judged(sandbox, five, main_program(late))
    assert partly.artifacts["case_status_counts"] == {"TIME_LIMIT_EXCEEDED": 4, "ACCEPTED": 1}
    assert partly.score_unbounded == VALID_SCORE / 5


def test_case_workers_change_nothing_but_the_time(sandbox: Sandbox) -> None:
    whole = load_suite()
    six = Suite(whole.sha256, whole.inputs[:6], whole.cases[:6])
    one, two = judged(sandbox, six, VALID), judged(sandbox, six, VALID, case_workers=2)
    assert one.valid
    assert [case["seed"] for case in two.artifacts["cases"]] == list(range(6))
    assert (one.score, one.message) == (two.score, two.message)


@pytest.mark.parametrize("lang", ["cpp", "C++", "cpp20", " c++20 ", "cxx"])
def test_usual_names_of_the_language_are_known(sandbox: Sandbox, suite: Suite, lang: str) -> None:
    assert AppleJudge(sandbox, suite).language(lang) == "cpp"


@pytest.mark.parametrize("lang", ["python", "cpp17", "c", "rust"])
def test_other_languages_are_refused(sandbox: Sandbox, suite: Suite, lang: str) -> None:
    with pytest.raises(BadSubmission, match="unsupported lang"):
        AppleJudge(sandbox, suite).language(lang)


def test_a_broken_sandbox_is_never_a_verdict(
    sandbox: Sandbox, suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = AppleJudge._run_case, []

    def failing(self: AppleJudge, seed: int, program: Path) -> CaseReport:
        calls.append(seed)
        if seed == 1:
            raise SandboxFault("the control group vanished")
        return whole(self, seed, program)

    monkeypatch.setattr(AppleJudge, "_run_case", failing)
    with pytest.raises(SandboxFault, match="vanished"):
        judged(sandbox, suite, VALID)
    assert calls == [0, 1]


def test_a_stopped_judge_hands_its_submission_back(suite: Suite) -> None:
    try:
        opened = open_sandbox()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    with opened:
        judge = AppleJudge(opened, suite)
        judge.stop()
        with pytest.raises(SandboxStopped):
            judge.judge(Submission("0" * 32, FULL_PROBLEM, "cpp", VALID.encode()))


def test_the_longest_judgement_fits_the_patience_of_the_harness() -> None:
    compiling_s, running_s = judge_module.COMPILE_LIMITS.wall_s, REAL_RUN_LIMITS.wall_s
    assert compiling_s + 150 * running_s < 0.85 * TASKS["ahc058"].verifier_timeout_s
    assert REAL_RUN_LIMITS.cpu_s - judge_module.TIME_LIMIT_S <= 0.05
    assert REAL_RUN_LIMITS.memory_bytes == 1 << 30
