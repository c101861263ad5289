"""What goes wrong without killing anything: a stage that fails again and again, and a disk that is full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.faults import Fault
from support.reef_process import TINY_OPTIONS, ReefProcess
from support.reef_state import ReefState
from support.reef_zygote import shared_zygote

from harness.errors import TrainingFailed
from harness.training_bridge import ServiceTrainingBridge

pytestmark = pytest.mark.slow

STAGES = {
    "the gradient": "torch.autograd:backward",
    "the checkpoint": "safetensors.torch:save_file",
    "the load id": "tttd.local.state:LoadTable.mint",
    "the git release": "reef.artifact.git_lfs:GitLFSRepositoryBackend.publish",
    "the commit": "reef.storage.commit_log:CommitLog.append",
}
DISK_BYTES = 8 * 2**20


@pytest.fixture(scope="module")
def reef(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[ReefProcess]:
    process = ReefProcess(
        tmp_path_factory.mktemp("faults"), tiny_model, options=TINY_OPTIONS, zygote=shared_zygote()
    )
    process.start()
    try:
        yield process
    finally:
        process.kill()


def bridge(reef: ReefProcess) -> ServiceTrainingBridge:
    """The search's own way to wait for a step, with little patience."""

    async def read() -> dict[str, Any]:
        return reef.status()

    return ServiceTrainingBridge(read, reef.scenario, timeout_s=60, poll_interval_s=0.05, error_grace_s=0.5)


async def fail_a_step(reef: ReefProcess, stage: str) -> int:
    """Run a step whose stage fails however often Reef tries; the search gives up with the error, serving goes on."""
    step: int = reef.scenario_status()["scenario_step"]
    reef.arm(Fault(STAGES[stage], action="raise"))
    reef.run_step(step)
    with pytest.raises(TrainingFailed, match="InjectedError"):
        await bridge(reef).wait_for_step(step, 0)
    return step


async def finish_step(reef: ReefProcess, step: int) -> None:
    """The search's next try, once the cause is gone: exactly one commit."""
    assert (await bridge(reef).wait_for_step(step, 0)).completed_steps == step + 1
    state = ReefState(reef.state_dir)
    assert [commit["step"] for commit in state.commits()] == list(range(1, step + 2))
    assert len(state.consumed()) == len(set(state.consumed()))
    assert len(state.loads()["checkpoints"]) == step + 2
    assert reef.status()["error"] is None


@pytest.mark.parametrize("stage", STAGES)
async def test_a_stage_that_keeps_failing_ends_the_wait_with_its_error_and_the_next_record_tries_again(
    reef: ReefProcess, stage: str
) -> None:
    before = reef.probe()
    step = await fail_a_step(reef, stage)
    reef.arm(None)
    assert reef.probe() == before  # still served, and a record that wakes training
    await finish_step(reef, step)


@pytest.mark.parametrize("stage", ["the gradient", "the commit"])
async def test_a_stage_that_keeps_failing_is_made_up_for_by_a_restart(reef: ReefProcess, stage: str) -> None:
    step = await fail_a_step(reef, stage)
    reef.stop()
    reef.start()
    await finish_step(reef, step)
    assert ReefState(reef.state_dir).leftovers() == []


def test_a_load_that_cannot_be_noted_as_published_is_served_all_the_same(reef: ReefProcess) -> None:
    step = reef.scenario_status()["scenario_step"]
    reef.arm(Fault("tttd.local.state:LoadTable.publish", action="raise"))
    reef.run_step(step)
    load = reef.wait_for_steps(step + 1)["current_runtime_load_id"]
    after = reef.probe()
    reef.kill()
    reef.start()
    assert reef.scenario_status()["current_runtime_load_id"] == load
    assert reef.probe() == after


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder that is a disk of its own with DISK_BYTES."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, left_bytes: int) -> Path:
    """Fill the disk up to `left_bytes`; the file to remove again."""
    filler = disk / "filler"
    usage = os.statvfs(disk)
    filler.write_bytes(b"\0" * max(0, usage.f_bavail * usage.f_frsize - left_bytes))
    return filler


def test_a_full_disk_fails_the_step_with_a_reason_and_the_step_commits_once_there_is_space(
    small_disk: Path, tiny_model: Path
) -> None:
    reef = ReefProcess(small_disk, tiny_model, options=TINY_OPTIONS, zygote=shared_zygote())
    state = ReefState(small_disk)
    reasons = []
    reef.start()
    try:
        for step, left_bytes in enumerate((16_000, 80_000, 140_000, 200_000, 260_000, 320_000)):
            reef.run_step(step, slots=reef.grid()[:-1])
            last = reef.chat("improve candidate 1", seed=step)
            filler = fill(small_disk, left_bytes)
            report: dict[str, Any] = {"step": step, "group": 1, "rollout": 1}
            answer = reef.report(last.receipt, 1.0, **report)
            reasons.append(outcome(reef, step) if answer.status_code == 200 else "the report is not accepted")
            filler.unlink()
            assert reef.report(last.receipt, 1.0, **report).status_code == 200
            wake(reef)
            reef.wait_for_steps(step + 1)
            assert [commit["step"] for commit in state.commits()] == list(range(1, step + 2))
            assert len(state.consumed()) == len(set(state.consumed()))
        reef.stop()
        reef.start()  # Reef keeps the copy of a release that it could not publish until it ends
        reef.wait_for_steps(len(reasons))
        assert state.leftovers() == []
    finally:
        reef.kill()
    assert any(reason and "No space left on device" in reason for reason in reasons)


def outcome(reef: ReefProcess, step: int) -> str | None:
    """Reef's error once it has one, or None when the step was committed after all."""
    found: list[str] = []

    def settled() -> bool:
        status = reef.status()
        if status["error"]:
            found.append(status["error"])
        return bool(found) or status["scenarios"][reef.scenario]["scenario_step"] > step

    reef.wait_until("the step fails or commits", settled, 30)
    return found[0] if found else None


def wake(reef: ReefProcess) -> None:
    """Make Reef look for work, as any new record does."""
    reef.call("PATCH", f"/reef/scenarios/{reef.scenario}", {"training_mode": "auto"})
