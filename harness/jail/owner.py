"""Names that tell which process owns a temporary directory or control group, so that leftovers of dead ones can go.

A name carries the owner's pid, its start time (pids are reused) and its pid namespace (a pid of another container that
shares the same /tmp means nothing here).
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

_NAME = re.compile(r"guidance-ttt-(?P<pid>\d+)-(?P<start>\d+)-(?P<space>\d+)-[0-9a-f]+")


def new_name() -> str:
    """A fresh, unguessable name owned by this process."""
    pid = os.getpid()
    return f"guidance-ttt-{pid}-{_start_ticks(pid)}-{_pid_namespace()}-{secrets.token_hex(8)}"


def is_abandoned(name: str) -> bool:
    """True only for a name made by `new_name` in this pid namespace by a process that no longer lives."""
    match = _NAME.fullmatch(name)
    if match is None or int(match["space"]) != _pid_namespace():
        return False
    return _start_ticks(int(match["pid"])) != int(match["start"])


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _start_ticks(pid: int) -> int | None:
    """Start time of a living process in clock ticks since boot; None for a dead one or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command name in parentheses may itself hold spaces and parentheses; the fields after it are fixed.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])
