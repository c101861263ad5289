"""Whether a run is live, whether its services answer, and what went wrong last; read from its directory and /proc.

Nothing here takes the run's lock, so that a look never stands in the way of a run that is just starting.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from guidance_ttt import ports
from guidance_ttt.bounded import run_together
from guidance_ttt.services import log_tail
from harness.errors import StateCorrupt
from harness.redaction import Redactor
from harness.storage import LOCK_NAME, process_start_s, read_json_object

PROBE_S = 0.8
PROBES_TOGETHER_S = 1.0
_START_TOLERANCE_S = 2.0
_EVENTS_BYTES = 256 * 1024
_COMPLAINT = re.compile(r"\b(?:\w*(?:error|exception)|traceback|fatal|killed|out of memory)\b", re.IGNORECASE)
_PORT_OPTION = re.compile(rb"--port (\d{1,5})\b")
_REEF_PORT = re.compile(r"^reef:\n(?:  .*\n)*?  port: '?(\d{1,5})'?$", re.MULTILINE)
_HEALTH_PATHS = {"judge": "/health", "executor": "/health", "reef": "/healthz"}


# --- the process that holds the directory -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Holder:
    """The process that last took the directory's lock; `live` is None where this machine cannot tell."""

    pid: int
    host: str
    started_s: float
    live: bool | None

    def describe(self) -> str:
        """A few words for a person."""
        since = datetime.fromtimestamp(self.started_s, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        if self.live is None:
            return f"held by process {self.pid} on {self.host} since {since}; this machine cannot tell whether it lives"
        if self.live:
            return f"live: process {self.pid} since {since}"
        return f"not running; the last one (process {self.pid}, {since}) ended without giving the directory back"


def read_holder(run_dir: Path) -> Holder | None:
    """Who holds the directory, or None when nobody does."""
    path = run_dir / LOCK_NAME
    try:
        if not path.read_bytes().strip():
            return None
        value = read_json_object(path)
        pid, host, started_s = int(value["pid"]), str(value["host"]), float(value["process_start_s"])
    except (OSError, StateCorrupt, KeyError, TypeError, ValueError):
        return None  # never taken, or being written just now
    if host != socket.gethostname():
        return Holder(pid, host, started_s, None)
    return Holder(pid, host, started_s, _is_that_process(pid, started_s))


def _is_that_process(pid: int, started_s: float) -> bool:
    now_s = process_start_s(pid)
    if now_s is not None:
        return abs(now_s - started_s) < _START_TOLERANCE_S and not _is_zombie(pid)
    if Path("/proc/self").exists():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return True


# --- services ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServiceHealth:
    """One local service of the last launch and whether it answers now."""

    name: str
    url: str
    answers: bool
    detail: str

    def as_json(self) -> dict[str, Any]:
        """The same facts as plain JSON values."""
        return {"name": self.name, "url": self.url, "answers": self.answers, "detail": self.detail}


def service_urls(state_dir: Path) -> dict[str, str]:
    """Health URL of each service that the last launch started here, as its logs and Reef's own record say."""
    logs = state_dir / "stack" / "logs"
    found = {}
    for name, path in _HEALTH_PATHS.items():
        log = logs / f"{name}.log"
        if log.is_file() and (port := _reef_port(state_dir) if name == "reef" else _started_port(log, name)):
            found[name] = f"http://127.0.0.1:{port}{path}"
    return found


def probe_services(urls: Mapping[str, str]) -> list[ServiceHealth]:
    """Ask all of them at once; bounded at about a second whatever they do."""
    answers = run_together({name: partial(_probe, name, url) for name, url in urls.items()}, PROBES_TOGETHER_S)
    silent = f"takes connections but says nothing within {PROBES_TOGETHER_S:g} s"
    return [answers.get(name) or ServiceHealth(name, url, False, silent) for name, url in urls.items()]


def _probe(name: str, url: str) -> ServiceHealth:
    answer = ports.fetch(url, PROBE_S)
    if answer is not None:
        good = answer[0] == 200
        return ServiceHealth(name, url, good, "answers" if good else f"answers HTTP {answer[0]}")
    port = int(url.rsplit(":", 1)[1].split("/")[0])
    free = ports.is_free("127.0.0.1", port)
    return ServiceHealth(name, url, False, "not running" if free else "takes connections but gives no answer")


def _started_port(log: Path, name: str) -> int | None:
    """The port in the line with which the launcher began the newest part of a log."""
    start = f"=== {name} started ".encode()
    try:
        with log.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            begin = content.rfind(start)
            end = content.find(b"\n", begin)
            line = content[begin : end if end > 0 else len(content)] if begin >= 0 else b""
    except (OSError, ValueError):  # ValueError: an empty log cannot be mapped
        return None
    match = _PORT_OPTION.search(line)
    return int(match[1]) if match else None


def _reef_port(state_dir: Path) -> int | None:
    try:
        text = (state_dir / "stack" / "reef" / "runtime.yaml").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    match = _REEF_PORT.search(text)
    return int(match[1]) if match else None


# --- what happened ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecentEvents:
    """What the end of the event log tells: the asked-for total, and an end that no later progress has outdated."""

    total_steps: int | None = None
    error: Mapping[str, Any] | None = None
    stopped: str | None = None


def recent_events(run_dir: Path) -> RecentEvents:
    """Read the last part of `events.jsonl`; lines that are no event are left out."""
    total: int | None = None
    error: Mapping[str, Any] | None = None
    stopped: str | None = None
    for event in _event_tail(run_dir / "events.jsonl"):
        kind = event.get("event")
        if kind == "guidance_step_started":
            error = stopped = None
            asked = event.get("total_steps")
            total = asked if isinstance(asked, int) and not isinstance(asked, bool) else total
        elif kind == "guidance_step_committed":
            error = None
        elif kind == "run_failed":
            error = {key: str(event.get(key, "")) for key in ("time", "error", "message")}
        elif kind == "run_stopped":
            stopped = str(event.get("reason", ""))
    return RecentEvents(total, error, stopped)


def _event_tail(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open("rb") as stream:
            cut = max(0, path.stat().st_size - _EVENTS_BYTES)
            stream.seek(cut)
            lines = stream.read().split(b"\n")
    except OSError:
        return []
    events = []
    for line in lines[1 if cut else 0 :]:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            events.append(value)
    return events


def log_complaint(state_dir: Path, name: str, redact: Redactor) -> str | None:
    """The last line of a service's newest log part that sounds like an error, or None."""
    text = log_tail(state_dir / "stack" / "logs" / f"{name}.log", lines=200)
    newest = text.rsplit(f"=== {name} started ", 1)[-1].splitlines()
    return next((redact(line.strip()) for line in reversed(newest[1:]) if _COMPLAINT.search(line)), None)


def state_redactor(state_dir: Path, environ: Mapping[str, str]) -> Redactor:
    """Hides the environment's credentials and the directory's own Reef token."""
    try:
        token = [(state_dir / "stack" / "reef-token").read_text(encoding="ascii")]
    except (OSError, UnicodeDecodeError):
        token = []
    return Redactor.from_environ(environ, token)
