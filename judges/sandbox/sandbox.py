"""The sandbox: runs one command after another inside jails, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from judges.errors import SandboxFault, SandboxStopped, SandboxUnavailable
from judges.sandbox.cage import Cage, TreeCage
from judges.sandbox.cgroup import CgroupTree
from judges.sandbox.jail import Jail
from judges.sandbox.model import Command, Limits, RunResult, Tier
from judges.sandbox.owner import owner_is_gone, owner_token
from judges.sandbox.supervise import Supervisor

SCRATCH_PREFIX = "guidance-judge-"
_SCRATCH_PARENTS = ("/var/tmp", "/dev/shm")

# A file that is open for writing cannot be executed, and a process forked meanwhile by another thread holds such a file
# open until it executes its own program.  Writing programs and starting processes therefore exclude each other.
_FORK_LOCK = threading.Lock()


class Sandbox:
    """Runs commands under one tier; safe to use from several threads at once.

    Close it when done: that kills what still runs and removes the scratch directory and the control groups.
    """

    def __init__(self, jail: Jail, tree: CgroupTree | None, scratch_root: Path) -> None:
        self._jail = jail
        self._tree = tree
        self._scratch_root = scratch_root
        self._stopping = threading.Event()
        self._idle = threading.Condition()
        self._running = 0

    @property
    def tier(self) -> Tier:
        """How well runs are contained."""
        return self._jail.tier

    # --- running ------------------------------------------------------------------------------------------------------

    def new_cage(self, limits: Limits) -> Cage:
        """A container for one run, its limits set and read back; hand it to `run`, which removes it."""
        return self._tree.create(limits) if self._tree is not None else TreeCage()

    def run(self, command: Command, cage: Cage | None = None) -> RunResult:
        """Run one command to its end, at the latest at its limits.

        Raises `SandboxFault` when the run could not be started, measured or removed, and `SandboxStopped` when `stop`
        was called.  Either way no process and no group is left.
        """
        with self._counted():
            if self._stopping.is_set():
                raise SandboxStopped("the judge is shutting down")
            cage = cage if cage is not None else self.new_cage(command.limits)
            try:
                return self._run_in(command, cage)
            finally:
                with contextlib.suppress(SandboxFault):
                    cage.kill()
                cage.remove()

    def _run_in(self, command: Command, cage: Cage) -> RunResult:
        jailed = self.tier is not Tier.UNSAFE
        status_read, status_write = os.pipe()
        try:
            stdin = _sealed_file(command.stdin)
            try:
                process = self._start(self._jail.argv(command, cage.join_files, status_write), stdin, status_write)
            finally:
                os.close(stdin)
                os.close(status_write)
            with process:
                cage.attach(process.pid)
                return Supervisor(
                    process=process,
                    cage=cage,
                    limits=command.limits,
                    status_fd=status_read if jailed else None,
                    stopping=self._stopping,
                ).watch()
        finally:
            os.close(status_read)

    def _start(self, argv: list[str], stdin: int, status_fd: int) -> subprocess.Popen[bytes]:
        with _FORK_LOCK:
            try:
                return subprocess.Popen(
                    argv,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=(status_fd,),
                    # A process group is enough to be killed as one.  A session would be a scheduling group as well,
                    # which waits for its first turn on a busy machine, and this process would wait with it.
                    process_group=0,
                    cwd="/",
                    env={"PATH": "/usr/bin:/bin"},
                    bufsize=0,
                )
            except OSError as error:
                raise SandboxFault(f"cannot start {argv[0]}: {error.strerror or error}") from error

    # --- files --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def directory(self) -> Iterator[Path]:
        """A fresh directory whose files can be bound into jails; removed afterwards."""
        try:
            path = Path(tempfile.mkdtemp(dir=self._scratch_root))
            path.chmod(0o711)
        except OSError as error:
            if self._stopping.is_set():
                raise SandboxStopped("the judge is shutting down") from error
            raise SandboxFault(f"cannot use the scratch directory {self._scratch_root}: {error.strerror}") from error
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def executable(self, binary: bytes) -> Iterator[Path]:
        """Put a program on disk, ready to be bound into a jail; removed afterwards."""
        with self.directory() as directory:
            path = directory / "program"
            with _FORK_LOCK:
                path.write_bytes(binary)
            path.chmod(0o755)
            yield path

    # --- ending -------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        with self._idle:
            self._running += 1
        try:
            yield
        finally:
            with self._idle:
                self._running -= 1
                self._idle.notify_all()

    def stop(self) -> None:
        """Kill the running commands and refuse new ones; returns at once."""
        self._stopping.set()

    def close(self, timeout_s: float = 10.0) -> None:
        """Stop, wait for the running commands to be gone, remove everything that was made."""
        self.stop()
        with self._idle:
            self._idle.wait_for(lambda: self._running == 0, timeout=timeout_s)
        shutil.rmtree(self._scratch_root, ignore_errors=True)
        if self._tree is not None:
            self._tree.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _sealed_file(data: bytes) -> int:
    """A read-only, in-memory file to serve as standard input; it needs no feeding and cannot block."""
    handle = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        os.lseek(handle, 0, os.SEEK_SET)
        fcntl.fcntl(handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    except OSError:
        os.close(handle)
        raise
    return handle


def make_scratch_root(host_uid: int | None, parent: Path | None = None) -> Path:
    """A directory for sources and programs that the jail's user can enter but not list.

    Also removes those which dead judges left at the same place.
    """
    candidates = [parent] if parent is not None else [Path(tempfile.gettempdir()), *map(Path, _SCRATCH_PARENTS)]
    refusals = []
    for candidate in candidates:
        refusal = _unusable(candidate, host_uid)
        if refusal is None:
            _sweep_scratch(candidate)
            path = Path(tempfile.mkdtemp(prefix=f"{SCRATCH_PREFIX}{owner_token()}.", dir=candidate))
            path.chmod(0o711)
            return path
        refusals.append(f"{candidate}: {refusal}")
    raise SandboxUnavailable(f"no directory for temporary programs; set TMPDIR to a usable one ({'; '.join(refusals)})")


def _unusable(directory: Path, host_uid: int | None) -> str | None:
    try:
        real = directory.resolve(strict=True)
        if not os.access(real, os.W_OK | os.X_OK):
            return "not writable"
        if os.statvfs(real).f_flag & os.ST_NOEXEC:
            return "mounted noexec"
        if host_uid is not None:
            for place in (real, *real.parents):
                if not place.stat().st_mode & 0o001:
                    return f"user {host_uid} cannot enter {place}"
    except OSError as error:
        return error.strerror or str(error)
    return None


def _sweep_scratch(parent: Path) -> None:
    for path in parent.glob(f"{SCRATCH_PREFIX}*"):
        if path.is_dir() and not path.is_symlink() and owner_is_gone(path.name.removeprefix(SCRATCH_PREFIX)):
            shutil.rmtree(path, ignore_errors=True)
