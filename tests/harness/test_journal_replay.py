"""Replaying a step's journal: what is current, how far each rollout came, and which contradictions are refused."""

from __future__ import annotations

from typing import Any

import pytest

from harness.errors import StateCorrupt
from harness.rollout_log import RolloutProgress, StepLog


def attempt(number: int = 1, **changes: Any) -> dict[str, Any]:
    record: dict[str, Any] = {
        "v": 1,
        "kind": "attempt",
        "attempt": number,
        "step": 3,
        "release_id": None,
        "load_id": "r0:4",
        "parents": [{"group": group, "group_uid": f"4:{group}", "node_id": f"n{group}"} for group in range(2)],
    }
    return {**record, **changes}


def stage(kind: str, number: int = 1, group: int = 0, rollout: int = 0, **fields: Any) -> dict[str, Any]:
    return {"v": 1, "kind": kind, "attempt": number, "group": group, "rollout": rollout, **fields}


def verdict(status: str = "valid", **fields: Any) -> dict[str, Any]:
    return stage("verdict", verification={"status": status, "reward": 1.0}, **fields)


OPEN = attempt()
GUIDED = stage("guidance", text="t", receipt="r")
EXECUTED = stage("execution", text="code")
JUDGED = verdict()
REPORTED = stage("reported", reward=1.0)
VOID = {"v": 1, "kind": "void", "attempt": 1, "reason": "other weights"}
COMMITTED = {"v": 1, "kind": "committed", "attempt": 1, "summary": {"step": 3}}


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([GUIDED], "record 1 .*never opened"),
        ([VOID], "never opened"),
        ([OPEN, EXECUTED], r"record 2 .*\(execution\): attempt 1, group 0, rollout 0: execution without guidance"),
        ([OPEN, JUDGED], "verdict without guidance"),
        ([OPEN, verdict("guidance_format_error")], "without guidance"),
        ([OPEN, GUIDED, JUDGED], "verdict without execution"),
        ([OPEN, GUIDED, EXECUTED, verdict("guidance_format_error")], "although the executor answered"),
        ([OPEN, GUIDED, verdict("guidance_format_error"), EXECUTED], "execution after the verdict"),
        ([OPEN, GUIDED, EXECUTED, REPORTED], "reported without a verdict"),
        ([OPEN, GUIDED, stage("guidance", text="other", receipt="r")], "second guidance with other content"),
        ([OPEN, GUIDED, EXECUTED, JUDGED, verdict("invalid")], "second verdict"),
        ([OPEN, GUIDED, EXECUTED, JUDGED, REPORTED, stage("reported", reward=2.0)], "second reported"),
        ([OPEN, stage("guidance", group=2)], "no group 2"),
        ([OPEN, stage("guidance", rollout=True)], "rollout must be an integer"),
        ([OPEN, stage("guidance", rollout=-1)], "rollout must be at least 0"),
        ([OPEN, {"kind": "guidance", "attempt": 1, "group": 0}], "'rollout' is missing"),
        ([OPEN, GUIDED, EXECUTED, stage("verdict")], "verification must be an object"),
        ([OPEN, attempt(2)], "attempt 2 begins although attempt 1 was not voided"),
        ([OPEN, attempt(load_id="r0:5")], "already opened with other content"),
        ([attempt(2), {**VOID, "attempt": 2}, attempt(1)], "attempt 1 of step 3 follows attempt 2"),
        ([OPEN, VOID, attempt(2, step=4)], "attempt 2 of step 4 follows"),
        ([OPEN, VOID, {**VOID, "reason": "else"}], "already closed"),
        ([OPEN, COMMITTED, VOID], "already closed"),
        ([OPEN, VOID, COMMITTED], "already closed"),
        ([OPEN, COMMITTED, GUIDED], "guidance after the attempt was committed"),
        ([OPEN, {**COMMITTED, "summary": None}], "summary must be an object"),
        ([attempt(parents=[])], "parents must be a list"),
        ([attempt(parents=[OPEN["parents"][0]] * 2)], "names a group twice"),
        ([attempt(parents=[{"group": 0, "group_uid": "4:0"}])], "'node_id' is missing"),
        ([attempt(parents=["x"])], "record 1"),
        ([attempt(load_id=7)], "load_id must be a string"),
    ],
)
def test_contradictory_records_are_refused_with_their_number(records: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(StateCorrupt, match=reason):
        StepLog.replay(records)


def test_an_empty_journal_has_no_attempt() -> None:
    log = StepLog.replay([])
    assert log.current() is None
    assert log.next_attempt() == 1
    assert log.progress(0, 0) == RolloutProgress()
    assert log.committed_summary() is None
    assert log.reported_count() == 0


def test_each_rollout_resumes_at_its_own_stage() -> None:
    malformed = [stage("guidance", group=1, text="?"), verdict("guidance_format_error", group=1)]
    half = [stage("guidance", rollout=1, text="t"), stage("execution", rollout=1, text="c")]
    log = StepLog.replay([OPEN, GUIDED, *half, *malformed, EXECUTED, JUDGED, REPORTED])
    current = log.current()
    assert current is not None
    assert (current.number, current.step, current.load_id, current.committed) == (1, 3, "r0:4", False)
    assert list(current.parents) == OPEN["parents"]
    assert log.progress(0, 0) == RolloutProgress(GUIDED, EXECUTED, JUDGED, True)
    assert log.progress(0, 1) == RolloutProgress(half[0], half[1])
    assert log.progress(1, 0) == RolloutProgress(malformed[0], None, malformed[1])
    assert log.progress(1, 0).guidance_malformed
    assert not log.progress(0, 0).guidance_malformed
    assert log.progress(1, 1) == RolloutProgress()
    assert log.reported_count() == 1


def test_a_record_written_twice_alike_counts_once() -> None:
    log = StepLog.replay([OPEN, OPEN, GUIDED, dict(GUIDED), EXECUTED, EXECUTED, JUDGED, JUDGED, REPORTED, REPORTED])
    assert log.progress(0, 0).reported
    assert len(log.attempts) == 1
    assert StepLog.replay([OPEN, VOID, VOID]).current() is None


def test_a_void_attempt_leaves_nothing_behind_for_the_next() -> None:
    records = [OPEN, GUIDED, VOID, stage("execution", text="late"), attempt(2)]
    assert StepLog.replay(records[:4]).current() is None
    log = StepLog.replay(records)
    current = log.current()
    assert current is not None
    assert current.number == 2
    assert log.progress(0, 0) == RolloutProgress()
    assert log.attempts[0].void_reason == "other weights"
    assert log.next_attempt() == 3


def test_unknown_kinds_are_ignored() -> None:
    log = StepLog.replay([{"kind": "note", "text": "hello"}, OPEN, {"kind": "metric", "attempt": 99}])
    assert log.current() is not None


def test_a_committed_step_gives_its_summary_back() -> None:
    log = StepLog.replay([OPEN, GUIDED, EXECUTED, JUDGED, REPORTED, COMMITTED, REPORTED])
    assert log.committed_summary() == {"step": 3}


def test_a_step_committed_again_after_a_crash_keeps_the_later_summary() -> None:
    log = StepLog.replay([OPEN, COMMITTED, {**COMMITTED, "summary": {"step": 3, "elapsed_s": 2.0}}])
    assert log.committed_summary() == {"step": 3, "elapsed_s": 2.0}
