"""The control that tells learning from luck: guidance drawn uniformly from the names of the catalogue's mechanisms.

No model and no training: the same archive, executor, judge and grid, with a policy that knows nothing but the menu.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from executors.catalogue import Catalogue
from harness.assembly import open_library
from harness.config import RunConfig
from harness.contract import load_task
from harness.execution import OpenAICompatibleExecutionClient
from harness.grid import Grid
from harness.journal import RolloutJournal
from harness.lanes import Lane
from harness.policy import GuidanceReply
from harness.progress import RunProgress
from harness.prompts import Prompt, build_guidance_prompt
from harness.qualification import expected_step
from harness.rollout import Services
from harness.run_controller import step_summary
from harness.run_state import RunStateStore
from harness.scorer import JudgeScorer
from harness.search import GuidanceSearch
from harness.storage import copy_file, write_json

LOAD_ID = "uniform:0"


class UniformPolicy:
    """Names one mechanism, each equally often; the request's seed decides which."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._names = [mechanism.name for mechanism in catalogue.data.mechanisms]
        self._calls = Counter[str]()

    async def guide(self, prompt: Prompt, *, seed: int) -> GuidanceReply:
        """Guidance in the form that the policy model is taught by its examples."""
        name = random.Random(seed).choice(self._names)
        return GuidanceReply(f"uniform-{seed}", f"<guidance>Use {name}.</guidance>", "stop", {})

    async def report(self, body: Mapping[str, Any]) -> None:
        """Nobody learns from it."""


async def run_uniform(config: RunConfig, catalogue: Catalogue, updates: int, environ: Mapping[str, str]) -> Path:
    """Run `updates` steps afresh; returns the file with their summaries.  Judge and executor must be running."""
    contract = load_task(config.task_dir)
    problem_id = config.judge_problem_id or contract.judge_problem_id
    progress = RunProgress(config.run_dir / "events.jsonl", score_label=contract.raw_score_label)
    store = RunStateStore(config.run_dir, {"task": config.task}, {})
    summaries: list[dict[str, Any]] = []
    async with (
        JudgeScorer(
            config.judge_url,
            problem_id=problem_id,
            language=contract.solution_language,
            timeout_s=config.verifier_timeout_s,
        ) as scorer,
        OpenAICompatibleExecutionClient(config.backend, environ) as executor,
    ):
        library = await open_library(config, contract, scorer, store, progress)
        search = GuidanceSearch(
            services=Services(
                UniformPolicy(catalogue),
                executor,
                scorer,
                Lane("policy", config.limits.policy, progress.refresh),
                Lane("executor", config.limits.executor, progress.refresh),
                Lane("judge", config.limits.judge, progress.refresh),
            ),
            library=library,
            contract=contract,
            grid=Grid(config.groups, config.rollouts),
            run_seed=config.run_seed,
            build_prompt=lambda entry: build_guidance_prompt(contract=contract, entry=entry),
            progress=progress,
        )
        for step in range(updates):
            async with RolloutJournal(store.journal_path(step)) as journal:
                result = await search.run_step(step, journal, load_id=LOAD_ID, total_steps=updates)
            zero_signal = expected_step(step, result.group_rewards(search.grid)).zero_signal
            previous = summaries[-1]["best_raw_score"] if summaries else None
            summaries.append(step_summary(library, result, zero_signal, previous))
    library.save(store.library_path)
    copy_file(store.library_path, store.committed_path)
    progress.close()
    path = config.run_dir / "uniform-summaries.json"
    write_json(path, {"step_summaries": summaries})
    return path
