"""What a person and a machine see: nothing of it may be torn, and a log is not flooded."""

from __future__ import annotations

import ast
import io
import json
from pathlib import Path
from typing import Any

import pytest
from support.search_fixture import World

import harness.progress
from harness.lanes import Lane
from harness.progress import RunProgress, step_line, totals

ROOT = Path(__file__).resolve().parents[2]
SUMMARY: dict[str, Any] = {
    "step": 0,
    "best_raw_score": 45.5,
    "best_gain": 17.7,
    "best_found_at": "g0 r2",
    "statuses": {"guidance_format_error": 1, "valid": 7},
    "train_metrics": {"train/kl": 0.0031, "train/grad_norm": 0.42},
    "reward_mean": 30.0,
    "reward_max": 45.5,
    "well_formed_guidance": 7,
    "sampled_rollouts": 8,
    "rollout_s": 12.0,
    "train_s": 20.0,
    "zero_signal": False,
}


def kinds_in_code() -> set[str]:
    """The first argument of every `....event("...")` in the packages."""
    found = set()
    for path in [*(ROOT / "harness").glob("*.py"), *(ROOT / "guidance_ttt").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "event":
                assert isinstance(node.args[0], ast.Constant), f"{path.name}:{node.lineno} gives no plain kind"
                found.add(str(node.args[0].value))
    return found


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_step_line_names_best_verdicts_reward_and_training() -> None:
    line = step_line(SUMMARY, 3, "score")
    for part in (
        "step 1/3",
        "45.5000 (+17.70, g0 r2)",
        "valid 7  guidance_format_error 1",
        "kl 0.0031",
        "7/8 well-formed",
    ):
        assert part in line
    assert "no learning signal" not in line


def test_the_step_line_tells_tokens_and_what_is_known_of_the_cost() -> None:
    tokens = {"prompt_tokens": 1000, "completion_tokens": 200, "executor_prompt_tokens": 2_000_000}
    paid = {**SUMMARY, **tokens, "executor_completion_tokens": 50, "cost_usd": 3.126}
    assert "tokens 2.0M  $3.13" in step_line(paid, 3, "score")
    assert "cost unknown" in step_line({**paid, "cost_usd": None}, 3, "score")
    assert "$" not in step_line({**paid, "cost_usd": 0.0}, 3, "score")
    assert "$3.13 (total $18.40)" in step_line(paid, 3, "score", {"cost_usd": 18.4})
    assert "$3.13 (total unknown)" in step_line(paid, 3, "score", {"cost_usd": None})


def test_a_step_without_signal_or_progress_says_so() -> None:
    line = step_line({**SUMMARY, "zero_signal": True, "best_gain": 0.0, "best_raw_score": None}, 1, "score")
    assert "no learning signal: all groups constant" in line
    assert "none (no new best)" in line


def test_verdicts_that_the_judge_could_not_give_are_shown_apart() -> None:
    assert "quarantined" not in step_line(SUMMARY, 1, "score")
    assert "quarantined 2" in step_line({**SUMMARY, "quarantined": 2}, 1, "score")


def test_a_torn_last_event_is_cut_before_new_ones_are_added(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "whole"}\n{"event": "to', encoding="utf-8")
    progress = RunProgress(path, io.StringIO())
    progress.note("again")
    progress.close()
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["whole", "note"]


def test_a_log_is_not_flooded_and_a_terminal_line_is_drawn_in_place() -> None:
    plain, terminal = io.StringIO(), Terminal()
    for out in (plain, terminal):
        progress = RunProgress(None, out)
        lanes = [Lane("policy", 2, progress.refresh)]
        progress.step_started(0, 1, 8, 0, lanes)
        for _ in range(100):
            progress.refresh()
        progress.waiting_for_training(0)
        progress.line("done")
        progress.close()
    assert plain.getvalue().count("\n") == 2
    assert terminal.getvalue().endswith(
        "\r" + " " * len("training: waiting for Reef to commit the update") + "\rdone\n"
    )


def test_a_quiet_run_prints_what_asks_for_a_person_and_records_everything(tmp_path: Path) -> None:
    for name, out in (("terminal", Terminal()), ("plain", io.StringIO())):
        path = tmp_path / name / "events.jsonl"
        progress = RunProgress(path, out, quiet=True)
        lanes = [Lane("policy", 2, progress.refresh)]
        progress.run_started([], 1)
        progress.line("seed")
        progress.step_started(0, 1, 8, 0, lanes)
        progress.rollout_finished()
        progress.waiting_for_training(0)
        progress.step_committed(SUMMARY, 1)
        progress.note("a repair")
        progress.warning("a retry")
        progress.close()
        assert out.getvalue() == "  a repair\na retry\n"
        events = [json.loads(line)["event"] for line in path.read_text().splitlines()]
        assert events == [
            "run_started",
            "guidance_step_started",
            "guidance_step_reported",
            "guidance_step_committed",
            "note",
        ]


def test_a_sum_over_the_steps_is_unknown_as_soon_as_one_part_is() -> None:
    step = {"prompt_tokens": 10, "rollout_s": 1.5, "judge_s": 2.0, "cost_usd": 0.5}
    found = totals([step, {**step, "cost_usd": None}])
    assert (found["steps"], found["prompt_tokens"], found["rollout_s"], found["judge_s"]) == (2, 20, 3.0, 4.0)
    assert found["cost_usd"] is None
    assert found["completion_tokens"] is None
    assert totals([])["cost_usd"] == 0


def test_a_sink_gets_earlier_steps_first_and_is_closed_once() -> None:
    class Sink:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def step_committed(self, summary: Any) -> None:
            self.seen.append(summary["step"])

        def close(self) -> None:
            self.seen.append("closed")

    sink, progress = Sink(), RunProgress(None, io.StringIO())
    progress.attach(sink)
    progress.run_started([SUMMARY, {**SUMMARY, "step": 1}], 3)
    progress.step_committed({**SUMMARY, "step": 2}, 3)
    progress.close()
    progress.close()
    assert sink.seen == [0, 1, 2, "closed"]


def test_every_kind_of_event_is_in_the_table_and_no_other() -> None:
    page = (ROOT / "docs/state.md").read_text(encoding="utf-8")
    section = page.partition("\n## Events\n")[2].partition("\n## ")[0]
    documented = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    assert len(documented) == len(set(documented))
    assert set(documented) == kinds_in_code()


async def test_the_events_of_a_run_tell_tokens_judge_seconds_cost_and_where_rollouts_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness.progress, "EVENT_INTERVAL_S", 0.0)
    world = World(tmp_path)
    await world.run(1)
    await world.run(2)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    committed = [event for event in events if event["event"] == "guidance_step_committed"]
    size = world.grid.size
    assert [event["prompt_tokens"] for event in committed] == [10 * size, 10 * size]
    assert [event["totals"]["prompt_tokens"] for event in committed] == [10 * size, 20 * size]
    assert {"judge_s", "cost_usd", "executor_prompt_tokens", "rollout_s", "train_s"} <= set(committed[0])
    assert [event["next_step"] for event in events if event["event"] == "run_started"] == [0, 1]
    waiting = [event for event in events if event["event"] == "rollouts_waiting"]
    assert all(set(event["lanes"]) == {"policy", "executor", "judge"} for event in waiting)
    for lane in ("policy", "executor", "judge"):
        assert {event["lanes"][lane]["active"] for event in waiting} == {0, 1}
    assert max(event["done"] for event in waiting) > 0
