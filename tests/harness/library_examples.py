"""Small archives and entries for the tests of the library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from harness.library import ArchiveSettings, GuidanceLibrary
from harness.state import LibraryEntry

SETTINGS = ArchiveSettings(rollouts_per_group=2, groups_per_step=2)


def entry(
    entry_id: str, parent_id: str | None = None, *, raw: float | None = 1.0, timestep: int = 1, **changes: Any
) -> LibraryEntry:
    made = LibraryEntry(
        id=entry_id,
        parent_id=parent_id,
        problem_id="0",
        timestep=timestep,
        guidance="g",
        execution_thinking="",
        solution=f"int main() {{ /* {entry_id} */ }}",
        verifier_reward=raw or 0.0,
        verifier_raw_score=raw,
        verifier_status="valid",
        verifier_message="",
        summary="s",
        reusable_idea=None,
        failure_mode=None,
    )
    return replace(made, **changes)


def seeded(settings: ArchiveSettings = SETTINGS, *, raw: float = 10.0, run_seed: int = 7) -> GuidanceLibrary:
    return GuidanceLibrary.from_seed(settings, entry("seed", raw=raw, timestep=0), run_seed=run_seed)


def run_step(library: GuidanceLibrary, step: int, raw: Callable[[int, int], float | None]) -> None:
    """Acquire and fill a whole step; a raw score of None is an invalid candidate."""
    uids = [f"{step}:{group}" for group in range(library.settings.groups_per_step)]
    parents = [library.acquire_group(uid, visible_timestep_exclusive=step) for uid in uids]
    for group, uid in enumerate(uids):
        for rollout in range(library.settings.rollouts_per_group):
            score = raw(group, rollout)
            status = "invalid" if score is None else "valid"
            made = entry(f"e{step}-{group}-{rollout}", parents[group].id, raw=score, timestep=step)
            library.submit_child(uid, replace(made, verifier_status=status))
