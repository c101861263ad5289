"""What Reef refuses at the door, field by field."""

from __future__ import annotations

from typing import Any

import pytest
from reef.core.reports import ReportValidationError

from tttd.report import TTTDGroupedRolloutReport, report_for_grid

METADATA = {"step": 3, "group": 1, "rollout": 2, "groups_per_step": 2, "rollouts_per_group": 4}


def body(**changes: Any) -> dict[str, Any]:
    metadata = {**METADATA, **changes.pop("metadata", {})}
    return {"score": 1.5, "references": ["receipt"], "metadata": metadata, **changes}


def without(name: str) -> dict[str, Any]:
    report = body()
    del report["metadata"][name]
    return report


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("no reference", body(references=[]), "references"),
    ("references missing", {key: value for key, value in body().items() if key != "references"}, "references"),
    ("two references", body(references=["a", "b"]), "references"),
    ("reference is a string", body(references="receipt"), "references"),
    ("reference is empty", body(references=[""]), "references"),
    ("score missing", {key: value for key, value in body().items() if key != "score"}, "score"),
    ("score is a bool", body(score=True), "score"),
    ("score is text", body(score="1"), "score"),
    ("score is NaN", body(score=float("nan")), "score"),
    ("score is infinite", body(score=float("inf")), "score"),
    ("score does not fit a float", body(score=10**400), "score"),
    ("metadata is no object", {**body(), "metadata": [1]}, "metadata"),
    *((f"{name} missing", without(name), name) for name in METADATA),
    *((f"{name} is a bool", body(metadata={name: True}), name) for name in METADATA),
    *((f"{name} is text", body(metadata={name: "1"}), name) for name in METADATA),
    *((f"{name} is fractional", body(metadata={name: 1.5}), name) for name in METADATA),
    *((f"{name} is huge", body(metadata={name: 10**400}), name) for name in METADATA),
    ("negative step", body(metadata={"step": -1}), "step"),
    ("negative attempt", body(metadata={"attempt": -1}), "attempt"),
    ("attempt is a bool", body(metadata={"attempt": True}), "attempt"),
    ("no groups", body(metadata={"groups_per_step": 0}), "groups_per_step"),
    ("one rollout", body(metadata={"rollouts_per_group": 1}), "rollouts_per_group"),
    ("group outside the grid", body(metadata={"group": 2}), "group"),
    ("negative group", body(metadata={"group": -1}), "group"),
    ("rollout outside the grid", body(metadata={"rollout": 4}), "rollout"),
    ("unknown algorithm", body(metadata={"algorithm": "grpo"}), "algorithm"),
    ("foreign comparison set", body(metadata={"comparison_set": "tttd-step-3-group-0"}), "comparison_set"),
    ("opts out of training", body(metadata={"training": {"eligible": False}}), "eligible"),
]


@pytest.mark.parametrize(("report", "field"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_a_report_that_could_poison_the_scenario_is_refused(report: dict[str, Any], field: str) -> None:
    with pytest.raises(ReportValidationError, match=field):
        TTTDGroupedRolloutReport.from_dict(report)


def test_a_complete_report_is_read() -> None:
    report = TTTDGroupedRolloutReport.from_dict(
        body(metadata={"algorithm": "ttt-discover", "comparison_set": "tttd-step-3-group-1", "attempt": 2})
    )
    assert (report.step, report.group, report.rollout, report.attempt) == (3, 1, 2, 2)
    assert report.algorithm == "ttt-discover"
    assert report.score == 1.5


def test_optional_fields_have_defaults_and_integral_floats_are_integers() -> None:
    report = TTTDGroupedRolloutReport.from_dict(body(score=2, metadata={"step": 3.0, "group": 1.0}))
    assert (report.step, report.group, report.attempt, report.algorithm) == (3, 1, 0, "tttd")
    assert report.comparison_set is None


def test_negative_scores_and_unknown_metadata_are_fine() -> None:
    report = TTTDGroupedRolloutReport.from_dict(body(score=-3.5, metadata={"parent_id": "x", "search_value": 1.0}))
    assert report.score == -3.5


@pytest.mark.parametrize("grid", [(2, 3), (3, 4), (4, 2)])
def test_a_report_of_another_grid_than_the_served_one_is_refused_with_both(grid: tuple[int, int]) -> None:
    with pytest.raises(ReportValidationError, match=f"is 2 x 4, this service trains {grid[0]} x {grid[1]}"):
        report_for_grid(*grid).from_dict(body())


def test_a_report_of_the_served_grid_is_read_as_any_other() -> None:
    report = report_for_grid(2, 4).from_dict(body())
    assert isinstance(report, TTTDGroupedRolloutReport)
    assert report == report_for_grid(2, 4).from_dict(body())
    with pytest.raises(ReportValidationError, match="step"):
        report_for_grid(2, 4).from_dict(body(metadata={"step": -1}))
