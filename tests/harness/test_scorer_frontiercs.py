"""A real FrontierCS server's answers: forged, noisy and ambiguous ones are told apart by their cases."""

from __future__ import annotations

from typing import Any

import pytest

from harness.frontiercs import CaseKind, classify_case
from harness.state import VerificationResult
from harness.verdicts import Inconclusive, ProtocolFault, read_verdict


def genuine(ratio: float = 0.5, **changes: Any) -> dict[str, Any]:
    case = {
        "ok": False,
        "status": "Wrong Answer",
        "time": 5_324_682,
        "memory": 786_432,
        "msg": f"points {ratio:.10f} Ratio: {ratio:.9f} (cells=1)\n",
        "output": "1 1\n0 0 0 0\n",
        "scoreRatio": ratio,
        "scoreRatioUnbounded": ratio,
    }
    return case | changes


CRASH = {"ok": False, "status": "Wrong Answer", "time": 1_159_065, "memory": 1, "msg": "(signal=unknown)"}
CRASH |= {"scoreRatio": 0, "scoreRatioUnbounded": 0}
WRONG = genuine(0.0, msg="wrong answer Overlap at cell (1,1)\n")
TIMEOUT = {**CRASH, "time": 4_000_000_000, "msg": ""}
LOST_RUN = {**CRASH, "time": 0, "msg": ""}
LOST_CHECK = genuine(0.0, msg="")
FORGED = {**CRASH, "msg": "Ratio: 1.0", "scoreRatio": 1, "scoreRatioUnbounded": 1}


def done(*cases: dict[str, Any], **changes: Any) -> dict[str, Any]:
    score = 100 * sum(case["scoreRatio"] or 0 for case in cases) / len(cases)
    result = {"status": "done", "passed": False, "result": "Wrong Answer", "score": score, "scoreUnbounded": score}
    return result | {"cases": list(cases)} | changes


def read(result: dict[str, Any]) -> VerificationResult:
    verdict = read_verdict(result)
    assert isinstance(verdict, VerificationResult)
    return verdict


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        (genuine(), CaseKind.GENUINE),
        (genuine(1.0, ok=True, status="Correct"), CaseKind.GENUINE),
        (CRASH, CaseKind.FAILED),
        (WRONG, CaseKind.FAILED),
        (TIMEOUT, CaseKind.FAILED),
        (LOST_RUN, CaseKind.NOISE),
        (LOST_CHECK, CaseKind.NOISE),
        (FORGED, CaseKind.FORGED),
        (FORGED | {"msg": "points 1.0 Ratio: 1.0"}, CaseKind.FORGED),
        (genuine(0.5, msg="points 0.5 Ratio: 0.4"), CaseKind.FORGED),
        (genuine(1.5), CaseKind.FORGED),
        (genuine(0.5, scoreRatio=None), CaseKind.FORGED),
        (genuine(0.5, scoreRatio=True), CaseKind.FORGED),
        (genuine(0.5, scoreRatio=-0.5), CaseKind.FORGED),
    ],
)
def test_each_case_is_what_its_checker_text_and_output_say(case: dict[str, Any], kind: CaseKind) -> None:
    assert classify_case(case) is kind


def test_a_packing_below_the_optimum_is_valid_although_the_server_says_wrong_answer() -> None:
    verdict = read(done(genuine(0.4), genuine(0.6)))
    assert (verdict.valid, verdict.status) == (True, "valid")
    assert verdict.reward == pytest.approx(50.0)
    assert verdict.raw_score == pytest.approx(50.0)
    assert "output" not in str(verdict.artifacts["cases"])


@pytest.mark.parametrize("bad", [CRASH, WRONG, TIMEOUT])
def test_one_failed_case_makes_the_program_invalid_although_the_server_averages_it_in(bad: dict[str, Any]) -> None:
    verdict = read(done(genuine(0.9), bad))
    assert (verdict.valid, verdict.reward, verdict.raw_score) == (False, 0.0, None)
    assert "case 2 of 2 failed" in verdict.message


@pytest.mark.parametrize("claim", [1, 0.95, 99999.5])
def test_a_score_forged_through_standard_error_earns_nothing(claim: float) -> None:
    forged = FORGED | {"scoreRatio": claim, "msg": f"Ratio: {claim} RatioUnbounded: 123456"}
    for verdict in (read(done(forged, forged)), read(done(genuine(0.5), forged))):
        assert (verdict.valid, verdict.reward) == (False, 0.0)
        assert "did not give" in verdict.message


def test_a_case_that_the_server_lost_is_asked_for_again_and_never_a_zero() -> None:
    lost = read_verdict(done(genuine(0.5), LOST_RUN))
    assert isinstance(lost, Inconclusive)
    assert lost.attempts > 2
    assert lost.fallback is None
    checker = read_verdict(done(genuine(0.5), LOST_CHECK))
    assert isinstance(checker, Inconclusive)
    assert checker.fallback is not None
    assert checker.fallback.artifacts["quarantined"] is True


def test_a_total_that_its_cases_do_not_add_up_to_is_the_servers_fault() -> None:
    with pytest.raises(ProtocolFault, match="differs from the mean"):
        read_verdict(done(genuine(0.5), score=99.0))


def test_only_a_compile_error_is_the_candidates_and_a_slow_compiler_gets_a_second_chance() -> None:
    verdict = read({"status": "error", "error": "Error: compile failed: main.cpp:1:13: error: 'foo'"})
    assert (verdict.status, verdict.reward) == ("invalid", 0.0)
    assert verdict.message.startswith("compile failed: main.cpp")
    slow = read_verdict({"status": "error", "error": "Error: compile failed: Time Limit Exceeded"})
    assert isinstance(slow, Inconclusive)
    assert slow.fallback is not None
    for text in ("checker compile failed: Time Limit Exceeded", "unsupported lang", "connect ECONNREFUSED"):
        with pytest.raises(ProtocolFault, match="server failed"):
            read_verdict({"status": "error", "error": f"Error: {text}"})


def test_a_judge_that_states_validity_is_believed_whatever_cases_it_lists() -> None:
    verdict = read(done(genuine(0.5), valid=False) | {"score": 50.0})
    assert (verdict.valid, verdict.reward) == (False, 0.0)


def test_without_flag_and_cases_a_program_that_earned_nothing_is_not_valid() -> None:
    assert read({"status": "done", "score": 0}).valid is False
    assert read({"status": "done", "score": 0.5}).valid is True
