"""Calls that may hang, each given a limited time; one that overruns is left behind in a thread that blocks nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping


class Overran(Exception):
    """The call did not end within its time."""


class _Call[T]:
    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._result: list[T] = []
        self._error: BaseException | None = None
        # A daemon: the interpreter does not wait for it, and the children that it started die with this process.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result.append(self._call())
        except BaseException as error:
            self._error = error

    def result(self, timeout_s: float) -> T:
        self._thread.join(max(0.0, timeout_s))
        if self._error is not None:
            raise self._error
        if not self._result:
            raise Overran
        return self._result[0]


def run_bounded[T](call: Callable[[], T], timeout_s: float) -> T:
    """The call's result; raises what it raised, or `Overran` after `timeout_s` seconds."""
    return _Call(call).result(timeout_s)


def run_together[T](calls: Mapping[str, Callable[[], T]], timeout_s: float) -> dict[str, T]:
    """The results of all calls, made at once; those that failed or did not end within `timeout_s` are left out."""
    started = {name: _Call(call) for name, call in calls.items()}
    deadline = time.monotonic() + timeout_s
    found: dict[str, T] = {}
    for name, running in started.items():
        try:
            found[name] = running.result(deadline - time.monotonic())
        except Exception:
            continue
    return found
