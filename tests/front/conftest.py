"""Tiny fake services for the launcher's tests: real processes, real ports, no part of the project behind them."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from guidance_ttt.services import ServiceSpec

FAKE_SERVICE = """
import http.server, os, signal, subprocess, sys, threading, time

mode, port, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with open(os.path.join(folder, "pids"), "a") as pids:
    pids.write(f"{os.getpid()}\\n")
print("hello from", mode, flush=True)
if mode == "dies-early":
    for number in range(60):
        print("complaint", number)
    sys.exit(3)
if mode == "never-healthy":
    time.sleep(60)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if mode == "family":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    with open(os.path.join(folder, "pids"), "a") as pids:
        pids.write(f"{child.pid}\\n")
if mode == "dies-later":
    threading.Timer(0.7, lambda: (print("out of memory", flush=True), os._exit(4))).start()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"ok": true, "fake": "yes"}'
        self.send_response(503 if mode == "unwell" else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Whether the condition becomes true in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


class Fakes:
    """Makes specs of fake services below one folder and knows every process they started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "fake_service.py"
        self.script.write_text(FAKE_SERVICE, encoding="utf-8")

    def spec(self, name: str, mode: str, *, port: int | None = None, ready_timeout_s: float = 15.0) -> ServiceSpec:
        """A service that behaves as `mode` says."""
        port = port or free_port()
        return ServiceSpec(
            name=name,
            argv=(sys.executable, "-I", "-S", str(self.script), mode, str(port), str(self.folder)),
            env={"PATH": os.environ["PATH"]},
            cwd=self.folder,
            log_path=self.folder / "logs" / f"{name}.log",
            health_url=f"http://127.0.0.1:{port}/health",
            ready_timeout_s=ready_timeout_s,
            port_setting=f"FAKE_{name.upper()}_PORT",
            cure=f"Look after {name}.",
            grace_s=1.0,
            identity='"fake"',
        )

    def pids(self) -> list[int]:
        """Every fake process that was started, grandchildren included."""
        path = self.folder / "pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def all_gone(self, timeout_s: float = 10.0) -> bool:
        """Whether none of them runs any more."""
        return eventually(lambda: not any(is_alive(pid) for pid in self.pids()), timeout_s)


@pytest.fixture
def fakes(tmp_path: Path) -> Iterator[Fakes]:
    """Fake services; whatever a failed test leaves running is ended here, by its process id."""
    made = Fakes(tmp_path)
    yield made
    for pid in made.pids():
        if is_alive(pid) and str(tmp_path) in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGKILL)
