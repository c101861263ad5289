"""`library.json`: the archive as text, in the format of the Reef Guidance-TTT example.

Owns the key names, the strict reading (also of files from before PUCT statistics were stored) and a fast writing that
gives exactly the bytes of sorted, indented JSON.  Knows nothing about selection.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from harness.archive_state import PUCT_C_TOLERANCE, ArchiveSettings, ArchiveState, GroupRecord
from harness.errors import StateCorrupt, StateMismatch
from harness.state import LibraryEntry, LibraryNode, require_integer, require_name, require_number
from harness.storage import read_json_object, write_chunks

_SETTING_KEYS = {
    "rollout_n": "rollouts_per_group",
    "groups_per_batch": "groups_per_step",
    "puct_c": "puct_c",
    "puct_q_mode": "puct_q_mode",
    "max_buffer_size": "max_buffer_size",
    "topk_children": "topk_children",
    "score_direction": "score_direction",
    "discover_compat": "discover_compat",
}
_REPEATED_AT_TOP = ("rollout_n", "puct_c", "puct_q_mode", "discover_compat", "groups_per_batch", "score_direction")
_GROUP_KEYS = {"selected_node_id", "submitted", "children", "finalized", "visible_timestep_exclusive", "entry_ids"}


# --- reading ----------------------------------------------------------------------------------------------------------


def read_archive(path: Path, settings: ArchiveSettings | None = None) -> ArchiveState:
    """Read an archive; StateCorrupt names what is wrong, StateMismatch lists every setting that differs."""
    data = read_json_object(path)
    if settings is not None and (differences := setting_differences(data, settings)):
        raise StateMismatch(
            f"{path} was made under other settings: {'; '.join(differences)}. Restore them or choose another state "
            "directory (GUIDANCE_STATE_DIR)."
        )
    try:
        return _parse(data)
    except (ValueError, TypeError) as error:
        raise StateCorrupt(f"{path} is not a valid archive: {error}") from error


def read_seed_entry(path: Path) -> LibraryEntry:
    """Return the candidate of an archive's first root, to start a new search from another run's seed."""
    state = read_archive(path)
    for node in state.ordered_nodes():
        entry = state.entry_of(node)
        if node.is_root and entry is not None and entry.has_program:
            return entry
    raise StateCorrupt(f"{path} has no root with a program, so it cannot seed a search")


def setting_differences(data: Mapping[str, Any], settings: ArchiveSettings) -> list[str]:
    """Return one "key: file has A, requested B" for each setting that the file states differently."""
    config = data.get("config")
    stated: dict[str, Any] = {**data, **(config if isinstance(config, dict) else {})}
    differences = []
    for key, name in _SETTING_KEYS.items():
        if key not in stated:
            continue
        ours, theirs = getattr(settings, name), stated[key]
        if isinstance(ours, float) and isinstance(theirs, int | float) and not isinstance(theirs, bool):
            same = abs(ours - theirs) <= PUCT_C_TOLERANCE
        else:
            same = type(ours) is type(theirs) and ours == theirs
        if not same:
            differences.append(f"{key}: the file has {theirs!r}, requested {ours!r}")
    return differences


def _parse(data: Mapping[str, Any]) -> ArchiveState:
    state = ArchiveState(
        nodes={key: LibraryNode.from_dict(value) for key, value in _objects(data, "nodes")},
        entries={key: LibraryEntry.from_dict(value) for key, value in _objects(data, "entries")},
        groups={key: _parse_group(key, value) for key, value in _objects(data, "groups")},
    )
    for kind, table in (("node", state.nodes), ("entry", state.entries)):
        for key, item in table.items():
            if item.id != key:
                raise ValueError(f"the {kind} stored under {key!r} calls itself {item.id!r}")
    submitted = sum(group.submitted for group in state.groups.values())
    state.puct_t = require_integer(data.get("puct_T", submitted), "puct_T")
    state.puct_m = {key: require_number(value, f"puct_m[{key}]") for key, value in _table(data, "puct_m")}
    if "puct_n" in data:
        state.puct_n = {key: require_integer(value, f"puct_n[{key}]") for key, value in _table(data, "puct_n")}
    else:
        state.puct_n = {node.id: node.visits for node in state.nodes.values() if node.visits > 0}
    return state


def _parse_group(uid: str, data: Mapping[str, Any]) -> GroupRecord:
    if unknown := sorted(set(data) - _GROUP_KEYS):
        raise ValueError(f"group {uid!r} has unknown keys: {', '.join(unknown)}")
    limit = data.get("visible_timestep_exclusive")
    finalized = data.get("finalized", False)
    if not isinstance(finalized, bool):
        raise ValueError(f"group {uid!r}: finalized must be true or false, got {finalized!r:.80}")
    return GroupRecord(
        selected_node_id=require_name(data.get("selected_node_id"), f"group {uid!r}: selected_node_id"),
        visible_timestep_exclusive=None if limit is None else require_integer(limit, f"group {uid!r}: visible limit"),
        submitted=require_integer(data.get("submitted", 0), f"group {uid!r}: submitted"),
        finalized=finalized,
        children=_names(data, "children", uid),
        entry_ids=_names(data, "entry_ids", uid),
    )


def _names(data: Mapping[str, Any], key: str, uid: str) -> list[str]:
    value = data.get(key, [])
    if not isinstance(value, list):
        raise ValueError(f"group {uid!r}: {key} must be a list, got {type(value).__name__}")
    return [require_name(item, f"group {uid!r}: {key}") for item in value]


def _table(data: Mapping[str, Any], key: str) -> Iterator[tuple[str, Any]]:
    value = data.get(key, {})
    if not isinstance(value, dict):
        raise ValueError(f"{key} must be an object, got {type(value).__name__}")
    yield from value.items()


def _objects(data: Mapping[str, Any], key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, item in _table(data, key):
        if not isinstance(item, dict):
            raise ValueError(f"{key}[{name!r}] must be an object, got {type(item).__name__}")
        yield name, item


# --- writing ----------------------------------------------------------------------------------------------------------


def archive_dict(state: ArchiveState, settings: ArchiveSettings, best_node_id: str | None) -> dict[str, Any]:
    """Return the whole archive as plain JSON values, independent of the live one."""
    return {
        **_frame(state, settings, best_node_id),
        "entries": {entry_id: state.entries[entry_id].to_dict() for entry_id in sorted(state.entries)},
    }


def _frame(state: ArchiveState, settings: ArchiveSettings, best_node_id: str | None) -> dict[str, Any]:
    """Return everything but the entries, which are most of the bytes and never change."""
    config = {key: getattr(settings, name) for key, name in _SETTING_KEYS.items()}
    return {
        **{key: config[key] for key in _REPEATED_AT_TOP},
        "config": config,
        "best_node_id": best_node_id,
        "entries": {},
        "groups": {uid: state.groups[uid].to_dict() for uid in sorted(state.groups)},
        "nodes": {node.id: node.to_dict() for node in state.ordered_nodes()},
        "puct_n": dict(state.puct_n),
        "puct_m": dict(state.puct_m),
        "puct_T": state.puct_t,
    }


class ArchiveWriter:
    """Writes an archive again and again; an entry is turned into text only once, because it never changes.

    The text of known entries is taken from the last file that was written, so it costs disk cache and not memory.
    """

    def __init__(self) -> None:
        """Start with nothing written."""
        self._written: BinaryIO | None = None
        self._spans: dict[str, tuple[int, int]] = {}

    def write(self, path: Path, state: ArchiveState, settings: ArchiveSettings, best_node_id: str | None) -> None:
        """Replace `path` atomically; StateWriteFailed leaves the previous version."""
        spans: dict[str, tuple[int, int]] = {}
        write_chunks(path, self._chunks(state, _dump(_frame(state, settings, best_node_id)), spans))
        previous, self._written = self._written, path.open("rb")
        self._spans = spans
        if previous is not None:
            previous.close()

    def _chunks(self, state: ArchiveState, frame: bytes, spans: dict[str, tuple[int, int]]) -> Iterator[bytes]:
        """The file's bytes in order; notes in `spans` where each entry's text (offset, length) will stand."""
        # Only a top-level key sits behind a newline and exactly two spaces: strings never contain a raw newline.
        head, marker, tail = frame.partition(b'\n  "entries": {')
        yield head + marker
        offset = len(head) + len(marker)
        separator = b"\n    "
        for entry_id in sorted(state.entries):
            text = self._entry_text(state.entries[entry_id])
            spans[entry_id] = (offset + len(separator), len(text))
            offset += len(separator) + len(text)
            yield separator
            yield text
            separator = b",\n    "
        yield (b"\n  " if state.entries else b"") + tail + b"\n"

    def _entry_text(self, entry: LibraryEntry) -> bytes:
        if self._written is not None and entry.id in self._spans:
            offset, length = self._spans[entry.id]
            return os.pread(self._written.fileno(), length, offset)
        return _dump(entry.id) + b": " + _dump(entry.to_dict()).replace(b"\n", b"\n    ")


def _dump(value: object) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True, allow_nan=False).encode("ascii")
