"""The ports of the services that a run starts: free, or held by whom."""

from __future__ import annotations

from collections.abc import Iterator

from guidance_ttt.doctor.model import Context, Finding, failure, ok, warning
from guidance_ttt.doctor.probes import Probes
from guidance_ttt.plan import plan_from_config
from guidance_ttt.run_health import read_holder
from guidance_ttt.services import PROBE_TIMEOUT_S, ServiceSpec

PORTS = "ports"


def check_ports(context: Context) -> Iterator[Finding]:
    """Each service of the launch plan."""
    config = context.settings
    holder = read_holder(config.run_dir)
    live = holder is not None and holder.live is True
    reuse = context.environ.get("GUIDANCE_REUSE_SERVICES", "").strip() == "1"
    for spec in plan_from_config(config, context.environ).services:
        yield port_finding(spec, context.probes, live=live, reuse=reuse)


def port_finding(spec: ServiceSpec, probes: Probes, *, live: bool, reuse: bool) -> Finding:
    """One port; a service of this project on it is fine while its run is live or when it is to be used."""
    where = f"port {spec.port} ({spec.name})"
    if probes.port_is_free(spec.host, spec.port):
        return ok(PORTS, f"{where} is free")
    who = probes.port_holder(spec.port) or "another process"
    answer = probes.fetch(spec.reuse_url or spec.health_url, PROBE_TIMEOUT_S)
    answers = answer is not None and answer[0] == 200 and spec.identity != "" and spec.identity in answer[1]
    if answers or _is_starting(spec, str(who)):
        if live or reuse:
            return ok(PORTS, f"{where} is held by {who}, which belongs to this project")
        return warning(
            PORTS,
            f"{where} is held by {who}, which belongs to this project but not to a run",
            "set GUIDANCE_REUSE_SERVICES=1 to use it, or stop it",
        )
    if live:
        return ok(PORTS, f"{where} is held by {who}, and a run is live")
    return failure(
        PORTS, f"{where} is held by {who}", f"stop that process, or choose another port with {spec.port_setting}"
    )


def _is_starting(spec: ServiceSpec, holder: str) -> bool:
    """Whether the holder is a service of this kind that does not answer yet: it was started by the same module."""
    return spec.identity != "" and spec.argv[1:2] == ("-m",) and f" -m {spec.argv[2]} " in holder
