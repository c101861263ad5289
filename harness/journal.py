"""The rollout journal: one JSON line per thing that happened, on the disk before the next side effect begins.

An awaited `append` returns when its line is durable; lines that arrive while the disk is busy share the next fsync,
which runs off the event loop.  Knows nothing about what the records mean (see `harness.rollout_log`).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.errors import StateCorrupt, StateWriteFailed
from harness.storage import AppendFile, parse_json_object

RECORD_VERSION = 1
_FILE_NAME = re.compile(r"step-(\d{6,})\.jsonl")


def journal_files(directory: Path) -> dict[int, Path]:
    """Return the journals in a folder by the number in their name; every other file or folder there is ignored."""
    found: dict[int, Path] = {}
    if directory.is_dir():
        for path in sorted(directory.iterdir()):
            match = _FILE_NAME.fullmatch(path.name)
            if match and path.is_file():
                found[int(match[1])] = path
    return found


def encode_record(record: Mapping[str, Any]) -> bytes:
    """Return one line; ValueError for a record without a kind, of another version, or with NaN in it."""
    kind = record.get("kind")
    if not isinstance(kind, str) or not kind:
        raise ValueError(f"a journal record needs a kind, got {kind!r}")
    if record.get("v", RECORD_VERSION) != RECORD_VERSION:
        raise ValueError(f"a journal record of version {record['v']!r} cannot be written, only {RECORD_VERSION}")
    text = json.dumps({**record, "v": RECORD_VERSION}, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return text.encode("ascii") + b"\n"


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read a journal that another process may be writing: nothing is changed and an unfinished last line is ignored."""
    try:
        return _parse_lines(path, path.read_bytes())
    except OSError as error:
        raise StateCorrupt(f"cannot read {path}: {error.strerror or error}") from error


class RolloutJournal:
    """An append-only file of records; one process writes it at a time (the state lock sees to that)."""

    def __init__(self, path: Path, *, open_file: Callable[[Path], AppendFile] = AppendFile) -> None:
        """Open or create the journal; a line that a crash cut short is removed, any other damage is StateCorrupt."""
        self.path = path
        self._file = open_file(path)
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._flusher: asyncio.Task[None] | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._closed = False
        try:
            complete_bytes = self._file.read().rfind(b"\n") + 1
            if complete_bytes < self._file.size_bytes:
                self._file.truncate(complete_bytes)
            self.records()
        except BaseException:
            self._file.close()
            raise

    def records(self) -> list[dict[str, Any]]:
        """Read all durable records; StateCorrupt names the line that is not one."""
        return _parse_lines(self.path, self._file.read())

    def append_sync(self, record: Mapping[str, Any]) -> None:
        """Append one record and wait for the disk; for set-up, while no `append` is under way."""
        if self._waiting or self._flusher is not None:
            raise RuntimeError(f"append_sync to {self.path} while asynchronous appends are under way")
        self._require_open()
        self._file.append(encode_record(record))

    async def append(self, record: Mapping[str, Any]) -> None:
        """Append one record and return when it is on the disk; StateWriteFailed reaches everyone who waits.

        The record of a cancelled caller is written all the same: what it tells of has happened and was paid for.
        """
        line = encode_record(record)
        self._require_open()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._waiting.append((line, done))
        if self._flusher is None:
            self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="rollout-journal")
            self._flusher = loop.create_task(self._flush())
        await done

    async def _flush(self) -> None:
        """Write batch after batch until nobody waits."""
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                lines = b"".join(line for line, _ in batch)
                try:
                    await loop.run_in_executor(self._thread, self._file.append, lines)
                except BaseException as error:
                    _settle(batch, error)
                    if not isinstance(error, Exception):
                        raise
                else:
                    _settle(batch, None)
        finally:
            self._flusher = None
            _settle(self._waiting, RuntimeError(f"the writer of {self.path} was stopped"))
            self._waiting = []

    async def aclose(self) -> None:
        """Wait for what is under way, then close; a second call does nothing."""
        self._closed = True
        try:
            if self._flusher is not None:
                await asyncio.wait({self._flusher})
        finally:
            self.close()

    def close(self) -> None:
        """Write what still waits and close, blocking; a second call does nothing."""
        self._closed = True
        if self._thread is not None:
            self._thread.shutdown(wait=True)
            self._thread = None
        batch, self._waiting = self._waiting, []
        try:
            if batch:
                self._file.append(b"".join(line for line, _ in batch))
                _settle(batch, None)
        except StateWriteFailed as error:
            _settle(batch, error)
            raise
        finally:
            self._file.close()

    def __enter__(self) -> Self:
        """Return the open journal."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    async def __aenter__(self) -> Self:
        """Return the open journal."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for what is under way, then close."""
        await self.aclose()

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"the journal {self.path} is closed")


def _parse_lines(path: Path, data: bytes) -> list[dict[str, Any]]:
    """Parse every finished line; StateCorrupt names the first that is no record."""
    found: list[dict[str, Any]] = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            record = parse_json_object(line)
            version = record.get("v")
            if version != RECORD_VERSION or isinstance(version, bool):
                raise ValueError(f"its version is {version!r}, {RECORD_VERSION} is needed")
            if not isinstance(record.get("kind"), str):
                raise ValueError("it has no kind")
        except ValueError as error:
            raise StateCorrupt(f"{path}, line {number}, is not a journal record: {error}") from error
        found.append(record)
    return found


def _settle(batch: list[tuple[bytes, asyncio.Future[None]]], error: BaseException | None) -> None:
    """Answer every caller of a batch that still waits."""
    for _, done in batch:
        if done.done():
            continue
        if error is None:
            done.set_result(None)
        elif isinstance(error, asyncio.CancelledError):
            done.cancel()
        else:
            done.set_exception(error)
