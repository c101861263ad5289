"""The run as an ATIF document (Agent Trajectory Interchange Format 1.7), which `harbor view` shows.

One agent step per rollout: the guidance is the message, the receipt and the scores stand in `extra`.  The last step is
the submission, which calls no model.  Token ids are left out on purpose: thousands of rollouts would make the file
unreadable.
Plain dictionaries only, so this module needs neither Harbor nor a task.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

ATIF_VERSION = "ATIF-v1.7"

_TOOL = {
    "type": "function",
    "function": {
        "name": "write_submission",
        "description": "Write the best program to the path that the task's grader reads.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "entry_id": {"type": "string"}, "sha256": {"type": "string"}},
            "required": ["path"],
        },
    },
}


@dataclass(frozen=True)
class RolloutRecord:
    """One guidance call and what came of it.

    `guidance` is None where the policy's answer held none; `score` and `reward` are None where there is no verdict.
    `timestamp` is ISO 8601.  Token counts are those of the policy's call.
    """

    step: int
    group: int
    rollout: int
    receipt: str
    guidance: str | None
    parent_id: str
    status: str
    score: float | None
    reward: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    timestamp: str

    def __post_init__(self) -> None:
        """Refuse what would only fail when somebody opens the file."""
        _require_time(self.timestamp)
        _require_finite("score", self.score)
        _require_finite("reward", self.reward)


@dataclass(frozen=True)
class SubmissionRecord:
    """The program handed to the grader: where it was written, which archive entry it is, its score in the search."""

    path: str
    entry_id: str
    sha256: str
    score: float | None
    timestamp: str
    outcome: str = "written"

    def __post_init__(self) -> None:
        """Refuse what would only fail when somebody opens the file."""
        _require_time(self.timestamp)
        _require_finite("score", self.score)


@dataclass(frozen=True)
class TrajectoryTotals:
    """Sums over the run, all models included; None where nothing is known."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None


def build_trajectory(
    *,
    session_id: str,
    trajectory_id: str,
    agent_name: str,
    agent_version: str,
    model_name: str,
    instruction: str,
    rollouts: Sequence[RolloutRecord],
    submission: SubmissionRecord | None,
    totals: TrajectoryTotals,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The document, ready for `json.dumps(..., allow_nan=False)`.

    Args:
        session_id: Harbor's session of the agent.
        trajectory_id: unique id of this document (Harbor's context id).
        agent_name: as Harbor knows the agent.
        agent_version: likewise.
        model_name: the policy model, the one that writes the guidance.
        instruction: the task's text, shown as the user's message.
        rollouts: in the order in which they are to be shown.
        submission: None when the run ended before anything was submitted.
        totals: token and cost sums.
        extra: further facts about the run for the document's root.
    """
    steps: list[dict[str, Any]] = [{"source": "user", "message": instruction}]
    steps += [_rollout_step(record) for record in rollouts]
    if submission is not None:
        steps.append(_submission_step(submission))
    document: dict[str, Any] = {
        "schema_version": ATIF_VERSION,
        "session_id": session_id,
        "trajectory_id": trajectory_id,
        "agent": {
            "name": agent_name,
            "version": agent_version,
            "model_name": model_name,
            "tool_definitions": [_TOOL],
        },
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
        "final_metrics": _without_none(
            total_prompt_tokens=totals.prompt_tokens,
            total_completion_tokens=totals.completion_tokens,
            total_cost_usd=totals.cost_usd,
            total_steps=len(steps),
        ),
    }
    if extra:
        document["extra"] = dict(extra)
    return document


def _rollout_step(record: RolloutRecord) -> dict[str, Any]:
    facts = asdict(record)
    del facts["guidance"], facts["prompt_tokens"], facts["completion_tokens"], facts["timestamp"]
    step: dict[str, Any] = {
        "source": "agent",
        "timestamp": record.timestamp,
        "message": record.guidance if record.guidance is not None else f"(no guidance: {record.status})",
        "llm_call_count": 1,
        "extra": facts,
    }
    if metrics := _without_none(prompt_tokens=record.prompt_tokens, completion_tokens=record.completion_tokens):
        step["metrics"] = metrics
    return step


def _submission_step(record: SubmissionRecord) -> dict[str, Any]:
    call_id = "submission"
    return {
        "source": "agent",
        "timestamp": record.timestamp,
        "message": f"Submit archive entry {record.entry_id}.",
        "llm_call_count": 0,
        "tool_calls": [
            {
                "tool_call_id": call_id,
                "function_name": _TOOL["function"]["name"],  # type: ignore[index]
                "arguments": {"path": record.path, "entry_id": record.entry_id, "sha256": record.sha256},
            }
        ],
        "observation": {"results": [{"source_call_id": call_id, "content": record.outcome}]},
        "extra": {"entry_id": record.entry_id, "score": record.score},
    }


def _without_none(**values: float | None) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def _require_time(text: str) -> None:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"timestamp must be ISO 8601, got {text!r}") from None


def _require_finite(name: str, value: float | None) -> None:
    if value is not None and (isinstance(value, bool) or not math.isfinite(value)):
        raise ValueError(f"{name} must be a finite number or None, got {value!r}")
