"""`guidance-ttt inspect`: the archive, one candidate, its lineage and the settings, from the state directory alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from front_state import searched
from support.fake_services import FakeExecutor, FakeJudge, FakeReef
from support.search_fixture import World

from guidance_ttt.archive_view import ArchiveView
from guidance_ttt.inspect import EntryFacts, inspect_archive, program_diff
from guidance_ttt.terminal import one_line, safe_json, visible
from harness.errors import ConfigError, StateCorrupt, StateError
from harness.grid import Grid
from harness.storage import read_json_object, write_json

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m[bold red]x[/bold red]\u202egnp.exe\r\u2028\x7f"
ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    searched(folder, steps=3, grid=Grid(2, 3))
    return folder


@pytest.fixture(scope="module")
def hostile_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search whose policy and executor answer with everything that acts on a terminal."""
    folder = tmp_path_factory.mktemp("hostile")
    world = World(folder / "guidance-run", Grid(1, 2))
    world.reef = FakeReef(world.grid, lambda seed: f"<guidance>{HOSTILE} {seed}</guidance>")
    text = "<solution>\n```cpp\nint main() {{}} // {0} {1}\n```\n</solution>\n<summary>{0} {1}</summary>"
    world.executor = FakeExecutor(lambda guidance, call: text.format(HOSTILE, call))
    world.judge = FakeJudge()
    searched(folder, steps=1, world=world)
    return folder


def archive_of(state: Path) -> dict[str, Any]:
    return read_json_object(state / "guidance-run" / "committed-library.json")


def as_json(state: Path, name: str | None = None, *, lineage: bool = False) -> Any:
    return json.loads(inspect_archive(state, name, lineage=lineage, as_json=True))


def text_of(state: Path, name: str | None = None, *, lineage: bool = False) -> str:
    return inspect_archive(state, name, lineage=lineage, as_json=False)


def guidance_ttt(*arguments: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GUIDANCE_")}
    command = [sys.executable, "-c", "from guidance_ttt.cli import main; main()", *arguments]
    return subprocess.run(command, env={**plain, **environ}, capture_output=True, timeout=60, check=False)


# --- the tree ---------------------------------------------------------------------------------------------------------


def test_the_tree_shows_every_state_with_its_score_and_visits(state: Path) -> None:
    archive = archive_of(state)
    shown = {item["node_id"]: item for item in as_json(state)["states"]}
    assert set(shown) == set(archive["nodes"])
    for node_id, node in archive["nodes"].items():
        assert shown[node_id]["raw_score"] == node["raw_score"]
        assert shown[node_id]["visits"] == archive["puct_n"].get(node_id, 0)
        assert shown[node_id]["best"] == (node_id == archive["best_node_id"])
        if node["parent_id"] is not None:
            assert shown[node_id]["depth"] == shown[node["parent_id"]]["depth"] + 1


def test_the_text_marks_the_best_and_counts_what_was_not_kept(state: Path) -> None:
    archive = archive_of(state)
    best = archive["nodes"][archive["best_node_id"]]
    text = text_of(state)
    assert f"{len(archive['entries']) - 2} (valid " in text
    marked = [line for line in text.splitlines() if "* " in line and "the best" not in line]
    assert len(marked) == 1
    assert f"{best['raw_score']:.4f}" in marked[0]
    assert best["entry_id"][:8] in marked[0]
    assert "not kept: valid" in text


def test_better_states_come_first_below_each_parent(state: Path) -> None:
    states = as_json(state)["states"]
    assert states[0]["depth"] == 0
    for parent in {item["parent_id"] for item in states}:
        scores = [item["raw_score"] for item in states if item["parent_id"] == parent]
        assert scores == sorted(scores, reverse=True)
    assert any(len([item for item in states if item["parent_id"] == parent["node_id"]]) > 1 for parent in states)


def test_lower_scores_are_better_where_the_archive_says_so(state: Path) -> None:
    view = ArchiveView(Path("a"), {**archive_of(state), "score_direction": "min"})
    assert view.lower_is_better
    from guidance_ttt.inspect import render_archive

    assert "(lower is better)" in render_archive(view)


def test_a_directory_without_an_archive_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="holds no run; start one with"):
        text_of(tmp_path)
    (tmp_path / "guidance-run").mkdir()
    with pytest.raises(StateError, match="holds no archive yet"):
        text_of(tmp_path)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"nodes": []}, "nodes must be an object"),
        ({"entries": {"e": 1}}, "entries must hold objects only"),
        ({"nodes": {"n": {"id": "n"}}}, "is not a valid archive"),
    ],
)
def test_a_damaged_archive_is_named(state: Path, tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    write_json(tmp_path / "guidance-run" / "committed-library.json", {**archive_of(state), **change})
    with pytest.raises(StateCorrupt, match=complaint):
        text_of(tmp_path)


def test_states_and_lineages_that_run_in_a_circle_are_refused(state: Path) -> None:
    archive = archive_of(state)
    child = next(node for node in archive["nodes"].values() if node["parent_id"] is not None)
    archive["nodes"][child["parent_id"]]["parent_id"] = child["id"]
    view = ArchiveView(Path("a"), archive)
    with pytest.raises(StateCorrupt, match="run in a circle"):
        list(view.tree())
    first, second = list(archive["entries"])[:2]
    for one, other in ((first, second), (second, first)):
        archive["entries"][one]["metadata"] = {"selected_parent_entry_id": other}
    with pytest.raises(StateCorrupt, match="runs in a circle"):
        view.lineage(ArchiveView(Path("a"), archive).entry(first))


# --- one candidate ----------------------------------------------------------------------------------------------------


def test_one_entry_is_shown_in_full_with_its_receipt_and_its_journal_lines(state: Path) -> None:
    archive = archive_of(state)
    entry = archive["entries"][archive["nodes"][archive["best_node_id"]]["entry_id"]]
    facts = as_json(state, "best")
    assert facts["entry"] == entry
    assert facts["best"] is True
    assert facts["receipt"] == entry["metadata"]["agent_record_id"]
    lines = Path(facts["journal"]["path"]).read_text().splitlines()
    for kind, number in facts["journal"]["lines"].items():
        record = json.loads(lines[number - 1])
        assert record["kind"] == kind
        assert (record["group"], record["rollout"]) == (facts["group"], facts["rollout"])
    assert json.loads(lines[facts["journal"]["lines"]["guidance"] - 1])["receipt"] == facts["receipt"]
    assert facts["verdict"]["raw_score"] == entry["verifier_raw_score"]
    text = text_of(state, "best")
    for part in (entry["guidance"], entry["solution"], entry["summary"], facts["receipt"], "(the best)", "@@ "):
        assert part in text


def test_an_entry_is_found_by_its_beginning_its_states_id_and_by_name(state: Path) -> None:
    view = ArchiveView.load(state)
    entry_id = view.best.id
    node = view.node_of(entry_id)
    assert node is not None
    for name in (entry_id, view.short_id(entry_id), entry_id.upper(), node.id, node.id[:12], "BEST"):
        assert view.find(name).id == entry_id
    assert view.find("seed").timestep == 0
    assert "replicated_seed_entry" not in view.find("seed").metadata


def test_the_submitted_program_is_found_once_there_is_one(state: Path) -> None:
    view = ArchiveView.load(state)
    with pytest.raises(StateError, match="nothing was submitted yet"):
        view.find("submitted")
    record = state / "guidance-run" / "submission.json"
    write_json(record, {"entry_id": view.entry_ids[-1]})
    try:
        assert view.find("submitted").id == view.entry_ids[-1]
    finally:
        record.unlink()


def test_an_unknown_and_an_ambiguous_name_are_refused_with_a_cure(state: Path) -> None:
    view = ArchiveView.load(state)
    with pytest.raises(ConfigError, match=r"begins with 'zzz'; `guidance-ttt inspect` lists"):
        view.find("zzz")
    with pytest.raises(ConfigError, match="the entry's name is empty"):
        view.find(" ")
    some = view.entry_ids[0]
    twin = {**archive_of(state)["entries"][some], "id": some[:9] + "twin"}
    doubled = archive_of(state)
    doubled["entries"][twin["id"]] = twin
    view = ArchiveView(Path("a"), doubled)
    with pytest.raises(ConfigError, match="is the beginning of 2 entries"):
        view.find(some[:9])
    assert view.short_id(some) == some[:10]


def test_the_diff_leads_from_the_parents_program_to_this_one(state: Path) -> None:
    view = ArchiveView.load(state)
    facts = EntryFacts.of(view, view.best)
    assert facts.parent is not None
    assert facts.diff is not None
    removed = [line[1:] for line in facts.diff.splitlines()[2:] if line.startswith("-")]
    added = [line[1:] for line in facts.diff.splitlines()[2:] if line.startswith("+")]
    assert set(removed) <= set(facts.parent.solution.splitlines())
    assert set(added) <= set(facts.entry.solution.splitlines())
    long = view.best.to_dict() | {"solution": "x\n" * 10_000}
    from harness.state import LibraryEntry

    assert program_diff(facts.parent, LibraryEntry.from_dict(long)) is None


def test_the_seed_has_no_parent_and_no_journal(state: Path) -> None:
    facts = as_json(state, "seed")
    assert (facts["parent_entry_id"], facts["journal"], facts["receipt"], facts["diff_to_parent"]) == (None,) * 4
    assert "(the seed)" in text_of(state, "seed")


# --- lineage ----------------------------------------------------------------------------------------------------------


def test_the_lineage_leads_from_the_seed_to_the_winner_with_each_guidance_and_score(state: Path) -> None:
    hops = as_json(state, lineage=True)
    entries = archive_of(state)["entries"]
    assert hops[0]["step"] == 0
    assert hops[-1]["entry_id"] == as_json(state, "best")["entry"]["id"]
    for before, after in pairwise(hops):
        assert after["parent_entry_id"] == before["entry_id"]
        entry = entries[after["entry_id"]]
        assert (after["guidance"], after["raw_score"]) == (entry["guidance"], entry["verifier_raw_score"])
        assert entry["metadata"]["selected_parent_entry_id"] == before["entry_id"]
    text = text_of(state, lineage=True)
    assert all(hop["guidance"] in text for hop in hops)


def test_a_lineage_outlives_the_pruning_of_its_states(state: Path) -> None:
    archive = archive_of(state)
    view = ArchiveView(Path("a"), archive)
    deep = max((view.entry(entry_id) for entry_id in view.entry_ids), key=lambda entry: entry.timestep)
    before = [entry.id for entry in view.lineage(deep)]
    pruned = ArchiveView(Path("a"), {**archive, "nodes": {}, "best_node_id": None})
    assert [entry.id for entry in pruned.lineage(pruned.entry(deep.id))] == before
    assert len(before) > 1


# --- hostile text -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [None, "best", "seed"])
@pytest.mark.parametrize("form", ["text", "json"])
def test_nothing_that_a_model_wrote_acts_on_the_terminal(hostile_state: Path, name: str | None, form: str) -> None:
    for lineage in (False, True):
        shown = inspect_archive(hostile_state, name, lineage=lineage, as_json=form == "json")
        assert ACTS.search(shown) is None
        if name != "seed":
            assert "[bold red]x[/bold red]" in shown


def test_the_command_prints_hostile_text_as_it_was_made_safe(hostile_state: Path) -> None:
    done = guidance_ttt("inspect", "best", "--state-dir", str(hostile_state))
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode() == text_of(hostile_state, "best") + "\n"
    assert "\\x1b]0;owned\\x07" in done.stdout.decode()
    entry = as_json(hostile_state, "best")["entry"]
    assert HOSTILE.split("\r")[0] in entry["solution"]


def test_text_is_shown_as_text() -> None:
    assert visible("a\tb\r\nc\x1b[0m\ud800\u202e\x9b") == "a\tb\nc\\x1b[0m\\ud800\\u202e\\x9b"
    assert one_line("a\n b" + "x" * 300, 10) == "a bxxxx..."
    assert json.loads(safe_json({"x": "\x7f\x1b\ud800é"})) == {"x": "\x7f\x1b\ud800é"}
    assert ACTS.search(safe_json({"x": "\x7f\x1b\ud800\u202e"})) is None


def test_a_reader_that_leaves_early_is_no_traceback(state: Path) -> None:
    inspect = f"{sys.executable} -c 'from guidance_ttt.cli import main; main()' inspect best --state-dir {state}"
    command = f"{inspect} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("entry")
    assert "Traceback" not in done.stderr
