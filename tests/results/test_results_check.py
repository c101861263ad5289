"""The recorded results: complete, consistent, and impossible to change unnoticed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from results_testkit import RESULTS, check, complaint_about


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(RESULTS, tmp_path / "results")
    return tmp_path / "results"


def test_the_recorded_results_hold_and_are_listed() -> None:
    done = check()
    assert done.returncode == 0, done.stderr
    for part in ("2 published runs, 62 rows", "4 results of the paper", "SHA-256 of"):
        assert part in done.stdout


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("trajectory.csv", "polyomino,12,89.38254528428573", "polyomino,12,89.28254528428573", "after row 11"),
        ("trajectory.csv", "polyomino,30,89.79648748142856,114,128", "polyomino,30,89.8,114,128", "best of polyomino"),
        ("trajectory.csv", "trimul,9,1253.6164686332684,92", "trimul,9,1253.6164686332684,93", "valid_rollouts"),
        ("trajectory.csv", "trimul,8,", "trimul,7,", "update is"),
        ("runs.json", '"seed_score": 27.810517627142843', '"seed_score": 27.81', "seed of polyomino"),
        ("runs.json", '"best_update": 25', '"best_update": 24', "the best is of update 25, not 24"),
        ("runs.json", '"mean": 1158.4600476833116', '"mean": 1158.46', "mean of trimul's repeats"),
        ("runs.json", '"sample_std": 3.763', '"sample_std": 3.764', "deviation of trimul's repeats"),
        ("runs.json", '"all_correct": true', '"all_correct": false', "was not correct"),
        ("runs.json", '"score": 86.76461186714288', '"score": 86.8', "selected case of polyomino"),
        ("paper/results.json", '"result": 91.89', '"result": 91.98', "the series ends at 91.89074282"),
        ("paper/results.json", '"updates": 30', '"updates": 31', "budget"),
        ("paper/polyomino_score_trajectory.csv", "12,128,122,90.84313365", "12,128,122,91.84313365", "step 12"),
        ("paper/polyomino_score_trajectory.csv", "31,128,104", "31,128,129", "more valid entries"),
        ("paper/trimul_14b_frontier.csv", "17,1128.0291309762747", "17,1127.0291309762747", "update 17, in both files"),
        ("paper/search_histories.csv", "lasso_path,29,0.21259430766995094", "lasso_path,29,0.20", "lasso_path"),
    ],
)
def test_a_changed_number_is_found_by_what_it_contradicts(
    copy: Path, name: str, old: str, new: str, reason: str
) -> None:
    assert reason in complaint_about(copy, name, old, new)


@pytest.mark.parametrize("name", ["paper/results.json", "runs.json"])
def test_a_number_that_nothing_contradicts_is_found_by_its_hash(copy: Path, name: str) -> None:
    path = copy / name
    text = path.read_text(encoding="utf-8")
    lonely = r'"TTT-Discover",\s+83\.72|"elapsed_seconds": 44488'
    changed = re.sub(lonely, lambda found: found[0][:-1] + "9", text)
    assert changed != text
    path.write_text(changed, encoding="utf-8")
    done = check(str(copy))
    assert done.returncode == 1
    assert f"{name} has changed" in done.stderr


def test_a_file_too_many_or_too_few_is_named(copy: Path) -> None:
    (copy / "stray.csv").write_text("x\n", encoding="utf-8")
    assert "stray.csv" in check(str(copy)).stderr
    (copy / "stray.csv").unlink()
    (copy / "README.md").unlink()
    assert "README.md" in check(str(copy)).stderr


def test_a_file_that_cannot_be_read_is_an_error_without_a_traceback(copy: Path) -> None:
    (copy / "runs.json").write_text("{", encoding="utf-8")
    done = check(str(copy))
    assert done.returncode == 1
    assert "cannot be read" in done.stderr
    assert "Traceback" not in done.stderr
