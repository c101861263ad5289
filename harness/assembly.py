"""Puts one run together from its settings: clients, archive, identity, controller.

Owns the order in which a run comes to life: services are asked first, then the state directory is bound and opened,
and only then is anything written.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from harness.bootstrap import load_seed, score_seed, seed_entry
from harness.config import RunConfig
from harness.contract import TaskContract
from harness.errors import ConfigError
from harness.execution import OpenAICompatibleExecutionClient
from harness.grid import Grid
from harness.http_common import OnRetry
from harness.lanes import Lane
from harness.library import ArchiveSettings, GuidanceLibrary
from harness.policy import GuidanceReply, ReefPolicyClient
from harness.progress import RunProgress
from harness.prompts import GuidanceExamples, Prompt, build_guidance_prompt
from harness.ray_bridge import RayTrainer, RayTrainingBridge, trainer_address
from harness.rollout import Services
from harness.run_controller import GuidanceRunController
from harness.run_state import IDENTITY_FILE, RunStateStore, bind_identity, run_identity
from harness.scorer import JudgeScorer, Scorer
from harness.search import GuidanceSearch, PromptBuilder
from harness.state import LibraryEntry
from harness.training_bridge import ServiceTrainingBridge, TrainingBridge

SAME_REASON_S = 10.0
"""How long a reason for a retry that was just told is not told again."""


@dataclass(frozen=True)
class Run:
    """A run that is ready to go, with the archive that it works on."""

    controller: GuidanceRunController
    library: GuidanceLibrary
    store: RunStateStore
    contract: TaskContract
    scorer: Scorer


class ReefPolicy:
    """The policy behind Reef, asked with this run's model name and token limit."""

    def __init__(self, client: ReefPolicyClient, *, model: str, max_tokens: int) -> None:
        self._client = client
        self._model = model
        self._max_tokens = max_tokens

    async def guide(self, prompt: Prompt, *, seed: int) -> GuidanceReply:
        """One guidance request."""
        return await self._client.guide(prompt.messages, seed=seed, model=self._model, max_tokens=self._max_tokens)

    async def report(self, body: Mapping[str, Any]) -> None:
        """Report one reward."""
        await self._client.report(body)


@asynccontextmanager
async def open_run(
    config: RunConfig, contract: TaskContract, progress: RunProgress, environ: Mapping[str, str]
) -> AsyncIterator[Run]:
    """Open clients and state for one run; everything is closed again at the end.

    Raises `ConfigError`, `TaskInvalid`, `StateError` or `ServiceUnavailable` before any step begins.
    """
    async with AsyncExitStack() as stack:
        problem_id = config.judge_problem_id or contract.judge_problem_id
        scorer = await stack.enter_async_context(
            JudgeScorer(
                config.judge_url,
                problem_id=problem_id,
                language=contract.solution_language,
                timeout_s=config.verifier_timeout_s,
                on_retry=_retry_note(progress, "judge"),
            )
        )
        executor = await stack.enter_async_context(
            OpenAICompatibleExecutionClient(config.backend, environ, on_retry=_retry_note(progress, "executor"))
        )
        client = await stack.enter_async_context(
            ReefPolicyClient(
                config.service_url,
                config.token,
                config.scenario,
                timeout_s=config.policy_timeout_s,
                on_retry=_retry_note(progress, "policy"),
            )
        )
        judge = await scorer.health()
        await _require_problem(scorer, problem_id, config.judge_url)
        await client.ensure_scenario(expected=(config.state_dir / "artifacts.git").exists())

        identity = run_identity(config, contract, judge)
        bind_identity(config.run_dir / IDENTITY_FILE, identity)
        extra = {"executor_backend": config.backend.safe_dict(), "policy_frozen": config.policy_frozen}
        store = RunStateStore(config.run_dir, identity, extra)
        library = await open_library(config, contract, scorer, store, progress)
        lanes = [
            Lane(name, limit, progress.refresh)
            for name, limit in (
                ("policy", config.limits.policy),
                ("executor", config.limits.executor),
                ("judge", config.limits.judge),
            )
        ]
        policy = ReefPolicy(client, model=config.model_name, max_tokens=config.max_tokens)
        search = GuidanceSearch(
            services=Services(policy, executor, scorer, *lanes),
            library=library,
            contract=contract,
            grid=Grid(config.groups, config.rollouts),
            run_seed=config.run_seed,
            build_prompt=prompt_builder(config, contract),
            progress=progress,
        )
        bridge = training_bridge(config, client)
        controller = GuidanceRunController(
            search, bridge, store, progress, policy_frozen=config.policy_frozen, stop_rules=config.stop_rules
        )
        yield Run(controller, library, store, contract, scorer)


def training_bridge(config: RunConfig, client: ReefPolicyClient) -> TrainingBridge:
    """How this run learns that a step was trained; raises `ConfigError` when the trainer cannot be found."""
    if not config.trains_over_ray:
        return ServiceTrainingBridge(client.status, config.scenario, timeout_s=config.train_timeout_s)
    trainer = RayTrainer(trainer_address(config.state_dir))
    return RayTrainingBridge(client.status, trainer, config.scenario, timeout_s=config.train_timeout_s)


async def open_library(
    config: RunConfig, contract: TaskContract, scorer: JudgeScorer, store: RunStateStore, progress: RunProgress
) -> GuidanceLibrary:
    """The committed archive, or a fresh one grown from the measured seed (which makes it durable at once)."""
    settings = ArchiveSettings(
        rollouts_per_group=config.rollouts,
        groups_per_step=config.groups,
        score_direction=contract.score_direction,
    )
    if store.committed_path.exists():
        return GuidanceLibrary.load(store.committed_path, settings)
    seed = load_seed(config.task_dir, contract, config.seed_path)
    verdict = await score_seed(seed, scorer)
    entry = seed_entry(seed, verdict, problem_id=contract.judge_problem_id, run_seed=config.run_seed)
    library = GuidanceLibrary.from_seed(settings, entry, run_seed=config.run_seed)
    library.save(store.library_path)
    library.save(store.committed_path)
    progress.event("seed_verified", raw_score=verdict.raw_score, path=str(seed.path))
    progress.line(f"seed   {seed.path.name}: {contract.raw_score_label} {verdict.raw_score:.4f}")
    return library


async def _require_problem(scorer: JudgeScorer, problem_id: str, judge_url: str) -> None:
    problems = await scorer.problems()
    if problem_id not in problems:
        raise ConfigError(
            f"the judge at {judge_url} has no problem {problem_id!r} "
            f"(it has: {', '.join(sorted(problems)) or 'none'}); "
            "set GUIDANCE_SEARCH_PROBLEM or start the task's judge"
        )


def prompt_builder(config: RunConfig, contract: TaskContract) -> PromptBuilder:
    """How this run asks for guidance on an entry; raises `TaskInvalid` when the task's examples cannot be read."""
    examples = None
    if config.prompt_style == "few-shot":
        examples = GuidanceExamples.load(config.task_dir / "guidance_examples.json")

    def build(entry: LibraryEntry) -> Prompt:
        return build_guidance_prompt(contract=contract, entry=entry, style=config.prompt_style, examples=examples)

    return build


def _retry_note(progress: RunProgress, service: str) -> OnRetry:
    """Tell a person why a call is repeated; a whole grid that meets the same reason is told of it once in a while."""
    told_s: dict[str, float] = {}

    async def note(reason: str, delay_s: float) -> None:
        progress.event("retry", service=service, reason=reason, delay_s=delay_s)
        now_s = time.monotonic()
        if now_s - told_s.get(reason, -SAME_REASON_S) >= SAME_REASON_S:
            told_s[reason] = now_s
            progress.warning(f"  {service}: {reason}; trying again in {delay_s:.0f} s")

    return note
