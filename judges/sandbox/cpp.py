"""Compiling C++ inside the sandbox.

The compiler runs jailed as well: a source file can make it read any file it can reach, use all memory or write without
end.  Its output comes back through a pipe, so the jail needs no writable host directory.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from judges.errors import SandboxUnavailable
from judges.sandbox.model import MIB, Bind, Command, Limits, RunResult, Status
from judges.sandbox.sandbox import Sandbox

MESSAGE_BYTES = 2000
COMPILE_LIMITS = Limits(
    cpu_s=10.0,
    wall_s=20.0,
    memory_bytes=512 * MIB,
    pids=64,
    stdout_bytes=64 * MIB,
    scratch_bytes=128 * MIB,
    file_bytes=128 * MIB,
)
DEFAULT_FLAGS = ("-O2", "-pipe", "-std=gnu++17")
_SCRIPT = """
dir=$(mktemp -d) || exit 1
"$@" -o "$dir/program" >&2 && cat "$dir/program"
code=$?
rm -rf "$dir"
exit $code
"""


@dataclass(frozen=True)
class Compiled:
    """The outcome of one compilation: a program, or the reason why there is none."""

    binary: bytes = field(repr=False)
    message: str
    """Empty on success; otherwise the start of the compiler's text or the limit that was hit."""
    status: Status
    cpu_s: float
    wall_s: float

    @property
    def ok(self) -> bool:
        """True when there is a program to run."""
        return bool(self.binary)


def find_compiler(search_path: str = "/usr/bin:/bin") -> Path:
    """The real path of `g++`, which must be below `/usr` because that is what the compile jail shows."""
    found = shutil.which("g++", path=search_path)
    if found is None:
        raise SandboxUnavailable("g++ is missing; install it with: apt-get install -y g++")
    real = Path(found).resolve()
    if not real.is_relative_to("/usr"):
        raise SandboxUnavailable(
            f"g++ is {real}, outside /usr, which is all the compile jail shows; install the system's g++"
        )
    return real


def compile_cpp(
    sandbox: Sandbox,
    source: bytes,
    flags: tuple[str, ...] = DEFAULT_FLAGS,
    limits: Limits = COMPILE_LIMITS,
) -> Compiled:
    """Compile one source file; what goes wrong in the compiler is the source's fault and comes back as a message."""
    with sandbox.directory() as directory:
        path = directory / "main.cpp"
        path.write_bytes(source)
        path.chmod(0o644)
        result = sandbox.run(
            Command(
                argv=("/usr/bin/sh", "-c", _SCRIPT, "compile", str(find_compiler()), "main.cpp", *flags),
                limits=limits,
                binds=(Bind(path, "/w/main.cpp"),),
                toolchain=True,
            )
        )
    good = result.accepted and bool(result.stdout)
    return Compiled(
        binary=result.stdout if good else b"",
        message="" if good else _explain(result, limits).replace(str(path), "main.cpp"),
        status=result.status,
        cpu_s=result.cpu_s,
        wall_s=result.wall_s,
    )


def _explain(result: RunResult, limits: Limits) -> str:
    text = result.stderr[:MESSAGE_BYTES].decode("utf-8", errors="replace")
    match result.status:
        case Status.TIME_LIMIT:
            return f"compilation exceeded its time limit ({limits.cpu_s:g} s CPU, {limits.wall_s:g} s in all)\n{text}"
        case Status.MEMORY_LIMIT:
            return f"compilation exceeded its memory limit ({limits.memory_bytes // MIB} MiB)\n{text}"
        case Status.OUTPUT_LIMIT:
            return f"the compiled program is larger than {limits.stdout_bytes // MIB} MiB"
        case _:
            return text or f"the compiler failed without a message (exit code {result.exit_code})"
