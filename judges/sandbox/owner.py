"""Names for things that must not outlive the judge which made them, and how to tell that it is gone.

A judge killed with SIGKILL cannot tidy up.  Its control groups and scratch directories carry an owner token in their
name; the next judge removes those whose owner no longer runs, and leaves those of a live one alone.
"""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")


def _start_ticks(pid: int) -> str | None:
    """The process's start time in clock ticks since boot, which tells a reused pid from the original."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] != "Z" else None


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return "0"


def owner_token() -> str:
    """`<pid namespace>.<pid>.<start ticks>` of this process, safe to use in a file name."""
    return f"{_pid_namespace()}.{os.getpid()}.{_start_ticks(os.getpid()) or '0'}"


def owner_is_gone(name: str) -> bool:
    """Whether `name` starts with the token of a process that no longer runs.

    False for names without a token, and for tokens of another pid namespace, whose processes cannot be seen from here.
    """
    parts = name.split(".")
    if len(parts) < 3 or not all(part.isdigit() for part in parts[:3]) or parts[0] != _pid_namespace():
        return False
    return _start_ticks(int(parts[1])) != parts[2]
