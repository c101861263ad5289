"""Local environments, small loopback servers and process look-ups for the tests of the jail."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.server
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

from harness.jail.check import check_jail
from harness.jail.tools import JailUnavailable, find_tools
from harness.local_environment import LocalEnvironment

NO_NETWORK = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)
PUBLIC = NetworkPolicy(network_mode=NetworkMode.PUBLIC)
_TEST_TIMEOUT_S = 90


def allowlist(*hosts: str) -> NetworkPolicy:
    """A policy that allows these hosts only."""
    return NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=list(hosts))


@functools.cache
def jail_problem() -> str | None:
    """Why this machine can build no jail, or None."""
    try:
        check_jail(find_tools())
    except JailUnavailable as error:
        return str(error)
    return None


needs_jail = pytest.mark.skipif(jail_problem() is not None, reason=str(jail_problem()))


def make_environment(
    tmp_path: Path, *, policy: NetworkPolicy = NO_NETWORK, config: dict[str, Any] | None = None, **kwargs: Any
) -> LocalEnvironment:
    """An environment that is not started; its task directory is `tmp_path/environment`."""
    directory = tmp_path / "environment"
    directory.mkdir(exist_ok=True)
    fields = {
        "environment_dir": directory,
        "environment_name": "toy",
        "session_id": "toy__env",
        "trial_paths": TrialPaths(tmp_path / "trial"),
        "task_env_config": EnvironmentConfig(workdir="/workspace", **(config or {})),
        "network_policy": policy,
    }
    return LocalEnvironment(**{**fields, **kwargs})


@contextlib.asynccontextmanager
async def running(environment: LocalEnvironment) -> AsyncIterator[LocalEnvironment]:
    """Start it, and stop it whatever happens; bounded in time."""
    async with asyncio.timeout(_TEST_TIMEOUT_S):
        await environment.start(force_build=False)
        try:
            yield environment
        finally:
            await environment.stop(delete=True)


async def output(environment: LocalEnvironment, command: str, **kwargs: Any) -> str:
    """Both streams of a command, stripped."""
    result = await environment.exec(command, **kwargs)
    return f"{result.stdout or ''}{result.stderr or ''}".strip()


def fetch(url: str, *, post_bytes: int = 0) -> str:
    """A jail command that prints what it got from a URL, or the name of the error."""
    data = f"b'x' * {post_bytes}" if post_bytes else "None"
    script = f"""
import urllib.request
try:
    print(urllib.request.urlopen(urllib.request.Request({url!r}, data={data}), timeout=5).read().decode())
except Exception as error:
    print(type(error).__name__)
"""
    return f"python3 -I - <<'END'\n{script}\nEND"


class _Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._say(self.server.greeting)  # type: ignore[attr-defined]

    def do_POST(self) -> None:
        self._say(f"{len(self.rfile.read(int(self.headers['content-length'])))} bytes")

    def _say(self, text: str) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: object) -> None:
        """Keep the test output clean."""


@contextlib.contextmanager
def http_server(greeting: str) -> Iterator[int]:
    """A loopback server that answers with `greeting`; yields its port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
    server.greeting = greeting  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def processes_with(token: str) -> list[int]:
    """Pids of processes that have `token` in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and token.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def wait_until(condition: Any, timeout_s: float = 10.0) -> bool:
    """Poll a condition; False when it did not come true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def leftovers() -> set[str]:
    """Trial directories and control groups on this machine that belong to this process."""
    import os
    import tempfile

    mine = f"guidance-ttt-{os.getpid()}-"
    base = Path(tempfile.gettempdir()) / f"guidance-ttt-jails-{os.geteuid()}"
    found = {str(path) for path in base.glob(f"{mine}*")}
    for place in Path("/sys/fs/cgroup").rglob("guidance-ttt-*"):
        if place.name.startswith(mine):
            found.add(str(place))
    return found
