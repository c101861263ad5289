"""Which inputs a problem id stands for: all 150 public ones, or a fixed ten of them for quick answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from judges.ahc058.generator import PINNED_SHA256, bundle_sha256, generate_inputs
from judges.ahc058.simulator import Case, parse_case
from judges.errors import SuiteError

LABEL = "public-150"
FULL_PROBLEM = "ahc058"
QUICK_PROBLEM = "ahc058-quick"
# Chosen among 400,000 random subsets because the mean over these ten comes closest to the mean over all 150: within 1 %
# for each of 17 programs of very different kinds, whose means span 1.7 to 5.6 million.
QUICK_SEEDS = (1, 5, 39, 43, 74, 94, 103, 115, 134, 142)


@dataclass(frozen=True)
class Suite:
    """The verified public inputs, by seed."""

    sha256: str
    inputs: tuple[str, ...]
    cases: tuple[Case, ...]

    def seeds(self, problem: str) -> tuple[int, ...]:
        """Which seeds a problem id stands for."""
        return tuple(range(len(self.inputs))) if problem == FULL_PROBLEM else QUICK_SEEDS


def load_suite(generate: Callable[[], list[str]] = generate_inputs) -> Suite:
    """Generate all inputs and verify their hash; raises `SuiteError` when this machine generates others."""
    inputs = generate()
    found = bundle_sha256(inputs)
    if found != PINNED_SHA256:
        raise SuiteError(
            f"the generated inputs hash to {found} instead of {PINNED_SHA256}: the generator was changed, or this "
            "machine's mathematical library rounds differently; scores would not be comparable, so use another machine"
        )
    return Suite(sha256=found, inputs=tuple(inputs), cases=tuple(map(parse_case, inputs)))
