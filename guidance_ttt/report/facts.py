"""Everything that a report shows, read once from a state directory: live, stopped or finished, without any service.

The committed archive is the source for candidates and scores, the summaries of the committed steps for training and
time.  Both are replaced atomically by a run, so a live one is seen at one of its commits.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from guidance_ttt.archive_view import ArchiveView, Place, place_of
from guidance_ttt.run_health import state_redactor
from guidance_ttt.status import RunStatus, read_status
from guidance_ttt.terminal import one_line, visible
from guidance_ttt.wings import PROJECT_ROOT
from harness.contract import TaskContract, load_task
from harness.errors import StateError, TaskInvalid
from harness.run_state import IDENTITY_FILE, RESUME_FILE, SUBMISSION_FILE
from harness.state import LibraryEntry
from harness.storage import read_json_object

RESULT_FILE = "result.json"
LABEL_CHARS = 60


@dataclass(frozen=True)
class Candidate:
    """One evaluated candidate; `number` counts from 1 in the order of updates, groups and rollouts."""

    number: int
    place: Place
    entry: LibraryEntry

    @property
    def score(self) -> float | None:
        """The raw score, of a candidate that the judge accepted."""
        return self.entry.verifier_raw_score if self.entry.archivable else None


@dataclass(frozen=True)
class History:
    """What the event log tells beyond the summaries: when, how often a service was asked again, what ended a run.

    Times are ISO 8601 (UTC).  `retries` counts by update (from 1) and service.
    """

    first: str | None = None
    last: str | None = None
    retries: Mapping[int, Counter[str]] = field(default_factory=dict)
    failures: Sequence[str] = ()


@dataclass(frozen=True)
class RunFacts:
    """One state directory as the report sees it.  `clean` takes secrets and active characters out of any text."""

    state_dir: Path
    view: ArchiveView
    status: RunStatus
    identity: Mapping[str, Any]
    backend: Mapping[str, Any]
    summaries: Sequence[Mapping[str, Any]]
    candidates: Sequence[Candidate]
    seed: LibraryEntry
    best: LibraryEntry
    contract: TaskContract | None
    result: Mapping[str, Any]
    submission: Mapping[str, Any]
    history: History
    clean: Callable[[str], str]

    @property
    def run_dir(self) -> Path:
        """Where the harness keeps its own state."""
        return self.state_dir / "guidance-run"

    @property
    def task(self) -> str:
        """The task's name, as the directory is bound to it."""
        return self.status.task or "unknown task"

    @property
    def problem(self) -> str | None:
        """The judge's problem that the search scored on."""
        named = self.identity.get("search_problem")
        return named if isinstance(named, str) else None

    @property
    def score_label(self) -> str:
        """What a raw score is called."""
        label = self.result.get("score_label") if self.contract is None else self.contract.raw_score_label
        return one_line(label, LABEL_CHARS) if isinstance(label, str) and label.strip() else "score"

    @property
    def lower_is_better(self) -> bool:
        """Whether scores fall as programs get better."""
        return self.view.lower_is_better

    def better(self, score: float, than: float) -> bool:
        """Whether one score beats another."""
        return score < than if self.lower_is_better else score > than


def read_facts(state_dir: Path, environ: Mapping[str, str]) -> RunFacts:
    """Read a state directory; raises `StateError` when it holds no run or no archive yet, `StateCorrupt` for damage."""
    status = read_status(state_dir)
    view = ArchiveView.load(state_dir)
    run_dir = state_dir / "guidance-run"
    identity, resume, result, submission = (
        _object_if_there(run_dir / name) for name in (IDENTITY_FILE, RESUME_FILE, RESULT_FILE, SUBMISSION_FILE)
    )
    summaries = [item for item in resume.get("step_summaries") or [] if isinstance(item, dict)]
    backend = resume.get("executor_backend")
    redact = state_redactor(state_dir, environ)
    return RunFacts(
        state_dir=state_dir,
        view=view,
        status=status,
        identity=identity,
        backend=backend if isinstance(backend, dict) else {},
        summaries=summaries,
        candidates=tuple(_candidates(view)),
        seed=view.find("seed"),
        best=view.best,
        contract=_contract(status.task),
        result=result,
        submission=submission,
        history=read_history(run_dir / "events.jsonl"),
        clean=lambda text: visible(redact(text)),
    )


def _candidates(view: ArchiveView) -> Iterator[Candidate]:
    entries = [view.entry(entry_id) for entry_id in view.entry_ids]
    placed = [(place_of(entry), entry) for entry in entries if entry.timestep > 0]
    placed.sort(key=lambda item: (item[0].step, item[0].group or 0, item[0].rollout or 0, item[1].id))
    for number, (place, entry) in enumerate(placed, start=1):
        yield Candidate(number, place, entry)


def _object_if_there(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}


def _contract(task: str | None) -> TaskContract | None:
    """The task's contract, where this installation has the task."""
    if task is None or not task.isidentifier():
        return None
    try:
        return load_task(PROJECT_ROOT / "harbor" / task)
    except (TaskInvalid, StateError):
        return None


def read_history(path: Path) -> History:
    """Read the event log; lines that are no event are left out, and so is a log that is not there."""
    times: list[str] = []
    retries: dict[int, Counter[str]] = {}
    failures: list[str] = []
    step = 1
    for event in _events(path):
        kind = event.get("event")
        if isinstance(event.get("time"), str):
            times.append(event["time"])
        if kind == "guidance_step_started" and isinstance(event.get("step"), int):
            step = event["step"] + 1
        elif kind == "retry":
            retries.setdefault(step, Counter())[str(event.get("service"))] += 1
        elif kind == "run_failed":
            failures.append(f"{event.get('time')}: {event.get('message')}")
    return History(min(times, default=None), max(times, default=None), retries, failures)


def _events(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    with path.open("rb") as stream:
        for line in stream:
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                yield value


def number_in(values: Mapping[str, Any], key: str) -> float | None:
    """A finite number under a key; None for anything else, because an old state may lack it."""
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value
