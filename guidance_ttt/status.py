"""Where a run stands, live or finished, read from its state directory: no service has to run.

The archive is not read (it may hold hundreds of megabytes): the position, the unfinished step's journal, the lock and
the ends of two logs are enough.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from guidance_ttt.run_health import (
    Holder,
    ServiceHealth,
    log_complaint,
    probe_services,
    read_holder,
    recent_events,
    service_urls,
    state_redactor,
)
from guidance_ttt.step_progress import StepPosition, read_position
from guidance_ttt.terminal import emit, one_line, safe_json, visible
from harness.errors import StateCorrupt, StateError
from harness.storage import read_json_object

WATCH_INTERVAL_S = 2.0


@dataclass(frozen=True)
class RunStatus:
    """The facts of one state directory; `best_raw_score` is None while nothing valid was found.  Steps count from 1."""

    state_dir: Path
    task: str | None
    steps_done: int
    best_raw_score: float | None
    best_program: Path | None
    policy_frozen: bool = False
    total_steps: int | None = None
    best_step: int | None = None
    holder: Holder | None = None
    position: StepPosition | None = None
    services: Sequence[ServiceHealth] = ()
    last_error: Mapping[str, Any] | None = None
    stopped: str | None = None
    """Why the run ended before its last step (a budget, a target), until it goes on."""
    problems: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def live(self) -> bool | None:
        """Whether a run holds the directory now; None when that cannot be told from here."""
        return False if self.holder is None else self.holder.live

    @property
    def next_command(self) -> str:
        """What to type to go on: to the total that was asked for, or one more step when that is reached."""
        settings = {"GUIDANCE_TASK": self.task} if self.task else {}
        if self.policy_frozen:
            settings["GUIDANCE_FREEZE_POLICY"] = "1"
        settings |= {"GUIDANCE_STATE_DIR": str(self.state_dir), **self.settings}
        settings["GUIDANCE_STEPS"] = str(max(self.steps_done + 1, self.total_steps or 0))
        return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in settings.items()), "./run.sh"])

    def as_json(self) -> dict[str, Any]:
        """The same facts as plain JSON values."""
        holder = self.holder
        return {
            "state_dir": str(self.state_dir),
            "task": self.task,
            "policy_frozen": self.policy_frozen,
            "steps_done": self.steps_done,
            "total_steps": self.total_steps,
            "best_raw_score": self.best_raw_score,
            "best_step": self.best_step,
            "best_program": None if self.best_program is None else str(self.best_program),
            "live": self.live,
            "holder": None if holder is None else {"pid": holder.pid, "host": holder.host, "live": holder.live},
            "current_step": None if self.position is None else self.position.as_json(),
            "services": [service.as_json() for service in self.services],
            "stopped": self.stopped,
            "last_error": None if self.last_error is None else dict(self.last_error),
            "problems": list(self.problems),
            "next_command": self.next_command,
        }


# --- reading ----------------------------------------------------------------------------------------------------------


def read_status(state_dir: Path, *, ask_services: bool = False) -> RunStatus:
    """Read a state directory; raises `StateError` when it holds no run and `StateCorrupt` for an unreadable one.

    `ask_services` also asks the local services of the last launch, for about a second at most.
    """
    run_dir = state_dir / "guidance-run"
    if not run_dir.is_dir():
        raise StateError(f"{state_dir} holds no run; start one with ./run.sh, or name another with --state-dir")
    identity_path, resume_path = run_dir / "task-identity.json", run_dir / "resume-state.json"
    identity = read_json_object(identity_path) if identity_path.is_file() else {}
    resume = read_json_object(resume_path) if resume_path.is_file() else {"next_step": 0, "step_summaries": []}
    steps, summaries = resume.get("next_step"), resume.get("step_summaries")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0 or not isinstance(summaries, list):
        raise StateCorrupt(f"{resume_path} is not a resume state: next_step is {steps!r}")
    last = summaries[-1] if summaries and isinstance(summaries[-1], dict) else {}
    best = last.get("best_raw_score")
    task = identity.get("task")
    status = RunStatus(
        state_dir=state_dir,
        task=task if isinstance(task, str) else None,
        steps_done=steps,
        best_raw_score=best if isinstance(best, int | float) and not isinstance(best, bool) else None,
        policy_frozen=resume.get("policy_frozen") is True,
        best_program=next((path for path in sorted(run_dir.glob("best.*")) if path.suffix in (".cpp", ".py")), None),
        best_step=_step_of_best(summaries),
        holder=read_holder(run_dir),
        settings=_bound_settings(identity, resume.get("executor_backend")),
    )
    return _with_activity(status, run_dir, identity.get("rollouts_per_group"), ask_services=ask_services)


def _with_activity(status: RunStatus, run_dir: Path, rollouts: object, *, ask_services: bool) -> RunStatus:
    """Add what happens within the step and beside it; a damaged part is named and hides nothing else."""
    problems = []
    position = None
    if isinstance(rollouts, int) and not isinstance(rollouts, bool) and rollouts > 0:
        try:
            position = read_position(run_dir, status.steps_done + 1, rollouts)
        except StateCorrupt as error:
            problems.append(str(error))
    events = recent_events(run_dir)
    redact = state_redactor(status.state_dir, os.environ)
    failed = None if events.error is None else {key: redact(str(value)) for key, value in events.error.items()}
    urls = service_urls(status.state_dir) if ask_services else {}
    services = probe_services(urls)
    if status.live or failed is not None:
        for service in services:
            complaint = None if service.answers else log_complaint(status.state_dir, service.name, redact)
            if complaint is not None:
                problems.append(f"{service.name}'s log: {complaint}")
    return replace(
        status,
        total_steps=events.total_steps,
        position=position,
        services=services,
        last_error=failed,
        stopped=events.stopped,
        problems=[redact(text) for text in problems],
    )


def _step_of_best(summaries: Sequence[Any]) -> int | None:
    """The step (from 1) after which the present best was first the best; None when the seed still is."""
    found = [item.get("best_entry_id") if isinstance(item, dict) else None for item in summaries]
    if not found or found[-1] is None:
        return None
    first = found.index(found[-1])
    gained = summaries[first].get("best_gain")
    return first + 1 if gained else None


def _bound_settings(identity: Mapping[str, Any], backend: object) -> dict[str, str]:
    """Settings that differ from the defaults and without which a continuation would be refused."""
    found = {}
    for name, key, default in (
        ("GUIDANCE_GROUPS", "groups_per_step", 2),
        ("GUIDANCE_ROLLOUTS", "rollouts_per_group", 4),
        ("GUIDANCE_RUN_SEED", "run_seed", 1),
    ):
        value = identity.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value != default:
            found[name] = str(value)
    executor, model = identity.get("executor"), identity.get("executor_model")
    if executor == "openrouter_glm_5_2":
        found["GUIDANCE_EXECUTOR"] = "openrouter"
    elif executor == "gpt_oss_120b":
        found["GUIDANCE_EXECUTOR"] = "local"
    elif executor == "openai" and isinstance(model, str):
        known = backend if isinstance(backend, Mapping) else {}
        found |= {"GUIDANCE_EXECUTOR": "openai", "GUIDANCE_EXECUTOR_MODEL": model}
        for name, key in (("GUIDANCE_EXECUTOR_URL", "base_url"), ("GUIDANCE_EXECUTOR_KEY_ENV", "api_key_env")):
            if isinstance(known.get(key), str):
                found[name] = known[key]
    return found


# --- showing ----------------------------------------------------------------------------------------------------------


def render_status(status: RunStatus) -> str:
    """A few lines for a person."""
    best = "none yet" if status.best_raw_score is None else f"{status.best_raw_score:g}"
    if status.best_raw_score is not None and status.best_step is not None:
        best += f" (found in step {status.best_step})"
    of_total = f" of {status.total_steps}" if (status.total_steps or 0) > status.steps_done else ""
    lines = [
        f"task       {status.task or 'unknown'}",
        f"state      {status.state_dir}",
        f"run        {'not running' if status.holder is None else status.holder.describe()}",
        f"steps      {status.steps_done} done{of_total}",
        f"best       {best}",
    ]
    if status.policy_frozen:
        lines.append("policy     frozen: a control run, no update changes it")
    if status.position is not None:
        lines.append(f"now        {status.position.describe()}")
    elif status.live:
        lines.append("now        between steps: starting, or scoring the best program")
    lines += _service_lines(status)
    if status.stopped is not None:
        lines.append(f"stopped    {status.stopped}")
    if status.last_error is not None:
        error = status.last_error
        lines.append(f"error      {error['time']} {error['error']}: {one_line(error['message'], 600)}")
    lines += [f"problem    {one_line(text, 400)}" for text in status.problems]
    if status.best_program is not None:
        lines.append(f"program    {status.best_program}")
    lines.append(f"continue   {status.next_command}")
    return visible("\n".join(lines))


def _service_lines(status: RunStatus) -> list[str]:
    """A live run's services; otherwise only what answers, which may belong to another run on the same ports."""
    if status.live and status.services:
        return ["services   " + "  ".join(f"{item.name}: {item.detail}" for item in status.services)]
    answering = [item.url for item in status.services if item.answers]
    return [f"services   something answers at {', '.join(answering)}"] if answering else []


def status_line(status: RunStatus) -> str:
    """The changing facts on one line, for a log."""
    best = "none" if status.best_raw_score is None else f"{status.best_raw_score:g}"
    now = "idle" if status.position is None else status.position.describe()
    down = [item.name for item in status.services if not item.answers] if status.live else []
    return (
        f"{'live' if status.live else 'not running'}  steps {status.steps_done}  best {best}  {now}"
        + (f"  not answering: {', '.join(down)}" if down else "")
        + (f"  error: {one_line(status.last_error['message'], 200)}" if status.last_error else "")
    )


def watch(
    read: Callable[[], RunStatus],
    out: TextIO | None = None,
    *,
    as_json: bool = False,
    pause: Callable[[], None] = lambda: time.sleep(WATCH_INTERVAL_S),
) -> None:
    """Show the status again and again until Ctrl-C: in place on a terminal, else a line whenever something changed.

    A state that cannot be read raises at the first look; later (a file is just being replaced) it is shown and retried.
    """
    stream = out or sys.stdout
    in_place = stream.isatty() and not as_json
    status = read()
    drawn = 0
    before = ""
    try:
        while True:
            text = safe_json(status.as_json(), indent=None) if as_json else status_line(status)
            if in_place:
                block = render_status(status) + "\n(Ctrl-C ends the watch, not the run)"
                emit((f"\x1b[{drawn}F\x1b[J" if drawn else "") + block, stream)
                drawn = _rows(block)
            elif text != before:
                emit(text, stream)
                before = text
            pause()
            try:
                status = read()
            except StateError as error:
                status = replace(status, problems=[str(error)])
    except KeyboardInterrupt:
        return


def _rows(block: str) -> int:
    """Terminal rows that a block takes, wrapped lines counted."""
    try:
        width = os.get_terminal_size().columns
    except OSError:
        width = 80
    return sum(max(1, -(-len(line) // max(width, 1))) for line in block.split("\n"))
