"""Proof that a jail holds on this machine, tried before the first trial rather than assumed.

Having bubblewrap proves little: as root and with its capabilities kept, jailed code remounts a read-only bind writable
and writes to the host.  So the exact command line that trials use is started once with a canary directory that only
the read-only bind protects, and the jailed script does its best to write there.
"""

from __future__ import annotations

import functools
import subprocess
import threading
from pathlib import Path

from harness.jail.command import Bind, Jail, JailCommand, bwrap_options, launch_argv, options_file
from harness.jail.image import build_skeleton, hand_over
from harness.jail.python import JailPython
from harness.jail.space import TrialSpace
from harness.jail.tools import HOST_PATH, JailTools, JailUnavailable

_TIMEOUT_S = 30
_CANARY = "/jail/canary"
_ATTEMPTS = f"""
touch {_CANARY}/plain
mount -o remount,bind,rw {_CANARY} && touch {_CANARY}/remounted
unshare --user --map-root-user --mount sh -c 'mount -o remount,bind,rw {_CANARY} && touch {_CANARY}/nested'
umount {_CANARY}
echo jailed >&3
"""

_LOCK = threading.Lock()


@functools.cache
def _checked(tools: JailTools, state_root: Path | None) -> None:
    try_to_escape(tools, state_root)


def check_jail(tools: JailTools, state_root: Path | None = None) -> None:
    """Run the escape attempt once per process and set of tools; a failure is tried again at the next call.

    Raises:
        JailUnavailable: no jail can be built, or it does not hold.
    """
    with _LOCK:
        _checked(tools, state_root)


def try_to_escape(tools: JailTools, state_root: Path | None = None) -> None:
    """Start a jail whose script tries to write where it may only read.

    Raises:
        JailUnavailable: see `check_jail`.
    """
    space = TrialSpace.create(state_root, tools.host_uid)
    try:
        canary = space.run / "canary"
        canary.mkdir()
        canary.chmod(0o777)
        build_skeleton(space.root, JailPython(executable="/usr/bin/python3"))
        (space.root / _CANARY.lstrip("/")).mkdir()
        hand_over(space.root, tools.host_uid)
        answer = _run(Jail(tools, space.root, binds=(Bind(canary, _CANARY),)))
    except subprocess.TimeoutExpired as error:
        raise JailUnavailable(
            f"a jail did not start within {_TIMEOUT_S} s on this machine; use Docker instead"
        ) from error
    else:
        written = sorted(path.name for path in canary.iterdir())
    finally:
        space.remove()
    if written:
        raise JailUnavailable(
            f"the jail does not hold on this machine: its script wrote {written} to a read-only directory of the host; "
            "nothing is run in it. Use Docker, or run as an ordinary user"
        )
    if answer.returncode != 0 or "jailed" not in answer.stdout:
        raise JailUnavailable(_explain(answer.stderr, tools))


def _run(jail: Jail) -> subprocess.CompletedProcess[str]:
    # `touch` and friends complain on stderr by design, so the last line's success is told on stdout (as descriptor 3).
    script = f"exec 3>&1 >/dev/null 2>&1\n{_ATTEMPTS}"
    command = JailCommand(("/bin/bash", "-c", script), env={"PATH": HOST_PATH})
    with options_file(bwrap_options(jail, command)) as descriptor:
        return subprocess.run(
            launch_argv(jail, command, descriptor),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            cwd="/",
            env={"PATH": HOST_PATH},
            pass_fds=(descriptor,),
            timeout=_TIMEOUT_S,
            check=False,
            start_new_session=True,
        )


def _explain(stderr: str, tools: JailTools) -> str:
    """One line with the likeliest cure; user namespaces switched off is by far the most common cause."""
    said = " ".join(stderr.split())[:300] or "it ended without a word"
    cure = "use Docker instead"
    if "namespace" in said or "Operation not permitted" in said or "Permission denied" in said:
        cure = (
            "allow unprivileged user namespaces (sysctl -w kernel.unprivileged_userns_clone=1, "
            "kernel.apparmor_restrict_unprivileged_userns=0, user.max_user_namespaces=10000; in a container: a seccomp "
            "profile that permits them), or use Docker instead"
        )
    who = "" if tools.host_uid is None else f" as uid {tools.host_uid}"
    return f"bubblewrap cannot build a jail{who} on this machine: {said}; {cure}"
