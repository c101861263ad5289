"""Drives steps to a durable end: search, training barrier, gate, commit - in an order that every crash leaves
resumable.

Commit order of a step, after its grid is reported:

1. the working archive (`library.json`) is written;
2. Reef commits and serves the update (its own durable point);
3. the gate passes and the summary goes to the journal;
4. the archive becomes `committed-library.json`;
5. `resume-state.json` names the next step.

On start the three positions - archive, resume state, Reef - are compared.  A crash between 2 and 5 leaves Reef (and
perhaps the archive) one step ahead, which is repaired from the journal without repeating a call.  Any other
difference is refused.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import StateCorrupt, StateMismatch
from harness.grid import archive_timestep
from harness.journal import RolloutJournal
from harness.library import GuidanceLibrary
from harness.progress import RunProgress
from harness.qualification import expected_step, require_step_success
from harness.rollout import RolloutOutcome
from harness.rollout_log import StepLog
from harness.run_state import ResumeState, RunStateStore
from harness.search import GuidanceSearch, StepResult
from harness.stopping import StopRules
from harness.storage import copy_file
from harness.training_bridge import ServingState, TrainingBridge


@dataclass(frozen=True)
class RunOutcome:
    """What one call of `run` did; steps count from 0.  `stopped` says why it ended before the last step, if it did."""

    start_step: int
    next_step: int
    outcomes: tuple[RolloutOutcome, ...]
    step_summaries: tuple[Mapping[str, Any], ...]
    load_id: str | None
    stopped: str | None = None


class GuidanceRunController:
    """Runs a search up to an absolute number of steps; `policy_frozen` marks a control run (learning rate 0)."""

    def __init__(
        self,
        search: GuidanceSearch,
        bridge: TrainingBridge,
        store: RunStateStore,
        progress: RunProgress,
        *,
        policy_frozen: bool = False,
        stop_rules: StopRules | None = None,
    ) -> None:
        self._search = search
        self._bridge = bridge
        self._store = store
        self._progress = progress
        self._policy_frozen = policy_frozen
        self._stop_rules = stop_rules or StopRules()

    async def run(self, total_steps: int) -> RunOutcome:
        """Run the steps from the saved position up to `total_steps` (absolute, not additional).

        A stop rule may end it earlier.  Raises whatever stops a step; the state directory is resumable then.
        """
        if total_steps < 1:
            raise ValueError(f"total_steps is {total_steps}, at least 1 is needed")
        if self._search.grid.rollouts == 2:
            self._progress.note("two rollouts per group: their advantages are bounded at 32; four or more learn better")
        if self._policy_frozen:
            self._progress.note("control run: the policy is frozen (learning rate 0), no update changes it")
        saved = self._store.load()
        self._progress.run_started(saved.step_summaries, total_steps)
        serving = await self._bridge.state()
        outcomes: list[RolloutOutcome] = []
        state = await self._repair(saved, serving, total_steps)
        while state.next_step < total_steps and self._stop_reason(state) is None:
            step = state.next_step
            async with RolloutJournal(self._store.journal_path(step)) as journal:
                result = await self._search.run_step(step, journal, load_id=serving.load_id, total_steps=total_steps)
                self._search.library.save(self._store.library_path)
                outcomes.extend(result.outcomes)
                self._progress.waiting_for_training(step)
                trained_from = time.monotonic()
                serving = await self._bridge.wait_for_step(step, result.attempt)
                train_s = time.monotonic() - trained_from
                state = await self._commit(state, result, serving, train_s, journal, total_steps)
        stopped = self._stop_reason(state) if state.next_step < total_steps else None
        if stopped is not None:
            self._progress.event("run_stopped", next_step=state.next_step, reason=stopped)
            self._progress.line(f"stopped after step {state.next_step}/{total_steps}: {stopped}")
        return RunOutcome(
            saved.next_step, state.next_step, tuple(outcomes), tuple(state.step_summaries), serving.load_id, stopped
        )

    def _stop_reason(self, state: ResumeState) -> str | None:
        direction = self._search.library.settings.score_direction
        return self._stop_rules.reason(state.step_summaries, grid_size=self._search.grid.size, direction=direction)

    async def _repair(self, saved: ResumeState, serving: ServingState, total_steps: int) -> ResumeState:
        """Bring the three positions together, or refuse."""
        step, archive, reef = saved.next_step, completed_archive_steps(self._search), serving.completed_steps
        if archive == step and reef == step:
            return saved
        if reef == step + 1 and archive in (step, step + 1):
            return await self._finish_trained_step(saved, serving, archive, total_steps)
        raise self._skew(step, archive, reef)

    async def _finish_trained_step(
        self, saved: ResumeState, serving: ServingState, archive: int, total_steps: int
    ) -> ResumeState:
        """Do what a crash left undone after Reef's commit, using nothing but the step's journal."""
        step = saved.next_step
        self._progress.note(f"step {step + 1} was trained but not committed here: finishing it from its journal")
        async with RolloutJournal(self._store.journal_path(step)) as journal:
            summary = StepLog.replay(journal.records()).committed_summary()
            if archive == step + 1 and summary is None:
                raise self._skew(step, archive, serving.completed_steps)
            if archive == step:
                result = await self._search.run_step(step, journal, load_id=None, total_steps=total_steps)
                self._search.library.save(self._store.library_path)
                if summary is None:
                    return await self._commit(saved, result, serving, 0.0, journal, total_steps)
                copy_file(self._store.library_path, self._store.committed_path)
        assert summary is not None
        return self._save(saved, summary, total_steps)

    def _skew(self, step: int, archive: int, reef: int) -> StateMismatch:
        return StateMismatch(
            f"the parts of {self._store.run_dir.parent} disagree about the number of completed steps: "
            f"resume state {step}, archive {archive}, Reef {reef}. Either restore the whole state directory "
            "from one backup, or choose a new GUIDANCE_STATE_DIR to start afresh"
        )

    async def _commit(
        self,
        state: ResumeState,
        result: StepResult,
        serving: ServingState,
        train_s: float,
        journal: RolloutJournal,
        total_steps: int,
    ) -> ResumeState:
        rewards = result.group_rewards(self._search.grid)
        expected = expected_step(result.step, rewards, frozen=self._policy_frozen)
        grad_norm = require_step_success(
            expected,
            actual_rollouts=len(result.outcomes),
            completed_steps=serving.completed_steps,
            metrics=serving.metrics,
        )
        previous = state.step_summaries[-1]["best_raw_score"] if state.step_summaries else None
        summary = step_summary(self._search.library, result, expected.zero_signal, previous)
        summary |= {
            "retained_trajectories": expected.retained,
            "policy_frozen": self._policy_frozen,
            "grad_norm": grad_norm,
            "train_s": round(train_s, 3),
            "train_metrics": dict(serving.metrics),
            "runtime_load_id": serving.load_id,
        }
        await journal.append({"kind": "committed", "attempt": result.attempt, "summary": summary})
        copy_file(self._store.library_path, self._store.committed_path)
        return self._save(state, summary, total_steps)

    def _save(self, state: ResumeState, summary: Mapping[str, Any], total_steps: int) -> ResumeState:
        advanced = ResumeState(state.next_step + 1, (*state.step_summaries, summary))
        self._store.save(advanced)
        self._progress.step_committed(summary, total_steps)
        return advanced


def completed_archive_steps(search: GuidanceSearch) -> int:
    """How many whole steps the archive holds; raises `StateCorrupt` for a part of one."""
    steps, rest = divmod(search.library.submitted_rollouts, search.grid.size)
    if rest:
        raise StateCorrupt(f"the committed archive holds {steps} whole steps and {rest} rollouts of another")
    return steps


def step_summary(
    library: GuidanceLibrary, result: StepResult, zero_signal: bool, previous_best: float | None
) -> dict[str, Any]:
    """The part of a step's summary that the search itself knows; JSON values only."""
    verdicts = [outcome.verdict for outcome in result.outcomes]
    best = library.best_entry()
    baseline = seed_score(library) if previous_best is None else previous_best
    best_score = best.verifier_raw_score if best else None
    found_now = best is not None and best.timestep == archive_timestep(result.step)
    where = None
    if found_now and best is not None:
        where = f"g{str(best.metadata['group_uid']).rsplit(':', 1)[-1]} r{best.metadata['rollout']}"
    return {
        "step": result.step,
        "attempt": result.attempt,
        "elapsed_s": round(result.rollout_s, 3),
        "rollout_s": round(result.rollout_s, 3),
        "sampled_rollouts": len(verdicts),
        "valid_rollouts": sum(verdict.valid for verdict in verdicts),
        "statuses": dict(Counter(verdict.status for verdict in verdicts)),
        "quarantined": sum(bool(verdict.artifacts.get("quarantined")) for verdict in verdicts),
        "well_formed_guidance": sum(outcome.guidance.guidance is not None for outcome in result.outcomes),
        "zero_signal": zero_signal,
        "degenerate_step": zero_signal or not any(verdict.valid for verdict in verdicts),
        "reward_mean": sum(verdict.reward for verdict in verdicts) / len(verdicts),
        "reward_max": max(verdict.reward for verdict in verdicts),
        "best_raw_score": best_score,
        "best_gain": 0.0 if best_score is None or baseline is None or not found_now else best_score - baseline,
        "best_found_at": where,
        "best_entry_id": best.id if best else None,
        "judge_s": judge_seconds([verdict.artifacts for verdict in verdicts]),
        "executor_attempts": sum(outcome.executor_attempts for outcome in result.outcomes),
        "prompt_tokens": sum(outcome.prompt_tokens for outcome in result.outcomes),
        "completion_tokens": sum(outcome.completion_tokens for outcome in result.outcomes),
        "executor_prompt_tokens": sum(outcome.executor_prompt_tokens for outcome in result.outcomes),
        "executor_completion_tokens": sum(outcome.executor_completion_tokens for outcome in result.outcomes),
        "cost_usd": total_cost_usd([outcome.cost_usd for outcome in result.outcomes]),
    }


def total_cost_usd(costs: Sequence[float | None]) -> float | None:
    """The sum; unknown as soon as one part is."""
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def judge_seconds(artifacts: Sequence[Mapping[str, Any]]) -> float | None:
    """How long the judge ran programs, by its own account; unknown when it gives none."""
    told = [item.get("run_seconds") for item in artifacts]
    known = [seconds for seconds in told if isinstance(seconds, int | float)]
    return round(sum(known), 3) if known else None


def seed_score(library: GuidanceLibrary) -> float | None:
    """The raw score of the program the search began with."""
    entry = library.entry_of(library.roots()[0])
    return entry.verifier_raw_score if entry else None
