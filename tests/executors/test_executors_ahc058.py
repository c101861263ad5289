"""The production catalogue: which words name its mechanisms, and which settings they change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from executors.answer import Composer
from executors.assemble import assemble, effective, read_configuration
from executors.catalogue import Catalogue
from executors.matching import Matcher

TASK_DIR = Path(__file__).resolve().parents[2] / "harbor" / "ahc058"
TABLE = [
    ("Make it better.", []),
    ("Think about the order in which the economy grows.", []),
    ("Use final value: buy what adds most.", ["final-value"]),
    ("Choose each upgrade by its marginal value at the end", ["final-value"]),
    ("Buy what has the shortest payback time", ["payback"]),
    ("Use the cost-benefit ratio", ["return-per-apple"]),
    ("Maximise the return on investment", ["return-per-apple"]),
    ("Use machines that make machines", ["higher-levels"]),
    ("Use all four levels", ["higher-levels"]),
    ("Grow level by level", ["level-ladder"]),
    ("Focus on a single ID", ["single-id"]),
    ("Try each ID in turn as the main one", ["single-id"]),
    ("Rate the IDs by yield per price", ["rated-id"]),
    ("Choose the best ID", ["rated-id"]),
    ("Use a horizon that grows", ["growing-horizon"]),
    ("Try several horizons", ["horizon-search"]),
    ("Do a small lookahead", ["beam-search"]),
    ("Use Beam-Search", ["beam-search"]),
    ("Stop buying near the end", ["endgame-stop"]),
    ("Use hill climbing on the upgrade times", ["local-search"]),
    ("Anneal the plan", ["annealing"]),
    ("Multi-start with successive halving", ["several-starts"]),
    ("Randomized greedy with restarts", ["restarts"]),
    ("Save up for the best upgrade", ["saving-up"]),
    # Two of them, in order of appearance; one that is spoken against does not count.
    ("Use higher levels and final value", ["higher-levels", "final-value"]),
    ("Use the final value instead of the payback rule, over all levels", ["final-value", "higher-levels"]),
    ("Replace the cheapest upgrade by the final value", ["final-value"]),
    # They exclude each other, so the first counts.
    ("Use beam search and saving up", ["beam-search"]),
    ("Use local search and simulated annealing", ["local-search"]),
    # Parts of words are not names.
    ("Leveled, beaming and annealed-ish machines", []),
]


@pytest.fixture(scope="module")
def apples() -> Catalogue:
    return Catalogue.load(TASK_DIR / "offline")


@pytest.fixture(scope="module")
def matcher(apples: Catalogue) -> Matcher:
    return Matcher(apples)


@pytest.fixture(scope="module")
def seed() -> str:
    return (TASK_DIR / "solution" / "seed.cpp").read_text(encoding="utf-8")


def names(matcher: Matcher, text: str) -> list[str]:
    return [mechanism.id for mechanism in matcher.match(text).applied]


@pytest.mark.parametrize(("text", "expected"), TABLE)
def test_guidance_applies_exactly_the_mechanisms_it_names(matcher: Matcher, text: str, expected: list[str]) -> None:
    assert names(matcher, text) == expected


def test_every_wording_finds_its_own_mechanism(apples: Catalogue, matcher: Matcher) -> None:
    for mechanism in apples.data.mechanisms:
        for wording in mechanism.wordings:
            for text in (f"Use {wording}.", f"USE {wording.upper()}!", f"({wording})"):
                assert names(matcher, text)[:1] == [mechanism.id], text


def test_it_offers_many_mechanisms_and_every_value_can_be_reached(apples: Catalogue) -> None:
    assert len(apples.data.mechanisms) >= 14
    reached = {(key, value) for mechanism in apples.data.mechanisms for key, value in mechanism.sets.items()}
    reached |= set(apples.defaults.items())
    assert reached == {(key, value) for key, setting in apples.settings.items() for value in setting.values}


def test_each_example_names_one_mechanism_of_its_own_family(matcher: Matcher) -> None:
    data = json.loads((TASK_DIR / "guidance_examples.json").read_text(encoding="utf-8"))
    found = [names(matcher, example["guidance"]) for example in data["examples"]]
    assert all(len(ids) == 1 for ids in found), found
    assert len({ids[0] for ids in found}) == len(found) == 8
    # What the brief offers by name is there.
    offered = data["brief"].partition("Mechanisms: ")[2].rstrip(".").split(", ")
    assert [len(names(matcher, name)) for name in offered] == [1] * len(offered)


def test_parents_in_the_examples_are_described_as_summaries_describe_them(apples: Catalogue) -> None:
    sentences = {text for setting in apples.settings.values() for text in setting.values.values()}
    data = json.loads((TASK_DIR / "guidance_examples.json").read_text(encoding="utf-8"))
    for example in data["examples"]:
        told = example["parent"].split(". ", 1)[1]
        assert {sentence.strip() + "." for sentence in told.rstrip(".").split(".")} <= sentences, told


def test_each_mechanism_changes_the_configuration_of_the_seed_unless_the_seed_has_it(
    apples: Catalogue, seed: str
) -> None:
    composer = Composer(apples)
    had = {"cheapest-first", "base-level", "all-ids", "full-horizon"}
    for mechanism in apples.data.mechanisms:
        answer = composer.compose(seed, f"Use {mechanism.name}.")
        assert answer.changed == (mechanism.id not in had), mechanism.id
        if answer.changed:
            configuration = read_configuration(apples, answer.program).configuration
            assert all(configuration[key] == value for key, value in mechanism.sets.items())


def test_settings_that_do_nothing_yet_are_asleep(apples: Catalogue) -> None:
    wanted = {**apples.defaults, "ids": "each", "horizon": "search", "build": "beam", "save": "wait"}
    built, asleep = effective(apples, wanted)
    assert built == apples.defaults
    assert {item.key for item in asleep} == {"ids", "horizon", "build", "save"}
    awake = {**wanted, "choose": "value", "levels": "all", "finish": "stop"}
    assert {item.key for item in effective(apples, awake)[1]} == {"save", "finish"}


def test_a_longest_summary_still_shows_the_parent_what_it_does(apples: Catalogue) -> None:
    """The policy sees 120 characters of a summary: the way of choosing, the levels and at least one more choice."""
    longest = [max(setting.values.values(), key=len) for setting in list(apples.settings.values())[:3]]
    assert len(" ".join(longest)) <= 120


def test_programs_do_not_depend_on_a_clock_unless_the_machine_is_slow(apples: Catalogue) -> None:
    program = assemble(apples, {**apples.defaults, "choose": "value", "levels": "all", "search": "anneal"})
    assert "chrono" not in program
    assert "random_device" not in program
    assert program.count("std::clock()") == 1
