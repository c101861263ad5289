"""Times one sandboxed run from outside, from the moment the program may start to its last byte of output.

Setting up a jail takes longer than a good solver needs for a small instance, so the wall time of the whole sandboxed
child would hide what is measured.  Instead a small starter waits inside the finished jail, says that it is ready, and
becomes the candidate's program when it reads the first byte of its input.  Input and output are named pipes between the
jail and this process: the clock starts just before that byte is written and stops when the last expected byte has been
read.  Both ends of the measurement lie here, where no candidate can reach them, and it spans what a plain child process
would be charged with: becoming the program, reading the instance from a pipe, solving, writing the answer to a pipe.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from judges.errors import SandboxFault
from judges.sandbox import Bind, Command, Limits, RunResult, Sandbox, compile_cpp

_READY = b"R"
_GO = b"G"
_START_FAILED = 125
_CHUNK_BYTES = 1 << 20

# Libraries that would start threads of their own are told to use one.
_STARTER_SOURCE = r"""
#include <fcntl.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc != 4) return 125;
    const int in = open(argv[1], O_RDONLY);
    const int out = open(argv[2], O_WRONLY);
    char go;
    if (in < 0 || out < 0 || write(out, "R", 1) != 1) return 125;
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || close(in) != 0 || close(out) != 0) return 125;
    char *environment[] = {
        (char *)"PATH=/usr/bin:/bin", (char *)"OMP_NUM_THREADS=1", (char *)"OPENBLAS_NUM_THREADS=1",
        (char *)"MKL_NUM_THREADS=1", nullptr,
    };
    char *arguments[] = {argv[3], nullptr};
    if (read(0, &go, 1) != 1) return 125;
    execve(argv[3], arguments, environment);
    return 126;
}
"""


@dataclass(frozen=True)
class TimedRun:
    """One timed run: how it ended, what it wrote (at most one byte more than expected), and how long that took."""

    run: RunResult
    output: bytes = field(repr=False)
    expected_bytes: int
    solve_s: float | None
    """Seconds from the start of the program to its last expected byte; None when that never came."""

    @property
    def overhead_s(self) -> float:
        """What the sandbox added around the program: the wall time of the whole child less the time measured."""
        return self.run.wall_s - (self.solve_s or 0.0)


class Stopwatch:
    """Runs programs in a sandbox with exact timing; make one per sandbox (it compiles the starter)."""

    def __init__(self, sandbox: Sandbox) -> None:
        """Raises `SandboxFault` when the starter cannot be compiled."""
        self._sandbox = sandbox
        compiled = compile_cpp(sandbox, _STARTER_SOURCE.encode(), flags=("-O1", "-pipe", "-std=gnu++17"))
        if not compiled.ok:
            raise SandboxFault(f"the timed runs' starter did not compile: {compiled.message.strip()[:300]}")
        self._starter = compiled.binary

    @contextlib.contextmanager
    def program(self, binary: bytes) -> Iterator[TimedProgram]:
        """A compiled program, on disk as long as the context lasts, ready for any number of timed runs."""
        with self._sandbox.executable(self._starter) as starter, self._sandbox.executable(binary) as program:
            yield TimedProgram(self._sandbox, starter, program)


@dataclass(frozen=True)
class TimedProgram:
    """A program that can be run and timed."""

    sandbox: Sandbox
    starter: Path
    path: Path

    def run(self, payload: bytes, expected_bytes: int, limits: Limits) -> TimedRun:
        """Run once on `payload`; raises `SandboxFault` when the run could not be started or measured."""
        with self.sandbox.directory() as directory:
            pipes = _Pipes(directory, payload, expected_bytes)
            pipes.start()
            try:
                result = self.sandbox.run(
                    Command(
                        argv=("/w/starter", "/w/in", "/w/out", "/w/program"),
                        limits=limits,
                        binds=(
                            Bind(self.starter, "/w/starter"),
                            Bind(pipes.stdin_path, "/w/in"),
                            Bind(pipes.stdout_path, "/w/out"),
                            Bind(self.path, "/w/program"),
                        ),
                    )
                )
            finally:
                pipes.finish()
        if not pipes.started:
            raise SandboxFault(
                f"a timed run did not start ({result.status.value}, exit code {result.exit_code}): "
                f"{result.stderr[-200:].decode('utf-8', errors='replace').strip() or 'no message'}"
            )
        return TimedRun(result, bytes(pipes.output), expected_bytes, pipes.solve_s)


class _Pipes:
    """The two named pipes of one run, and the two threads at this end of them.

    `hold` descriptors are open in both directions, so that opening never blocks and neither side sees an end before the
    program has started.  From then on the program's own ends decide: when it dies, both threads come to their end.
    """

    def __init__(self, directory: Path, payload: bytes, expected_bytes: int) -> None:
        self.stdin_path = directory / "in"
        self.stdout_path = directory / "out"
        self.output = bytearray()
        self.started = False
        self._input = _GO + payload
        self._expected_bytes = expected_bytes
        self._began: float | None = None
        self._ended: float | None = None
        self._ready = threading.Event()
        self._holds: list[int] = []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._feed, self._collect)]

    @property
    def solve_s(self) -> float | None:
        """Seconds from the start byte to the last expected byte."""
        return None if self._began is None or self._ended is None else self._ended - self._began

    def start(self) -> None:
        """Make the pipes and start waiting at them."""
        try:
            for path in (self.stdin_path, self.stdout_path):
                os.mkfifo(path)
                path.chmod(0o666)
                self._holds.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
            self._in = os.open(self.stdin_path, os.O_WRONLY | os.O_CLOEXEC)
            self._out = os.open(self.stdout_path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self._release()
            raise SandboxFault(f"cannot make named pipes in {self.stdin_path.parent}: {error.strerror}") from error
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Call when the run is over: lets both threads end, and waits for them."""
        self._release()
        self._ready.set()
        for thread in self._threads:
            thread.join()

    def _release(self) -> None:
        with self._lock:
            while self._holds:
                os.close(self._holds.pop())

    def _feed(self) -> None:
        """Start the program, then write the instance; a program that does not read it all is free to do so."""
        self._ready.wait()
        view = memoryview(self._input)
        try:
            if self.started:
                self._began = time.perf_counter()
                while view:
                    view = view[os.write(self._in, view) :]
        except BrokenPipeError:
            pass
        finally:
            os.close(self._in)

    def _collect(self) -> None:
        """Wait for the starter, then read up to one byte more than expected and note when the last one came."""
        try:
            if os.read(self._out, 1) != _READY:
                return
            self.started = True
            self._release()
            self._ready.set()
            while data := os.read(self._out, min(_CHUNK_BYTES, self._expected_bytes + 1 - len(self.output))):
                self.output += data
                if len(self.output) == self._expected_bytes:
                    self._ended = time.perf_counter()
                elif len(self.output) > self._expected_bytes:
                    return
        finally:
            # A program that writes on meets a closed pipe.
            os.close(self._out)
