"""Where the Harbor trial runs: Docker, or the local jail after it has shown that it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from guidance_ttt.doctor.model import Context, Finding, failure, ok, warning
from harness.environment_choice import choose_environment
from harness.episode import container_judge
from harness.errors import ConfigError

TRIAL = "trial"
_MEMORY_PROBE_BYTES = 256 << 20
_PROCESS_PROBE = 64


def check_environment(context: Context) -> Iterator[Finding]:
    """Choose as a run would, then try what was chosen."""
    config = context.settings
    try:
        chosen = choose_environment(
            config.environment, judge_url=config.judge_url, container_judge=container_judge(config)
        )
    except ConfigError as error:
        yield failure(TRIAL, str(error), "set GUIDANCE_ENVIRONMENT=local, or start Docker")
        return
    if not chosen:
        yield ok(TRIAL, f"trials run in Docker (GUIDANCE_ENVIRONMENT={config.environment}); its daemon answers")
    else:
        yield from jail_findings(*try_jail(), chosen)


def try_jail() -> tuple[str | None, Mapping[str, str]]:
    """Why no jail holds here (None when one does), and which of its limits this machine cannot enforce."""
    from harness.jail.check import try_to_escape
    from harness.jail.limits import ControlGroups, Limit
    from harness.jail.tools import JailUnavailable, find_tools

    try:
        try_to_escape(find_tools())
    except JailUnavailable as error:
        return str(error), {}
    groups = ControlGroups.create([Limit("pids", _PROCESS_PROBE), Limit("memory", _MEMORY_PROBE_BYTES)])
    try:
        return None, dict(groups.unmet)
    finally:
        groups.remove()


def jail_findings(reason: str | None, unmet: Mapping[str, str], chosen: Mapping[str, Any]) -> Iterator[Finding]:
    """What the try of the jail says."""
    if reason is not None:
        fact, _, cure = reason.partition("; ")
        yield failure(TRIAL, fact, cure or "set GUIDANCE_ENVIRONMENT=docker")
        return
    ways = chosen.get("kwargs", {}).get("forward", {})
    to_judge = ", ".join(f"{name} leads to {target}" for name, target in ways.items())
    yield ok(TRIAL, f"trials run in the local jail, which held against an attempt to escape; in it {to_judge}")
    for controller, why in unmet.items():
        yield warning(
            TRIAL,
            f"the jail's {controller} limit cannot be enforced: {why}",
            "run as root, or let this user make control groups (see the line on them)",
        )
