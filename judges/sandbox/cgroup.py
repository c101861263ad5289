"""Control groups: the parts that versions 1 and 2 share, and the choice between them.

The root is always a parameter, so a directory of plain files can stand in for the kernel's in tests.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from judges.errors import SandboxFault
from judges.sandbox.cage import Cage, kill_all
from judges.sandbox.model import Limits
from judges.sandbox.owner import owner_is_gone, owner_token

CGROUP_ROOT = Path("/sys/fs/cgroup")
PARENT_NAME = "guidance-judge"
REMOVE_DEADLINE_S = 5.0
CREATE_ATTEMPTS = 5

_numbers = itertools.count(1)


class CgroupTree(Protocol):
    """Makes one group per run, below one parent group of the judges' own."""

    version: int

    def create(self, limits: Limits) -> Cage:
        """Make a group with these limits, each read back; raises `SandboxFault` when the kernel did not take one."""
        ...

    def sweep(self) -> int:
        """Kill and remove what dead judges left behind; returns how many groups there were."""
        ...

    def close(self) -> None:
        """Remove the parent group unless another judge still uses it."""
        ...


def open_tree(root: Path = CGROUP_ROOT) -> CgroupTree:
    """Find the control groups below `root` and prepare a parent group; raises `SandboxFault` saying what is missing."""
    # Imported here because both modules build on this one.
    from judges.sandbox.cgroup_v1 import CgroupV1, has_v1
    from judges.sandbox.cgroup_v2 import CgroupV2, own_v2_path

    if (root / "cgroup.controllers").exists():
        return CgroupV2.open(root, own_v2_path())
    if has_v1(root):
        return CgroupV1(root)
    raise SandboxFault(f"{root} holds neither version 2 control groups nor the controllers memory, pids and cpuacct")


def new_group_name() -> str:
    """A group name which is unique in this process and names its owner."""
    return f"{owner_token()}.{next(_numbers)}"


def write_value(path: Path, value: str) -> None:
    """Write one kernel setting; the error names the file and the value."""
    try:
        path.write_text(value, encoding="ascii")
    except OSError as error:
        raise SandboxFault(f"cannot write {value!r} to {path}: {error.strerror or error}") from error


def write_checked(path: Path, value: int) -> None:
    """Write a limit and read it back, so that a run never starts under a limit that only seems to be set.

    The kernel may round a byte count down to whole pages; it may never allow more.
    """
    write_value(path, str(value))
    got = read_int(path)
    if got is None or got > value or got < value - 65536:
        raise SandboxFault(f"{path} reads {got} after {value} was written: the limit does not hold")


def read_int(path: Path) -> int | None:
    """The first number in a kernel file, or None where the file is missing or says `max`."""
    try:
        words = path.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError):
        return None
    return int(words[0]) if words and words[0].isdigit() else None


def read_keyed_int(path: Path, key: str) -> int | None:
    """The number behind `key` in a file of `key value` lines."""
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.strip().isdigit():
            return int(value)
    return None


def read_members(group: Path) -> list[int]:
    """Process ids in a group; empty once it is gone."""
    try:
        return [int(word) for word in (group / "cgroup.procs").read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        return []


def make_group(group: Path, prepare_parent: Callable[[], None]) -> None:
    """Make one group directory, and its parent first where another judge has just removed it."""
    for attempt in range(CREATE_ATTEMPTS):
        try:
            prepare_parent()
            group.mkdir(exist_ok=True)
            return
        except FileNotFoundError as error:
            if attempt == CREATE_ATTEMPTS - 1:
                raise SandboxFault(f"cannot make control group {group}: {error.strerror or error}") from error
        except OSError as error:
            raise SandboxFault(f"cannot make control group {group}: {error.strerror or error}") from error


def remove_group(group: Path) -> None:
    """Remove an empty group, waiting for the kernel to let go of its last member."""
    deadline = time.monotonic() + REMOVE_DEADLINE_S
    while True:
        try:
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise SandboxFault(f"cannot remove control group {group}: {error.strerror or error}") from error
            time.sleep(0.005)


def sweep_parents(parents: Iterable[Path]) -> int:
    """Kill and remove the groups of dead judges below each of `parents`."""
    swept = 0
    for parent in parents:
        with contextlib.suppress(OSError):
            for group in list(parent.iterdir()):
                if not group.is_dir() or not owner_is_gone(group.name):
                    continue
                with contextlib.suppress(SandboxFault):
                    kill_all(lambda group=group: read_members(group), f"left-over group {group}")  # type: ignore[misc]
                    remove_group(group)
                    swept += 1
    return swept
