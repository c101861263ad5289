"""Does a peer do the same job better?  OpenEvolve with our frozen policy and our executor behind its model interface.

    python benchmarks/peers.py --seeds 3 --updates 15 --grid 2x4 --save results/local
    python benchmarks/peers.py --report results/local

The same seed program, judge cases, executor and number of evaluations as in `trained_vs_frozen.py`; peers.md says what
is not equal.  OpenEvolve is installed into an environment of its own, `work/peers/openevolve`, the first time.

A complete seed is never run again; one that was stopped starts afresh, so give `--minutes` at least one seed's time.
Written are `peers.csv` (the same columns as `updates.csv`), `peers-mechanisms.csv`, `peers.json` and, with all arms
that the folder has, `peers.svg`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from bench_support import machine_facts, positive  # noqa: E402

from benchmarks.experiment.arms import ARMS, RunPlan, catalogue_of  # noqa: E402
from benchmarks.experiment.comparison import table  # noqa: E402
from benchmarks.experiment.curves import draw_curves  # noqa: E402
from benchmarks.experiment.openevolve_install import DEFAULT_VENV, VERSION, ensure_openevolve, packages  # noqa: E402
from benchmarks.experiment.openevolve_run import ARM, PeerPlan, PeerResult, read_result, run_peer  # noqa: E402
from benchmarks.experiment.options import commit, run_parser  # noqa: E402
from benchmarks.experiment.peer_records import named_by_update, peer_rows  # noqa: E402
from benchmarks.experiment.records import (  # noqa: E402
    MechanismRow,
    UpdateRow,
    mechanism_rows,
    read_updates,
    write_rows,
)
from harness.errors import GuidanceError  # noqa: E402
from harness.storage import write_json  # noqa: E402

DEFAULT_STATE_ROOT = ROOT / "work" / "peers-runs"
LEAST_TIME_S = 60.0


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = run_parser(__doc__, seeds=3, updates=15, state_root=DEFAULT_STATE_ROOT)
    parser.add_argument("--islands", type=positive, default=None, help="OpenEvolve's islands (default: its own, 5)")
    parser.add_argument("--venv", type=Path, default=DEFAULT_VENV, help="OpenEvolve's environment")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Install, run, record, report; exit code 0 when all runs are complete, 1 after a fault, 3 when time ran out."""
    options = build_parser().parse_args(arguments)
    if options.report is not None:
        print(report(options.report))
        return 0
    groups, rollouts = options.grid
    venv = Path(os.path.abspath(options.venv))
    plans = [
        PeerPlan(
            RunPlan(seed, ARM, options.updates, groups, rollouts, options.state_root.resolve()), venv, options.islands
        )
        for seed in range(1, options.seeds + 1)
    ]
    folder = options.save or options.state_root
    deadline_s = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    try:
        ensure_openevolve(venv, say=lambda line: print(line, file=sys.stderr, flush=True))
        complete = run_all(plans, folder, deadline_s)
    except GuidanceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(report(folder))
    return 0 if complete else 3


def run_all(plans: Sequence[PeerPlan], folder: Path, deadline_s: float | None) -> bool:
    """Run seed after seed and record each; whether all are complete."""
    complete = True
    for plan in plans:
        left_s = None if deadline_s is None else deadline_s - time.monotonic()
        if read_result(plan) is None and left_s is not None and left_s < LEAST_TIME_S:
            complete = False
            continue
        done = run_peer(plan, timeout_s=left_s)
        complete = complete and done
        print(f"seed {plan.run.seed} {ARM} {'complete' if done else 'stopped: out of time'}", flush=True)
        save(folder, plans)
    return complete


def save(folder: Path, plans: Sequence[PeerPlan]) -> None:
    """Write the records of every complete run, and the picture with all arms of the folder."""
    results = {plan.run.seed: result for plan in plans if (result := read_result(plan)) is not None}
    if not results:
        return
    folder.mkdir(parents=True, exist_ok=True)
    first = plans[0].run
    size, catalogue = first.groups * first.rollouts, catalogue_of(first)
    rows: list[UpdateRow] = []
    mechanisms: list[MechanismRow] = []
    for seed, result in results.items():
        named = named_by_update(result.rollouts, size, catalogue)
        rows += peer_rows(seed, ARM, result.rollouts, size, result.seed_score, named)
        mechanisms += mechanism_rows(seed, ARM, named)
    write_rows(folder / "peers.csv", rows, UpdateRow)
    write_rows(folder / "peers-mechanisms.csv", mechanisms, MechanismRow)
    write_json(folder / "peers.json", description(plans, results))
    draw_curves(folder / "peers.svg", all_rows(folder))


def description(plans: Sequence[PeerPlan], results: Mapping[int, PeerResult]) -> dict[str, object]:
    """What was run, with which versions and settings; enough to repeat it."""
    first = plans[0]
    islands = "" if first.islands is None else f" --islands {first.islands}"
    return {
        "command": f"python benchmarks/peers.py --seeds {len(plans)} --updates {first.run.updates} "
        f"--grid {first.run.groups}x{first.run.rollouts}{islands}",
        "commit": commit(),
        "catalogue_sha256": catalogue_of(first.run).digest,
        "machine": machine_facts(),
        "openevolve": VERSION,
        "openevolve_packages": packages(first.venv),
        "runs": {
            f"seed {seed}": {
                "evaluations": len(result.rollouts),
                "seed_score": result.seed_score,
                "seconds": result.rollouts[-1].ended_s,
                **result.facts,
            }
            for seed, result in results.items()
        },
    }


def all_rows(folder: Path) -> list[UpdateRow]:
    """The rows of our own arms and of the peer that a folder has."""
    paths = [folder / "updates.csv", folder / "peers.csv"]
    return [row for path in paths if path.exists() for row in read_updates(path)]


def report(folder: Path) -> str:
    """The table of everything in a folder."""
    rows = all_rows(folder)
    if not any(row.arm == ARM for row in rows):
        return f"no records of {ARM} in {folder}: run the experiment first"
    return table(rows, [arm for arm in (*ARMS, ARM) if any(row.arm == arm for row in rows)])


if __name__ == "__main__":
    sys.exit(main())
