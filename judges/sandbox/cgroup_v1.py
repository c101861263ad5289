"""Control groups, version 1: one directory per controller, the same group name in each."""

from __future__ import annotations

import contextlib
from pathlib import Path

from judges.errors import SandboxFault
from judges.sandbox.cage import kill_all
from judges.sandbox.cgroup import (
    PARENT_NAME,
    make_group,
    new_group_name,
    read_int,
    read_keyed_int,
    read_members,
    remove_group,
    sweep_parents,
    write_checked,
    write_value,
)
from judges.sandbox.model import Limits

CONTROLLERS = ("memory", "pids", "cpuacct")


def has_v1(root: Path) -> bool:
    """Whether the three controllers a run needs are mounted below `root`."""
    return all((root / name).is_dir() for name in CONTROLLERS)


class CgroupV1:
    """Makes groups `<root>/<controller>/guidance-judge/<owner>.<n>`."""

    version = 1

    def __init__(self, root: Path) -> None:
        self._parents = {name: root / name / PARENT_NAME for name in CONTROLLERS}

    def create(self, limits: Limits) -> GroupV1:
        """Make one group and set its limits; nothing is left behind when that fails."""
        name = new_group_name()
        group = GroupV1({controller: parent / name for controller, parent in self._parents.items()})
        try:
            group.prepare(limits)
        except SandboxFault:
            with contextlib.suppress(SandboxFault):
                group.remove()
            raise
        return group

    def sweep(self) -> int:
        """Remove groups of dead judges; a group counts once, not once a controller."""
        counts = [sweep_parents([parent]) for parent in self._parents.values()]
        return max(counts)

    def close(self) -> None:
        """Remove the parent directories if no group of any judge is in them."""
        for parent in self._parents.values():
            with contextlib.suppress(OSError):
                parent.rmdir()


class GroupV1:
    """One run's group in every controller; see `Cage` for what each method promises."""

    def __init__(self, directories: dict[str, Path]) -> None:
        self._directories = directories
        self._memory = directories["memory"]
        self._pids = directories["pids"]
        self._cpuacct = directories["cpuacct"]

    def prepare(self, limits: Limits) -> None:
        """Create the directories and write the limits."""
        for directory in self._directories.values():
            make_group(directory, lambda parent=directory.parent: parent.mkdir(exist_ok=True))  # type: ignore[misc]
        write_checked(self._memory / "memory.limit_in_bytes", limits.memory_bytes)
        swap = self._memory / "memory.memsw.limit_in_bytes"
        if swap.exists():
            write_checked(swap, limits.memory_bytes)
        write_checked(self._pids / "pids.max", limits.pids)

    @property
    def join_files(self) -> tuple[Path, ...]:
        return tuple(directory / "cgroup.procs" for directory in self._directories.values())

    def attach(self, pid: int) -> None:
        """Nothing to do: the process joins by itself before it runs anything."""

    def processes(self) -> list[int]:
        # A process joins the memory group first, so that list is complete while the launcher is still joining.
        return read_members(self._memory)

    def cpu_s(self) -> float:
        usage_ns = read_int(self._cpuacct / "cpuacct.usage")
        if usage_ns is None:
            raise SandboxFault(f"cannot read {self._cpuacct / 'cpuacct.usage'}")
        return usage_ns / 1e9

    def memory_peak_bytes(self) -> int:
        return read_int(self._memory / "memory.max_usage_in_bytes") or 0

    def oom_kills(self) -> int:
        return read_keyed_int(self._memory / "memory.oom_control", "oom_kill") or 0

    def pids_max(self) -> int | None:
        return read_int(self._pids / "pids.max")

    def kill(self) -> None:
        kill_all(self.processes, f"control group {self._memory.name}")

    def remove(self) -> None:
        # Cached file pages would otherwise keep the removed memory group alive inside the kernel.
        force_empty = self._memory / "memory.force_empty"
        if force_empty.exists():
            with contextlib.suppress(SandboxFault):
                write_value(force_empty, "0")
        for directory in self._directories.values():
            remove_group(directory)
