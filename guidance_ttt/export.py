"""`guidance-ttt export`: the best program, the served adapter and the archive, copied out of a state directory.

Every target appears completely or not at all, and nothing that exists is replaced.  Reads only; a run may be live.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guidance_ttt.archive_view import ArchiveView, place_of
from guidance_ttt.model import file_sha256
from harness.errors import ConfigError, StateCorrupt, StateError, StateWriteFailed
from harness.storage import copy_file, read_json_object, sync_directory, write_chunks, write_failure

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""What PEFT loads."""

MANIFEST_FILE = "tttd-checkpoint.json"
"""Says which checkpoint an adapter is; written by the local engine, left out where it is not there."""

BASE_CHECKPOINT = "base"
_ATTEMPTS = 3


@dataclass(frozen=True)
class Exported:
    """One thing that was written: what, where and its SHA-256 (of the weights, for an adapter)."""

    what: str
    path: Path
    sha256: str
    detail: str

    def as_json(self) -> dict[str, str]:
        """The same facts as plain JSON values."""
        return {"what": self.what, "path": str(self.path), "sha256": self.sha256, "detail": self.detail}

    def describe(self) -> str:
        """One line for a person."""
        return f"{self.what:<8} {self.path}   {self.detail}   sha256 {self.sha256}"


def export(
    state_dir: Path,
    *,
    program: Path | None = None,
    adapter: Path | None = None,
    archive: Path | None = None,
    entry: str = "best",
) -> list[Exported]:
    """Write what is asked for; raises `GuidanceError` before anything is written when a target is in the way.

    `entry` names the candidate whose program is meant (see `ArchiveView.find`).
    """
    if program is None and adapter is None and archive is None:
        raise ConfigError("nothing to export: give --program FILE, --adapter DIR or --archive FILE.jsonl")
    for target in (program, archive):
        if target is not None:
            _require_new_file(target)
    if adapter is not None:
        _require_new_folder(adapter)
    done = []
    view = ArchiveView.load(state_dir) if program is not None or archive is not None else None
    if program is not None and view is not None:
        done.append(export_program(view, program, entry))
    if adapter is not None:
        done.append(export_adapter(state_dir, adapter))
    if archive is not None and view is not None:
        done.append(export_archive(view, archive))
    return done


def export_program(view: ArchiveView, target: Path, name: str = "best") -> Exported:
    """Write a candidate's program with exactly the bytes that the judge was sent."""
    _require_new_file(target)
    entry = view.find(name)
    if not entry.has_program:
        raise StateCorrupt(f"entry {entry.id} of {view.path} has no program ({entry.verifier_status})")
    try:
        data = entry.solution.encode("utf-8")
    except UnicodeEncodeError as error:
        raise StateWriteFailed(f"cannot write {target}: the program is not valid Unicode ({error.reason})") from error
    write_chunks(target, [data])
    score = "no score" if entry.verifier_raw_score is None else f"score {entry.verifier_raw_score:g}"
    return Exported("program", target, _digest(data), f"{score}, {place_of(entry).describe()}, entry {entry.id}")


def export_archive(view: ArchiveView, target: Path) -> Exported:
    """Write one JSON object a line for every candidate ever made, programs bit-exact, in the order of the steps."""
    _require_new_file(target)
    digest = hashlib.sha256()
    best_id = view.best.id

    def lines() -> Iterator[bytes]:
        for entry_id in view.entry_ids:
            line = archive_line(view, entry_id, best_id)
            digest.update(line)
            yield line

    write_chunks(target, lines())
    return Exported("archive", target, digest.hexdigest(), f"{len(view.entry_ids)} entries")


def archive_line(view: ArchiveView, entry_id: str, best_id: str) -> bytes:
    """One entry as `library.json` holds it, with `node_id` (null: no state of the archive), `visits` and `best`."""
    node = view.node_of(entry_id)
    extra = {
        "node_id": None if node is None else node.id,
        "visits": 0 if node is None else view.visits(node.id),
        "best": entry_id == best_id,
    }
    # Plain ASCII: any program, also one with lone surrogates, survives the way there and back.
    return json.dumps({**view.entry(entry_id).to_dict(), **extra}, allow_nan=False).encode("ascii") + b"\n"


# --- the adapter ------------------------------------------------------------------------------------------------------


def export_adapter(state_dir: Path, target: Path) -> Exported:
    """Copy the served checkpoint's adapter as a PEFT directory (without the optimizer's state), bit for bit."""
    _require_new_folder(target)
    for attempt in range(1, _ATTEMPTS + 1):
        source = served_adapter(state_dir)
        try:
            return _copy_adapter(source, target)
        except StateCorrupt:
            # A live run removes old checkpoints once a newer one is served; then that is the one to copy.
            if attempt == _ATTEMPTS or served_adapter(state_dir) == source:
                raise
    raise AssertionError("unreachable")


def served_adapter(state_dir: Path) -> Path:
    """The folder of the checkpoint that is served (or was, when the run ended).

    Raises `StateError` while only the untrained policy was served, and `StateCorrupt` for a damaged record.
    """
    loads = state_dir / "backend" / "loads.json"
    if loads.is_file():
        folder = _published_checkpoint(loads)
    elif (state_dir / "checkpoints" / "hf").is_dir():
        folder = _newest_export(state_dir)
    else:
        raise StateError(
            f"{state_dir} holds no trained adapter: no update has been made yet, or another engine keeps it elsewhere"
        )
    for name in ADAPTER_FILES:
        if not (folder / name).is_file():
            raise StateCorrupt(f"{folder} holds no {name}, so it is no adapter that PEFT could load")
    return folder


def _published_checkpoint(loads: Path) -> Path:
    """The local engine's record: load ids `<incarnation>:<n>`, the n-th of which names a checkpoint."""
    value = read_json_object(loads)
    published, checkpoints = value.get("published"), value.get("checkpoints")
    incarnation, _, number = str(published).rpartition(":")
    if published is None:
        checkpoint: object = BASE_CHECKPOINT
    elif (
        isinstance(checkpoints, list)
        and incarnation == value.get("incarnation")
        and number.isdecimal()
        and int(number) < len(checkpoints)
    ):
        checkpoint = checkpoints[int(number)]
    else:
        raise StateCorrupt(f"{loads} names the load {published!r}, which it does not list")
    if checkpoint == BASE_CHECKPOINT:
        raise StateError(f"{loads.parent} serves the untrained policy: no update has been made yet, nothing to export")
    if not isinstance(checkpoint, str) or not checkpoint.isalnum():
        raise StateCorrupt(f"{loads} names {checkpoint!r}, which is no checkpoint id")
    return loads.parent / "checkpoints" / checkpoint


def _newest_export(state_dir: Path) -> Path:
    """The GPU engine's exports, one folder for each update (from 0); the last committed one is served."""
    resume = read_json_object(state_dir / "guidance-run" / "resume-state.json")
    steps = resume.get("next_step")
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise StateError(f"{state_dir} has no committed update yet, nothing to export")
    folder = state_dir / "checkpoints" / "hf" / str(steps - 1)
    if not folder.is_dir():
        raise StateCorrupt(f"the adapter of the last committed update is missing: {folder}")
    return folder


def _copy_adapter(source: Path, target: Path) -> Exported:
    names = [*ADAPTER_FILES, *([MANIFEST_FILE] if (source / MANIFEST_FILE).is_file() else [])]
    staging = target.absolute().with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        try:
            staging.mkdir(parents=True)
            for name in names:
                copy_file(source / name, staging / name)
            sync_directory(staging)
            digest = file_sha256(staging / ADAPTER_FILES[1])
            if digest != file_sha256(source / ADAPTER_FILES[1]):
                raise StateCorrupt(f"{source / ADAPTER_FILES[1]} changed while it was copied")
            staging.rename(target)  # an empty folder may be there; anything else makes this fail
            sync_directory(target.absolute().parent)
        except FileNotFoundError as error:
            raise StateCorrupt(f"{source} went away while it was copied") from error
        except OSError as error:
            if isinstance(error, StateError):
                raise
            raise write_failure(target, error) from error
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(staging)
    return Exported("adapter", target, digest, f"checkpoint {source.name}")


# --- targets ----------------------------------------------------------------------------------------------------------


def _require_new_file(target: Path) -> None:
    if os.path.lexists(target):
        raise ConfigError(f"{target} exists and is not replaced; remove it or choose another name")


def _require_new_folder(target: Path) -> None:
    if os.path.lexists(target) and not (target.is_dir() and not target.is_symlink() and not any(target.iterdir())):
        raise ConfigError(f"{target} exists and is not replaced; remove it or choose another name")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def as_json(done: list[Exported]) -> list[dict[str, Any]]:
    """What was written, as plain JSON values."""
    return [item.as_json() for item in done]


