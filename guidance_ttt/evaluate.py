"""Repeated scoring of one program, for recorded solutions and for tasks whose scores vary from run to run."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from guidance_ttt.smoke import require_problem
from harness.config import PROJECT_ROOT, TASKS
from harness.contract import TaskContract, load_task
from harness.errors import ConfigError, GuidanceError, JudgeUnavailable
from harness.scorer import JudgeScorer

DEFAULT_TIMEOUT_S = 1800.0
EXIT_INVALID, EXIT_FAULT = 1, 2


def main(arguments: Sequence[str], *, root: Path = PROJECT_ROOT) -> int:
    """Carry out one command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    task_dir = root / "harbor" / options.task
    try:
        contract = load_task(task_dir)
        suffix = Path(contract.source_file.name).suffix
        code = _read_program(options.solution or task_dir / "solution" / f"seed{suffix}")
        valid = asyncio.run(
            evaluate(
                options.task,
                contract,
                code,
                judge_url=options.judge_url,
                repeats=options.repeats,
                timeout_s=options.timeout_seconds,
                say=lambda line: print(line, flush=True),
            )
        )
    except JudgeUnavailable as error:
        print(f"error: the judge gave no verdict: {error}", file=sys.stderr)
        return EXIT_FAULT
    except GuidanceError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAULT
    return 0 if valid else EXIT_INVALID


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="evaluate_solution.py", description="Score one program through a judge.")
    parser.add_argument("task", choices=tuple(TASKS), metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--judge-url", required=True, metavar="URL", help="where the task's judge answers")
    parser.add_argument("--repeats", type=_count, default=1, metavar="N", help="runs, one after another (default: 1)")
    parser.add_argument(
        "--timeout-seconds",
        type=_seconds,
        default=DEFAULT_TIMEOUT_S,
        metavar="S",
        help="limit of one run, from when the judge begins it (default: 1800)",
    )
    parser.add_argument("--solution", type=Path, metavar="FILE", help="default: the task's own solution/seed.*")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def _read_program(path: Path) -> str:
    try:
        code = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the program {path} cannot be read: {error}; name another with --solution") from error
    if not code.strip():
        raise ConfigError(f"the program {path} is empty; name another with --solution")
    return code


async def evaluate(
    task: str,
    contract: TaskContract,
    code: str,
    *,
    judge_url: str,
    repeats: int,
    timeout_s: float,
    say: Callable[[str], None],
) -> bool:
    """Score `repeats` times in sequence and say one JSON object each; True when all were valid.

    `score` is in the task's own unit.  Raises `JudgeUnavailable` at the first run that the judge cannot score.
    """
    valid = True
    async with JudgeScorer(
        judge_url,
        problem_id=contract.judge_problem_id,
        language=contract.solution_language,
        timeout_s=timeout_s,
    ) as scorer:
        await require_problem(scorer, contract.judge_problem_id, judge_url)
        for repeat in range(1, repeats + 1):
            verdict = await scorer.evaluate(code)
            valid = valid and verdict.valid
            line: dict[str, Any] = {
                "task": task,
                "repeat": repeat,
                "raw_score_label": contract.raw_score_label,
                "score_direction": contract.score_direction,
                "result": {
                    "valid": verdict.valid,
                    "score": verdict.raw_score,
                    "message": verdict.message,
                    "artifacts": verdict.artifacts,
                },
            }
            say(json.dumps(line, allow_nan=False))
    return valid
