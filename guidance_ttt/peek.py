"""The settings that a run started now would have, read without touching anything.

`RunConfig.load` makes the state directory's Reef token when it is not there yet; a look must not.  Nor may a missing
executor key hide everything else: whoever looks reports the key for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.config import PROJECT_ROOT, RunConfig

NO_TOKEN = "no-token-yet"
"""Stands for the Reef token of a state directory that has none yet."""

NO_KEY = "no-key-given"
DEFAULT_KEY_NAME = "OPENROUTER_API_KEY"


def peek_config(environ: Mapping[str, str], *, root: Path = PROJECT_ROOT) -> RunConfig:
    """The settings; raises `ConfigError` as a run would, except for a missing executor key.  Writes nothing."""
    return trace_config(environ, root=root)[0]


def trace_config(environ: Mapping[str, str], *, root: Path = PROJECT_ROOT) -> tuple[RunConfig, set[str]]:
    """The settings, and the names of the variables that were asked for while reading them."""
    traced = TracedEnviron(stand_in_environ(environ, root))
    return RunConfig.load(traced, root=root), traced.asked


def stand_in_environ(environ: Mapping[str, str], root: Path) -> dict[str, str]:
    """The environment with a token and an executor key filled in where a run would make or miss them."""
    filled = dict(environ)
    if not filled.get("GUIDANCE_REEF_TOKEN", "").strip():
        filled["GUIDANCE_REEF_TOKEN"] = state_token(environ, root) or NO_TOKEN
    for name in (filled.get("GUIDANCE_EXECUTOR_KEY_ENV", "").strip(), DEFAULT_KEY_NAME):
        if name and not filled.get(name, "").strip():
            filled[name] = NO_KEY
    return filled


def state_token(environ: Mapping[str, str], root: Path) -> str | None:
    """The Reef token that the state directory already has."""
    task = environ.get("GUIDANCE_TASK", "").strip() or "polyomino_packing"
    state_dir = root / Path(environ.get("GUIDANCE_STATE_DIR", "").strip() or f"work/{task}").expanduser()
    try:
        return (state_dir / "stack" / "reef-token").read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


class TracedEnviron(Mapping[str, str]):
    """An environment that remembers which variables were asked for with `get`, as the settings' reader does."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        self.asked: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        """Look up one variable and remember that it was asked for."""
        self.asked.add(name)
        return self._environ.get(name, default)

    def __getitem__(self, name: str) -> str:
        return self._environ[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._environ)

    def __len__(self) -> int:
        return len(self._environ)
