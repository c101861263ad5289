"""One measurement of a task's seed, and the one-root archive that it makes."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.archive_state import ArchiveSettings
from harness.bootstrap import load_seed, score_seed, seed_entry
from harness.config import PROJECT_ROOT, TASKS, RunConfig
from harness.contract import load_task
from harness.errors import ConfigError, GuidanceError, JudgeUnavailable
from harness.library import GuidanceLibrary
from harness.scorer import JudgeScorer

LIBRARY_FILE = "verified-bootstrap-library.json"
EXIT_INVALID, EXIT_FAULT = 1, 2


def main(arguments: Sequence[str], environ: Mapping[str, str], *, root: Path = PROJECT_ROOT) -> int:
    """Carry out one command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="smoke.py", description="Score a task's seed once through the judge.")
    parser.add_argument("task", choices=tuple(TASKS), metavar="TASK", help=", ".join(TASKS))
    options = parser.parse_args(arguments)
    # The executor takes no part, so it must not be able to stop this for want of a key.
    settings = {name: value for name, value in environ.items() if not name.startswith("GUIDANCE_EXECUTOR")}
    try:
        path = asyncio.run(verify_seed(RunConfig.load({**settings, "GUIDANCE_TASK": options.task}, root=root)))
    except JudgeUnavailable as error:
        start = f".venv/bin/guidance-ttt judge {options.task} --port {TASKS[options.task].judge_port}"
        print(f"error: {error}\nis the judge running? start it with: {start}", file=sys.stderr)
        return EXIT_FAULT
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAULT
    except GuidanceError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_INVALID
    print(json.dumps({"task": options.task, "verified_seed": str(path)}))
    return 0


async def require_problem(scorer: JudgeScorer, problem_id: str, judge_url: str) -> None:
    """Fail at once where no judge answers, or where it is another task's."""
    problems = await scorer.problems()
    if problem_id not in problems:
        known = ", ".join(sorted(problems)) or "none"
        raise ConfigError(f"the judge at {judge_url} has no problem {problem_id!r} (it has: {known}); name another URL")


async def verify_seed(config: RunConfig) -> Path:
    """Score the seed on the task's own problem and write its archive into the state directory; returns the file.

    Raises `TaskInvalid`, `SeedRejected` or `JudgeUnavailable`, and then nothing is written.
    """
    contract = load_task(config.task_dir)
    seed = load_seed(config.task_dir, contract, config.seed_path)
    async with JudgeScorer(
        config.judge_url,
        problem_id=contract.judge_problem_id,
        language=contract.solution_language,
        timeout_s=config.verifier_timeout_s,
    ) as scorer:
        await require_problem(scorer, contract.judge_problem_id, config.judge_url)
        verdict = await score_seed(seed, scorer)
    entry = seed_entry(seed, verdict, problem_id=contract.judge_problem_id, run_seed=config.run_seed)
    entry = replace(entry, metadata={**entry.metadata, "verification_artifacts": verdict.artifacts})
    settings = ArchiveSettings(config.rollouts, 1, score_direction=contract.score_direction)
    path = config.state_dir / LIBRARY_FILE
    GuidanceLibrary.from_seed(settings, entry, run_seed=config.run_seed).save(path)
    return path
