"""What the experiments' command lines have in common, and the code that a record was made with."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from bench_support import positive

from harness.config import PROJECT_ROOT


def parse_grid(text: str) -> tuple[int, int]:
    """`2x4` -> (2, 4)."""
    groups, separator, rollouts = text.partition("x")
    if not separator or not groups.isdecimal() or not rollouts.isdecimal() or int(groups) < 1 or int(rollouts) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not GROUPSxROLLOUTS, such as 2x4")
    return int(groups), int(rollouts)


def run_parser(doc: str | None, *, seeds: int, updates: int, state_root: Path) -> argparse.ArgumentParser:
    """The options of every experiment, with its defaults; `doc` is its module's text."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=positive, default=seeds, help="run seeds 1..N (default: %(default)s)")
    parser.add_argument("--updates", type=positive, default=updates, help="updates of each run (default: %(default)s)")
    parser.add_argument("--grid", type=parse_grid, default=(2, 4), help="groups x rollouts of an update (default: 2x4)")
    parser.add_argument("--minutes", type=float, default=None, help="stop after about this long; run again to continue")
    parser.add_argument("--state-root", type=Path, default=state_root, help="state directories of the runs")
    parser.add_argument("--save", type=Path, default=None, help="where the records go (default: the state root)")
    parser.add_argument("--report", type=Path, default=None, metavar="DIR", help="only print the table of records")
    return parser


def commit() -> str:
    """The commit of the code that runs; empty outside a repository."""
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, check=False).stdout.strip()
