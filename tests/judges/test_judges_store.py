"""Submissions and results survive the judge; one directory serves one judge."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from judges.errors import StoreError
from judges.protocol import Submission
from judges.store import MAX_ATTEMPTS, SubmissionStore

CODE = "int main() { /* größe \0 */ }".encode() + bytes(range(256))


def submission(number: int) -> Submission:
    return Submission(sid=f"{number:032x}", pid="0", lang="cpp", code=CODE)


def test_code_comes_back_byte_for_byte_after_a_restart(tmp_path: Path) -> None:
    store = SubmissionStore(tmp_path / "deep/state")
    store.add(submission(1))
    store.close()
    store = SubmissionStore(tmp_path / "deep/state")
    assert store.recover() == [submission(1).sid]
    assert store.start(submission(1).sid) == submission(1)
    store.close()


def test_unfinished_submissions_are_queued_again_in_order(tmp_path: Path) -> None:
    store = SubmissionStore(tmp_path)
    for number in (3, 1, 2):
        store.add(submission(number))
    store.start(submission(3).sid)
    store.start(submission(1).sid)
    store.finish(submission(1).sid, {"status": "done"})
    store.close()
    store = SubmissionStore(tmp_path)
    assert store.recover() == [submission(3).sid, submission(2).sid]
    record = store.read(submission(3).sid)
    assert record is not None
    assert (record.state, record.result) == ("queued", None)
    store.close()


def test_results_can_be_read_again_and_again(tmp_path: Path) -> None:
    store = SubmissionStore(tmp_path)
    store.add(submission(1))
    store.start(submission(1).sid)
    store.finish(submission(1).sid, {"status": "done", "score": 1.5})
    store.close()
    for _ in range(2):
        store = SubmissionStore(tmp_path)
        assert store.recover() == []
        record = store.read(submission(1).sid)
        assert record is not None
        assert (record.state, record.result) == ("final", {"status": "done", "score": 1.5})
        assert record.queue_s >= 0.0
        assert record.run_s >= 0.0
        store.close()


def test_a_submission_that_keeps_ending_the_judge_is_given_up_as_the_judges_fault(tmp_path: Path) -> None:
    for _ in range(MAX_ATTEMPTS):
        store = SubmissionStore(tmp_path)
        if store.read(submission(1).sid) is None:
            store.add(submission(1))
        assert store.recover() == [submission(1).sid]
        store.start(submission(1).sid)
        store.close()
    store = SubmissionStore(tmp_path)
    assert store.recover() == []
    record = store.read(submission(1).sid)
    assert record is not None
    assert record.result is not None
    assert (record.result["status"], record.result["failureDomain"]) == ("environment_error", "infrastructure")
    store.close()


def test_orderly_stops_do_not_count_as_attempts(tmp_path: Path) -> None:
    store = SubmissionStore(tmp_path)
    store.add(submission(1))
    for _ in range(MAX_ATTEMPTS + 2):
        assert store.recover() == [submission(1).sid]
        store.start(submission(1).sid)
        store.requeue(submission(1).sid)
    store.close()


def test_two_judges_cannot_share_a_directory(tmp_path: Path) -> None:
    first = SubmissionStore(tmp_path)
    with pytest.raises(StoreError, match="another judge uses the state directory"):
        SubmissionStore(tmp_path)
    first.close()
    SubmissionStore(tmp_path).close()


def test_an_unusable_directory_or_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="--state-dir"):
        SubmissionStore(tmp_path / "file")
    state = tmp_path / "state"
    state.mkdir()
    (state / "judge.sqlite3").write_bytes(b"this is not a database" * 100)
    with pytest.raises(StoreError, match="move it away"):
        SubmissionStore(state)
    (state / "judge.sqlite3").unlink()
    SubmissionStore(state).close()


def test_results_must_be_strict_json(tmp_path: Path) -> None:
    store = SubmissionStore(tmp_path)
    store.add(submission(1))
    with pytest.raises(ValueError, match="JSON"):
        store.finish(submission(1).sid, {"score": float("nan")})
    record = store.read(submission(1).sid)
    assert record is not None
    assert record.result is None
    store.close()


def test_unknown_ids_are_unknown(tmp_path: Path) -> None:
    store = SubmissionStore(tmp_path)
    assert store.read("0" * 32) is None
    store.close()
    with pytest.raises(sqlite3.Error):
        store.read("0" * 32)
