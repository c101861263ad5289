"""How much the search itself costs: selection, submission, commit, resume and one whole step over scripted services.

    python benchmarks/bench_search.py [--entries 3840] [--program-bytes 60000]

Prints one JSON object.  Times are medians of repeated calls on this machine; the two submit times are also given as a
ratio, which says whether the cost grows with the archive.  `targets` says which of the project's own limits hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.search_fixture import World  # noqa: E402

from harness.grid import Grid, archive_timestep, group_uid  # noqa: E402
from harness.library import ArchiveSettings, GuidanceLibrary  # noqa: E402
from harness.state import LibraryEntry, derived_id  # noqa: E402
from harness.storage import copy_file  # noqa: E402

GRID = Grid(8, 16)
SETTINGS = ArchiveSettings(rollouts_per_group=GRID.rollouts, groups_per_step=GRID.groups)


def make_entry(step: int, number: int, parent_id: str | None, program_bytes: int) -> LibraryEntry:
    """A valid entry whose program is unlike all others."""
    head = f"// step {step}, program {number}\n"
    score = 1.0 + (step * 131 + number * 17) % 997 / 10.0
    return LibraryEntry(
        id=derived_id(0, "bench-entry", step, number),
        parent_id=parent_id,
        problem_id="0",
        timestep=step,
        guidance="Use a skyline: place each piece on the lowest spot.",
        execution_thinking="",
        solution=head + "x" * (program_bytes - len(head)),
        verifier_reward=score,
        verifier_raw_score=score,
        verifier_status="valid",
        verifier_message="accepted",
        summary="Places each piece on the lowest spot of a skyline. " * 10,
        reusable_idea=None,
        failure_mode=None,
        metadata={"bench": True},
    )


def grown_library(entries: int, program_bytes: int) -> tuple[GuidanceLibrary, int]:
    """An archive after as many whole steps as hold `entries` submissions, and the number of those steps."""
    library = GuidanceLibrary.from_seed(SETTINGS, make_entry(0, 0, None, program_bytes), run_seed=0)
    steps = max(1, entries // GRID.size)
    for step in range(steps):
        submit_step(library, step, program_bytes)
    return library, steps


def submit_step(library: GuidanceLibrary, step: int, program_bytes: int) -> list[float]:
    """Select and submit one whole step; seconds of each submission."""
    times = []
    for group in range(GRID.groups):
        library.acquire_group(group_uid(step, group), visible_timestep_exclusive=archive_timestep(step))
    for slot in GRID.slots():
        entry = make_entry(archive_timestep(step), slot.group * GRID.rollouts + slot.rollout, None, program_bytes)
        started = time.perf_counter()
        library.submit_child(group_uid(step, slot.group), entry)
        times.append(time.perf_counter() - started)
    return times


def seconds(call: Callable[[], Any], repeats: int) -> float:
    """The median time of `call`."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def selection_s(nodes: int) -> tuple[float, int]:
    """The time to select all groups of one step from an archive of about `nodes` nodes, and how many there were."""
    wide = ArchiveSettings(GRID.rollouts, GRID.groups, topk_children=0, max_buffer_size=0)
    library = GuidanceLibrary.from_seed(wide, make_entry(0, 0, None, 100), run_seed=0)
    step = 0
    while len(library.nodes()) < nodes:
        submit_step(library, step, 100)
        step += 1
    times = []
    for _ in range(5):
        started = time.perf_counter()
        for group in range(GRID.groups):
            library.acquire_group(group_uid(step, group), visible_timestep_exclusive=archive_timestep(step))
        times.append(time.perf_counter() - started)
        submit_step(library, step, 100)
        step += 1
    return statistics.median(times), nodes


def archive_times(entries: int, program_bytes: int, folder: Path) -> dict[str, float]:
    """Submission to and commit of a large archive, in milliseconds; leaves the committed file in `folder`."""
    small, small_steps = grown_library(GRID.size, program_bytes)
    small_submit = statistics.median(submit_step(small, small_steps, program_bytes))
    large, steps = grown_library(entries, program_bytes)
    working, committed = folder / "library.json", folder / "committed-library.json"
    large.save(working)
    large_submit = statistics.median(submit_step(large, steps, program_bytes))

    def commit() -> None:
        large.save(working)
        copy_file(working, committed)

    return {
        "submit_small_ms": small_submit * 1e3,
        "submit_large_ms": large_submit * 1e3,
        "submit_ratio": large_submit / small_submit,
        "commit_ms": seconds(commit, 3) * 1e3,
        "archive_mb": committed.stat().st_size / 1e6,
    }


def resume_time(folder: Path) -> dict[str, float]:
    """Reading the committed file as a new run does, in milliseconds."""
    started = time.perf_counter()
    GuidanceLibrary.load(folder / "committed-library.json", SETTINGS)
    return {"resume_ms": (time.perf_counter() - started) * 1e3}


def stub_step_time(folder: Path) -> dict[str, float]:
    """One 8 x 16 step with scripted services, everything durable, in seconds."""
    world = World(folder / "run", GRID)
    started = time.perf_counter()
    asyncio.run(world.run(1))
    return {"stub_step_8x16_s": time.perf_counter() - started}


def run_part(part: str, options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """One measurement, with the peak memory of the process that made it."""
    parts: dict[str, Callable[[], dict[str, float]]] = {
        "select": lambda: {"select_8_of_1000_ms": selection_s(1000)[0] * 1e3},
        "archive": lambda: archive_times(options.entries, options.program_bytes, folder),
        "resume": lambda: resume_time(folder),
        "step": lambda: stub_step_time(folder),
    }
    result = parts[part]()
    result[f"{part}_peak_memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return result


def targets(result: dict[str, float]) -> dict[str, bool]:
    """Which of the project's own limits hold."""
    memory = max(value for name, value in result.items() if name.endswith("_peak_memory_mb"))
    return {
        "select < 5 ms": result["select_8_of_1000_ms"] < 5,
        "submit < 2 ms": result["submit_large_ms"] < 2,
        "submit ratio < 1.5": result["submit_ratio"] < 1.5,
        "commit < 1 s": result["commit_ms"] < 1000,
        "resume < 3 s": result["resume_ms"] < 3000,
        "stub step < 2 s": result["stub_step_8x16_s"] < 2,
        "memory < 600 MB": memory < 600,
    }


def main() -> None:
    """Run every part in a process of its own, so that one's memory is not counted for another."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--entries", type=int, default=3840)
    parser.add_argument("--program-bytes", type=int, default=60_000)
    parser.add_argument("--part", choices=("select", "archive", "resume", "step"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(run_part(options.part, options, options.folder)))
        return
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in ("select", "archive", "resume", "step"):
            argv = [sys.executable, __file__, *sys.argv[1:], "--part", part, "--folder", folder]
            result |= json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout)
    sizes = {"entries": options.entries, "program_bytes": options.program_bytes}
    print(json.dumps({**result, **sizes, "targets": targets(result)}, indent=2))


if __name__ == "__main__":
    main()
