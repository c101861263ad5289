"""Questions to the machine, as one replaceable value, so that every answer can be tried in a test."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from guidance_ttt import ports

_OUTPUT_CHARS = 20_000


@dataclass(frozen=True)
class Ran:
    """A command that ended: its exit code and what it said on both streams."""

    code: int
    output: str

    @property
    def first_line(self) -> str:
        """The first line that is not blank."""
        return next((line.strip() for line in self.output.splitlines() if line.strip()), "")


def run_command(
    argv: Sequence[str], *, stdin: str = "", timeout_s: float = 10.0, env: Mapping[str, str] | None = None
) -> Ran | None:
    """Run a short command; None when it cannot be started or does not end in time."""
    try:
        done = subprocess.run(
            list(argv),
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            env=None if env is None else dict(env),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Ran(done.returncode, done.stdout[-_OUTPUT_CHARS:])


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def has_module(name: str) -> bool:
    """Whether Python would find a top-level module, without importing it."""
    with contextlib.suppress(ImportError, ValueError):
        return importlib.util.find_spec(name) is not None
    return False


def entry_point_names(group: str) -> frozenset[str]:
    """The names that installed packages offer in an entry point group."""
    return frozenset(point.name for point in importlib.metadata.entry_points(group=group))


def read_text(path: Path) -> str | None:
    """A small text file, or None when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def nearest_folder(path: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return next((place for place in (path, *path.parents) if place.is_dir()), Path("/"))


def free_bytes(path: Path) -> int:
    """Space left for this user where `path` is or will be."""
    return shutil.disk_usage(nearest_folder(path)).free


def is_writable(path: Path) -> bool:
    """Whether files can be made in the folder, or the folder itself where it does not exist yet."""
    return os.access(nearest_folder(path), os.W_OK | os.X_OK)


@dataclass(frozen=True)
class Probes:
    """The questions; each field can be replaced by an answer of one's own."""

    python_version: tuple[int, int, int] = (sys.version_info.major, sys.version_info.minor, sys.version_info.micro)
    which: Callable[[str], str | None] = shutil.which
    run: Callable[..., Ran | None] = run_command
    installed: Callable[[str], str | None] = installed_version
    has_module: Callable[[str], bool] = has_module
    entry_points: Callable[[str], frozenset[str]] = entry_point_names
    read_text: Callable[[Path], str | None] = read_text
    free_bytes: Callable[[Path], int] = free_bytes
    is_writable: Callable[[Path], bool] = is_writable
    cores: Callable[[], int] = lambda: len(os.sched_getaffinity(0))
    port_is_free: Callable[[str, int], bool] = ports.is_free
    port_holder: Callable[[int], object | None] = ports.holder
    fetch: Callable[[str, float], tuple[int, str] | None] = ports.fetch
