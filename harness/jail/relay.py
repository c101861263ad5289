"""The jail's end of the network allowlist: run as a script inside the jail, standard library only, Python >= 3.8.

Usage: relay.py ADDRESS:PORT=SOCKET ... -- COMMAND [ARGUMENT ...]

Listens on each address, which exists only in the jail's own network namespace, and joins every connection to the unix
socket that the host put there.  Then it runs the command and ends with its exit status.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading


def pump(source: socket.socket, target: socket.socket) -> None:
    """Copy one direction until its end, then pass the end on."""
    with contextlib.suppress(OSError):
        while True:
            data = source.recv(65536)
            if not data:
                break
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def join(client: socket.socket, path: str) -> None:
    """Serve one connection."""
    with client, socket.socket(socket.AF_UNIX) as upstream:
        try:
            upstream.connect(path)
        except OSError:
            return
        back = threading.Thread(target=pump, args=(upstream, client), daemon=True)
        back.start()
        pump(client, upstream)
        back.join()


def serve(listener: socket.socket, path: str) -> None:
    """Accept connections for as long as the command runs."""
    while True:
        client, _ = listener.accept()
        threading.Thread(target=join, args=(client, path), daemon=True).start()


def main(arguments: "list[str]") -> int:
    """Open all listeners before the command starts, so that it never meets a closed port."""
    cut = arguments.index("--")
    for pair in arguments[:cut]:
        address, _, path = pair.partition("=")
        host, _, port = address.rpartition(":")
        listener = socket.create_server((host, int(port)), backlog=64)
        threading.Thread(target=serve, args=(listener, path), daemon=True).start()
    status = subprocess.run(arguments[cut + 1 :], check=False).returncode
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    # Not sys.exit: threads that still copy must not hold up the end of the command.
    os._exit(main(sys.argv[1:]))
