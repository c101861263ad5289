"""One step of the grid: what becomes a reward, what stops the step, and what each service gets to see."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from support.fake_services import FakeExecutor, malformed
from support.search_fixture import SEED_CODE, World

from harness.errors import ExecutorUnavailable, JudgeUnavailable, PolicyUnavailable, TrainingFailed
from harness.grid import Grid, Slot, sampling_seed
from harness.storage import read_json_object


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize(
    ("service", "fault"),
    [
        ("reef", PolicyUnavailable("Reef closed the connection")),
        ("executor", ExecutorUnavailable("the executor refuses connections")),
        ("judge", JudgeUnavailable("the judge answers HTML")),
    ],
)
async def test_a_services_fault_stops_the_step_and_reports_nothing(
    world: World, service: str, fault: Exception
) -> None:
    getattr(world, service).fault = fault
    with pytest.raises(type(fault), match=str(fault)):
        await world.run(1)
    assert world.reef.reports == {}
    assert world.reef.completed == 0


async def test_a_programming_error_is_never_a_reward(world: World) -> None:
    world.judge.fault = KeyError("a bug of ours")
    with pytest.raises(KeyError, match="a bug of ours"):
        await world.run(1)
    assert world.reef.reports == {}


async def test_the_step_goes_on_after_the_service_is_back_without_repeating_a_call(world: World) -> None:
    world.judge.fault = JudgeUnavailable("the judge is starting")
    with pytest.raises(JudgeUnavailable):
        await world.run(1)
    guided, executed = world.reef.guide_calls, world.executor.calls
    world.judge.fault = None
    await world.run(1)
    assert world.reef.guide_calls == max(guided, world.grid.size)
    assert world.executor.calls <= executed + world.grid.size - executed
    assert world.reef.completed == 1


async def test_malformed_guidance_scores_zero_everywhere_and_the_executor_is_never_called(world: World) -> None:
    world.reef.answer = malformed
    outcome = await world.run(1)
    summary = outcome.step_summaries[0]
    assert world.executor.calls == 0
    assert world.judge.calls == 0
    assert {report["score"] for report in world.reef.reports.values()} == {0.0}
    assert summary["statuses"] == {"guidance_format_error": world.grid.size}
    assert summary["zero_signal"]
    assert summary["retained_trajectories"] == world.grid.rollouts


async def test_each_kind_of_unusable_answer_has_its_own_status(world: World) -> None:
    answers = ["", "no program here", "<solution>\n```cpp\nint main() {}\n```\n</solution>"]
    world.executor = FakeExecutor(lambda guidance, call: answers[call % 3])
    summary = (await world.run(1)).step_summaries[0]
    assert summary["statuses"] == {"empty_response": 2, "parse_error": 2, "valid": 2}


async def test_every_report_names_its_own_receipt_and_place(world: World) -> None:
    await world.run(1)
    reports = list(world.reef.reports.values())
    assert len({report["references"][0] for report in reports}) == world.grid.size
    assert all(len(report["references"]) == 1 for report in reports)
    assert Counter(report["metadata"]["comparison_set"] for report in reports) == {
        "tttd-step-0-group-0": 3,
        "tttd-step-0-group-1": 3,
    }
    assert {report["metadata"]["algorithm"] for report in reports} == {"ttt-discover"}


async def test_the_policy_never_sees_code_and_the_executor_always_does(world: World) -> None:
    await world.run(2)
    assert len(world.reef.prompts) == 2 * world.grid.size
    for prompt in world.reef.prompts:
        assert "int main" not in "".join(message.content for message in prompt.messages)


async def test_the_archive_holds_references_into_the_journal_instead_of_raw_texts(world: World) -> None:
    await world.run(1)
    archive = read_json_object(world.run_dir / "committed-library.json")
    children = [entry for entry in archive["entries"].values() if entry["timestep"] == 1]
    assert len(children) == world.grid.size
    assert archive["puct_T"] == world.grid.size
    assert all(SEED_CODE not in str(entry["metadata"]) for entry in children)
    assert all(entry["metadata"]["agent_record_id"].startswith("receipt-") for entry in children)


def test_each_rollout_has_its_own_random_stream_and_the_seed_changes_all_of_them() -> None:
    def seeds(run_seed: int) -> list[int]:
        return [sampling_seed(run_seed, step, 1, slot) for step in range(3) for slot in Grid(4, 8).slots()]

    assert len(set(seeds(1))) == 96
    assert not set(seeds(1)) & set(seeds(2))
    assert seeds(1) == seeds(1)
    assert sampling_seed(1, 0, 1, Slot(0, 0)) != sampling_seed(1, 0, 2, Slot(0, 0))


async def test_two_runs_with_the_same_seed_and_replies_give_the_same_archive(tmp_path: Path) -> None:
    first, second, other = World(tmp_path / "a"), World(tmp_path / "b"), World(tmp_path / "c", run_seed=8)
    for world in (first, second, other):
        await world.run(3)
    assert first.committed() == second.committed()
    assert first.committed() != other.committed()


async def test_a_resumed_step_counts_each_rollout_once(world: World) -> None:
    world.reef.metrics = dict  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(TrainingFailed, match="grad_norm"):
            await world.run(1)
    started = [
        event
        for line in (world.run_dir / "events.jsonl").read_text(encoding="utf-8").splitlines()
        if (event := json.loads(line))["event"] == "guidance_step_started"
    ]
    assert [event["resumed"] for event in started] == [0, world.grid.size]
    assert "12/6" not in world.out.getvalue()
