"""Run one jail to its end: bounded in time and output, and dead as a whole when this returns."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import re
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import IO, Protocol

from harness.jail.tools import HOST_PATH

_CHUNK_BYTES = 65536
_DEATH_TIMEOUT_S = 5.0
_CHILD_PID = re.compile(rb'"child-pid":\s*(\d+)')


class Sink(Protocol):
    """Takes the chunks of one output stream in order."""

    async def write(self, chunk: bytes) -> None:
        """Take the next chunk; an exception ends the command."""


class CappedText:
    """Keeps the first `limit_bytes` of a stream as text and passes all of it on to `listener` as it comes."""

    def __init__(self, limit_bytes: int, listener: Callable[[str], Awaitable[None]] | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._listener = listener
        self._kept = bytearray()
        self._total_bytes = 0
        # Incremental, because a chunk may end in the middle of a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    async def write(self, chunk: bytes) -> None:
        """Keep what still fits and forward the chunk."""
        self._total_bytes += len(chunk)
        self._kept += chunk[: max(0, self._limit_bytes - len(self._kept))]
        if self._listener is not None and (text := self._decoder.decode(chunk)):
            await self._listener(text)

    def text(self) -> str:
        """The kept text; says at its end how much was left out."""
        text = self._kept.decode("utf-8", errors="replace")
        left_out = self._total_bytes - len(self._kept)
        return text if not left_out else f"{text}\n[{left_out} further bytes left out]\n"


class CappedFile:
    """Writes a stream into a file and refuses to go past `limit_bytes`."""

    def __init__(self, file: IO[bytes], limit_bytes: int, what: str) -> None:
        self._file = file
        self._room_bytes = limit_bytes
        self._complaint = (
            f"{what} is larger than the limit of {limit_bytes} bytes (environment kwarg max_transfer_bytes)"
        )

    async def write(self, chunk: bytes) -> None:
        """Store the chunk.

        Raises:
            RuntimeError: the limit is passed.
        """
        self._room_bytes -= len(chunk)
        if self._room_bytes < 0:
            raise RuntimeError(self._complaint)
        self._file.write(chunk)


async def run_jail(
    make_argv: Callable[[int], list[str]],
    *,
    pass_fds: Sequence[int],
    stdin: IO[bytes] | None,
    stdout: Sink,
    stderr: Sink,
    timeout_s: float | None,
) -> int:
    """Run the command line that `make_argv(status_fd)` returns and give its exit status.

    On every way out (end, time-out, cancellation, an error of a sink) all processes of the jail are dead.

    Raises:
        TimeoutError: it ran longer than `timeout_s` seconds.
    """
    watch = _DeathWatch()
    try:
        process = await asyncio.create_subprocess_exec(
            *make_argv(watch.status_fd),
            stdin=stdin if stdin is not None else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd="/",
            env={"PATH": HOST_PATH},
            pass_fds=(*pass_fds, watch.status_fd),
            start_new_session=True,
        )
    except BaseException:
        watch.close()
        raise
    assert process.stdout is not None
    assert process.stderr is not None
    streams = [asyncio.create_task(_drain(s, k)) for s, k in ((process.stdout, stdout), (process.stderr, stderr))]
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(*streams)
            return await process.wait()
    finally:
        await asyncio.shield(_bury(process, streams, watch))


async def _drain(stream: asyncio.StreamReader, sink: Sink) -> None:
    while chunk := await stream.read(_CHUNK_BYTES):
        await sink.write(chunk)


async def _bury(process: asyncio.subprocess.Process, streams: list[asyncio.Task[None]], watch: _DeathWatch) -> None:
    """Kill what is left, reap it, and wait until the jail's first process (and so all others) is gone."""
    try:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        for task in streams:
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        await watch.wait()
    finally:
        watch.close()


class _DeathWatch:
    """Follows the first process of the jail's pid namespace; the kernel ends it only after all others there.

    Bubblewrap itself is gone earlier: it hands on the exit status, and its death then kills the namespace.
    """

    def __init__(self) -> None:
        self._read_fd, self.status_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._pid_fd: int | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read_fd, self._on_status)

    def _on_status(self) -> None:
        """Opened at once, while the number cannot mean another process yet."""
        with contextlib.suppress(OSError):
            if match := _CHILD_PID.search(os.read(self._read_fd, 4096)):
                self._loop.remove_reader(self._read_fd)
                self._pid_fd = os.pidfd_open(int(match[1]))

    async def wait(self) -> None:
        """Return when the jail is empty; gives up after a few seconds (a process stuck in the kernel)."""
        if self._pid_fd is None:
            self._on_status()
        if self._pid_fd is None:
            return
        gone = asyncio.Event()
        self._loop.add_reader(self._pid_fd, gone.set)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(gone.wait(), _DEATH_TIMEOUT_S)
        self._loop.remove_reader(self._pid_fd)

    def close(self) -> None:
        """Release the descriptors."""
        self._loop.remove_reader(self._read_fd)
        for descriptor in (self._read_fd, self.status_fd, self._pid_fd):
            if descriptor is not None:
                os.close(descriptor)
