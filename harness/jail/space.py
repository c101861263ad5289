"""The temporary directories of one trial on the host: made, swept, removed or kept for a look."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from harness.jail.owner import is_abandoned, new_name
from harness.jail.tools import JailUnavailable, blocked_at

_REMOVE_TIMEOUT_S = 10.0
_CREATE_TRIES = 20


@dataclass(frozen=True)
class TrialSpace:
    """One trial's directory: `root` is the jail's `/`, `run` holds what the host writes and the jail may only read."""

    path: Path

    @property
    def root(self) -> Path:
        """Directory bound as `/` in every jail of the trial."""
        return self.path / "root"

    @property
    def run(self) -> Path:
        """Host-owned side files: sockets, the relay script, generated /etc/hosts, mount points for staged binds."""
        return self.path / "run"

    @classmethod
    def create(cls, state_root: Path | None, host_uid: int | None) -> TrialSpace:
        """Make the directories after sweeping those of dead processes.

        Args:
            state_root: parent for all trial directories; None takes the system's temporary directory.
            host_uid: account that has to reach them, None for the current one.

        Raises:
            JailUnavailable: that place cannot be used; the message names it and the cure.
        """
        parent = state_root or Path(tempfile.gettempdir())
        for _ in range(_CREATE_TRIES):
            # Another trial that ends removes the base directory when it is empty, perhaps right now.
            with contextlib.suppress(FileNotFoundError):
                base = _base_directory(parent, host_uid)
                sweep(base)
                space = cls(base / new_name())
                for place, mode in ((space.path, 0o711), (space.root, 0o1777), (space.run, 0o711)):
                    place.mkdir()
                    place.chmod(mode)
                return space
        raise JailUnavailable(f"directories made in {parent} disappear at once; set TMPDIR to another directory")

    def remove(self) -> None:
        """Delete everything; processes of a jail that is being killed may still write for a moment, so it retries."""
        remove_tree(self.path)
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()

    def keep(self) -> Path:
        """Take the directory out of the sweep's reach and return its new place."""
        kept = self.path.with_name(f"kept-{self.path.name}")
        self.path.rename(kept)
        return kept


def sweep(base: Path) -> None:
    """Remove the trial directories below `base` whose owner process is dead, as far as that is possible."""
    for entry in base.iterdir():
        if is_abandoned(entry.name):
            with contextlib.suppress(OSError):
                remove_tree(entry)


def remove_tree(path: Path, timeout_s: float = _REMOVE_TIMEOUT_S) -> None:
    """Remove a tree that hostile code filled: any depth, any permission bits, never following a link.

    Raises:
        OSError: something is still there after `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    command = ["rm", "-rf", "--one-file-system", "--", str(path)]
    while True:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not path.exists():
            return
        if time.monotonic() > deadline:
            raise OSError(f"cannot remove {path}: {done.stderr.strip()[:300]}")
        subprocess.run(["chmod", "-R", "u+rwX", "--", str(path)], capture_output=True, check=False)
        time.sleep(0.05)


def _base_directory(parent: Path, host_uid: int | None) -> Path:
    """The per-account directory below `parent`; its entries can be entered but not listed by other accounts."""
    parent.mkdir(parents=True, exist_ok=True)
    base = parent.resolve() / f"guidance-ttt-jails-{os.geteuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise JailUnavailable(
            f"{base} belongs to somebody else; remove it, or set TMPDIR or the environment kwarg state_root"
        )
    base.chmod(0o711)
    if os.statvfs(base).f_flag & os.ST_NOEXEC:
        raise JailUnavailable(
            f"{base} is on a file system mounted noexec, so test scripts could not start; "
            "set TMPDIR or the environment kwarg state_root to another directory"
        )
    closed = None if host_uid is None else blocked_at(base, host_uid)
    if closed is not None:
        raise JailUnavailable(
            f"jails run as uid {host_uid}, which cannot enter {closed}; "
            "set TMPDIR or the environment kwarg state_root to a directory that everyone can enter, such as /tmp"
        )
    return base
