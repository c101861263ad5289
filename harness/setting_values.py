"""Typed reading of settings from the environment and from a YAML document.

Every refusal is a `ConfigError` that names the variable or key, the value and what is allowed; a boolean is never a
number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness.errors import ConfigError
from harness.settings_file import setting

_UNBOUNDED = 1_000_000
"""A whole number's bound from here on only catches nonsense and is not worth telling."""


TEXT = "text"


@dataclass(frozen=True)
class Reading:
    """How a variable is read: in words what it may be, and its value when it is unset (None: then there is none)."""

    kind: str
    default: str | int | float | None = None


class Environ:
    """Typed reading of environment variables; an empty value is an absent one.

    `readings` is filled with how each variable was read, for whoever writes the settings down.
    """

    def __init__(self, environ: Mapping[str, str], readings: dict[str, Reading] | None = None) -> None:
        self._environ = environ
        self._readings = {} if readings is None else readings

    def _note(self, name: str, reading: Reading) -> None:
        # A second look at a variable as plain text says nothing new about it.
        if reading.kind != TEXT or name not in self._readings:
            self._readings[name] = reading

    def get(self, name: str) -> str | None:
        """The stripped value, or None when unset or blank."""
        self._note(name, Reading(TEXT))
        return self._environ.get(name, "").strip() or None

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        """One of the listed words."""
        self._note(name, Reading(", ".join(f"`{choice}`" for choice in choices), default))
        value = self.get(name) or default
        if value not in choices:
            raise ConfigError(f"{name}={value!r} is unknown; choose one of: {', '.join(choices)}")
        return value

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number within [low, high]; a default below `low` stands for none."""
        most = f"{low} to {high}" if high < _UNBOUNDED else f"at least {low}"
        self._note(name, Reading(f"whole number, {most}", default if default >= low else None))
        text = self.get(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
            raise ConfigError(f"{name}={text!r} must be a whole number from {low} to {high}")
        return int(text)

    def flag(self, name: str) -> bool:
        """1 or 0 (also true and false); unset is 0."""
        chosen = self.choice(name, "0", ("1", "true", "0", "false"))
        self._note(name, Reading("`1` or `0`", 0))
        return chosen in ("1", "true")

    def number(self, name: str, default: float, *, above: float) -> float:
        """A finite number greater than `above`."""
        self._note(name, Reading(_number_kind(above), default))
        text = self.get(name)
        if text is None:
            return default
        value = as_number(text)
        if value is None or value <= above:
            bound = "" if above == -math.inf else f" greater than {above:g}"
            raise ConfigError(f"{name}={text!r} must be a finite number{bound}")
        return value

    def optional_number(self, name: str, *, above: float = -math.inf) -> float | None:
        """A finite number greater than `above`, or None when unset."""
        value = None if self.get(name) is None else self.number(name, 0.0, above=above)
        self._note(name, Reading(_number_kind(above)))
        return value

    def url(self, name: str, default: str) -> str:
        """An http(s) URL with a host, without a trailing slash."""
        self._note(name, Reading("URL", default))
        value = (self.get(name) or default).rstrip("/")
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{name}={value!r} is not an http:// or https:// URL")
        port_of(value, name)
        return value


class YamlValues:
    """Typed reading of the YAML file; errors name the key and the file."""

    def __init__(self, settings: Mapping[str, Any], path: Path) -> None:
        self._settings = settings
        self._path = path

    def raw(self, *keys: str) -> Any:
        """The value at the keys, or None."""
        return setting(self._settings, *keys)

    def fail(self, keys: tuple[str, ...], what: str) -> ConfigError:
        """The error for a wrong value."""
        return ConfigError(f"{self._path}: {'.'.join(keys)}={self.raw(*keys)!r} {what}")

    def integer(self, *keys: str, low: int, high: int = 10**9, default: int | None = None) -> int:
        """A whole number (or the text of one) within [low, high]."""
        value = self.raw(*keys)
        if value is None and default is not None:
            return default
        if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(keys, f"must be a whole number from {low} to {high}")
        return value

    def number(self, *keys: str, low: float) -> float:
        """A finite number (or the text of one) of at least `low`."""
        value = as_number(self.raw(*keys))
        if value is None or value < low:
            raise self.fail(keys, f"must be a finite number of at least {low:g}")
        return value

    def text(self, *keys: str) -> str:
        """A non-blank string."""
        value = self.optional_text(*keys)
        if value is None:
            raise self.fail(keys, "must be a non-empty string")
        return value

    def optional_text(self, *keys: str) -> str | None:
        """A non-blank string, or None when absent."""
        value = self.raw(*keys)
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            raise self.fail(keys, "must be a string")
        return value


def _number_kind(above: float) -> str:
    return "number" if above == -math.inf else f"number above {above:g}"


def as_number(value: object) -> float | None:
    """A finite float from a number or its text; None for anything else, booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def port_of(url: str, name: str) -> int:
    """The port of a URL, by its scheme's default when it names none."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{name}={url!r} has no usable port: {error}") from error
    return port or (443 if parts.scheme == "https" else 80)
