"""The vocabulary of the sandbox: what to run, within which limits, and what came of it.

Nothing here starts a process or touches the file system, so judges and tests can build and compare these values freely.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

MIB = 1 << 20


class Tier(StrEnum):
    """How well runs are contained; reported by `/health` and in every verdict."""

    CGROUP = "cgroup"
    """Namespaces plus control groups: memory, process count and CPU time are bounded for the run as a whole."""
    RLIMIT = "rlimit"
    """Namespaces plus per-process limits: memory and CPU time are bounded per process only, CPU sums are sampled."""
    UNSAFE = "unsafe"
    """No isolation at all: a candidate can read and write what the judge's user can."""


class Status(StrEnum):
    """How a run ended."""

    ACCEPTED = "Accepted"
    TIME_LIMIT = "Time Limit Exceeded"
    MEMORY_LIMIT = "Memory Limit Exceeded"
    OUTPUT_LIMIT = "Output Limit Exceeded"
    SIGNALLED = "Signalled"
    NONZERO_EXIT = "Nonzero Exit Status"


@dataclass(frozen=True)
class Limits:
    """Bounds of one run.  CPU time is the sum over all its processes.

    `wall_s` leaves out the time in which the run was ready but no core was free, so that a busy machine does not turn
    an honest program into a slow one; a run still starved after `WALL_HARD_FACTOR` times `wall_s` is given up as the
    machine's fault.
    """

    cpu_s: float
    wall_s: float
    memory_bytes: int
    pids: int = 32
    stdout_bytes: int = 16 * MIB
    stderr_bytes: int = 64 * 1024
    address_space_bytes: int | None = None
    stack_bytes: int | None = None
    scratch_bytes: int = 16 * MIB
    file_bytes: int = 64 * MIB
    open_files: int = 64

    def __post_init__(self) -> None:
        for name in ("cpu_s", "wall_s", "memory_bytes", "pids", "stdout_bytes", "stderr_bytes", "scratch_bytes"):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"limit {name} must be above zero, got {value!r}")


WALL_HARD_FACTOR = 3.0


@dataclass(frozen=True)
class Bind:
    """One host path shown read-only inside the jail."""

    source: Path
    target: str


@dataclass(frozen=True)
class Command:
    """One program to run: its arguments as seen inside the jail, what it may see, and what it is fed."""

    argv: tuple[str, ...]
    limits: Limits
    binds: tuple[Bind, ...] = ()
    stdin: bytes = b""
    toolchain: bool = False
    """Also show compilers, headers and shell tools (`/usr/bin`, `/usr/include`, `/usr/libexec`)."""
    workdir: str = "/w"


@dataclass(frozen=True)
class RunResult:
    """What one run did.  `cpu_s` includes the few milliseconds the jail itself needs."""

    status: Status
    exit_code: int | None
    """The program's own exit code, 128 + n for signal n, or None when it was killed from outside."""
    cpu_s: float
    wall_s: float
    core_wait_s: float
    """The part of `wall_s` spent ready but without a core (0 unless the wall limit was reached)."""
    memory_bytes: int
    """Peak of the whole run in tier `cgroup`, a sampled lower bound elsewhere."""
    stdout: bytes = field(repr=False)
    stderr: bytes = field(repr=False)

    @property
    def accepted(self) -> bool:
        """True when the program ended by itself with exit code 0 and within every limit."""
        return self.status is Status.ACCEPTED
