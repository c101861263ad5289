"""Read the YAML that configures a run, with the two substitutions that Reef itself applies to it.

The same file is given to `reef serve -c` and read here, so both must see the same values: `${NAME}` is an environment
variable, `${NAME:?}` one that must not be empty, and `${dotted.path}` another value of the file.  This module knows
nothing of what the values mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from harness.errors import ConfigError

_VARIABLE = re.compile(r"\$\{(\w+)(:\?)?\}")
_REFERENCE = re.compile(r"\$\{([\w-]+(?:\.[\w-]+)+)\}")
_MAX_REFERENCE_DEPTH = 16


def load_settings(path: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """The file's content with every `${...}` replaced.

    Raises `ConfigError` when the file is missing, unreadable, no YAML object, or names an empty required variable or an
    unknown value.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"config file not found: {path}; set GUIDANCE_CONFIG to an existing YAML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file cannot be read: {path}: {error}") from error
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"config file is not valid YAML: {path}: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"config file must hold a YAML object, not {type(document).__name__}: {path}")
    substituted = _substitute_variables(document, environ, path, "")
    return {key: _resolve(value, substituted, path) for key, value in substituted.items()}


def setting(settings: Mapping[str, Any], *keys: str) -> Any:
    """The value at a path of keys, or None when any part of the path is absent."""
    value: Any = settings
    for key in keys:
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value


def _substitute_variables(value: Any, environ: Mapping[str, str], path: Path, where: str) -> Any:
    if isinstance(value, dict):
        return {k: _substitute_variables(v, environ, path, f"{where}.{k}".lstrip(".")) for k, v in value.items()}
    if isinstance(value, list):
        return [_substitute_variables(v, environ, path, f"{where}[{i}]") for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        found = environ.get(match[1], "")
        if match[2] and not found.strip():
            raise ConfigError(f"{path}: {where} needs the environment variable {match[1]}, which is not set")
        return found

    return _VARIABLE.sub(replace, value)


def _resolve(value: Any, root: Mapping[str, Any], path: Path) -> Any:
    if isinstance(value, dict):
        return {key: _resolve(item, root, path) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item, root, path) for item in value]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        found = setting(root, *match[1].split("."))
        if found is None or isinstance(found, dict | list):
            raise ConfigError(f"{path}: the reference ${{{match[1]}}} names no single value of this file")
        return str(found)

    for _ in range(_MAX_REFERENCE_DEPTH):
        expanded = _REFERENCE.sub(replace, value)
        if expanded == value:
            return expanded
        value = expanded
    raise ConfigError(f"{path}: the reference {value} never ends")
