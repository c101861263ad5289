"""Which host programs a jail needs, and how to get the ones that are missing."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from harness.errors import GuidanceError

#: The account ("nobody") that jails run as when the harness itself runs as root.
DEFAULT_HOST_UID = 65534

#: Search path for the host side of a launch; jailed commands get their own PATH.
HOST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_PACKAGES = {"bwrap": "bubblewrap", "setpriv": "util-linux", "taskset": "util-linux", "unshare": "util-linux"}


class JailUnavailable(GuidanceError, RuntimeError):
    """This machine cannot build a jail that holds; the message says why and what to do."""


@dataclass(frozen=True)
class JailTools:
    """Absolute paths of the host programs, and the account jails run as.

    `host_uid` is None when jails keep the identity of the harness: always for an ordinary user, and for root only when
    that was asked for explicitly.
    """

    bwrap: str
    setpriv: str
    taskset: str
    unshare: str
    host_uid: int | None
    forbid_nested_namespaces: bool = True
    drop_capabilities: bool = True


def find_tools(host_uid: int | None = DEFAULT_HOST_UID) -> JailTools:
    """Locate bubblewrap and its helpers.

    Args:
        host_uid: account to run jails as when the harness is root; None keeps root's identity (without capabilities).

    Raises:
        JailUnavailable: a program is missing, or this is not Linux.
    """
    if sys.platform != "linux":
        raise JailUnavailable(
            f"the local environment needs Linux namespaces, this is {sys.platform}; use Docker instead"
        )
    found = {name: shutil.which(name, path=HOST_PATH) or shutil.which(name) for name in _PACKAGES}
    missing = [name for name, path in found.items() if path is None]
    for path in ("/usr/bin/tar", "/bin/bash"):
        if not os.access(path, os.X_OK):
            missing.append(Path(path).name)
    if missing:
        packages = " ".join(sorted({_PACKAGES.get(name, name) for name in missing}))
        raise JailUnavailable(
            f"the local environment needs {', '.join(missing)}, not found on this machine; "
            f"install with: apt-get install -y {packages}"
        )
    paths = {name: str(path) for name, path in found.items()}
    return JailTools(
        bwrap=paths["bwrap"],
        setpriv=paths["setpriv"],
        taskset=paths["taskset"],
        unshare=paths["unshare"],
        host_uid=host_uid if os.geteuid() == 0 else None,
        forbid_nested_namespaces=_bwrap_knows(paths["bwrap"], "--disable-userns"),
    )


def _bwrap_knows(bwrap: str, option: str) -> bool:
    """Old bubblewrap versions lack some hardening options; those are used where they exist."""
    shown = subprocess.run([bwrap, "--help"], capture_output=True, text=True, timeout=20, check=False)
    return option in shown.stdout + shown.stderr


def blocked_at(path: Path, uid: int) -> Path | None:
    """The first directory on the way to `path` (included) that a plain account with this uid cannot pass, or None."""
    for place in (*reversed(path.parents), path):
        found = place.stat()
        if not stat.S_ISDIR(found.st_mode):
            continue
        shift = 6 if found.st_uid == uid else 3 if found.st_gid == uid else 0
        if not (found.st_mode >> shift) & 0o1:
            return place
    return None
