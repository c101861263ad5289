"""What a person and a machine see: nothing of it may be torn, and a log is not flooded."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from harness.lanes import Lane
from harness.progress import RunProgress, step_line

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
