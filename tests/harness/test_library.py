"""The archive: what is refused, how parents are chosen and what is kept."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from library_examples import SETTINGS, entry, run_step, seeded

from harness.errors import SeedRejected
from harness.library import ArchiveSettings, GuidanceLibrary, derived_id

# --- settings and seeds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"rollouts_per_group": 0},
        {"rollouts_per_group": True},
        {"groups_per_step": 2.0},
        {"puct_c": float("nan")},
        {"puct_c": "1"},
        {"puct_q_mode": "worst"},
        {"puct_q_mode": "blended"},
        {"max_buffer_size": None},
        {"topk_children": True},
        {"score_direction": "up"},
        {"discover_compat": False},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        replace(SETTINGS, **changes)


def test_settings_are_normalised() -> None:
    assert replace(SETTINGS, score_direction=" MIN ", puct_q_mode="Best_Child", puct_c=1) == replace(
        SETTINGS, score_direction="min"
    )


@pytest.mark.parametrize(
    "changes", [{"verifier_status": "invalid"}, {"verifier_raw_score": None}, {"solution": " \n"}], ids=str
)
def test_a_seed_that_the_judge_did_not_accept_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SeedRejected, match="cannot start a search"):
        GuidanceLibrary.from_seed(SETTINGS, replace(entry("seed"), **changes), run_seed=1)


def test_seeding_gives_exactly_one_root_for_each_group_and_repeats_byte_for_byte(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        seeded(replace(SETTINGS, groups_per_step=8)).save(tmp_path / name)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    for _ in range(5):
        library = GuidanceLibrary.load(tmp_path / "a.json", replace(SETTINGS, groups_per_step=8))
        library.save(tmp_path / "a.json")
    roots = library.roots()
    assert len(roots) == len(library.nodes()) == 8
    assert {root.id for root in roots} == {derived_id(7, "root", index) for index in range(8)}
    assert all(root.metadata["bootstrap"] and root.value == 10.0 for root in roots)
    assert sum("replicated_seed_root" in root.metadata for root in roots) == 7
    entries = [library.entry_of(root) for root in roots]
    assert all(item is not None and item.metadata["bootstrap"] for item in entries)
    assert {item.parent_id for item in entries if item} == {root.id for root in roots}
    assert {root.id for root in seeded(run_seed=8).roots()}.isdisjoint(root.id for root in roots)


# --- selection --------------------------------------------------------------------------------------------------------


def test_nothing_visible_is_an_error_that_names_the_group() -> None:
    library = seeded()
    for root in library.roots():
        root.metadata["archive_candidate"] = False
    with pytest.raises(RuntimeError, match="'1:0': no state with a program"):
        library.acquire_group("1:0", visible_timestep_exclusive=1)
    with pytest.raises(ValueError, match="no state is visible"):
        library.acquire_group("1:0", visible_timestep_exclusive=1, require_solution=False)
    with pytest.raises(ValueError, match="visible_timestep_exclusive"):
        seeded().acquire_group("1:0", visible_timestep_exclusive=True)


def test_asking_again_for_a_group_changes_nothing() -> None:
    library = seeded()
    node = library.acquire_group("1:0", visible_timestep_exclusive=1)
    before = library.snapshot()
    assert library.acquire_group("1:0", visible_timestep_exclusive=1) is node
    assert library.snapshot() == before
    assert node.visits == 1
    with pytest.raises(ValueError, match="visible limit 1, now asked for 2"):
        library.acquire_group("1:0", visible_timestep_exclusive=2)


def test_the_groups_of_a_fresh_archive_get_a_root_each() -> None:
    library = seeded(replace(SETTINGS, groups_per_step=8))
    chosen = {library.acquire_group(f"1:{group}", visible_timestep_exclusive=1).id for group in range(8)}
    assert len(chosen) == 8


def test_with_every_lineage_taken_the_best_state_is_used_again() -> None:
    library = seeded()
    chosen = [library.acquire_group(f"1:{group}", visible_timestep_exclusive=1).id for group in range(3)]
    assert chosen[2] == chosen[0]
    unlimited = {library.acquire_group(f"x{group}", visible_timestep_exclusive=None).id for group in range(3)}
    assert len(unlimited) == 1


def test_states_of_the_running_step_are_invisible_to_its_other_groups() -> None:
    library = seeded()
    first = library.acquire_group("1:0", visible_timestep_exclusive=1)
    library.submit_child("1:0", entry("great", first.id, raw=1e6))
    second = library.acquire_group("1:1", visible_timestep_exclusive=1)
    assert second.is_root
    assert second.id != first.id


# --- submission -------------------------------------------------------------------------------------------------------


def test_submissions_that_do_not_belong_are_refused() -> None:
    library = seeded()
    with pytest.raises(KeyError, match="never acquired"):
        library.submit_child("1:0", entry("a"))
    library.acquire_group("1:0", visible_timestep_exclusive=1)
    first = library.submit_child("1:0", entry("a"), node_id="n")
    assert first is not None
    before = library.snapshot()
    with pytest.raises(ValueError, match="entry a was already submitted"):
        library.submit_child("1:0", entry("a"))
    with pytest.raises(ValueError, match="node n exists already"):
        library.submit_child("1:0", entry("b"), node_id="n")
    assert library.snapshot() == before
    library.submit_child("1:0", entry("b"))
    with pytest.raises(RuntimeError, match="already has its 2 rollouts"):
        library.submit_child("1:0", entry("c"))
    library.check_accounting()


@pytest.mark.parametrize(("status", "raw"), [("invalid", 40.0), ("parse_error", None), ("valid", None)])
def test_a_failed_rollout_is_counted_and_stored_but_never_becomes_a_state(status: str, raw: float | None) -> None:
    library = seeded()
    parent = library.acquire_group("1:0", visible_timestep_exclusive=1)
    failed = replace(entry("bad", parent.id, raw=raw), verifier_status=status, verifier_reward=40.0)
    assert library.submit_child("1:0", failed) is None
    snapshot = library.snapshot()
    assert snapshot["puct_T"] == 1
    assert snapshot["puct_n"] == {parent.id: 1}
    assert snapshot["puct_m"] == {}
    assert library.entry("bad").verifier_reward == 40.0
    assert library.best_node().is_root


def test_a_repeated_program_raises_the_best_child_but_makes_no_second_state() -> None:
    library = seeded()
    parent = library.acquire_group("1:0", visible_timestep_exclusive=1)
    assert library.submit_child("1:0", entry("a", parent.id, raw=5.0, solution="x")) is not None
    assert library.submit_child("1:0", entry("b", parent.id, raw=9.0, solution=" x\n")) is None
    assert library.snapshot()["puct_m"] == {parent.id: 9.0}
    assert library.snapshot()["puct_n"] == {parent.id: 2}


def test_without_a_program_the_summary_tells_candidates_apart_and_without_both_nothing_repeats() -> None:
    library = seeded(replace(SETTINGS, rollouts_per_group=4))
    library.acquire_group("1:0", visible_timestep_exclusive=1)
    made = [
        library.submit_child("1:0", entry(name, solution=" ", summary=summary))
        for name, summary in (("a", "same"), ("b", "same"), ("c", ""), ("d", ""))
    ]
    assert [node is not None for node in made] == [True, False, True, True]


def test_every_ancestor_counts_a_rollout_but_only_the_parent_learns_its_value() -> None:
    library = seeded()
    run_step(library, 1, lambda group, rollout: 20.0 + group * 10 + rollout)
    child = library.acquire_group("2:0", visible_timestep_exclusive=2)
    assert child.value == 31.0
    root_id = library.lineage(child.id)[0].id
    library.submit_child("2:0", entry("grandchild", child.id, raw=99.0, timestep=2))
    snapshot = library.snapshot()
    assert snapshot["puct_n"][root_id] == 3
    assert snapshot["puct_n"][child.id] == 1
    assert snapshot["puct_m"][child.id] == 99.0
    assert snapshot["puct_m"][root_id] == 31.0


def test_the_parent_named_by_the_entry_wins_over_the_groups_own() -> None:
    library = seeded()
    chosen = library.acquire_group("1:0", visible_timestep_exclusive=1)
    other = next(root for root in library.roots() if root.id != chosen.id)
    named = library.submit_child("1:0", entry("a", other.id))
    unknown = library.submit_child("1:0", entry("b", "gone"))
    assert named is not None
    assert named.parent_id == other.id
    assert unknown is not None
    assert unknown.parent_id == chosen.id


def test_the_archive_is_pruned_only_when_the_whole_step_is_in() -> None:
    library = seeded(replace(SETTINGS, rollouts_per_group=3))
    parents = [library.acquire_group(f"1:{group}", visible_timestep_exclusive=1) for group in range(2)]
    for rollout in range(3):
        library.submit_child("1:0", entry(f"a{rollout}", parents[0].id, raw=rollout))
    assert len(library.nodes()) == 5
    for rollout in range(3):
        library.submit_child("1:1", entry(f"b{rollout}", parents[1].id, raw=rollout))
    assert sorted(node.entry_id or "" for node in library.nodes() if not node.is_root) == ["a1", "a2", "b1", "b2"]
    assert library.entry("a0").id == "a0"


def test_a_pruned_ancestor_stays_for_its_descendants_but_is_never_chosen_again() -> None:
    library = seeded(replace(SETTINGS, groups_per_step=1, topk_children=1))
    run_step(library, 1, lambda group, rollout: 20.0 + rollout)
    middle = library.best_node()
    run_step(library, 2, lambda group, rollout: 50.0 + rollout)
    assert library.best_node().parent_id == middle.id
    root = library.roots()[0]
    library.acquire_group("3:0", visible_timestep_exclusive=3)
    library.submit_child("3:0", entry("better-middle", root.id, raw=40.0, timestep=3))
    library.submit_child("3:0", entry("x", root.id, raw=1.0, timestep=3))
    kept = library.node(middle.id)
    assert kept.metadata["archive_candidate"] is False
    assert kept.id not in {item.node.id for item in library.ranking(9)}
    assert [node.id for node in library.lineage(library.best_node().id)][:2] == [root.id, middle.id]


@pytest.mark.parametrize(
    ("direction", "best", "order"), [("max", 1500.0, [1500.0, 1300.0]), ("min", 1100.0, [1100.0, 1200.0])]
)
def test_the_best_is_the_best_raw_score_in_the_tasks_direction(direction: str, best: float, order: list[float]) -> None:
    library = seeded(replace(SETTINGS, score_direction=direction), raw=1300.0)
    scores = {(0, 0): 1200.0, (0, 1): 1100.0, (1, 0): 1500.0, (1, 1): None}
    run_step(library, 1, lambda group, rollout: scores[group, rollout])
    found = library.best_entry()
    assert found is not None
    assert found.verifier_raw_score == best
    assert library.snapshot()["best_node_id"] == library.best_node().id
    assert [node.raw_score for node in library.top_candidates(2)] == order
    assert library.ranking(9)[0].node.raw_score is not None


def test_the_best_keeps_the_step_and_rollout_that_found_it() -> None:
    library = seeded()
    run_step(library, 1, lambda group, rollout: 90.0 if (group, rollout) == (1, 0) else 5.0 + group + rollout)
    for step in range(2, 6):
        run_step(library, step, lambda group, rollout: 20.0 + group + rollout)
    found = library.best_entry()
    assert found is not None
    assert (found.id, found.timestep) == ("e1-1-0", 1)


def test_top_candidates_are_different_programs() -> None:
    library = seeded(replace(SETTINGS, groups_per_step=4))
    assert len(library.top_candidates(3)) == 1
    assert library.top_candidates(0) == []


def test_a_constant_step_of_equal_scores_still_chooses_the_next_parents() -> None:
    library = seeded()
    for step in range(1, 4):
        run_step(library, step, lambda group, rollout: 10.0)
    library.check_accounting()


# --- speed ------------------------------------------------------------------------------------------------------------


def test_a_large_archive_stays_fast() -> None:
    library = seeded(ArchiveSettings(125, 8, topk_children=0, max_buffer_size=0))
    run_step(library, 1, lambda group, rollout: float(group * 125 + rollout))
    assert len(library.nodes()) == 1_008
    started = time.perf_counter()
    for group in range(8):
        library.acquire_group(f"2:{group}", visible_timestep_exclusive=2)
    selecting_s = time.perf_counter() - started
    parent = library.group("2:0").selected_node_id
    started = time.perf_counter()
    for rollout in range(100):
        library.submit_child("2:0", entry(f"s{rollout}", parent, raw=1e4 + rollout, timestep=2))
    submitting_s = (time.perf_counter() - started) / 100
    assert selecting_s < 0.2, "a few milliseconds are expected; this only catches a wrong order of growth"
    assert submitting_s < 0.01
