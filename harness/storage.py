"""The one module that writes state files: every byte reaches the disk completely or the previous version stays.

Owns atomic replacement (temp file, fsync, rename, fsync of the folder), durable appending, strict reading of JSON and
the lock that keeps a second run out of a state directory.  Knows nothing about what the files mean.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from harness.errors import StateCorrupt, StateLocked, StateWriteFailed

LOCK_NAME = "state.lock"
_TEMP_NAME = re.compile(r"\.(?s:.+)\.[0-9a-f]{32}\.tmp")
_COPY_CHUNK_BYTES = 8 * 1024 * 1024


# --- writing ----------------------------------------------------------------------------------------------------------


def write_json(path: Path, obj: object) -> None:
    """Replace `path` by `obj` as strict JSON (sorted keys, indent 2); NaN is a ValueError, another type a TypeError."""
    text = json.dumps(obj, indent=2, sort_keys=True, allow_nan=False)
    write_chunks(path, [text.encode("ascii"), b"\n"])


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` as UTF-8; text that UTF-8 cannot hold is refused rather than altered."""
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise StateWriteFailed(f"cannot write {path}: the text is not valid Unicode ({error.reason})") from error
    write_chunks(path, [data])


def write_bytes(path: Path, data: bytes) -> None:
    """Replace `path` by `data`."""
    write_chunks(path, [data])


def write_chunks(path: Path, chunks: Iterable[bytes]) -> None:
    """Replace `path` by the joined chunks, so that a large file never has to exist in memory twice."""
    _replace(path, lambda stream: stream.writelines(chunks))


def copy_file(source: Path, target: Path) -> None:
    """Replace `target` by the content of `source`; StateCorrupt, with `target` untouched, when that cannot be read."""
    try:
        reader = source.open("rb")
    except OSError as error:
        raise StateCorrupt(f"cannot copy {source} to {target}: {_reason(error)}") from error
    with reader:
        _replace(target, lambda stream: _copy_stream(reader, stream))


def clean_stray_temp_files(directory: Path) -> list[Path]:
    """Delete temp files that a killed process left in `directory` (not below it); call only while holding its lock."""
    removed: list[Path] = []
    if not directory.is_dir():
        return removed
    for path in sorted(directory.iterdir()):
        if _TEMP_NAME.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            with contextlib.suppress(OSError):
                path.unlink()
                removed.append(path)
    return removed


def write_failure(path: Path, error: OSError) -> StateWriteFailed:
    """Return the one error a user sees when a write fails: path, reason, free space, cure."""
    return StateWriteFailed(
        f"cannot write {path}: {_reason(error)}; free space there: {_free_space(path)}. "
        "The previous version is intact; make room (or fix the permissions) and run again."
    )


def _replace(path: Path, fill: Callable[[BinaryIO], None]) -> None:
    temp = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temp.open("xb") as stream:
                fill(stream)
                stream.flush()
                os.fsync(stream.fileno())
            temp.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temp.unlink()
            raise
        sync_directory(path.parent)
    except OSError as error:
        raise write_failure(path, error) from error


def sync_directory(directory: Path) -> None:
    """Make renames and new files inside `directory` survive a power cut."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network and overlay file systems have no such operation; their rename is as durable as it gets.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def _copy_stream(reader: BinaryIO, writer: BinaryIO) -> None:
    """Copy inside the kernel (a shared extent where the file system can), else through memory."""
    left = os.fstat(reader.fileno()).st_size
    try:
        while left > 0 and (done := os.copy_file_range(reader.fileno(), writer.fileno(), left)) > 0:
            left -= done
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            raise
    if left > 0:
        reader.seek(0)
        writer.seek(0)
        writer.truncate()
        shutil.copyfileobj(reader, writer, _COPY_CHUNK_BYTES)


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def _free_space(path: Path) -> str:
    for folder in path.absolute().parents:
        with contextlib.suppress(OSError):
            return f"{shutil.disk_usage(folder).free / 1e6:,.1f} MB"
    return "unknown"


class AppendFile:
    """A file that only grows and whose `append` returns when the bytes are on the disk.

    After a failed append nothing more is accepted: the kernel may already have dropped the bytes of a failed fsync.
    """

    def __init__(self, path: Path) -> None:
        """Open or create `path`; StateWriteFailed when that is impossible."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            sync_directory(path.parent)
        except OSError as error:
            raise write_failure(path, error) from error
        self.size_bytes = os.fstat(self._handle).st_size
        self._failure: OSError | None = None

    def append(self, data: bytes, *, durable: bool = True) -> None:
        """Write all of `data`, and fsync when `durable`; StateWriteFailed leaves the file as it was before."""
        if self._failure is not None:
            raise write_failure(self.path, self._failure) from self._failure
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._handle, view) :]
            if durable:
                os.fsync(self._handle)
        except OSError as error:
            self._failure = error
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, self.size_bytes)
            raise write_failure(self.path, error) from error
        self.size_bytes += len(data)

    def read(self) -> bytes:
        """Return everything that was appended so far, without a write that is still under way."""
        with self.path.open("rb") as stream:
            return stream.read(self.size_bytes)

    def truncate(self, size_bytes: int) -> None:
        """Cut the file to `size_bytes` durably."""
        try:
            os.ftruncate(self._handle, size_bytes)
            os.fsync(self._handle)
        except OSError as error:
            raise write_failure(self.path, error) from error
        self.size_bytes = size_bytes

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
            self._failure = OSError(errno.EBADF, "the file was closed")


# --- reading ----------------------------------------------------------------------------------------------------------


def parse_json_object(data: bytes) -> dict[str, Any]:
    """Read one UTF-8 JSON object; NaN, Infinity, repeated keys and any other top-level value are a ValueError."""
    text = data.decode("utf-8")
    del data  # an archive of hundreds of megabytes must not be held as bytes, as text and as objects at once
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__} instead of an object")
    return value


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a state file; StateCorrupt names the path and what is wrong (missing, not UTF-8, not strict JSON, ...)."""
    try:
        return parse_json_object(path.read_bytes())
    except OSError as error:
        raise StateCorrupt(f"cannot read {path}: {_reason(error)}") from error
    except ValueError as error:
        raise StateCorrupt(f"{path} is not a valid state file: {error}") from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    if len(plain) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r:.80} appears twice in one object")
            seen.add(key)
    return plain


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _finite_float(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text:.40} is too large for a float")
    return number


# --- locking ----------------------------------------------------------------------------------------------------------


class StateLock:
    """Keeps a second run out of a state directory; the kernel frees it when the holder dies, however it dies."""

    def __init__(self, directory: Path) -> None:
        """Name the directory to hold; nothing is touched before `acquire`."""
        self.directory = directory
        self.path = directory / LOCK_NAME
        self._handle: int | None = None

    def acquire(self) -> None:
        """Take the lock or raise StateLocked, which names the holder's pid and the cure."""
        if self._handle is not None:
            raise RuntimeError(f"this object already holds {self.path}")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise write_failure(self.path, error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise StateLocked(self._refusal()) from None
        try:
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(_own_identity(), sort_keys=True).encode("ascii") + b"\n", 0)
        except OSError as error:
            os.close(handle)
            raise write_failure(self.path, error) from error
        self._handle = handle

    def release(self) -> None:
        """Give the lock back; the file stays, because removing it would race with the next holder."""
        if self._handle is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, 0)
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> Self:
        """Acquire."""
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release."""
        self.release()

    def _refusal(self) -> str:
        """Say who holds the lock; a holder that has only just taken it gets a moment to write its name."""
        who, stop = "another process (its lock file does not name it)", "Stop it"
        for _ in range(20):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError):
                holder = parse_json_object(self.path.read_bytes())
                started = datetime.fromtimestamp(holder["process_start_s"], tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
                who = f"process {holder['pid']} on {holder['host']} (started {started})"
                stop = f"Stop it (kill {holder['pid']})"
                break
            time.sleep(0.01)
        return f"{self.directory} is in use by {who}. {stop} or choose another state directory (GUIDANCE_STATE_DIR)."


def _own_identity() -> dict[str, Any]:
    pid = os.getpid()
    return {"host": socket.gethostname(), "pid": pid, "process_start_s": process_start_s(pid) or time.time()}


def process_start_s(pid: int) -> float | None:
    """Return when a process began (seconds since the epoch), or None where the system does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        # The command name may hold spaces and brackets, so fields are counted from the last bracket.
        started_ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        return _boot_time_s() + started_ticks / os.sysconf("SC_CLK_TCK")
    return None


def _boot_time_s() -> float:
    lines: Iterator[str] = iter(Path("/proc/stat").read_text().splitlines())
    return next(float(line.split()[1]) for line in lines if line.startswith("btime "))
