"""A broken catalogue is refused before anything is served, with the place of the fault."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executors.catalogue import Catalogue, CatalogueError

BASE: dict[str, Any] = {
    "format": 1,
    "task": "toy",
    "fence": "cpp",
    "comment": "//",
    "config_name": "toy-config",
    "components": ["main.hpp"],
    "settings": [
        {"key": "colour", "about": "hue", "default": "red", "values": {"red": "It is red.", "blue": "It is blue."}},
        {"key": "size", "about": "the size", "default": "small", "values": {"small": "Small.", "big": "Big."}},
    ],
    "dormant": [{"key": "size", "unless": {"colour": ["blue"]}, "because": "red things have one size"}],
    "features": {"ink": [{"colour": ["blue"]}]},
    "mechanisms": [
        {"id": "paint", "name": "blue paint", "phrases": ["blue"], "sets": {"colour": "blue"}, "effect": "is blue"},
        {"id": "grow", "name": "growth", "phrases": [], "sets": {"size": "big"}, "effect": "is big"},
    ],
}

BREAKS: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    ("another format", lambda d: d.update(format=2), "format 2 is not known"),
    ("an unknown key", lambda d: d.update(colour="x"), "colour"),
    ("a default that is no value", lambda d: d["settings"][0].update(default="green"), "'green'"),
    ("a setting twice", lambda d: d["settings"].append(d["settings"][0]), "'colour' is there twice"),
    ("a mechanism twice", lambda d: d["mechanisms"].append(d["mechanisms"][0]), "'paint' is there twice"),
    ("an unknown setting", lambda d: d["mechanisms"][0].update(sets={"taste": "x"}), "'taste', which does not exist"),
    ("an unknown value", lambda d: d["mechanisms"][0].update(sets={"colour": "green"}), "colour = green"),
    ("a mechanism without effect", lambda d: d["mechanisms"][0].update(sets={}), "sets"),
    ("a need of nothing", lambda d: d["mechanisms"][0].update(needs={"size": "huge"}), "size = huge"),
    ("a rung that is no value", lambda d: d["settings"][0].update(ladder=["red", "green"]), "the ladder of 'colour'"),
    ("a rung twice", lambda d: d["settings"][0].update(ladder=["red", "blue", "red"]), "the ladder of 'colour'"),
    ("a ladder from elsewhere", lambda d: d["settings"][0].update(ladder=["blue", "red"]), "the default first"),
    ("an unknown conflict", lambda d: d["mechanisms"][0].update(conflicts=["shrink"]), "'shrink'"),
    ("a conflict with itself", lambda d: d["mechanisms"][0].update(conflicts=["paint"]), "no other mechanism"),
    ("a shared wording", lambda d: d["mechanisms"][1].update(phrases=["Blue-Paint"]), "share the wording 'blue paint'"),
    ("a dormant rule on nothing", lambda d: d["dormant"][0].update(unless={"colour": ["green"]}), "colour = green"),
    ("a feature on nothing", lambda d: d["features"].update(ink=[{"taste": ["x"]}]), "'taste'"),
    ("a feature named like a setting", lambda d: d["features"].update(size=[]), "name of a setting"),
    ("a missing component", lambda d: d.update(components=["main.hpp", "none.hpp"]), "none.hpp"),
    ("a component outside", lambda d: d.update(components=["../main.hpp"]), "lies outside"),
]


def write(directory: Path, data: dict[str, Any], main: str = "int main() {}\n") -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "catalogue.json").write_text(json.dumps(data), encoding="utf-8")
    (directory / "main.hpp").write_text(main, encoding="utf-8")
    return directory


@pytest.mark.parametrize(("what", "damage", "words"), BREAKS, ids=[row[0] for row in BREAKS])
def test_a_broken_catalogue_is_refused(
    tmp_path: Path, what: str, damage: Callable[[dict[str, Any]], object], words: str
) -> None:
    data = copy.deepcopy(BASE)
    damage(data)
    with pytest.raises(CatalogueError) as caught:
        Catalogue.load(write(tmp_path / "toy", data))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_directory_without_a_catalogue_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="--catalogue"):
        Catalogue.load(tmp_path)


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "catalogue.json").write_bytes(b"\xff{")
    with pytest.raises(CatalogueError, match=r"catalogue\.json"):
        Catalogue.load(tmp_path)


def test_the_digest_changes_with_any_content(tmp_path: Path, task_dir: Path) -> None:
    first = Catalogue.load(write(tmp_path / "a", BASE)).digest
    assert Catalogue.load(write(tmp_path / "b", BASE)).digest == first
    assert Catalogue.load(write(tmp_path / "c", BASE, main="int main() { return 0; }\n")).digest != first
    shutil.copytree(task_dir / "offline", tmp_path / "copy")
    assert Catalogue.load(tmp_path / "copy").digest == Catalogue.load(task_dir / "offline").digest


def test_the_shipped_catalogue_offers_many_mechanisms_and_every_value_can_be_reached(catalogue: Catalogue) -> None:
    assert len(catalogue.data.mechanisms) >= 14
    reached = {(key, value) for mechanism in catalogue.data.mechanisms for key, value in mechanism.sets.items()}
    on_the_way = {
        (key, rung)
        for key, value in reached
        for rung in catalogue.settings[key].ladder
        if catalogue.settings[key].reaches(value, rung)
    }
    reached |= on_the_way | set(catalogue.defaults.items())
    assert reached == {(key, value) for key, setting in catalogue.settings.items() for value in setting.values}


def test_the_page_gives_a_score_for_every_step_of_the_mechanisms_it_lists(catalogue: Catalogue, task_dir: Path) -> None:
    text = (task_dir / "offline/README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z -]+) \| ([0-9., ]+) \|$", text, re.MULTILINE)
    named = {mechanism.name: mechanism for mechanism in catalogue.data.mechanisms}
    assert len(rows) == 5
    for name, scores in rows:
        now, steps = dict(catalogue.defaults), 0
        while (after := catalogue.step(named[name], now)) != now:
            now, steps = after, steps + 1
        assert len(scores.split(", ")) == steps, name
