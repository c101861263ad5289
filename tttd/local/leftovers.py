"""Removes what Reef and git leave behind when they are killed or the disk is full, before either starts again.

Reef publishes every step as a git commit.  If the machine or the process dies in the middle of one, git's `*.lock`
file stays, and then no later step can ever be published: git assumes that another process is still at work.  A clone
that was cut short blocks Reef in the same way.  Everything else here only wastes disk space, but the copy of a release
that was being published is as large as a checkpoint.  At start-up, with the state directory locked, no such process is
at work.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

logger = logging.getLogger(__name__)

_UNFINISHED = ("*.lock", "tmp_obj_*", "tmp_pack_*", "tmp_idx_*", "tmp_objdir-*")
"""What git calls its locks, and the objects that it has not finished receiving."""

_STAGED = "staged/*"
"""Below the cache folder: copies of releases that are being published."""


def remove_leftovers(folders: Iterable[Path]) -> list[Path]:
    """Clean Reef's repositories, work clones and caches below `folders`; returns what was removed.

    A folder that does not exist is fine.
    """
    removed = []
    for folder in folders:
        for path in sorted(set(_leftovers(folder))):
            logger.warning("removing %s, which an earlier process left behind", path)
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
            removed.append(path)
    return removed


def _leftovers(folder: Path) -> Iterator[Path]:
    # `.<name>-<random>` is how Reef names a folder that gets its name once it is complete.
    yield from folder.parent.glob(f".{folder.name}-*")
    yield from folder.glob(".????????????????????????????????????????-*")  # a release's id has 40 digits
    yield from folder.glob(_STAGED)
    yield from (git.parent for git in folder.glob("*/repository/.git") if _is_half_cloned(git))
    for pattern in _UNFINISHED:
        yield from (path for path in folder.rglob(pattern) if path.is_file() or path.name.startswith("tmp_objdir-"))


def _is_half_cloned(git: Path) -> bool:
    """Whether a clone died before git wrote down where it came from; Reef would take it for a finished one."""
    try:
        config = (git / "config").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return '[remote "origin"]' not in config
