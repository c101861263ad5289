"""Stores a release's large files once: what lies about as an equal copy becomes a hard link to the git-lfs object.

A release is on the disk several times: as git-lfs objects (Reef's repository and its work clone already share those),
as the tree in Reef's cache from which it is served, and as the backend's own checkpoint. None of them is ever written
to again, so they may as well be one file. That halves what a step adds to the disk, and loses nothing: every name keeps
its content, and deleting one leaves the others.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

logger = logging.getLogger(__name__)

SMALLEST_BYTES = 2**20
"""Smaller files are not worth a look."""


_RELEASE_OR_CHECKPOINT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class SharedFiles:
    """Links the files of releases and checkpoints to equal git-lfs objects; both are looked for below `folders`.

    A folder may be Reef's bare repository, its work clones, its cache, or the backend's checkpoints.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(folders)
        self._unmatched: set[tuple[int, int, int]] = set()

    def link_copies(self) -> int:
        """Replace equal copies by links, and return how many bytes that freed.

        A copy is replaced in one step, so a reader sees the old file or the new one. What cannot be linked (another
        file system, no permission) stays as it is.
        """
        freed = 0
        objects: dict[str, Path] | None = None
        for path in self._copies():
            status = path.stat()
            fingerprint = (status.st_dev, status.st_ino, status.st_mtime_ns)
            if fingerprint in self._unmatched:
                continue
            if objects is None:
                objects = {item.name: item for item in self._objects()}
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest in objects and _replace_by_link(path, objects[digest]):
                freed += status.st_size
            else:
                self._unmatched.add(fingerprint)
        return freed

    def _copies(self) -> Iterator[Path]:
        """Large files of releases and checkpoints that have only one name."""
        for folder in self._folders:
            for path in folder.glob("*/*"):
                if not _RELEASE_OR_CHECKPOINT.fullmatch(path.parent.name) or path.is_symlink() or not path.is_file():
                    continue
                status = path.stat()
                if status.st_nlink == 1 and status.st_size >= SMALLEST_BYTES:
                    yield path

    def _objects(self) -> Iterator[Path]:
        """git-lfs objects; the SHA-256 of one is its name."""
        for folder in self._folders:
            for repository in (folder, *folder.glob("*/repository/.git")):
                yield from repository.glob("lfs/objects/??/??/*")


def _replace_by_link(path: Path, original: Path) -> bool:
    # Beside the tree, not in it: whatever is in a tree is taken for a part of it.
    temporary = path.parent.with_name(f".{path.parent.name}-{path.name}.link")
    try:
        temporary.unlink(missing_ok=True)
        os.link(original, temporary)
        temporary.replace(path)
    except OSError as error:
        logger.info("%s stays a copy: %s", path, error)
        temporary.unlink(missing_ok=True)
        return False
    return True
