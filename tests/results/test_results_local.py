"""Our own records: what the benchmark writes passes the check, and a changed number is found by what it contradicts."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from results_testkit import RESULTS, check, complaint_about
from support.update_rows import update_row

from benchmarks.experiment.records import MechanismRow, UpdateRow, mechanism_rows, write_rows
from benchmarks.trained_vs_frozen import outcomes

UPDATES, GROUPS, ROLLOUTS = 6, 2, 4


def run_of(seed: int, arm: str, gain: float) -> list[UpdateRow]:
    """A run whose best score rises by `gain` an update."""
    return [
        update_row(
            seed,
            arm,
            number,
            20.0 + gain * number / 3,
            reward_max=20.0 + gain * number,
            best_score=20.0 + gain * number,
            valid=7,
            well_formed=8,
            named=number % 3,
        )
        for number in range(1, UPDATES + 1)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the results with two runs of our own."""
    root = tmp_path / "results"
    shutil.copytree(RESULTS, root, ignore=shutil.ignore_patterns("local", "__pycache__"))
    local = root / "local"
    local.mkdir()
    rows = [*run_of(1, "trained", 7.125), *run_of(1, "frozen", 3.5)]
    mechanisms: list[MechanismRow] = []
    for arm in ("trained", "frozen"):
        named = [Counter({"skyline": row.named, "guidance": row.named}) for row in rows if row.arm == arm]
        mechanisms += mechanism_rows(1, arm, named)
    write_rows(local / "updates.csv", rows, UpdateRow)
    write_rows(local / "mechanisms.csv", mechanisms, MechanismRow)
    experiment = {"groups": GROUPS, "rollouts": ROLLOUTS, "runs": outcomes(rows)}
    (local / "experiment.json").write_text(json.dumps(experiment, indent=2), encoding="utf-8")
    return root


def test_what_the_benchmark_writes_passes(folder: Path) -> None:
    done = check(str(folder), "--write-hashes")
    assert done.returncode == 0, done.stderr
    assert "2 runs of our own, 12 updates, 8 counts of mechanisms" in done.stdout


def test_a_folder_without_runs_of_our_own_says_so(folder: Path) -> None:
    shutil.rmtree(folder / "local")
    assert "no runs of our own are recorded yet" in check(str(folder), "--write-hashes").stdout


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("updates.csv", "1,trained,2,16,", "1,trained,2,17,", "seed 1 trained, update 2: 17 evaluations"),
        ("updates.csv", "1,trained,3,24,", "1,trained,4,24,", "update is"),
        ("updates.csv", "22.3333,27,27", "22.3333,23,23", "the best so far gets worse after row 0"),
        ("updates.csv", "27,41,41", "42,41,41", "the mean is above the maximum"),
        ("updates.csv", "27,41,41", "27,44,41", "a reward above the best score"),
        ("updates.csv", "27,41,41,7,8", "27,41,41,7,9", "well_formed is 9 of 8"),
        ("updates.csv", "27,41,41", "26,41,41", "late reward of seed 1 frozen"),
        ("experiment.json", '"best_score": 62.75', '"best_score": 63.75', "best of seed 1 trained"),
        ("experiment.json", '"updates": 6', '"updates": 7', "7 updates are recorded"),
        ("experiment.json", '"rollouts": 4', '"rollouts": 5', "1 grids of 10"),
        ("mechanisms.csv", "1,trained,2,skyline,2", "1,trained,2,skyline,5", "named a mechanism, 5 are counted"),
        ("mechanisms.csv", "1,trained,2,skyline,2\n", "", "2 texts named a mechanism, 0 are counted"),
        ("mechanisms.csv", "1,trained,2,", "7,trained,2,", "which has no row"),
    ],
)
def test_a_changed_number_is_found_by_what_it_contradicts(
    folder: Path, name: str, old: str, new: str, reason: str
) -> None:
    assert reason in complaint_about(folder, f"local/{name}", old, new)
