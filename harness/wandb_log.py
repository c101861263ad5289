"""Sends each committed step's numbers to Weights & Biases, when a person asks for it (`GUIDANCE_WANDB=1`).

The `wandb` package runs in a process of its own, fed with JSON lines: whatever it does - wait for a network, print,
fail at exit - cannot slow or end a run.  Only numbers of the step summaries and the run's identity are sent, never a
program, a prompt or a key.  The names of the metrics are documented in docs/wandb.md.

Opening it again on the same state directory resumes the same W&B run: its id is kept in `wandb.json`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from harness.errors import GuidanceError
from harness.redaction import Redactor, without_secrets
from harness.storage import read_json_object, write_json

ID_FILE = "wandb.json"
FOLDER = "wandb"
OPEN_S = 30
"""How long the service may take to open the run; rows wait meanwhile, the search does not."""

CLOSE_S = 15.0
"""How long a run waits at its end until everything is sent."""

ORPHAN_S = 60
"""How long the child may go on sending after its parent has gone."""

INSTALL = "try: uv pip install --python .venv/bin/python 'wandb>=0.19,<0.24'"
METRICS: Mapping[str, str] = {
    "search/best_score": "best_raw_score",
    "search/best_gain": "best_gain",
    "reward/mean": "reward_mean",
    "reward/max": "reward_max",
    "rollouts/sampled": "sampled_rollouts",
    "rollouts/valid": "valid_rollouts",
    "rollouts/well_formed_guidance": "well_formed_guidance",
    "rollouts/quarantined": "quarantined",
    "tokens/policy_prompt": "prompt_tokens",
    "tokens/policy_completion": "completion_tokens",
    "tokens/executor_prompt": "executor_prompt_tokens",
    "tokens/executor_completion": "executor_completion_tokens",
    "cost/usd": "cost_usd",
    "seconds/rollouts": "rollout_s",
    "seconds/training": "train_s",
    "seconds/judge": "judge_s",
}
"""Each metric's name, and the field of a step summary that it shows."""

_PLAIN_NAME = re.compile(r"[\w./-]{1,100}")
_MAX_REASON_CHARS = 200

Warn = Callable[[str], None]


def step_metrics(summary: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a step summary under their documented names; what is unknown is left out."""
    named = {name: summary.get(field) for name, field in METRICS.items()}
    named |= {f"status/{name}": count for name, count in summary.get("statuses", {}).items()}
    named |= {name: value for name, value in summary.get("train_metrics", {}).items() if name.startswith("train/")}
    return {
        name: float(value)
        for name, value in named.items()
        if isinstance(value, int | float) and math.isfinite(value) and _PLAIN_NAME.fullmatch(name)
    }


class WandbLog:
    """One run's rows on their way to W&B.  Every method returns at once, except `close` (at most `close_s` seconds).

    What goes wrong is told once, by `warn`, and ends the logging and nothing else.
    """

    def __init__(
        self, run_dir: Path, opening: Mapping[str, Any], environ: Mapping[str, str], warn: Warn, *, close_s: float
    ) -> None:
        self._run_dir = run_dir
        self._warn = warn
        self._close_s = close_s
        self._redact = Redactor.from_environ(environ)
        self._failure: str | None = None
        self._told = False
        self._opened = False
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._child = subprocess.Popen(
            [sys.executable, "-m", "harness.wandb_log"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=without_secrets(environ, keep=("WANDB_API_KEY",)),
            cwd=Path(__file__).resolve().parent.parent,
            text=True,
            start_new_session=True,  # Ctrl-C stops the search first; what it still has to say is sent afterwards
        )
        self._lines.put(json.dumps(opening))
        self._feeder = threading.Thread(target=self._feed, name="wandb", daemon=True)
        self._feeder.start()

    def step_committed(self, summary: Mapping[str, Any]) -> None:
        """Queue one step's row; steps that W&B already has are left out there."""
        self._lines.put(json.dumps({"step": summary["step"] + 1, "metrics": step_metrics(summary)}))
        self._tell()

    def close(self) -> None:
        """Let the rest be sent, for a bounded time."""
        self._lines.put(None)
        self._feeder.join(self._close_s)
        try:
            self._child.wait(0 if self._feeder.is_alive() else self._close_s)
        except subprocess.TimeoutExpired:
            cure = f"; `wandb sync` sends what is in {self._run_dir / FOLDER}" if self._opened else ""
            self._fail(f"not everything was sent within {self._close_s:g} s{cure or ': it did not open the run'}")
            with contextlib.suppress(ProcessLookupError):  # it may have ended just now
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
        self._feeder.join(1.0)  # bounded: a grandchild may hold the pipe open
        self._tell()

    def _tell(self) -> None:
        if self._failure is not None and not self._told:
            self._told = True
            self._warn(f"W&B logging is off: {self._failure}")

    def _feed(self) -> None:
        """Write the queued lines; runs in a thread, because the pipe may be full for as long as W&B opens."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            with self._child.stdin as pipe, self._child.stdout as answers:
                self._send(pipe, self._lines.get())
                answer = json.loads(answers.readline() or '{"failed": "its process ended"}')
                if (reason := answer.get("failed")) is not None:
                    self._fail(self._redact(" ".join(str(reason).split()))[:_MAX_REASON_CHARS])
                    return
                self._opened = True
                while (line := self._lines.get()) is not None:
                    self._send(pipe, line)
                pipe.close()
                if (code := self._child.wait()) != 0:
                    self._fail(f"its process ended with exit code {code}")
        except (OSError, ValueError) as error:
            self._fail(f"its process does not listen any more ({type(error).__name__})")

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason

    @staticmethod
    def _send(pipe: Any, line: str | None) -> None:
        if line is not None:
            pipe.write(line + "\n")
            pipe.flush()


def open_wandb(
    *,
    project: str,
    name: str,
    run_dir: Path,
    identity: Mapping[str, Any],
    environ: Mapping[str, str],
    warn: Warn,
    close_s: float = CLOSE_S,
) -> WandbLog | None:
    """Begin to log, or say in one line why not and return None.  `identity` becomes the W&B run's configuration."""
    if environ.get("WANDB_MODE", "").strip().lower() == "disabled":
        return None
    try:
        opening = {
            "project": project,
            "name": name,
            "id": stored_run_id(run_dir / ID_FILE),
            "dir": str(run_dir),
            "config": dict(identity),
        }
        return WandbLog(run_dir, opening, environ, warn, close_s=close_s)
    except (GuidanceError, OSError) as error:
        warn(f"W&B logging is off: {error}")
        return None


def stored_run_id(path: Path) -> str:
    """The W&B run that this state directory belongs to; made once.  Raises `StateError`."""
    if path.exists():
        return str(read_json_object(path).get("run_id", ""))
    run_id = uuid.uuid4().hex[:16]
    write_json(path, {"run_id": run_id})
    return run_id


# --- the process that holds the wandb package -------------------------------------------------------------------------


def serve(lines: Sequence[str] | TextIO, answers: TextIO) -> int:
    """Open the run that the first line describes, say so, then log a row for each further line; returns 0 or 1."""
    rows = iter(lines)
    opening = json.loads(next(rows))
    try:
        run = _open(opening)
    except Exception as error:  # whatever the package raises is a reason to go on without it
        print(json.dumps({"failed": f"{type(error).__name__}: {error}"}), file=answers, flush=True)
        return 1
    print(json.dumps({"ready": opening["id"]}), file=answers, flush=True)
    for line in rows:
        row = json.loads(line)
        if row["step"] >= run.starting_step:
            run.log(row["metrics"], step=row["step"])
    signal.alarm(ORPHAN_S)
    run.finish()
    return 0


def _open(opening: Mapping[str, Any]) -> Any:
    try:
        wandb: Any = importlib.import_module("wandb")  # an optional extra, so perhaps without its types
    except ImportError:
        raise RuntimeError(f"the package wandb is not installed; {INSTALL}") from None
    Path(opening["dir"]).mkdir(parents=True, exist_ok=True)
    quiet = {  # numbers only: no console, no code, no machine facts; and no question that nobody answers
        "console": "off",
        "silent": True,
        "save_code": False,
        "disable_code": True,
        "disable_git": True,
        "x_disable_meta": True,
        "x_disable_stats": True,
        "x_disable_machine_info": True,
        "x_save_requirements": False,
        "init_timeout": OPEN_S,
        "login_timeout": OPEN_S,
    }
    known = {name: value for name, value in quiet.items() if name in wandb.Settings.model_fields}
    return wandb.init(
        project=opening["project"],
        name=opening["name"],
        id=opening["id"],
        dir=opening["dir"],
        config=opening["config"],
        resume="allow",
        settings=wandb.Settings(**known),
    )


def main() -> int:
    """`python -m harness.wandb_log`: rows on stdin, one answer on stdout; anything else that prints goes nowhere."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers, sys.stdout = sys.stdout, sys.stderr
    return serve(sys.stdin, answers)


if __name__ == "__main__":
    sys.exit(main())
