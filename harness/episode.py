"""One reef-eval episode: a Harbor trial of one task whose agent is the whole search.

reef-eval keeps one row per key and returns a stored row without running.  The key here names the scenario and the total
number of steps, so raising the total continues the search; a row that records an error never blocks another try.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.config import TASKS, RunConfig
from harness.contract import load_task
from harness.environment_choice import choose_environment
from harness.errors import GuidanceError
from harness.remeasure import ROUNDS
from harness.run_controller import total_cost_usd
from harness.run_state import IDENTITY_FILE, JUDGE_FIELDS, RESUME_FILE, SUBMISSION_FILE, check_identity, run_identity
from harness.storage import StateLock, clean_stray_temp_files, read_json_object, write_json

EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 130
AGENT = "harness.harbor_agent:HarborAgent"


class EpisodeFailed(GuidanceError):
    """The trial ended without a reward."""


def main(environ: Mapping[str, str]) -> int:
    """Run the episode that the environment configures; returns the exit status (see `run.py`)."""
    try:
        config = RunConfig.load(environ)
        load_task(config.task_dir)
        with StateLock(config.run_dir):
            clean_stray_temp_files(config.run_dir)
            asyncio.run(_interruptible(run_episode(config)))
    except GuidanceError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped; the state is saved. Go on with: ./run.sh", file=sys.stderr)
        return EXIT_INTERRUPTED
    return EXIT_DONE


async def run_episode(config: RunConfig) -> None:
    """Run or recall the episode and print its result; raises `EpisodeFailed` with the trial's error."""
    # Both would reach for the network; neither is needed.
    os.environ.setdefault("HARBOR_TELEMETRY", "off")
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    from reef_eval import Lab

    if recall(config):
        return
    lab = Lab(config.state_dir / "lab")
    key = episode_key(config)
    lab.store.delete_prefix(key)
    agent = {"import_path": AGENT, "model_name": config.model_name}
    environment = await asyncio.to_thread(
        choose_environment, config.environment, judge_url=config.judge_url, container_judge=container_judge(config)
    )
    row = await lab.run(str(config.task_dir), agent, key=key, environment=environment)
    require_reward(config, row.tags, row.rewards, row.uri)
    print_result(config, row.rewards, row.uri)


def require_reward(config: RunConfig, tags: Mapping[str, Any], rewards: Mapping[str, Any], uri: str | None) -> None:
    """Raise `EpisodeFailed` for a trial without a reward: why, where to look, and that the search is not lost."""
    verifier = f"{_local(uri)}/verifier"
    safe = f"the search itself is safe in {config.run_dir}"
    if "error" in tags:
        raise EpisodeFailed(f"{tags['error']}\n  trial: {_local(uri)}\n  {safe}")
    reward = rewards.get("reward")
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise EpisodeFailed(
            f"the verifier of {config.task} left no usable reward ({reward!r}); it must write one number as "
            f'{{"reward": ...}} to {verifier}/reward.json. Its output is {verifier}/test-stdout.txt; {safe}'
        )


def container_judge(config: RunConfig) -> str:
    """Where the task's grader looks for the judge from inside the trial's environment."""
    return f"host.docker.internal:{TASKS[config.task].judge_port}"


def episode_key(config: RunConfig) -> str:
    """reef-eval's name of the episode that ends at this total of steps."""
    return f"{config.scenario}:steps-{config.steps}"


def recall(config: RunConfig) -> bool:
    """Print the result of this very run if it is complete already; needs no service.

    Raises `StateMismatch` when the state directory belongs to other settings.
    """
    identity_path = config.run_dir / IDENTITY_FILE
    if not identity_path.exists() or not (config.state_dir / "lab" / "results.sqlite").exists():
        return False
    from reef_eval import Lab

    stored = Lab(config.state_dir / "lab").store.get(episode_key(config))
    if stored is None or "error" in stored.tags or not stored.rewards:
        return False
    stopped = None
    if (summaries := committed_summaries(config)) is not None and len(summaries) < config.steps:
        stopped = stop_reason(config, summaries)
        if stopped is None:
            return False  # it stopped early, and what stopped it is no longer set
    identity = run_identity(config, load_task(config.task_dir), {})
    check_identity(identity_path, identity, unknown=JUDGE_FIELDS)
    if stopped is not None:
        print(f"already stopped after step {len(summaries or ())}/{config.steps}: {stopped}")
    else:
        print(f"already complete: {config.steps} step(s); set GUIDANCE_STEPS higher to go on")
    print_result(config, stored.rewards, stored.uri)
    return True


def committed_summaries(config: RunConfig) -> list[Mapping[str, Any]] | None:
    """The summaries of the committed steps, or None when no step was committed."""
    path = config.run_dir / RESUME_FILE
    return list(read_json_object(path)["step_summaries"]) if path.exists() else None


def stop_reason(config: RunConfig, summaries: Sequence[Mapping[str, Any]]) -> str | None:
    """Why a run with these steps and settings does not go on."""
    direction = load_task(config.task_dir).score_direction
    return config.stop_rules.reason(summaries, grid_size=config.groups * config.rollouts, direction=direction)


def print_result(config: RunConfig, rewards: Mapping[str, Any], uri: str | None) -> None:
    """The summary that a run ends with; also kept as `result.json`."""
    result = summarize(config, rewards, uri)
    write_json(config.run_dir / "result.json", result)
    found = (
        f"found in step {result['best_step']}" if result["best_step"] else "the seed itself: nothing better was found"
    )
    print(
        "\n".join(
            [
                "",
                f"seed           {result['seed_score']:.4f}   "
                f"({result['score_label']}, problem {result['search_problem']})",
                f"best           {result['best_score']:.4f}   {found}",
                *(["policy         frozen: a control run, no update changed it"] if result["policy_frozen"] else []),
                *submitted_line(result["submitted"]),
                *([f"stopped        {result['stopped']}"] if result["stopped"] else []),
                f"Harbor reward  {rewards.get('reward')}   (the task's own verifier)",
                f"program        {result['program']}",
                f"state          {config.run_dir}",
                f"logs           {config.state_dir / 'stack'}",
                f"trial          {result['trial']}",
            ]
        ),
        flush=True,
    )


def submitted_line(submission: Mapping[str, Any] | None) -> list[str]:
    """What was measured again, when anything was."""
    if submission is None or not submission["remeasured"]:
        return []
    mean, seen = submission["mean"], submission["search_score"]
    if mean is None:
        return [f"submitted      {seen:.4f}   none of the best was valid each time it was measured again"]
    return [f"submitted      {mean:.4f}   mean of {ROUNDS} new measurements; the search saw {seen:.4f}"]


def summarize(config: RunConfig, rewards: Mapping[str, Any], uri: str | None) -> dict[str, Any]:
    """Seed, best and reward of a finished run, read from its committed archive."""
    archive = read_json_object(config.run_dir / "committed-library.json")
    entries, nodes = archive["entries"], archive["nodes"]
    best = entries[nodes[archive["best_node_id"]]["entry_id"]]
    seed = next(entry for entry in entries.values() if entry["timestep"] == 0)
    contract = load_task(config.task_dir)
    summaries = committed_summaries(config) or []
    submission = config.run_dir / SUBMISSION_FILE
    suffix = Path(contract.source_file.name).suffix
    return {
        "task": config.task,
        "steps": config.steps,
        "steps_done": len(summaries),
        "stopped": stop_reason(config, summaries) if len(summaries) < config.steps else None,
        "evaluations": sum(summary["sampled_rollouts"] for summary in summaries),
        "cost_usd": total_cost_usd([summary.get("cost_usd") for summary in summaries]),
        "policy_frozen": config.policy_frozen,
        "score_label": contract.raw_score_label,
        "search_problem": config.judge_problem_id or contract.judge_problem_id,
        "seed_score": seed["verifier_raw_score"],
        "best_score": best["verifier_raw_score"],
        "best_step": min(
            entry["timestep"]
            for entry in entries.values()
            if entry["verifier_status"] == "valid" and entry["verifier_raw_score"] == best["verifier_raw_score"]
        ),
        "best_entry_id": best["id"],
        "submitted": read_json_object(submission) if submission.exists() else None,
        "rewards": dict(rewards),
        "program": str(config.run_dir / f"best{suffix}"),
        "trial": _local(uri),
    }


async def _interruptible(work: Any) -> None:
    """Let SIGTERM stop the work the way Ctrl-C does."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    loop.set_exception_handler(_report_unless_cancelled)
    await task


def _report_unless_cancelled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """reef-eval leaves a future behind that holds the cancellation of a stopped run: that is no fault to show."""
    if not isinstance(context.get("exception"), asyncio.CancelledError):
        loop.default_exception_handler(context)


def _local(uri: str | None) -> str:
    return (uri or "").removeprefix("file://")
