"""Checks the recorded results against themselves: `python results/check_results.py [FOLDER]`.

Every number that can be derived from another one is derived and compared: row counts, monotone series, first and last
values, totals, mean and deviation.  `SHA256SUMS` then pins every file, so that no number changes unnoticed.  Prints
what was verified; exits 1 at the first thing that does not hold.  Needs nothing but Python.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from check_local import check_local
from checks import (
    SAME,
    ResultsWrong,
    read_object,
    read_rows,
    require,
    require_monotone,
    require_numbered,
    require_same,
)

HASHES = "SHA256SUMS"


def check_runs(root: Path) -> str:
    """The two published Reef runs: their trajectory against their summary."""
    runs = {run["task"]: run for run in read_object(root / "runs.json")["runs"]}
    rows = read_rows(root / "trajectory.csv")
    require(sorted(runs) == ["polyomino", "trimul"], f"runs.json holds {sorted(runs)}")
    require({row["task"] for row in rows} == set(runs), "trajectory.csv and runs.json name different tasks")
    for task, run in runs.items():
        search = run["search"]
        own = [row for row in rows if row["task"] == task]
        require_numbered(f"trajectory of {task}", own, "update", search["updates"] + 1)
        best = [float(row["cumulative_best"]) for row in own]
        require_monotone(f"trajectory of {task}", best, search["score_direction"])
        require_same(f"seed of {task}", best[0], search["seed_score"])
        require_same(f"best of {task}", best[-1], search["best_score"])
        found = best.index(best[-1])
        require(found == search["best_update"], f"{task}: the best is of update {found}, not {search['best_update']}")
        grid = search["groups_per_update"] * search["rollouts_per_group"]
        require(search["sampled_rollouts"] == search["updates"] * grid, f"{task}: the grid does not give the rollouts")
        for column in ("sampled_rollouts", "valid_rollouts"):
            total = sum(int(row[column] or 0) for row in own)
            require(total == search[column], f"{task}: {column} adds up to {total}, not {search[column]}")
        case = run["selected_case"]
        require_same(f"selected case of {task}", best[case["update"]], case["score"])
    repeated = runs["trimul"]["fixed_candidate_reevaluation"]
    require(repeated["all_correct"] is True, "trimul: the re-evaluated candidate was not correct")
    require_same("mean of trimul's repeats", statistics.fmean(repeated["scores"]), repeated["mean"])
    require_same("deviation of trimul's repeats", statistics.stdev(repeated["scores"]), repeated["sample_std"])
    return f"{len(runs)} published runs, {len(rows)} rows of their trajectories"


def check_paper(root: Path) -> str:
    """The paper's table and series."""
    folder = root / "paper"
    results = {result["task"]: result for result in read_object(folder / "results.json")["results"]}
    tasks = ["ahc058", "lasso_path", "polyomino", "trimul"]
    require(sorted(results) == tasks, f"the paper's table has {sorted(results)}")
    for task, result in results.items():
        grid = (result["updates"], result["groups_per_step"], result["rollouts_per_group"])
        require(grid == (30, 8, 16), f"{task}: the paper's budget is 30 updates of 8 x 16, not {grid}")
    polyomino = read_rows(folder / "polyomino_score_trajectory.csv")
    require_numbered("paper, polyomino", polyomino, "step", 32)
    best = [float(row["cumulative_best"]) for row in polyomino]
    require_monotone("paper, polyomino", best, "max")
    reached = -math.inf
    for number, row in enumerate(polyomino):
        name = f"paper, polyomino, step {number}"
        reached = max(reached, float(row["step_best"]))
        require_same(name, reached, best[number])
        require(float(row["step_mean"]) <= float(row["step_best"]), f"{name}: the mean is above the best")
        require(int(row["num_valid"]) <= int(row["num_entries"]), f"{name}: more valid entries than entries")
        require(int(row["num_entries"]) == (128 if number else 1), f"{name}: {row['num_entries']} entries")
    result = results["polyomino"]["result"]
    require(round(best[-1], 2) == result, f"paper, polyomino: the series ends at {best[-1]}, the result is {result}")
    frontier = read_rows(folder / "trimul_14b_frontier.csv")
    require_numbered("paper, trimul", frontier, "update", 31)
    require_monotone("paper, trimul", [float(row["best_us"]) for row in frontier], "min")
    histories = read_rows(folder / "search_histories.csv")
    for task, cases in (("lasso_path", 1), ("ahc058", 150)):
        own = [row for row in histories if row["task"] == task]
        require_numbered(f"paper, {task}", own, "update", 31)
        require_monotone(f"paper, {task}", [float(row["search_best_raw"]) for row in own], "max")
        for row in own:
            name = f"paper, {task}, update {row['update']}"
            require_same(name, float(row["search_best_raw"]) * cases, float(row["figure_value"]))
    count = len(polyomino) + len(frontier) + len(histories)
    return f"{len(results)} results of the paper, {count} rows of its series"


def check_one_source(root: Path) -> str:
    """Series that two files hold must be the same series."""
    first = [row for row in read_rows(root / "trajectory.csv") if row["task"] == "trimul"]
    second = read_rows(root / "paper/trimul_14b_frontier.csv")
    for row, other in zip(first, second, strict=True):
        # The paper's file gives the seed with one decimal.
        tolerance = SAME if row["update"] != "0" else 1e-5
        name = f"trimul, update {row['update']}, in both files"
        require_same(name, float(row["cumulative_best"]), float(other["best_us"]), tolerance=tolerance)
    return f"{len(first)} values that two files share"


def result_files(root: Path) -> Iterator[Path]:
    """Every file that is pinned by its hash."""
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.name != HASHES and "__pycache__" not in path.parts:
            yield path


def sha256(path: Path) -> str:
    """Hash of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_hashes(root: Path) -> str:
    """Every file has its recorded hash, and no file is left out."""
    lines = (root / HASHES).read_text(encoding="utf-8").splitlines()
    recorded = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    found = {path.relative_to(root).as_posix(): path for path in result_files(root)}
    require(set(recorded) == set(found), f"{HASHES} and the folder differ in {sorted(set(recorded) ^ set(found))}")
    for name, path in found.items():
        digest = sha256(path)
        require(digest == recorded[name], f"{name} has changed: its SHA-256 is {digest}, not {recorded[name]}")
    return f"SHA-256 of {len(found)} files"


CHECKS: tuple[Callable[[Path], str], ...] = (check_runs, check_paper, check_one_source, check_local, check_hashes)


def write_hashes(root: Path) -> None:
    """Record the hash of every file; for the maintainer who has just added results."""
    lines = [f"{sha256(path)}  {path.relative_to(root).as_posix()}\n" for path in result_files(root)]
    (root / HASHES).write_text("".join(lines), encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Run every check; `--write-hashes` records the hashes first."""
    folders = [argument for argument in arguments if not argument.startswith("--")]
    root = Path(folders[0]) if folders else Path(__file__).resolve().parent
    if "--write-hashes" in arguments:
        write_hashes(root)
    for check in CHECKS:
        try:
            print(f"ok: {check(root)}")
        except ResultsWrong as error:
            print(f"wrong: {error}", file=sys.stderr)
            return 1
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"wrong: {root} cannot be read: {type(error).__name__}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
