"""Runs one arm of the experiment for one seed: the whole stack through the launcher, or the uniform control."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.experiment.records import UpdateRow, named_mechanisms, update_rows
from benchmarks.experiment.uniform import run_uniform
from executors.catalogue import Catalogue
from guidance_ttt.plan import plan_from_config
from guidance_ttt.services import Stack
from harness.config import PROJECT_ROOT, RunConfig
from harness.redaction import Redactor
from harness.storage import read_json_object

ARMS = ("trained", "frozen", "uniform")


@dataclass(frozen=True)
class RunPlan:
    """One run: a seed, an arm, and the budget that every arm gets."""

    seed: int
    arm: str
    updates: int
    groups: int
    rollouts: int
    state_root: Path
    task: str = "polyomino_packing"

    @property
    def state_dir(self) -> Path:
        """Where the run keeps its state; running it again continues there."""
        return self.state_root / f"seed-{self.seed}-{self.arm}"

    @property
    def run_dir(self) -> Path:
        """The harness's part of the state."""
        return self.state_dir / "guidance-run"

    def environ(self) -> dict[str, str]:
        """The settings of this run on top of the caller's, on free ports."""
        judge, executor, reef = free_ports(3)
        return {
            **os.environ,
            "GUIDANCE_TASK": self.task,
            "GUIDANCE_STATE_DIR": str(self.state_dir),
            "GUIDANCE_STEPS": str(self.updates),
            "GUIDANCE_GROUPS": str(self.groups),
            "GUIDANCE_ROLLOUTS": str(self.rollouts),
            "GUIDANCE_RUN_SEED": str(self.seed),
            "GUIDANCE_FREEZE_POLICY": "1" if self.arm == "frozen" else "0",
            "GUIDANCE_JUDGE_URL": f"http://127.0.0.1:{judge}",
            "GUIDANCE_EXECUTOR_URL": f"http://127.0.0.1:{executor}/v1",
            "GUIDANCE_REEF_PORT": str(reef),
        }


def catalogue_of(plan: RunPlan) -> Catalogue:
    """The catalogue that the arm's executor builds from."""
    return Catalogue.load(PROJECT_ROOT / "harbor" / plan.task / "offline")


def updates_done(plan: RunPlan) -> int:
    """How many updates of the run are complete."""
    return len(_summaries(plan))


def run_arm(plan: RunPlan, *, timeout_s: float | None) -> bool:
    """Run or continue until all updates are done; False when the time ran out first (the state is kept).

    Raises `RuntimeError` with the end of the output when the run itself fails.
    """
    if updates_done(plan) >= plan.updates:
        return True
    if plan.arm == "uniform":
        _run_uniform(plan)
        return True
    plan.state_dir.mkdir(parents=True, exist_ok=True)
    log = plan.state_dir / "experiment.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "guidance_ttt.launch"],
            cwd=PROJECT_ROOT,
            env=plan.environ(),
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
        )
        try:
            code = process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
            return False
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if code != 0:
        tail = log.read_text(encoding="utf-8", errors="replace")[-1500:]
        raise RuntimeError(f"seed {plan.seed}, {plan.arm}: the run ended with exit code {code}:\n{tail}")
    drop_service_state(plan)
    return True


def drop_service_state(plan: RunPlan) -> None:
    """Give back the disk of a finished run: releases and records are gigabytes, the search's own state is not."""
    for name in ("artifacts.git", "artifact-work", "artifact-cache", "agent-record", "backend"):
        shutil.rmtree(plan.state_dir / name, ignore_errors=True)


def rows_of(plan: RunPlan) -> tuple[list[UpdateRow], list[Counter[str]]]:
    """What the run has recorded so far."""
    summaries = _summaries(plan)
    if not summaries:
        return [], []
    named = named_mechanisms(plan.run_dir, catalogue_of(plan), len(summaries))
    return update_rows(plan.seed, plan.arm, summaries, named), named


def _summaries(plan: RunPlan) -> list[Mapping[str, object]]:
    name = "uniform-summaries.json" if plan.arm == "uniform" else "resume-state.json"
    path = plan.run_dir / name
    return list(read_json_object(path)["step_summaries"]) if path.exists() else []


def _run_uniform(plan: RunPlan) -> None:
    shutil.rmtree(plan.state_dir, ignore_errors=True)
    environ = plan.environ()
    config = RunConfig.load(environ)
    services = [spec for spec in plan_from_config(config, environ).services if spec.name != "reef"]
    redact = Redactor.from_environ(environ, [config.token])

    def say(line: str) -> None:
        print(f"  {line}", file=sys.stderr, flush=True)

    with Stack(services, say=say, redact=redact):
        asyncio.run(run_uniform(config, catalogue_of(plan), plan.updates, environ))


def free_ports(count: int) -> list[int]:
    """Ports that are free now; all are held until the last is known, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
