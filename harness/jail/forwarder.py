"""The host's end of the network allowlist: which endpoints a jail may reach, and the sockets that lead there.

A jail under an allowlist has a network namespace of its own with nothing in it.  Each allowed endpoint gets a loopback
address there, on which `harness.jail.relay` listens; connections travel through a unix socket to this process, which
connects to the real endpoint.  Everything else has no route.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import re
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CHUNK_BYTES = 65536
_CONNECT_TIMEOUT_S = 10.0
_FIRST_OPEN_PORT = 1024
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True)
class Forward:
    """One endpoint that a jail may reach: the name it uses, and where that leads.

    `address` is the loopback address that stands for `host` in the jail.
    """

    host: str
    port: int
    upstream_host: str
    upstream_port: int
    address: str


def parse_forwards(table: Mapping[str, str]) -> tuple[Forward, ...]:
    """Read `{"host:port": "host:port"}`; hosts get the addresses 127.0.0.1, 127.0.0.2, ... in order of appearance.

    Raises:
        ValueError: an entry is not of that form, or the jail could not listen on its port; the message shows it.
    """
    forwards: list[Forward] = []
    addresses: dict[str, str] = {}
    for name, upstream in table.items():
        host, port = split_endpoint(name)
        if port < _FIRST_OPEN_PORT:
            raise ValueError(
                f"the forward {name!r} needs a port of {_FIRST_OPEN_PORT} or above: a jail has no privileges"
            )
        upstream_host, upstream_port = split_endpoint(upstream)
        host = host.lower()
        address = addresses.setdefault(host, str(ipaddress.IPv4Address("127.0.0.1") + len(addresses)))
        forwards.append(Forward(host, port, upstream_host, upstream_port, address))
    return tuple(forwards)


def split_endpoint(text: str) -> tuple[str, int]:
    """Split "host:port".

    Raises:
        ValueError: not a host name or IPv4 address followed by a port from 1 to 65535.
    """
    host, _, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    if not _HOST_NAME.fullmatch(host) or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"expected 'host:port' such as 'host.docker.internal:8081', got {text!r}")
    return host, int(port)


def allowed(forwards: Sequence[Forward], hosts: Collection[str]) -> list[Forward]:
    """The forwards whose host is on the allowlist."""
    names = {host.lower() for host in hosts}
    return [forward for forward in forwards if forward.host in names]


def hosts_file(forwards: Sequence[Forward]) -> str:
    """The jail's /etc/hosts: itself and the endpoints it may reach by name."""
    lines = ["127.0.0.1 localhost jail", "::1 localhost"]
    lines += sorted({f"{forward.address} {forward.host}" for forward in forwards})
    return "\n".join(lines) + "\n"


class Forwarder:
    """Serves one unix socket per forward for as long as the environment runs."""

    def __init__(self, forwards: Sequence[Forward], directory: Path, logger: logging.Logger) -> None:
        self._sockets = {forward: directory / f"forward-{index}.sock" for index, forward in enumerate(forwards)}
        self._logger = logger
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    def socket_path(self, forward: Forward) -> Path:
        """Where the socket of this forward lies on the host."""
        return self._sockets[forward]

    async def start(self, owner_uid: int | None) -> None:
        """Open the sockets; only `owner_uid` (None: the current account) may connect."""
        for forward, path in self._sockets.items():
            listener = _bind(path)
            if owner_uid is not None:
                os.chown(path, owner_uid, -1)
            path.chmod(0o600)

            async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: Forward = forward) -> None:
                await self._join(to, reader, writer)

            self._servers.append(await asyncio.start_unix_server(handle, sock=listener))

    async def stop(self) -> None:
        """Close the sockets and all connections."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for path in self._sockets.values():
            path.unlink(missing_ok=True)

    async def _join(self, forward: Forward, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy both directions of one connection; an unreachable endpoint closes it at once."""
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                up_reader, up_writer = await asyncio.open_connection(forward.upstream_host, forward.upstream_port)
        except OSError as error:
            self._logger.warning(
                "the jail asked for %s:%d, but %s:%d does not answer: %s",
                forward.host,
                forward.port,
                forward.upstream_host,
                forward.upstream_port,
                error,
            )
            writer.close()
            return
        try:
            await asyncio.gather(_pump(reader, up_writer), _pump(up_reader, writer))
        finally:
            writer.close()
            up_writer.close()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy one direction until its end, then pass the end on."""
    with contextlib.suppress(OSError):
        while data := await source.read(_CHUNK_BYTES):
            target.write(data)
            await target.drain()
    with contextlib.suppress(OSError, RuntimeError):
        target.write_eof()


def _bind(path: Path) -> socket.socket:
    """A listening unix socket at a path of any length (the kernel's limit is 107 bytes for the address itself)."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{path.name}")
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(directory)
    return listener
