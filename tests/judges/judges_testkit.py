"""What the judges' tests share: limits, one-line runs of C++ programs, and looking for what was left behind."""

from __future__ import annotations

import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from judges.sandbox import MIB, Bind, Command, Limits, RunResult, Sandbox, compile_cpp
from judges.sandbox.owner import owner_token

START_TIMEOUT_S = 60.0
RUN_LIMITS = Limits(
    cpu_s=2.0, wall_s=4.0, memory_bytes=256 * MIB, address_space_bytes=256 * MIB, stack_bytes=256 * MIB, pids=32
)


def groups_of_this_process() -> list[Path]:
    """Control groups that a sandbox in this process made and did not remove."""
    root = Path("/sys/fs/cgroup")
    return [*root.glob(f"*/guidance-judge/{owner_token()}.*"), *root.glob(f"guidance-judge/{owner_token()}.*")]


def scratch_of_this_process() -> list[Path]:
    """Scratch directories that a sandbox in this process made and did not remove."""
    return list(Path(tempfile.gettempdir()).glob(f"guidance-judge-{owner_token()}.*"))


def processes_with(marker: str) -> list[int]:
    """Live processes whose command line contains `marker`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


RunProgram = Callable[..., RunResult]


def run_source(
    sandbox: Sandbox,
    source: str,
    *arguments: str,
    limits: Limits = RUN_LIMITS,
    stdin: bytes = b"",
    name: str = "program",
) -> RunResult:
    """Compile a C++ program quickly and run it once in the run jail."""
    compiled = compile_cpp(sandbox, source.encode(), flags=("-O1", "-pipe", "-std=gnu++17"))
    assert compiled.ok, compiled.message
    with sandbox.executable(compiled.binary) as program:
        target = f"/w/{name}"
        return sandbox.run(Command((target, *arguments), limits, (Bind(program, target),), stdin))


@dataclass
class JudgeProcess:
    """A judge started from the command line, as a user starts it."""

    process: subprocess.Popen[str]
    url: str
    banner: str
    lines: list[str] = field(default_factory=list)

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 20.0) -> int:
        """Send a signal and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=timeout_s)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        ready, _, _ = select.select([process.stdout], [], [], 0.2)
        if ready:
            return process.stdout.readline()
        if process.poll() is not None:
            break
    assert process.poll() is not None, "the judge neither started nor ended in time"
    raise AssertionError(f"the judge ended with {process.returncode}: {process.communicate()[1]}")
