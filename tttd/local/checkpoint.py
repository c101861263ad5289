"""One checkpoint: a folder with the adapter, the optimizer's moments and a manifest, written all or nothing.

The adapter is stored as PEFT stores it, so `peft.PeftModel.from_pretrained(base, folder)` loads it outside this
project. The manifest is what tells a checkpoint from any other folder; Reef's base release, an empty tree, is the
initial adapter.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

MANIFEST_FILE = "tttd-checkpoint.json"
ADAPTER_FILE = "adapter_model.safetensors"
ADAPTER_CONFIG_FILE = "adapter_config.json"
OPTIMIZER_FILE = "optimizer.safetensors"
MANIFEST_FORMAT = 1

BASE_CHECKPOINT = "base"
"""Names the initial adapter, which changes nothing and has no folder."""

_REEF_FILES = frozenset({".git", ".gitattributes", "reef-artifact.json"})


class CheckpointError(ValueError):
    """A folder is not the checkpoint it should be."""


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint is: its content-derived id, the one it was trained from, and what training reported.

    `identity` describes the base model and the adapter's shape; a checkpoint fits only a service of the same identity.
    """

    checkpoint_id: str
    parent: str
    identity: str
    optimizer_steps: int
    metrics: Mapping[str, Any] = field(default_factory=dict)
    format: int = MANIFEST_FORMAT

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read a checkpoint's manifest; raises `CheckpointError` when it is missing or malformed."""
        path = folder / MANIFEST_FILE
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            manifest = cls(**value)
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(f"{path} is not a checkpoint manifest: {error}") from error
        if manifest.format != MANIFEST_FORMAT:
            raise CheckpointError(f"{path} has format {manifest.format}, this version reads {MANIFEST_FORMAT}")
        if not isinstance(manifest.checkpoint_id, str) or not manifest.checkpoint_id:
            raise CheckpointError(f"{path} names no checkpoint_id")
        return manifest


@dataclass(frozen=True)
class AdamState:
    """Adam's moments by adapter parameter name, and the number of steps taken."""

    steps: int
    first: Mapping[str, Tensor]
    second: Mapping[str, Tensor]


def tree_checkpoint_id(tree: Path) -> str:
    """The checkpoint that a released tree holds; an empty tree is the initial adapter.

    Raises `CheckpointError` for a tree of anything else, which must never be served as if it were the initial adapter.
    """
    if (tree / MANIFEST_FILE).exists():
        return Manifest.read(tree).checkpoint_id
    foreign = sorted({entry.name for entry in tree.iterdir()} - _REEF_FILES)
    if foreign:
        raise CheckpointError(
            f"the released tree holds {foreign} but no {MANIFEST_FILE}; it was not made by this backend"
        )
    return BASE_CHECKPOINT


def read_adapter(folder: Path) -> dict[str, Tensor]:
    """The adapter's tensors under PEFT's names."""
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = load_file(str(folder / ADAPTER_FILE))
    return tensors


def read_optimizer(folder: Path) -> AdamState:
    """Adam's state after the checkpoint's last step."""
    from safetensors.torch import load_file

    stored = load_file(str(folder / OPTIMIZER_FILE))
    first = {name.removeprefix("first."): tensor for name, tensor in stored.items() if name.startswith("first.")}
    second = {name.removeprefix("second."): tensor for name, tensor in stored.items() if name.startswith("second.")}
    return AdamState(int(stored["steps"].item()), first, second)


def write_checkpoint(
    folder: Path,
    manifest: Manifest,
    adapter: Mapping[str, Tensor],
    adapter_config: Mapping[str, Any],
    optimizer: AdamState,
) -> None:
    """Write the folder under a temporary name, flush every file to disk, then move it into place.

    When that fails (the disk is full), nothing of it stays behind.
    """
    staging = staging_folder(folder)
    try:
        _write_files(staging, manifest, adapter, adapter_config, optimizer)
        publish_folder(staging, folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _write_files(
    staging: Path,
    manifest: Manifest,
    adapter: Mapping[str, Tensor],
    adapter_config: Mapping[str, Any],
    optimizer: AdamState,
) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous().cpu() for name, tensor in adapter.items()}, str(staging / ADAPTER_FILE))
    moments = {f"first.{name}": tensor.contiguous().cpu() for name, tensor in optimizer.first.items()}
    moments |= {f"second.{name}": tensor.contiguous().cpu() for name, tensor in optimizer.second.items()}
    save_file({**moments, "steps": torch.tensor(optimizer.steps)}, str(staging / OPTIMIZER_FILE))
    _write_json(staging / ADAPTER_CONFIG_FILE, adapter_config)
    _write_json(staging / MANIFEST_FILE, asdict(manifest))


def staging_folder(folder: Path) -> Path:
    """A fresh folder beside `folder`, whose name start-up recognises as a leftover."""
    staging = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    return staging


def publish_folder(staging: Path, folder: Path) -> None:
    """Make a staged folder durable and give it its name."""
    for path in staging.iterdir():
        _flush(path)
    _flush(staging)
    shutil.rmtree(folder, ignore_errors=True)
    staging.rename(folder)
    _flush(folder.parent)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
