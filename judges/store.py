"""Submissions and results on disk, so that a restart loses neither.

One SQLite file holds every submission.  What was queued or running when a judge died is queued again at the next start;
a result can be read any number of times.  The code is dropped once its result is stored.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from judges.errors import StoreError
from judges.protocol import Submission, fault_result

MAX_ATTEMPTS = 3
_DATABASE = "judge.sqlite3"
_LOCK = "judge.lock"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS submissions (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    sid TEXT NOT NULL UNIQUE,
    pid TEXT NOT NULL,
    lang TEXT NOT NULL,
    code BLOB,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    submitted_at REAL NOT NULL,
    started_at REAL,
    finished_at REAL,
    result TEXT
);
CREATE INDEX IF NOT EXISTS submissions_by_state ON submissions (state);
"""


@dataclass(frozen=True)
class Record:
    """What is known about one submission."""

    state: str
    """queued, running or final."""
    queue_s: float
    run_s: float
    result: dict[str, Any] | None


class SubmissionStore:
    """The durable queue and its results; safe to use from several threads, held by one process at a time."""

    def __init__(self, state_dir: Path) -> None:
        """Open or create the store; raises `StoreError` when the directory is unusable or another judge holds it."""
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
            self._lock_file = os.open(state_dir / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(
                f"cannot use the state directory {state_dir}: {error.strerror}; name another with --state-dir"
            ) from error
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock_file)
            raise StoreError(
                f"another judge uses the state directory {state_dir}; stop it or name another with --state-dir"
            ) from error
        self._mutex = threading.Lock()
        path = state_dir / _DATABASE
        try:
            self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10.0)
            self._database.execute("PRAGMA journal_mode = WAL")
            # A result that was served must still be there after a power cut.
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.executescript(_SCHEMA)
        except sqlite3.Error as error:
            os.close(self._lock_file)
            raise StoreError(f"cannot open {path}: {error}; move it away to start with an empty store") from error

    def close(self) -> None:
        """Let go of the file and of the directory."""
        with self._mutex:
            self._database.close()
            os.close(self._lock_file)

    def recover(self) -> list[str]:
        """Queue again what a dead judge left unfinished; returns the ids in the order of submission.

        A submission that was running at `MAX_ATTEMPTS` deaths of the judge is given up as the judge's fault, because it
        may be what kills it.
        """
        with self._mutex:
            rows = self._database.execute(
                "SELECT sid FROM submissions WHERE state = 'running' AND attempts >= ?", (MAX_ATTEMPTS,)
            ).fetchall()
            for (sid,) in rows:
                self._finish(sid, fault_result(f"the judge ended {MAX_ATTEMPTS} times while it ran this submission"))
            self._database.execute("UPDATE submissions SET state = 'queued', started_at = NULL WHERE state = 'running'")
            waiting = self._database.execute("SELECT sid FROM submissions WHERE state = 'queued' ORDER BY number")
            return [str(sid) for (sid,) in waiting.fetchall()]

    def add(self, submission: Submission) -> None:
        """Store a new submission as queued; on disk when this returns."""
        with self._mutex:
            self._database.execute(
                "INSERT INTO submissions (sid, pid, lang, code, state, submitted_at) VALUES (?, ?, ?, ?, 'queued', ?)",
                (submission.sid, submission.pid, submission.lang, submission.code, time.time()),
            )

    def start(self, sid: str) -> Submission:
        """Mark a submission as running and return it."""
        with self._mutex:
            self._database.execute(
                "UPDATE submissions SET state = 'running', attempts = attempts + 1, started_at = ? WHERE sid = ?",
                (time.time(), sid),
            )
            row = self._database.execute("SELECT pid, lang, code FROM submissions WHERE sid = ?", (sid,)).fetchone()
        return Submission(sid=sid, pid=row[0], lang=row[1], code=bytes(row[2]))

    def requeue(self, sid: str) -> None:
        """Take a running submission back into the queue after an orderly stop, which does not count as an attempt."""
        with self._mutex:
            self._database.execute(
                "UPDATE submissions SET state = 'queued', started_at = NULL, attempts = attempts - 1 WHERE sid = ?",
                (sid,),
            )

    def finish(self, sid: str, result: dict[str, Any]) -> None:
        """Store the final result."""
        with self._mutex:
            self._finish(sid, result)

    def _finish(self, sid: str, result: dict[str, Any]) -> None:
        self._database.execute(
            "UPDATE submissions SET state = 'final', finished_at = ?, result = ?, code = NULL WHERE sid = ?",
            (time.time(), json.dumps(result, allow_nan=False), sid),
        )

    def read(self, sid: str) -> Record | None:
        """The state of a submission, or None for an id that was never given out."""
        with self._mutex:
            row = self._database.execute(
                "SELECT state, submitted_at, started_at, finished_at, result FROM submissions WHERE sid = ?", (sid,)
            ).fetchone()
        if row is None:
            return None
        state, submitted, started, finished, text = row
        now = time.time()
        # The clock may have been set back between two of these moments, so differences are kept at zero or above.
        queue_s = max(0.0, (started if started is not None else finished if finished is not None else now) - submitted)
        run_s = 0.0 if started is None else max(0.0, (finished if finished is not None else now) - started)
        return Record(str(state), queue_s, run_s, None if text is None else json.loads(text))
