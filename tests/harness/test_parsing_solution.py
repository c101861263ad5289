"""The program parser: usual deviations are understood by written rules, everything else has its own reason."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.parsing import (
    MAX_PROGRAM_CHARS,
    extract_solution_code,
    extract_terminal_tag_or_none,
    fence_for,
    format_solution,
)

PROGRAM = '#include <cstdio>\nint main() {\n    puts("hi");\n}'
SUMMARY = "<summary>\nPrints.\n</summary>"


def reply(body: str, tail: str = SUMMARY) -> str:
    return f"Some thoughts.\n<solution>\n{body}\n</solution>\n{tail}"


@pytest.mark.parametrize(
    "label", ["cpp", "C++17", "c++", "CPP", "cc", "cxx", "c++20", "gnu++17", "cpp title=a.cpp", ""]
)
@pytest.mark.parametrize("fence", ["```", "~~~", "`````"])
def test_any_usual_label_of_cpp_gives_the_program_and_no_part_of_the_label(label: str, fence: str) -> None:
    parsed = extract_solution_code(reply(f"{fence}{label}\n{PROGRAM}\n{fence}"), "cpp")
    assert (parsed.code, parsed.error) == (PROGRAM, None)


@pytest.mark.parametrize("label", ["python", "python3", "py", "Py3", "python3.12", "{.python}", ""])
def test_any_usual_label_of_python_gives_the_program(label: str) -> None:
    label = label.strip("{}")
    assert extract_solution_code(reply(f"```{label}\nx = 1\n```"), "python").code == "x = 1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no answer text"),
        (" \n", "no answer text"),
        ("I cannot do that.", "no fenced block"),
        (reply(PROGRAM), "no fenced block"),
        (reply(f"```rust\n{PROGRAM}\n```"), "'rust'"),
        (reply("```cpp\n \n```"), "empty"),
        (f"<solution>\n```cpp\n{PROGRAM}\n</solution>\n{SUMMARY}", "not closed"),
        (f"```cpp\n{PROGRAM}", "not closed"),
        (f"<solution>\n```cpp\n{PROGRAM}", "not closed"),
        (f"<think>\n```cpp\n{PROGRAM}\n```", "thinking part is not closed"),
        (f"<think>\n```cpp\n{PROGRAM}\n```\n</think>\nI give up.", "no fenced block"),
        (reply("```cpp\nint main() {} // \ud800\n```"), "not valid Unicode"),
    ],
)
def test_each_kind_of_unusable_reply_has_its_own_reason(text: str, words: str) -> None:
    parsed = extract_solution_code(text, "cpp")
    assert parsed.code is None
    assert words in str(parsed.error)


def test_a_draft_is_not_taken_when_the_last_attempt_was_cut() -> None:
    draft = f"<solution>\n```cpp\nint draft;\n```\n</solution>\nBetter:\n<solution>\n```cpp\n{PROGRAM}\n"
    assert "not closed" in str(extract_solution_code(draft, "cpp").error)
    assert "not closed" in str(
        extract_solution_code(f"```cpp\nint draft;\n```\nBetter:\n```cpp\n{PROGRAM}", "cpp").error
    )


def test_the_last_complete_pair_of_tags_wins_over_an_earlier_draft() -> None:
    text = f"<solution>\n```cpp\nint draft_{'x' * 500};\n```\n</solution>\n" + reply(f"```cpp\n{PROGRAM}\n```")
    assert extract_solution_code(text, "cpp").code == PROGRAM


def test_a_fence_after_the_solution_is_no_candidate() -> None:
    text = reply(f"```cpp\n{PROGRAM}\n```", f"```cpp\n{'int longer;' * 50}\n```")
    assert extract_solution_code(text, "cpp").code == PROGRAM


def test_upper_case_tags_and_tags_on_the_line_of_the_fence_are_understood() -> None:
    assert extract_solution_code(f"<SOLUTION>\n```cpp\n{PROGRAM}\n```\n</SOLUTION>", "cpp").code == PROGRAM
    assert extract_solution_code(f"<solution>```cpp\n{PROGRAM}\n```</solution>{SUMMARY}", "cpp").code == PROGRAM


def test_without_tags_the_whole_answer_is_searched() -> None:
    assert extract_solution_code(f"Here:\n```cpp\n{PROGRAM}\n```\nEnjoy.", "cpp").code == PROGRAM
    assert extract_solution_code(f"<solution>\n```cpp\n{PROGRAM}\n```\n", "cpp").code == PROGRAM


@pytest.mark.parametrize(
    "command", ["```bash\ng++ -O2 a.cpp\n```", "```\ng++ -O2 a.cpp\n```", "```cpp\n// g++ a.cpp\n```"]
)
def test_the_longest_block_wins_over_a_trailing_build_command(command: str) -> None:
    assert extract_solution_code(reply(f"```cpp\n{PROGRAM}\n```\nBuild:\n{command}"), "cpp").code == PROGRAM


@pytest.mark.parametrize(
    "code",
    [
        'const char* a = "```"; const char* b = "</solution>";\nint main() {}',
        'auto s = R"(\n```\n)";\nint main() {}',
        'auto s = R"x(\n```\n</solution>\n)x";\nint main() {}',
        "/*\n```\n<solution>\n*/\nint main() { char c = '\"'; int n = 1'000; }",
        'auto s = R"(\n```cpp\nint inner;\n```\n)"; // "\nint main() {}',
    ],
)
def test_back_ticks_and_tags_inside_literals_do_not_cut_a_cpp_program(code: str) -> None:
    assert extract_solution_code(reply(f"```cpp\n{code}\n```"), "cpp").code == code
    assert extract_solution_code(reply(f"```cpp\n{code}\n```\nDone.\n```sh\nmake\n```"), "cpp").code == code


@pytest.mark.parametrize(
    "code",
    [
        'TEXT = """\n```\n</solution>\n"""\nprint(TEXT)',
        "TEXT = r'''a \\\\''' + '''\n```\n'''\nx = 1  # it's",
        'def f():\n    """Doc.\n\n    ```\n    f()\n    ```\n    """\n    return "```"',
    ],
)
def test_back_ticks_and_tags_inside_literals_do_not_cut_a_python_program(code: str) -> None:
    assert extract_solution_code(reply(f"```python\n{code}\n```"), "python").code == code


def test_a_program_may_print_a_think_tag() -> None:
    code = 'int main() { puts("</think>"); }'
    assert extract_solution_code(reply(f"```cpp\n{code}\n```"), "cpp").code == code
    thought = "<think>\n```cpp\nint draft;\n```\n</think>\n"
    assert extract_solution_code(thought + reply(f"```cpp\n{code}\n```"), "cpp").code == code


def test_crlf_becomes_lf() -> None:
    text = reply(f"```cpp\n{PROGRAM}\n```").replace("\n", "\r\n")
    assert extract_solution_code(text, "cpp").code == PROGRAM
    assert extract_terminal_tag_or_none(text, "summary") == "Prints."


def test_a_program_that_could_not_be_shown_as_a_parent_is_refused() -> None:
    long = "int x;\n" * (MAX_PROGRAM_CHARS // 7 + 10)
    assert "more than the limit" in str(extract_solution_code(reply(f"```cpp\n{long}\n```"), "cpp").error)
    assert extract_solution_code(reply(f"```cpp\n{long}\n```"), "cpp", max_chars=10**6).code == long.strip()


def test_an_unknown_language_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="rust"):
        extract_solution_code("x", "rust")


@pytest.mark.parametrize(
    "unit", ["```\n", '```cpp\nR"(\n```\n', "<solution>\n", "~~~\n\n\n```\n", "/*\n```\n", "</think>\n"]
)
def test_megabytes_of_junk_are_read_in_bounded_time(unit: str) -> None:
    started = time.monotonic()
    extract_solution_code(unit * (2_000_000 // len(unit)), "cpp")
    assert time.monotonic() - started < 15


@given(st.text(), st.sampled_from(["cpp", "python"]))
def test_every_text_gives_either_a_program_or_a_reason(text: str, language: str) -> None:
    parsed = extract_solution_code(text, language)
    assert (parsed.code is None) != (parsed.error is None)


NOISE = st.lists(
    st.sampled_from(
        ["```", "~~~", "````", "<solution>", "</solution>", '"""', 'R"(', ')"', "/*", "*/", "\n", " ", "x;", "\r\n"]
    )
).map("".join)
ANY_PROGRAM = st.one_of(st.text(alphabet=st.characters(exclude_categories=["Cs"])), NOISE).filter(
    lambda text: bool(text.strip()) and "</think>" not in text.lower()
)


@given(ANY_PROGRAM, st.sampled_from(["cpp", "python"]), st.booleans())
@example('R"(\n```\n</solution>\n<summary>', "cpp", True)
def test_any_program_in_the_documented_form_comes_back_unchanged(program: str, language: str, thinks: bool) -> None:
    text = ("<think>\n```\nhm\n</think>\n" if thinks else "") + format_solution(program, language, "A summary.")
    assert extract_solution_code(text, language).code == program.replace("\r\n", "\n").strip()
    assert extract_terminal_tag_or_none(text, "summary") == "A summary."


def test_the_fence_is_longer_than_any_run_of_back_ticks_at_a_line_start() -> None:
    assert fence_for("int x; // ```") == "```"
    assert fence_for("a\n  ````\n") == "`````"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<summary>a</summary>", "a"),
        ("x <SUMMARY>\n a \n</Summary>\n", "a"),
        ("<summary>old</summary> <summary>new</summary>", "new"),
        ("<summary> </summary>", None),
        ("<summary>a</summary> tail", None),
        ("a</summary>", None),
        ("", None),
        ("<summary>\ud800</summary>", "?"),
    ],
)
def test_a_terminal_block_is_the_last_one_and_nothing_follows_it(text: str, value: str | None) -> None:
    assert extract_terminal_tag_or_none(text, "summary") == value
