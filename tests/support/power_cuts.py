"""Power cuts of a whole main job at random moments, and what must hold after them."""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from support.main_job import MainJob, finish
from support.processes import alive, descendants, kill_tree
from support.reef_state import ReefState, consumed_by

GRID = 8
LINES_PER_STEP = 2 + 4 * GRID
"""Journal lines of an undisturbed step: the attempt, four for each rollout, the commit."""

MOMENT_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Moment:
    """When the power goes in a launch, relative to what the launch has done.

    `start`: so many seconds after it was started.  `line`: once it has journalled `lines` more lines.  `train`: once a
    grid is completely reported, so in training, publication or commit.  `delay_s` comes on top.
    """

    kind: Literal["start", "line", "train"]
    delay_s: float
    lines: int = 0

    @classmethod
    def draw(cls, random: random.Random, *, start_s: float = 30.0, train_s: float = 1.5) -> Moment:
        kind = random.choice(("start", "line", "line", "train", "train"))
        if kind == "start":
            return cls("start", random.uniform(0, start_s))
        if kind == "train":
            return cls("train", random.uniform(0, train_s))
        return cls("line", random.uniform(0, 0.3), random.randint(1, 2 * LINES_PER_STEP))


def run_until(job: MainJob, moment: Moment, **settings: str) -> tuple[bool, str]:
    """Start a launch and cut its power at the moment; whether that came before its end, and its output."""
    before, grids = job.progress(), reported_grids(job)
    process = job.start(**settings)
    come: Callable[[], bool] = {
        "start": lambda: True,
        "line": lambda: job.progress() >= before + moment.lines,
        "train": lambda: reported_grids(job) > grids,
    }[moment.kind]
    deadline = time.monotonic() + MOMENT_TIMEOUT_S
    while not come() and process.poll() is None:
        if time.monotonic() >= deadline:
            cut_power(process)
            raise AssertionError(f"{moment} did not come within {MOMENT_TIMEOUT_S:g} s")
        time.sleep(0.02)
    time.sleep(moment.delay_s)
    if process.poll() is not None:
        return False, finish(process)[1]
    return True, cut_power(process)


def cut_power(process: subprocess.Popen[str]) -> str:
    """SIGKILL a launch and everything it started, all at once; returns its output."""
    tree = [process.pid, *descendants(process.pid)]
    kill_tree(process.pid)
    output, _ = process.communicate(timeout=30)
    left = [pid for pid in tree if alive(pid)]
    assert not left, f"still running after the power cut: {left}"
    return output


def reported_grids(job: MainJob) -> int:
    """How many steps have every rollout reported."""
    journals = sorted((job.run_dir / "rollouts").glob("step-*.jsonl"))
    return sum(path.read_bytes().count(b'"kind":"reported"') >= GRID for path in journals)


def check_finished(job: MainJob, steps: int) -> None:
    """Every step committed exactly once, every receipt trained exactly once, nothing lost and nothing left behind."""
    state = ReefState(job.state_dir)
    commits = state.commits()
    assert [commit["step"] for commit in commits] == list(range(1, steps + 1))
    consumed = Counter(state.consumed())
    assert max(consumed.values()) == 1
    assert len(set(state.adapters())) == len(state.adapters()) == steps
    assert state.head() == commits[-1]["artifact_ref"]["release_id"]
    loads = state.loads()
    assert loads["published"] == f"{loads['incarnation']}:{steps}"
    for step, commit in enumerate(commits, start=1):
        records = job.journal(step)
        kinds = Counter(record["kind"] for record in records)
        wanted = {"attempt": 1, "guidance": GRID, "verdict": GRID, "reported": GRID}
        assert {kind: kinds[kind] for kind in wanted} == wanted, f"journal of step {step}: {kinds}"
        receipts = {record["receipt"] for record in records if record["kind"] == "guidance"}
        assert len(receipts) == GRID
        assert receipts <= set(consumed_by(commit)), f"step {step} was trained on other receipts"
    assert job.read("resume-state.json")["next_step"] == steps
    archive = job.read("committed-library.json")
    assert archive == job.read("library.json")
    assert archive["puct_T"] == steps * GRID
    assert state.leftovers() == []
