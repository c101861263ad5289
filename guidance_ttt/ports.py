"""Questions about a local port: is it free, who holds it, does an HTTP service answer there?

Standard library only and free of proxies: everything asked here is on this machine's loopback address.
"""

from __future__ import annotations

import http.client
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

_LISTEN = "0A"  # the kernel's code in /proc/net/tcp
_MAX_BODY_BYTES = 1 << 20


@dataclass(frozen=True)
class PortHolder:
    """The process that listens on a port, as far as /proc tells."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command})"


def is_free(host: str, port: int) -> bool:
    """Whether a server could bind the port now; connections in TIME_WAIT do not count as busy."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def holder(port: int) -> PortHolder | None:
    """Who listens on the port; None when nobody does or the system does not say (other user, no /proc)."""
    inodes = _listening_inodes(port)
    if not inodes:
        return None
    targets = {f"socket:[{inode}]" for inode in inodes}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(entry) in targets for entry in os.scandir(process / "fd")):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
                return PortHolder(int(process.name), command[:120])
        except OSError:
            continue  # ended meanwhile, or not ours to look into
    return None


def _listening_inodes(port: int) -> set[str]:
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            columns = row.split()
            if columns[3] == _LISTEN and int(columns[1].rpartition(":")[2], 16) == port:
                found.add(columns[9])
    return found


def fetch(url: str, timeout_s: float) -> tuple[int, str] | None:
    """Status and body of one GET, or None when nothing usable answered in time."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout_s)
    try:
        connection.request("GET", f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}")
        response = connection.getresponse()
        return response.status, response.read(_MAX_BODY_BYTES).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def own_address() -> str | None:
    """This machine's address on the network it would use by default; None when it has none.  Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # reserved for documentation, so it is reached by the default route
        except OSError:
            return None
        address: str = probe.getsockname()[0]
        return address
