"""Which words make the offline executor act, and which do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors.catalogue import Catalogue
from executors.matching import Matcher

TABLE = [
    ("Make it better.", []),
    ("", []),
    ("Think about the structure of the problem and use a cleverer algorithm.", []),
    # Parts of words are not names.
    ("Bookshelfs and contactless restarting of a skylined thing", []),
    ("Use shelf packing: stack boxes.", ["shelf-packing"]),
    ("use SHELF   PACKING", ["shelf-packing"]),
    ("Use shelf-packing", ["shelf-packing"]),
    ("Put the pieces on shelves", ["shelf-packing"]),
    ("Use exact\ncells", ["exact-cells"]),
    ("Bottom\u2010left placement on a bitmap", ["exact-cells"]),
    ("Use LNS in the remaining time", ["ruin-and-recreate"]),
    ("Use ruin & recreate", ["ruin-and-recreate"]),
    # Order of appearance, two at most, each once.
    ("Use width search and gap filling", ["width-search", "gap-filling"]),
    ("Use gap filling and width search", ["gap-filling", "width-search"]),
    ("Use gravity, then gravity, then contact scoring", ["gravity", "contact-scoring"]),
    ("Use tallest first, skyline placement and simulated annealing", ["tallest-first", "skyline"]),
    # The longer phrase hides the shorter one inside it.
    ("Use flat rotation", ["lie-flat"]),
    ("Try rotations and reflections", ["all-orientations"]),
    ("Use all rotations", ["four-rotations"]),
    ("Use rotation", ["four-rotations"]),
    ("Fill holes with small pieces", ["hole-filling"]),
    # What the guidance speaks against is not wanted.
    ("Avoid shelf packing; use the skyline", ["skyline"]),
    ("Instead of the single row use shelves", ["shelf-packing"]),
    ("Replace the single row by shelves", ["shelf-packing"]),
    ("Don't use annealing, use random restarts", ["restarts"]),
    ("Use skyline placement rather than shelves", ["skyline"]),
    ("Place without rotation, with contact scoring", ["contact-scoring"]),
    # A phrase that itself begins with such a word still counts.
    ("Avoid pockets", ["pocket-avoidance"]),
]


@pytest.fixture(scope="module")
def matcher(catalogue: Catalogue) -> Matcher:
    return Matcher(catalogue)


def names(matcher: Matcher, text: str) -> list[str]:
    return [mechanism.id for mechanism in matcher.match(text).applied]


@pytest.mark.parametrize(("text", "expected"), TABLE)
def test_guidance_applies_exactly_the_mechanisms_it_names(matcher: Matcher, text: str, expected: list[str]) -> None:
    assert names(matcher, text) == expected


def test_every_wording_of_the_catalogue_finds_its_own_mechanism(catalogue: Catalogue, matcher: Matcher) -> None:
    for mechanism in catalogue.data.mechanisms:
        for wording in mechanism.wordings:
            for text in (f"Use {wording}.", f"USE {wording.upper()}!", f"({wording})"):
                assert names(matcher, text)[:1] == [mechanism.id], text


def test_a_second_mechanism_that_contradicts_the_first_is_refused(matcher: Matcher) -> None:
    match = matcher.match("Use shelf packing and skyline placement")
    assert [mechanism.id for mechanism in match.applied] == ["shelf-packing"]
    assert [(r.mechanism.id, r.because_of.id) for r in match.refused] == [("skyline", "shelf-packing")]


def test_a_conflict_named_by_the_catalogue_is_refused_in_both_orders(matcher: Matcher) -> None:
    assert names(matcher, "Use gravity and exact cells") == ["gravity"]
    assert names(matcher, "Use exact cells and gravity") == ["exact-cells"]


def test_a_mechanism_that_cannot_work_with_what_the_first_chooses_is_refused_in_both_orders(matcher: Matcher) -> None:
    assert names(matcher, "Use skyline placement and contact scoring") == ["skyline"]
    assert names(matcher, "Use contact scoring and skyline placement") == ["contact-scoring"]
    assert names(matcher, "Use exact cells and contact scoring") == ["exact-cells", "contact-scoring"]


def test_mechanisms_that_set_the_same_value_go_together(matcher: Matcher) -> None:
    assert names(matcher, "Use mirror images and all orientations") == ["mirror-images", "all-orientations"]


def test_a_refused_mechanism_still_takes_one_of_the_two_places(matcher: Matcher) -> None:
    assert names(matcher, "Use shelf packing, skyline placement and width search") == ["shelf-packing"]


def test_each_shipped_example_names_one_mechanism_of_its_own_family(matcher: Matcher, task_dir: Path) -> None:
    examples = json.loads((task_dir / "guidance_examples.json").read_text(encoding="utf-8"))["examples"]
    found = [names(matcher, example["guidance"]) for example in examples]
    assert all(len(ids) == 1 for ids in found), found
    assert len({ids[0] for ids in found}) == len(examples) == 8


@given(st.text(max_size=300))
def test_any_text_is_matched_without_a_fault_and_always_alike(matcher: Matcher, text: str) -> None:
    assert matcher.match(text) == matcher.match(text)
    assert len(matcher.match(text).applied) <= 2


def test_very_long_guidance_is_read_up_to_a_bound(matcher: Matcher) -> None:
    assert names(matcher, "bla " * 200_000 + "shelf packing") == []
