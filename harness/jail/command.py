"""From what a jail should look like to the one command line that starts it.

A launch is a chain of programs that replace each other, so the process that Python started *is* bubblewrap in the end:

    [unshare --mount] -> sh (join control groups, stage hidden directories) -> taskset -> setpriv -> bwrap -> command

Staging: bubblewrap opens its bind sources as the unprivileged account.  A source behind a directory that this account
cannot enter (root's home is mode 0700) is first bound, in a private mount namespace, to a place that it can.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.jail.tools import JailTools, blocked_at

_HOST_DIRECTORIES = ("/usr", "/opt", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")

_OPENING = """
while [ "$1" = join ]; do echo $$ > "$2/cgroup.procs" || exit 125; shift 2; done
while [ "$1" = stage ]; do mount --bind -- "$2" "$3" || exit 125; shift 3; done
exec "$@"
"""


@dataclass(frozen=True)
class Bind:
    """One host file or directory shown in the jail at `target`."""

    source: Path
    target: str
    writable: bool = False
    device: bool = False

    @property
    def flag(self) -> str:
        """The bubblewrap option for this kind of bind."""
        return "--dev-bind" if self.device else "--bind" if self.writable else "--ro-bind"


@dataclass(frozen=True)
class Jail:
    """What all commands of one environment share.

    `staged` maps hidden bind sources to the mount points they are staged at; make it with `stage_hidden`.
    """

    tools: JailTools
    root: Path
    binds: tuple[Bind, ...] = ()
    staged: Mapping[Path, Path] = field(default_factory=dict)
    cpus: tuple[int, ...] = ()
    cgroups: tuple[Path, ...] = ()


@dataclass(frozen=True)
class JailCommand:
    """One command in a jail; `uid` is the identity it sees, `binds` come on top of the jail's own."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    workdir: str = "/"
    uid: int = 0
    share_network: bool = False
    binds: tuple[Bind, ...] = ()


def host_directories() -> list[str]:
    """Top-level directories shown read-only from the host; where /bin links into /usr the image has the same link."""
    return [path for path in _HOST_DIRECTORIES if os.path.isdir(path) and not os.path.islink(path)]


def stage_hidden(binds: Sequence[Bind], uid: int | None, stage_root: Path) -> dict[Path, Path]:
    """Make a mount point for every bind source that `uid` cannot reach; {} when there is none or no uid to drop to."""
    staged: dict[Path, Path] = {}
    for source in {bind.source for bind in binds}:
        if uid is None or blocked_at(source, uid) is None:
            continue
        stage_root.mkdir(mode=0o711, exist_ok=True)
        point = stage_root / str(len(staged))
        if source.is_dir():
            point.mkdir()
        else:
            point.touch()
        staged[source] = point
    return staged


def bwrap_options(jail: Jail, command: JailCommand) -> list[str]:
    """Bubblewrap's options for one command, in the order in which it carries them out."""
    options = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    options += ["--uid", str(command.uid), "--gid", str(command.uid), "--hostname", "jail"]
    options += ["--die-with-parent", "--new-session", "--clearenv"]
    if jail.tools.drop_capabilities:
        options += ["--cap-drop", "ALL"]
    if jail.tools.forbid_nested_namespaces:
        options.append("--disable-userns")
    if not command.share_network:
        options.append("--unshare-net")
    options += ["--bind", str(jail.root), "/"]
    for path in host_directories():
        options += ["--ro-bind", path, path]
    options += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/dev/shm"]
    for bind in (*jail.binds, *command.binds):
        options += [bind.flag, str(jail.staged.get(bind.source, bind.source)), bind.target]
    options += ["--chdir", command.workdir]
    for name, value in command.env.items():
        options += ["--setenv", name, value]
    return options


def launch_argv(jail: Jail, command: JailCommand, options_fd: int, status_fd: int | None = None) -> list[str]:
    """The host command line; bubblewrap reads its options from `options_fd` and reports its state to `status_fd`.

    Options do not travel on the command line because every process, the jailed one included, can read that, and
    environment values may be secrets.
    """
    used = {bind.source for bind in (*jail.binds, *command.binds)}
    steps = [word for group in jail.cgroups for word in ("join", str(group))]
    stages = [(str(s), str(p)) for s, p in jail.staged.items() if s in used]
    steps += [word for source, point in stages for word in ("stage", source, point)]
    argv: list[str] = []
    if stages:
        argv += [jail.tools.unshare, "--mount", "--propagation", "private", "--"]
    if steps:
        argv += ["/bin/sh", "-c", _OPENING, "sh", *steps]
    if jail.cpus:
        argv += [jail.tools.taskset, "-c", ",".join(map(str, jail.cpus))]
    if jail.tools.host_uid is not None:
        uid = str(jail.tools.host_uid)
        argv += [jail.tools.setpriv, "--reuid", uid, "--regid", uid, "--clear-groups", "--"]
    argv += [jail.tools.bwrap, "--args", str(options_fd)]
    if status_fd is not None:
        argv += ["--json-status-fd", str(status_fd)]
    return [*argv, "--", *command.argv]


@contextlib.contextmanager
def options_file(options: Sequence[str]) -> Iterator[int]:
    """The options as a NUL-separated in-memory file; yields its descriptor.

    Raises:
        ValueError: an option holds a NUL byte, which would smuggle in further options.
    """
    for option in options:
        if "\0" in option:
            raise ValueError(f"a jail option holds a NUL byte: {option!r:.80}")
    descriptor = os.memfd_create("jail-options", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as sink:
            sink.write(b"".join(os.fsencode(option) + b"\0" for option in options))
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)
