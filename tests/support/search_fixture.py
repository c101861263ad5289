"""A whole search over fakes: what a run is made of, rebuilt from disk as a new process would."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.fake_services import CONTRACT, FakeExecutor, FakeJudge, FakeReef

from harness.bootstrap import SeedProgram, seed_entry
from harness.grid import Grid
from harness.lanes import Lane
from harness.library import ArchiveSettings, GuidanceLibrary
from harness.progress import RunProgress
from harness.prompts import build_guidance_prompt
from harness.rollout import Services
from harness.run_controller import GuidanceRunController, RunOutcome
from harness.run_state import RunStateStore
from harness.search import GuidanceSearch
from harness.state import VerdictStatus, VerificationResult
from harness.stopping import StopRules
from harness.training_bridge import ServiceTrainingBridge

SCENARIO = "guidance-ttt-toy"
SEED_CODE = "int main() { return 0; } // the seed program"


class World:
    """Everything outside one process: the services and the state directory."""

    def __init__(
        self, run_dir: Path, grid: Grid | None = None, run_seed: int = 7, *, policy_frozen: bool = False
    ) -> None:
        self.run_dir = run_dir
        self.grid = grid or Grid(2, 3)
        self.run_seed = run_seed
        self.policy_frozen = policy_frozen
        self.reef = FakeReef(self.grid)
        self.executor = FakeExecutor()
        self.judge = FakeJudge()
        self.out = io.StringIO()

    async def _read_status(self) -> Mapping[str, Any]:
        return self.reef.status(SCENARIO)

    async def run(self, total_steps: int, rules: StopRules | None = None) -> RunOutcome:
        """What one process does: open the state directory, run, close."""
        progress = RunProgress(self.run_dir / "events.jsonl", self.out)
        store = RunStateStore(self.run_dir, {"task": "toy"}, {})
        lanes = [Lane(name, 4, progress.refresh) for name in ("policy", "executor", "judge")]
        search = GuidanceSearch(
            services=Services(self.reef, self.executor, self.judge, *lanes),
            library=self._library(store),
            contract=CONTRACT,
            grid=self.grid,
            run_seed=self.run_seed,
            build_prompt=lambda entry: build_guidance_prompt(contract=CONTRACT, entry=entry),
            progress=progress,
        )
        bridge = ServiceTrainingBridge(self._read_status, SCENARIO, timeout_s=5.0, poll_interval_s=0.0)
        try:
            controller = GuidanceRunController(
                search, bridge, store, progress, policy_frozen=self.policy_frozen, stop_rules=rules
            )
            return await controller.run(total_steps)
        finally:
            progress.close()

    def _library(self, store: RunStateStore) -> GuidanceLibrary:
        settings = ArchiveSettings(rollouts_per_group=self.grid.rollouts, groups_per_step=self.grid.groups)
        if store.committed_path.exists():
            return GuidanceLibrary.load(store.committed_path, settings)
        seed = SeedProgram(Path("seed.cpp"), SEED_CODE, "The smallest program.")
        verdict = VerificationResult(1.0, 1.0, True, VerdictStatus.VALID, "accepted", {})
        entry = seed_entry(seed, verdict, problem_id="0", run_seed=self.run_seed)
        library = GuidanceLibrary.from_seed(settings, entry, run_seed=self.run_seed)
        library.save(store.committed_path)
        return library

    def committed(self) -> bytes:
        """The committed archive's bytes."""
        return (self.run_dir / "committed-library.json").read_bytes()
