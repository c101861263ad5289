"""Control groups, version 2: one unified tree.

A group that holds processes cannot hand controllers to children (only the real root may), so the judge's parent group
is made below the nearest ancestor of its own group that allows it.
"""

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

NEEDED = ("memory", "pids")


def own_v2_path(proc_file: Path = Path("/proc/self/cgroup")) -> str:
    """This process's group in the unified tree, relative to its root; empty for the root or when unknown."""
    try:
        lines = proc_file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    for line in lines:
        if line.startswith("0::"):
            path = line[3:].strip("/")
            # `..` appears when the group lies outside the visible part of the tree.
            return "" if ".." in path.split("/") else path
    return ""


class CgroupV2:
    """Makes groups `<ancestor>/guidance-judge/<owner>.<n>`."""

    version = 2

    def __init__(self, ancestor: Path) -> None:
        self._ancestor = ancestor
        self._parent = _delegate(ancestor)

    @classmethod
    def open(cls, root: Path, own_path: str = "") -> CgroupV2:
        """Find an ancestor that can delegate memory and pids, own group first; `SandboxFault` lists every refusal."""
        candidates = [root]
        for part in own_path.split("/") if own_path else []:
            candidates.append(candidates[-1] / part)
        refusals: list[str] = []
        for ancestor in reversed(candidates):
            try:
                return cls(ancestor)
            except SandboxFault as refusal:
                refusals.append(str(refusal))
        raise SandboxFault("no control group can be delegated: " + "; ".join(refusals))

    def create(self, limits: Limits) -> GroupV2:
        """Make one group and set its limits; nothing is left behind when that fails."""
        directory = self._parent / new_group_name()
        group = GroupV2(directory)
        try:
            make_group(directory, self._restore_parent)
            group.prepare(limits)
        except SandboxFault:
            with contextlib.suppress(SandboxFault):
                group.remove()
            raise
        return group

    def _restore_parent(self) -> None:
        if not self._parent.is_dir():
            _delegate(self._ancestor)

    def sweep(self) -> int:
        """Remove groups of dead judges."""
        return sweep_parents([self._parent])

    def close(self) -> None:
        """Remove the parent group if no group of any judge is in it."""
        with contextlib.suppress(OSError):
            self._parent.rmdir()


def _delegate(ancestor: Path) -> Path:
    """Make the judges' parent group below `ancestor` and enable the controllers for its children."""
    try:
        offered = (ancestor / "cgroup.controllers").read_text(encoding="ascii").split()
    except OSError as error:
        raise SandboxFault(f"{ancestor}: {error.strerror or error}") from error
    missing = [name for name in NEEDED if name not in offered]
    if missing:
        raise SandboxFault(f"{ancestor} does not offer the controllers {', '.join(missing)}")
    wanted = " ".join(f"+{name}" for name in NEEDED)
    try:
        enabled = (ancestor / "cgroup.subtree_control").read_text(encoding="ascii").split()
    except OSError:
        enabled = []
    if not all(name in enabled for name in NEEDED):
        write_value(ancestor / "cgroup.subtree_control", wanted)
    parent = ancestor / PARENT_NAME
    try:
        parent.mkdir(exist_ok=True)
    except OSError as error:
        raise SandboxFault(f"cannot make control group {parent}: {error.strerror or error}") from error
    try:
        write_value(parent / "cgroup.subtree_control", wanted)
    except SandboxFault:
        with contextlib.suppress(OSError):
            parent.rmdir()
        raise
    return parent


class GroupV2:
    """One run's group; see `Cage` for what each method promises."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def prepare(self, limits: Limits) -> None:
        """Write the limits."""
        write_checked(self._directory / "memory.max", limits.memory_bytes)
        write_checked(self._directory / "pids.max", limits.pids)
        for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
            # Missing where swap accounting is off or the kernel is old; the hard limits above do not depend on them.
            if (self._directory / name).exists():
                write_value(self._directory / name, value)

    @property
    def join_files(self) -> tuple[Path, ...]:
        return (self._directory / "cgroup.procs",)

    def attach(self, pid: int) -> None:
        """Nothing to do: the process joins by itself before it runs anything."""

    def processes(self) -> list[int]:
        return read_members(self._directory)

    def cpu_s(self) -> float:
        usage_us = read_keyed_int(self._directory / "cpu.stat", "usage_usec")
        if usage_us is None:
            raise SandboxFault(f"cannot read usage_usec from {self._directory / 'cpu.stat'}")
        return usage_us / 1e6

    def memory_peak_bytes(self) -> int:
        # memory.peak exists since Linux 5.19; before that only the present value can be had.
        peak = read_int(self._directory / "memory.peak")
        return peak if peak is not None else read_int(self._directory / "memory.current") or 0

    def oom_kills(self) -> int:
        return read_keyed_int(self._directory / "memory.events", "oom_kill") or 0

    def pids_max(self) -> int | None:
        return read_int(self._directory / "pids.max")

    def kill(self) -> None:
        kill_file = self._directory / "cgroup.kill"
        if self.processes() and kill_file.exists():
            with contextlib.suppress(SandboxFault):
                write_value(kill_file, "1")
        kill_all(self.processes, f"control group {self._directory.name}")

    def remove(self) -> None:
        remove_group(self._directory)
