"""What the production catalogue builds compiles without warnings and plays legally; its landscape has ups and downs."""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from executors.answer import Composer
from executors.assemble import assemble
from executors.catalogue import Catalogue
from judges.ahc058.generator import generate_input
from judges.ahc058.simulator import judge_output, parse_case

pytestmark = pytest.mark.slow

TASK_DIR = Path(__file__).resolve().parents[2] / "harbor" / "ahc058"
MIXTURES = 30
CASES = (1, 39, 1000)
CPU_LIMIT_S = 2
WORK, TENTH = "kWork = 1.0e7;", "kWork = 1.0e6;"
GOOD = {"choose": "value", "levels": "all"}


class Workshop:
    """Compiles and runs programs, as many at once as there are cores, and does nothing twice.

    Compiling is what takes time, so it is done with little optimisation and with headers compiled in advance; searches
    get a tenth of their budget in return.
    """

    def __init__(self, directory: Path, pool: ThreadPoolExecutor, headers: Iterable[str]) -> None:
        self._directory = directory
        self._pool = pool
        self._headers = directory / "headers.hpp"
        self._headers.write_text("".join(f"#include {name}\n" for name in headers), encoding="utf-8")
        compile_cpp(self._headers, directory / "headers.hpp.gch", "-x", "c++-header")
        self._binaries: dict[str, Path] = {}
        self._scores: dict[tuple[str, int], int] = {}

    def prepare(self, programs: Iterable[str]) -> None:
        """Compile what is new; fails on any warning."""
        new = [body for body in dict.fromkeys(map(body_of, programs)) if body not in self._binaries]
        paths = [self._directory / f"program{len(self._binaries) + number}" for number in range(len(new))]
        list(self._pool.map(self._compile, new, paths))
        self._binaries |= dict(zip(new, paths, strict=True))

    def _compile(self, body: str, binary: Path) -> None:
        path = binary.with_suffix(".cpp")
        path.write_text(body.replace(WORK, TENTH), encoding="utf-8")
        compile_cpp(path, binary, "-Winvalid-pch", "-include", str(self._headers))

    def total(self, program: str, cases: Sequence[int] = CASES[:2]) -> int:
        """The sum of the scores; fails when a case is played illegally or takes too long."""
        self.prepare([program])
        body = body_of(program)
        missing = [case for case in cases if (body, case) not in self._scores]
        scores = self._pool.map(lambda case: run_program(self._binaries[body], case), missing)
        self._scores |= {(body, case): score for case, score in zip(missing, scores, strict=True)}
        return sum(self._scores[body, case] for case in cases)


def body_of(program: str) -> str:
    """Programs that differ only in settings without effect are the same program."""
    return program.split("production-config end\n")[-1]


def compile_cpp(source: Path, target: Path, *options: str) -> None:
    command = ["g++", "-O1", "-std=gnu++20", "-Wall", "-Wextra", *options, "-o", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, ""), done.stderr[:3000]


def run_program(binary: Path, case: int) -> int:
    """The score of one case, played within the judge's CPU limit."""
    text = generate_input(case)
    # The limit ends a slow program by a signal; a clock would measure the machine's other work as well.
    command = ["prlimit", f"--cpu={CPU_LIMIT_S}", str(binary)]
    done = subprocess.run(command, input=text.encode(), capture_output=True, timeout=120, check=False)
    assert done.returncode == 0
    outcome = judge_output(parse_case(text), done.stdout)
    assert outcome.accepted, outcome.message
    return outcome.score


@pytest.fixture(scope="module")
def apples() -> Catalogue:
    return Catalogue.load(TASK_DIR / "offline")


@pytest.fixture(scope="module")
def seed() -> str:
    return (TASK_DIR / "solution" / "seed.cpp").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def mixtures(apples: Catalogue) -> list[str]:
    """Programs of random settings, every value of every setting among them, two thirds of them of the better kind."""
    rng = random.Random(58)
    columns = {}
    for key, setting in apples.settings.items():
        column = (sorted(setting.values) * MIXTURES)[:MIXTURES]
        rng.shuffle(column)
        columns[key] = column
    found = [{key: column[row] for key, column in columns.items()} for row in range(MIXTURES)]
    for row in range(MIXTURES):
        found[row] |= GOOD if row % 3 == 0 else {"choose": "value"} if row % 3 == 1 else {}
    return [assemble(apples, configuration) for configuration in found]


@pytest.fixture(scope="module")
def workshop(
    tmp_path_factory: pytest.TempPathFactory, apples: Catalogue, mixtures: list[str]
) -> Iterator[Workshop]:
    headers = re.findall(r"^#include (\S+)$", "".join(apples.components.values()), re.MULTILINE)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        shop = Workshop(tmp_path_factory.mktemp("programs"), pool, headers)
        shop.prepare(mixtures)
        yield shop


@pytest.mark.parametrize("number", range(MIXTURES))
def test_a_mixture_of_settings_plays_legally_and_in_time(workshop: Workshop, mixtures: list[str], number: int) -> None:
    assert workshop.total(mixtures[number], CASES) > 0


def test_the_seed_rewritten_from_the_catalogue_plays_alike(workshop: Workshop, apples: Catalogue, seed: str) -> None:
    assert workshop.total(assemble(apples, apples.defaults), CASES) == workshop.total(seed, CASES)


def test_some_mechanisms_alone_lift_the_seed_and_others_have_nothing_to_work_on(
    workshop: Workshop, apples: Catalogue, seed: str
) -> None:
    composer = Composer(apples)
    names = ["final value", "return per apple", "local search", "endgame stop", "higher levels", "single ID"]
    programs = {name: composer.compose(seed, f"Use {name}.").program for name in names}
    workshop.prepare(programs.values())
    start = workshop.total(seed)
    lifted = {name for name, program in programs.items() if workshop.total(program) > 1.005 * start}
    assert lifted == {"final value", "return per apple", "local search", "endgame stop"}
    assert workshop.total(programs["higher levels"]) == workshop.total(programs["single ID"]) == start


def test_two_mechanisms_together_do_what_neither_does_alone(workshop: Workshop, apples: Catalogue, seed: str) -> None:
    composer = Composer(apples)

    def total(guidance: str) -> int:
        return workshop.total(composer.compose(seed, guidance).program)

    higher = total("Use higher levels")
    assert total("Use final value and higher levels") > 2 * max(total("Use final value"), higher)
    assert total("Use local search and higher levels") > 1.5 * max(total("Use local search"), higher)


def test_some_mechanisms_harm(workshop: Workshop, apples: Catalogue) -> None:
    changes = [{}, {"save": "wait"}, {"save": "brief"}, {"levels": "ladder"}, {"choose": "payback"}]
    programs = [assemble(apples, {**apples.defaults, **GOOD, **change}) for change in changes]
    workshop.prepare(programs)
    good, wait, brief, ladder, payback = map(workshop.total, programs)
    assert wait < payback < 0.8 * good
    assert max(brief, ladder) < good


def test_a_few_good_hops_reach_near_the_best_and_always_alike(
    workshop: Workshop, apples: Catalogue, seed: str, tmp_path: Path
) -> None:
    composer = Composer(apples)
    hops = ["Use final value and higher levels", "Use a growing horizon", "Use single-ID focus", "Use several starts"]
    program, reached = seed, [workshop.total(seed)]
    for hop in hops:
        program = composer.compose(program, hop).program
        reached.append(workshop.total(program))
    assert reached == sorted(reached)
    # One more, as the judge has it: from its own includes, optimised, with its whole budget.
    (tmp_path / "best.cpp").write_text(composer.compose(program, "Use beam search").program, encoding="utf-8")
    compile_cpp(tmp_path / "best.cpp", tmp_path / "best", "-O2")
    first, again, other = (run_program(tmp_path / "best", case) for case in (CASES[0], CASES[0], CASES[1]))
    assert first == again
    assert reached[-1] < first + other
    assert (first + other) / 2 > 5_450_000
