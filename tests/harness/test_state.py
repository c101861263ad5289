"""Strict numbers and round trips of candidates, nodes and verdicts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from harness.state import (
    LibraryEntry,
    LibraryNode,
    VerdictStatus,
    VerificationResult,
    derived_id,
    make_root_node,
    require_integer,
    require_number,
    to_jsonable,
)

NOT_NUMBERS = [True, False, "91.5", [91], {}, None, float("nan"), float("inf"), float("-inf"), 10**400]


def entry_fields(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": "e1",
        "parent_id": "n0",
        "problem_id": "0",
        "timestep": 1,
        "guidance": "try skylines",
        "execution_thinking": "",
        "solution": "int main() {}",
        "verifier_reward": 27.5,
        "verifier_raw_score": 27.5,
        "verifier_status": "valid",
        "verifier_message": "ok",
        "summary": "greedy",
        "reusable_idea": None,
        "failure_mode": None,
        "metadata": {"group_uid": "1:0"},
    }
    return {**fields, **changes}


def node_fields(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": "n1",
        "problem_id": "0",
        "timestep": 1,
        "entry_id": "e1",
        "value": 1.0,
        "raw_score": 1.0,
        "visits": 0,
        "parent_id": "n0",
        "children": [],
        "metadata": {},
    }
    return {**fields, **changes}


def verdict_fields(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "reward": 1.0,
        "raw_score": 1.0,
        "valid": True,
        "status": "valid",
        "message": "",
        "artifacts": {},
    }
    return {**fields, **changes}


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=lambda value: repr(value)[:12])
def test_a_value_that_is_not_a_finite_number_is_refused_with_the_name_of_its_field(value: object) -> None:
    with pytest.raises(ValueError, match=r"entry\.verifier_reward"):
        LibraryEntry(**entry_fields(verifier_reward=value))
    with pytest.raises(ValueError, match=r"node\.value"):
        LibraryNode(**node_fields(value=value))
    with pytest.raises(ValueError, match=r"verdict\.reward"):
        VerificationResult(**verdict_fields(reward=value))
    if value is not None:
        with pytest.raises(ValueError, match=r"entry\.verifier_raw_score"):
            LibraryEntry(**entry_fields(verifier_raw_score=value))
        with pytest.raises(ValueError, match=r"verdict\.raw_score"):
            VerificationResult(**verdict_fields(raw_score=value))


@pytest.mark.parametrize("value", [True, 1.0, "1", None, -1])
def test_a_timestep_is_a_whole_number_from_zero(value: object) -> None:
    with pytest.raises(ValueError, match=r"entry\.timestep"):
        LibraryEntry(**entry_fields(timestep=value))
    with pytest.raises(ValueError, match=r"node\.visits"):
        LibraryNode(**node_fields(visits=value))


@pytest.mark.parametrize(
    ("field", "value"),
    [("id", ""), ("id", 7), ("parent_id", 7), ("solution", None), ("summary", 3), ("verifier_status", " ")],
)
def test_text_fields_of_an_entry_refuse_other_types(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"entry\.{field}"):
        LibraryEntry(**entry_fields(**{field: value}))


def test_unknown_and_missing_keys_are_type_errors() -> None:
    with pytest.raises(TypeError, match="surprise"):
        LibraryEntry.from_dict(entry_fields(surprise=1))
    with pytest.raises(TypeError, match="problem_id"):
        LibraryNode.from_dict({key: value for key, value in node_fields().items() if key != "problem_id"})
    with pytest.raises(TypeError):
        VerificationResult.from_dict({})


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "great"},
        {"valid": False},
        {"valid": 1},
        {"status": "invalid"},
        {"message": None},
        {"artifacts": []},
        {"artifacts": {"x": float("nan")}},
    ],
    ids=str,
)
def test_a_contradictory_or_unknown_verdict_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="verdict"):
        VerificationResult(**verdict_fields(**changes))


def test_every_status_of_a_candidate_is_known() -> None:
    assert set(VerdictStatus) == {
        "valid",
        "invalid",
        "guidance_format_error",
        "parse_error",
        "execution_error",
        "empty_response",
    }
    verdict = VerificationResult.rejected(VerdictStatus.EMPTY_RESPONSE, "no final content")
    assert (verdict.reward, verdict.raw_score, verdict.valid) == (0.0, None, False)
    assert type(verdict.status) is str
    assert VerificationResult.execution_error("odd").status == "execution_error"


def test_integers_become_floats_and_round_trips_keep_everything() -> None:
    entry = LibraryEntry(**entry_fields(verifier_reward=3, metadata={"path": Path("a/b"), "pair": (1, 2)}))
    assert type(entry.verifier_reward) is float
    assert entry.metadata == {"path": "a/b", "pair": [1, 2]}
    assert LibraryEntry.from_dict(entry.to_dict()) == entry
    node = LibraryNode(**node_fields(children=["a", "b"]))
    assert LibraryNode.from_dict(node.to_dict()) == node
    verdict = VerificationResult(**verdict_fields(artifacts={"cases": [{"score": 1}]}))
    assert VerificationResult.from_dict(verdict.to_dict()) == verdict


def test_a_written_entry_shares_nothing_with_the_live_one() -> None:
    given: dict[str, Any] = {"cases": [1]}
    entry = LibraryEntry(**entry_fields(metadata=given))
    given["cases"].append(2)
    entry.to_dict()["metadata"]["cases"].append(3)
    assert entry.metadata == {"cases": [1]}


def test_an_entry_is_archivable_only_when_valid_and_measured() -> None:
    assert LibraryEntry(**entry_fields()).archivable
    assert not LibraryEntry(**entry_fields(verifier_raw_score=None)).archivable
    assert not LibraryEntry(**entry_fields(verifier_status="invalid", verifier_raw_score=40.0)).archivable


def test_a_root_has_no_parent_and_its_own_reward_as_value() -> None:
    root = make_root_node(problem_id="0", raw_score=5.0, reward=2.0)
    assert (root.timestep, root.entry_id, root.value, root.visits, root.parent_id) == (0, None, 2.0, 0, None)
    assert root.metadata == {"kind": "root"}
    assert root.id != make_root_node(problem_id="0", raw_score=5.0, reward=2.0).id
    assert make_root_node(problem_id="0", raw_score=None, reward=0, node_id="r").id == "r"


def test_json_conversion_refuses_what_a_file_cannot_hold() -> None:
    with pytest.raises(ValueError, match=r"meta\.a\[1\]"):
        to_jsonable({"a": [1, math.inf]}, "meta")
    with pytest.raises(ValueError, match="two keys"):
        to_jsonable({1: "a", "1": "b"}, "meta")
    with pytest.raises(ValueError, match="object, which"):
        to_jsonable(object())


def test_json_conversion_of_the_usual_values() -> None:
    @dataclass
    class Point:
        x: int

    class Colour(StrEnum):
        RED = "red"

    class Array:
        def tolist(self) -> list[float]:
            return [0.5]

    converted = to_jsonable({"p": Point(1), "c": Colour.RED, "a": Array(), "s": {"b", "a"}, 3: None, "t": True})
    assert converted == {"p": {"x": 1}, "c": "red", "a": [0.5], "s": ["a", "b"], "3": None, "t": True}
    assert type(converted["c"]) is str


def test_derived_ids_repeat_for_the_same_thing_and_differ_otherwise() -> None:
    assert derived_id(7, "entry", 1, 2, 3) == derived_id(7, "entry", 1, 2, 3)
    ids = {derived_id(7, "entry", 1, 23), derived_id(7, "entry", 12, 3), derived_id(8, "entry", 1, 23)}
    assert len(ids | {derived_id(7, "node", 1, 23)}) == 4
    with pytest.raises(ValueError, match="run_seed"):
        derived_id(True, "entry")


def test_plain_number_checks_return_plain_types() -> None:
    assert require_number(3, "x") == 3.0
    assert require_integer(0, "x") == 0
    with pytest.raises(ValueError, match="at least 1"):
        require_integer(0, "x", minimum=1)
