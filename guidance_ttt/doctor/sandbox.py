"""The judge's sandbox, by running a hostile program in it: nothing is believed because an option was passed.

`judges.sandbox` already refuses a jail that writes to the host or sees a network interface.  The program here tries
what matters to the person at this machine: their files, the services on loopback, their other processes.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from guidance_ttt.doctor.model import Context, Finding, failure, ok, warning

SANDBOX = "sandbox"
CONTROL_GROUPS = "control groups"
_SURE_PID = 16
"""A jail numbers its own few processes from 1, so a small number says nothing about a process outside."""

# Output: lines of `name=value`.  Arguments: a file and a folder of the user, a TCP port of this machine, the name of an
# abstract socket, a process id.
HOSTILE_SOURCE = r"""
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static bool reaches(int family, const sockaddr *address, socklen_t size) {
    int handle = socket(family, SOCK_STREAM, 0);
    if (handle < 0) return false;
    bool reached = connect(handle, address, size) == 0;
    close(handle);
    return reached;
}

int main(int, char **argv) {
    printf("file=%d\n", open(argv[1], O_RDONLY) >= 0);
    DIR *folder = opendir(argv[2]);
    printf("home=%d\n", folder != nullptr);
    sockaddr_in local{};
    local.sin_family = AF_INET;
    local.sin_port = htons(atoi(argv[3]));
    local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    printf("loopback=%d\n", reaches(AF_INET, (sockaddr *)&local, sizeof local));
    sockaddr_in outside = local;
    outside.sin_port = htons(53);
    outside.sin_addr.s_addr = htonl(0xC0000201);  // 192.0.2.1: reserved for documentation, nobody's machine
    int datagram = socket(AF_INET, SOCK_DGRAM, 0);
    printf("network=%d\n", datagram >= 0 && connect(datagram, (sockaddr *)&outside, sizeof outside) == 0);
    sockaddr_un named{};
    named.sun_family = AF_UNIX;
    strncpy(named.sun_path + 1, argv[4], sizeof named.sun_path - 2);
    socklen_t size = offsetof(sockaddr_un, sun_path) + 1 + strlen(argv[4]);
    printf("socket=%d\n", reaches(AF_UNIX, (sockaddr *)&named, size));
    printf("process=%d\n", kill(atoi(argv[5]), 0) == 0 || errno == EPERM);
    return 0;
}
"""

_LEAKS = {
    "file": "read a file of this user",
    "home": "list this user's home folder",
    "loopback": "reach a service on loopback",
    "network": "reach the network",
    "socket": "reach a socket of another program",
    "process": "see another process",
}


@dataclass(frozen=True)
class SandboxView:
    """What came of the try: the tier (None with the reason when there is none) and what the program could do."""

    tier: str | None
    reason: str = ""
    found: Mapping[str, str] = field(default_factory=dict)


def check_sandbox(context: Context) -> Iterator[Finding]:
    """Open the best sandbox of this machine and let the hostile program loose in it."""
    yield from sandbox_findings(observe_sandbox())
    if "--unsafe" in context.environ.get("GUIDANCE_JUDGE_ARGS", "").split():
        yield warning(
            SANDBOX,
            "GUIDANCE_JUDGE_ARGS allows --unsafe: without a working sandbox programs would run as this user",
            "leave --unsafe out, unless this machine is thrown away afterwards",
        )


def observe_sandbox() -> SandboxView:
    """Run the program where a judge would; never raises for a sandbox that cannot be had."""
    from judges.errors import JudgeError
    from judges.sandbox import open_sandbox

    try:
        with open_sandbox() as sandbox:
            return SandboxView(sandbox.tier.value, found=_let_loose(sandbox))
    except JudgeError as error:
        return SandboxView(None, str(error))


def _let_loose(sandbox) -> dict[str, str]:  # type: ignore[no-untyped-def]
    from judges.errors import SandboxFault
    from judges.sandbox import MIB, Bind, Command, Limits, compile_cpp

    compiled = compile_cpp(sandbox, HOSTILE_SOURCE.encode(), flags=("-O0", "-pipe"))
    if not compiled.ok:
        raise SandboxFault(f"the check program did not compile: {compiled.message.strip()[:300]}")
    with (
        _Targets() as targets,
        sandbox.executable(compiled.binary) as program,
    ):
        result = sandbox.run(
            Command(
                argv=("/w/program", *targets.arguments),
                limits=Limits(cpu_s=2.0, wall_s=4.0, memory_bytes=64 * MIB, pids=8, stdout_bytes=4096),
                binds=(Bind(program, "/w/program"),),
            )
        )
    if not result.accepted:
        raise SandboxFault(f"the check program ended with {result.status.value}: {result.stderr[:200]!r}")
    return targets.judged(dict(line.split("=", 1) for line in result.stdout.decode().split()))


class _Targets:
    """What the program is to get at: a readable file, two listening sockets and a running process of this user."""

    def __enter__(self) -> _Targets:
        self._folder = tempfile.TemporaryDirectory(prefix="guidance-doctor-")
        folder = Path(self._folder.name)
        folder.chmod(0o755)  # readable for everyone, so that only the jail stands before it
        canary = folder / "canary"
        canary.write_text("not for candidates", encoding="utf-8")
        canary.chmod(0o644)
        name = f"guidance-doctor-{secrets.token_hex(8)}"
        self._sockets = [socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)]
        self._sockets[1].bind(f"\0{name}")
        self._sockets[1].listen(1)
        self._sleeper = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL)
        port = self._sockets[0].getsockname()[1]
        self.arguments = (str(canary), str(Path.home()), str(port), name, str(self._sleeper.pid))
        return self

    def judged(self, found: dict[str, str]) -> dict[str, str]:
        """The answers, less the one on a process whose number a jail could have given to one of its own."""
        return {key: value for key, value in found.items() if key != "process" or self._sleeper.pid > _SURE_PID}

    def __exit__(self, *_: object) -> None:
        self._sleeper.kill()
        self._sleeper.wait()
        for listening in self._sockets:
            listening.close()
        self._folder.cleanup()


def sandbox_findings(view: SandboxView) -> Iterator[Finding]:
    """What the try says: no sandbox, a leak, a weak tier, or all well."""
    if view.tier is None:
        head, _, rest = view.reason.partition("\n")
        advice = " ".join(rest.split()) or "see docs/security.md"
        yield failure(SANDBOX, f"programs cannot be contained: {head}", advice)
        return
    leaks = [text for key, text in _LEAKS.items() if view.found.get(key, "0") != "0"]
    if leaks:
        yield failure(
            SANDBOX,
            f"a jailed program could {', '.join(leaks)} (tier {view.tier})",
            "judge nobody's programs on this machine; report this with `bwrap --version` and `uname -a`",
        )
    elif not view.found:
        yield failure(SANDBOX, "the hostile program said nothing", "run the check again; report it if it stays so")
    else:
        yield ok(
            SANDBOX,
            f"tier {view.tier}: a hostile program reached no file, service, network or process of this user",
        )
    if view.tier == "rlimit":
        yield warning(
            SANDBOX,
            "tier rlimit: memory and CPU time are limited for each process, not for a program as a whole",
            "let the judge use control groups (see the line on them)",
        )


# --- control groups ---------------------------------------------------------------------------------------------------


def check_control_groups(context: Context) -> Iterator[Finding]:
    """Whether groups with memory, process and CPU controllers can be made, by making one."""
    yield from control_group_findings(*observe_control_groups())


def observe_control_groups() -> tuple[int | None, str]:
    """The version of the control groups in use, or None with the reason why there are none."""
    from judges.errors import JudgeError
    from judges.sandbox.cgroup import CGROUP_ROOT
    from judges.sandbox.detect import open_cgroups

    try:
        tree = open_cgroups(CGROUP_ROOT)
    except JudgeError as error:
        return None, str(error)
    version = tree.version
    tree.close()
    return version, ""


def control_group_findings(version: int | None, reason: str) -> Iterator[Finding]:
    """A missing one is a warning: the sandbox has a weaker tier for that."""
    if version is None:
        how = "run as root" if os.geteuid() != 0 else "in a container: mount /sys/fs/cgroup writable"
        yield warning(
            CONTROL_GROUPS,
            f"cannot be used: {reason}",
            f"{how}, or have memory, pids and cpu delegated to this user (systemd-run --user --scope -p Delegate=yes)",
        )
    else:
        yield ok(CONTROL_GROUPS, f"version {version}: memory, process and CPU limits hold for a program as a whole")
