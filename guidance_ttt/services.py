"""Start, watch and stop the local services of a run.

A `Stack` starts every `ServiceSpec` under a guard (see `guard.py`) in a session of its own, with its output in a log
file; waits until all answer; notices one that ends; and stops them so that nothing is left, whatever becomes of this
process.  It knows nothing about what the services do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from guidance_ttt import guard, ports
from harness.errors import GuidanceError, RunCancelled

POLL_S = 0.2
PROBE_TIMEOUT_S = 1.0
STILL_WAITING_EVERY_S = 15.0
TAIL_LINES = 40
_TAIL_BYTES = 64 * 1024
_GUARD_MARGIN_S = 15.0  # the guard's own sweep after its command is gone

Say = Callable[[str], None]


class PortInUse(GuidanceError):
    """A service cannot be started because another process listens on its port."""


class ServiceFailed(GuidanceError):
    """A service ended, or did not become ready, when it was needed."""


@dataclass(frozen=True)
class ServiceSpec:
    """One local HTTP service: how to start it and how to tell that it works.

    `port_setting` names the variable that moves the port; `cure` is what to try when the service fails.  One that runs
    already may be taken over when it answers `reuse_url` (default: the health URL) with a text that holds `identity`.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    log_path: Path
    health_url: str
    ready_timeout_s: float
    port_setting: str
    cure: str
    grace_s: float = 10.0
    reuse_url: str = ""
    identity: str = ""

    @property
    def host(self) -> str:
        """The address it binds."""
        return urlsplit(self.health_url).hostname or "127.0.0.1"

    @property
    def port(self) -> int:
        """The port it binds."""
        return urlsplit(self.health_url).port or 80


@dataclass(frozen=True)
class Ended:
    """A service that ended although nobody stopped it."""

    spec: ServiceSpec
    exit_code: int
    log_tail: str

    def describe(self) -> str:
        """Several lines for the user: what ended, its last words, what to try."""
        return (
            f"{self.spec.name} ended with {describe_exit(self.exit_code)}\n"
            f"--- last lines of {self.spec.log_path}\n{self.log_tail}\n---\n{self.spec.cure}"
        )


class GuardedProcess:
    """One command under a guard: it ends with this process at the latest."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        grace_s: float,
        log_path: Path | None = None,
    ) -> None:
        self._grace_s = grace_s
        lifeline, self._lifeline = os.pipe()  # not inheritable: only this process holds the writing end
        output = log_path.open("ab") if log_path is not None else None
        try:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, str(grace_s), *argv],
                stdin=lifeline,
                stdout=output,
                stderr=subprocess.STDOUT if output is not None else None,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,  # a Ctrl-C at the terminal reaches only the launcher
            )
        finally:
            os.close(lifeline)
            if output is not None:
                output.close()

    @property
    def pid(self) -> int:
        """The guard's process id."""
        return self._guard.pid

    def poll(self) -> int | None:
        """The command's exit code (128 + N for signal N), or None while it runs."""
        return self._guard.poll()

    def interrupt(self) -> None:
        """Pass Ctrl-C on to the command."""
        if self.poll() is None:
            self._guard.send_signal(signal.SIGINT)

    def terminate(self) -> None:
        """Ask for a stop, with the grace time for the command's own cleaning up."""
        if self.poll() is None:
            self._guard.send_signal(signal.SIGTERM)

    def finish(self, hurry: Callable[[], bool] = lambda: False) -> int:
        """Stop the command if it still runs and wait until nothing of it is left; returns its exit code."""
        self.terminate()
        deadline = time.monotonic() + self._grace_s + _GUARD_MARGIN_S
        hurried = False
        while self.poll() is None and time.monotonic() < deadline:
            if hurry() and not hurried:
                hurried = True
                self._guard.send_signal(signal.SIGQUIT)
            time.sleep(0.02)
        if self.poll() is None:
            self._guard.kill()  # the command has asked the kernel to die with its guard
        code = self._guard.wait()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        return code


class Stack:
    """The running services, started and stopped together; a context manager."""

    def __init__(
        self,
        specs: Sequence[ServiceSpec],
        *,
        say: Say,
        redact: Callable[[str], str] = lambda text: text,
        reuse: bool = False,
        cancelled: Callable[[], bool] = lambda: False,
        hurry: Callable[[], bool] = lambda: False,
    ) -> None:
        self._specs = tuple(specs)
        self._say = say
        self._redact = redact
        self._reuse = reuse
        self._cancelled = cancelled
        self._hurry = hurry
        self._running: list[tuple[ServiceSpec, GuardedProcess]] = []

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start all services and return when all of them answer.

        Raises `PortInUse` before anything is started, `ServiceFailed` with the log's end for one that ends or stays
        silent, `RunCancelled` when the user stops the launch.
        """
        wanted = [spec for spec in self._specs if not self._taken_over(spec)]
        for spec in wanted:
            require_free_port(spec)
        for spec in wanted:
            self._running.append((spec, self._launch(spec)))
        self._wait_ready()

    def watch(self) -> Ended | None:
        """The first service that has ended, or None while all run."""
        for spec, process in self._running:
            code = process.poll()
            if code is not None:
                return Ended(spec, code, self._redact(log_tail(spec.log_path)))
        return None

    def stop(self) -> None:
        """Stop all services and wait until they and their children are gone; harmless when called again."""
        for _, process in self._running:
            process.terminate()
        for _, process in reversed(self._running):
            process.finish(self._hurry)
        self._running.clear()

    def _taken_over(self, spec: ServiceSpec) -> bool:
        if not self._reuse:
            return False
        answer = ports.fetch(spec.reuse_url or spec.health_url, PROBE_TIMEOUT_S)
        if answer is None or answer[0] != 200 or spec.identity not in answer[1]:
            return False
        self._say(f"{spec.name}: using the one that runs at {spec.health_url} (GUIDANCE_REUSE_SERVICES=1)")
        return True

    def _launch(self, spec: ServiceSpec) -> GuardedProcess:
        spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        started = datetime.now().astimezone().isoformat(timespec="seconds")
        with spec.log_path.open("a", encoding="utf-8") as log:
            log.write(f"\n=== {spec.name} started {started}: {' '.join(spec.argv)}\n")
        return GuardedProcess(spec.argv, env=spec.env, cwd=spec.cwd, grace_s=spec.grace_s, log_path=spec.log_path)

    def _wait_ready(self) -> None:
        start = time.monotonic()
        waiting = [spec for spec, _ in self._running]
        next_report = STILL_WAITING_EVERY_S
        if waiting:
            self._say(f"starting {', '.join(spec.name for spec in waiting)}")
        while waiting:
            if self._cancelled():
                raise RunCancelled("stopped before the services were ready")
            ended = self.watch()  # before the probes: a stranger on the port must not hide that ours has ended
            if ended is not None:
                raise ServiceFailed(f"while starting, {ended.describe()}")
            elapsed = time.monotonic() - start
            for spec in list(waiting):
                answer = ports.fetch(spec.health_url, PROBE_TIMEOUT_S)
                if answer is not None and answer[0] == 200:
                    waiting.remove(spec)
                    self._say(f"{spec.name} is ready ({time.monotonic() - start:.1f} s)")
                elif elapsed > spec.ready_timeout_s:
                    raise ServiceFailed(self._silent(spec))
            if waiting and elapsed >= next_report:
                next_report += STILL_WAITING_EVERY_S
                self._say(f"still waiting for {', '.join(spec.name for spec in waiting)} ({elapsed:.0f} s)")
            if waiting:
                time.sleep(POLL_S)

    def _silent(self, spec: ServiceSpec) -> str:
        return (
            f"{spec.name} did not answer {spec.health_url} within {spec.ready_timeout_s:.0f} s\n"
            f"--- last lines of {spec.log_path}\n{self._redact(log_tail(spec.log_path))}\n---\n{spec.cure}"
        )


def require_free_port(spec: ServiceSpec) -> None:
    """Raise `PortInUse`, naming the holder where the system tells, unless the service could bind its port now."""
    if ports.is_free(spec.host, spec.port):
        return
    who = ports.holder(spec.port) or "another process"
    raise PortInUse(
        f"port {spec.port}, which {spec.name} needs, is held by {who}. "
        f"Stop that process, or choose another port with {spec.port_setting}."
    )


def log_tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log; a placeholder when there is none."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = stream.read().decode("utf-8", "replace")
    except OSError as error:
        return f"(no log: {error.strerror})"
    return "\n".join(text.splitlines()[-lines:]) or "(the log is empty)"


def describe_exit(code: int) -> str:
    """An exit code in words; codes above 128 are signals, as in a shell."""
    if code > 128:
        try:
            return f"signal {code - 128} ({signal.Signals(code - 128).name})"
        except ValueError:
            pass
    return f"exit code {code}"
