"""Messages between the judge and the process that runs a candidate: a JSON header and, after it, raw bytes.

The other end is never trusted: lengths are bounded before anything is read, headers are plain JSON, nothing is ever
unpickled, and a peer that says too much, too little or nothing is a `LinkBroken`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_HEADER_BYTES = 1 << 20
_LENGTHS = struct.Struct("!IQ")
_CHUNK_BYTES = 1 << 20
_POLL_S = 0.05


class LinkBroken(Exception):
    """The peer ended, fell silent, or sent something that is no message."""


class LinkTimeout(LinkBroken):
    """The peer did not answer in time."""


@dataclass(frozen=True)
class Message:
    """One message as it arrived."""

    header: dict[str, Any]
    payload: bytearray


class Link:
    """One end of a connection that carries messages both ways; one thread at a time uses it."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.setblocking(True)

    def send(self, header: dict[str, Any], payload: bytes | bytearray | memoryview = b"") -> None:
        """Send one message; `LinkBroken` when the peer is gone."""
        text = json.dumps(header, allow_nan=False).encode("utf-8")
        view = memoryview(payload).cast("B")
        try:
            self._socket.settimeout(None)
            self._socket.sendall(_LENGTHS.pack(len(text), len(view)) + text)
            if view:
                self._socket.sendall(view)
        except OSError as error:
            raise LinkBroken(f"the other side is gone ({error.strerror or error})") from error

    def receive(self, *, max_payload: int = 0, deadline: float | None = None) -> Message:
        """The next message; `deadline` is a `time.monotonic()` moment.  `LinkTimeout` at it, `LinkBroken` otherwise."""
        header_bytes, payload_bytes = _LENGTHS.unpack(self._exactly(_LENGTHS.size, deadline))
        if header_bytes > MAX_HEADER_BYTES:
            raise LinkBroken(f"a message's header claims {header_bytes} bytes")
        if payload_bytes > max_payload:
            raise LinkBroken(f"a message claims {payload_bytes} bytes of data where at most {max_payload} are due")
        try:
            header = json.loads(self._exactly(header_bytes, deadline))
        except (ValueError, RecursionError) as error:
            raise LinkBroken("a message's header is not JSON") from error
        if not isinstance(header, dict):
            raise LinkBroken("a message's header is not a JSON object")
        return Message(header, self._exactly(payload_bytes, deadline))

    def _exactly(self, size: int, deadline: float | None) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            try:
                self._socket.settimeout(_left_s(deadline))
                count = self._socket.recv_into(view[:_CHUNK_BYTES])
            except TimeoutError as error:
                raise LinkTimeout("no answer in time") from error
            except OSError as error:
                raise LinkBroken(f"the connection failed ({error.strerror or error})") from error
            if count == 0:
                raise LinkBroken("the other side ended")
            view = view[count:]
        return data

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


def _left_s(deadline: float | None) -> float | None:
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise LinkTimeout("no answer in time")
    return left


# --- meeting ----------------------------------------------------------------------------------------------------------


class Listener:
    """A socket file that accepts exactly one peer."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _short_path(path) as name:
                self._socket.bind(name)
            path.chmod(0o666)
            self._socket.listen(1)
        except OSError:
            self._socket.close()
            raise

    def accept(self, *, gone: Callable[[], bool]) -> Link:
        """The peer, once it comes; `LinkBroken` when `gone()` says that it never will."""
        try:
            while True:
                ready, _, _ = select.select([self._socket], [], [], _POLL_S)
                if ready:
                    return Link(self._socket.accept()[0])
                if gone():
                    raise LinkBroken("the program ended before it was ready")
        finally:
            self.close()

    def close(self) -> None:
        """Accept nobody any more."""
        self._socket.close()


def connect(path: Path) -> Link:
    """The other end of a `Listener`."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _short_path(path) as name:
        connection.connect(name)
    return Link(connection)


def adopt(descriptor: int) -> Link:
    """A link over a socket that was inherited as a file descriptor."""
    return Link(socket.socket(fileno=descriptor))


@contextlib.contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """The same socket file under a name that fits into the kernel's 108 bytes."""
    if len(os.fsencode(path)) < 100:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
