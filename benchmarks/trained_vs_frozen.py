"""Does training the guide pay?  The same search with a trained and with a frozen policy, seed by seed.

    python benchmarks/trained_vs_frozen.py --seeds 5 --updates 20 --grid 2x4
    python benchmarks/trained_vs_frozen.py --report results/local

Each run has its own state directory and continues where it stopped, so the experiment can be interrupted at any time
(`--minutes` stops it by itself) and started again with the same command.  Runs go on in turn, seed by seed, arm by arm.
After each run the records are written: `updates.csv`, `mechanisms.csv`, `experiment.json` and `curves.svg`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from bench_support import machine_facts  # noqa: E402

from benchmarks.experiment.arms import ARMS, RunPlan, catalogue_of, rows_of, run_arm, updates_done  # noqa: E402
from benchmarks.experiment.comparison import final_best, late_reward, table  # noqa: E402
from benchmarks.experiment.curves import draw_curves  # noqa: E402
from benchmarks.experiment.options import commit, run_parser  # noqa: E402
from benchmarks.experiment.records import (  # noqa: E402
    MechanismRow,
    UpdateRow,
    mechanism_rows,
    read_updates,
    write_rows,
)
from harness.storage import read_json_object  # noqa: E402

DEFAULT_STATE_ROOT = ROOT / "work" / "trained-vs-frozen"


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = run_parser(__doc__, seeds=5, updates=20, state_root=DEFAULT_STATE_ROOT)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), help="which policies (default: all)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, record, report; exit code 0 when all runs are complete, 3 when time ran out."""
    options = build_parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a termination stops the run of the moment too
    if options.report is not None:
        print(report(options.report))
        return 0
    groups, rollouts = options.grid
    plans = [
        RunPlan(seed, arm, options.updates, groups, rollouts, options.state_root.resolve())
        for seed in range(1, options.seeds + 1)
        for arm in options.arms
    ]
    folder = options.save or options.state_root
    deadline = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    complete = True
    for plan in plans:
        left_s = None if deadline is None else deadline - time.monotonic()
        if left_s is not None and left_s < 60 and updates_done(plan) < plan.updates:
            complete = False
            continue
        done = run_arm(plan, timeout_s=left_s)
        complete = complete and done
        print(f"seed {plan.seed} {plan.arm:8} {updates_done(plan)}/{plan.updates} updates", flush=True)
        save(folder, plans)
    save(folder, plans)
    print(report(folder))
    return 0 if complete else 3


def save(folder: Path, plans: Sequence[RunPlan]) -> None:
    """Write the records of everything that is there."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[UpdateRow] = []
    mechanisms: list[MechanismRow] = []
    for plan in plans:
        updates, named = rows_of(plan)
        rows += updates
        mechanisms += mechanism_rows(plan.seed, plan.arm, named)
    if not rows:
        return
    write_rows(folder / "updates.csv", rows, UpdateRow)
    write_rows(folder / "mechanisms.csv", mechanisms, MechanismRow)
    text = json.dumps(description(plans, rows), indent=2)
    (folder / "experiment.json").write_text(text + "\n", encoding="utf-8")
    draw_curves(folder / "curves.svg", rows)


def description(plans: Sequence[RunPlan], rows: Sequence[UpdateRow]) -> dict[str, object]:
    """What was run, on what, with which code and settings, and what came out; enough to repeat it."""
    first = plans[0]
    identities = [plan.run_dir / "task-identity.json" for plan in plans if plan.arm == "trained"]
    identity = next((read_json_object(path) for path in identities if path.exists()), {})
    identity = {name: value for name, value in identity.items() if name != "run_seed"}
    return {
        "command": f"python benchmarks/trained_vs_frozen.py --seeds {max(plan.seed for plan in plans)} "
        f"--updates {first.updates} --grid {first.groups}x{first.rollouts}",
        "commit": commit(),
        "catalogue_sha256": catalogue_of(first).digest,
        "machine": machine_facts(),
        "groups": first.groups,
        "rollouts": first.rollouts,
        "settings": identity,
        "runs": outcomes(rows),
    }


def outcomes(rows: Sequence[UpdateRow]) -> dict[str, dict[str, float]]:
    """What each run came to, in the order of the rows."""
    found: dict[str, list[UpdateRow]] = {}
    for row in rows:
        found.setdefault(f"seed {row.seed} {row.arm}", []).append(row)
    return {
        name: {"updates": len(run), "best_score": final_best(run), "late_reward": late_reward(run)}
        for name, run in found.items()
    }


def report(folder: Path) -> str:
    """The table of the records in a folder."""
    path = folder / "updates.csv"
    if not path.exists():
        return f"no records in {folder}: run the experiment first"
    rows = read_updates(path)
    arms = [arm for arm in ARMS if any(row.arm == arm for row in rows)]
    return table(rows, arms)


if __name__ == "__main__":
    sys.exit(main())
