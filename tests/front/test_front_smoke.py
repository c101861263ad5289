"""The smoke check scores the seed once, through HTTP, and believes nothing but the judge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.scripted_judge import Result, accepted, broken, rejected, scripted_judge

from guidance_ttt.smoke import main
from harness.archive_state import ArchiveSettings
from harness.library import GuidanceLibrary

SEED = (Path(__file__).resolve().parents[2] / "harbor/trimul/solution/seed.py").read_text(encoding="utf-8")


def smoke(state: Path, url: str, **more: str) -> int:
    return main(["trimul"], {"GUIDANCE_STATE_DIR": str(state), "GUIDANCE_JUDGE_URL": url, **more})


def test_a_valid_seed_makes_an_archive_of_one_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = accepted(0.15, 10_000.0, artifacts={"benchmarks": [1, 2]})
    with scripted_judge("trimul", lambda _: answer) as judge:
        # The executor has no part in this, so a missing key must not matter.
        assert smoke(tmp_path, judge.url, GUIDANCE_EXECUTOR="openrouter") == 0
    path = tmp_path / "verified-bootstrap-library.json"
    assert json.loads(capsys.readouterr().out) == {"task": "trimul", "verified_seed": str(path)}
    assert [program["code"] for program in judge.programs] == [SEED]
    assert judge.programs[0]["pid"] == "trimul"
    stored = json.loads(path.read_text())
    (entry,) = stored["entries"].values()
    assert (entry["timestep"], entry["verifier_status"], entry["verifier_raw_score"]) == (0, "valid", 10_000.0)
    assert entry["metadata"]["bootstrap"] is True
    assert entry["metadata"]["verification_artifacts"]["benchmarks"] == [1, 2]
    assert (stored["score_direction"], stored["config"]["topk_children"]) == ("min", 2)
    library = GuidanceLibrary.load(path, ArchiveSettings(4, 1, score_direction="min"))
    assert len(library.nodes()) == 1


def test_another_seed_is_scored_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def custom_kernel(data):\n    return data[0]\n")
    (tmp_path / "mine.md").write_text("Returns the input.\n")
    with scripted_judge("trimul", lambda _: accepted(1.0)) as judge:
        assert smoke(tmp_path, judge.url, GUIDANCE_SEED=str(tmp_path / "mine.py")) == 0
    assert judge.programs[0]["code"].endswith("return data[0]\n")


@pytest.mark.parametrize(
    ("answer", "code", "reason"),
    [
        (rejected("test 2: wrong"), 1, "the judge rejects the seed"),
        (broken("no CUDA device"), 2, "no CUDA device"),
        ({"status": "done", "valid": True, "score": "1"}, 2, "score"),
    ],
)
def test_a_seed_without_a_valid_verdict_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: Result, code: int, reason: str
) -> None:
    with scripted_judge("trimul", lambda _: answer) as judge:
        assert smoke(tmp_path, judge.url) == code
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "verified-bootstrap-library.json").exists()


def test_a_judge_of_another_task_is_noticed_before_anything_is_submitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted_judge("0", lambda _: accepted(1.0)) as judge:
        assert smoke(tmp_path, judge.url) == 2
    assert "has no problem 'trimul' (it has: 0)" in capsys.readouterr().err
    assert judge.programs == []


def test_a_judge_that_does_not_run_is_named_with_the_command_that_starts_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted_judge("trimul", lambda _: accepted(1.0)) as judge:
        url = judge.url
    assert smoke(tmp_path, url) == 2
    said = capsys.readouterr().err
    assert url in said
    assert "guidance-ttt judge trimul --port 8082" in said
