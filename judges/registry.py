"""Which judges there are, and what each one's package must offer to be served.

A judge is a package with a module `command` (see `JudgeCommand`).  Adding one takes that package and one line here.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from judges.protocol import Judge
from judges.sandbox import Sandbox


@dataclass(frozen=True)
class JudgeEntry:
    """Where a judge is made, and one line that names its problems."""

    module: str
    help: str


JUDGES: Mapping[str, JudgeEntry] = {
    "polyomino": JudgeEntry("judges.polyomino.command", "packing: problems 0 (70 cases) and 0-quick (8 cases)"),
    "lasso_path": JudgeEntry("judges.lasso_path.command", "lasso solvers: problems lasso_path and lasso_path-quick"),
    "ahc058": JudgeEntry("judges.ahc058.command", "apple production: problems ahc058 and ahc058-quick"),
    "trimul": JudgeEntry("judges.trimul.command", "triangle multiplication kernels: problem trimul"),
}
"""Name on the command line -> how the judge is made."""


class JudgeCommand(Protocol):
    """What a judge's `command` module offers."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the judge's own options to those that every judge has."""

    def open_judge(self, options: argparse.Namespace, sandbox: Sandbox) -> Judge:
        """The judge for these options; raises `JudgeError` for what cannot be used.  May keep files in
        `options.state_dir`."""


def judge_command(name: str) -> JudgeCommand:
    """The command module of a registered judge."""
    module: JudgeCommand = importlib.import_module(JUDGES[name].module)
    return module
