"""From a configuration to a complete program, and back.

A program says in a comment block at its top which choices it has made.  That block is all this module reads of a
parent; the program itself is put together anew from the catalogue's components.  Lines of the form
`//@if place=row,shelf` and `//@endif` in a component bound the parts that belong to certain settings, or to a feature
that several settings share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from executors.catalogue import Catalogue, CatalogueError, holds

Configuration = Mapping[str, str]


@dataclass(frozen=True)
class ReadBack:
    """The configuration of a parent program, and what its block said that this catalogue does not know."""

    configuration: dict[str, str]
    has_block: bool
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asleep:
    """A setting that has been chosen but does nothing yet."""

    key: str
    value: str
    because: str


def read_configuration(catalogue: Catalogue, program: str) -> ReadBack:
    """The configuration a program declares; a program without a block has the default one."""
    comment = re.escape(catalogue.data.comment)
    name = re.escape(catalogue.data.config_name)
    block = re.compile(
        rf"^[ \t]*{comment}[ \t]*{name}[ \t]+begin[ \t]*\n(?P<lines>(?:[ \t]*{comment}.*\n)*?)"
        rf"[ \t]*{comment}[ \t]*{name}[ \t]+end[ \t]*$",
        re.MULTILINE,
    ).search(program.replace("\r\n", "\n"))
    configuration = dict(catalogue.defaults)
    if block is None:
        return ReadBack(configuration, has_block=False)
    ignored: list[str] = []
    for line in block["lines"].splitlines():
        text = line.strip().removeprefix(catalogue.data.comment).strip()
        key, separator, value = (part.strip() for part in text.partition("="))
        if separator and key in catalogue.settings and value in catalogue.settings[key].values:
            configuration[key] = value
        elif text:
            ignored.append(text[:80])
    return ReadBack(configuration, has_block=True, ignored=tuple(ignored))


def effective(catalogue: Catalogue, configuration: Configuration) -> tuple[dict[str, str], tuple[Asleep, ...]]:
    """What is really built: dormant settings fall back to their default, and are told."""
    result = dict(configuration)
    asleep: list[Asleep] = []
    for rule in catalogue.data.dormant:
        value, default = result[rule.key], catalogue.defaults[rule.key]
        if value == default or (rule.values and value not in rule.values) or holds(rule.unless, result):
            continue
        asleep.append(Asleep(rule.key, value, rule.because))
        result[rule.key] = default
    return result, tuple(asleep)


def assemble(catalogue: Catalogue, configuration: Configuration) -> str:
    """The complete program of a configuration, its block first; raises `CatalogueError` on a broken component."""
    built, _ = effective(catalogue, configuration)
    features = {
        name: any(holds(condition, built) for condition in alternatives)
        for name, alternatives in catalogue.data.features.items()
    }
    comment, name = catalogue.data.comment, catalogue.data.config_name
    lines = [f"{comment} {name} begin"]
    lines += [f"{comment}   {key} = {configuration[key]}" for key in catalogue.settings]
    lines += [f"{comment} {name} end", ""]
    for component, text in catalogue.components.items():
        lines += _selected(component, text, comment, built, features)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def _selected(component: str, text: str, comment: str, built: Configuration, features: Mapping[str, bool]) -> list[str]:
    """The lines of a component that belong to the configuration."""
    opening, closing = f"{comment}@if", f"{comment}@endif"
    kept: list[str] = []
    wanted = [True]
    for number, line in enumerate(text.splitlines(), start=1):
        marker = line.strip()
        if marker == closing:
            wanted.pop()
            if not wanted:
                raise CatalogueError(f"{component}:{number}: {closing} without {opening}")
        elif marker.startswith(opening + " "):
            try:
                holds_here = _marker_holds(marker.removeprefix(opening).split(), built, features)
            except KeyError as error:
                raise CatalogueError(f"{component}:{number}: {error} is neither a setting nor a feature") from None
            wanted.append(wanted[-1] and holds_here)
        elif marker.startswith(f"{comment}@"):
            raise CatalogueError(f"{component}:{number}: {marker!r} is not a marker; use {opening} or {closing}")
        elif wanted[-1]:
            kept.append(line.rstrip())
    if len(wanted) != 1:
        raise CatalogueError(f"{component}: {len(wanted) - 1} {opening} without {closing}")
    return kept


def _marker_holds(terms: list[str], built: Configuration, features: Mapping[str, bool]) -> bool:
    """All terms of a marker: `key=value,value` or the name of a feature."""
    results = []
    for term in terms:
        key, separator, values = term.partition("=")
        results.append(built[key] in values.split(",") if separator else features[key])
    return all(results)
