"""What holds one run's processes together: the interface, and the process-tree version used without control groups."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from judges.errors import SandboxFault

KILL_DEADLINE_S = 5.0
_PROC = Path("/proc")


class Cage(Protocol):
    """One run's container: it can be measured, killed as a whole and removed."""

    @property
    def join_files(self) -> tuple[Path, ...]:
        """Files into which the launching process writes `0` to become a member before it starts anything."""
        ...

    def attach(self, pid: int) -> None:
        """Tell the cage which process was started."""
        ...

    def processes(self) -> list[int]:
        """Host ids of the live members."""
        ...

    def cpu_s(self) -> float:
        """CPU seconds used so far by all members, dead ones included."""
        ...

    def memory_peak_bytes(self) -> int:
        """Highest memory use seen so far."""
        ...

    def oom_kills(self) -> int:
        """How many members the kernel killed for memory."""
        ...

    def pids_max(self) -> int | None:
        """The process cap read back from the kernel, or None when no cap covers the run as a whole."""
        ...

    def kill(self) -> None:
        """Kill every member and wait until none is left; raises `SandboxFault` when one survives."""
        ...

    def remove(self) -> None:
        """Give back what the cage took from the system."""
        ...


def kill_all(members: Callable[[], Sequence[int]], what: str, deadline_s: float = KILL_DEADLINE_S) -> None:
    """Send SIGKILL to whatever `members()` lists until it lists nothing.

    Repeats because a process may have been forking while the list was read.
    """
    deadline = time.monotonic() + deadline_s
    pause_s = 0.0005
    while pids := members():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise SandboxFault(f"{what}: processes {list(pids)[:5]} survived SIGKILL for {deadline_s:g} s")
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.02)


class TreeCage:
    """A `Cage` that follows the descendants of one process through `/proc`.

    Used where control groups are not available.  Sums are sampled, so a process that lives shorter than a sampling
    interval may be missed unless its parent waits for it, and memory is a lower bound.
    """

    def __init__(self) -> None:
        self._root: int | None = None
        self._cpu_s = 0.0
        self._memory_bytes = 0
        self._seen: dict[int, str] = {}
        self._tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    @property
    def join_files(self) -> tuple[Path, ...]:
        return ()

    def attach(self, pid: int) -> None:
        self._root = pid

    def processes(self) -> list[int]:
        if self._root is None:
            return []
        found: list[int] = []
        waiting = [self._root]
        while waiting:
            pid = waiting.pop()
            found.append(pid)
            waiting.extend(_children(pid))
        return found

    def _sample(self) -> None:
        ticks = 0
        pages = 0
        for pid in self.processes():
            fields = _stat_fields(pid)
            if fields is None:
                continue
            # utime, stime and the same of children already waited for; resident pages.
            ticks += sum(int(value) for value in fields[11:15])
            pages += max(0, int(fields[21]))
            self._seen[pid] = fields[19]
        self._cpu_s = max(self._cpu_s, ticks * self._tick_s)
        self._memory_bytes = max(self._memory_bytes, pages * self._page_bytes)

    def cpu_s(self) -> float:
        self._sample()
        return self._cpu_s

    def memory_peak_bytes(self) -> int:
        return self._memory_bytes

    def oom_kills(self) -> int:
        return 0

    def pids_max(self) -> int | None:
        return None

    def _alive(self) -> list[int]:
        """Members seen so far that still run; zombies are their parent's business."""
        self._sample()
        alive = []
        for pid, start in self._seen.items():
            fields = _stat_fields(pid)
            if fields is not None and fields[0] not in ("Z", "X") and fields[19] == start:
                alive.append(pid)
        return alive

    def kill(self) -> None:
        kill_all(self._alive, "sandboxed run")

    def remove(self) -> None:
        self._root = None


def _stat_fields(pid: int) -> list[str] | None:
    """`/proc/<pid>/stat` after the command name: index 0 is the state (field 3 of the manual page)."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields if len(fields) > 21 else None


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in (_PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):
                found.extend(int(child) for child in (task / "children").read_text(encoding="ascii").split())
    except OSError:
        pass
    return found


def core_wait_s(pids: Sequence[int]) -> float:
    """The longest time any thread of `pids` was ready to run while no core was free for it, in seconds.

    The maximum rather than the sum: one thread can wait no longer than the clock ran.
    """
    longest_ns = 0
    for pid in pids:
        try:
            tasks = list((_PROC / str(pid) / "task").iterdir())
        except OSError:
            continue
        for task in tasks:
            with contextlib.suppress(OSError, ValueError, IndexError):
                longest_ns = max(longest_ns, int((task / "schedstat").read_text(encoding="ascii").split()[1]))
    return longest_ns / 1e9
