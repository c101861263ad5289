"""The values of the search: candidates, archive nodes and verdicts; whatever is not a finite number is refused as one.

Owns the key names of the entries and nodes in `library.json`, an interface that the Reef Guidance-TTT example shares.
Knows nothing about files, selection rules, prompts or any particular task.
"""

from __future__ import annotations

import dataclasses
import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

_ID_NAMESPACE = uuid.UUID("6f0c2a3e-5a5d-5c0e-9a39-3d2c6f3f7b11")


class VerdictStatus(StrEnum):
    """Every way in which a *candidate* can end; a fault of a service is an exception and never one of these."""

    VALID = "valid"
    """The judge accepted the program; the only status that may enter the archive."""
    INVALID = "invalid"
    """The judge rejected the program (compile error, wrong output, ...)."""
    GUIDANCE_FORMAT_ERROR = "guidance_format_error"
    """The policy's text held no acceptable guidance block; the executor was not asked."""
    PARSE_ERROR = "parse_error"
    """The executor's answer held no program in the required language."""
    EXECUTION_ERROR = "execution_error"
    """The executor's answer could not be used for another reason that lies in the answer itself."""
    EMPTY_RESPONSE = "empty_response"
    """The executor answered without any final content (for example, only reasoning)."""


# --- strict values ----------------------------------------------------------------------------------------------------


def require_number(value: object, name: str) -> float:
    """Return `value` as a finite float, because a bool, a numeric string or NaN must never pass for a score."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, got {type(value).__name__} {value!r:.80}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name} must fit in a float, got a longer integer") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {number}")
    return number


def require_optional_number(value: object, name: str) -> float | None:
    """Like `require_number`, with None for "not measured"."""
    return None if value is None else require_number(value, name)


def require_integer(value: object, name: str, *, minimum: int = 0) -> int:
    """Return `value` as an int of at least `minimum`; bools and floats such as 2.0 are refused."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be an integer, got {type(value).__name__} {value!r:.80}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")
    return value


def require_text(value: object, name: str) -> str:
    """Return `value` as a plain `str` (an enum member becomes its text)."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string, got {type(value).__name__} {value!r:.80}")
    return str(value)


def require_optional_text(value: object, name: str) -> str | None:
    """Like `require_text`, with None for "absent"."""
    return None if value is None else require_text(value, name)


def require_name(value: object, name: str) -> str:
    """Return a string that is not blank: ids and statuses."""
    text = require_text(value, name)
    if not text.strip():
        raise ValueError(f"{name} must not be blank")
    return text


def to_jsonable(value: object, name: str = "value") -> Any:
    """Return an independent copy of `value` made of JSON types only, so that a state file can always be written.

    Paths become text, tuples lists, sets lists in `repr` order, dataclasses objects, arrays and array scalars what
    their `tolist` gives.  A number that is not finite, a key that collides after conversion and any other type is a
    ValueError.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return require_number(value, name)
    if isinstance(value, Path):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: to_jsonable(getattr(value, item.name), f"{name}.{item.name}") for item in fields(value)}
    if isinstance(value, Mapping):
        plain: dict[str, Any] = {}
        for key, item in value.items():
            if str(key) in plain:
                raise ValueError(f"{name} has two keys that are both written as {str(key)!r}")
            plain[str(key)] = to_jsonable(item, f"{name}.{key}")
        return plain
    if isinstance(value, list | tuple):
        return [to_jsonable(item, f"{name}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, set | frozenset):
        return [to_jsonable(item, name) for item in sorted(value, key=repr)]
    tolist = getattr(value, "tolist", None)
    if callable(tolist):
        return to_jsonable(tolist(), name)
    raise ValueError(f"{name} holds a {type(value).__name__}, which cannot be written as JSON")


def require_metadata(value: object, name: str) -> dict[str, Any]:
    """Return a JSON-safe copy of a mapping."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be an object, got {type(value).__name__}")
    plain: dict[str, Any] = to_jsonable(value, name)
    return plain


def derived_id(run_seed: int, kind: str, *parts: object) -> str:
    """Return the uuid that a run of this seed always gives to the same thing: `derived_id(7, "entry", step, group)`.

    Ids break ties in the search, so they must not depend on the clock or on the order in which answers arrive.
    """
    require_integer(run_seed, "run_seed", minimum=-(2**63))
    return str(uuid.uuid5(_ID_NAMESPACE, "\x1f".join([str(run_seed), kind, *(str(part) for part in parts)])))


# --- candidates, nodes, verdicts --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LibraryEntry:
    """One attempted candidate: what was asked, the program and its verdict; raw texts stay in the rollout journal."""

    id: str
    parent_id: str | None
    problem_id: str
    timestep: int
    guidance: str
    execution_thinking: str
    solution: str
    verifier_reward: float
    verifier_raw_score: float | None
    verifier_status: str
    verifier_message: str
    summary: str
    reusable_idea: str | None
    failure_mode: str | None
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every field; ValueError names the entry's field and the value."""
        put = object.__setattr__
        put(self, "id", require_name(self.id, "entry.id"))
        put(self, "parent_id", require_optional_text(self.parent_id, "entry.parent_id"))
        put(self, "timestep", require_integer(self.timestep, "entry.timestep"))
        put(self, "verifier_reward", require_number(self.verifier_reward, "entry.verifier_reward"))
        put(self, "verifier_raw_score", require_optional_number(self.verifier_raw_score, "entry.verifier_raw_score"))
        put(self, "verifier_status", require_name(self.verifier_status, "entry.verifier_status"))
        for name in ("problem_id", "guidance", "execution_thinking", "solution", "verifier_message", "summary"):
            put(self, name, require_text(getattr(self, name), f"entry.{name}"))
        for name in ("reusable_idea", "failure_mode"):
            put(self, name, require_optional_text(getattr(self, name), f"entry.{name}"))
        put(self, "metadata", require_metadata(self.metadata, "entry.metadata"))

    @property
    def archivable(self) -> bool:
        """Whether the archive may hold this candidate as a node: accepted by the judge, with a measured score."""
        return self.verifier_status == VerdictStatus.VALID and self.verifier_raw_score is not None

    @property
    def has_program(self) -> bool:
        """Whether there is any code; cheap, because selection asks it of every state."""
        return self.solution != "" and not self.solution.isspace()

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as `library.json` holds it."""
        return _shallow_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read an entry; an unknown or missing key is a TypeError, a bad value a ValueError."""
        return cls(**data)


@dataclass(slots=True)
class LibraryNode:
    """One searchable state of the archive; `value` is what ranking maximises, in the units of the raw score."""

    id: str
    problem_id: str
    timestep: int
    entry_id: str | None
    value: float
    raw_score: float | None
    visits: int
    parent_id: str | None
    children: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every field; ValueError names the node's field and the value."""
        self.id = require_name(self.id, "node.id")
        self.problem_id = require_text(self.problem_id, "node.problem_id")
        self.timestep = require_integer(self.timestep, "node.timestep")
        self.entry_id = require_optional_text(self.entry_id, "node.entry_id")
        self.value = require_number(self.value, "node.value")
        self.raw_score = require_optional_number(self.raw_score, "node.raw_score")
        self.visits = require_integer(self.visits, "node.visits")
        self.parent_id = require_optional_text(self.parent_id, "node.parent_id")
        if not isinstance(self.children, list | tuple):
            raise ValueError(f"node.children must be a list, got {type(self.children).__name__}")
        self.children = [require_name(child, "node.children") for child in self.children]
        self.metadata = require_metadata(self.metadata, "node.metadata")

    @property
    def is_root(self) -> bool:
        """Whether this node is one of the seed's replicas (it has no parent)."""
        return self.parent_id is None

    def to_dict(self) -> dict[str, Any]:
        """Return the node as `library.json` holds it."""
        plain = _shallow_dict(self)
        plain["children"] = list(self.children)
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a node; an unknown or missing key is a TypeError, a bad value a ValueError."""
        return cls(**data)


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """The verdict on one candidate; `reward` trains the policy, `raw_score` (in the judge's unit) ranks the archive."""

    reward: float
    raw_score: float | None
    valid: bool
    status: str
    message: str
    artifacts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every field; a status outside `VerdictStatus`, or one that contradicts `valid`, is a ValueError."""
        put = object.__setattr__
        put(self, "reward", require_number(self.reward, "verdict.reward"))
        put(self, "raw_score", require_optional_number(self.raw_score, "verdict.raw_score"))
        if not isinstance(self.valid, bool):
            raise ValueError(f"verdict.valid must be true or false, got {self.valid!r:.80}")
        status = require_name(self.status, "verdict.status")
        if status not in set(VerdictStatus):
            raise ValueError(f"verdict.status must be one of {', '.join(VerdictStatus)}; got {status!r}")
        if self.valid != (status == VerdictStatus.VALID):
            raise ValueError(f"verdict.valid is {self.valid} but verdict.status is {status!r}")
        put(self, "status", status)
        put(self, "message", require_text(self.message, "verdict.message"))
        put(self, "artifacts", require_metadata(self.artifacts, "verdict.artifacts"))

    @classmethod
    def rejected(cls, status: VerdictStatus, message: str) -> Self:
        """Return the verdict of a candidate that never reached the judge: reward 0, no score."""
        return cls(reward=0.0, raw_score=None, valid=False, status=status, message=message)

    @classmethod
    def execution_error(cls, message: str) -> Self:
        """Return the verdict of an executor answer that could not be used."""
        return cls.rejected(VerdictStatus.EXECUTION_ERROR, message)

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as the rollout journal holds it."""
        return _shallow_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a verdict; an unknown or missing key is a TypeError, a bad value a ValueError."""
        return cls(**data)


def make_root_node(
    *, problem_id: str, raw_score: float | None, reward: float, node_id: str | None = None
) -> LibraryNode:
    """Return a seed state without an entry; `node_id` is given for a reproducible run and random otherwise."""
    return LibraryNode(
        id=node_id or str(uuid.uuid4()),
        problem_id=problem_id,
        timestep=0,
        entry_id=None,
        value=reward,
        raw_score=raw_score,
        visits=0,
        parent_id=None,
        metadata={"kind": "root"},
    )


def _shallow_dict(value: LibraryEntry | LibraryNode | VerificationResult) -> dict[str, Any]:
    """Return the fields in order; the JSON objects inside are copied, so the caller may change them."""
    plain = {item.name: getattr(value, item.name) for item in fields(value)}
    return {key: to_jsonable(item) if isinstance(item, dict) else item for key, item in plain.items()}
