"""A process that grows an archive step by step and saves it after each, until it is killed.

python -m support.save_child LIBRARY
"""

from __future__ import annotations

import sys
from pathlib import Path

from harness.library import ArchiveSettings, GuidanceLibrary
from harness.state import LibraryEntry

SETTINGS = ArchiveSettings(rollouts_per_group=2, groups_per_step=2)
STEP_SIZE = 4


def entry(step: int, number: int) -> LibraryEntry:
    """A valid candidate unlike all others."""
    score = 1.0 + (step * 31 + number * 7) % 89
    return LibraryEntry(
        id=f"entry-{step}-{number}", parent_id=None, problem_id="0", timestep=step, guidance="g", execution_thinking="",
        solution=f"// {step} {number}\n" + "int main() {}\n" * 40, verifier_reward=score, verifier_raw_score=score,
        verifier_status="valid", verifier_message="accepted", summary="s", reusable_idea=None, failure_mode=None,
    )  # fmt: skip


def grow(library: GuidanceLibrary) -> None:
    """Submit one more whole step."""
    step = library.submitted_rollouts // STEP_SIZE + 1
    for group in range(SETTINGS.groups_per_step):
        library.acquire_group(f"{step}:{group}", visible_timestep_exclusive=step)
    for number in range(STEP_SIZE):
        library.submit_child(f"{step}:{number // 2}", entry(step, number))


def main() -> None:
    path = Path(sys.argv[1])
    library = GuidanceLibrary.load(path, SETTINGS)
    print("ready", flush=True)
    while True:
        grow(library)
        library.save(path)


if __name__ == "__main__":
    main()
