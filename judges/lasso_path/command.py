"""The `lasso_path` judge on the command line: its options, and the judge they describe."""

from __future__ import annotations

import argparse
import os

from judges.protocol import Judge
from judges.sandbox import Sandbox

DEFAULT_PORT = 8082


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which instances are drawn; one worker, because two timed programs disturb each other."""
    parser.set_defaults(port=DEFAULT_PORT, workers=1)
    parser.add_argument(
        "--seed",
        type=seed_value,
        default=None,
        metavar="N",
        help="judge every submission on the same instances, drawn from this seed (default: from a pool of random ones)",
    )


def seed_value(text: str) -> int:
    """A seed that NumPy's legacy generator takes."""
    value = int(text)
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"{value} is outside 0..{2**32 - 1}")
    return value


def open_judge(options: argparse.Namespace, sandbox: Sandbox) -> Judge:
    """The judge; raises `JudgeError` when the machine lacks what it needs."""
    # Threads of the linear algebra library that wait for work would disturb the timed programs.  Before NumPy comes.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    from judges.lasso_path.judge import LassoJudge
    from judges.lasso_path.reference import ReferenceBook

    name = "lasso-references" if options.seed is None else f"lasso-references-seed-{options.seed}"
    book = ReferenceBook(options.state_dir / f"{name}.json", options.seed)
    return LassoJudge(sandbox, book, options.seed)
