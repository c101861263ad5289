"""Durable progress: whatever moment a run is killed at, the next run ends as if nothing had happened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.search_fixture import World

import harness.journal
import harness.storage
from harness.errors import StateCorrupt, StateMismatch, TrainingFailed
from harness.run_controller import judge_seconds
from harness.storage import read_json_object

STEPS = 2


class Killed(BaseException):
    """Stands for the end of the process: nothing after it runs."""


class Fuse:
    """Lets a number of durable operations happen and then kills, before or after the operation itself."""

    def __init__(self, operations: int, *, after: bool) -> None:
        self.left = operations
        self.after = after
        self.seen = 0

    def __call__(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            self.seen += 1
            if self.seen == self.left and not self.after:
                raise Killed
            result = operation(*args, **kwargs)
            if self.seen == self.left and self.after:
                raise Killed
            return result

        return guarded


def durable_operations(patch: pytest.MonkeyPatch, fuse: Fuse) -> None:
    """Put the fuse into every write that a run makes durable."""
    patch.setattr(harness.storage.AppendFile, "append", fuse(harness.storage.AppendFile.append))
    patch.setattr("os.replace", fuse(__import__("os").replace))


async def uninterrupted(tmp_path: Path) -> tuple[World, int]:
    world = World(tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        fuse = Fuse(-1, after=False)
        durable_operations(patch, fuse)
        await world.run(STEPS)
    return world, fuse.seen


def position(world: World) -> dict[str, Any]:
    state = read_json_object(world.run_dir / "resume-state.json")
    for summary in state["step_summaries"]:
        for name in ("elapsed_s", "rollout_s", "train_s"):
            summary.pop(name)
    return state


@pytest.mark.parametrize("after", [False, True])
async def test_a_run_killed_at_any_durable_operation_resumes_to_the_same_end(tmp_path: Path, after: bool) -> None:
    whole, operations = await uninterrupted(tmp_path)
    assert operations > 20
    for moment in range(1, operations + 1):
        world = World(tmp_path / f"{after}-{moment}")
        with pytest.MonkeyPatch.context() as patch:
            durable_operations(patch, Fuse(moment, after=after))
            with pytest.raises((Killed, BaseExceptionGroup)):
                await world.run(STEPS)
        await world.run(STEPS)
        where = f"killed {'after' if after else 'before'} durable operation {moment}"
        assert world.committed() == whole.committed(), where
        assert position(world) == position(whole), where
        assert world.reef.completed == STEPS, where
        # At most the calls that the kill caught in flight are repeated.
        assert world.executor.calls <= STEPS * whole.grid.size + whole.grid.size, where


async def test_raising_the_total_runs_only_the_new_steps(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.run(2)
    outcome = await world.run(4)
    assert (outcome.start_step, outcome.next_step) == (2, 4)
    assert world.reef.guide_calls == 4 * world.grid.size


async def test_a_complete_run_does_nothing_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.run(2)
    outcome = await world.run(2)
    assert (outcome.start_step, outcome.next_step, outcome.outcomes) == (2, 2, ())
    assert world.judge.calls == 2 * world.grid.size


@pytest.mark.parametrize("reef_steps", [0, 2, 3])
async def test_positions_that_no_crash_explains_are_refused_with_all_numbers(tmp_path: Path, reef_steps: int) -> None:
    world = World(tmp_path)
    await world.run(1)
    world.reef.completed = reef_steps
    with pytest.raises(StateMismatch, match=r"(resume state 1, archive 1, Reef \d)|(its journal holds no rollouts)"):
        await world.run(3)


async def test_weights_that_changed_within_a_step_void_the_attempt_as_a_whole(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.judge.fault = OSError("killed here")
    with pytest.raises(OSError, match="killed here"):
        await world.run(1)
    world.judge.fault = None
    world.reef.load += 1
    await world.run(1)
    journal = (world.run_dir / "rollouts/step-000001.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in journal]
    assert kinds.count("attempt") == 2
    assert kinds.count("void") == 1
    assert {report["metadata"]["attempt"] for report in world.reef.reports.values()} == {2}


async def test_a_step_that_fails_the_gate_is_not_committed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.reef.metrics = dict  # type: ignore[method-assign]
    with pytest.raises(TrainingFailed, match="grad_norm"):
        await world.run(1)
    assert not (world.run_dir / "resume-state.json").exists()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"format_version": 9}',
        '{"format_version": 1, "next_step": 0, "step_summaries": []}',
        '{"format_version": 1, "next_step": true, "step_summaries": [{}]}',
        '{"format_version": 1, "next_step": 2, "step_summaries": [{}]}',
    ],
)
async def test_a_damaged_resume_state_is_named_and_not_guessed_around(tmp_path: Path, content: str) -> None:
    world = World(tmp_path)
    await world.run(1)
    (world.run_dir / "resume-state.json").write_text(content)
    with pytest.raises(StateCorrupt, match=r"resume-state\.json"):
        await world.run(2)


async def test_a_control_run_says_that_its_policy_is_frozen(tmp_path: Path) -> None:
    world = World(tmp_path, policy_frozen=True)
    moving = world.reef.metrics
    world.reef.metrics = lambda: {**moving(), "train/lora_b_nonzero": 0, "train/lora_b_l1": 0.0}  # type: ignore[method-assign]
    await world.run(1)
    assert read_json_object(world.run_dir / "resume-state.json")["step_summaries"][0]["policy_frozen"] is True
    assert "the policy is frozen" in world.out.getvalue()


async def test_a_control_run_whose_adapter_moved_is_stopped(tmp_path: Path) -> None:
    world = World(tmp_path, policy_frozen=True)
    with pytest.raises(TrainingFailed, match="the policy is frozen, yet its adapter moved"):
        await world.run(1)
    assert not (world.run_dir / "resume-state.json").exists()


def test_the_judges_seconds_are_those_that_it_tells_of() -> None:
    assert judge_seconds([{"run_seconds": 1.5}, {}, {"run_seconds": 2}, {"run_seconds": "3"}]) == 3.5
    assert judge_seconds([{}, {}]) is None


async def test_no_steps_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        await World(tmp_path).run(0)
