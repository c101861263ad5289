"""Where the cases come from: the project's own set, or the official data of a FrontierCS checkout.

Either way the hash of the whole set is verified every time it is loaded, and label and hash travel with every verdict.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from judges.errors import SuiteError
from judges.polyomino.generator import CASE_COUNT, OWN_SHA256, cases_sha256, generate_cases

OWN_LABEL = "own"
OFFICIAL_LABEL = "frontiercs"
# SHA-256 over all files of `testdata`, in the order of their names.
OFFICIAL_SHA256 = "7f626e2234b7a7c43e0ea5427d5d36005f56014e5360706742a48f22b80d3058"
FULL_PROBLEM = "0"
QUICK_PROBLEM = "0-quick"
_SMALL_QUICK_CASES = (19, 29, 39, 49, 59, 69)
# Two larger cases of some 600 to 850 pieces: long enough to matter, short enough for a quick answer.
_QUICK_CASES = {OWN_LABEL: (2, 5, *_SMALL_QUICK_CASES), OFFICIAL_LABEL: (4, 18, *_SMALL_QUICK_CASES)}
_OFFICIAL_SUBDIR = Path("algorithmic/problems/0/testdata")


@dataclass(frozen=True)
class Suite:
    """A verified set of inputs; case numbers start at 1."""

    label: str
    sha256: str
    inputs: tuple[bytes, ...]
    verified: bool = True
    """False only for FrontierCS data whose unknown hash was explicitly accepted."""

    def case_numbers(self, problem: str) -> tuple[int, ...]:
        """Which cases a problem id stands for."""
        if problem == FULL_PROBLEM:
            return tuple(range(1, len(self.inputs) + 1))
        return _QUICK_CASES[self.label]


def load_own_suite(cache: Path, generate: Callable[[], list[bytes]] = generate_cases) -> Suite:
    """The own set from `cache`, generated there first when it is missing or damaged.

    Raises `SuiteError` when this machine generates something else than the pinned set.
    """
    inputs = _read_inputs(cache)
    if inputs is None or cases_sha256(inputs) != OWN_SHA256:
        inputs = generate()
        found = cases_sha256(inputs)
        if found != OWN_SHA256:
            raise SuiteError(
                f"the generated case set hashes to {found} instead of {OWN_SHA256}; the generator was changed"
            )
        _write_inputs(cache, inputs)
    return Suite(label=OWN_LABEL, sha256=OWN_SHA256, inputs=tuple(inputs))


def load_official_suite(directory: Path, *, accept_changed: bool = False) -> Suite:
    """The official set from a FrontierCS checkout, or from a directory that holds `testdata/`.

    Raises `SuiteError` when the data is missing, or differs from the published set and `accept_changed` is not given.
    """
    places = (directory / _OFFICIAL_SUBDIR, directory / "testdata")
    testdata = next((place for place in places if place.is_dir()), None)
    if testdata is None:
        raise SuiteError(f"no FrontierCS data in {directory}: neither {_OFFICIAL_SUBDIR} nor testdata is there")
    found = _directory_sha256(testdata)
    if found != OFFICIAL_SHA256 and not accept_changed:
        raise SuiteError(
            f"the data in {testdata} hashes to {found} instead of {OFFICIAL_SHA256}, so scores would not be "
            "comparable; check out the original data, or pass --accept-changed-data to use it as it is"
        )
    inputs = _read_inputs(testdata)
    if inputs is None:
        raise SuiteError(f"{testdata} does not hold the inputs 1.in to {CASE_COUNT}.in")
    return Suite(label=OFFICIAL_LABEL, sha256=found, inputs=tuple(inputs), verified=found == OFFICIAL_SHA256)


def _directory_sha256(directory: Path) -> str:
    digest = hashlib.sha256()
    try:
        for path in sorted(directory.iterdir(), key=lambda entry: entry.name):
            if path.is_file():
                digest.update(path.read_bytes())
    except OSError as error:
        raise SuiteError(f"cannot read {error.filename}: {error.strerror}") from error
    return digest.hexdigest()


def _read_inputs(directory: Path) -> list[bytes] | None:
    """The 70 inputs of a directory, or None when one is missing."""
    try:
        return [(directory / f"{number}.in").read_bytes() for number in range(1, CASE_COUNT + 1)]
    except OSError:
        return None


def _write_inputs(cache: Path, inputs: list[bytes]) -> None:
    """Write a set so that a reader sees the old one, none, or the complete new one."""
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{cache.name}-", dir=cache.parent))
        try:
            for number, data in enumerate(inputs, start=1):
                (fresh / f"{number}.in").write_bytes(data)
            fresh.chmod(0o755)
            if cache.exists():
                shutil.rmtree(cache)
            os.replace(fresh, cache)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise SuiteError(f"cannot store the case set in {cache}: {error.strerror or error}") from error
