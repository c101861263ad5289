"""SIGKILL before and after every durable operation of a run: the next process always ends at the same archive."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.kill_child import GRID, world_at
from support.save_child import SETTINGS, STEP_SIZE, entry, grow

from harness.library import GuidanceLibrary
from harness.storage import clean_stray_temp_files, read_json_object

STEPS = 2
PROJECT = Path(__file__).resolve().parents[2]


ENVIRON = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT), str(PROJECT / "tests")])}
KILLS, ENTRIES = 100, 400


def run_child(folder: Path, moment: int, when: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "support.kill_child", str(folder), str(STEPS), str(moment), when],
        env=ENVIRON,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_a_run_killed_around_any_durable_operation_ends_as_the_uninterrupted_one(tmp_path: Path) -> None:
    whole = run_child(tmp_path / "whole", 0, "before")
    assert whole.returncode == 0, whole.stderr
    operations = int(whole.stdout.split()[-1])
    assert operations > 4 * STEPS
    expected = world_at(tmp_path / "whole").committed()

    def kill(case: tuple[int, str]) -> None:
        moment, when = case
        folder = tmp_path / f"{moment}-{when}"
        died = run_child(folder, moment, when)
        where = f"killed {when} durable operation {moment}"
        assert died.returncode in (-signal.SIGKILL, 0), f"{where}: {died.stderr}"
        world = world_at(folder)
        asyncio.run(world.run(STEPS))
        assert world.committed() == expected, where
        assert read_json_object(world.run_dir / "resume-state.json")["next_step"] == STEPS, where
        assert world.reef.completed == STEPS, where
        assert len(world.reef.reports) == STEPS * GRID.size, where

    cases = [(moment, when) for moment in range(1, operations + 1) for when in ("before", "after")]
    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(kill, cases))


@pytest.mark.slow
def test_an_archive_killed_while_it_saves_is_always_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "library.json"
    library = GuidanceLibrary.from_seed(SETTINGS, entry(0, 0), run_seed=0)
    while library.submitted_rollouts < ENTRIES:
        grow(library)
    library.save(path)
    draw = random.Random(7)
    rollouts = first = library.submitted_rollouts
    for _ in range(KILLS):
        child = subprocess.Popen(
            [sys.executable, "-m", "support.save_child", str(path)], env=ENVIRON, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(draw.uniform(0.001, 0.2))
        child.kill()
        child.wait(timeout=30)
        child.stdout.close()
        loaded = GuidanceLibrary.load(path, SETTINGS)
        loaded.check_accounting()
        assert loaded.submitted_rollouts >= rollouts
        assert loaded.submitted_rollouts % STEP_SIZE == 0
        rollouts = loaded.submitted_rollouts
    assert rollouts > first
    clean_stray_temp_files(tmp_path)
    assert [item.name for item in tmp_path.iterdir()] == ["library.json"]
