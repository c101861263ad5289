"""The experiment's statistics and records: what a table claims must follow from its rows."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
from support.update_rows import update_row

from benchmarks.experiment.comparison import (
    final_best,
    interval,
    last_third,
    late_naming,
    late_reward,
    late_well_formed,
    paired,
    table,
)
from benchmarks.experiment.curves import draw_curves
from benchmarks.experiment.records import (
    MechanismRow,
    UpdateRow,
    mechanism_rows,
    read_updates,
    update_rows,
    write_rows,
)
from benchmarks.experiment.uniform import UniformPolicy
from executors.catalogue import Catalogue
from harness.parsing import extract_strict_guidance

ROOT = Path(__file__).resolve().parents[2]


def run(seed: int, arm: str, rewards: list[float]) -> list[UpdateRow]:
    return [update_row(seed, arm, number, reward) for number, reward in enumerate(rewards, start=1)]


def test_the_last_third_is_the_last_third_whatever_the_order() -> None:
    rows = run(1, "trained", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    assert [each.update for each in last_third(list(reversed(rows)))] == [6, 7]
    assert late_reward(rows) == pytest.approx(6.5)
    assert [each.update for each in last_third(rows[:2])] == [2]


def test_shares_count_the_rollouts_of_their_own_updates() -> None:
    rows = run(1, "trained", [1.0] * 6)
    assert late_well_formed(rows) == pytest.approx(7 / 8)
    assert late_naming(rows) == pytest.approx(4 / 8)
    assert final_best(rows) == 3.0


def test_the_interval_is_students_t() -> None:
    found = interval([1.0, 2.0, 3.0])
    half = 4.302652729911275 * 1.0 / math.sqrt(3)
    assert (found.pairs, found.mean) == (3, 2.0)
    assert (found.low, found.high) == (pytest.approx(2.0 - half), pytest.approx(2.0 + half))


def test_one_seed_or_none_proves_nothing() -> None:
    assert interval([5.0]).low == -math.inf
    assert interval([]).pairs == 0


def test_pairs_are_seeds_that_both_have_cut_to_the_updates_that_both_have() -> None:
    rows = [
        *run(1, "trained", [1.0, 1.0, 10.0]),
        *run(1, "frozen", [1.0, 1.0, 4.0, 99.0, 99.0, 99.0]),
        *run(2, "trained", [5.0, 5.0, 7.0]),
        *run(2, "frozen", [5.0, 5.0, 5.0]),
        *run(3, "trained", [100.0]),
    ]
    found = paired(rows, "trained", "frozen", late_reward)
    assert (found.pairs, found.mean) == (2, pytest.approx(4.0))


def test_the_table_compares_the_first_arm_with_each_other_one() -> None:
    rows = [*run(1, "trained", [4.0]), *run(2, "trained", [6.0]), *run(1, "frozen", [1.0]), *run(2, "frozen", [2.0])]
    text = table(rows, ["trained", "frozen"])
    assert "trained minus frozen" in text
    assert "+3.500" in text


def test_rows_survive_their_file_with_empty_cells(tmp_path: Path) -> None:
    rows = run(1, "uniform", [1.5, 2.25])
    write_rows(tmp_path / "updates.csv", rows, UpdateRow)
    assert read_updates(tmp_path / "updates.csv") == rows


def test_a_run_is_recorded_from_its_step_summaries() -> None:
    summary = {
        "step": 0,
        "sampled_rollouts": 8,
        "reward_mean": 30.0,
        "reward_max": 40.0,
        "best_raw_score": 41.0,
        "valid_rollouts": 6,
        "well_formed_guidance": 5,
        "zero_signal": False,
        "rollout_s": 3.0,
        "train_s": 2.0,
        "train_metrics": {"train/kl": 0.5, "train/grad_norm": 2.0},
    }
    named = [Counter({"guidance": 3, "skyline": 2, "area": 1})]
    (found,) = update_rows(4, "trained", [summary], named)
    assert (found.seed, found.update, found.evaluations, found.named) == (4, 1, 8, 3)
    assert (found.kl, found.entropy) == (0.5, None)
    assert mechanism_rows(4, "trained", named) == [
        MechanismRow(4, "trained", 1, "skyline", 2),
        MechanismRow(4, "trained", 1, "area", 1),
    ]


async def test_the_uniform_policy_names_every_mechanism_in_the_form_the_search_accepts() -> None:
    catalogue = Catalogue.load(ROOT / "harbor/polyomino_packing/offline")
    policy = UniformPolicy(catalogue)
    replies = [await policy.guide(None, seed=seed) for seed in range(600)]  # type: ignore[arg-type]
    texts = {extract_strict_guidance(reply.text).guidance for reply in replies}
    assert texts == {f"Use {mechanism.name}." for mechanism in catalogue.data.mechanisms}
    assert (await policy.guide(None, seed=7)).text == replies[7].text  # type: ignore[arg-type]


def test_the_same_rows_draw_the_same_picture(tmp_path: Path) -> None:
    rows = [*run(1, "trained", [1.0, 2.0]), *run(1, "frozen", [1.0, 1.0])]
    draw_curves(tmp_path / "a.svg", rows)
    draw_curves(tmp_path / "b.svg", rows)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert b"trained (1 seeds)" in (tmp_path / "a.svg").read_bytes()
