"""Names and numbers of one step's grid: slots, group ids and random streams.

Everything here is derived from the run seed and the position in the grid, never drawn, so that a resumed step asks
for the same samples under the same names.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

MAX_SAMPLING_SEED = 2**31 - 1


@dataclass(frozen=True, order=True)
class Slot:
    """One rollout's place in the grid: group (which parent) and rollout (which sibling)."""

    group: int
    rollout: int


@dataclass(frozen=True)
class Grid:
    """`groups` parents with `rollouts` proposals each."""

    groups: int
    rollouts: int

    @property
    def size(self) -> int:
        """Rollouts in one step."""
        return self.groups * self.rollouts

    def slots(self) -> tuple[Slot, ...]:
        """All slots, group by group."""
        return tuple(Slot(group, rollout) for group in range(self.groups) for rollout in range(self.rollouts))


def archive_timestep(step: int) -> int:
    """The archive's time of step `step` (from 0): the seed lives at 0, the first step's children at 1."""
    return step + 1


def group_uid(step: int, group: int) -> str:
    """The archive's name of one group."""
    return f"{archive_timestep(step)}:{group}"


def sampling_seed(run_seed: int, step: int, attempt: int, slot: Slot) -> int:
    """The seed of one guidance request, in [0, 2**31 - 1]."""
    text = f"{run_seed}/{step}/{attempt}/{slot.group}/{slot.rollout}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") & MAX_SAMPLING_SEED
