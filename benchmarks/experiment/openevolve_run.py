"""One run of OpenEvolve for one seed: our services, the proxy between them and OpenEvolve, and the run's file.

A run that is stopped or meets a fault leaves no file and is started afresh the next time: OpenEvolve's own checkpoints
lose what was in flight, so that a continued run would not have the same budget.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from benchmarks.experiment.arms import RunPlan, catalogue_of, drop_service_state
from benchmarks.experiment.openevolve_evaluator import TIMEOUT_S, URL_VARIABLE
from benchmarks.experiment.openevolve_install import VERSION, python_of
from benchmarks.experiment.openevolve_proxy import EVALUATE_PATH, MODEL, PeerProxy, PeerServices
from benchmarks.experiment.peer_records import PeerRollout
from guidance_ttt.plan import base_environment, plan_from_config, prepare_model, without_credentials
from guidance_ttt.services import Ended, GuardedProcess, Stack, log_tail
from harness.assembly import ReefPolicy, prompt_builder
from harness.bootstrap import SeedProgram, load_seed
from harness.config import RunConfig
from harness.contract import TaskContract, load_task
from harness.errors import ConfigError, GuidanceError
from harness.execution import OpenAICompatibleExecutionClient
from harness.grid import Grid
from harness.parsing import MAX_PROGRAM_CHARS
from harness.policy import ReefPolicyClient
from harness.redaction import Redactor
from harness.scorer import JudgeScorer
from harness.storage import read_json_object, write_json, write_text

ARM = "openevolve"
RESULT_FILE = "openevolve-run.json"
POLL_S = 0.2
GRACE_S = 10.0
MODEL_TIMEOUT_S = 3600
_FOREIGN = ("OPENAI_", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


class PeerFailed(GuidanceError):
    """OpenEvolve did not run its budget to the end, or a service failed under it."""


@dataclass(frozen=True)
class PeerPlan:
    """One seed's run; `islands` None keeps OpenEvolve's own number."""

    run: RunPlan
    venv: Path
    islands: int | None = None

    @property
    def result_path(self) -> Path:
        """Exists once the run is complete."""
        return self.run.state_dir / RESULT_FILE

    @property
    def budget(self) -> int:
        """Evaluations, the same number as in our own runs."""
        return self.run.updates * self.run.groups * self.run.rollouts

    def identity(self) -> dict[str, Any]:
        """What a complete run must agree in to be taken for this one."""
        return {
            "budget": self.budget,
            "islands": self.islands,
            "openevolve": VERSION,
            "catalogue_sha256": catalogue_of(self.run).digest,
        }

    def environ(self) -> dict[str, str]:
        """The settings of this run: those of our arms, with a policy that no update changes."""
        return {**self.run.environ(), "GUIDANCE_FREEZE_POLICY": "1"}


@dataclass(frozen=True)
class PeerResult:
    """A complete run as its file holds it."""

    seed_score: float
    rollouts: tuple[PeerRollout, ...]
    facts: Mapping[str, Any]


def read_result(plan: PeerPlan) -> PeerResult | None:
    """The complete run of this plan; None when it has yet to be made.

    Raises `ConfigError` when the folder holds a run of another budget, catalogue or OpenEvolve.
    """
    if not plan.result_path.exists():
        return None
    data = read_json_object(plan.result_path)
    asked, held = plan.identity(), data["identity"]
    differing = [
        f"{name}={held.get(name)} (asked for: {asked[name]})" for name in asked if held.get(name) != asked[name]
    ]
    if differing:
        raise ConfigError(f"{plan.result_path} holds a run with {', '.join(differing)}; choose another --state-root")
    return PeerResult(
        seed_score=float(data["seed_score"]),
        rollouts=tuple(PeerRollout.from_dict(item) for item in data["rollouts"]),
        facts=data["facts"],
    )


def run_peer(plan: PeerPlan, *, timeout_s: float | None) -> bool:
    """Run unless it is complete; False when the time ran out (nothing of the run is kept).

    Raises `PeerFailed`, or the fault of a service.
    """
    if read_result(plan) is not None:
        return True
    shutil.rmtree(plan.run.state_dir, ignore_errors=True)
    environ = plan.environ()
    config = RunConfig.load(environ)

    def say(line: str) -> None:
        print(f"  {line}", file=sys.stderr, flush=True)

    prepare_model(config, environ, say=say)
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    redact = Redactor.from_environ(environ, [config.token])
    with Stack(plan_from_config(config, environ).services, say=say, redact=redact) as stack:
        complete = asyncio.run(_run_with_services(plan, config, environ, stack, deadline_s))
    drop_service_state(plan.run)
    return complete


async def _run_with_services(
    plan: PeerPlan, config: RunConfig, environ: Mapping[str, str], stack: Stack, deadline_s: float | None
) -> bool:
    contract = load_task(config.task_dir)
    seed = load_seed(config.task_dir, contract, config.seed_path)
    async with AsyncExitStack() as clients:
        services = await _open_services(clients, config, contract, environ)
        proxy = PeerProxy(
            services,
            contract,
            seed,
            grid=Grid(config.groups, config.rollouts),
            budget=plan.budget,
            run_seed=config.run_seed,
        )
        settings = openevolve_settings(plan, contract, parallel=config.limits.judge)
        env = base_environment(config, environ)
        complete = await evolve(plan, proxy, contract, seed, settings, env, watch=stack.watch, deadline_s=deadline_s)
    if complete:
        _save(plan, proxy, settings, config)
    return complete


async def evolve(
    plan: PeerPlan,
    proxy: PeerProxy,
    contract: TaskContract,
    seed: SeedProgram,
    settings: Mapping[str, Any],
    env: Mapping[str, str],
    *,
    watch: Callable[[], Ended | None] = lambda: None,
    deadline_s: float | None = None,
) -> bool:
    """Run OpenEvolve against the proxy until its budget is spent; False when the time (monotonic) was up before.

    Raises `PeerFailed` for a fault of any service, of OpenEvolve, or for a budget that was not spent to the end.
    """
    folder = plan.run.state_dir / "openevolve"
    runner = web.AppRunner(proxy.app(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        process = _start(
            plan, folder, with_address(settings, base_url), seed, contract, peer_environment(env, base_url)
        )
        try:
            complete = await _supervise(process, proxy, watch, deadline_s)
        finally:
            code = await asyncio.to_thread(process.finish)
    finally:
        await runner.cleanup()
    if not complete:
        return False
    if proxy.fault is not None:
        raise PeerFailed(f"seed {plan.run.seed}: {type(proxy.fault).__name__}: {proxy.fault}") from proxy.fault
    if code != 0 or len(proxy.rollouts) != plan.budget or proxy.seed_score is None:
        raise PeerFailed(
            f"seed {plan.run.seed}: OpenEvolve ended with exit code {code} after {len(proxy.rollouts)} of "
            f"{plan.budget} evaluations:\n{log_tail(folder / 'output.log', 20)}"
        )
    return True


async def _open_services(
    clients: AsyncExitStack, config: RunConfig, contract: TaskContract, environ: Mapping[str, str]
) -> PeerServices:
    """The same clients as the search has, with the policy behind the same Reef service."""
    scorer = await clients.enter_async_context(
        JudgeScorer(
            config.judge_url,
            problem_id=config.judge_problem_id or contract.judge_problem_id,
            language=contract.solution_language,
            timeout_s=config.verifier_timeout_s,
        )
    )
    executor = await clients.enter_async_context(OpenAICompatibleExecutionClient(config.backend, environ))
    reef = await clients.enter_async_context(
        ReefPolicyClient(config.service_url, config.token, config.scenario, timeout_s=config.policy_timeout_s)
    )
    await reef.ensure_scenario()
    policy = ReefPolicy(reef, model=config.model_name, max_tokens=config.max_tokens)
    return PeerServices(policy, executor, scorer, prompt_builder(config, contract))


def openevolve_settings(plan: PeerPlan, contract: TaskContract, *, parallel: int) -> dict[str, Any]:
    """OpenEvolve's configuration: its own defaults, but for what the experiment needs.

    No call is repeated by OpenEvolve: the proxy repeats where that is right, and a fault has to end the run.
    """
    database: dict[str, Any] = {"log_prompts": False}
    if plan.islands is not None:
        database["num_islands"] = plan.islands
    return {
        "max_iterations": plan.budget,
        "checkpoint_interval": plan.budget,
        "random_seed": plan.run.seed,
        "language": contract.language.fence,
        "file_suffix": Path(contract.language.file_name).suffix,
        "diff_based_evolution": False,
        "max_code_length": MAX_PROGRAM_CHARS,
        "llm": {
            "api_key": "none-needed",
            "models": [{"name": MODEL, "weight": 1.0}],
            "timeout": MODEL_TIMEOUT_S,
            "retries": 0,
            "retry_delay": 0,
        },
        "prompt": {"include_artifacts": False},
        "database": database,
        "evaluator": {
            "cascade_evaluation": False,
            "enable_artifacts": False,
            "max_retries": 0,
            "parallel_evaluations": parallel,
            "timeout": int(TIMEOUT_S) + 60,
        },
    }


def with_address(settings: Mapping[str, Any], base_url: str) -> dict[str, Any]:
    """The settings with the model's address, which differs from run to run and is no part of the record."""
    return {**settings, "llm": {**settings["llm"], "api_base": f"{base_url}/v1"}}


def peer_environment(base: Mapping[str, str], base_url: str) -> dict[str, str]:
    """The environment of OpenEvolve: no key of ours, no setting of a model client, and the evaluator's address."""
    kept = {name: value for name, value in without_credentials(base).items() if not name.startswith(_FOREIGN)}
    return {**kept, URL_VARIABLE: base_url + EVALUATE_PATH, "ENABLE_ARTIFACTS": "false"}


def _start(
    plan: PeerPlan,
    folder: Path,
    settings: Mapping[str, Any],
    seed: SeedProgram,
    contract: TaskContract,
    env: Mapping[str, str],
) -> GuardedProcess:
    """Write OpenEvolve's files and start it under a guard, which takes its process pool down with it."""
    program = folder / f"seed{Path(contract.language.file_name).suffix}"
    write_text(program, seed.code.strip())
    write_json(folder / "config.yaml", settings)  # JSON is YAML
    source = Path(__file__).with_name("openevolve_evaluator.py")
    write_text(folder / "evaluator.py", source.read_text(encoding="utf-8"))
    argv = [str(python_of(plan.venv)), "-m", "openevolve.cli", str(program), str(folder / "evaluator.py")]
    argv += ["--config", str(folder / "config.yaml"), "--output", str(folder / "output")]
    argv += ["--iterations", str(plan.budget)]
    return GuardedProcess(argv, env=env, cwd=folder, grace_s=GRACE_S, log_path=folder / "output.log")


async def _supervise(
    process: GuardedProcess, proxy: PeerProxy, watch: Callable[[], Ended | None], deadline_s: float | None
) -> bool:
    """Wait for the end of OpenEvolve or the first fault; False when the time is up.  Raises `PeerFailed`."""
    while process.poll() is None and proxy.fault is None:
        ended = watch()
        if ended is not None:
            raise PeerFailed(ended.describe())
        if deadline_s is not None and time.monotonic() >= deadline_s:
            return False
        await asyncio.sleep(POLL_S)
    return True


def _save(plan: PeerPlan, proxy: PeerProxy, settings: Mapping[str, Any], config: RunConfig) -> None:
    facts = {
        "openevolve_settings": settings,
        "judge_problem": config.judge_problem_id,
        "executor": {"name": config.backend.name, "model": config.backend.model},
        "policy": {"model": config.model_name, "prompt_style": config.prompt_style, "max_tokens": config.max_tokens},
    }
    write_json(
        plan.result_path,
        {
            "identity": plan.identity(),
            "seed_score": proxy.seed_score,
            "rollouts": [rollout.to_dict() for rollout in proxy.rollouts],
            "facts": facts,
        },
    )
