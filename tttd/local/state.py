"""The backend's state directory: checkpoints, and which load id stands for which of them.

A load id names one publication of one checkpoint, for ever. Reef stamps every sampled answer with it and trains only
on answers of the load that is served. Because the ids are kept across restarts, answers sampled before a restart
still belong to the weights served after it, and a half-reported step can be completed.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import logging
import os
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path
from threading import RLock

from reef.runtime.recovery import write_json

from tttd.local.checkpoint import (
    BASE_CHECKPOINT,
    MANIFEST_FILE,
    CheckpointError,
    Manifest,
    publish_folder,
    staging_folder,
    tree_checkpoint_id,
)

logger = logging.getLogger(__name__)

LOADS_FORMAT = 1
KEPT_LOADS = 3
"""How many of the newest loads keep their checkpoint here; Reef's own releases keep all of them."""


class StateDirectory:
    """Owns the folder for as long as it is open; a second owner is refused."""

    def __init__(self, root: Path, *, identity: str, repositories: Iterable[Path] = ()) -> None:
        """Lock `root`, remove what a killed process left half-written, and read the load ids.

        `identity` describes the model and adapter shape, `repositories` are the folders that Reef publishes releases
        in. Raises `ValueError` when the folder belongs to other ones, is in use, or is damaged.
        """
        self.root = root.expanduser().resolve()
        self.identity = identity
        self._repositories = tuple(repositories)
        self._checkpoints = self.root / "checkpoints"
        self._checkpoints.mkdir(parents=True, exist_ok=True)
        self._lock_file = (self.root / ".lock").open("a", encoding="utf-8")
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock_file.close()
            raise ValueError(
                f"the state directory {self.root} is in use by another running service; stop it first"
            ) from None
        try:
            self.loads = LoadTable(self.root / "loads.json", identity)
            self._remove_leftovers()
        except BaseException:
            self._lock_file.close()
            raise

    def close(self) -> None:
        """Give the folder up."""
        self._lock_file.close()

    def checkpoint(self, checkpoint_id: str) -> Path | None:
        """The folder of a checkpoint, or None for the initial adapter; raises `CheckpointError` when it is gone."""
        if checkpoint_id == BASE_CHECKPOINT:
            return None
        folder = self.checkpoint_path(checkpoint_id)
        if not self.has_checkpoint(checkpoint_id):
            raise CheckpointError(f"checkpoint {checkpoint_id} is not in {self._checkpoints}")
        return folder

    def checkpoint_path(self, checkpoint_id: str) -> Path:
        """Where a checkpoint is, or would be."""
        if not checkpoint_id.isalnum():
            raise CheckpointError(f"not a checkpoint id: {checkpoint_id!r}")
        return self._checkpoints / checkpoint_id

    def has_checkpoint(self, checkpoint_id: str) -> bool:
        """Whether a complete checkpoint of this id is here (the manifest is written last)."""
        return checkpoint_id == BASE_CHECKPOINT or (self.checkpoint_path(checkpoint_id) / MANIFEST_FILE).exists()

    def import_tree(self, tree: Path) -> str:
        """Copy a released tree's checkpoint here unless it already is, and return its id.

        When this returns the release is on the disk, in git too: Reef asks for this after a release is pushed and
        before it commits the step, and neither git nor git-lfs waits for the disk by itself. Raises `CheckpointError`
        for a tree of another model or of no checkpoint at all.
        """
        checkpoint_id = tree_checkpoint_id(tree)
        if not self.has_checkpoint(checkpoint_id):
            made_for = Manifest.read(tree).identity
            if made_for != self.identity:
                raise CheckpointError(f"the release was made for {made_for}, this service runs {self.identity}")
            folder = self.checkpoint_path(checkpoint_id)
            staging = staging_folder(folder)
            for path in tree.iterdir():
                if path.is_file() and not path.name.startswith((".git", "reef-")):
                    shutil.copyfile(path, staging / path.name)
            publish_folder(staging, folder)
        sync_filesystems([self.root, *self._repositories])
        return checkpoint_id

    def prune(self) -> None:
        """Delete the checkpoints of old loads; candidates that were never loaded stay until the next start."""
        kept = set(self.loads.newest(KEPT_LOADS))
        for checkpoint_id in self.loads.all() - kept - {BASE_CHECKPOINT}:
            folder = self.checkpoint_path(checkpoint_id)
            if folder.exists():
                shutil.rmtree(folder, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        """What a killed process left behind: unfinished files, and candidates that nothing refers to any more."""
        kept = set(self.loads.newest(KEPT_LOADS))
        for folder in self._checkpoints.iterdir():
            if folder.name not in kept or not (folder / MANIFEST_FILE).exists():
                logger.info("removing the left-over checkpoint %s", folder.name)
                shutil.rmtree(folder, ignore_errors=True)
        for path in self.root.glob(".*.tmp"):
            path.unlink(missing_ok=True)


class LoadTable:
    """`<incarnation>:<n>` -> checkpoint id, and which load Reef published last; every change is durable at once."""

    def __init__(self, path: Path, identity: str) -> None:
        self._path = path
        self._lock = RLock()
        self._identity = identity
        self._incarnation = uuid.uuid4().hex
        self._checkpoints: list[str] = []
        self.published: str | None = None
        if path.exists():
            self._read()

    def checkpoint_of(self, load_id: str) -> str:
        """The checkpoint a load serves; raises `KeyError` for an unknown load."""
        incarnation, _, number = load_id.rpartition(":")
        with self._lock:
            if incarnation != self._incarnation or not number.isdecimal() or int(number) >= len(self._checkpoints):
                raise KeyError(f"load id {load_id!r} is unknown to this state directory")
            return self._checkpoints[int(number)]

    def latest(self, checkpoint_id: str) -> str | None:
        """The newest load of a checkpoint, if it was ever loaded."""
        with self._lock:
            for number in range(len(self._checkpoints) - 1, -1, -1):
                if self._checkpoints[number] == checkpoint_id:
                    return f"{self._incarnation}:{number}"
            return None

    def newest(self, count: int) -> list[str]:
        """The checkpoints of the last `count` loads, and of the published one."""
        with self._lock:
            published = [] if self.published is None else [self.checkpoint_of(self.published)]
            return [*self._checkpoints[-count:], *published]

    def all(self) -> set[str]:
        """Every checkpoint that was ever loaded."""
        with self._lock:
            return set(self._checkpoints)

    def mint(self, checkpoint_id: str) -> str:
        """A new load id for a checkpoint; an `OSError` (the disk is full) leaves everything as it was."""
        with self._lock:
            self._save([*self._checkpoints, checkpoint_id], self.published)
            return f"{self._incarnation}:{len(self._checkpoints) - 1}"

    def publish(self, load_id: str) -> None:
        """Remember the load that Reef serves; a restart begins with it.  Raises as `mint` does."""
        with self._lock:
            self.checkpoint_of(load_id)
            if self.published != load_id:
                self._save(self._checkpoints, load_id)

    def _save(self, checkpoints: list[str], published: str | None) -> None:
        """Write first, then believe it: a load id that is not on the disk must never stamp an answer."""
        write_json(
            self._path,
            {
                "format": LOADS_FORMAT,
                "identity": self._identity,
                "incarnation": self._incarnation,
                "checkpoints": checkpoints,
                "published": published,
            },
        )
        self._checkpoints, self.published = checkpoints, published

    def _read(self) -> None:
        try:
            value = json.loads(self._path.read_text(encoding="utf-8"))
            format_, identity = value["format"], value["identity"]
            incarnation, checkpoints, published = value["incarnation"], value["checkpoints"], value["published"]
            if not isinstance(incarnation, str) or not all(isinstance(item, str) for item in checkpoints):
                raise ValueError("incarnation or checkpoints are not text")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self._path} is damaged ({error}); restore it or start with an empty folder") from error
        if format_ != LOADS_FORMAT:
            raise ValueError(f"{self._path} has format {format_}, this version reads {LOADS_FORMAT}")
        if identity != self._identity:
            raise ValueError(
                f"the state directory {self._path.parent} was made for {identity}, this service runs {self._identity}; "
                "use another state directory"
            )
        self._incarnation, self._checkpoints = incarnation, list(checkpoints)
        if published is not None:
            self.checkpoint_of(published)
            self.published = published


def sync_filesystems(folders: Iterable[Path]) -> None:
    """Put everything that any process has written to these folders' file systems on the disk (syncfs(2), Linux)."""
    devices = {folder.stat().st_dev: folder for folder in folders if folder.exists()}
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    for folder in devices.values():
        if syncfs is None:
            os.sync()
            return
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            if syncfs(descriptor) != 0:
                number = ctypes.get_errno()
                raise OSError(number, f"cannot write everything to the disk: {os.strerror(number)}", str(folder))
        finally:
            os.close(descriptor)
