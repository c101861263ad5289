"""Published numbers stand beside a run only where they were measured on the very same cases."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from front_report import measured, report_on

from guidance_ttt.report.baselines import RESULTS_DIR, find_baselines
from judges.ahc058.generator import PINNED_SHA256
from judges.polyomino.generator import OWN_SHA256
from judges.polyomino.suite import OFFICIAL_SHA256

OFFICIAL = {"judge_suite": "frontiercs", "judge_suite_sha256": OFFICIAL_SHA256, "search_problem": "0"}
OWN = {"judge_suite": "own", "judge_suite_sha256": OWN_SHA256, "search_problem": "0"}


def test_the_official_cases_bring_the_published_numbers_with_source_and_date() -> None:
    found = find_baselines("polyomino_packing", OFFICIAL)
    values = {row.label: row.value for row in found.rows}
    assert values["CORAL (Opus 4.6)"] == 84.2
    assert values["human reference"] == 89.1
    assert {91.89, 89.79648748142856} <= set(values.values())
    assert all("commit 709c405" in row.source or "2026-08-31" in row.source for row in found.rows)
    assert {row.mark: row.value for row in found.lines} == {
        "paper": 91.89,
        "human reference": 89.1,
        "published run": 89.79648748142856,
    }
    assert "not measurements of this run" in found.remark


@pytest.mark.parametrize(
    ("task", "identity", "reason"),
    [
        ("polyomino_packing", OWN, "on the case set 'own', not on the official one"),
        ("polyomino_packing", {}, "does not say on which cases"),
        ("polyomino_packing", {**OFFICIAL, "judge_suite_sha256": "0" * 64}, "their hash is not that of the published"),
        ("lasso_path", {"judge_suite": "own generators"}, "running times"),
        ("trimul", {}, "running times"),
        ("toy", OFFICIAL, "no result for this task has been published"),
    ],
)
def test_everything_else_gets_a_reason_and_no_number(task: str, identity: dict[str, Any], reason: str) -> None:
    found = find_baselines(task, identity)
    assert (found.rows, found.lines) == ((), ())
    assert reason in found.remark


def test_a_search_on_a_part_of_the_official_cases_gets_no_lines() -> None:
    found = find_baselines("polyomino_packing", {**OFFICIAL, "search_problem": "0-quick"})
    assert found.rows
    assert found.lines == ()
    assert "scored on 0-quick, a part of them" in found.remark


def test_sums_over_all_cases_are_turned_into_the_unit_of_our_scores() -> None:
    identity = {"judge_suite": "public-150", "judge_suite_sha256": PINNED_SHA256, "search_problem": "ahc058"}
    found = find_baselines("ahc058", identity)
    assert found.rows[0].value == pytest.approx(850082731 / 150)
    assert "divided by 150" in found.rows[0].source


def test_results_that_cannot_be_read_are_a_sentence(tmp_path: Path) -> None:
    assert (
        "could not be read from results/" in find_baselines("polyomino_packing", OFFICIAL, tmp_path / "results").remark
    )
    shutil.copytree(RESULTS_DIR, tmp_path / "results")
    (tmp_path / "results" / "runs.json").write_text("[]", encoding="utf-8")
    assert find_baselines("polyomino_packing", OFFICIAL, tmp_path / "results").rows == ()


@pytest.mark.parametrize(("identity", "shown"), [(OFFICIAL, True), (OWN, False)])
def test_the_page_shows_them_for_the_official_cases_and_the_reason_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, identity: dict[str, Any], shown: bool
) -> None:
    found = find_baselines("polyomino_packing", identity)
    monkeypatch.setattr("guidance_ttt.report.writing.find_baselines", lambda *_: found)
    page = report_on(measured(tmp_path / "state", steps=1), tmp_path / "r.html").page
    assert ("human reference" in page.text) is shown
    assert ("91.8900" in page.text) is shown
    assert ("None shown: this run was scored on the case set 'own'" in page.text) is not shown
    rules = [attrs for tag, attrs in page.tags if tag == "path" and attrs.get("class") == "rule"]
    assert (len(rules) > 0) is shown
