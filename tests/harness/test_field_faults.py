"""Faults that users of similar systems have reported, tried on the whole search (docs/field-faults.md has the list)."""

from __future__ import annotations

import asyncio
import resource
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.fake_services import CONTRACT, FakeExecutor, FakeJudge
from support.search_fixture import World
from test_config import YAML

from harness.config import RunConfig
from harness.errors import ExecutorUnavailable, JudgeUnavailable, StateMismatch, StateWriteFailed
from harness.execution import ExecutionReply
from harness.grid import Grid
from harness.library import ArchiveSettings, GuidanceLibrary
from harness.prompts import Prompt, score_lines
from harness.run_state import bind_identity, run_identity
from harness.search import first_fault
from harness.state import LibraryEntry, VerdictStatus, VerificationResult
from harness.storage import read_json_object


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_starting_again_and_again_before_the_first_step_ends_never_adds_a_seed(world: World) -> None:
    world.judge.fault = JudgeUnavailable("still starting")
    for _ in range(5):
        with pytest.raises(JudgeUnavailable):
            await world.run(1)
    archive = read_json_object(world.run_dir / "committed-library.json")
    assert len(archive["nodes"]) == world.grid.groups
    assert len(archive["entries"]) == world.grid.groups


async def test_the_best_keeps_the_step_and_place_where_it_was_found(world: World) -> None:
    calls = 0

    def fading(code: str) -> VerificationResult:
        nonlocal calls
        calls += 1
        score = 90.0 if calls == 2 else 10.0 - calls * 0.1
        return VerificationResult(score, score, True, VerdictStatus.VALID, "accepted", {})

    world.judge = FakeJudge(fading)
    first = (await world.run(1)).step_summaries[0]
    later = (await world.run(3)).step_summaries[2]
    assert first["best_raw_score"] == later["best_raw_score"] == 90.0
    assert first["best_found_at"] is not None
    assert later["best_found_at"] is None
    assert later["best_entry_id"] == first["best_entry_id"]
    assert later["best_gain"] == 0.0


async def test_resuming_submits_nothing_to_the_judge_before_the_next_step(world: World) -> None:
    await world.run(3)
    submitted = world.judge.calls
    await world.run(3)
    assert world.judge.calls == submitted
    await world.run(4)
    assert world.judge.calls == submitted + world.grid.size


async def test_stray_files_in_the_state_directory_are_ignored(world: World) -> None:
    await world.run(1)
    rollouts = world.run_dir / "rollouts"
    for name in ("step-abc", "lost+found"):
        (rollouts / name).mkdir()
    for name in (".DS_Store", "step-000002.bak", "step-000002.jsonl.swp"):
        (rollouts / name).write_text("stray", encoding="utf-8")
    assert (await world.run(2)).next_step == 2


async def test_a_full_disk_in_the_middle_of_a_step_is_one_error_and_the_committed_archive_still_loads(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, Grid(8, 16))
    await world.run(1)
    before = world.committed()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(StateWriteFailed, match=r"cannot write .*step-000002\.jsonl: .*free space there"):
            await world.run(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert world.committed() == before
    assert (await world.run(2)).start_step == 1


async def test_a_dead_executor_is_one_message_and_leaves_archive_and_training_untouched(world: World) -> None:
    await world.run(1)
    before, reports = world.committed(), dict(world.reef.reports)
    world.executor.fault = ExecutorUnavailable("the executor refuses connections")
    with pytest.raises(ExecutorUnavailable, match="refuses connections") as caught:
        await world.run(2)
    assert "\n" not in str(caught.value)
    assert (world.committed(), world.reef.reports, world.reef.completed) == (before, reports, 1)
    world.executor.fault = None
    assert (await world.run(2)).start_step == 1


async def test_a_stop_while_the_executor_is_silent_takes_seconds_and_keeps_what_was_paid_for(world: World) -> None:
    class Silent(FakeExecutor):
        async def complete(self, prompt: Prompt) -> ExecutionReply:
            await asyncio.sleep(600)
            raise AssertionError("never reached")

    answering, world.executor = world.executor, Silent()
    running = asyncio.create_task(world.run(1))
    await asyncio.sleep(0.5)
    assert world.reef.guide_calls == world.grid.size
    started = time.monotonic()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert time.monotonic() - started < 10
    world.executor = answering
    await world.run(1)
    assert world.reef.guide_calls == world.grid.size


async def test_a_slow_judge_gets_no_more_than_its_limit_however_many_candidates_wait(tmp_path: Path) -> None:
    world = World(tmp_path, Grid(4, 8))
    active = peak = 0

    class Slow(FakeJudge):
        async def evaluate(self, code: str) -> VerificationResult:
            nonlocal active, peak
            active += 1
            peak = max(peak, active)
            await asyncio.sleep(0.005)
            active -= 1
            return await super().evaluate(code)

    world.judge = Slow()
    await world.run(1)
    assert peak == 4
    assert world.judge.calls == world.grid.size


async def test_a_grid_of_pairs_is_allowed_and_says_once_what_that_means(tmp_path: Path) -> None:
    world = World(tmp_path, Grid(2, 2))
    await world.run(2)
    assert world.out.getvalue().count("advantages are bounded at 32") == 1


async def test_equal_rewards_everywhere_complete_the_step_and_say_so(world: World) -> None:
    world.judge = FakeJudge(lambda code: VerificationResult(5.0, 5.0, True, VerdictStatus.VALID, "accepted", {}))
    summary = (await world.run(1)).step_summaries[0]
    assert summary["zero_signal"]
    assert "all groups constant" in world.out.getvalue()


def test_one_score_ranks_everywhere_when_lower_is_better() -> None:
    settings = ArchiveSettings(rollouts_per_group=3, groups_per_step=1, score_direction="min")
    contract = replace(CONTRACT, score_direction="min")

    def entry(name: str, latency: float, reward: float, status: VerdictStatus) -> LibraryEntry:
        return LibraryEntry(
            id=name, parent_id=None, problem_id="0", timestep=0 if name == "seed" else 1, guidance="", solution=name,
            execution_thinking="", verifier_reward=reward, verifier_raw_score=latency, verifier_status=status,
            verifier_message="m", summary="s", reusable_idea=None, failure_mode=None,
        )  # fmt: skip

    library = GuidanceLibrary.from_seed(settings, entry("seed", 1500.0, 1.0, VerdictStatus.VALID), run_seed=0)
    library.acquire_group("1:0", visible_timestep_exclusive=1)
    for name, latency, reward, status in (
        ("a", 1200.0, 1.25, VerdictStatus.VALID),
        ("b", 1100.0, 1.36, VerdictStatus.VALID),
        ("c", 900.0, 2.0, VerdictStatus.INVALID),
    ):
        library.submit_child("1:0", entry(name, latency, reward, status))
    best = library.best_entry()
    assert best is not None
    assert best.id == "b"
    snapshot = library.snapshot()
    assert snapshot["nodes"][snapshot["best_node_id"]]["entry_id"] == "b"
    assert [library.entry(node.entry_id or "").id for node in library.top_candidates(2)] == ["b", "a"]
    parent = library.acquire_group("2:0", visible_timestep_exclusive=2)
    assert parent.entry_id == "b"
    assert any("1100.0" in line for line in score_lines(contract, best))


def test_another_executor_is_refused_and_another_port_or_concurrency_is_not(tmp_path: Path) -> None:
    (tmp_path / "serve.local.yaml").write_text(YAML, encoding="utf-8")
    base = {
        "GUIDANCE_EXECUTOR": "openai",
        "GUIDANCE_EXECUTOR_URL": "http://127.0.0.1:7001/v1",
        "GUIDANCE_EXECUTOR_MODEL": "first",
    }

    def bind(contract: object = CONTRACT, **more: str) -> None:
        config = RunConfig.load({**base, **more}, root=tmp_path)
        judge = {"suite": "own", "suite_sha256": "abc"}
        bind_identity(tmp_path / "run" / "task-identity.json", run_identity(config, contract, judge))  # type: ignore[arg-type]

    bind()
    bind(GUIDANCE_EXECUTOR_URL="http://127.0.0.1:7002/v1", GUIDANCE_EXECUTOR_CONCURRENCY="1", GUIDANCE_REEF_PORT="9999")
    bind(GUIDANCE_EXECUTOR_TIMEOUT="5", GUIDANCE_VERIFIER_TIMEOUT="7", GUIDANCE_STEPS="9")
    with pytest.raises(StateMismatch, match="executor_model: 'first' -> 'second'"):
        bind(GUIDANCE_EXECUTOR_MODEL="second")
    with pytest.raises(StateMismatch, match="contract_sha256"):
        bind(replace(CONTRACT, problem_prompt="Another task."))
    with pytest.raises(StateMismatch, match=r"(?s)executor_model.*run_seed: 1 -> 3"):
        bind(GUIDANCE_EXECUTOR_MODEL="second", GUIDANCE_RUN_SEED="3")


def test_identical_faults_are_told_once_with_their_count_and_a_bug_of_ours_comes_first() -> None:
    same = [JudgeUnavailable("HTTP 503") for _ in range(3)]
    assert str(first_fault(ExceptionGroup("step", same))) == "HTTP 503 (3 rollouts met the same)"
    nested = ExceptionGroup("step", [*same, ExceptionGroup("inner", [KeyError("ours")])])
    assert isinstance(first_fault(nested), KeyError)
