"""Runs one command and makes sure that nothing of it outlives its owner; started as a script, standard library only.

The owner (see `services.py`) holds the other end of this process's standard input and never writes to it.  When the
owner goes away in any manner, SIGKILL included, that input ends and the guard takes the whole command down.  As the
"subreaper" of everything below it, the guard also finds grandchildren that moved to a session of their own.

    guard.py GRACE_S COMMAND...

SIGTERM, SIGHUP or the end of input: SIGTERM to the command's process group, SIGKILL after GRACE_S seconds (SIGQUIT: at
once), then every descendant that is left.  SIGINT: passed on to the command.  Exit code: the command's; 128 + N when
signal N ended it; 127 when it could not be started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SWEEP_LIMIT_S = 10.0
SWEEP_TERM_S = 2.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def prctl(option: int, value: int) -> None:
    """Call Linux's prctl(2); elsewhere, and on failure, do nothing: the guard then only loses one safety net."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Every process below `root`, deepest last; empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # it ended meanwhile
        state, parent = stat.rpartition(")")[2].split()[:2]
        if state != "Z":
            children.setdefault(int(parent), []).append(int(entry.name))
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


class Guard:
    """One command, its owner's lifeline and the signals in between."""

    def __init__(self, argv: list[str], grace_s: float) -> None:
        self._grace_s = grace_s
        self._stopping = False
        self._at_once = False
        self._interrupts = 0
        self._owner_gone = False
        self._status: int | None = None
        self._wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(self._wake_read, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (*STOP_SIGNALS, signal.SIGQUIT, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, self._on_signal)
        self._child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            process_group=0,
            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # in case this guard itself is killed
        )

    def run(self) -> int:
        """Wait for the command or for a reason to stop it; returns the exit code."""
        passed_on = 0
        while self._status is None:
            self._wait(1.0)
            if self._stopping or self._owner_gone:
                self._stop()
                break
            if self._interrupts > passed_on:
                passed_on = self._interrupts
                self._signal(self._child.pid, signal.SIGINT)
        self._sweep()
        return self._exit_code()

    def _on_signal(self, number: int, _frame: object) -> None:
        if number in STOP_SIGNALS:
            self._stopping = True
        elif number == signal.SIGQUIT:
            self._stopping = self._at_once = True
        elif number == signal.SIGINT:
            self._interrupts += 1

    def _wait(self, timeout_s: float) -> None:
        """Sleep until something happens; collect ended children and notice the end of the lifeline."""
        watched = [self._wake_read] if self._owner_gone else [self._wake_read, 0]
        ready = select.select(watched, [], [], timeout_s)[0]
        if self._wake_read in ready:
            while True:
                try:
                    os.read(self._wake_read, 512)
                except BlockingIOError:
                    break
        if 0 in ready and not os.read(0, 512):
            self._owner_gone = True
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._child.pid:
                self._status = self._child.returncode = os.waitstatus_to_exitcode(status)

    def _stop(self) -> None:
        self._signal(-self._child.pid, signal.SIGTERM)
        deadline = time.monotonic() + self._grace_s
        while self._status is None and not self._at_once and (left_s := deadline - time.monotonic()) > 0:
            self._wait(min(left_s, 0.5))
        self._signal(-self._child.pid, signal.SIGKILL)
        hard_deadline = time.monotonic() + SWEEP_LIMIT_S
        while self._status is None and time.monotonic() < hard_deadline:
            self._wait(0.5)

    def _sweep(self) -> None:
        """End what the command left behind: politely for a moment, then for certain."""
        start = time.monotonic()
        asked: set[int] = set()
        while (left := descendants(os.getpid())) and time.monotonic() - start < SWEEP_LIMIT_S:
            polite = time.monotonic() - start < SWEEP_TERM_S and not self._at_once
            for pid in left:
                if not polite:
                    self._signal(pid, signal.SIGKILL)
                elif pid not in asked:
                    asked.add(pid)
                    self._signal(pid, signal.SIGTERM)
            self._wait(0.05)
        self._reap()

    def _signal(self, target: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if target < 0:
                os.killpg(-target, number)
            else:
                os.kill(target, number)

    def _exit_code(self) -> int:
        if self._status is None:
            return 128 + signal.SIGKILL
        return self._status if self._status >= 0 else 128 - self._status


def main(argv: list[str]) -> int:
    """Run the command line described in the module docstring."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        guard = Guard(argv[2:], float(argv[1]))
    except OSError as error:
        print(f"cannot start {argv[2]}: {error.strerror or error}", file=sys.stderr)
        return 127
    return guard.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
