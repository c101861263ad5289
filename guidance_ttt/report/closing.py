"""The report that a run leaves at its end; whatever goes wrong with it is one line and never fails the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from guidance_ttt.bounded import Overran, run_bounded
from guidance_ttt.report import default_output
from guidance_ttt.terminal import one_line

LIMIT_S = 60.0
"""Longer than any report takes, also on a busy machine; a run's result is on the screen before it begins."""


def closing_report(
    state_dir: Path,
    environ: Mapping[str, str],
    *,
    say: Callable[[str], None],
    show: Callable[[str], None] = print,
    limit_s: float = LIMIT_S,
) -> None:
    """Write the report and show its path, as the last of a run's closing lines."""
    try:
        path = run_bounded(lambda: _write(state_dir, environ), limit_s)
    except KeyboardInterrupt:
        say("the report was left out; write it with: guidance-ttt report")
    except Overran:
        say(f"warning: no report was written within {limit_s:g} s; write it with: guidance-ttt report")
    except Exception as error:  # the run is over and its result is safe: a report must not change its exit code
        say(f"warning: no report was written: {one_line(f'{type(error).__name__}: {error}', 300)}")
    else:
        show(report_line(path))


def report_line(path: Path) -> str:
    """The closing line that names a report."""
    return f"report         {path}"


def earlier_report(state_dir: Path, *, show: Callable[[str], None] = print) -> None:
    """Name the report that an earlier start left behind, if there is one."""
    if (path := default_output(state_dir)).is_file():
        show(report_line(path))


def _write(state_dir: Path, environ: Mapping[str, str]) -> Path:
    from guidance_ttt.report.writing import write_report

    return write_report(state_dir, environ=environ).page
