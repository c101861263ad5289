"""Removes the lock files that git leaves behind when it is killed.

Reef publishes every step as a git commit. If the machine or the process dies in the middle of one, git's `*.lock`
file stays, and then no later step can ever be published: git assumes that another process is still at work. At
start-up, with the state directory locked, there is none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

logger = logging.getLogger(__name__)


def remove_stale_git_locks(folders: Iterable[Path]) -> list[Path]:
    """Delete every `*.lock` below the given repositories and work clones, and return what was deleted."""
    removed = []
    for folder in folders:
        for lock in sorted(folder.rglob("*.lock")):
            if lock.is_file():
                logger.warning("removing %s, which a killed git process left behind", lock)
                lock.unlink(missing_ok=True)
                removed.append(lock)
    return removed
