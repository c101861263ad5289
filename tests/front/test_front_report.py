"""`guidance-ttt report`: what the page and the tables say is what the state holds, and nothing on the page acts."""

from __future__ import annotations

import hashlib
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from front_report import HOSTILE, Report, archive_of, change, copy_of, hostile, measured, report_on, summaries_of
from front_state import large_state, searched
from support.search_fixture import World

from guidance_ttt.report.page import MAX_HOPS, MAX_PAGE_BYTES, MAX_PAGE_NODES, MAX_UPDATE_ROWS
from guidance_ttt.report.writing import write_report
from harness.errors import StateCorrupt, StateError
from harness.grid import Grid
from harness.run_state import RunStateStore
from harness.storage import read_json_object, write_json

SHOWN = {
    "html", "head", "meta", "title", "style", "body", "header", "nav", "main", "section", "footer", "p", "h1", "h2",
    "h3", "a", "dl", "div", "dt", "dd", "figure", "figcaption", "b", "i", "span", "svg", "path", "text", "circle",
    "table", "thead", "tbody", "tr", "th", "td", "ol", "ul", "li", "blockquote", "details", "summary", "pre", "code",
}  # fmt: skip
"""The elements of the template; anything else was made by a text."""
ACTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measured(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def report(state: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return report_on(state, tmp_path_factory.mktemp("out") / "toy.html")


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return report_on(hostile(tmp_path_factory.mktemp("hostile")), tmp_path_factory.mktemp("out") / "hostile.html")


def best_of(state: Path) -> dict[str, Any]:
    archive = archive_of(state)
    best: dict[str, Any] = archive["entries"][archive["nodes"][archive["best_node_id"]]["entry_id"]]
    return best


# --- the tables -------------------------------------------------------------------------------------------------------


def test_the_table_of_updates_holds_exactly_what_the_committed_steps_recorded(state: Path, report: Report) -> None:
    summaries = summaries_of(state)
    assert [int(row["update"]) for row in report.updates] == [item["step"] + 1 for item in summaries]
    for row, summary in zip(report.updates, summaries, strict=True):
        assert float(row["reward_mean"]) == pytest.approx(summary["reward_mean"], rel=1e-15)
        for column, key in (
            ("reward_max", "reward_max"),
            ("best_score", "best_raw_score"),
            ("gain", "best_gain"),
            ("grad_norm", "grad_norm"),
            ("rollout_s", "rollout_s"),
            ("train_s", "train_s"),
            ("well_formed_guidance", "well_formed_guidance"),
            ("evaluations", "sampled_rollouts"),
            ("valid", "valid_rollouts"),
        ):
            assert float(row[column]) == summary[key], column
        assert float(row["kl"]) == summary["train_metrics"]["train/kl"]
        assert float(row["entropy"]) == summary["train_metrics"]["train/entropy"]
        statuses = summary["statuses"]
        assert int(row["rejected"]) == statuses.get("invalid", 0)
        assert int(row["guidance_malformed"]) == statuses.get("guidance_format_error", 0)
    assert sum(int(row["rejected"]) for row in report.updates) > 0
    assert sum(int(row["guidance_malformed"]) for row in report.updates) > 0


def test_the_table_of_rollouts_holds_every_candidate_bit_for_bit(state: Path, report: Report) -> None:
    entries = {key: value for key, value in archive_of(state)["entries"].items() if value["timestep"]}
    assert {row["entry_id"] for row in report.rollouts} == set(entries)
    for row in report.rollouts:
        entry = entries[row["entry_id"]]
        score = entry["verifier_raw_score"]
        assert row["raw_score"] == ("" if score is None else repr(score))
        assert float(row["reward"]) == entry["verifier_reward"]
        assert (row["status"], row["guidance"]) == (entry["verifier_status"], entry["guidance"])
        assert (int(row["update"]), int(row["rollout"])) == (entry["timestep"], entry["metadata"]["rollout"])
        program = entry["solution"]
        assert row["program_sha256"] == (hashlib.sha256(program.encode()).hexdigest() if program else "")
    assert [row["entry_id"] for row in report.rollouts if row["best"] == "true"] == [best_of(state)["id"]]
    improved = [float(row["raw_score"]) for row in report.rollouts if row["new_best"] == "true"]
    assert improved == sorted(improved)
    assert improved[-1] == best_of(state)["verifier_raw_score"]


def test_a_text_that_a_spreadsheet_would_run_is_written_as_text(state: Path, tmp_path: Path) -> None:
    copied = copy_of(state, tmp_path)
    archive = archive_of(copied)
    entry = next(item for item in archive["entries"].values() if item["timestep"] and item["guidance"])
    entry["guidance"] = '=HYPERLINK("http://x")\n\x07-1'
    write_json(copied / "guidance-run" / "committed-library.json", archive)
    row = next(r for r in report_on(copied, tmp_path / "r.html").rollouts if r["entry_id"] == entry["id"])
    assert row["guidance"] == '\'=HYPERLINK("http://x")\n\\x07-1'


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_first_screen_holds_the_archives_numbers(state: Path, report: Report) -> None:
    best, text = best_of(state), report.page.flat
    assert f"Best score {best['verifier_raw_score']:.4f}" in text
    assert f"found in update {best['timestep']}" in text
    assert "Seed 1.0000" in text
    assert f"Evaluations {len(report.rollouts)}" in text
    assert "Updates 3 of 2 groups x 4 rollouts" in text


def test_the_lineage_shows_the_guidance_and_the_changes_of_every_hop(state: Path, report: Report) -> None:
    from guidance_ttt.archive_view import ArchiveView
    from guidance_ttt.inspect import hops_to, program_diff

    view = ArchiveView.load(state)
    hops = hops_to(view, view.best)
    assert len(hops) > 1
    for hop in hops[1:]:
        assert hop.parent is not None
        assert hop.entry.guidance in report.page.text
        diff = program_diff(hop.parent, hop.entry)
        assert diff is not None
        for line in diff.splitlines()[2:]:
            assert line in report.page.text
    assert view.best.solution in report.page.text


def test_every_section_is_there_and_the_navigation_reaches_it(report: Report) -> None:
    ids = {attrs["id"] for _, attrs in report.page.tags if "id" in attrs}
    links = {str(attrs["href"])[1:] for tag, attrs in report.page.tags if tag == "a"}
    assert links <= ids
    assert {"progress", "training", "verdicts", "lineage", "program", "updates", "configuration"} <= ids
    assert {"reproduce", "caveats"} <= ids
    for title in ("KL to the base model", "Entropy", "Gradient norm", "Guidance length", "Step time", "Reward"):
        assert title in report.page.text


def test_a_panel_without_numbers_is_left_out(state: Path, tmp_path: Path) -> None:
    copied = copy_of(state, tmp_path)
    path = copied / "guidance-run" / "resume-state.json"
    change(path, step_summaries=[{**item, "train_metrics": {}} for item in summaries_of(copied)])
    text = report_on(copied, tmp_path / "r.html").page.text
    assert "KL to the base model" not in text
    assert "Entropy" not in text
    assert "Gradient norm" in text


def test_the_hashes_are_those_of_the_programs_and_the_files(state: Path, report: Report) -> None:
    text = report.page.text
    assert hashlib.sha256(best_of(state)["solution"].encode()).hexdigest() in text
    for name in ("committed-library.json", "resume-state.json", "task-identity.json"):
        assert hashlib.sha256((state / "guidance-run" / name).read_bytes()).hexdigest() in text


def test_a_frozen_policy_is_named_where_its_numbers_stand(tmp_path: Path) -> None:
    world = World(tmp_path / "guidance-run", Grid(1, 2), policy_frozen=True)
    searched(tmp_path, steps=1, world=world)
    change(tmp_path / "guidance-run" / "resume-state.json", policy_frozen=True)
    text = report_on(tmp_path, tmp_path / "r.html").page.flat
    assert "frozen: a control run, no update changed it" in text
    assert "whose result owes nothing to training" in text
    assert "GUIDANCE_FREEZE_POLICY=1" in text


def test_a_trained_policy_comes_with_the_warning_that_a_gain_proves_nothing(report: Report) -> None:
    assert "does not show that training helped" in report.page.flat
    assert "one run with one seed" in report.page.flat


def test_the_settings_come_with_their_sources_and_with_what_the_state_is_bound_to(state: Path, tmp_path: Path) -> None:
    copied = copy_of(state, tmp_path)
    change(copied / "guidance-run" / "task-identity.json", task="ahc058", run_seed=41, search_problem="ahc058")
    found = report_on(copied, tmp_path / "r.html", GUIDANCE_STEPS="9", OTHER="x")
    cells = [text for text in found.page.texts if text.strip()]
    assert cells[cells.index("run_seed") + 1 : cells.index("run_seed") + 3] == ["41", "state directory"]
    assert cells[cells.index("steps") + 1 : cells.index("steps") + 3] == ["9", "environment (GUIDANCE_STEPS)"]
    assert "GUIDANCE_RUN_SEED=41" in found.page.text
    cells = [text for text in report_on(copied, tmp_path / "r.html").page.texts if text.strip()]
    assert cells[cells.index("steps") + 1 : cells.index("steps") + 3] == ["3", "state directory"]


# --- nothing acts -----------------------------------------------------------------------------------------------------


def test_no_text_of_a_model_becomes_an_element_or_an_attribute(attacked: Report) -> None:
    assert {tag for tag, _ in attacked.page.tags} <= SHOWN
    for tag, attrs in attacked.page.tags:
        assert not [name for name in attrs if name.startswith("on") or name in ("src", "srcdoc", "xlink:href")], tag
    assert "<script>" in attacked.page.text
    assert "onerror=" in attacked.page.text
    assert "{{ 7*7 }}" in attacked.page.text
    assert "49" not in re.findall(r"gnp.{0,30}", attacked.page.text)
    assert sum(HOSTILE[:40] in text for text in attacked.page.texts) > 5


def test_no_character_that_acts_reaches_the_page_or_the_tables(attacked: Report) -> None:
    written = attacked.written
    for path in (written.page, written.updates, written.rollouts):
        assert ACTIVE.search(path.read_text(encoding="utf-8")) is None
    assert "\\u202egnp" in attacked.page.text
    assert "\\x00" in attacked.page.text


@pytest.mark.parametrize("which", ["report", "attacked"])
def test_the_page_loads_nothing_and_forbids_scripts(which: str, request: pytest.FixtureRequest) -> None:
    page = request.getfixturevalue(which).page
    for tag, attrs in page.tags:
        for name in ("href", "src", "action", "data", "poster", "style"):
            assert str(attrs.get(name, "#")).startswith("#"), (tag, attrs)
    assert "url(" not in "".join(page.styles)
    assert "@import" not in "".join(page.styles)
    policies = [attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_no_secret_is_shown_wherever_it_turns_up(state: Path, tmp_path: Path) -> None:
    copied = copy_of(state, tmp_path)
    run_dir = copied / "guidance-run"
    (copied / "stack").mkdir()
    (copied / "stack" / "reef-token").write_text("reef-token-value-1234\n", encoding="ascii")
    key = "sk-<&\"'>-abcdefgh"
    archive = archive_of(copied)
    best = archive["entries"][archive["nodes"][archive["best_node_id"]]["entry_id"]]
    best |= {"guidance": f"use {key}", "summary": f"{'x' * 1190} {key}", "solution": f"// reef-token-value-1234 {key}"}
    write_json(run_dir / "committed-library.json", archive)
    with (run_dir / "events.jsonl").open("a", encoding="utf-8") as events:
        events.write(json.dumps({"event": "run_failed", "time": "t", "error": "E", "message": f"refused {key}"}) + "\n")
    found = report_on(copied, tmp_path / "r.html", OPENROUTER_API_KEY=key)
    everything = found.page.text + "".join(map(str, [*found.rollouts, *found.updates]))
    for part in (key, "abcdefgh", "reef-token-value"):
        assert part not in everything
    assert everything.count("[redacted]") >= 5


# --- other states -----------------------------------------------------------------------------------------------------


def test_a_state_with_nothing_but_the_seed_gives_a_report(tmp_path: Path) -> None:
    World(tmp_path / "guidance-run")._library(RunStateStore(tmp_path / "guidance-run", {"task": "toy"}, {}))
    found = report_on(tmp_path, tmp_path / "r.html")
    assert "nothing better was found" in found.page.text
    assert (found.updates, found.rollouts) == ([], [])
    assert "No update yet" in found.page.text


def test_a_directory_without_a_run_and_a_damaged_one_are_named(tmp_path: Path, state: Path) -> None:
    with pytest.raises(StateError, match="holds no run; start one with"):
        write_report(tmp_path, tmp_path / "r.html", environ={})
    copied = copy_of(state, tmp_path)
    (copied / "guidance-run" / "committed-library.json").write_text("{", encoding="utf-8")
    with pytest.raises(StateCorrupt, match=r"committed-library\.json"):
        write_report(copied, tmp_path / "r.html", environ={})
    assert not (tmp_path / "r.html").exists()


def test_lower_scores_are_better_where_the_archive_says_so(state: Path, tmp_path: Path) -> None:
    copied = copy_of(state, tmp_path)
    archive = archive_of(copied)
    change(copied / "guidance-run" / "committed-library.json", score_direction="min", config={})
    found = report_on(copied, tmp_path / "r.html")
    assert "lower is better" in found.page.text
    scores = [e["verifier_raw_score"] for e in archive["entries"].values() if e["verifier_status"] == "valid"]
    assert float(found.updates[-1]["best_score"]) == min(scores)


def test_an_unfinished_and_a_stopped_run_say_so(tmp_path: Path) -> None:
    grid = large_state(tmp_path, steps=2, grid=Grid(2, 4))
    events = tmp_path / "guidance-run" / "events.jsonl"
    started = {"event": "guidance_step_started", "time": "2026-01-02T03:04:05Z", "step": 2, "total_steps": 5}
    events.write_text(json.dumps(started) + "\n", encoding="utf-8")
    found = report_on(tmp_path, tmp_path / "r.html")
    assert len(found.rollouts) == 2 * grid.size
    assert "not running, 2 of 5 updates done" in found.page.text
    assert "2026-01-02 03:04" in found.page.text
    stopped = {"event": "run_stopped", "time": "2026-01-02T03:05:05Z", "reason": "<b>patience</b>"}
    with events.open("a", encoding="utf-8") as log:
        log.write("no event\n" + json.dumps(stopped) + "\n")
    assert "stopped: <b>patience</b>" in report_on(tmp_path, tmp_path / "r.html").page.text


def test_retries_are_counted_for_the_update_they_fell_into(state: Path, tmp_path: Path) -> None:
    copied = copy_of(state, tmp_path)
    lines = []
    for line in (copied / "guidance-run" / "events.jsonl").read_text(encoding="utf-8").splitlines():
        lines.append(line)
        if json.loads(line)["event"] == "guidance_step_started" and json.loads(line)["step"] == 1:
            lines += [json.dumps({"event": "retry", "service": "judge", "reason": "x"})] * 3
    (copied / "guidance-run" / "events.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = report_on(copied, tmp_path / "r.html")
    assert [row["service_retries"] for row in found.updates] == ["0", "3", "0"]


# --- size -------------------------------------------------------------------------------------------------------------


def test_the_largest_page_stays_below_its_bounds_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    worst_state(tmp_path)
    found = report_on(tmp_path, tmp_path / "r.html")
    assert found.written.page.stat().st_size < MAX_PAGE_BYTES
    assert len(found.page.tags) < MAX_PAGE_NODES
    text = found.page.flat
    assert "more characters are not shown here; guidance-ttt export --program FILE writes them all" in text
    assert re.search(r"more characters are not shown here; guidance-ttt inspect \w+ shows them all", text)
    assert f"{41 - MAX_HOPS} hops are not shown here" in text
    assert f"The last {MAX_UPDATE_ROWS} updates" in text
    assert len(found.updates) == 240


def worst_state(state_dir: Path) -> None:
    """240 updates, a lineage of 40 hops, and texts that grow as much as possible when they are escaped."""
    large_state(state_dir, steps=240, grid=Grid(1, 2), program_chars=10)
    run_dir = state_dir / "guidance-run"
    archive = read_json_object(run_dir / "committed-library.json")
    best = archive["entries"][archive["nodes"][archive["best_node_id"]]["entry_id"]]
    chain = [entry for entry in sorted(archive["entries"].values(), key=lambda e: e["timestep"]) if entry is not best]
    chain = [chain[0], *[entry for entry in chain if entry["timestep"]][:39], best]
    for number, (parent, entry) in enumerate(pairwise(chain)):
        entry["metadata"] = {"selected_parent_entry_id": parent["id"]}
        entry |= {"guidance": "'" * 9000, "summary": '"' * 9000}
        entry["solution"] = "\n".join(f"<{line}" if line % 2 else f'"{number}.{line}' for line in range(1950))
    best["solution"] = "\n".join(['"' * 40] * 2900 + ["'" * 10_000])
    write_json(run_dir / "committed-library.json", archive)
