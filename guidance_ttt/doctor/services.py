"""The executor and the judge, by talking to them: one tiny call, and the judge's own word on itself."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from guidance_ttt.doctor.model import Context, Finding, failure, ok, warning
from guidance_ttt.plan import base_environment, host_of, is_local, judge_service, split_options
from guidance_ttt.services import Stack
from harness.bootstrap import load_seed, score_seed, seed_entry
from harness.config import RunConfig
from harness.contract import TaskContract, load_task
from harness.errors import (
    ConfigError,
    ExecutorUnavailable,
    GuidanceError,
    JudgeUnavailable,
    SeedRejected,
    ServiceUnavailable,
)
from harness.execution import ExecutionReply, OpenAICompatibleExecutionClient
from harness.execution_backends import OFFLINE_MODEL
from harness.prompts import ChatMessage, Prompt, build_execution_prompt
from harness.redaction import strip_url
from harness.scorer import JudgeScorer
from harness.setting_values import port_of
from harness.state import VerdictStatus, VerificationResult

EXECUTOR = "executor"
JUDGE = "judge"
CALL_S = 60.0
CALL_TOKENS = 64
"""Enough to see that a model answers, where the run limits it; it may still be thinking, which is an answer too."""

POLL_S = 0.5
HEALTH_S = 5.0
SCORE_S = 150.0
OFFLINE_CURE = "leave --offline out to have it asked"


# --- the executor -----------------------------------------------------------------------------------------------------


def check_executor(context: Context) -> Iterator[Finding]:
    """One tiny call, when it runs or is elsewhere; a bundled executor that does not run yet is started by the run."""
    config = context.settings
    backend = config.backend
    what = f"{backend.model} at {strip_url(backend.base_url)}"
    if context.offline:
        yield warning(EXECUTOR, f"{what} was not asked (--offline)", OFFLINE_CURE)
        return
    if is_local(backend.base_url):
        port = port_of(backend.base_url, "GUIDANCE_EXECUTOR_URL")
        if context.probes.port_is_free(host_of(backend.base_url), port):
            yield executor_not_running(config, what)
            return
    name = backend.api_key_env
    if name is not None and not context.environ.get(name, "").strip():
        yield warning(EXECUTOR, f"{what} was not asked: {name} is not set", f"set {name}")
        return
    context.tell(f"asking {what} (at most {CALL_S:g} s)")
    try:
        reply = asyncio.run(ask_executor(config, context.environ))
    except ExecutorUnavailable as error:
        yield failure(EXECUTOR, str(error), executor_cure(str(error), name))
    else:
        yield ok(EXECUTOR, describe_reply(reply))


def executor_not_running(config: RunConfig, what: str) -> Finding:
    """Nothing listens: fine for the bundled one, a failure for the user's own server."""
    if config.executor == "offline":
        return ok(EXECUTOR, f"{what} does not run yet; ./run.sh starts it")
    return failure(
        EXECUTOR, f"nothing listens at {strip_url(config.backend.base_url)}", "start your server, or correct "
        "GUIDANCE_EXECUTOR_URL"
    )  # fmt: skip


async def ask_executor(config: RunConfig, environ: Mapping[str, str]) -> ExecutionReply:
    """One call without retries; raises `ExecutorUnavailable`."""
    backend = replace(config.backend, timeout_s=min(CALL_S, config.backend.timeout_s), max_retries=0)
    if backend.model == OFFLINE_MODEL:
        prompt = unchanged_prompt(config)
    else:
        prompt = Prompt((ChatMessage("user", "Answer with the one word: ready"),))
        # A limit only where the run sets one: some servers refuse `max_tokens`, and the run does not send it to them.
        backend = replace(backend, max_tokens=backend.max_tokens and min(CALL_TOKENS, backend.max_tokens))
    async with OpenAICompatibleExecutionClient(backend, environ) as client:
        return await client.complete(prompt)


def unchanged_prompt(config: RunConfig) -> Prompt:
    """A whole request for the catalogue, with guidance that names nothing: it gives the seed back."""
    contract = load_task(config.task_dir)
    seed = load_seed(config.task_dir, contract, config.seed_path)
    verdict = VerificationResult(0.0, 0.0, True, VerdictStatus.VALID, "not judged", {})
    entry = seed_entry(seed, verdict, problem_id=contract.judge_problem_id, run_seed=config.run_seed)
    return build_execution_prompt(contract=contract, entry=entry, guidance="Leave the program as it is.")


def describe_reply(reply: ExecutionReply) -> str:
    """What the call took and cost."""
    tokens = sum(reply.usage.get(key, 0) for key in ("prompt_tokens", "completion_tokens"))
    cost = "" if not reply.cost_usd else f", ${reply.cost_usd:.4f}"
    empty = "" if reply.empty_reason is None else f"; {reply.empty_reason}, as may be with few tokens"
    return f"{reply.model} answered in {reply.elapsed_s:.1f} s ({tokens} tokens{cost}){empty}"


def executor_cure(reason: str, key_name: str | None) -> str:
    """What to try for the commonest refusals."""
    if key_name is not None and ("HTTP 401" in reason or "HTTP 403" in reason):
        return f"the server refuses the key in {key_name}: set another one"
    if "HTTP 404" in reason:
        return "the server does not know the model or the path: correct GUIDANCE_EXECUTOR_MODEL or _URL"
    if "HTTP 429" in reason or "HTTP 402" in reason:
        return "the account's limit is reached: wait, or top it up"
    return "check that the server runs and that GUIDANCE_EXECUTOR_URL names it"


# --- the judge --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JudgeView:
    """A judge that answered: what it says of itself and which problems it has."""

    health: Mapping[str, Any]
    problems: tuple[str, ...]


def check_judge(context: Context) -> Iterator[Finding]:
    """Ask a judge that runs or should run, waiting for one that is starting; with --deep also have the seed scored."""
    config = context.settings
    local = is_local(config.judge_url)
    if context.offline and not local:
        yield warning(JUDGE, f"{strip_url(config.judge_url)} was not asked (--offline)", OFFLINE_CURE)
        return
    contract = load_task(config.task_dir)
    running = not local or not context.probes.port_is_free(host_of(config.judge_url), config.judge_port)
    if not running and context.deep:
        yield from _deep_with_own_judge(context, contract)
        return
    expected = running or bool(context.environ.get("GUIDANCE_JUDGE_URL", "").strip())
    if not expected:
        yield ok(JUDGE, f"does not run yet; ./run.sh starts it at {config.judge_url}")
        return
    try:
        view = wait_for_judge(lambda: look_at(config, contract), context.wait_s, context.tell)
    except JudgeUnavailable as error:
        yield judge_silent(str(error), config.judge_url, context.wait_s, can_be_started=local and not running)
        return
    yield from judge_findings(view, config.judge_problem_id or contract.judge_problem_id, config.judge_url)
    if context.deep:
        yield from score_findings(config, contract, context.tell)


def look_at(config: RunConfig, contract: TaskContract) -> JudgeView:
    """One look at the judge; raises `JudgeUnavailable`."""

    async def ask() -> JudgeView:
        async with _scorer(config, contract, HEALTH_S) as scorer:
            return JudgeView(await scorer.health(), await scorer.problems())

    return asyncio.run(ask())


def wait_for_judge(
    look: Callable[[], JudgeView],
    wait_s: float,
    tell: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> JudgeView:
    """Look until it answers, with a countdown; raises the last `JudgeUnavailable` after `wait_s` seconds."""
    deadline = clock() + wait_s
    while True:
        try:
            return look()
        except JudgeUnavailable:
            left_s = deadline - clock()
            if left_s <= 0:
                raise
            tell(f"the judge does not answer yet; waiting {left_s:.0f} s more")
            sleep(min(POLL_S, left_s))


def judge_silent(reason: str, url: str, wait_s: float, *, can_be_started: bool) -> Finding:
    """A judge that did not answer: a failure, unless a run would start one at this very address."""
    if can_be_started:
        return warning(
            JUDGE,
            f"nothing answers at {strip_url(url)} (waited {wait_s:g} s); ./run.sh starts a judge there",
            "start your own judge first if you meant to use one",
        )
    return failure(JUDGE, f"{reason} (waited {wait_s:g} s)", "start the judge, or correct GUIDANCE_JUDGE_URL")


def judge_findings(view: JudgeView, problem: str, url: str) -> Iterator[Finding]:
    """What a judge that answers says: whether it has the problem, and how it contains programs."""
    if problem not in view.problems:
        yield failure(
            JUDGE,
            f"the judge at {strip_url(url)} has no problem {problem!r} (it has: {', '.join(view.problems) or 'none'})",
            "set GUIDANCE_SEARCH_PROBLEM, or start the task's own judge",
        )
        return
    told = [f"{key} {view.health[key]}" for key in ("suite", "tier", "workers", "queued") if key in view.health]
    yield ok(JUDGE, f"answers at {strip_url(url)}: problem {problem}" + "".join(f", {item}" for item in told))
    if "unsafe" in (view.health.get("tier"), view.health.get("sandbox")):
        yield warning(JUDGE, "it runs programs without isolation", "start it without --unsafe")


def score_findings(config: RunConfig, contract: TaskContract, tell: Callable[[str], None]) -> Iterator[Finding]:
    """Have the seed judged once."""
    tell(f"scoring the seed (at most {SCORE_S:g} s)")
    started = time.monotonic()

    async def score() -> VerificationResult:
        async with _scorer(config, contract, min(SCORE_S, config.verifier_timeout_s)) as scorer:
            return await score_seed(load_seed(config.task_dir, contract, config.seed_path), scorer)

    try:
        verdict = asyncio.run(score())
    except SeedRejected as error:
        yield failure(JUDGE, str(error), "name a valid program with GUIDANCE_SEED")
    except ServiceUnavailable as error:
        yield failure(JUDGE, str(error), "see the judge's log; docs/troubleshooting.md explains its messages")
    else:
        elapsed_s = time.monotonic() - started
        yield ok(JUDGE, f"scored the seed: {contract.raw_score_label} {verdict.raw_score} in {elapsed_s:.1f} s")


def _deep_with_own_judge(context: Context, contract: TaskContract) -> Iterator[Finding]:
    """Start the judge for the check alone, with a state of its own, and stop it again."""
    config = context.settings
    with tempfile.TemporaryDirectory(prefix="guidance-doctor-") as folder:
        elsewhere = replace(config, state_dir=Path(folder))
        options = split_options(context.environ, "GUIDANCE_JUDGE_ARGS")
        spec = judge_service(elsewhere, base_environment(config, context.environ), options)
        try:
            with Stack([spec], say=context.tell):
                view = wait_for_judge(lambda: look_at(config, contract), context.wait_s, context.tell)
                yield from judge_findings(
                    view, config.judge_problem_id or contract.judge_problem_id, config.judge_url
                )
                yield from score_findings(config, contract, context.tell)
        except ConfigError:
            raise
        except GuidanceError as error:
            yield failure(JUDGE, str(error), "the judge's own lines say why; see docs/troubleshooting.md")


def _scorer(config: RunConfig, contract: TaskContract, timeout_s: float) -> JudgeScorer:
    return JudgeScorer(
        config.judge_url,
        problem_id=config.judge_problem_id or contract.judge_problem_id,
        language=contract.solution_language,
        timeout_s=timeout_s,
        queue_timeout_s=timeout_s,
    )
