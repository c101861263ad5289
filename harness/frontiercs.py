"""Reads the verdicts of a real FrontierCS server, whose answers cannot be taken at their word.

Such a server has no `valid` flag, says "Wrong Answer" for every packing below the optimum, takes a crashed candidate's
standard error for the checker's text (so scores can be forged), sometimes loses a case to its own noise, and reports
its own faults with the status of a compile error.  Everything here is a pure function of one answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

MAX_SCORE = 100.0
_SCORE_TOLERANCE = 1e-6
_RATIO_TOLERANCE = 1e-9
_CHECKER_TEXT = re.compile(r"points [\d.]+ Ratio: (\d+(?:\.\d+)?)")
_CANDIDATE_ERROR = "Error: compile failed:"
_LOAD_ERROR = "Error: compile failed: Time Limit Exceeded"


class CaseKind(Enum):
    """What one case of a finished submission shows."""

    GENUINE = "genuine"
    """The checker wrote the ratio about an output that exists."""
    FAILED = "failed"
    """No points: a crash, a broken limit or a wrong output."""
    FORGED = "forged"
    """Points that the checker did not give."""
    NOISE = "noise"
    """Zeroed by the server itself; the case says nothing about the candidate."""


class FrontierFault(Exception):
    """The server, not the candidate, is at fault; `retry` when submitting once more may give a real verdict."""

    def __init__(self, reason: str, *, retry: bool) -> None:
        super().__init__(reason)
        self.retry = retry


@dataclass(frozen=True)
class FrontierVerdict:
    """What the cases say: validity, the score as the mean of genuine ratios (0..100), and one line about it."""

    valid: bool
    score: float
    score_unbounded: float
    message: str
    cases: tuple[dict[str, Any], ...]


def looks_like_frontiercs(result: Mapping[str, Any]) -> bool:
    """True for a finished answer in that server's shape, which has per-case ratios and no validity flag."""
    if "valid" in result:
        return False
    cases = result.get("cases")
    return isinstance(cases, list) and bool(cases) and all(_has_case_shape(case) for case in cases)


def classify_case(case: Mapping[str, Any]) -> CaseKind:
    """Tell a checker's ratio from a candidate's claim and from the server's own noise."""
    text, has_output = str(case.get("msg", "")), isinstance(case.get("output"), str)
    ratio = _number(case.get("scoreRatio"))
    if not text and (has_output or case.get("time") == 0):
        return CaseKind.NOISE
    if ratio is None or ratio < 0:
        return CaseKind.FORGED
    if ratio == 0:
        return CaseKind.FAILED
    match = _CHECKER_TEXT.match(text)
    honest = match is not None and abs(float(match.group(1)) - ratio) <= _RATIO_TOLERANCE
    return CaseKind.GENUINE if honest and has_output and ratio <= 1 else CaseKind.FORGED


def derive_verdict(result: Mapping[str, Any]) -> FrontierVerdict:
    """Judge a finished answer by its cases; raises `FrontierFault` when they say nothing about the candidate.

    Valid means that the checker gave points on every case: the server averages invalid cases in as zeros, while the
    problem's statement rejects a submission with one.
    """
    cases: list[dict[str, Any]] = result["cases"]
    kinds = [classify_case(case) for case in cases]
    summary = tuple(_compact(case, kind) for case, kind in zip(cases, kinds, strict=True))
    forged = [index for index, kind in enumerate(kinds, 1) if kind is CaseKind.FORGED]
    if forged:
        return FrontierVerdict(False, 0.0, 0.0, f"case {forged[0]}: points that the checker did not give", summary)
    noise = [index for index, kind in enumerate(kinds, 1) if kind is CaseKind.NOISE]
    if noise:
        raise FrontierFault(f"the server lost {len(noise)} of {len(cases)} cases (first: case {noise[0]})", retry=True)
    score = MAX_SCORE * math.fsum(float(case["scoreRatio"]) for case in cases) / len(cases)
    failed = [index for index, kind in enumerate(kinds, 1) if kind is CaseKind.FAILED]
    if failed:
        words = str(cases[failed[0] - 1].get("msg", "")).strip() or "no output in time"
        return FrontierVerdict(False, 0.0, 0.0, f"case {failed[0]} of {len(cases)} failed: {words}", summary)
    claimed = _number(result.get("score"))
    if claimed is None or abs(claimed - score) > _SCORE_TOLERANCE:
        raise FrontierFault(
            f"score {result.get('score')!r:.40} differs from the mean of its cases, {score!r}", retry=False
        )
    unbounded = MAX_SCORE * math.fsum(_unbounded(case) for case in cases) / len(cases)
    return FrontierVerdict(True, claimed, unbounded, f"accepted on {len(cases)} cases", summary)


def candidate_error(text: str) -> str:
    """The candidate's compile error in an `error` answer; raises `FrontierFault` for the server's own faults."""
    if text.startswith(_LOAD_ERROR):
        raise FrontierFault("compiling took too long, which the machine's load can cause", retry=True)
    if text.startswith(_CANDIDATE_ERROR):
        return text.removeprefix("Error: ")
    raise FrontierFault(f"the server failed: {text[:200]}", retry=False)


def _has_case_shape(case: object) -> bool:
    return isinstance(case, dict) and "scoreRatio" in case and isinstance(case.get("msg"), str)


def _compact(case: Mapping[str, Any], kind: CaseKind) -> dict[str, Any]:
    """What is worth keeping of a case (its output alone may be megabytes)."""
    return {
        "kind": kind.value,
        "ratio": _number(case.get("scoreRatio")),
        "time_ns": _number(case.get("time")),
        "memory_bytes": _number(case.get("memory")),
        "message": str(case.get("msg", ""))[:200],
    }


def _unbounded(case: Mapping[str, Any]) -> float:
    value = _number(case.get("scoreRatioUnbounded"))
    return float(case["scoreRatio"]) if value is None else value


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
