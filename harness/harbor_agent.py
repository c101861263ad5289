"""The Harbor agent: one trial owns one whole search and submits its best program.

The search runs on the host; the environment only receives the final program, so a candidate never runs in it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from harness.assembly import Run, open_run
from harness.config import RunConfig
from harness.contract import TaskContract
from harness.errors import GuidanceError, StateCorrupt
from harness.progress import RunProgress, utc_now
from harness.remeasure import ROUNDS, Remeasured, remeasure, steadiest
from harness.rollout import RolloutOutcome
from harness.run_controller import RunOutcome
from harness.run_state import run_identity
from harness.state import LibraryEntry
from harness.storage import write_json, write_text
from harness.trajectory import RolloutRecord, SubmissionRecord, TrajectoryTotals, build_trajectory
from harness.wandb_log import open_wandb

WORKSPACE = "/workspace"


class HarborAgent(BaseAgent):
    """Runs the search that the environment (`GUIDANCE_*`) configures."""

    SUPPORTS_ATIF = True

    def __init__(self, logs_dir: Path, model_name: str | None = None, **kwargs: Any) -> None:
        super().__init__(logs_dir=logs_dir, model_name=model_name, **kwargs)
        self._config = RunConfig.load(os.environ)

    @staticmethod
    def name() -> str:
        """The agent's name in trial records."""
        return "guidance-ttt"

    def version(self) -> str | None:
        """The package's version."""
        from importlib.metadata import version

        return version("guidance-ttt")

    async def setup(self, environment: BaseEnvironment) -> None:
        """Nothing to install: the search runs outside the environment."""

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        """Search, then write the best program into the environment and the trajectory beside the logs."""
        config = self._config
        contract = TaskContract.load(config.task_dir / "contract.json", problem_prompt=instruction)
        events = config.run_dir / "events.jsonl"
        progress = RunProgress(events, score_label=contract.raw_score_label, quiet=config.quiet)
        try:
            async with open_run(config, contract, progress, os.environ) as run:
                follow_in_wandb(config, contract, progress)
                outcome = await run.controller.run(config.steps)
                fill_context(context, outcome)
                best = await choose_program(run, progress, config.remeasured_programs)
                submission = await submit(best, run, environment)
        except GuidanceError as error:
            progress.event("run_failed", error=type(error).__name__, message=str(error))
            raise
        finally:
            progress.close()
        trajectory = build_trajectory(
            session_id=str(self.session_id),
            trajectory_id=str(self.context_id),
            agent_name=self.name(),
            agent_version=self.version() or "unknown",
            model_name=config.model_name,
            instruction=instruction,
            rollouts=[rollout_record(item) for item in outcome.outcomes],
            submission=submission,
            totals=TrajectoryTotals(context.n_input_tokens, context.n_output_tokens),
        )
        write_json(Path(self.logs_dir) / "trajectory.json", trajectory)


def follow_in_wandb(config: RunConfig, contract: TaskContract, progress: RunProgress) -> None:
    """Send the steps' numbers to W&B as well, when `GUIDANCE_WANDB` asks for it."""
    if config.wandb_project is None:
        return
    log = open_wandb(
        project=config.wandb_project,
        name=config.state_dir.name,
        run_dir=config.run_dir,
        identity=run_identity(config, contract, {}),
        environ=os.environ,
        warn=progress.note,
    )
    if log is not None:
        progress.attach(log)


async def choose_program(run: Run, progress: RunProgress, remeasured: int) -> LibraryEntry:
    """The archive's best program; of a timing task the steadiest of the `remeasured` best (see `submission.json`)."""
    best = run.library.best_entry()
    if best is None or not best.solution.strip():
        raise StateCorrupt(f"the archive {run.store.committed_path} holds no program to submit")
    nodes = run.library.top_candidates(remeasured)
    candidates = [entry for node in nodes if (entry := run.library.entry_of(node)) is not None]
    results: list[Remeasured] = []
    if candidates:
        progress.line(f"measuring the best {len(candidates)} program(s) again, {ROUNDS} times in turn")
        results = await remeasure(candidates, run.scorer.evaluate)
        chosen = steadiest(results, run.contract.score_direction)
        best = best if chosen is None else run.library.entry(chosen.entry_id)
    record = {
        "entry_id": best.id,
        "search_score": best.verifier_raw_score,
        "mean": next((result.mean for result in results if result.entry_id == best.id), None),
        "remeasured": [result.as_dict() for result in results],
    }
    write_json(run.store.submission_path, record)
    progress.event("program_chosen", **record)
    return best


async def submit(best: LibraryEntry, run: Run, environment: BaseEnvironment) -> SubmissionRecord:
    """Upload a program as the workspace's solution file and keep a copy in the state directory."""
    name = run.contract.source_file.name
    target = f"{WORKSPACE}/{name}"
    write_text(run.store.run_dir / f"best{Path(name).suffix}", best.solution)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / name
        source.write_text(best.solution, encoding="utf-8")
        # A file transfer, not a shell argument: programs may exceed what one argument may hold.
        await environment.upload_file(source, target)
    return SubmissionRecord(
        path=target,
        entry_id=best.id,
        score=best.verifier_raw_score,
        sha256=hashlib.sha256(best.solution.encode()).hexdigest(),
        timestamp=utc_now(),
    )


def fill_context(context: AgentContext, outcome: RunOutcome) -> None:
    """Put the run's totals where Harbor stores them."""
    context.n_input_tokens = sum(item.prompt_tokens for item in outcome.outcomes)
    context.n_output_tokens = sum(item.completion_tokens for item in outcome.outcomes)
    context.metadata = {
        "reef": {
            "agent_record_ids": [item.receipt for item in outcome.outcomes if item.guidance.guidance is not None],
            "start_step": outcome.start_step,
            "next_step": outcome.next_step,
            "runtime_load_id": outcome.load_id,
            "step_summaries": [dict(summary) for summary in outcome.step_summaries],
        }
    }


def rollout_record(item: RolloutOutcome) -> RolloutRecord:
    """One rollout as the trajectory shows it."""
    return RolloutRecord(
        step=item.step,
        group=item.slot.group,
        rollout=item.slot.rollout,
        receipt=item.receipt,
        guidance=item.guidance.guidance,
        parent_id=item.parent.node_id,
        status=item.verdict.status,
        score=item.verdict.raw_score,
        reward=item.verdict.reward,
        prompt_tokens=item.prompt_tokens,
        completion_tokens=item.completion_tokens,
        timestamp=item.finished_at,
    )
