"""The trajectory document: valid for Harbor, strict about numbers, and shown by Harbor's viewer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harbor.utils.trajectory_validator import TrajectoryValidator

from harness.trajectory import RolloutRecord, SubmissionRecord, TrajectoryTotals, build_trajectory

NOW = "2026-01-01T00:00:00+00:00"
ROLLOUT = RolloutRecord(1, 0, 3, "receipt-9", "Pack the big ones first.", "root", "valid", 81.5, 0.815, 600, 128, NOW)
SUBMISSION = SubmissionRecord("/workspace/solution.cpp", "entry-7", "ab" * 32, 81.5, NOW)


def _build(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "session_id": "trial__agent",
        "trajectory_id": "c0ffee",
        "agent_name": "guidance-ttt",
        "agent_version": "0.1.0",
        "model_name": "SmolLM2-135M-Instruct",
        "instruction": "Pack the polyominoes.",
        "rollouts": [ROLLOUT],
        "submission": SUBMISSION,
        "totals": TrajectoryTotals(600, 128, 0.01),
    }
    return build_trajectory(**{**fields, **changes})


@pytest.mark.parametrize("score", [float("nan"), float("inf"), True])
def test_a_score_that_is_no_finite_number_is_refused(score: float) -> None:
    with pytest.raises(ValueError, match="score must be a finite number"):
        replace(ROLLOUT, score=score)
    with pytest.raises(ValueError, match="reward must be a finite number"):
        replace(ROLLOUT, reward=score)
    with pytest.raises(ValueError, match="score must be a finite number"):
        replace(SUBMISSION, score=score)


def test_a_time_that_is_not_iso_8601_is_refused() -> None:
    with pytest.raises(ValueError, match="timestamp must be ISO 8601, got 'yesterday'"):
        replace(ROLLOUT, timestamp="yesterday")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rollouts": []},
        {"submission": None},
        {"rollouts": [], "submission": None, "totals": TrajectoryTotals()},
        {
            "rollouts": [
                replace(ROLLOUT, guidance=None, score=None, reward=0.0, prompt_tokens=None, completion_tokens=None)
            ]
        },
        {"extra": {"task": "toy", "steps": 1}},
    ],
)
def test_every_shape_of_run_passes_harbors_validator(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = tmp_path / "trajectory.json"
    path.write_text(json.dumps(_build(**changes), allow_nan=False))
    validator = TrajectoryValidator()
    assert validator.validate(path), validator.get_errors()


def test_a_rollout_carries_its_guidance_as_message_and_receipt_and_scores_beside_it() -> None:
    step = _build()["steps"][1]
    assert step["message"] == "Pack the big ones first."
    assert step["llm_call_count"] == 1
    assert step["metrics"] == {"prompt_tokens": 600, "completion_tokens": 128}
    assert step["extra"] == {
        "step": 1,
        "group": 0,
        "rollout": 3,
        "receipt": "receipt-9",
        "parent_id": "root",
        "status": "valid",
        "score": 81.5,
        "reward": 0.815,
    }


def test_missing_guidance_is_shown_with_its_reason() -> None:
    failed = replace(ROLLOUT, guidance=None, status="guidance_format_error")
    assert _build(rollouts=[failed])["steps"][1]["message"] == "(no guidance: guidance_format_error)"


def test_the_submission_is_a_tool_call_without_a_model() -> None:
    step = _build()["steps"][-1]
    assert step["llm_call_count"] == 0
    assert "metrics" not in step
    assert step["tool_calls"][0]["function_name"] == "write_submission"
    assert step["tool_calls"][0]["arguments"]["path"] == "/workspace/solution.cpp"


def test_thousands_of_rollouts_number_their_steps_without_gaps() -> None:
    document = _build(rollouts=[replace(ROLLOUT, rollout=i) for i in range(3840)])
    assert [step["step_id"] for step in document["steps"]] == list(range(1, 3843))
    assert document["final_metrics"]["total_steps"] == 3842
