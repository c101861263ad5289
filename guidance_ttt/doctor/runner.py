"""Runs the checks one after another, each within its time, and keeps every fault inside its own line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from guidance_ttt.bounded import Overran, run_bounded
from guidance_ttt.doctor.model import Check, Context, Finding, Level, failure
from harness.errors import ConfigError, GuidanceError

SETTING_CURE = "correct the setting (docs/configuration.md lists them all)"
EXIT_FINE, EXIT_FAILURES, EXIT_SETTINGS = 0, 1, 2


@dataclass(frozen=True)
class Report:
    """Everything that was found."""

    findings: tuple[Finding, ...]
    wrong_setting: bool

    @property
    def counts(self) -> dict[str, int]:
        """How many findings there are of each level."""
        found = Counter(finding.level for finding in self.findings)
        return {level.value: found[level] for level in Level}

    @property
    def exit_code(self) -> int:
        """0 without failures, 2 for a wrong setting, else 1."""
        if self.wrong_setting:
            return EXIT_SETTINGS
        return EXIT_FAILURES if self.counts[Level.FAILURE] else EXIT_FINE

    def as_json(self, elapsed_s: float) -> dict[str, Any]:
        """One JSON object with everything."""
        return {
            "ok": self.exit_code == EXIT_FINE,
            "exit_code": self.exit_code,
            "counts": self.counts,
            "elapsed_s": round(elapsed_s, 3),
            "findings": [
                {"check": item.check, "level": item.level.value, "fact": item.fact, "cure": item.cure}
                for item in self.findings
            ],
        }


def run_checks(
    context: Context,
    checks: Sequence[Check],
    *,
    settings_error: ConfigError | None = None,
    show: Callable[[Finding], None] = lambda finding: None,
) -> Report:
    """Run what applies; `show` gets each finding as soon as it is known.

    With a wrong setting only the checks that need none are run.
    """
    found: list[Finding] = []
    wrong_setting = settings_error is not None

    def add(finding: Finding) -> None:
        found.append(finding)
        show(finding)

    if settings_error is not None:
        add(failure("settings", str(settings_error), SETTING_CURE))
    for check in checks:
        if (context.config is None and check.needs_settings) or not check.applies(context):
            continue
        findings, wrong = run_check(check, context)
        wrong_setting = wrong_setting or wrong
        for finding in findings:
            add(finding)
    return Report(tuple(found), wrong_setting)


def run_check(check: Check, context: Context) -> tuple[list[Finding], bool]:
    """The findings of one check, whatever happens in it, and whether it met a wrong setting."""
    limit_s = check.limit_s(context)
    found: list[Finding] = []
    wrong_setting = False

    def collect() -> None:
        for finding in check.resolve()(context):  # one by one: a crash keeps what came before it
            found.append(finding)

    try:
        run_bounded(collect, limit_s)
    except Overran:
        found.append(failure(check.name, f"not finished after {limit_s:g} s", "try again; a disk or service may hang"))
    except ConfigError as error:
        wrong_setting = True
        found.append(failure(check.name, str(error), SETTING_CURE))
    except GuidanceError as error:
        found.append(failure(check.name, str(error), "see docs/troubleshooting.md"))
    except Exception as error:
        fact = f"the check itself failed: {type(error).__name__}: {error}"
        found.append(failure(check.name, fact, "report it, with this line"))
    return list(found), wrong_setting
