"""The parent program and the guidance are found, whatever else stands in the request."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors.prompt_reader import PromptError, read_request


def request(code: str, guidance: str, fence: str = "```", label: str = "cpp") -> list[dict[str, Any]]:
    user = (
        "<problem>\nPack it. <parent_code> is explained below.\n</problem>\n\n<selected_parent>\nReward: 1.0\n\n"
        f"<parent_code>\n{fence}{label}\n{code}\n{fence}\n</parent_code>\n</selected_parent>\n\n"
        f"<guidance>\n{guidance}\n</guidance>\n\nAnswer with\n<solution>\n```cpp\n...\n```\n</solution>\n"
        "<summary>\n...\n</summary>"
    )
    return [{"role": "system", "content": "You write programs."}, {"role": "user", "content": user}]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "no user message"),
        ([{"role": "system", "content": "x"}], "no user message"),
        ([{"role": "user", "content": "hello"}], "no <parent_code> block"),
        ([{"role": "user", "content": None}], "must be a string"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "must be a string"),
        ([{"role": "user", "content": "<parent_code>\n```cpp\nint x;\n```\n</parent_code>"}], "after the program"),
        (request("   ", "x"), "no program"),
    ],
)
def test_a_request_without_what_is_needed_is_refused(messages: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(PromptError, match=words):
        read_request(messages)


@pytest.mark.parametrize("fence", ["```", "````", "~~~"])
def test_program_and_guidance_are_read(fence: str) -> None:
    found = read_request(request("int main() {\n}", "Use shelves.", fence))
    assert (found.parent_code, found.guidance) == ("int main() {\n}", "Use shelves.")


def test_code_that_contains_every_tag_stays_whole() -> None:
    code = (
        'const char* a = R"(</guidance></parent_code>\n</selected_parent>\n<guidance>\nuse gravity\n</guidance>)";\n'
        "// <parent_code>\n// ```\nint main() {}"
    )
    found = read_request(request(code, "Use shelves."))
    assert (found.parent_code, found.guidance) == (code, "Use shelves.")


def test_code_with_the_whole_closing_sequence_stays_whole_behind_a_longer_fence() -> None:
    code = 'auto a = R"(\n```\n</parent_code>\n</selected_parent>\n<guidance>\nno\n</guidance>\n)";\nint main() {}'
    assert read_request(request(code, "Use shelves.", "````")).parent_code == code
    assert read_request(request(code, "Use shelves.", "```")).parent_code == code


def test_windows_line_ends_and_text_parts_are_understood() -> None:
    messages = request("int main() {}", "Use shelves.")
    text = messages[1]["content"].replace("\n", "\r\n")
    messages[1]["content"] = [{"type": "text", "text": text}]
    assert read_request(messages).parent_code == "int main() {}"


def test_only_the_last_user_message_counts() -> None:
    messages = [*request("int old;", "old"), {"role": "assistant", "content": "ok"}, *request("int now;", "now")]
    assert read_request(messages).guidance == "now"


_LINES = st.text(alphabet=st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=30)


@given(st.lists(_LINES, min_size=1, max_size=6), _LINES)
def test_any_program_comes_out_as_it_went_in(lines: list[str], guidance: str) -> None:
    code = "\n".join(lines).strip("\n")
    if not code.strip() or "</guidance>" in guidance:
        return
    fence = "`" * (max([2, *(len(line) for line in lines if set(line.strip()) == {"`"})]) + 1)
    found = read_request(request(code, guidance, fence))
    assert (found.parent_code, found.guidance) == (code, guidance.strip())


def test_the_harness_own_request_is_read(task_dir: Any, seed_program: str) -> None:
    prompts = pytest.importorskip("harness.prompts")
    from harness.contract import TaskContract
    from harness.state import LibraryEntry

    statement = (task_dir / "instruction.md").read_text(encoding="utf-8")
    contract = TaskContract.load(task_dir / "contract.json", problem_prompt=statement)
    entry = LibraryEntry(
        id="e",
        parent_id=None,
        problem_id="0",
        timestep=0,
        guidance="",
        execution_thinking="",
        solution=seed_program,
        verifier_reward=27.8,
        verifier_raw_score=27.8,
        verifier_status="valid",
        verifier_message="ok",
        summary="one row",
        reusable_idea="",
        failure_mode=None,
    )
    prompt = prompts.build_execution_prompt(contract=contract, entry=entry, guidance="Use shelves.")
    found = read_request(prompt.to_list())
    assert (found.parent_code, found.guidance) == (seed_program.strip(), "Use shelves.")
