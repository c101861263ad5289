"""The `polyomino` judge on the command line: its options, and the judge they describe."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from judges.protocol import Judge
from judges.sandbox import Sandbox


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which case set is scored."""
    parser.add_argument(
        "--frontiercs-dir",
        type=Path,
        default=None,
        metavar="DIR",
        help="score on the official data of this FrontierCS checkout (default: $FRONTIERCS_DIR, else the own case set)",
    )
    parser.add_argument(
        "--accept-changed-data",
        action="store_true",
        help="use FrontierCS data even if its hash is not the published one",
    )


def open_judge(options: argparse.Namespace, sandbox: Sandbox) -> Judge:
    """The judge over the chosen case set; raises `JudgeError` when that cannot be used."""
    from judges.polyomino.judge import PolyominoJudge
    from judges.polyomino.suite import load_official_suite, load_own_suite

    official = options.frontiercs_dir or os.environ.get("FRONTIERCS_DIR")
    if official:
        suite = load_official_suite(Path(official), accept_changed=options.accept_changed_data)
    else:
        suite = load_own_suite(options.state_dir / "polyomino-cases")
    return PolyominoJudge(sandbox, suite)
