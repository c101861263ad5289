"""What the journal of one step says happened: which attempt is current and how far each rollout has come.

A pure replay of records, used to resume a killed step: no call that was paid for is made again, the same parents are
used and a grid never mixes two attempts.  Contradictions are refused: guessing here would train on a wrong grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from harness.errors import StateCorrupt
from harness.state import VerdictStatus, require_integer, require_name, require_text

ATTEMPT = "attempt"
GUIDANCE = "guidance"
EXECUTION = "execution"
VERDICT = "verdict"
REPORTED = "reported"
VOID = "void"
COMMITTED = "committed"
_STAGES = (GUIDANCE, EXECUTION, VERDICT, REPORTED)

Record = Mapping[str, Any]


@dataclass(frozen=True)
class LoggedAttempt:
    """One try at a step under one policy release.

    `parents` holds one `{"group", "group_uid", "node_id"}` per group, `record` the whole opening line.
    """

    number: int
    step: int
    release_id: str | None
    load_id: str | None
    parents: tuple[Record, ...]
    record: Record
    void_reason: str | None = None
    summary: Record | None = None

    @property
    def committed(self) -> bool:
        """Whether the training step of this attempt was committed."""
        return self.summary is not None


@dataclass(frozen=True)
class RolloutProgress:
    """How far one rollout has come: the record of each stage that is on the disk."""

    guidance: Record | None = None
    execution: Record | None = None
    verdict: Record | None = None
    reported: bool = False

    @property
    def guidance_malformed(self) -> bool:
        """Whether the verdict says that no executor call was due."""
        return self.verdict is not None and _is_format_error(self.verdict)


@dataclass(frozen=True)
class StepLog:
    """The replayed journal of one step; make it with `replay`."""

    attempts: tuple[LoggedAttempt, ...] = ()
    _stages: Mapping[tuple[int, int, int], Mapping[str, Record]] = field(default_factory=dict)

    @classmethod
    def replay(cls, records: Iterable[Record]) -> Self:
        """Replay records in order; StateCorrupt names the record (counted from 1) that contradicts the earlier ones."""
        builder = _Builder()
        for number, record in enumerate(records, start=1):
            try:
                builder.add(record)
            except (ValueError, KeyError, TypeError) as error:
                reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
                raise StateCorrupt(f"record {number} of the step's journal ({record.get('kind')}): {reason}") from error
        return cls(tuple(builder.attempts), builder.stages)

    def current(self) -> LoggedAttempt | None:
        """Return the last attempt unless it is void (or there is none)."""
        last = self.attempts[-1] if self.attempts else None
        return None if last is None or last.void_reason is not None else last

    def next_attempt(self) -> int:
        """Return the number for the next new attempt, from 1."""
        return self.attempts[-1].number + 1 if self.attempts else 1

    def committed_summary(self) -> Record | None:
        """Return the summary of the committed attempt, or None while the step is not committed."""
        current = self.current()
        return None if current is None else current.summary

    def progress(self, group: int, rollout: int) -> RolloutProgress:
        """Return how far a rollout of the current attempt has come; nothing at all without a current attempt."""
        current = self.current()
        if current is None:
            return RolloutProgress()
        stages = self._stages.get((current.number, group, rollout), {})
        return RolloutProgress(
            guidance=stages.get(GUIDANCE),
            execution=stages.get(EXECUTION),
            verdict=stages.get(VERDICT),
            reported=REPORTED in stages,
        )

    def reported_count(self) -> int:
        """Return how many rollouts of the current attempt were reported to the training service."""
        current = self.current()
        if current is None:
            return 0
        return sum(key[0] == current.number and REPORTED in stages for key, stages in self._stages.items())


class _Builder:
    """The state of a replay."""

    def __init__(self) -> None:
        self.attempts: list[LoggedAttempt] = []
        self.stages: dict[tuple[int, int, int], dict[str, Record]] = {}

    def add(self, record: Record) -> None:
        """Take in one record; ValueError says what it contradicts, unknown kinds are none of our business."""
        kind = record.get("kind")
        if kind == ATTEMPT:
            self._open(record)
        elif kind == VOID:
            self._close(record, void_reason=require_text(record["reason"], "reason"))
        elif kind == COMMITTED:
            summary = record["summary"]
            if not isinstance(summary, Mapping):
                raise ValueError(f"summary must be an object, got {type(summary).__name__}")
            self._close(record, summary=summary)
        elif kind in _STAGES:
            self._advance(str(kind), record)

    def _open(self, record: Record) -> None:
        attempt = _read_attempt(record)
        for known in self.attempts:
            if known.number == attempt.number:
                if known.record != record:
                    raise ValueError(f"attempt {attempt.number} was already opened with other content")
                return
        if self.attempts:
            last = self.attempts[-1]
            if last.void_reason is None:
                raise ValueError(f"attempt {attempt.number} begins although attempt {last.number} was not voided")
            if attempt.number < last.number or attempt.step != last.step:
                old, new = (f"attempt {item.number} of step {item.step}" for item in (last, attempt))
                raise ValueError(f"{new} follows {old}")
        self.attempts.append(attempt)

    def _index(self, record: Record) -> int:
        number = require_integer(record["attempt"], "attempt")
        for index, known in enumerate(self.attempts):
            if known.number == number:
                return index
        raise ValueError(f"attempt {number} was never opened")

    def _close(self, record: Record, *, void_reason: str | None = None, summary: Record | None = None) -> None:
        index = self._index(record)
        known = self.attempts[index]
        fresh = known.void_reason is None and known.summary is None
        # A crash right after this line makes the next run commit again, with other timings in its summary.
        if fresh or (known.committed and summary is not None):
            self.attempts[index] = replace(known, void_reason=void_reason, summary=summary)
        elif (known.void_reason, known.summary) != (void_reason, summary):
            raise ValueError(f"attempt {known.number} was already closed in another way")

    def _advance(self, kind: str, record: Record) -> None:
        attempt = self.attempts[self._index(record)]
        group = require_integer(record["group"], "group")
        rollout = require_integer(record["rollout"], "rollout")
        if group not in {parent["group"] for parent in attempt.parents}:
            raise ValueError(f"attempt {attempt.number} has no group {group}")
        where = f"attempt {attempt.number}, group {group}, rollout {rollout}"
        stages = self.stages.setdefault((attempt.number, group, rollout), {})
        if kind in stages:
            if stages[kind] != record:
                raise ValueError(f"{where}: a second {kind} with other content")
            return
        if attempt.committed:
            raise ValueError(f"{where}: {kind} after the attempt was committed")
        if missing := _missing_predecessor(kind, record, stages):
            raise ValueError(f"{where}: {kind} {missing}")
        stages[kind] = record


def _missing_predecessor(kind: str, record: Record, stages: Mapping[str, Record]) -> str | None:
    """Return what is wrong with this stage coming now, or None."""
    if kind == EXECUTION:
        if VERDICT in stages:
            return "after the verdict"
        return None if GUIDANCE in stages else "without guidance"
    if kind == VERDICT:
        if GUIDANCE not in stages:
            return "without guidance"
        if _is_format_error(record):
            return "calls the guidance malformed although the executor answered it" if EXECUTION in stages else None
        return None if EXECUTION in stages else "without execution"
    if kind == REPORTED:
        return None if VERDICT in stages else "without a verdict"
    return None


def _is_format_error(record: Record) -> bool:
    verification = record.get("verification")
    if not isinstance(verification, Mapping):
        raise ValueError("its verification must be an object")
    return verification.get("status") == VerdictStatus.GUIDANCE_FORMAT_ERROR


def _read_attempt(record: Record) -> LoggedAttempt:
    parents = record["parents"]
    if not isinstance(parents, list) or not parents:
        raise ValueError("parents must be a list with one item for each group")
    choices = tuple(
        {
            "group": require_integer(item["group"], "parents.group"),
            "group_uid": require_name(item["group_uid"], "parents.group_uid"),
            "node_id": require_name(item["node_id"], "parents.node_id"),
        }
        for item in parents
    )
    if len({choice["group"] for choice in choices}) != len(choices):
        raise ValueError("parents names a group twice")
    identity = {}
    for name in ("release_id", "load_id"):
        value = record.get(name)
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{name} must be a string or null, got {value!r:.80}")
        identity[name] = value
    return LoggedAttempt(
        number=require_integer(record["attempt"], "attempt"),
        step=require_integer(record["step"], "step"),
        release_id=identity["release_id"],
        load_id=identity["load_id"],
        parents=choices,
        record=record,
    )
