"""The command lines that start a run: a launcher that sets limits, then the jail, then the program.

The launcher is a few lines of `sh`, because joining a control group and lowering limits must happen in the new process
before anything else does, and running Python between fork and exec is not safe in a threaded server.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from judges.errors import SandboxUnavailable
from judges.sandbox.model import Bind, Command, Limits, Tier

NOBODY = 65534
JOIN_FAILED = 125
LAUNCHER_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
_LIBRARY_DIRS = ("/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/lib", "/lib32", "/lib64", "/libx32")
_TOOLCHAIN_DIRS = ("/usr/bin", "/usr/include", "/usr/libexec", "/bin")
_RUN_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
# A compiler that is told to include /dev/zero should find nothing.
_TOOLCHAIN_DEVICES = ("/dev/null",)
_IN_JAIL_PRLIMIT = "/w/.prlimit"


@dataclass(frozen=True)
class Tools:
    """The system programs a jail is built from."""

    sh: Path
    bwrap: Path | None
    setpriv: Path | None
    prlimit: Path | None
    bwrap_options: frozenset[str] = frozenset()
    """Options this bubblewrap knows, among those that older versions lack."""

    @classmethod
    def find(cls) -> Tools:
        """Look them up on the usual system path."""
        sh = _which("sh")
        if sh is None:
            raise SandboxUnavailable("no `sh` in /usr/bin or /bin, so no program can be started")
        bwrap = _which("bwrap")
        return cls(
            sh=sh,
            bwrap=bwrap,
            setpriv=_which("setpriv"),
            prlimit=_which("prlimit"),
            bwrap_options=_known_options(bwrap) if bwrap else frozenset(),
        )


def _which(name: str) -> Path | None:
    # The system path only: a jail run as another user cannot enter a private directory on the caller's PATH.
    found = shutil.which(name, path=LAUNCHER_PATH)
    return Path(found) if found else None


def _known_options(bwrap: Path) -> frozenset[str]:
    try:
        shown = subprocess.run([str(bwrap), "--help"], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    words = set((shown.stdout + shown.stderr).decode("utf-8", errors="replace").split())
    return frozenset(words & {"--disable-userns", "--size", "--json-status-fd"})


@dataclass(frozen=True)
class Jail:
    """How runs are started on this machine, for one tier."""

    tools: Tools
    tier: Tier
    host_uid: int | None
    """Real user id to run as (when the judge itself is root), or None to keep the judge's own."""
    drop_capabilities: bool = True
    """False only in the test that shows that the start-up check finds a leaking jail."""

    def argv(self, command: Command, join_files: tuple[Path, ...], status_fd: int) -> list[str]:
        """The full command line; `status_fd` is where the jail reports the program's exit code."""
        joins = [str(path) for path in join_files]
        line = [str(self.tools.sh), "-c", _launcher(command.limits, self.tier), "run", str(len(joins)), *joins]
        if self.host_uid is not None:
            line += self._setpriv(self.host_uid)
        if self.tier is Tier.UNSAFE:
            return line + _on_host(command)
        return line + self._bwrap(command, status_fd)

    def _setpriv(self, uid: int) -> list[str]:
        if self.tools.setpriv is None:
            raise SandboxUnavailable("`setpriv` is missing; install it with: apt-get install -y util-linux")
        who = str(uid)
        return [
            str(self.tools.setpriv), "--reuid", who, "--regid", who, "--clear-groups",
            "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs",
        ]  # fmt: skip

    def _bwrap(self, command: Command, status_fd: int) -> list[str]:
        if self.tools.bwrap is None:
            raise SandboxUnavailable("`bwrap` is missing; install it with: apt-get install -y bubblewrap")
        line = [
            str(self.tools.bwrap), "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session",
            "--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--json-status-fd", str(status_fd),
        ]  # fmt: skip
        if self.drop_capabilities:
            line += ["--uid", str(NOBODY), "--gid", str(NOBODY), "--cap-drop", "ALL"]
            if "--disable-userns" in self.tools.bwrap_options:
                line += ["--disable-userns"]
        line += _mounts(command.toolchain)
        if "--size" in self.tools.bwrap_options:
            line += ["--size", str(command.limits.scratch_bytes)]
        line += ["--tmpfs", "/tmp", "--dir", "/w"]
        prefix: list[str] = []
        binds = list(command.binds)
        if self.tier is Tier.RLIMIT:
            # The process limit counts per user namespace, so it is set inside, where only this run's processes count.
            if self.tools.prlimit is None:
                raise SandboxUnavailable("`prlimit` is missing; install it with: apt-get install -y util-linux")
            binds.append(Bind(self.tools.prlimit, _IN_JAIL_PRLIMIT))
            prefix = [_IN_JAIL_PRLIMIT, f"--nproc={command.limits.pids}:{command.limits.pids}", "--"]
        for bind in binds:
            line += ["--ro-bind", str(bind.source), bind.target]
        return [*line, "--remount-ro", "/", "--chdir", command.workdir, "--", *prefix, *command.argv]


def _mounts(toolchain: bool) -> list[str]:
    """Read-only system directories, with the same symbolic links as on this machine."""
    line: list[str] = []
    directories = _LIBRARY_DIRS + (_TOOLCHAIN_DIRS if toolchain else ())
    for name in directories:
        if os.path.islink(name):
            line += ["--symlink", os.readlink(name), name]
        elif os.path.isdir(name):
            line += ["--ro-bind", name, name]
    for device in _TOOLCHAIN_DEVICES if toolchain else _RUN_DEVICES:
        line += ["--dev-bind-try", device, device]
    return line


def _launcher(limits: Limits, tier: Tier) -> str:
    """The `sh` program: join the groups named by the arguments, lower the limits, become the rest of the arguments."""
    lines = [
        "joins=$1; shift",
        f'while [ "$joins" -gt 0 ]; do echo 0 > "$1" || exit {JOIN_FAILED}; shift; joins=$((joins - 1)); done',
        # Whole seconds only: the supervisor cuts at the exact limit, this is the net below it.
        f"ulimit -t {_at_most(resource.RLIMIT_CPU, int(limits.cpu_s) + 2)}",
        "ulimit -c 0",
        f"ulimit -f {_at_most(resource.RLIMIT_FSIZE, limits.file_bytes) // 512}",
        f"ulimit -n {_at_most(resource.RLIMIT_NOFILE, limits.open_files)}",
    ]
    if limits.stack_bytes is not None:
        lines.append(f"ulimit -s {_at_most(resource.RLIMIT_STACK, limits.stack_bytes) // 1024}")
    address_space = limits.address_space_bytes
    if address_space is None and tier is not Tier.CGROUP:
        # Nothing else bounds memory here; twice the limit leaves room for mappings that are never touched.
        address_space = 2 * limits.memory_bytes
    if address_space is not None:
        lines.append(f"ulimit -v {_at_most(resource.RLIMIT_AS, address_space) // 1024}")
    lines.append('exec "$@"')
    return "\n".join(lines)


def _at_most(which: int, wanted: int) -> int:
    """`wanted`, or the hard limit where it is lower: raising it would be refused."""
    hard = resource.getrlimit(which)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


def _on_host(command: Command) -> list[str]:
    """Without a jail, paths below a bind's target are looked up at its source."""
    places = {bind.target: str(bind.source) for bind in command.binds}
    places |= {target.removeprefix(f"{command.workdir}/"): source for target, source in places.items()}
    return ["env", "-i", "PATH=/usr/bin:/bin", *(places.get(word, word) for word in command.argv)]
