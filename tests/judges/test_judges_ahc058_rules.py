"""The production judge's pure parts: its inputs, its reading of outputs, its arithmetic and its scores."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from judges.ahc058.generator import (
    PINNED_SHA256,
    PUBLIC_SEEDS,
    ChaCha20Source,
    bundle_sha256,
    chacha_block,
    generate_inputs,
)
from judges.ahc058.scoring import CaseReport, CaseStatus, summarise
from judges.ahc058.simulator import Case, case_score, judge_output, parse_case
from judges.ahc058.suite import FULL_PROBLEM, QUICK_PROBLEM, Suite, load_suite
from judges.errors import SuiteError

IDLE = "-1\n"


@pytest.fixture(scope="module")
def suite() -> Suite:
    return load_suite()


@pytest.fixture(scope="module")
def case(suite: Suite) -> Case:
    return suite.cases[0]


# --- inputs -----------------------------------------------------------------------------------------------------------


def test_chacha_gives_the_published_key_stream() -> None:
    stream = b"".join(word.to_bytes(4, "little") for word in chacha_block([0] * 8, 0))
    assert stream.hex() == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )


def test_all_inputs_hash_to_the_published_bundle(suite: Suite) -> None:
    assert suite.sha256 == PINNED_SHA256 == bundle_sha256(suite.inputs)
    assert len(suite.inputs) == len(PUBLIC_SEEDS) == 150


def test_inputs_look_as_the_statement_says(suite: Suite) -> None:
    for text, case in zip(suite.inputs, suite.cases, strict=True):
        assert text.startswith("10 4 500 1\n1 ")
        assert text.endswith("\n")
        assert list(case.yields) == sorted(case.yields)
        assert (len(case.yields), max(case.yields) <= 100) == (10, True)
        assert [len(row) for row in case.prices] == [10] * 4
        assert case.prices[0][0] == 1
        for level, row in enumerate(case.prices):
            assert all(0.9 * a * 500**level <= c <= 101 * a * 500**level for a, c in zip(case.yields, row, strict=True))


def test_the_random_exponents_cover_zero_to_two() -> None:
    source = ChaCha20Source(7)
    values = [source.exponent() for _ in range(2000)]
    assert 0 <= min(values) < 0.01
    assert 1.99 < max(values) <= 2
    assert abs(sum(values) / len(values) - 1) < 0.05


@pytest.mark.parametrize("changed", [lambda texts: texts[:-1], lambda texts: [texts[0] + " ", *texts[1:]]])
def test_other_inputs_than_the_pinned_ones_are_refused_at_the_start(changed: object) -> None:
    with pytest.raises(SuiteError, match=f"instead of {PINNED_SHA256}"):
        load_suite(lambda: changed(generate_inputs()))  # type: ignore[operator]


def test_the_quick_problem_is_ten_of_the_cases(suite: Suite) -> None:
    quick = suite.seeds(QUICK_PROBLEM)
    assert len(quick) == len(set(quick)) == 10
    assert set(quick) < set(suite.seeds(FULL_PROBLEM)) == set(range(150))


# --- reading an output ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "output"),
    [
        ("nothing is bought", IDLE * 500),
        ("the last line has no end", (IDLE * 500)[:-1]),
        ("blank lines and comments are skipped", "# 0 0\n\n   \t\n  #x\n#\n" + IDLE * 500),
        ("a comment between actions", (IDLE + "# -7 x\n") * 500),
        ("spaces around, carriage returns", "  -1 \t\r\n" * 500),
        ("Unicode spaces", "\u00a0-1\u3000\n" * 500),
        ("a sign and leading zeros", "-01\n" * 499 + "+00 000\n"),
        ("anything after the last action", IDLE * 500 + "0 0\n99 99 99\ngarbage\n# x\n"),
        ("an upgrade that costs all there is", "0 0\n" + IDLE * 499),
    ],
)
def test_outputs_in_the_testers_form_are_read(case: Case, what: str, output: str) -> None:
    outcome = judge_output(case, output.encode())
    assert (outcome.accepted, outcome.message) == (True, ""), what


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("", "the output ends after 0 of 500 actions"),
        (IDLE * 499, "the output ends after 499 of 500 actions"),
        ("# comment\n" * 600, "the output ends after 0 of 500 actions"),
        (IDLE * 499 + "# -1\n", "the output ends after 499 of 500 actions"),
        ("-1 3\n" + IDLE * 499, "action 1 is followed by '3' on its line; nothing may"),
        ("0 0 # buy\n" + IDLE * 499, "action 1 is followed by '#' on its line; nothing may"),
        (IDLE + "0 0 0\n" + IDLE * 498, "action 2 is followed by '0' on its line; nothing may"),
        ("-1 -1\n" * 500, "action 1 is followed by '-1' on its line; nothing may"),
        ("0\n" + IDLE * 499, "action 1 names a level but no ID"),
        ("-2\n" * 500, "the level of action 1 is '-2', outside -1..3"),
        ("4 0\n" * 500, "the level of action 1 is '4', outside -1..3"),
        ("0 10\n" * 500, "the ID of action 1 is '10', outside 0..9"),
        ("0 -1\n" * 500, "the ID of action 1 is '-1', outside 0..9"),
        ("0 4294967296\n" * 500, "the ID of action 1 is '4294967296', outside 0..9"),
        ("18446744073709551615\n" * 500, "the level of action 1 is '18446744073709551615', outside -1..3"),
        (f"{'9' * 5000}\n" * 500, "the level of action 1 is '999999999999999999999999...', not an integer"),
        ("0.0 0\n" * 500, "the level of action 1 is '0.0', not an integer"),
        ("0x0 0\n" * 500, "the level of action 1 is '0x0', not an integer"),
        ("\u0660 0\n" * 500, "the level of action 1 is '\\u0660', not an integer"),
        ("0,0\n" * 500, "the level of action 1 is '0,0', not an integer"),
        ("\ufeff-1\n" * 500, "the level of action 1 is '\\ufeff-1', not an integer"),
        ("-1\x1c\n" * 500, "the level of action 1 is '-1\\x1c', not an integer"),
        ("-1\0\n" * 500, "the level of action 1 is '-1\\x00', not an integer"),
        ("-1 -1 " * 250, "action 1 is followed by '-1' on its line; nothing may"),
        ("0 1\n" + IDLE * 499, "turn 1: upgrade 0 1 costs 35, but there are 1 apples"),
        ("0 0\n0 0\n" + IDLE * 498, "turn 2: upgrade 0 0 costs 2, but there are 1 apples"),
    ],
)
def test_an_output_that_breaks_a_rule_is_wrong_and_says_where(case: Case, output: str, message: str) -> None:
    outcome = judge_output(case, output.encode())
    assert (outcome.accepted, outcome.score, outcome.message) == (False, 0, message)


@pytest.mark.parametrize("before_after", [(b"\xff\n", b""), (b"", b"\xc3"), (b"# \xed\xa0\x80\n", b"")])
def test_an_output_that_is_not_utf8_is_wrong_wherever_that_is(
    case: Case, before_after: tuple[bytes, bytes]
) -> None:
    before, after = before_after
    assert judge_output(case, before + b"-1\n" * 500 + after).message.startswith("the output is not UTF-8 (byte ")


def test_spending_the_last_apple_for_nothing_is_wrong(suite: Suite) -> None:
    # In the last turn one apple for a power that yields one apple again is fine; at a higher level nothing comes back.
    spent = Case(yields=(1,) * 10, prices=((1,) * 10, (1,) * 10, (1,) * 10, (1,) * 10))
    assert judge_output(spent, (IDLE * 499 + "0 0\n").encode()).apples == 1
    outcome = judge_output(spent, (IDLE * 499 + "1 0\n").encode())
    assert (outcome.accepted, outcome.message) == (False, "0 apples are left; none count")


@given(st.binary(max_size=300))
def test_no_output_makes_the_reader_fail(case: Case, output: bytes) -> None:
    assert not judge_output(case, output).accepted


# --- arithmetic -------------------------------------------------------------------------------------------------------


class World:
    """The rules once more, from the statement, in numpy's wrapping 64-bit integers."""

    def __init__(self, case: Case) -> None:
        self.yields = np.array(case.yields, dtype=np.int64)
        self.prices = np.array(case.prices, dtype=np.int64)
        self.machines, self.powers = np.ones((4, 10), dtype=np.int64), np.zeros((4, 10), dtype=np.int64)
        self.stock = np.array([1], dtype=np.int64)

    @property
    def apples(self) -> int:
        return int(self.stock[0])

    def price(self, level: int, machine: int) -> int:
        return int(self.prices[level, machine] * (self.powers[level, machine] + 1))

    def turn(self, level: int, machine: int) -> None:
        if level >= 0:
            self.stock -= self.price(level, machine)
            self.powers[level, machine] += 1
        self.stock += np.sum(self.yields * self.machines[0] * self.powers[0])
        for upper in (1, 2, 3):
            self.machines[upper - 1] += self.machines[upper] * self.powers[upper]


def written(actions: list[tuple[int, int]]) -> bytes:
    return "".join(f"{level} {machine}\n" if level >= 0 else IDLE for level, machine in actions).encode()


def test_random_plans_end_as_in_a_second_implementation(suite: Suite) -> None:
    rng = random.Random(5)
    for case in suite.cases[:12]:
        world = World(case)
        actions = []
        for _ in range(500):
            level, machine = rng.randrange(-1, 4), rng.randrange(10)
            if not actions:
                level, machine = 0, 0
            if level < 0 or world.price(level, machine) > world.apples:
                level, machine = -1, -1
            world.turn(level, machine)
            actions.append((level, machine))
        outcome = judge_output(case, written(actions))
        assert (outcome.accepted, outcome.apples, outcome.message) == (True, world.apples, "")
        assert outcome.score == case_score(world.apples)
        assert sum(level > 0 for level, _ in actions) > 5


def test_sums_beyond_64_bits_wrap_around_as_in_the_tester() -> None:
    actions = [(0, 0), (1, 0), (2, 0), (3, 0), *[(-1, -1)] * 496]
    signs = set()
    for exponent in range(45, 59):
        case = Case(yields=(3 * 2**exponent, *[1] * 9), prices=((1,) * 10,) * 4)
        world = World(case)
        for action in actions:
            world.turn(*action)
        outcome = judge_output(case, written(actions))
        assert (outcome.accepted, outcome.apples) == (world.apples > 0, world.apples)
        signs.add(outcome.accepted)
    assert signs == {True, False}


@pytest.mark.parametrize(
    ("apples", "score"),
    [(1, 0), (2, 100_000), (3, 158_496), (1000, 996_578), (2**57, 5_700_000), (2**59 + 1, 5_900_000)],
)
def test_a_case_scores_the_binary_logarithm(apples: int, score: int) -> None:
    assert case_score(apples) == score


# --- totals -----------------------------------------------------------------------------------------------------------


def reports(*scores: int | None) -> list[CaseReport]:
    return [
        CaseReport(seed, CaseStatus.ACCEPTED, score) if score is not None else CaseReport(seed, CaseStatus.WRONG_ANSWER)
        for seed, score in enumerate(scores)
    ]


def test_failed_cases_count_as_zero_and_the_rest_is_rewarded_but_not_valid() -> None:
    summary = summarise(reports(*[5_400_000] * 100, *[None] * 50))
    assert (summary.total, summary.raw, summary.reward) == (540_000_000, 3_600_000.0, 1.2)
    assert (summary.valid, summary.worst) == (False, CaseStatus.WRONG_ANSWER)
    assert summary.counts == {"WRONG_ANSWER": 50, "ACCEPTED": 100}


def test_all_accepted_is_valid_unless_nothing_was_gained() -> None:
    good = summarise(reports(5_600_000, 5_600_001))
    assert (good.valid, good.raw, good.reward) == (True, 5_600_000.5, 5_600_000.5 / 3_000_000)
    nothing = summarise(reports(0, 0))
    assert (nothing.valid, nothing.raw, nothing.reward) == (False, 0.0, 0.0)


def test_the_worst_status_names_the_submission() -> None:
    order = [CaseStatus.ACCEPTED, CaseStatus.OUTPUT_LIMIT_EXCEEDED, CaseStatus.MEMORY_LIMIT_EXCEEDED]
    order += [CaseStatus.TIME_LIMIT_EXCEEDED, CaseStatus.RUNTIME_ERROR, CaseStatus.WRONG_ANSWER]
    for count in range(1, len(order) + 1):
        summary = summarise([CaseReport(seed, status, 1) for seed, status in enumerate(order[:count])])
        assert summary.worst is order[count - 1]
        assert summary.valid == (count == 1)


def test_parsing_an_input_keeps_every_number() -> None:
    rows = [" ".join(str(10 * row + column) for column in range(10)) for row in range(5)]
    case = parse_case("10 4 500 1\n" + "\n".join(rows) + "\n")
    assert case.yields == tuple(range(10))
    assert case.prices == tuple(tuple(range(10 * row, 10 * row + 10)) for row in range(1, 5))
