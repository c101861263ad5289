"""A saved archive as `inspect` and `export` look at it: whole, read-only, and without any service.

The committed archive is read (the working one while nothing is committed); both are replaced atomically, so that a look
during a run sees one of its versions.  Entries are checked when they are looked at, nodes at once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from guidance_ttt.step_progress import journal_path
from harness.errors import ConfigError, StateCorrupt, StateError
from harness.journal import read_records
from harness.state import LibraryEntry, LibraryNode
from harness.storage import read_json_object

SHORT_ID_CHARS = 8
SUBMISSION_FILE = "submission.json"


@dataclass(frozen=True)
class Place:
    """Where an entry was made: step (from 1; 0 is the seed), attempt, group and rollout, as far as it says."""

    step: int
    attempt: int | None
    group: int | None
    rollout: int | None

    def describe(self) -> str:
        """A few words, as the step lines of a run say it."""
        if self.step == 0:
            return "seed"
        group = "" if self.group is None else f" g{self.group}"
        return f"step {self.step}{group}" + ("" if self.rollout is None else f" r{self.rollout}")


class ArchiveView:
    """One version of an archive."""

    def __init__(self, path: Path, data: Mapping[str, Any]) -> None:
        """Take over parsed JSON; raises `StateCorrupt` naming what does not fit."""
        self.path = path
        self._raw_entries = _table(path, data, "entries")
        raw_nodes = _table(path, data, "nodes")
        try:
            self.nodes = {key: LibraryNode.from_dict(value) for key, value in raw_nodes.items()}
        except (ValueError, TypeError) as error:
            raise StateCorrupt(f"{path} is not a valid archive: {error}") from error
        self.best_node_id = data.get("best_node_id") if data.get("best_node_id") in self.nodes else None
        self.lower_is_better = data.get("score_direction") == "min"
        self._visits = _table(path, data, "puct_n")
        self._node_of = {node.entry_id: node for node in self.nodes.values() if node.entry_id is not None}
        self._entries: dict[str, LibraryEntry] = {}
        self._short_ids: dict[str, str] = {}

    @classmethod
    def load(cls, state_dir: Path) -> ArchiveView:
        """The archive of a state directory; raises `StateError` when there is none yet."""
        run_dir = state_dir / "guidance-run"
        for name in ("committed-library.json", "library.json"):
            path = run_dir / name
            if path.is_file():
                return cls(path, read_json_object(path))
        if run_dir.is_dir():
            raise StateError(f"{run_dir} holds no archive yet: the seed has not been judged; try again in a moment")
        raise StateError(f"{state_dir} holds no run; start one with ./run.sh, or name another with --state-dir")

    # --- entries ------------------------------------------------------------------------------------------------------

    @property
    def entry_ids(self) -> list[str]:
        """All candidates ever made, in the order of their steps, then by id."""
        return sorted(self._raw_entries, key=lambda key: (self._timestep(key), key))

    def entry(self, entry_id: str) -> LibraryEntry:
        """One candidate, checked; raises `StateCorrupt` when the archive does not hold it or it is malformed."""
        if entry_id not in self._entries:
            try:
                self._entries[entry_id] = LibraryEntry.from_dict(self._raw_entries[entry_id])
            except KeyError:
                raise StateCorrupt(f"{self.path} refers to the entry {entry_id!r}, which it does not hold") from None
            except (ValueError, TypeError) as error:
                raise StateCorrupt(f"{self.path}: entry {entry_id!r} is not valid: {error}") from error
        return self._entries[entry_id]

    def node_of(self, entry_id: str) -> LibraryNode | None:
        """The searchable state of a candidate; None when it earned none or was pruned since."""
        return self._node_of.get(entry_id)

    @property
    def best(self) -> LibraryEntry:
        """The best candidate by the archive's own ranking."""
        node = None if self.best_node_id is None else self.nodes[self.best_node_id]
        if node is None or node.entry_id is None:
            raise StateCorrupt(f"{self.path} names no best state with a program")
        return self.entry(node.entry_id)

    @property
    def submitted(self) -> LibraryEntry:
        """The candidate that went to the task's verifier; of a timing task that need not be the best."""
        path = self.path.parent / SUBMISSION_FILE
        if not path.is_file():
            raise StateError(f"nothing was submitted yet: {path} does not exist; the run writes it at its end")
        return self.entry(str(read_json_object(path).get("entry_id")))

    def find(self, name: str) -> LibraryEntry:
        """The candidate that a user means: `best`, `seed`, `submitted`, or (the beginning of) an entry's or node's id.

        Raises `ConfigError` for an unknown or ambiguous name.
        """
        wanted = name.strip().lower()
        if wanted == "best":
            return self.best
        if wanted == "seed":
            return self.entry(self._seed_id())
        if wanted == "submitted":
            return self.submitted
        if not wanted:
            raise ConfigError("the entry's name is empty; give an id or its beginning, `best`, `seed` or `submitted`")
        matches = {key for key in self._raw_entries if key.lower().startswith(wanted)}
        matches |= {
            node.entry_id for node in self.nodes.values() if node.entry_id and node.id.lower().startswith(wanted)
        }
        if wanted in matches:
            return self.entry(wanted)
        if len(matches) == 1:
            return self.entry(matches.pop())
        if not matches:
            raise ConfigError(
                f"no entry or state of {self.path} begins with {name!r}; `guidance-ttt inspect` lists the states"
            )
        some = ", ".join(sorted(matches)[:5])
        raise ConfigError(f"{name!r} is the beginning of {len(matches)} entries ({some}, ...); give more of the id")

    def short_id(self, entry_id: str) -> str:
        """The shortest beginning of an id, of at least eight characters, that names nothing else here."""
        if not self._short_ids:
            ids = sorted({*self._raw_entries, *self.nodes})
            shared = [_shared_chars(*pair) for pair in pairwise(ids)]
            for own, before, after in zip(ids, [0, *shared], [*shared, 0], strict=True):
                self._short_ids[own] = own[: max(SHORT_ID_CHARS, before + 1, after + 1)]
        return self._short_ids.get(entry_id, entry_id)

    def statuses(self) -> Counter[str]:
        """How many candidates of the search ended in which way; the seed is not counted."""
        return Counter(
            str(raw.get("verifier_status")) for key, raw in self._raw_entries.items() if self._timestep(key) > 0
        )

    def lost_children(self) -> dict[str, Counter[str]]:
        """For each node: its candidates that are no state of the archive, by status."""
        found: dict[str, Counter[str]] = {}
        for key, raw in self._raw_entries.items():
            parent = raw.get("parent_id")
            if key not in self._node_of and isinstance(parent, str) and self._timestep(key) > 0:
                found.setdefault(parent, Counter())[str(raw.get("verifier_status"))] += 1
        return found

    def _timestep(self, entry_id: str) -> int:
        value = self._raw_entries[entry_id].get("timestep")
        return value if isinstance(value, int) else 0

    def _seed_id(self) -> str:
        seeds = [key for key in self._raw_entries if self._timestep(key) == 0]
        if not seeds:
            raise StateCorrupt(f"{self.path} holds no seed")
        originals = [key for key in seeds if not self._metadata(key).get("replicated_seed_entry")]
        return min(originals or seeds)

    def _metadata(self, entry_id: str) -> Mapping[str, Any]:
        value = self._raw_entries[entry_id].get("metadata")
        return value if isinstance(value, dict) else {}

    # --- relations ----------------------------------------------------------------------------------------------------

    def visits(self, node_id: str) -> int:
        """How many rollouts the search has spent at or below a state."""
        value = self._visits.get(node_id, 0)
        return value if isinstance(value, int) else 0

    def parent_of(self, entry: LibraryEntry) -> LibraryEntry | None:
        """The candidate that this one was made from; None for a seed.  Works also after its state was pruned."""
        named = entry.metadata.get("selected_parent_entry_id")
        if isinstance(named, str) and named in self._raw_entries:
            return self.entry(named)
        node = self.nodes.get(entry.parent_id or "")
        if node is None or node.entry_id is None or node.entry_id == entry.id:
            return None
        return self.entry(node.entry_id)

    def lineage(self, entry: LibraryEntry) -> list[LibraryEntry]:
        """The way from the seed to a candidate, both included; raises `StateCorrupt` for one that runs in a circle."""
        path, seen = [entry], {entry.id}
        while (parent := self.parent_of(path[-1])) is not None:
            if parent.id in seen:
                raise StateCorrupt(f"{self.path}: the lineage of {entry.id} runs in a circle at {parent.id}")
            seen.add(parent.id)
            path.append(parent)
        return path[::-1]

    def tree(self) -> Iterator[tuple[int, LibraryNode]]:
        """All states with their depth, parents before children, better ones first.

        A state whose parent is missing counts as a root; one that is reached in a circle is `StateCorrupt`.
        """
        children: dict[str | None, list[LibraryNode]] = {}
        for node in self.nodes.values():
            parent = node.parent_id if node.parent_id in self.nodes else None
            children.setdefault(parent, []).append(node)
        for siblings in children.values():
            siblings.sort(key=lambda node: (node.value, node.id))
        stack = [(0, node) for node in children.get(None, [])]
        shown = 0
        while stack:
            depth, node = stack.pop()
            shown += 1
            yield depth, node
            stack += [(depth + 1, child) for child in children.get(node.id, [])]
        if shown != len(self.nodes):
            raise StateCorrupt(f"{self.path}: {len(self.nodes) - shown} states have ancestors that run in a circle")

    # --- the journal --------------------------------------------------------------------------------------------------

    def journal_of(self, entry: LibraryEntry) -> JournalReference | None:
        """Where the raw texts of a candidate are; None for the seed or when the journal is not there."""
        place = place_of(entry)
        path = journal_path(self.path.parent, place.step)
        if place.step == 0 or not path.is_file():
            return None
        wanted = (place.attempt, place.group, place.rollout)
        lines: dict[str, int] = {}
        verdict = None
        for number, record in enumerate(read_records(path), start=1):
            if tuple(record.get(key) for key in ("attempt", "group", "rollout")) == wanted:
                lines.setdefault(str(record["kind"]), number)
                if record["kind"] == "verdict" and isinstance(record.get("verification"), dict):
                    verdict = record["verification"]
        return JournalReference(path, lines, verdict)


@dataclass(frozen=True)
class JournalReference:
    """A rollout's records: the file, the line (from 1) of each kind, and the verdict as the judge gave it."""

    path: Path
    lines: Mapping[str, int]
    verdict: Mapping[str, Any] | None


def place_of(entry: LibraryEntry) -> Place:
    """Where an entry was made, from its own record."""
    group = str(entry.metadata.get("group_uid", "")).rpartition(":")[2]
    return Place(
        step=entry.timestep,
        attempt=_whole(entry.metadata.get("attempt")),
        group=int(group) if group.isascii() and group.isdecimal() else None,
        rollout=_whole(entry.metadata.get("rollout")),
    )


def _shared_chars(first: str, second: str) -> int:
    differing = (index for index, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    return next(differing, min(len(first), len(second)))


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _table(path: Path, data: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key, {})
    if not isinstance(value, dict):
        raise StateCorrupt(f"{path} is not a valid archive: {key} must be an object, got {type(value).__name__}")
    if key != "puct_n" and not all(isinstance(item, dict) for item in value.values()):
        raise StateCorrupt(f"{path} is not a valid archive: {key} must hold objects only")
    return value


def program_sha256(program: str) -> str:
    """The hash of a program's bytes, as every view of an archive shows it."""
    return hashlib.sha256(program.encode("utf-8", "surrogatepass")).hexdigest()
