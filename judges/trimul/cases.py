"""The cases of the TriMul task: 18 shapes that must be right and 7 that are timed.

Shapes, input kinds and seeds are those of the public competition that the task comes from.  A case that is listed as
masked gets a mask of zeros and ones here; see `Rules` for what the public evaluator did with it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

HIDDEN = 128
PROBLEM = "trimul"
NORMAL, CAUCHY = "normal", "cauchy"


@dataclass(frozen=True)
class Case:
    """One input: `x` is [batch, seqlen, seqlen, dim], drawn from `kind` with this seed."""

    seqlen: int
    batch: int
    dim: int
    kind: str
    masked: bool
    seed: int

    @property
    def spec(self) -> str:
        """The case in one line."""
        mask = "masked" if self.masked else "no mask"
        return f"seqlen {self.seqlen}, batch {self.batch}, dim {self.dim}, {self.kind}, {mask}"

    @property
    def elements(self) -> int:
        """How many numbers `x`, and so the result, holds."""
        return self.batch * self.seqlen * self.seqlen * self.dim


@dataclass(frozen=True)
class Rules:
    """How strictly the task is judged.

    `quirks` repeats two faults of the public evaluator: its parser took the word "False" for true, so that no case was
    ever masked, and the weights came from a generator that the case's seed does not reach.
    """

    quirks: bool = False

    def masked(self, case: Case) -> bool:
        """Whether this case really gets a mask with zeros in it."""
        return case.masked and not self.quirks


def _case(seqlen: int, batch: int, dim: int, kind: str, masked: int, seed: int) -> Case:
    return Case(seqlen, batch, dim, kind, bool(masked), seed)


TESTS: tuple[Case, ...] = (
    _case(32, 1, 128, NORMAL, 0, 9371),
    _case(32, 1, 128, NORMAL, 1, 1092),
    _case(64, 2, 256, NORMAL, 0, 2291),
    _case(64, 2, 256, NORMAL, 1, 210284),
    _case(128, 1, 768, NORMAL, 0, 81934),
    _case(256, 1, 128, NORMAL, 0, 1932),
    _case(256, 1, 128, NORMAL, 1, 10432),
    _case(768, 2, 128, NORMAL, 0, 731),
    _case(1024, 1, 384, NORMAL, 1, 53121),
    _case(1024, 1, 768, NORMAL, 0, 31),
    _case(1024, 1, 768, NORMAL, 1, 4921),
    _case(32, 1, 128, CAUCHY, 0, 937321),
    _case(64, 2, 256, CAUCHY, 0, 2291),
    _case(128, 1, 768, CAUCHY, 0, 8134),
    _case(256, 1, 128, CAUCHY, 0, 932),
    _case(768, 2, 128, CAUCHY, 0, 31),
    _case(1024, 1, 384, CAUCHY, 1, 5321),
    _case(1024, 1, 768, CAUCHY, 1, 491),
)
"""Cases that decide whether a kernel is correct."""

BENCHMARKS: tuple[Case, ...] = (
    _case(256, 2, 128, NORMAL, 0, 9371),
    _case(768, 1, 128, CAUCHY, 0, 381),
    _case(256, 2, 384, NORMAL, 1, 2301),
    _case(512, 1, 128, NORMAL, 0, 12819),
    _case(1024, 1, 128, CAUCHY, 0, 381),
    _case(768, 1, 384, NORMAL, 1, 481),
    _case(1024, 1, 384, NORMAL, 0, 23291),
)
"""Cases that are timed; their results are checked as well."""


def cases_up_to(seqlen: int | None) -> tuple[Case, ...]:
    """The correctness cases that are not larger than `seqlen`; None for all."""
    return TESTS if seqlen is None else tuple(case for case in TESTS if case.seqlen <= seqlen)


def suite_sha256(tests: tuple[Case, ...], benchmarks: tuple[Case, ...], rules: Rules) -> str:
    """Identity of what is judged: verdicts of different suites must not be compared."""
    values = {
        "tests": [asdict(case) for case in tests],
        "benchmarks": [asdict(case) for case in benchmarks],
        "quirks": rules.quirks,
        "hidden": HIDDEN,
    }
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode("ascii")).hexdigest()
