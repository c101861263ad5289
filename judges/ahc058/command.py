"""The `ahc058` judge on the command line: its options, and the judge they describe."""

from __future__ import annotations

import argparse
import os

from judges.errors import JudgeError
from judges.protocol import Judge
from judges.sandbox import Sandbox


def add_options(parser: argparse.ArgumentParser) -> None:
    """How many cases of one submission run at once."""
    parser.add_argument(
        "--case-workers",
        type=int,
        default=1,
        metavar="N",
        help="cases of one submission that run at once, each on a core of its own (default: %(default)s)",
    )


def open_judge(options: argparse.Namespace, sandbox: Sandbox) -> Judge:
    """The judge over the public inputs; raises `JudgeError` when they cannot be made, or for too many case workers."""
    from judges.ahc058.judge import AppleJudge
    from judges.ahc058.suite import load_suite

    cores = len(os.sched_getaffinity(0))
    most = max(1, cores // options.workers)
    if not 1 <= options.case_workers <= most:
        raise JudgeError(
            f"--case-workers {options.case_workers} does not suit {cores} core(s) and {options.workers} submission(s) "
            f"at once, because times are fair only with a core for each run; use 1 to {most}"
        )
    return AppleJudge(sandbox, load_suite(), case_workers=options.case_workers)
