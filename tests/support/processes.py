"""Process trees: who is below whom, and how to end all of them at once."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

GONE_TIMEOUT_S = 10.0


def descendants(pid: int) -> list[int]:
    """The ids of all living processes below one, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (parent := _parent(int(entry.name))) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(0), [])
        found += below
        waiting += below
    return found


def kill_all(pids: Iterable[int]) -> None:
    """SIGKILL each id that still exists, and wait until it is gone."""
    wanted = list(pids)
    for pid in wanted:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_gone(wanted)


def kill_tree(pid: int) -> None:
    """End a process and everything below it as a power cut would: all are frozen first, so none can react."""
    tree = [pid]
    while True:
        for member in tree:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGSTOP)
        found = [pid, *descendants(pid)]
        if set(found) <= set(tree):
            break
        tree = found
    kill_all(tree)


def wait_gone(pids: Sequence[int], timeout_s: float = GONE_TIMEOUT_S) -> bool:
    """Whether none of the processes runs any more, after at most `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while any(alive(pid) for pid in pids):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    return _parent(pid) is not None


def _parent(pid: int) -> int | None:
    """The parent's id, or None for a process that is gone or only waits to be collected."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state in "ZX" else int(parent)
