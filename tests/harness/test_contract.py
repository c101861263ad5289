"""The task contract: what is refused, with which words, and what a good one gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.contract import Language, TaskContract, load_task
from harness.errors import TaskInvalid

GOOD: dict[str, Any] = {
    "solution_language": "cpp",
    "solution_contract": "one program",
    "mechanism_constraint": "self-contained",
    "objective": "raise the score",
    "raw_score_label": "Score",
    "score_direction": "max",
    "judge_problem_id": "0",
}


def write_task(folder: Path, contract: object = GOOD, instruction: str = "# Pack\n") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "contract.json").write_text(json.dumps(contract), encoding="utf-8")
    (folder / "instruction.md").write_text(instruction, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"extra": "x"}, "unknown key(s) extra"),
        ({"problem_prompt": "x"}, "unknown key(s) problem_prompt"),
        ({"objective": None}, "objective is None"),
        ({"objective": " \n"}, "objective is blank"),
        ({"judge_problem_id": 0}, "judge_problem_id is 0"),
        ({"score_direction": "up"}, "use 'max' or 'min'"),
        ({"solution_language": "rust"}, "'rust' is not known"),
        ({"solution_language": "17"}, "'17' is not known"),
    ],
)
def test_a_wrong_key_is_refused_with_file_key_and_cure(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    folder = write_task(tmp_path / "task", {**GOOD, **change})
    with pytest.raises(TaskInvalid) as caught:
        load_task(folder)
    assert words in str(caught.value)
    assert "contract.json" in str(caught.value)


def test_missing_keys_are_all_named(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "task", {"solution_language": "cpp"})
    with pytest.raises(TaskInvalid, match="mechanism_constraint, objective, raw_score_label, solution_contract"):
        load_task(folder)


@pytest.mark.parametrize("text", ["[]", "null", "{", '{"objective": "a", "objective": "b"}', '"x"'])
def test_a_contract_that_is_not_one_json_object_is_refused(tmp_path: Path, text: str) -> None:
    folder = write_task(tmp_path / "task")
    (folder / "contract.json").write_text(text)
    with pytest.raises(TaskInvalid, match=r"contract\.json"):
        load_task(folder)


def test_missing_blank_or_badly_encoded_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(TaskInvalid, match="does not exist"):
        load_task(tmp_path / "nowhere")
    folder = write_task(tmp_path / "task", instruction=" \n")
    with pytest.raises(TaskInvalid, match=r"instruction\.md is blank"):
        load_task(folder)
    (folder / "instruction.md").write_bytes(b"caf\xe9")
    with pytest.raises(TaskInvalid, match="not UTF-8"):
        load_task(folder)
    (folder / "instruction.md").unlink()
    with pytest.raises(TaskInvalid, match="is missing"):
        load_task(folder)


def test_a_good_task_gives_the_instruction_as_problem_prompt_and_has_defaults(tmp_path: Path) -> None:
    contract = {key: value for key, value in GOOD.items() if key not in ("score_direction", "judge_problem_id")}
    task = load_task(write_task(tmp_path / "task", contract, "# Größe\n"))
    assert task.problem_prompt == "# Größe\n"
    assert (task.score_direction, task.judge_problem_id) == ("max", "0")
    assert task.source_file.name == "solution.cpp"


@pytest.mark.parametrize(
    ("spelling", "key", "label"),
    [
        ("cpp", "cpp", "C++17"),
        ("C++", "cpp", "C++17"),
        ("cpp20", "cpp", "C++20"),
        ("C++20", "cpp", "C++20"),
        ("gnu++23", "cpp", "C++23"),
        ("python", "python", "Python"),
        ("Python3.12", "python", "Python"),
    ],
)
def test_the_language_label_comes_from_the_contract(spelling: str, key: str, label: str) -> None:
    language = Language.parse(spelling)
    assert (language.key, language.label) == (key, label)


def test_the_content_hash_changes_with_every_field_and_only_then() -> None:
    first = TaskContract(problem_prompt="p", **GOOD)
    assert first.content_sha256() == TaskContract(problem_prompt="p", **GOOD).content_sha256()
    others = [TaskContract(problem_prompt="p2", **GOOD)]
    others += [
        TaskContract(problem_prompt="p", **{**GOOD, key: other})
        for key, other in (("objective", "x"), ("score_direction", "min"), ("solution_language", "cpp20"))
    ]
    assert len({first.content_sha256(), *(other.content_sha256() for other in others)}) == 5
