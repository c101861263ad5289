"""One step of the search: pick the parents, run the whole grid, archive the results.

All rollouts are in flight at once, each held back only by its service's lane.  The first fault of a service stops the
step and cancels the rest; what was already journalled is kept and the step goes on from there next time.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.contract import TaskContract
from harness.errors import GuidanceError, StateMismatch
from harness.grid import Grid, Slot, archive_timestep, group_uid
from harness.journal import RolloutJournal
from harness.lanes import Lane
from harness.library import GuidanceLibrary
from harness.progress import RunProgress
from harness.prompts import Prompt
from harness.rollout import Attempt, Parent, RolloutOutcome, RolloutRunner, Services
from harness.rollout_log import RolloutProgress, StepLog
from harness.state import LibraryEntry

PromptBuilder = Callable[[LibraryEntry], Prompt]


@dataclass(frozen=True)
class StepResult:
    """A complete grid, group by group, already submitted to the archive."""

    step: int
    attempt: int
    outcomes: Sequence[RolloutOutcome]
    rollout_s: float

    def group_rewards(self, grid: Grid) -> list[list[float]]:
        """Rewards by group, each of length R."""
        rewards = [outcome.verdict.reward for outcome in self.outcomes]
        return [rewards[start : start + grid.rollouts] for start in range(0, len(rewards), grid.rollouts)]


class GuidanceSearch:
    """Runs steps over one archive; owns no durable position (see `harness.run_controller`)."""

    def __init__(
        self,
        *,
        services: Services,
        library: GuidanceLibrary,
        contract: TaskContract,
        grid: Grid,
        run_seed: int,
        build_prompt: PromptBuilder,
        progress: RunProgress,
    ) -> None:
        self.library = library
        self.grid = grid
        self._services = services
        self._contract = contract
        self._run_seed = run_seed
        self._build_prompt = build_prompt
        self._progress = progress

    @property
    def lanes(self) -> tuple[Lane, Lane, Lane]:
        """The three lanes, in the order of a rollout."""
        return self._services.policy_lane, self._services.executor_lane, self._services.judge_lane

    async def run_step(
        self, step: int, journal: RolloutJournal, *, load_id: str | None, total_steps: int
    ) -> StepResult:
        """Run, or finish, the grid of `step` (from 0) under the weights `load_id`; `None` accepts any (a replay).

        Raises the first service fault; the journal then holds everything that was finished.
        """
        started = time.monotonic()
        log = StepLog.replay(journal.records())
        parents = self._parents(step)
        attempt, resumed = await self._attempt(step, journal, log, parents, load_id)
        runner = RolloutRunner(self._services, journal, self._contract, self.grid, attempt, self._run_seed)
        progress = {slot: log.progress(slot.group, slot.rollout) for slot in self.grid.slots()} if resumed else {}
        finished = sum(done.reported for done in progress.values())
        self._progress.step_started(step, total_steps, self.grid.size, finished, self.lanes)
        outcomes = await self._run_all(runner, parents, progress)
        for outcome in outcomes:
            self.library.submit_child(
                group_uid(step, outcome.slot.group), runner.entry(outcome), node_id=runner.node_id(outcome.slot)
            )
        return StepResult(step, attempt.number, outcomes, time.monotonic() - started)

    def _parents(self, step: int) -> list[Parent]:
        """Select all parents before any rollout; the same archive always selects the same ones."""
        parents = []
        for group in range(self.grid.groups):
            node = self.library.acquire_group(
                group_uid(step, group), visible_timestep_exclusive=archive_timestep(step), require_solution=True
            )
            entry = self.library.entry(node.entry_id or "")
            parents.append(Parent(node.id, entry, self._build_prompt(entry)))
        return parents

    async def _attempt(
        self, step: int, journal: RolloutJournal, log: StepLog, parents: Sequence[Parent], load_id: str | None
    ) -> tuple[Attempt, bool]:
        """The attempt to go on with (and True), or a new one that voids an attempt made under other weights."""
        chosen = [{"group": g, "group_uid": group_uid(step, g), "node_id": p.node_id} for g, p in enumerate(parents)]
        current = log.current()
        if current is not None:
            if list(current.parents) != chosen:
                raise StateMismatch(
                    f"the journal of step {step + 1} chose other parents than the archive does now; "
                    "the state directory was changed by hand: restore it or choose a new GUIDANCE_STATE_DIR"
                )
            if load_id is None or current.load_id == load_id:
                return Attempt(step, current.number), True
            reason = f"Reef serves other weights now ({current.load_id} -> {load_id})"
            await journal.append({"kind": "void", "attempt": current.number, "reason": reason})
            self._progress.note(f"step {step + 1}: attempt {current.number} is void: {reason}")
        if load_id is None:
            raise StateMismatch(
                f"Reef has already trained step {step + 1}, but its journal holds no rollouts; "
                "restore the state directory from a backup or choose a new GUIDANCE_STATE_DIR"
            )
        number = log.next_attempt()
        await journal.append(
            {
                "kind": "attempt",
                "attempt": number,
                "step": step,
                "load_id": load_id,
                "release_id": None,
                "parents": chosen,
            }
        )
        return Attempt(step, number), False

    async def _run_all(
        self, runner: RolloutRunner, parents: Sequence[Parent], progress: Mapping[Slot, RolloutProgress]
    ) -> list[RolloutOutcome]:
        async def one(slot: Slot) -> RolloutOutcome:
            done = progress.get(slot) or RolloutProgress()
            outcome = await runner.run(slot, parents[slot.group], done)
            if not done.reported:  # the others were counted when the step started
                self._progress.rollout_finished()
            return outcome

        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(one(slot)) for slot in self.grid.slots()]
        except BaseExceptionGroup as faults:
            raise first_fault(faults) from None
        return [task.result() for task in running]


def first_fault(faults: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one exception to show: a programming error before a service's fault, identical faults counted once."""
    leaves = list(_leaves(faults))
    unexpected = [leaf for leaf in leaves if not isinstance(leaf, GuidanceError)]
    if unexpected:
        return unexpected[0]
    counts = Counter((type(leaf), str(leaf)) for leaf in leaves)
    first = leaves[0]
    count = counts[type(first), str(first)]
    if count > 1:
        return type(first)(f"{first} ({count} rollouts met the same)")
    return first


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found
