"""Choosing a tier by trying it: a jail is used only after it has shown that it holds.

The check compiles a small program in the compile jail and lets it try to get out of the run jail.  Nothing is believed
because an option was passed or a file exists.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from judges.errors import SandboxFault, SandboxUnavailable
from judges.sandbox.cgroup import CGROUP_ROOT, CgroupTree, open_tree
from judges.sandbox.cpp import compile_cpp, find_compiler
from judges.sandbox.jail import NOBODY, Jail, Tools
from judges.sandbox.model import MIB, Bind, Command, Limits, Status, Tier
from judges.sandbox.sandbox import Sandbox, make_scratch_root

PROBE_LIMITS = Limits(cpu_s=2.0, wall_s=4.0, memory_bytes=64 * MIB, pids=16, stdout_bytes=4096)
_FORK_TRIES = 40

# Each line of its output is `name=value`.  The forks are bounded: children only wait; there are _FORK_TRIES at most.
PROBE_SOURCE = r"""
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

static bool writable(const char *path) {
    int handle = open(path, O_CREAT | O_WRONLY, 0644);
    if (handle < 0) return false;
    bool written = write(handle, "x", 1) == 1;
    close(handle);
    return written;
}

int main(int argc, char **argv) {
    int tries = argc > 1 ? atoi(argv[1]) : 0;
    mount(nullptr, "/probe", nullptr, MS_REMOUNT | MS_BIND, nullptr);
    printf("bound=%d\n", writable("/probe/escaped"));
    mount(nullptr, "/", nullptr, MS_REMOUNT | MS_BIND, nullptr);
    printf("root=%d\n", writable("/escaped"));
    printf("passwd=%d\n", access("/etc/passwd", R_OK) == 0);
    int links = 0;
    struct ifaddrs *list = nullptr;
    if (getifaddrs(&list) == 0)
        for (struct ifaddrs *entry = list; entry; entry = entry->ifa_next)
            if (!(entry->ifa_flags & IFF_LOOPBACK)) ++links;
    printf("links=%d\n", links);
    int forks = 0;
    pid_t children[64];
    for (; forks < tries && forks < 64; ++forks) {
        children[forks] = fork();
        if (children[forks] < 0) break;
        if (children[forks] == 0) { pause(); _exit(0); }
    }
    for (int i = 0; i < forks; ++i) kill(children[i], SIGKILL);
    while (wait(nullptr) > 0) {}
    printf("forks=%d\n", forks);
    return 0;
}
"""


def open_sandbox(
    *,
    allow_unsafe: bool = False,
    cgroup_root: Path = CGROUP_ROOT,
    only: Tier | None = None,
    scratch_parent: Path | None = None,
    tools: Tools | None = None,
) -> Sandbox:
    """The best sandbox that really contains programs on this machine; the caller closes it.

    Tries control groups, then per-process limits.  Without a tier that holds it raises `SandboxUnavailable` naming
    every reason and the cure, unless `allow_unsafe` permits running candidates without isolation.  `only` tries a
    single tier.
    """
    find_compiler()
    tools = tools or Tools.find()
    host_uid = NOBODY if os.geteuid() == 0 else None
    tiers = [only] if only is not None else [Tier.CGROUP, Tier.RLIMIT, *([Tier.UNSAFE] if allow_unsafe else [])]
    reasons: list[str] = []
    for tier in tiers:
        if tier is Tier.UNSAFE and not allow_unsafe:
            raise SandboxUnavailable("running candidates without isolation needs --unsafe")
        try:
            return _try_tier(tier, tools, host_uid, cgroup_root, scratch_parent)
        except (SandboxFault, SandboxUnavailable) as error:
            reasons.append(f"  {tier.value}: {error}")
    raise SandboxUnavailable(_advice(tools, reasons))


def _try_tier(
    tier: Tier, tools: Tools, host_uid: int | None, cgroup_root: Path, scratch_parent: Path | None
) -> Sandbox:
    if tier is not Tier.UNSAFE:
        if tools.bwrap is None:
            raise SandboxUnavailable("bubblewrap is missing; install it with: apt-get install -y bubblewrap")
        if "--json-status-fd" not in tools.bwrap_options:
            raise SandboxUnavailable(f"{tools.bwrap} does not know --json-status-fd; install bubblewrap 0.4 or newer")
    tree = open_cgroups(cgroup_root) if tier is Tier.CGROUP else None
    if tier is Tier.UNSAFE and tools.setpriv is None:
        host_uid = None
    jail = Jail(tools=tools, tier=tier, host_uid=host_uid)
    sandbox = Sandbox(jail, tree, make_scratch_root(host_uid, scratch_parent))
    try:
        check_containment(sandbox)
    except BaseException:
        sandbox.close()
        raise
    return sandbox


def open_cgroups(root: Path) -> CgroupTree:
    """Control groups that were tried: left-overs are swept, and one group's process cap was set and read back."""
    tree = open_tree(root)
    try:
        tree.sweep()
        group = tree.create(PROBE_LIMITS)
        try:
            cap = group.pids_max()
            if cap != PROBE_LIMITS.pids:
                raise SandboxFault(f"the process cap reads {cap} after {PROBE_LIMITS.pids} was written")
        finally:
            group.remove()
    except BaseException:
        tree.close()
        raise
    return tree


def check_containment(sandbox: Sandbox) -> None:
    """Run the probe; raises `SandboxFault` naming what got out.  In tier `unsafe` it only shows that programs run."""
    compiled = compile_cpp(sandbox, PROBE_SOURCE.encode(), flags=("-O0", "-pipe"))
    if not compiled.ok:
        raise SandboxFault(f"the check program did not compile in the sandbox: {compiled.message.strip()[:300]}")
    jailed = sandbox.tier is not Tier.UNSAFE
    with sandbox.executable(compiled.binary) as program, sandbox.directory() as target:
        # Everyone may write here, so that only the read-only mount stands between the program and the host.
        target.chmod(0o777)
        result = sandbox.run(
            Command(
                argv=("/w/program", str(_FORK_TRIES if jailed else 0), secrets.token_hex(4)),
                limits=PROBE_LIMITS,
                binds=(Bind(program, "/w/program"), Bind(target, "/probe")),
            )
        )
        escaped = any(target.iterdir())
    if result.status is not Status.ACCEPTED:
        raise SandboxFault(f"the check program ended with {result.status.value}: {result.stderr[:200]!r}")
    if jailed:
        _judge_probe(dict(line.split("=", 1) for line in result.stdout.decode().split()), escaped)


def _judge_probe(found: dict[str, str], escaped: bool) -> None:
    if escaped or found.get("bound") != "0":
        raise SandboxFault("a program remounted a read-only host directory and wrote to it")
    if found.get("root") != "0":
        raise SandboxFault("a program wrote to the root of the jail")
    if found.get("passwd") != "0":
        raise SandboxFault("a program could read the host's /etc/passwd")
    if found.get("links") != "0":
        raise SandboxFault("a program could see a network interface")
    forks = int(found.get("forks", str(_FORK_TRIES)))
    if forks >= PROBE_LIMITS.pids:
        raise SandboxFault(f"a program started {forks} processes where {PROBE_LIMITS.pids} are allowed")


def _advice(tools: Tools, reasons: list[str]) -> str:
    lines = ["no sandbox on this machine contains candidate programs:", *reasons]
    if tools.bwrap is None:
        lines.append("Install bubblewrap: apt-get install -y bubblewrap")
    else:
        lines.append(
            "Run the judge as root or allow user namespaces "
            "(sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000, and on Ubuntu "
            "kernel.apparmor_restrict_unprivileged_userns=0)."
        )
    lines.append("On a throw-away machine --unsafe runs candidates without isolation.")
    return "\n".join(lines)
