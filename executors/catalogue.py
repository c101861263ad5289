"""The catalogue of an offline executor: what it can build, and by which words it recognises that it should.

A catalogue is data (`catalogue.json` and a folder of program components).  This module owns its form and checks it as a
whole before a server starts; it knows no task.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

FORMAT = 1

Word = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*$")]
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Condition = Mapping[str, tuple[str, ...]]


class CatalogueError(ValueError):
    """A catalogue directory cannot be used; the message names the file, the entry and what is wrong with it."""


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Setting(_Frozen):
    """One choice that a program has made: its possible values, each with the sentence that describes it.

    Summaries pass over a default value unless `always_told` is set.  `ladder` holds the values that are built up one
    after the other, the plainest first; a value on it is reached rung by rung, any other one at once.
    """

    key: Word
    about: Text
    default: Word
    values: dict[Word, Text]
    always_told: bool = False
    ladder: tuple[Word, ...] = ()

    @model_validator(mode="after")
    def _default_is_a_value(self) -> Self:
        if self.default not in self.values:
            raise ValueError(f"the default {self.default!r} of {self.key!r} is not one of {sorted(self.values)}")
        return self

    @model_validator(mode="after")
    def _ladder_of_values(self) -> Self:
        odd = [value for value in self.ladder if value not in self.values or self.ladder.count(value) > 1]
        if odd or (self.ladder and self.ladder[0] != self.default):
            raise ValueError(
                f"the ladder of {self.key!r} must hold different values of it, the default first; it is {self.ladder}"
            )
        return self

    def reaches(self, value: str, least: str) -> bool:
        """Whether `value` is `least`, or stands above it on the ladder."""
        rungs = self.ladder
        return value == least or (value in rungs and least in rungs and rungs.index(value) > rungs.index(least))

    def towards(self, value: str, wanted: str) -> str:
        """The value after one step from `value` to `wanted`."""
        rung = self.ladder.index(value) if value in self.ladder else 0
        goal = self.ladder.index(wanted) if wanted in self.ladder else 0
        return self.ladder[rung + 1] if rung < goal else wanted


class DormantRule(_Frozen):
    """A setting that does nothing unless other settings have certain values; then its default is built instead."""

    key: Word
    values: tuple[Word, ...] = ()
    unless: dict[Word, tuple[Word, ...]]
    because: Text


class Mechanism(_Frozen):
    """Something guidance can ask for: the words for it and the settings it changes.

    `needs` are settings without which it would do nothing, each with the least value that will do.
    """

    id: Word
    name: Text
    phrases: tuple[Text, ...]
    sets: Annotated[dict[Word, Word], Field(min_length=1)]
    needs: dict[Word, Word] = {}
    conflicts: tuple[Word, ...] = ()
    effect: Text

    @property
    def wordings(self) -> tuple[str, ...]:
        """The name and every other phrase that means this mechanism."""
        return (self.name, *self.phrases)


class CatalogueFile(_Frozen):
    """The form of `catalogue.json`."""

    format: int
    task: Word
    fence: Word
    comment: Text
    config_name: Word
    components: Annotated[tuple[Text, ...], Field(min_length=1)]
    settings: Annotated[tuple[Setting, ...], Field(min_length=1)]
    dormant: tuple[DormantRule, ...] = ()
    features: dict[Word, tuple[dict[Word, tuple[Word, ...]], ...]] = {}
    mechanisms: Annotated[tuple[Mechanism, ...], Field(min_length=1)]


class Catalogue:
    """A checked catalogue with its component texts.

    Build it with `Catalogue.load`; everything it offers is read-only.
    """

    def __init__(self, data: CatalogueFile, components: Mapping[str, str]) -> None:
        self.data = data
        self.components = dict(components)

    @classmethod
    def load(cls, directory: Path | str) -> Catalogue:
        """Read and check `directory`/catalogue.json and its components; raises `CatalogueError`."""
        path = Path(directory) / "catalogue.json"
        try:
            data = CatalogueFile.model_validate_json(path.read_bytes())
        except OSError as error:
            raise CatalogueError(
                f"{path} cannot be read ({error.strerror}); name the task's offline directory with --catalogue"
            ) from None
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the file"
            raise CatalogueError(f"{path}: {place}: {first['msg']} ({error.error_count()} errors in all)") from None
        problem = next(_problems(data), None)
        if problem is not None:
            raise CatalogueError(f"{path}: {problem}")
        return cls(data, {name: _read_component(path.parent, name) for name in data.components})

    @cached_property
    def settings(self) -> dict[str, Setting]:
        """Settings by key, in the order of the file."""
        return {setting.key: setting for setting in self.data.settings}

    @cached_property
    def defaults(self) -> dict[str, str]:
        """The configuration of a program that says nothing about itself."""
        return {setting.key: setting.default for setting in self.data.settings}

    def step(self, mechanism: Mechanism, configuration: Mapping[str, str]) -> dict[str, str]:
        """The configuration after one request for `mechanism`: one step of its way, none when it is all there.

        First what it needs, then what it sets, in the order of the file, and on a ladder one rung at a time: a request
        changes one thing, as one does who wants to know what each change is worth.
        """
        for key, least in mechanism.needs.items():
            if not self.settings[key].reaches(configuration[key], least):
                return {**configuration, key: self.settings[key].towards(configuration[key], least)}
        for key, value in mechanism.sets.items():
            if configuration[key] != value:
                return {**configuration, key: self.settings[key].towards(configuration[key], value)}
        return dict(configuration)

    def withholds(self, one: Mechanism, other: Mechanism) -> bool:
        """Whether one mechanism chooses what the other one cannot work with."""
        return any(
            key in one.sets and not self.settings[key].reaches(one.sets[key], least)
            for key, least in other.needs.items()
        )

    @cached_property
    def digest(self) -> str:
        """Names this catalogue's content: equal digests build equal programs."""
        parts = [self.data.model_dump_json(), *(text for _, text in sorted(self.components.items()))]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def holds(condition: Condition, configuration: Mapping[str, str]) -> bool:
    """Whether every key of the condition has one of its listed values."""
    return all(configuration[key] in values for key, values in condition.items())


def normal_wording(text: str) -> str:
    """A phrase as matching sees it: lower case, hyphens and runs of space as one space."""
    return re.sub(r"[\s-]+", " ", text.casefold()).strip()


def _problems(data: CatalogueFile) -> Iterator[str]:
    """Everything that pydantic cannot see: references between entries."""
    if data.format != FORMAT:
        yield f"format {data.format} is not known; this version reads format {FORMAT}"
    keys = [setting.key for setting in data.settings]
    ids = [mechanism.id for mechanism in data.mechanisms]
    for what, names in (("setting", keys), ("mechanism", ids), ("component", list(data.components))):
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"the {what} {name!r} is there twice"
    values = {setting.key: set(setting.values) for setting in data.settings}
    for rule in data.dormant:
        where = f"the dormant rule of {rule.key!r}"
        yield from _bad_condition(where, {rule.key: rule.values or tuple(values.get(rule.key, ("?",)))}, values)
        yield from _bad_condition(where, rule.unless, values)
    for name, alternatives in data.features.items():
        if name in values:
            yield f"the feature {name!r} has the name of a setting"
        for condition in alternatives:
            yield from _bad_condition(f"the feature {name!r}", condition, values)
    wordings: dict[str, str] = {}
    for mechanism in data.mechanisms:
        where = f"the mechanism {mechanism.id!r}"
        for part in (mechanism.sets, mechanism.needs):
            yield from _bad_condition(where, {key: (value,) for key, value in part.items()}, values)
        for other in mechanism.conflicts:
            if other not in ids or other == mechanism.id:
                yield f"{where} conflicts with {other!r}, which is no other mechanism"
        for wording in map(normal_wording, mechanism.wordings):
            if wordings.setdefault(wording, mechanism.id) != mechanism.id:
                yield f"{where} and {wordings[wording]!r} share the wording {wording!r}"


def _bad_condition(where: str, condition: Condition, values: Mapping[str, set[str]]) -> Iterator[str]:
    for key, wanted in condition.items():
        if key not in values:
            yield f"{where} speaks of the setting {key!r}, which does not exist"
            continue
        for value in wanted:
            if value not in values[key]:
                yield f"{where} speaks of {key} = {value}, but the values are {', '.join(sorted(values[key]))}"


def _read_component(directory: Path, name: str) -> str:
    path = (directory / name).resolve()
    if not path.is_relative_to(directory.resolve()):
        raise CatalogueError(f"the component {name!r} lies outside of {directory}")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogueError(f"the component {path} cannot be read: {error}") from None
