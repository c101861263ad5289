"""docs/configuration.md is made from the code that reads the settings, and says the truth about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from guidance_ttt import config_page
from guidance_ttt.config_page import FILE_MEANINGS, MADE_FOR_THE_FILE, SECTIONS, Readings
from guidance_ttt.config_view import READ_ELSEWHERE, ROWS
from harness.config import RunConfig
from harness.errors import ConfigError
from harness.setting_values import TEXT, Environ, Reading

ROOT = Path(__file__).resolve().parents[2]
ENTRIES = {name: entry for section in SECTIONS for name, entry in section.entries.items()}
NOT_OURS = {"FRONTIERCS_DIR"}


@pytest.fixture(scope="module")
def readings() -> Readings:
    return Readings()


def test_the_page_in_docs_is_the_one_that_is_made() -> None:
    assert (ROOT / "docs/configuration.md").read_text(encoding="utf-8") == config_page.page(), (
        "run: .venv/bin/python -m guidance_ttt.config_page > docs/configuration.md"
    )


def test_every_variable_that_is_read_is_explained_once_and_no_other(readings: Readings) -> None:
    assert len(ENTRIES) == sum(len(section.entries) for section in SECTIONS)
    elsewhere = READ_ELSEWHERE - set(MADE_FOR_THE_FILE)
    assert set(ENTRIES) == (readings.names() - set(MADE_FOR_THE_FILE)) | elsewhere | NOT_OURS
    assert all(entry.meaning for entry in ENTRIES.values())


def test_what_the_settings_do_not_read_is_read_by_the_launcher_or_a_script() -> None:
    files = [*(ROOT / "scripts").iterdir(), ROOT / "run.sh", *(ROOT / "judges").rglob("*.py")]
    files += [path for path in (ROOT / "guidance_ttt").glob("*.py") if path.name not in ("config_page.py",)]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files if "config_view" not in path.name)
    assert [name for name in (READ_ELSEWHERE | NOT_OURS) - set(MADE_FOR_THE_FILE) if name not in text] == []


def test_every_setting_of_the_file_alone_is_explained() -> None:
    assert set(FILE_MEANINGS) == {row.name for row in ROWS if row.key and not row.variables}


def test_kinds_and_defaults_are_written_by_hand_only_where_the_code_tells_none(readings: Readings) -> None:
    for name, entry in ENTRIES.items():
        reading = readings.of(name)
        if reading is not None and reading.kind != TEXT:
            assert (entry.kind, entry.default) == ("", ""), name


def test_a_default_that_is_set_by_hand_changes_nothing(readings: Readings, tmp_path: Path) -> None:
    plain = {"GUIDANCE_STATE_DIR": str(tmp_path), "GUIDANCE_REEF_TOKEN": "t"}
    before = RunConfig.load(plain)
    given = {}
    for name in readings.names():
        reading = readings.by_profile["local"].get(name)
        if reading is not None and reading.default is not None:
            given[name] = str(reading.default)
    assert len(given) > 20
    given["GUIDANCE_WANDB"] = "0"
    assert RunConfig.load({**plain, **given}) == before


def test_a_reading_tells_kind_and_default_whether_or_not_the_variable_is_set() -> None:
    for environ in ({}, {"N": "3", "C": "b", "F": "1", "X": "2.5", "O": "7", "U": "http://h", "T": "t"}):
        readings: dict[str, Reading] = {}
        env = Environ(environ, readings)
        env.integer("N", 2, 1, 9)
        env.integer("M", 0, 1, 10**9)
        env.choice("C", "a", ("a", "b"))
        env.flag("F")
        env.number("X", 1.5, above=0.0)
        env.optional_number("O")
        env.url("U", "http://127.0.0.1:1")
        env.get("T")
        env.get("N")
        assert readings == {
            "N": Reading("whole number, 1 to 9", 2),
            "M": Reading("whole number, at least 1", None),
            "C": Reading("`a`, `b`", "a"),
            "F": Reading("`1` or `0`", 0),
            "X": Reading("number above 0", 1.5),
            "O": Reading("number", None),
            "U": Reading("URL", "http://127.0.0.1:1"),
            "T": Reading("text", None),
        }


def test_a_value_depends_on_what_the_page_says_it_depends_on(readings: Readings) -> None:
    assert readings.default("GUIDANCE_LEARNING_RATE") == "0.0001 (`local`), 4e-5 (`gpu`)"
    assert readings.default("GUIDANCE_REMEASURE").startswith("0 (`polyomino_packing`")
    assert readings.default("GUIDANCE_EXECUTOR_TIMEOUT").startswith("120 (`offline`)")
    assert readings.default("GUIDANCE_PATIENCE") == "-"


@pytest.mark.parametrize("value", ["0", "1", "4096", "4097"])
def test_the_bounds_on_the_page_are_those_that_are_enforced(value: str, tmp_path: Path, readings: Readings) -> None:
    reading = readings.of("GUIDANCE_JUDGE_CONCURRENCY")
    assert reading is not None
    assert reading.kind == "whole number, 1 to 4096"
    environ = {"GUIDANCE_STATE_DIR": str(tmp_path), "GUIDANCE_JUDGE_CONCURRENCY": value}
    if 1 <= int(value) <= 4096:
        assert RunConfig.load(environ).limits.judge == int(value)
    else:
        with pytest.raises(ConfigError, match="from 1 to 4096"):
            RunConfig.load(environ)
