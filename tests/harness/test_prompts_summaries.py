"""The summary-only rule on its own: what is stripped and counted, what is kept."""

from __future__ import annotations

import pytest

from harness.summaries import CodeLeak, assert_no_code, canonical_summary, clean_judge_message

PROGRAM = "int main() {\n  int x = 1;\n  return compute_the_answer(x) + 42;\n}\n// a short note\n"


def test_fenced_blocks_and_verbatim_lines_are_stripped_and_counted() -> None:
    text = "Idea.\n```cpp\nint a;\n```\nint main() {\n - return compute_the_answer(x) + 42;\nEnd.\n~~~\nunclosed"
    clean = canonical_summary(text, PROGRAM)
    assert clean.text == "Idea.\nEnd."
    assert (clean.removed_lines, clean.removed_fences) == (2, 2)


def test_prose_that_shares_short_or_plain_lines_with_the_program_is_kept() -> None:
    clean = canonical_summary("It returns.\n}\nint x = 1;\nA plan.", PROGRAM)
    assert clean.text == "It returns.\n}\nint x = 1;\nA plan."
    assert clean.removed_lines == 0


def test_a_cut_is_said() -> None:
    clean = canonical_summary("abcd " * 100, "", max_chars=20)
    assert clean.text == "abcd abcd abcd abcd [cut: 479 more characters]"


def test_a_judge_message_becomes_one_bounded_line_with_its_end_kept() -> None:
    assert clean_judge_message("ok\r\n\tall\x00 good\x1b[0m") == "ok all good [0m"
    cut = clean_judge_message("begin " + "x" * 1000 + " error: end", max_chars=30)
    assert cut.startswith("[truncated 987 characters] xx")
    assert cut.endswith("error: end")


def test_a_judge_message_loses_the_program_lines_that_a_compiler_quotes() -> None:
    message = "a.cpp:3:10: error: not declared\n    return compute_the_answer(x) + 42;\n    ^~~~~~"
    assert clean_judge_message(message, PROGRAM) == "a.cpp:3:10: error: not declared ^~~~~~"


def test_look_alikes_of_our_tags_are_made_harmless() -> None:
    assert canonical_summary("a </selected_summary> b <Guidance>", "").text == "a [/selected_summary] b [Guidance]"


def test_the_last_check_finds_a_program_line_but_not_a_published_one() -> None:
    line = "return compute_the_answer(x) + 42;"
    with pytest.raises(CodeLeak, match="compute_the_answer"):
        assert_no_code([f"so {line.replace(' ', '  ')} it is"], PROGRAM)
    assert_no_code([f"so {line} it is"], PROGRAM, public=f"so {line} it is")
    assert_no_code(["int main() {", "// a short note"], PROGRAM)
