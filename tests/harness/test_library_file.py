"""Saved archives: which files are refused, what a file promises, and older files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from library_examples import SETTINGS, entry, run_step, seeded

from harness.errors import StateCorrupt, StateMismatch
from harness.library import ArchiveSettings, GuidanceLibrary, read_seed_entry


def test_a_file_made_under_other_settings_is_refused_naming_every_field(tmp_path: Path) -> None:
    path = tmp_path / "library.json"
    seeded().save(path)
    other = ArchiveSettings(3, 4, puct_c=2.0, max_buffer_size=9, topk_children=1, score_direction="min")
    with pytest.raises(StateMismatch) as caught:
        GuidanceLibrary.load(path, other)
    for text in (
        str(path),
        "rollout_n: the file has 2, requested 3",
        "groups_per_batch: the file has 2, requested 4",
        "puct_c: the file has 1.0, requested 2.0",
        "max_buffer_size: the file has 1000, requested 9",
        "topk_children: the file has 2, requested 1",
        "score_direction: the file has 'max', requested 'min'",
    ):
        assert text in str(caught.value)
    GuidanceLibrary.load(path, replace(SETTINGS, puct_c=1.0 + 1e-13))


def change(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(path.read_text())
    edit(data)
    path.write_text(json.dumps(data))


def first(table: dict[str, Any]) -> Any:
    return table[sorted(table)[0]]


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda d: d.update(nodes=[]), "nodes must be an object"),
        (lambda d: d["nodes"].update(x=1), r"nodes\['x'\] must be an object"),
        (lambda d: first(d["nodes"]).update(value=True), "node.value must be a number"),
        (lambda d: first(d["nodes"]).update(extra=1), "extra"),
        (lambda d: first(d["nodes"]).pop("visits"), "visits"),
        (lambda d: first(d["nodes"]).update(id="other"), "calls itself 'other'"),
        (lambda d: first(d["entries"]).update(verifier_raw_score="1"), "entry.verifier_raw_score"),
        (lambda d: first(d["nodes"]).update(entry_id="gone"), "missing entry gone"),
        (lambda d: first(d["nodes"]).update(parent_id="gone"), "missing parent gone"),
        (lambda d: first(d["nodes"])["children"].append("gone"), "not its child"),
        (lambda d: first(d["nodes"]).update(children=[]), "does not list its child"),
        (lambda d: d["nodes"].pop(next(i for i, n in d["nodes"].items() if n["parent_id"])), "lists|unknown node"),
        (lambda d: d.update(puct_T=3), "puct_T is 3, but the groups count 4"),
        (lambda d: d.update(puct_T=True), "puct_T must be an integer"),
        (lambda d: d["puct_n"].update(gone=1), "puct_n counts the unknown node gone"),
        (lambda d: d["puct_m"].update(gone=1), "puct_m counts the unknown node gone"),
        (lambda d: first(d["puct_n"]) and d["puct_n"].update({sorted(d["puct_n"])[0]: -1}), "at least 0"),
        (lambda d: first(d["groups"]).update(submitted=1), "finalized|entries"),
        (lambda d: first(d["groups"]).update(submitted=9), "counts 9 of 2"),
        (lambda d: first(d["groups"]).update(finalized=1), "finalized must be true or false"),
        (lambda d: first(d["groups"]).update(entry_ids=["a", "b"]), "missing entry a"),
        (lambda d: first(d["groups"]).update(entry_ids=[]), "lists 0 entries for 2"),
        (lambda d: first(d["groups"]).update(surprise=1), "unknown keys: surprise"),
        (lambda d: first(d["groups"]).update(children="x"), "children must be a list"),
        (lambda d: first(d["groups"]).update(selected_node_id=None), "selected_node_id"),
    ],
)
def test_a_damaged_archive_is_refused_with_what_is_wrong(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object], reason: str
) -> None:
    path = tmp_path / "library.json"
    library = seeded()
    run_step(library, 1, lambda group, rollout: 1.0 + group + rollout)
    library.save(path)
    # Rename the ids so that the first node in the file is a root that has children.
    root_first = sorted(json.loads(path.read_text())["nodes"].items(), key=lambda item: item[1]["parent_id"] or "")
    renamed = {node_id: f"{index:02d}-{node_id}" for index, (node_id, _) in enumerate(root_first)}
    text = path.read_text()
    for old, new in renamed.items():
        text = text.replace(old, new)
    path.write_text(text)
    GuidanceLibrary.load(path, SETTINGS)
    change(path, edit)
    with pytest.raises(StateCorrupt, match=reason) as caught:
        GuidanceLibrary.load(path, SETTINGS)
    assert str(path) in str(caught.value)


def test_a_circle_of_parents_is_refused_instead_of_walked_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "library.json"
    seeded().save(path)

    def tie(data: dict[str, Any]) -> None:
        template = first(data["nodes"])
        data["nodes"]["a"] = {**template, "id": "a", "parent_id": "b", "children": ["b"]}
        data["nodes"]["b"] = {**template, "id": "b", "parent_id": "a", "children": ["a"]}

    change(path, tie)
    with pytest.raises(StateCorrupt, match="its own ancestor"):
        GuidanceLibrary.load(path, SETTINGS)


def test_a_file_with_the_wrong_number_of_roots_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "library.json"
    seeded().save(path)
    change(path, lambda d: (d["config"].pop("groups_per_batch"), d.pop("groups_per_batch")))
    with pytest.raises(StateCorrupt, match="2 roots, but a step has 3 groups"):
        GuidanceLibrary.load(path, replace(SETTINGS, groups_per_step=3))


def test_the_written_bytes_are_exactly_sorted_indented_json_and_saving_again_changes_nothing(tmp_path: Path) -> None:
    library = seeded()
    for step in range(1, 3):
        run_step(library, step, lambda group, rollout: 1.0 + group + rollout)
        library.save(tmp_path / "a.json")
        expected = json.dumps(library.snapshot(), indent=2, sort_keys=True, allow_nan=False) + "\n"
        assert (tmp_path / "a.json").read_text() == expected
    again = GuidanceLibrary.load(tmp_path / "a.json", SETTINGS)
    again.save(tmp_path / "b.json")
    assert (tmp_path / "b.json").read_bytes() == (tmp_path / "a.json").read_bytes()
    data = json.loads(expected)
    assert set(data) == {
        *("nodes", "entries", "groups", "best_node_id", "config", "rollout_n", "puct_c", "puct_n", "puct_m", "puct_T"),
        *("puct_q_mode", "discover_compat", "groups_per_batch", "score_direction"),
    }
    assert set(first(data["groups"])) == {
        *("selected_node_id", "submitted", "children", "finalized", "visible_timestep_exclusive", "entry_ids"),
    }
    data["nodes"].clear()
    assert library.nodes()


def test_the_same_replies_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        library = seeded()
        for step in range(1, 4):
            run_step(library, step, lambda group, rollout: None if group == rollout == 1 else 5.0 * (group + rollout))
        library.save(tmp_path / name)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_an_open_group_survives_a_save_and_goes_on_the_same_way(tmp_path: Path) -> None:
    library = seeded()
    node = library.acquire_group("1:0", visible_timestep_exclusive=1)
    library.submit_child("1:0", entry("a", node.id))
    library.save(tmp_path / "a.json")
    again = GuidanceLibrary.load(tmp_path / "a.json", SETTINGS)
    for one in (library, again):
        assert one.acquire_group("1:0", visible_timestep_exclusive=1).id == node.id
        other = one.acquire_group("1:1", visible_timestep_exclusive=1)
        for name, uid in (("b", "1:0"), ("c", "1:1"), ("d", "1:1")):
            one.submit_child(uid, entry(name, other.id if uid == "1:1" else node.id))
    assert again.snapshot() == library.snapshot()


def legacy_archive() -> dict[str, Any]:
    """One root and its entry as older files have them: no PUCT statistics and none of the newer settings."""
    seed = entry("seed-entry", "seed-root", raw=27.810517627142843, timestep=0)
    root = {
        "id": "seed-root",
        "problem_id": "0",
        "timestep": 0,
        "entry_id": "seed-entry",
        "value": 0.0,
        "raw_score": 27.810517627142843,
        "visits": 3,
        "parent_id": None,
        "children": [],
        "metadata": {"kind": "root"},
    }
    return {
        "nodes": {"seed-root": root},
        "entries": {"seed-entry": seed.to_dict()},
        "best_node_id": "seed-root",
        "config": {"rollout_n": 2, "puct_c": 1, "max_buffer_size": 1000, "topk_children": 2},
    }


def test_an_older_file_without_statistics_is_read(tmp_path: Path) -> None:
    path = tmp_path / "library.json"
    path.write_text(json.dumps(legacy_archive()))
    library = GuidanceLibrary.load(path, replace(SETTINGS, groups_per_step=1))
    assert library.snapshot()["puct_n"] == {"seed-root": 3}
    assert library.snapshot()["puct_T"] == 0
    assert library.node("seed-root").value == 27.810517627142843
    assert library.node("seed-root").metadata["archive_candidate"] is True


def test_another_runs_archive_can_seed_a_new_search(tmp_path: Path) -> None:
    path = tmp_path / "seed.json"
    path.write_text(json.dumps(legacy_archive()))
    seed = read_seed_entry(path)
    library = GuidanceLibrary.from_seed(SETTINGS, seed, run_seed=1)
    assert [root.raw_score for root in library.roots()] == [27.810517627142843] * 2
    change(path, lambda d: first(d["entries"]).update(solution=""))
    with pytest.raises(StateCorrupt, match="no root with a program"):
        read_seed_entry(path)
