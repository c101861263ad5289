"""Faults put into a running service from outside: the process tree is killed, or a call fails, at one named call.

A test names a function as the code looks it up, for example `tttd.local.training_runtime:write_checkpoint`, and the
call before or after which the fault happens.  The service itself is the product's, unchanged: its process only listens
on a FIFO (see `listen`) for the fault to put in.  `PushFault` is a hook that git runs.

    python -m support.faults ROOT     kills the process ROOT and everything below it; for hooks that git runs
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from support.processes import descendants

ROOT_VARIABLE = "FAULT_ROOT"
"""The id of the process at the top of the tree that a kill takes down."""

FIFO_VARIABLE = "FAULT_FIFO"


@dataclass(frozen=True)
class Fault:
    """What goes wrong, and at which call.

    Only calls with an argument whose text holds `text` are counted.  `kill` takes the process tree down with SIGKILL
    at the call numbered `call`; `raise` makes this and every later call fail.
    """

    where: str
    when: Literal["before", "after"] = "before"
    call: int = 1
    text: str = ""
    action: Literal["kill", "raise"] = "kill"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Fault:
        return cls(**json.loads(text))


@dataclass(frozen=True)
class PushFault:
    """The power goes while a push updates refs below `refs`: git holds their lock files at that moment.

    `arm` puts a hook into the bare repository; it fires once, when the reference transaction is prepared.
    """

    refs: str

    def arm(self, repository: Path) -> None:
        hook = repository / "hooks" / "reference-transaction"
        hook.write_text(
            f"""#!/bin/sh
[ "$1" = prepared ] || exit 0
while read -r _old _new ref; do
    case "$ref" in {self.refs}*) rm -f "$0"; exec {sys.executable} -m support.faults "${ROOT_VARIABLE}" ;; esac
done
"""
        )
        hook.chmod(0o755)


class InjectedError(OSError):
    """The error of a call that was made to fail, as a disk or a network would make it fail."""


_installed: list[tuple[Any, str, Any]] = []


def install(fault: Fault) -> None:
    """Put the fault around the function it names."""
    module, _, path = fault.where.partition(":")
    *owners, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    original = getattr(owner, name)
    _installed.append((owner, name, original))
    setattr(owner, name, _guarded(original, fault))


def remove_all() -> None:
    """Make everything work again."""
    while _installed:
        owner, name, original = _installed.pop()
        setattr(owner, name, original)


def _guarded(function: Callable[..., Any], fault: Fault) -> Callable[..., Any]:
    seen = 0
    lock = threading.Lock()

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        if fault.text and not any(fault.text in str(value) for value in (*args, *kwargs.values())):
            return function(*args, **kwargs)
        with lock:
            seen += 1
            number = seen
        if fault.action == "raise" and number >= fault.call:
            raise InjectedError(f"injected into {fault.where}")
        due = fault.action == "kill" and number == fault.call
        if due and fault.when == "before":
            power_cut()
        result = function(*args, **kwargs)
        if due:
            power_cut()
        return result

    return guarded


def power_cut(root: int | None = None) -> None:
    """Kill `root` (this service's whole tree by default) and everything below it, this process last."""
    top = int(os.environ.get(ROOT_VARIABLE, os.getpid())) if root is None else root
    for pid in (top, *descendants(top)):
        if pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def listen() -> None:
    """From now on put in every fault that is written to the FIFO, one JSON line each; an empty line removes them all.

    Touches `<fifo>.done` after each.
    """
    fifo = Path(os.environ[FIFO_VARIABLE])

    def serve() -> None:
        while True:
            with fifo.open(encoding="utf-8") as lines:
                for line in lines:
                    if line.strip():
                        install(Fault.from_json(line))
                    else:
                        remove_all()
                    fifo.with_suffix(".done").touch()

    threading.Thread(target=serve, name="faults", daemon=True).start()


if __name__ == "__main__":
    power_cut(int(sys.argv[1]))
