"""Repeated scoring of one program: one JSON object a run, and an exit status that a script can act on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.scripted_judge import Result, accepted, broken, rejected, scripted_judge

from guidance_ttt.evaluate import main

SEED = (Path(__file__).resolve().parents[2] / "harbor/trimul/solution/seed.py").read_text(encoding="utf-8")


def lines(capsys: pytest.CaptureFixture[str]) -> list[Result]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_each_run_is_one_object_in_the_tasks_own_unit(capsys: pytest.CaptureFixture[str]) -> None:
    latencies = iter([1200.0, 1210.0, 1190.0])
    scores: dict[int, Result] = {}

    def answer(_: str) -> Result:
        number = len(judge.programs)
        if number not in scores:
            latency = next(latencies)
            scores[number] = accepted(1500 / latency, latency, artifacts={"runs": number})
        return scores[number]

    with scripted_judge("trimul", answer) as judge:
        assert main(["trimul", "--judge-url", judge.url, "--repeats", "3"]) == 0
    found = lines(capsys)
    assert [line["repeat"] for line in found] == [1, 2, 3]
    assert [line["result"]["score"] for line in found] == [1200.0, 1210.0, 1190.0]
    assert set(found[0]) == {"task", "repeat", "raw_score_label", "score_direction", "result"}
    assert set(found[0]["result"]) == {"valid", "score", "message", "artifacts"}
    assert (found[0]["task"], found[0]["score_direction"], found[0]["result"]["valid"]) == ("trimul", "min", True)
    assert found[1]["result"]["artifacts"]["runs"] == 2
    assert [program["code"] for program in judge.programs] == [SEED] * 3
    assert judge.programs[0]["lang"] == "python"


def test_one_invalid_run_is_exit_status_1_and_the_others_are_still_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("x = 1\n")
    answers = {1: accepted(1.0), 2: rejected("test 4: wrong"), 3: accepted(1.0)}
    with scripted_judge("trimul", lambda _: answers[len(judge.programs)]) as judge:
        assert main(["trimul", "--judge-url", judge.url, "--repeats", "3", "--solution", str(mine)]) == 1
    found = lines(capsys)
    assert [line["result"]["valid"] for line in found] == [True, False, True]
    assert (found[1]["result"]["score"], found[1]["result"]["message"]) == (None, "test 4: wrong")
    assert judge.programs[0]["code"] == "x = 1\n"


def test_a_fault_of_the_judge_is_exit_status_2_and_never_a_score(capsys: pytest.CaptureFixture[str]) -> None:
    answers = {1: accepted(1.0), 2: broken("the GPU fell off")}
    with scripted_judge("trimul", lambda _: answers[len(judge.programs)]) as judge:
        assert main(["trimul", "--judge-url", judge.url, "--repeats", "3"]) == 2
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1
    assert "the GPU fell off" in captured.err
    assert main(["trimul", "--judge-url", judge.url]) == 2


def test_a_judge_that_runs_longer_than_allowed_is_at_fault(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_judge("trimul", lambda _: {"status": "running"}) as judge:
        assert main(["trimul", "--judge-url", judge.url, "--timeout-seconds", "0.5"]) == 2
    assert "no verdict within 0.5 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--repeats", "0"],
        ["--repeats", "1.5"],
        ["--repeats", "-1"],
        ["--timeout-seconds", "0"],
        ["--timeout-seconds", "nan"],
        ["--timeout-seconds", "inf"],
    ],
)
def test_bad_numbers_are_refused_before_the_judge_is_asked(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["trimul", "--judge-url", "http://127.0.0.1:9", *words])
    assert ended.value.code == 2


@pytest.mark.parametrize(("name", "text"), [("absent.py", None), ("empty.py", " \n"), ("latin.py", "bad")])
def test_a_program_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str | None
) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_bytes(b"\xff" if text == "bad" else text.encode())
    assert main(["trimul", "--judge-url", "http://127.0.0.1:9", "--solution", str(path)]) == 2
    assert f"the program {path}" in capsys.readouterr().err
