"""`./run.sh` after the set-up: bring the local services up, run the search with them, take everything down again.

Settings come from `harness.config.RunConfig`; this module only turns them into command lines and supervises.  The run
itself is `run.py`, a child process, so that a service that ends can stop it in an orderly way.

Exit codes: the run's own; 1 when a service or a preparation failed; 2 for a wrong setting; 130 after Ctrl-C; 143 after
SIGTERM.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Self

from guidance_ttt.plan import LaunchPlan, MachineLacks, plan_from_config, prepare_model, require_profile, require_task
from guidance_ttt.report.closing import closing_report, earlier_report
from guidance_ttt.services import GuardedProcess, Stack
from harness.config import RunConfig
from harness.episode import recall
from harness.errors import ConfigError, GuidanceError, RunCancelled
from harness.redaction import Redactor

POLL_S = 0.2
RUN_GRACE_S = 60.0
"""How long the run may take to save its state and leave after it was asked to stop."""

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_SETTINGS = 2
EXIT_MISSING = 3
_SECRET_ENDINGS = ("KEY", "TOKEN", "SECRET", "PASSWORD")


class SignalDesk:
    """Counts the signals that ask this process to stop; the first is a request, the second means at once."""

    def __init__(self) -> None:
        self.count = 0
        self.first: int | None = None
        self._previous: dict[int, object] = {}

    @property
    def stop_requested(self) -> bool:
        """Whether any signal has come."""
        return self.count > 0

    @property
    def hurried(self) -> bool:
        """Whether the user has asked twice."""
        return self.count > 1

    @property
    def exit_code(self) -> int:
        """128 + the first signal, as a shell reports it."""
        return 128 + (self.first or signal.SIGINT)

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # started with nohup: a closed terminal must not end the run
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)  # type: ignore[arg-type]

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.first = self.first or number


def launch(environ: Mapping[str, str], *, say: Callable[[str], None]) -> int:
    """Prepare, start the services, run, stop; returns the exit code.  Raises `GuidanceError` for what goes wrong."""
    config = RunConfig.load(environ)
    if recall(config):
        earlier_report(config.state_dir)
        return 0
    require_task(config, environ)
    require_profile(config)
    plan = plan_from_config(config, environ)
    tell = hush if config.quiet else say
    prepare_model(config, environ, say=tell)
    for note in plan.notes:
        tell(note)
    redact = Redactor.from_environ(environ, [config.token])
    with SignalDesk() as desk:
        stack = Stack(
            plan.services,
            say=tell,
            redact=redact,
            reuse=environ.get("GUIDANCE_REUSE_SERVICES", "").strip() == "1",
            cancelled=lambda: desk.stop_requested,
            hurry=lambda: desk.hurried,
        )
        try:
            with stack:
                code = supervise(plan, stack, desk, say=say, resume=resume_command(environ))
        except RunCancelled as error:
            say(str(error))
            return desk.exit_code
    if code == EXIT_DONE:
        closing_report(config.state_dir, environ, say=say)
    return code


def hush(line: str) -> None:
    """What a quiet run makes of a line that asks nobody to act."""


def supervise(plan: LaunchPlan, stack: Stack, desk: SignalDesk, *, say: Callable[[str], None], resume: str) -> int:
    """Run the search while the services live; returns the exit code."""
    child = GuardedProcess(plan.run_argv, env=plan.run_env, cwd=plan.cwd, grace_s=RUN_GRACE_S)
    try:
        while (code := child.poll()) is None:
            if desk.stop_requested:
                say("stopping: the run saves its state first (Ctrl-C again stops at once)")
                wait_for_exit(child, desk)
                say(f"continue with: {resume}")
                return desk.exit_code
            if (ended := stack.watch()) is not None:
                say(f"{ended.describe()}\nstopping the run; finished work is kept")
                wait_for_exit(child, desk)
                say(f"continue with: {resume}")
                return EXIT_FAILED
            time.sleep(POLL_S)
        if code != 0:
            if (ended := stack.watch()) is not None:  # the run may notice a lost service before this loop does
                say(ended.describe())
            say(f"the run ended with exit code {code}; continue with: {resume}")
        return code
    finally:
        child.finish(lambda: desk.hurried)


def wait_for_exit(child: GuardedProcess, desk: SignalDesk) -> None:
    """Ask the run to stop as Ctrl-C does and give it time; return early when the user asks again."""
    child.interrupt()
    deadline = time.monotonic() + RUN_GRACE_S
    asked_before = max(desk.count, 1)
    while child.poll() is None and time.monotonic() < deadline and desk.count <= asked_before:
        time.sleep(0.05)
    if child.poll() is None:
        child.terminate()


def resume_command(environ: Mapping[str, str]) -> str:
    """The command that continues this run: `./run.sh` with the settings given by environment, secrets left out."""
    settings = [
        f"{name}={'...' if '@' in value else shlex.quote(value)}"  # a URL may hold a password
        for name, value in sorted(environ.items())
        if name.startswith("GUIDANCE_") and value.strip() and not name.endswith(_SECRET_ENDINGS)
    ]
    return " ".join([*settings, "./run.sh"])


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m guidance_ttt.launch`: everything is set by environment, so there are no arguments."""
    arguments = list(sys.argv[1:] if argv is None else argv)

    def say(line: str) -> None:
        print(f"guidance-ttt: {line}", file=sys.stderr, flush=True)

    if arguments:
        say(f"error: unexpected argument {arguments[0]!r}; settings are environment variables (see ./run.sh --help)")
        return EXIT_SETTINGS
    try:
        return launch(dict(os.environ), say=say)
    except ConfigError as error:
        say(f"error: {error}")
        return EXIT_SETTINGS
    except MachineLacks as error:
        say(f"error: {error}")
        return EXIT_MISSING
    except GuidanceError as error:
        say(f"error: {error}")
        return EXIT_FAILED
    except KeyboardInterrupt:  # during the preparation, before anything is running
        say("stopped")
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
