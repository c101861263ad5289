"""The Python that jailed scripts find: the system's, or else the harness's own interpreter at a neutral path.

Graders are started as `python3 -I /tests/grade.py` and use the standard library only, so any Python 3 does.  A machine
may have none below /usr (pyenv, uv, conda); then the base installation behind the running interpreter is shown
read-only under `/jail/python`, and a small script `/jail/bin/python3` starts it.  `/jail/bin` is last on the PATH.
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PythonChoice = Literal["auto", "system", "bundled"]

#: Where the bundled installation appears in the jail, and the directory of its launcher.
BUNDLED_PREFIX = "/jail/python"
BUNDLED_BIN = "/jail/bin"

_SYSTEM_PLACES = ("/usr/local/bin/python3", "/usr/bin/python3")


@dataclass(frozen=True)
class JailPython:
    """How `python3` is started in the jail; `prefix` is the host directory to show there, None for the system's."""

    executable: str
    prefix: Path | None = None
    launcher: str | None = None


def choose_python(choice: PythonChoice = "auto") -> JailPython:
    """Pick the system's Python where it is visible through /usr, else bundle the one that runs this code.

    Raises:
        ValueError: an unknown choice, or "system" where there is none.
    """
    if choice not in ("auto", "system", "bundled"):
        raise ValueError(f"environment kwarg python is {choice!r}; it may be 'auto', 'system' or 'bundled'")
    system = next((place for place in _SYSTEM_PLACES if _is_below_usr(place)), None)
    if choice != "bundled" and system is not None:
        return JailPython(executable=system)
    if choice == "system":
        raise ValueError("environment kwarg python is 'system', but no python3 was found; apt-get install -y python3")
    prefix = Path(sys.base_prefix).resolve()
    binary = f"bin/python{sys.version_info.major}.{sys.version_info.minor}"
    if not os.access(prefix / binary, os.X_OK):
        raise ValueError(
            f"no {binary} in {prefix} to show inside the jail; install one with: apt-get install -y python3"
        )
    # A build with a shared libpython finds it by an absolute path of the host, which means nothing in the jail.
    launcher = (
        "#!/bin/sh\n"
        f"export LD_LIBRARY_PATH={BUNDLED_PREFIX}/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\n"
        f'exec {shlex.quote(f"{BUNDLED_PREFIX}/{binary}")} "$@"\n'
    )
    return JailPython(executable=f"{BUNDLED_BIN}/python3", prefix=prefix, launcher=launcher)


def _is_below_usr(place: str) -> bool:
    """Only /usr is shown in the jail, so a link that leads elsewhere does not count."""
    return os.access(place, os.X_OK) and str(Path(place).resolve()).startswith("/usr/")
