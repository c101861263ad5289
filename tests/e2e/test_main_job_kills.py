"""The main job survives power cuts: every process of it is killed at random moments, and it still ends as it should."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.guide_model import build_guide_model
from support.main_job import MainJob
from support.power_cuts import LINES_PER_STEP, Moment, check_finished, run_until

from harness.jail.check import check_jail
from harness.jail.tools import JailUnavailable, find_tools

pytestmark = [pytest.mark.slow, pytest.mark.soak]

STEPS = 4


@pytest.fixture(autouse=True)
def _jail() -> None:
    try:
        check_jail(find_tools())
    except JailUnavailable as error:
        pytest.skip(f"no jail can be built here: {error}")


@pytest.fixture
def temporary_dir() -> Iterator[Path]:
    """Where the launches put temporary files: jails need a folder that every user can enter."""
    with tempfile.TemporaryDirectory(prefix="main-job-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_run_of_four_updates_survives_three_power_cuts_with_exactly_four_commits(
    tmp_path: Path, temporary_dir: Path
) -> None:
    settings = {"GUIDANCE_STEPS": str(STEPS), "TMPDIR": str(temporary_dir)}
    job = MainJob(tmp_path, build_guide_model(tmp_path / "model"), settings)
    draw = random.Random(20260801)
    moments = [
        Moment("line", draw.uniform(0, 0.1), draw.randint(2, LINES_PER_STEP - 2)),
        Moment("train", draw.uniform(0, 1.0)),
        Moment("line", draw.uniform(0, 0.1), draw.randint(LINES_PER_STEP // 2, LINES_PER_STEP)),
    ]
    for moment in moments:
        cut, output = run_until(job, moment)
        assert cut, f"the run ended before {moment}:\n{output}"
    code, output = job.run()
    assert code == 0, output
    check_finished(job, STEPS)
