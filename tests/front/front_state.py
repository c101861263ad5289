"""State directories for the tests of status, inspect and export, made by the harness's own classes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from support.search_fixture import World

from harness.grid import Grid
from harness.journal import RolloutJournal
from harness.library import ArchiveSettings, GuidanceLibrary
from harness.run_state import ResumeState, RunStateStore
from harness.state import LibraryEntry, VerdictStatus, VerificationResult, derived_id
from harness.storage import write_json


def searched(state_dir: Path, *, steps: int = 2, grid: Grid | None = None, world: World | None = None) -> World:
    """A finished search over fakes; its archive, journals, events and position are the real ones."""
    made = world or World(state_dir / "guidance-run", grid)
    asyncio.run(made.run(steps))
    write_identity(state_dir, made.grid)
    return made


def write_identity(state_dir: Path, grid: Grid, **more: Any) -> None:
    """Bind a directory to a grid, as far as a status needs it."""
    identity = {"task": "toy", "groups_per_step": grid.groups, "rollouts_per_group": grid.rollouts}
    write_json(state_dir / "guidance-run" / "task-identity.json", {"format_version": 1, **identity, **more})


class Journal:
    """Writes the records of one unfinished step."""

    def __init__(self, state_dir: Path, *, step: int = 1, grid: Grid) -> None:
        self.grid = grid
        self.path = state_dir / "guidance-run" / "rollouts" / f"step-{step:06d}.jsonl"
        parents = [{"group": g, "group_uid": f"{step}:{g}", "node_id": f"n{g}"} for g in range(grid.groups)]
        self.write([{"kind": "attempt", "attempt": 1, "step": step - 1, "load_id": "load:0", "parents": parents}])

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append records durably."""

        async def append() -> None:
            async with RolloutJournal(self.path) as journal:
                await asyncio.gather(*(journal.append(record) for record in records))

        asyncio.run(append())

    def rollout(self, group: int, rollout: int, upto: str, *, text: str = "<guidance>x</guidance>") -> list[Any]:
        """The records of one rollout, up to and including one kind."""
        slot = {"attempt": 1, "group": group, "rollout": rollout}
        status = VerdictStatus.VALID if "<guidance>" in text else VerdictStatus.GUIDANCE_FORMAT_ERROR
        verdict = VerificationResult(1.0, 1.0, status == VerdictStatus.VALID, status, "m").to_dict()
        records = [
            {"kind": "guidance", "receipt": f"r{group}-{rollout}", "text": text, "finish_reason": "stop", "usage": {}},
            {"kind": "execution", "text": "program", "reasoning": "", "finish_reason": "stop"},
            {"kind": "verdict", "verification": verdict},
            {"kind": "reported", "reward": 1.0},
        ]
        if status != VerdictStatus.VALID:
            del records[1]
        kinds = [record["kind"] for record in records]
        return [{**record, **slot} for record in records[: kinds.index(upto) + 1]]


def large_state(state_dir: Path, *, steps: int = 30, grid: Grid | None = None, program_chars: int = 500) -> Grid:
    """A state of `steps` whole steps (8 x 16 by default) and an unfinished one whose rollouts wait everywhere."""
    grid = grid or Grid(8, 16)
    run_dir = state_dir / "guidance-run"
    settings = ArchiveSettings(rollouts_per_group=grid.rollouts, groups_per_step=grid.groups)
    library = GuidanceLibrary.from_seed(settings, _entry("seed", None, 0, 1.0, program_chars), run_seed=7)
    for step in range(1, steps + 1):
        uids = [f"{step}:{group}" for group in range(grid.groups)]
        parents = [library.acquire_group(uid, visible_timestep_exclusive=step) for uid in uids]
        for group, (uid, parent) in enumerate(zip(uids, parents, strict=True)):
            for rollout in range(grid.rollouts):
                name = derived_id(7, "entry", step, group, rollout)
                score = float((step * 31 + group * 17 + rollout * 7) % 97)
                library.submit_child(uid, _entry(name, parent.id, step, score, program_chars))
    store = RunStateStore(run_dir, {"task": "toy"}, {})
    library.save(store.committed_path)
    best = library.best_entry()
    assert best is not None
    summary = {"best_raw_score": best.verifier_raw_score, "best_entry_id": best.id, "best_gain": 1.0}
    store.save(ResumeState(steps, tuple({**summary, "step": step} for step in range(steps))))
    write_identity(state_dir, grid)
    journal = Journal(state_dir, step=steps + 1, grid=grid)
    upto = ("guidance", "execution", "verdict", "reported")
    slots = [(group, rollout) for group in range(grid.groups) for rollout in range(grid.rollouts)]
    journal.write(record for index, slot in enumerate(slots) for record in journal.rollout(*slot, upto[index % 4]))
    return grid


def _entry(name: str, parent_id: str | None, step: int, score: float, program_chars: int) -> LibraryEntry:
    return LibraryEntry(
        id=name,
        parent_id=parent_id,
        problem_id="0",
        timestep=step,
        guidance="g",
        execution_thinking="",
        solution=f"// {name}\n".ljust(program_chars, "x"),
        verifier_reward=score,
        verifier_raw_score=score,
        verifier_status="valid",
        verifier_message="",
        summary="s",
        reusable_idea=None,
        failure_mode=None,
    )
