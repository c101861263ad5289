"""Turns a judge's final answer into a verdict, strictly: what is not exactly a number, a flag or an object is refused.

Pure functions.  Three outcomes: a `VerificationResult` about the candidate, an `Inconclusive` answer that is worth
asking for once more, or `ProtocolFault` for an answer that no judge should give (it stops the step).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.frontiercs import (
    CaseKind,
    FrontierFault,
    candidate_error,
    classify_case,
    derive_verdict,
    looks_like_frontiercs,
)
from harness.state import VerdictStatus, VerificationResult, require_number

MAX_MESSAGE_CHARS = 2_000
MAX_LOG_CHARS = 8_000
FINAL_STATUSES = frozenset({"done", "error", "environment_error"})

_NOISE_ATTEMPTS = 5
_DEFAULT_ATTEMPTS = 2


class ProtocolFault(Exception):
    """The judge's answer breaks the protocol, or reports the judge's own failure."""


@dataclass(frozen=True)
class Inconclusive:
    """An answer that says nothing yet: submit up to `attempts` times, then take `fallback` (None: the judge failed)."""

    reason: str
    attempts: int
    fallback: VerificationResult | None


def is_final(answer: Mapping[str, Any]) -> bool:
    """True when polling is over."""
    return answer.get("status") in FINAL_STATUSES or answer.get("failureDomain") == "infrastructure"


def read_verdict(answer: Mapping[str, Any]) -> VerificationResult | Inconclusive:
    """Read a final answer; raises `ProtocolFault`."""
    status = answer.get("status")
    if status == "environment_error" or answer.get("failureDomain") == "infrastructure":
        raise ProtocolFault(f"the judge failed: {_text(answer, 'message', 'error') or 'no reason given'}")
    try:
        if status == "error":
            return _rejection(answer)
        return _frontiercs(answer) if looks_like_frontiercs(answer) else _finished(answer)
    except FrontierFault as fault:
        raise ProtocolFault(str(fault)) from None


def _finished(answer: Mapping[str, Any]) -> VerificationResult | Inconclusive:
    artifacts = answer.get("artifacts", {})
    if not isinstance(artifacts, dict):
        raise ProtocolFault(f"artifacts is a {type(artifacts).__name__}, not an object")
    if "score" in answer and answer["score"] is None:
        # A candidate may be able to cause this, so it must not stop the run for good, nor pass for an honest zero.
        return Inconclusive("the score is null", _DEFAULT_ATTEMPTS, quarantined("the judge gave a null score", answer))
    score = _number(answer, "score")
    if score < 0:
        raise ProtocolFault(f"score is {score!r}, below zero")
    unbounded = _number(answer, "scoreUnbounded") if "scoreUnbounded" in answer else score
    # Without a flag there is only the score to go by, and a program that earned nothing is no parent.
    valid = _flag(answer, "valid", default=score > 0)
    partial = _flag(answer, "trainingRewardOnInvalid", default=False)
    return _verdict(
        valid,
        score if valid or partial else 0.0,
        unbounded,
        _text(answer, "message") or ("accepted" if valid else "rejected"),
        {**artifacts, "score_unbounded": unbounded, **_facts(answer)},
    )


def _rejection(answer: Mapping[str, Any]) -> VerificationResult | Inconclusive:
    message = _text(answer, "message", "error") or "rejected without a reason"
    given = answer.get("artifacts")
    artifacts = {**(given if isinstance(given, dict) else {}), **_facts(answer)}
    if logs := _text(answer, "logs", "stderr"):
        artifacts["judge_logs"] = _tail(logs, MAX_LOG_CHARS)
    if not {"message", "valid", "failureDomain"} & set(answer) and message.startswith("Error:"):
        try:
            return _verdict(False, 0.0, None, candidate_error(message), artifacts)
        except FrontierFault as fault:
            if not fault.retry:
                raise
            return Inconclusive(str(fault), _DEFAULT_ATTEMPTS, _verdict(False, 0.0, None, message, artifacts))
    return _verdict(False, 0.0, None, message, artifacts)


def _frontiercs(answer: Mapping[str, Any]) -> VerificationResult | Inconclusive:
    try:
        derived = derive_verdict(answer)
    except FrontierFault as fault:
        if not fault.retry:
            raise
        noisy = [case for case in answer["cases"] if classify_case(case) is CaseKind.NOISE]
        # A run that was lost before it began is never the candidate's doing; a checker that died on an output may be.
        blamed = all(isinstance(case.get("output"), str) for case in noisy)
        return Inconclusive(str(fault), _NOISE_ATTEMPTS, quarantined(str(fault), answer) if blamed else None)
    artifacts = {"cases": list(derived.cases), "judge_shape": "frontiercs", **_facts(answer)}
    if derived.valid:
        artifacts["score_unbounded"] = derived.score_unbounded
    raw = derived.score_unbounded if derived.valid else None
    return _verdict(derived.valid, derived.score, raw, derived.message, artifacts)


def quarantined(reason: str, answer: Mapping[str, Any]) -> VerificationResult:
    """The visible record of a candidate that no judge could score: never a parent, and marked in its artifacts."""
    return _verdict(False, 0.0, None, f"quarantined: {reason}", {**_facts(answer), "quarantined": True})


def _verdict(
    valid: bool, reward: float, raw: float | None, message: str, artifacts: dict[str, Any]
) -> VerificationResult:
    if len(message) > MAX_MESSAGE_CHARS:
        artifacts = {**artifacts, "message_sha256": hashlib.sha256(message.encode()).hexdigest()}
        message = _tail(message, MAX_MESSAGE_CHARS)
    status = VerdictStatus.VALID if valid else VerdictStatus.INVALID
    return VerificationResult(reward, raw, valid, status, message, artifacts)


def _facts(answer: Mapping[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {"judge_status": answer.get("status")}
    for key, name in (("queueSeconds", "queue_seconds"), ("runSeconds", "run_seconds")):
        value = answer.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            facts[name] = value
    return facts


def _number(answer: Mapping[str, Any], name: str) -> float:
    if name not in answer:
        raise ProtocolFault(f"{name} is missing")
    try:
        return require_number(answer[name], name)
    except ValueError as error:
        raise ProtocolFault(str(error)) from None


def _flag(answer: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = answer.get(name, default)
    if not isinstance(value, bool):
        raise ProtocolFault(f"{name} must be true or false, got {value!r:.80}")
    return value


def _text(answer: Mapping[str, Any], *names: str) -> str:
    values = (answer.get(name) for name in names)
    return next((value for value in values if isinstance(value, str) and value.strip()), "")


def _tail(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"[truncated {len(text) - limit} characters] {text[-limit:]}"
