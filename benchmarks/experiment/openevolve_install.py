"""OpenEvolve in an environment of its own, so that nothing of it can meet this project's packages."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.config import PROJECT_ROOT
from harness.errors import GuidanceError

VERSION = "0.4.0"
DEFAULT_VENV = PROJECT_ROOT / "work" / "peers" / "openevolve"
INSTALL_TIMEOUT_S = 900.0

_LIST_PACKAGES = """
import importlib.metadata, json
print(json.dumps({each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}))
"""


class InstallFailed(GuidanceError):
    """OpenEvolve could not be installed."""


def python_of(venv: Path) -> Path:
    """The environment's interpreter."""
    return venv / "bin" / "python"


def packages(venv: Path) -> dict[str, str]:
    """Name and version of everything in the environment; empty when there is none."""
    if not python_of(venv).exists():
        return {}
    listed = subprocess.run(
        [str(python_of(venv)), "-I", "-c", _LIST_PACKAGES], capture_output=True, text=True, check=False, timeout=60
    )
    return dict(sorted(json.loads(listed.stdout).items())) if listed.returncode == 0 else {}


def ensure_openevolve(venv: Path, say: Callable[[str], None]) -> dict[str, str]:
    """Install the pinned version unless it is there; returns the environment's packages.  Raises `InstallFailed`."""
    found = packages(venv)
    if found.get("openevolve") == VERSION:
        return found
    say(f"installing openevolve {VERSION} into {venv}")
    shutil.rmtree(venv, ignore_errors=True)
    venv.parent.mkdir(parents=True, exist_ok=True)
    for command in install_commands(venv, PROJECT_ROOT / "work" / "tools" / "uv" / "bin" / "uv"):
        _run(command)
    found = packages(venv)
    if found.get("openevolve") != VERSION:
        held = found.get("openevolve", "none")
        raise InstallFailed(f"{venv} holds openevolve {held}, not {VERSION}; remove that folder and try again")
    return found


def install_commands(venv: Path, uv: Path) -> list[list[str]]:
    """With `uv` where the set-up has put it, else with the interpreter's own modules."""
    requirement = f"openevolve=={VERSION}"
    python = str(python_of(venv))
    if uv.is_file():
        return [
            [str(uv), "venv", "--python", sys.executable, str(venv)],
            [str(uv), "pip", "install", "--python", python, requirement],
        ]
    return [[sys.executable, "-m", "venv", str(venv)], [python, "-m", "pip", "install", requirement]]


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise InstallFailed(f"{' '.join(command)} took more than {INSTALL_TIMEOUT_S:g} s; check the network") from None
    if done.returncode != 0:
        raise InstallFailed(f"{' '.join(command)} ended with exit code {done.returncode}:\n{done.stderr[-1500:]}")
