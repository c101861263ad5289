"""The seed: named when it is missing, measured before it is believed, and never shown to the policy as code."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_services import CONTRACT, FakeJudge
from support.search_fixture import SEED_CODE, World

from harness.bootstrap import load_seed, score_seed
from harness.errors import SeedRejected, StateCorrupt, TaskInvalid
from harness.state import VerdictStatus, VerificationResult

SUMMARY = "Returns at once."


def task(folder: Path, code: str | None = SEED_CODE, summary: str | None = SUMMARY) -> Path:
    solution = folder / "solution"
    solution.mkdir(parents=True)
    for name, text in (("seed.cpp", code), ("seed.md", summary)):
        if text is not None:
            (solution / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("code", "summary", "reason"),
    [
        (None, SUMMARY, r"seed program is missing: .*seed\.cpp"),
        (" \n", SUMMARY, r"seed program is empty: .*seed\.cpp"),
        (SEED_CODE, None, r"seed summary is missing: .*seed\.md"),
        (SEED_CODE, "", r"seed summary is empty"),
        (SEED_CODE, f"```cpp\n{SEED_CODE}\n```", "nothing but code"),
    ],
)
def test_an_incomplete_seed_is_named(tmp_path: Path, code: str | None, summary: str | None, reason: str) -> None:
    with pytest.raises(TaskInvalid, match=reason):
        load_seed(task(tmp_path, code, summary), CONTRACT)


async def test_a_seed_that_the_judge_rejects_starts_no_search(tmp_path: Path) -> None:
    judge = FakeJudge(lambda code: VerificationResult.rejected(VerdictStatus.INVALID, "case 2: wrong answer"))
    with pytest.raises(SeedRejected, match="case 2: wrong answer"):
        await score_seed(load_seed(task(tmp_path), CONTRACT), judge)


def test_code_in_a_summary_is_removed_before_anybody_sees_it(tmp_path: Path) -> None:
    seed = load_seed(task(tmp_path, summary=f"{SUMMARY}\n```cpp\n{SEED_CODE}\n```"), CONTRACT)
    assert seed.summary == SUMMARY


async def test_another_runs_archive_can_seed_a_search(tmp_path: Path) -> None:
    world = World(tmp_path / "run")
    await world.run(1)
    seed = load_seed(task(tmp_path / "task"), CONTRACT, world.run_dir / "committed-library.json")
    assert seed.code == SEED_CODE
    assert seed.summary == "The smallest program."
    (tmp_path / "broken.json").write_text("{}", encoding="utf-8")
    with pytest.raises(StateCorrupt, match=r"broken\.json"):
        load_seed(tmp_path / "task", CONTRACT, tmp_path / "broken.json")
