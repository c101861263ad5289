"""Checks our own measurements in `local/`: the records of `trained_vs_frozen.py` and `peers.py` of `benchmarks/`."""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path
from typing import Any

from checks import read_object, read_rows, require, require_monotone, require_numbered, require_same

ROUNDED = 1e-5
"""Relative difference that the six digits of the records leave open."""

Row = dict[str, str]


def check_local(root: Path) -> str:
    """Every run's series is whole, bounded by its grid and monotone, and gives the numbers that are recorded of it."""
    folder = root / "local"
    if not folder.is_dir():
        return "no runs of our own are recorded yet"
    experiment = read_object(folder / "experiment.json")
    grid = experiment["groups"] * experiment["rollouts"]
    rows = read_rows(folder / "updates.csv")
    own = runs_of(rows)
    recorded = experiment["runs"]
    require(list(own) == list(recorded), f"updates.csv holds the runs {list(own)}, experiment.json {list(recorded)}")
    for name, run in own.items():
        check_series(name, run, grid)
        check_outcome(name, run, recorded[name])
    mechanisms = read_rows(folder / "mechanisms.csv")
    check_mechanisms(rows, mechanisms)
    peers = check_peers(folder, grid) if (folder / "peers.csv").exists() else 0
    return f"{len(own)} runs of our own, {len(rows)} updates, {len(mechanisms)} counts of mechanisms; {peers} of a peer"


def check_peers(folder: Path, grid: int) -> int:
    """The peer's runs, which have the same budget and no training; returns how many there are."""
    rows = read_rows(folder / "peers.csv")
    recorded = read_object(folder / "peers.json")["runs"]
    found = {name.rsplit(" ", 1)[0]: run for name, run in runs_of(rows).items()}
    require(list(found) == list(recorded), f"peers.csv holds the runs {list(found)}, peers.json {list(recorded)}")
    for name, run in found.items():
        check_series(f"peer, {name}", run, grid)
        whole = recorded[name]["evaluations"] // grid
        require(len(run) == whole, f"peer, {name}: {len(run)} updates, its evaluations make {whole}")
    check_mechanisms(rows, read_rows(folder / "peers-mechanisms.csv"))
    return len(found)


def runs_of(rows: list[Row]) -> dict[str, list[Row]]:
    """The rows of each run, in the order of the file."""
    return {key: list(run) for key, run in itertools.groupby(rows, lambda row: f"seed {row['seed']} {row['arm']}")}


def check_series(name: str, rows: list[Row], grid: int) -> None:
    """One run against itself."""
    shifted = [{**row, "update": str(int(row["update"]) - 1)} for row in rows]
    require_numbered(name, shifted, "update", len(rows))
    require_monotone(name, [float(row["best_score"]) for row in rows], "max")
    for number, row in enumerate(rows, start=1):
        place = f"{name}, update {number}"
        found = int(row["evaluations"])
        require(found == number * grid, f"{place}: {found} evaluations, {number * grid} is {number} grids of {grid}")
        require(float(row["reward_mean"]) <= float(row["reward_max"]), f"{place}: the mean is above the maximum")
        require(float(row["reward_max"]) <= float(row["best_score"]), f"{place}: a reward above the best score")
        for column in ("valid", "well_formed", "named"):
            require(0 <= int(row[column]) <= grid, f"{place}: {column} is {row[column]} of {grid}")


def check_outcome(name: str, rows: list[Row], recorded: dict[str, Any]) -> None:
    """What was recorded of a run follows from its rows."""
    require(len(rows) == recorded["updates"], f"{name}: {len(rows)} rows, {recorded['updates']} updates are recorded")
    late = rows[-max(1, len(rows) // 3) :]
    mean = statistics.fmean(float(row["reward_mean"]) for row in late)
    require_same(f"late reward of {name}", mean, recorded["late_reward"], tolerance=ROUNDED)
    require_same(f"best of {name}", float(rows[-1]["best_score"]), recorded["best_score"], tolerance=ROUNDED)


def check_mechanisms(rows: list[Row], mechanisms: list[Row]) -> None:
    """A text names at most two mechanisms, and each is counted in an update where some text named one."""
    named = {(row["seed"], row["arm"], row["update"]): int(row["named"]) for row in rows}
    counts = dict.fromkeys(named, 0)
    for row in mechanisms:
        key = (row["seed"], row["arm"], row["update"])
        require(key in counts, f"there are mechanisms of seed {key[0]} {key[1]}, update {key[2]}, which has no row")
        counts[key] += int(row["count"])
    for key, count in counts.items():
        require(
            named[key] <= count <= 2 * named[key],
            f"seed {key[0]} {key[1]}, update {key[2]}: {named[key]} texts named a mechanism, {count} are counted",
        )
