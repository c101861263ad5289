"""The YAML file: what cannot be read is named, what is substituted is what Reef would substitute."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.settings_file import load_settings, setting


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "serve.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [1", "not valid YAML"),
        ("- 1\n", "YAML object"),
        ("", "YAML object"),
        ("a: ${MISSING:?}", "a needs the environment variable MISSING"),
        ("a: ${b.c}", r"\$\{b.c\} names no single value"),
        ("a: {b: '${a.c}', c: '${a.b}'}", "never ends"),
    ],
)
def test_a_broken_file_is_refused_with_its_reason(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        load_settings(written(tmp_path, text), {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        load_settings(tmp_path / "nowhere.yaml", {})


def test_a_directory_is_not_a_config_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(tmp_path, {})


def test_variables_and_references_are_substituted_everywhere(tmp_path: Path) -> None:
    path = written(tmp_path, "a: {port: '${PORT}', list: ['x${PORT}']}\nb: '${a.port}/${NONE}'\nc: 3\n")
    loaded = load_settings(path, {"PORT": "8900"})
    assert loaded == {"a": {"port": "8900", "list": ["x8900"]}, "b": "8900/", "c": 3}
    assert setting(loaded, "a", "port") == "8900"
    assert setting(loaded, "a", "nothing", "below") is None
