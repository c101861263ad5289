"""The command: reads the settings, runs the checks, and shows what they found."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from guidance_ttt.doctor.model import Check, Context, Finding, Level
from guidance_ttt.doctor.probes import Probes
from guidance_ttt.doctor.registry import CHECKS
from guidance_ttt.doctor.runner import Report, run_checks
from guidance_ttt.peek import peek_config
from guidance_ttt.run_health import state_redactor
from guidance_ttt.terminal import emit, one_line, safe_json, visible
from harness.config import RunConfig
from harness.errors import ConfigError
from harness.redaction import Redactor

EXIT_STOPPED = 130
FACT_CHARS = 900
PLAIN_INTERVAL_S = 5.0
_NAME_WIDTH = 14
_INDENT = " " * (9 + _NAME_WIDTH + 2)


def run_doctor(
    environ: Mapping[str, str],
    *,
    offline: bool = False,
    deep: bool = False,
    wait_s: float = 30.0,
    as_json: bool = False,
    checks: Sequence[Check] = CHECKS,
    probes: Probes | None = None,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """Run the checks and print what they find; returns the exit code.  Writes nothing to the state directory."""
    stream, notes = out or sys.stdout, Notes(err or sys.stderr)
    started = time.monotonic()
    config, problem = read_settings(environ)
    redact = Redactor.from_environ(environ) if config is None else state_redactor(config.state_dir, environ)
    context = Context(
        environ=environ,
        config=config,
        profile="local" if config is None else config.profile,
        offline=offline,
        deep=deep,
        wait_s=wait_s,
        probes=probes or Probes(),
        tell=notes.tell,
    )

    def show(finding: Finding) -> None:
        notes.clear()
        if not as_json:
            emit(render_finding(finding, redact), stream)

    try:
        report = run_checks(context, checks, settings_error=problem, show=show)
    except KeyboardInterrupt:
        notes.clear()
        emit("stopped", notes.out)
        return EXIT_STOPPED
    notes.clear()
    elapsed_s = time.monotonic() - started
    emit(render_json(report, elapsed_s, redact) if as_json else summary_line(report, elapsed_s), stream)
    return report.exit_code


def read_settings(environ: Mapping[str, str]) -> tuple[RunConfig | None, ConfigError | None]:
    """The settings, or the error that keeps a run from starting."""
    try:
        return peek_config(environ), None
    except ConfigError as error:
        return None, error


def render_finding(finding: Finding, redact: Callable[[str], str]) -> str:
    """One or two lines: how it stands, and the cure unless it is fine."""
    fact = one_line(redact(finding.fact), FACT_CHARS)
    text = f"{finding.level.value:<9}{finding.check:<{_NAME_WIDTH}}  {fact}"
    return text + (f"\n{_INDENT}cure: {one_line(redact(finding.cure), FACT_CHARS)}" if finding.cure else "")


def render_json(report: Report, elapsed_s: float, redact: Callable[[str], str]) -> str:
    """Everything as one JSON object, without any known secret."""
    return redact(safe_json(report.as_json(elapsed_s)))


def summary_line(report: Report, elapsed_s: float) -> str:
    """The last line: how many of each, and whether a run would start."""
    counts = report.counts
    verdict = "a run would start" if report.exit_code == 0 else "a run would fail; cure the failures first"
    plural = {level: "" if level is Level.OK or counts[level] == 1 else "s" for level in Level}
    numbers = ", ".join(f"{counts[level]} {level.value}{plural[level]}" for level in Level)
    return f"\n{numbers} in {elapsed_s:.1f} s: {verdict}"


class Notes:
    """What is waited for: drawn in place on a terminal, else a plain line now and then."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self._live = out.isatty()
        self._drawn = 0
        self._last_s = -PLAIN_INTERVAL_S

    def tell(self, line: str) -> None:
        """Show a line that the next one replaces."""
        text = visible(" ".join(line.split()))[:200]
        if self._live:
            self.out.write("\r" + text.ljust(self._drawn))
            self.out.flush()
            self._drawn = len(text)
        elif time.monotonic() - self._last_s >= PLAIN_INTERVAL_S:
            self._last_s = time.monotonic()
            emit(text, self.out)

    def clear(self) -> None:
        """Remove the line in place."""
        if self._live and self._drawn:
            self.out.write("\r" + " " * self._drawn + "\r")
            self.out.flush()
            self._drawn = 0
