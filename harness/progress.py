"""What a person and a machine see of a running search: a live line, one line per step, and JSON events.

The live line is drawn in place on a terminal and left out elsewhere (a log would only fill with it); there, a plain
line appears now and then instead.  A quiet run prints only what a person should act on.  Events always go to
`events.jsonl`; docs/state.md lists their kinds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

from harness.lanes import Lane
from harness.storage import AppendFile

PLAIN_INTERVAL_S = 20.0
LIVE_INTERVAL_S = 0.2
EVENT_INTERVAL_S = 5.0


SPENT = ("prompt_tokens", "completion_tokens", "executor_prompt_tokens", "executor_completion_tokens")
"""The kinds of tokens in a step's summary: the policy's, then the executor's."""


class StepSink(Protocol):
    """Something else that follows the committed steps; neither call may raise or take long."""

    def step_committed(self, summary: Mapping[str, Any]) -> None:
        """Take in one step's summary; the steps of earlier launches come first."""

    def close(self) -> None:
        """No more steps will come."""


class RunProgress:
    """Events and lines of one run.  Not a store: nothing here is read back to resume."""

    def __init__(
        self,
        events_path: Path | None,
        out: TextIO | None = None,
        *,
        score_label: str = "score",
        quiet: bool = False,
    ) -> None:
        self._quiet = quiet
        self._sinks: list[StepSink] = []
        self._committed: list[Mapping[str, Any]] = []
        self._out = out or sys.stdout
        self._score_label = score_label
        self._events = open_events(events_path) if events_path is not None else None
        self._lanes: Sequence[Lane] = ()
        self._total = 0
        self._done = 0
        self._drawn = 0
        self._last_drawn_s = self._last_event_s = 0.0
        self._live = self._out.isatty()

    # -- events and plain lines

    def event(self, name: str, **fields: Any) -> None:
        """Append one JSON event with the wall-clock time."""
        if self._events is None:
            return
        record = {"event": name, "time": utc_now(), **fields}
        line = json.dumps(record, sort_keys=True, allow_nan=False, default=str) + "\n"
        self._events.append(line.encode(), durable=False)

    def line(self, text: str) -> None:
        """Print one lasting line, unless the run is quiet."""
        if not self._quiet:
            self.warning(text)

    def warning(self, text: str) -> None:
        """Print one lasting line even in a quiet run."""
        self._erase()
        print(text, file=self._out, flush=True)

    def note(self, text: str) -> None:
        """Print and record something a person should know (a repair, a stray setting), even in a quiet run."""
        self.event("note", text=text)
        self.warning(f"  {text}")

    # -- the run

    def attach(self, sink: StepSink) -> None:
        """Let something else follow the steps; attach it before the run starts."""
        self._sinks.append(sink)

    def run_started(self, summaries: Sequence[Mapping[str, Any]], total_steps: int) -> None:
        """Begin, or go on after the steps of these summaries."""
        self.event("run_started", next_step=len(summaries), total_steps=total_steps)
        for summary in summaries:
            self._follow(summary)

    def _follow(self, summary: Mapping[str, Any]) -> None:
        self._committed.append(summary)
        for sink in self._sinks:
            sink.step_committed(summary)

    # -- a step's rollouts

    def step_started(self, step: int, total_steps: int, rollouts: int, resumed: int, lanes: Sequence[Lane]) -> None:
        """Begin the live line of one step; `resumed` rollouts were finished by an earlier process."""
        self._lanes, self._total, self._done = lanes, rollouts, resumed
        self._last_drawn_s = self._last_event_s = time.monotonic()
        self.event("guidance_step_started", step=step, total_steps=total_steps, rollouts=rollouts, resumed=resumed)

    def rollout_finished(self) -> None:
        """Count one more finished rollout."""
        self._done += 1
        self.refresh()

    def waiting_for_training(self, step: int) -> None:
        """Say that the grid is complete and the update is awaited."""
        self._lanes = ()
        self.event("guidance_step_reported", step=step)
        self._draw("training: waiting for Reef to commit the update")

    def refresh(self) -> None:
        """Redraw the live line and record where the rollouts wait, each at a bounded rate."""
        now = time.monotonic()
        if now - self._last_event_s >= EVENT_INTERVAL_S and self._lanes:
            self._last_event_s = now
            lanes_now = {lane.name: {"active": lane.active, "queued": lane.waiting} for lane in self._lanes}
            self.event("rollouts_waiting", done=self._done, rollouts=self._total, lanes=lanes_now)
        if now - self._last_drawn_s < (LIVE_INTERVAL_S if self._live else PLAIN_INTERVAL_S):
            return
        self._last_drawn_s = now
        lanes = "  ".join(str(lane) for lane in self._lanes)
        self._draw(f"rollouts {self._done}/{self._total} | {lanes}")

    def step_committed(self, summary: Mapping[str, Any], total_steps: int) -> None:
        """Print the step's line and record its summary, with what the run has spent in all."""
        self._follow(summary)
        sums = totals(self._committed)
        self.event("guidance_step_committed", **summary, totals=sums)
        self.line(step_line(summary, total_steps, self._score_label, sums))

    def close(self) -> None:
        """Let the sinks finish, leave the terminal on a fresh line and close the event log."""
        for sink in self._sinks:
            sink.close()
        self._sinks = []
        self._erase()
        if self._events is not None:
            self._events.close()
            self._events = None

    def _draw(self, text: str) -> None:
        if self._quiet:
            return
        if not self._live:
            print(f"  {text}", file=self._out, flush=True)
            return
        self._out.write("\r" + text.ljust(self._drawn))
        self._out.flush()
        self._drawn = len(text)

    def _erase(self) -> None:
        if self._live and self._drawn:
            self._out.write("\r" + " " * self._drawn + "\r")
            self._drawn = 0


def open_events(path: Path) -> AppendFile:
    """The event log, without a last line that a killed process left unfinished."""
    events = AppendFile(path)
    complete_bytes = events.read().rfind(b"\n") + 1
    if complete_bytes < events.size_bytes:
        events.truncate(complete_bytes)
    return events


def step_line(
    summary: Mapping[str, Any], total_steps: int, score_label: str, sums: Mapping[str, Any] | None = None
) -> str:
    """The lasting report of one step, two lines of text; `sums` are the run's `totals` so far."""
    best, gain = summary["best_raw_score"], summary["best_gain"]
    where = summary.get("best_found_at")
    gained = f" ({gain:+.2f}, {where})" if gain else " (no new best)"
    statuses: Mapping[str, int] = summary["statuses"]
    verdicts = "  ".join(f"{name} {count}" for name, count in sorted(statuses.items(), key=_status_order))
    metrics: Mapping[str, Any] = summary["train_metrics"]
    shown = "  ".join(
        f"{label} {float(metrics[name]):.4g}"
        for label, name in (("kl", "train/kl"), ("grad", "train/grad_norm"), ("ratio", "train/importance_ratio"))
        if isinstance(metrics.get(name), int | float)
    )
    best_text = "none" if best is None else f"{best:.4f}"
    return (
        f"step {summary['step'] + 1}/{total_steps}  best {score_label} {best_text}{gained}  {verdicts}\n"
        f"           reward mean {summary['reward_mean']:.3f} max {summary['reward_max']:.3f}  "
        f"guidance {summary['well_formed_guidance']}/{summary['sampled_rollouts']} well-formed  {shown}  "
        f"{spent(summary, sums)}rollouts {summary['rollout_s']:.0f}s  train {summary['train_s']:.0f}s"
        + (f"  quarantined {summary['quarantined']}" if summary.get("quarantined") else "")
        + ("  (no learning signal: all groups constant)" if summary["zero_signal"] else "")
    )


def totals(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a run has spent so far, over all its launches; None is unknown, because one step is."""

    def total(name: str) -> float | None:
        known = [value for summary in summaries if (value := summary.get(name)) is not None]
        return sum(known) if len(known) == len(summaries) else None

    counted = (*SPENT, "sampled_rollouts", "rollout_s", "train_s", "judge_s", "cost_usd")
    return {"steps": len(summaries), **{name: total(name) for name in counted}}


def spent(summary: Mapping[str, Any], sums: Mapping[str, Any] | None = None) -> str:
    """Tokens and money of a step, as a part of its line; nothing for a step that was recorded without them."""
    if any(kind not in summary for kind in SPENT):
        return ""
    tokens, cost = sum(summary[kind] for kind in SPENT), summary.get("cost_usd")
    money = "cost unknown  " if cost is None else f"${cost:.2f}  " if cost else ""
    if cost and sums is not None:
        total = sums["cost_usd"]
        money = f"${cost:.2f} (total {'unknown' if total is None else f'${total:.2f}'})  "
    return f"tokens {short_count(tokens)}  {money}"


def short_count(count: int) -> str:
    """1234567 -> 1.2M, for a line that is read at a glance."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.1f}{letter}"
    return str(count)


def _status_order(item: tuple[str, int]) -> tuple[bool, str]:
    return item[0] != "valid", item[0]


def utc_now() -> str:
    """The time as ISO 8601, in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
