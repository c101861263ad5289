"""What a check gets and what it says."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from guidance_ttt.doctor.probes import Probes

if TYPE_CHECKING:
    from harness.config import RunConfig

DEFAULT_LIMIT_S = 20.0


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    """Checked and fine, or nothing that stands in the way."""
    WARNING = "warning"
    """A run starts, but something was not checked or may disappoint later."""
    FAILURE = "failure"
    """A run would fail."""


@dataclass(frozen=True)
class Finding:
    """One fact about one thing, with what to do about it unless it is fine."""

    check: str
    level: Level
    fact: str
    cure: str = ""


def ok(check: str, fact: str) -> Finding:
    """A fact that stands in nobody's way."""
    return Finding(check, Level.OK, fact)


def warning(check: str, fact: str, cure: str) -> Finding:
    """Something that may disappoint, with its cure."""
    return Finding(check, Level.WARNING, fact, cure)


def failure(check: str, fact: str, cure: str) -> Finding:
    """Something that a run would fail on, with its cure."""
    return Finding(check, Level.FAILURE, fact, cure)


def _nothing(line: str) -> None:
    pass


@dataclass(frozen=True)
class Context:
    """What the user asked for and the means to find out; `tell` shows that something is waited for."""

    environ: Mapping[str, str]
    config: RunConfig | None = None
    profile: str = "local"
    offline: bool = False
    deep: bool = False
    wait_s: float = 30.0
    probes: Probes = field(default_factory=Probes)
    tell: Callable[[str], None] = _nothing

    @property
    def on_gpus(self) -> bool:
        """Whether Reef's Slime runtime trains and serves the policy, and not this project's own engine."""
        return self.profile == "gpu" if self.config is None else self.config.trains_over_ray

    @property
    def settings(self) -> RunConfig:
        """The settings; only for checks that are registered as needing them."""
        assert self.config is not None
        return self.config


CheckFunction = Callable[[Context], Iterable[Finding]]


@dataclass(frozen=True)
class Check:
    """One registered check: its name in the output, what to run, and for how many seconds at most.

    `target` is "module:function" below this package, so that an area that cannot even be imported is a failure line.
    """

    name: str
    target: str | CheckFunction
    limit_s: Callable[[Context], float] = lambda context: DEFAULT_LIMIT_S
    needs_settings: bool = True
    applies: Callable[[Context], bool] = lambda context: True

    def resolve(self) -> CheckFunction:
        """The function; imports its module."""
        if not isinstance(self.target, str):
            return self.target
        module, _, name = self.target.partition(":")
        function: CheckFunction = getattr(importlib.import_module(f"guidance_ttt.doctor.{module}"), name)
        return function
