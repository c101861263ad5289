"""Control groups that bound the memory and the number of processes of all jails of one environment together.

Both kernel interfaces are served: one group per controller (v1) or one for all (v2).  A group is made as deep below the
harness's own as the machine allows, so that limits set from outside stay in force.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.jail.owner import is_abandoned, new_name

_REMOVE_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Limit:
    """An upper bound: bytes for "memory", a count for "pids"."""

    controller: str
    value: int


@dataclass(frozen=True)
class ControlGroups:
    """The directories to join (write a pid to their cgroup.procs), and why limits that are not in force are not."""

    directories: tuple[Path, ...] = ()
    unmet: dict[str, str] = field(default_factory=dict)

    @classmethod
    def create(cls, limits: list[Limit]) -> ControlGroups:
        """Make groups for the limits; a limit counts as set only when the kernel reads it back."""
        directories: list[Path] = []
        unmet: dict[str, str] = {}
        for limit in limits:
            reason = "no control group hierarchy with this controller can be written here"
            for parent in _parents(limit.controller):
                _sweep(parent)
                try:
                    directory = _make(parent, limit, directories)
                except OSError as error:
                    reason = f"{parent}: {error.strerror or error}"
                    continue
                if directory not in directories:
                    directories.append(directory)
                break
            else:
                unmet[limit.controller] = reason
        return cls(tuple(directories), unmet)

    def remove(self) -> None:
        """Remove the groups; their processes are being killed, so it waits a moment for them."""
        for directory in self.directories:
            _remove(directory)


def _make(parent: Path, limit: Limit, made: list[Path]) -> Path:
    """Set one limit in a new group below `parent`, or (v2) in the one that an earlier limit made there."""
    directory = next((path for path in made if path.parent == parent), None)
    fresh = directory is None
    if directory is None:
        directory = parent / new_name()
        directory.mkdir()
    try:
        _set_limit(directory, limit)
    except OSError:
        if fresh:
            _remove(directory)
        raise
    return directory


def _set_limit(directory: Path, limit: Limit) -> None:
    main, swap = {
        "memory": ("memory.max", ("memory.swap.max", 0)),
        "pids": ("pids.max", None),
    }[limit.controller]
    if limit.controller == "memory" and not (directory / main).exists():
        main, swap = "memory.limit_in_bytes", ("memory.memsw.limit_in_bytes", limit.value)
    (directory / main).write_text(str(limit.value))
    shown = (directory / main).read_text().strip()
    if not shown.isdigit() or int(shown) > limit.value:
        raise OSError(f"{main} reads {shown} after {limit.value} was written")
    if swap is not None:
        # Not every kernel accounts for swap; the main limit holds without it.
        with contextlib.suppress(OSError):
            (directory / swap[0]).write_text(str(swap[1]))


def _parents(controller: str) -> Iterator[Path]:
    """Places for a new group, the innermost first."""
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, mount, kind, options, *_ = line.split(" ")
        if kind == "cgroup" and controller in options.split(","):
            yield from _existing(Path(mount), _own_path(controller))
        elif kind == "cgroup2":
            for place in _existing(Path(mount), _own_path("")):
                if _delegates(place, controller):
                    yield place


def _existing(mount: Path, own: str) -> Iterator[Path]:
    """The harness's own group and those around it, as far as this mount shows them."""
    place = mount / own.lstrip("/")
    while place != mount:
        if place.is_dir():
            yield place
        place = place.parent
    yield mount


def _own_path(controller: str) -> str:
    """The harness's group in the hierarchy of a v1 controller, or in the v2 hierarchy for ''."""
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return path
    return "/"


def _delegates(place: Path, controller: str) -> bool:
    """Whether v2 groups below `place` get this controller; switches it on where that is allowed."""
    control = place / "cgroup.subtree_control"
    try:
        if controller not in (place / "cgroup.controllers").read_text().split():
            return False
        if controller not in control.read_text().split():
            control.write_text(f"+{controller}")
    except OSError:
        return False
    return True


def _sweep(parent: Path) -> None:
    """Remove groups of dead owners; one that still holds processes stays."""
    for entry in parent.glob("guidance-ttt-*"):
        if is_abandoned(entry.name):
            with contextlib.suppress(OSError):
                entry.rmdir()


def _remove(directory: Path) -> None:
    deadline = time.monotonic() + _REMOVE_TIMEOUT_S
    while True:
        try:
            directory.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
