"""The lasso catalogue: every mechanism changes the program, and whatever is combined compiles and solves correctly."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.lasso_check import TOLERANCE, LassoCase, compile_solver, make_lasso_case, read_constants, run_solver

from executors.answer import Composer
from executors.assemble import assemble, effective, read_configuration
from executors.catalogue import Catalogue
from judges.lasso_path.wrapper import read_wrapper

TASK_DIR = Path(__file__).resolve().parents[2] / "harbor" / "lasso_path"
MIXTURES = 13


@pytest.fixture(scope="module")
def lasso() -> Catalogue:
    return Catalogue.load(TASK_DIR / "offline")


@pytest.fixture(scope="module")
def answers(lasso: Catalogue) -> Composer:
    return Composer(lasso)


@pytest.fixture(scope="module")
def seed() -> str:
    return (TASK_DIR / "solution" / "seed.py").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def cases() -> list[LassoCase]:
    """More rows, more columns, correlated columns, a column of zeros."""
    return [
        make_lasso_case(60, 20, 1),
        make_lasso_case(40, 150, 2),
        make_lasso_case(50, 60, 3, rho=0.9, blank=1),
    ]


def mixtures(catalogue: Catalogue) -> list[dict[str, str]]:
    """Random configurations in which every value of every setting occurs, most of them with the block awake."""
    rng = random.Random(5)
    columns: dict[str, list[str]] = {}
    for key, setting in catalogue.settings.items():
        values = sorted(setting.values)
        column = (values * MIXTURES)[:MIXTURES]
        rng.shuffle(column)
        columns[key] = column
    found = [{key: column[row] for key, column in columns.items()} for row in range(MIXTURES)]
    for row in range(0, MIXTURES, 2):
        found[row]["update"] = "block"
    return found


def test_the_mixtures_cover_every_value(lasso: Catalogue) -> None:
    built = [effective(lasso, configuration)[0] for configuration in mixtures(lasso)]
    for key, setting in lasso.settings.items():
        assert {configuration[key] for configuration in built} == set(setting.values), key


@pytest.mark.slow
@pytest.mark.parametrize("number", range(MIXTURES))
def test_a_mixture_of_settings_solves_correctly(
    lasso: Catalogue, cases: list[LassoCase], tmp_path: Path, number: int
) -> None:
    binary = compile_solver(assemble(lasso, mixtures(lasso)[number]), tmp_path, f"mixture{number}")
    for case in cases:
        assert case.excess(run_solver(binary, case)) <= TOLERANCE


@pytest.mark.slow
def test_the_seed_solves_correctly_and_its_rewritten_form_alike(
    lasso: Catalogue, seed: str, cases: list[LassoCase], tmp_path: Path
) -> None:
    by_hand = compile_solver(seed, tmp_path, "seed")
    rewritten = compile_solver(assemble(lasso, lasso.defaults), tmp_path, "rewritten")
    for case in cases:
        answer = run_solver(by_hand, case)
        assert case.excess(answer) <= TOLERANCE
        assert case.excess(run_solver(rewritten, case)) == pytest.approx(case.excess(answer), abs=1e-9)


def test_the_checker_itself_refuses_what_is_not_good_enough(cases: list[LassoCase]) -> None:
    assert cases[0].excess(bytes(8 * 50 * 20)) > 1e-3
    with pytest.raises(ValueError, match="reshape"):
        cases[0].excess(bytes(8 * 50 * 20 - 8))


def test_each_mechanism_changes_the_program_or_says_why_not(lasso: Catalogue, answers: Composer, seed: str) -> None:
    plain = {mechanism.id for mechanism in lasso.data.mechanisms if _is_default(lasso, mechanism.sets)}
    assert plain == {"residual-updates", "tight-stop"}
    programs = {}
    for mechanism in lasso.data.mechanisms:
        answer = answers.compose(seed, f"Use {mechanism.name}: it {mechanism.effect}.")
        assert answer.changed == (mechanism.id not in plain), mechanism.id
        programs[mechanism.id] = answer.program
        read = read_configuration(lasso, answer.program).configuration
        assert answer.changed is False or all(read[key] == value for key, value in mechanism.sets.items())
    # Without a Gram block of the active columns there is nothing to finish or to speed up.
    asleep = {"newton-finish", "anderson"}
    built = {key: read_constants(program) for key, program in programs.items()}
    default = read_constants(assemble(lasso, lasso.defaults))
    assert {key for key, constants in built.items() if constants == default} == asleep


def _is_default(catalogue: Catalogue, sets: Mapping[str, str]) -> bool:
    return all(catalogue.defaults[key] == value for key, value in sets.items())


def test_every_program_is_one_that_the_judge_can_read(lasso: Catalogue) -> None:
    for configuration in [lasso.defaults, *mixtures(lasso)]:
        program = assemble(lasso, configuration)
        source, flags = read_constants(program)
        wrapper = read_wrapper(program.encode())
        assert (wrapper.source, list(wrapper.flags)) == (source.encode(), flags)
        assert len(program) < 20_000


def test_the_examples_of_the_small_policy_are_understood(answers: Composer, lasso: Catalogue) -> None:
    import json

    data = json.loads((TASK_DIR / "guidance_examples.json").read_text(encoding="utf-8"))
    told = [sentence for setting in lasso.settings.values() for sentence in setting.values.values()]
    seed = (TASK_DIR / "solution/seed.md").read_text(encoding="utf-8")
    known = set(re.findall(r"\w+", " ".join([*told, seed]).casefold()))
    for example in data["examples"]:
        answer = answers.compose(assemble(lasso, lasso.defaults), example["guidance"])
        assert answer.changed, example["guidance"]
        line = example["parent"].split(". ", 1)[1]
        assert set(re.findall(r"\w+", line.casefold())) <= known, line
