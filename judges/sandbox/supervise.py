"""Watches one started run: collects its output, enforces time, and says how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from judges.errors import SandboxFault, SandboxStopped
from judges.sandbox.cage import Cage, core_wait_s
from judges.sandbox.model import WALL_HARD_FACTOR, Limits, RunResult, Status

TICK_S = 0.02
_CHUNK_BYTES = 1 << 16
_SIGXCPU = 24


@dataclass
class Supervisor:
    """One run from its start to its result; used once, by one thread."""

    process: subprocess.Popen[bytes]
    cage: Cage
    limits: Limits
    status_fd: int | None
    """Read end of the pipe on which the jail reports the exit code; None where there is no jail."""
    stopping: threading.Event
    measure_wait_s: Callable[[Sequence[int]], float] = core_wait_s
    started: float = field(default_factory=time.monotonic)
    _stdout: bytearray = field(default_factory=bytearray)
    _stderr: bytearray = field(default_factory=bytearray)
    _cpu_s: float = 0.0
    _core_wait_s: float = 0.0
    _verdict: Status | None = None

    def watch(self) -> RunResult:
        """Block until the run has ended and nothing of it is left; `SandboxStopped` when the judge shuts down."""
        try:
            self._loop()
            self._cpu_s = max(self._cpu_s, self.cage.cpu_s())
        finally:
            wall_s = time.monotonic() - self.started
            self._end_processes()
        if self._verdict is not Status.OUTPUT_LIMIT:
            self._drain()
        self._cpu_s = max(self._cpu_s, self.cage.cpu_s())
        return self._result(wall_s)

    # --- while it runs ------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        pidfd = os.pidfd_open(self.process.pid)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(pidfd, selectors.EVENT_READ)
                for stream in self._streams():
                    os.set_blocking(stream, False)
                    selector.register(stream, selectors.EVENT_READ)
                next_check = time.monotonic() + TICK_S
                while self._verdict is None:
                    ready = {key.fd for key, _ in selector.select(max(0.0, next_check - time.monotonic()))}
                    for stream in ready - {pidfd}:
                        if not self._read(stream):
                            selector.unregister(stream)
                    if pidfd in ready:
                        return
                    if time.monotonic() >= next_check:
                        self._check_time()
                        next_check = time.monotonic() + TICK_S
        finally:
            os.close(pidfd)

    def _streams(self) -> list[int]:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        return [self.process.stdout.fileno(), self.process.stderr.fileno()]

    def _read(self, stream: int) -> bool:
        """Take what is there; False at the end of the stream."""
        try:
            data = os.read(stream, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        if not data:
            return False
        if stream == self._streams()[0]:
            room = self.limits.stdout_bytes - len(self._stdout)
            self._stdout += data[:room]
            if len(data) > room:
                self._verdict = Status.OUTPUT_LIMIT
        else:
            # Diagnostics are only ever shown, so the rest is thrown away rather than punished.
            self._stderr += data[: self.limits.stderr_bytes - len(self._stderr)]
        return True

    def _check_time(self) -> None:
        if self.stopping.is_set():
            raise SandboxStopped("the judge is shutting down")
        self._cpu_s = self.cage.cpu_s()
        wall_s = time.monotonic() - self.started
        if self._cpu_s > self.limits.cpu_s:
            self._verdict = Status.TIME_LIMIT
        elif wall_s > self.limits.wall_s:
            self._core_wait_s = self.measure_wait_s(self.cage.processes())
            if wall_s - self._core_wait_s > self.limits.wall_s:
                self._verdict = Status.TIME_LIMIT
            elif wall_s > self.limits.wall_s * WALL_HARD_FACTOR:
                # Not the program's fault, so it must not count against it.
                raise SandboxFault(
                    f"the machine is too busy: a run waited {self._core_wait_s:.1f} s of {wall_s:.1f} s for a free "
                    "core; lower the number of workers or free some cores"
                )

    # --- afterwards ---------------------------------------------------------------------------------------------------

    def _end_processes(self) -> None:
        """Kill what is left, background processes included, and collect the launcher."""
        if self.process.poll() is None:
            # The whole process group first, so that the launcher cannot add to the cage while it is being emptied.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.cage.kill()
        self.process.wait()

    def _drain(self) -> None:
        """Read what was still in the pipes; every writer is dead, so this ends."""
        for stream in self._streams():
            while self._verdict is not Status.OUTPUT_LIMIT:
                try:
                    before = len(self._stdout) + len(self._stderr)
                    if not self._read(stream):
                        break
                    if before == len(self._stdout) + len(self._stderr):
                        break
                except OSError:
                    break

    def _exit_code(self) -> int | None:
        """The program's exit code, or None when it did not end by itself."""
        if self.status_fd is None:
            code = self.process.returncode
            return 128 - code if code < 0 else code
        report = b""
        with contextlib.suppress(BlockingIOError):
            os.set_blocking(self.status_fd, False)
            while chunk := os.read(self.status_fd, 4096):
                report += chunk
        for line in report.splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and isinstance(entry.get("exit-code"), int):
                    return int(entry["exit-code"])
        return None

    def _result(self, wall_s: float) -> RunResult:
        code = self._exit_code()
        return RunResult(
            status=self._status(code),
            exit_code=code if self._verdict is None else None,
            cpu_s=self._cpu_s,
            wall_s=wall_s,
            core_wait_s=self._core_wait_s,
            memory_bytes=self.cage.memory_peak_bytes(),
            stdout=bytes(self._stdout),
            stderr=bytes(self._stderr),
        )

    def _status(self, code: int | None) -> Status:
        if self._verdict is not None:
            return self._verdict
        if self._cpu_s > self.limits.cpu_s or code == 128 + _SIGXCPU:
            return Status.TIME_LIMIT
        if self.cage.oom_kills():
            return Status.MEMORY_LIMIT
        if code is None:
            # The jail reports a code for every program it started, so this one never ran.
            tail = bytes(self._stderr[-300:]).decode("utf-8", errors="replace").strip()
            raise SandboxFault(f"the run did not start (exit {self.process.returncode}): {tail or 'no message'}")
        if code == 0:
            return Status.ACCEPTED
        return Status.SIGNALLED if code > 128 else Status.NONZERO_EXIT
