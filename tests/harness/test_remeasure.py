"""Timing tasks: a lucky measurement must not decide which program is submitted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from library_examples import entry

from harness.errors import JudgeUnavailable
from harness.remeasure import Remeasured, remeasure, steadiest
from harness.state import LibraryEntry, VerdictStatus, VerificationResult


def program(name: str, score: float) -> LibraryEntry:
    return entry(name, raw=score, solution=name)


def valid(score: float) -> VerificationResult:
    return VerificationResult(score, score, True, VerdictStatus.VALID, "accepted", {})


async def test_programs_are_measured_in_turn_and_the_best_mean_wins_over_the_luckiest_number() -> None:
    truth = {"lucky": [2.0, 2.2, 1.8], "steady": [3.0, 3.1, 2.9]}
    order: list[str] = []

    async def judge(code: str) -> VerificationResult:
        order.append(code)
        return valid(truth[code][order.count(code) - 1])

    results = await remeasure([program("lucky", 9.0), program("steady", 3.2)], judge)
    assert order == ["lucky", "steady"] * 3
    chosen = steadiest(results, "max")
    assert chosen is not None
    assert (chosen.entry_id, chosen.search_score, chosen.mean) == ("steady", 3.2, pytest.approx(3.0))


async def test_a_program_that_fails_once_is_not_submitted() -> None:
    async def judge(code: str) -> VerificationResult:
        judged.append(code)
        flaky = code == "flaky" and len(judged) == 1
        return VerificationResult.rejected(VerdictStatus.INVALID, "wrong") if flaky else valid(9.0)

    judged: list[str] = []
    results = await remeasure([program("flaky", 9.0), program("sound", 1.0)], judge, rounds=2)
    assert results[0].mean is None
    assert results[0].scores == (None, 9.0)
    assert steadiest(results, "max") == results[1]
    assert steadiest(results[:1], "max") is None


def test_the_lowest_mean_wins_where_lower_is_better() -> None:
    slow, fast = Remeasured("slow", 10.0, (12.0, 14.0)), Remeasured("fast", 11.0, (12.0, 12.0))
    assert steadiest([slow, fast], "min") == fast
    assert steadiest([fast, replace(fast, entry_id="later")], "min") == fast
    assert fast.as_dict() == {"entry_id": "fast", "search_score": 11.0, "scores": [12.0, 12.0], "mean": 12.0}


async def test_a_judge_that_cannot_say_stops_the_submission() -> None:
    async def judge(code: str) -> VerificationResult:
        raise JudgeUnavailable("gone")

    with pytest.raises(JudgeUnavailable):
        await remeasure([program("any", 1.0)], judge)
