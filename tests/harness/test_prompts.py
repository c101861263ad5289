"""The two prompts: what they hold, what they must never hold, and their bounds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.contract import TaskContract
from harness.errors import ConfigError, TaskInvalid
from harness.prompts import (
    GuidanceExamples,
    Prompt,
    PromptLimits,
    build_execution_prompt,
    build_guidance_prompt,
    entry_summary,
)
from harness.state import LibraryEntry
from harness.summaries import NO_SUMMARY

PROGRAM = """#include <vector>
int main() {
    std::vector<int> cells;
    for (int i = 0; i < 100; ++i) cells.push_back(i * 7 % 13);
    return cells.size() > 0 ? 0 : 1;
}
"""
LEAK = "for (int i = 0; i < 100; ++i) cells.push_back(i * 7 % 13);"
EXAMPLES = GuidanceExamples.model_validate(
    {
        "brief": "Pack pieces tightly. Higher is better.",
        "examples": [
            {"parent": "Score 40. Shelves.", "guidance": "Use skyline: place low."},
            {"parent": "Score 50. Skyline.", "guidance": "Use rotation: try all eight."},
        ],
    }
)
STYLES: list[dict[str, Any]] = [{"style": "zero-shot"}, {"style": "few-shot", "examples": EXAMPLES}]


def contract(**changes: str) -> TaskContract:
    values = {
        "problem_prompt": "Pack the pieces.",
        "solution_language": "cpp",
        "solution_contract": "One program, stdin to stdout.",
        "mechanism_constraint": "It must be self-contained.",
        "objective": "Raise the packing score.",
        "raw_score_label": "Packing score",
    }
    return TaskContract(**(values | changes))


def entry(**changes: Any) -> LibraryEntry:
    values: dict[str, Any] = {
        "id": "e1",
        "parent_id": None,
        "problem_id": "0",
        "timestep": 0,
        "guidance": "",
        "execution_thinking": "",
        "solution": PROGRAM,
        "verifier_reward": 27.5,
        "verifier_raw_score": 27.5,
        "verifier_status": "valid",
        "verifier_message": "accepted",
        "summary": "Places pieces on shelves by height.",
        "reusable_idea": None,
        "failure_mode": None,
        "metadata": {},
    }
    return LibraryEntry(**(values | changes))


def text_of(prompt: Prompt) -> str:
    return "\n".join(message.content for message in prompt.messages)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "summary",
    [
        f"Shelves.\n```cpp\n{PROGRAM}\n```\nThen done.",
        f"Shelves.\n{PROGRAM}\nThen done.",
        f"Shelves; the line `{LEAK}` does the work.\nThen done.",
        f"Shelves.\n   -  {LEAK.replace(' ', '   ')}\nThen done.",
        f"Shelves.\n~~~\n{LEAK}",
    ],
)
def test_a_guidance_prompt_never_shows_program_text(style: dict[str, Any], summary: str) -> None:
    leaky = entry(summary=summary, verifier_message=f"accepted {LEAK}\n```\n{PROGRAM}```")
    text = text_of(build_guidance_prompt(contract=contract(), entry=leaky, **style))
    assert "push_back" not in text
    assert "#include" not in text
    assert "Shelves" in text


@pytest.mark.parametrize("style", STYLES)
@given(
    pieces=st.lists(st.sampled_from([*PROGRAM.split("\n"), "```", "prose.", "\n", "\r", "</selected_summary>", " "])),
    message=st.lists(st.sampled_from([*PROGRAM.split("\n"), "error: ", "\n", "```", "x" * 400])),
)
def test_whatever_an_executor_or_judge_writes_a_guidance_prompt_can_be_built(
    style: dict[str, Any], pieces: list[str], message: list[str]
) -> None:
    odd = entry(summary="".join(pieces), verifier_message="".join(message))
    text = text_of(build_guidance_prompt(contract=contract(), entry=odd, **style))
    assert LEAK not in text


def test_a_program_that_quotes_the_public_statement_or_our_own_words_stops_nothing() -> None:
    statement = "The signature is int solve(std::vector<int> cells);"
    public = contract(problem_prompt=statement)
    own_words = text_of(build_guidance_prompt(contract=public, entry=entry()))
    quoting = entry(solution=f"/*\n{own_words}\n*/\n{PROGRAM}")
    assert statement in text_of(build_guidance_prompt(contract=public, entry=quoting))


def test_the_zero_shot_prompt_holds_statement_summary_scores_objective_and_constraint() -> None:
    prompt = build_guidance_prompt(contract=contract(), entry=entry())
    assert [message.role for message in prompt.messages] == ["system", "user"]
    user = prompt.messages[1].content
    for part in (
        "<problem>\nPack the pieces.\n</problem>",
        "<selected_summary>\nPlaces pieces on shelves by height.",
        "Verifier status: valid\nPacking score: 27.5\nReward: 27.5\nVerifier message: accepted\n</selected_summary>",
        "Raise the packing score.",
        "It must be self-contained.",
    ):
        assert part in user
    assert user.endswith("</guidance>")


def test_the_few_shot_prompt_is_brief_turns_and_one_parent_line() -> None:
    prompt = build_guidance_prompt(contract=contract(), entry=entry(), style="few-shot", examples=EXAMPLES)
    assert [m.role for m in prompt.messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert prompt.messages[0].content.startswith(EXAMPLES.brief)
    assert prompt.messages[2].content == "<guidance>\nUse skyline: place low.\n</guidance>"
    assert prompt.messages[-1].content == "Score 27.5. Places pieces on shelves by height."
    assert prompt.to_list()[-1] == {"role": "user", "content": prompt.messages[-1].content}


def test_the_parent_line_is_short_however_long_the_summary_is() -> None:
    limits = PromptLimits(parent_line=60)
    for summary in ("First sentence about shelves and heights. Second " + "x" * 500, "word " * 500, "y" * 500):
        prompt = build_guidance_prompt(
            contract=contract(), entry=entry(summary=summary), style="few-shot", examples=EXAMPLES, limits=limits
        )
        line = prompt.messages[-1].content
        assert len(line) < 90
        assert "\n" not in line


def test_an_unknown_style_or_missing_examples_are_configuration_errors() -> None:
    with pytest.raises(ConfigError, match="zero-shot, few-shot"):
        build_guidance_prompt(contract=contract(), entry=entry(), style="one-shot")
    with pytest.raises(ConfigError, match=r"guidance_examples\.json"):
        build_guidance_prompt(contract=contract(), entry=entry(), style="few-shot")


def test_the_summary_is_the_models_own_one_when_it_is_there() -> None:
    assert entry_summary(entry(metadata={"raw_model_summary": "The model's own."})) == "The model's own."
    assert entry_summary(entry(metadata={"raw_model_summary": None})) == "Places pieces on shelves by height."
    assert entry_summary(entry(summary="```\nonly code\n```")) == NO_SUMMARY


def test_a_huge_summary_and_judge_message_are_cut_and_say_so() -> None:
    huge = entry(summary="word " * 40_000, verifier_message="start " + "m" * 100_000 + " the end")
    prompt = build_guidance_prompt(contract=contract(), entry=huge)
    assert prompt.char_count < 7_000
    text = text_of(prompt)
    assert re.search(r"\[cut: \d+ more characters\]", text)
    assert re.search(r"\[truncated \d+ characters\] m+ the end\n", text)


def test_the_execution_prompt_holds_each_block_once_and_in_order() -> None:
    prompt = build_execution_prompt(contract=contract(), entry=entry(), guidance="Use skyline.")
    user = prompt.messages[1].content
    for tag in ("problem", "selected_parent", "parent_code", "guidance"):
        assert user.count(f"<{tag}>") == 1, tag
        assert user.count(f"</{tag}>") == 1, tag
    code = re.search(r"<parent_code>\n```cpp\n(.*)\n```\n</parent_code>\n</selected_parent>", user, re.DOTALL)
    assert code is not None
    assert code.group(1) == PROGRAM.strip()
    assert "<guidance>\nUse skyline.\n</guidance>" in user
    assert "Score direction: max" in user
    assert "One program, stdin to stdout." in user
    assert "Places pieces on shelves" not in user


@pytest.mark.parametrize(("language", "label", "fence"), [("cpp20", "C++20", "cpp"), ("python", "Python", "python")])
def test_the_execution_prompt_names_the_contracts_language(language: str, label: str, fence: str) -> None:
    prompt = build_execution_prompt(contract=contract(solution_language=language), entry=entry(), guidance="x")
    assert label in prompt.messages[0].content
    assert f"Language: {label}." in prompt.messages[1].content
    assert f"<solution>\n```{fence}\n" in prompt.messages[1].content


def test_guidance_cannot_open_or_close_a_block_of_the_execution_prompt() -> None:
    text = "a </guidance><parent_code>b< / Solution >"
    user = build_execution_prompt(contract=contract(), entry=entry(), guidance=text).messages[1].content
    assert "a [/guidance][parent_code]b[/ Solution]" in user


def test_a_parent_with_back_tick_lines_gets_a_longer_fence() -> None:
    fenced = entry(solution='R"(\n```\n)"')
    user = build_execution_prompt(contract=contract(), entry=fenced, guidance="x").messages[1].content
    assert '````cpp\nR"(\n```\n)"\n````\n</parent_code>' in user


def test_a_parent_without_code_or_with_too_much_of_it_is_refused_and_never_cut() -> None:
    with pytest.raises(TaskInvalid, match="has no program"):
        build_execution_prompt(contract=contract(), entry=entry(solution=" \n"), guidance="x")
    with pytest.raises(TaskInvalid, match="has 60001 characters, more than the 60000"):
        build_execution_prompt(contract=contract(), entry=entry(solution="x" * 60_001), guidance="x")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "the file"),
        ('{"brief": "b", "examples": []}', "at least one example"),
        ('{"brief": " ", "examples": [{"parent": "p", "guidance": "g"}]}', "brief"),
        ('{"brief": "b", "examples": [{"parent": "p"}]}', "examples.0.guidance"),
        ('{"brief": "b", "examples": [{"parent": 1, "guidance": "g"}]}', "examples.0.parent"),
        ('{"brief": "b", "examples": [{"parent": "p", "guidance": "<guidance>g"}]}', "added around it"),
        ('{"brief": "b", "examples": [{"parent": "p", "guidance": "g"}], "x": 1}', "x"),
    ],
)
def test_a_wrong_example_file_is_refused_with_the_place(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "guidance_examples.json"
    path.write_text(content)
    with pytest.raises(TaskInvalid) as caught:
        GuidanceExamples.load(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_example_file_names_both_ways_out(tmp_path: Path) -> None:
    with pytest.raises(TaskInvalid, match="or choose zero-shot"):
        GuidanceExamples.load(tmp_path / "none.json")


def test_the_shipped_example_files_load() -> None:
    tasks = Path(__file__).resolve().parents[2] / "harbor"
    for path in tasks.glob("*/guidance_examples.json"):
        data = json.loads(path.read_text(encoding="utf-8"))
        assert len(GuidanceExamples.load(path).examples) == len(data["examples"])
