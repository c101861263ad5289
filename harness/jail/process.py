"""Run one jail to its end: bounded in time and output, and dead as a whole when this returns."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import re
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
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
    spawning = asyncio.create_task(
        asyncio.create_subprocess_exec(
            *make_argv(watch.status_fd),
            stdin=stdin if stdin is not None else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd="/",
            env={"PATH": HOST_PATH},
            pass_fds=(*pass_fds, watch.status_fd),
            start_new_session=True,
        )
    )
    streams: list[asyncio.Task[None]] = []
    try:
        async with asyncio.timeout(timeout_s):
            # Shielded: a start that is cancelled half-way would leave a process that nobody knows.
            process = await asyncio.shield(spawning)
            for stream, sink in ((process.stdout, stdout), (process.stderr, stderr)):
                assert stream is not None
                streams.append(asyncio.create_task(_drain(stream, sink)))
            await asyncio.gather(*streams)
            return await process.wait()
    finally:
        await asyncio.shield(_bury(spawning, streams, watch))


async def _drain(stream: asyncio.StreamReader, sink: Sink) -> None:
    while chunk := await stream.read(_CHUNK_BYTES):
        await sink.write(chunk)


async def _discard(stream: asyncio.StreamReader) -> None:
    while await stream.read(_CHUNK_BYTES):
        pass


async def _bury(
    spawning: asyncio.Task[asyncio.subprocess.Process], streams: list[asyncio.Task[None]], watch: _DeathWatch
) -> None:
    """Kill what is left, reap it, and wait until the jail's first process (and so all others) is gone."""
    try:
        try:
            process = await spawning
        except OSError:
            return  # nothing was started; the caller gets this error already
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        watch.kill()
        for task in streams:
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        # Whatever nobody read any more has to be read: asyncio reports the end of a process after that of its pipes.
        rest = (_discard(stream) for stream in (process.stdout, process.stderr) if stream is not None)
        await asyncio.gather(process.wait(), *rest)
        await watch.wait()
    finally:
        watch.close()


class _DeathWatch:
    """Follows the first process of the jail's pid namespace; the kernel ends it only after all others there.

    Bubblewrap itself is gone earlier: it hands on the exit status, and its death then kills the namespace.  There is a
    moment during start-up in which that does not work yet: the first process has left bubblewrap's process group but
    has not asked to die with it.  Its number is reported before that moment, so it can be killed directly.
    """

    def __init__(self) -> None:
        self._read_fd, self.status_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._pid_fd: int | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read_fd, self._on_status)

    def _on_status(self) -> None:
        """Opened at once, while the number cannot mean another process yet."""
        with contextlib.suppress(OSError):
            match = _CHILD_PID.search(os.read(self._read_fd, 4096))
            if match is None:
                return
            self._loop.remove_reader(self._read_fd)
            pid_fd = os.pidfd_open(int(match[1]))
            if _is_first_of_namespace(int(match[1])):
                self._pid_fd = pid_fd
            else:
                os.close(pid_fd)

    def kill(self) -> None:
        """Kill the jail's first process if there is one."""
        if self._pid_fd is None:
            self._on_status()
        if self._pid_fd is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pid_fd, signal.SIGKILL)

    async def wait(self) -> None:
        """Return when the jail is empty; gives up after a few seconds (a process stuck in the kernel)."""
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


def _is_first_of_namespace(pid: int) -> bool:
    """Guards against a number that was reused meanwhile: our target is number 1 in a namespace below this one."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    numbers = next((line.split()[1:] for line in text.splitlines() if line.startswith("NSpid:")), [])
    return len(numbers) > 1 and numbers[-1] == "1"
