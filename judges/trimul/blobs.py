"""Tensors that two processes see: packed into one block of bytes, which is a file or GPU memory.

`FileBlob` works everywhere: the candidate's process maps the file copy-on-write, so what it does to its inputs reaches
nobody.  `CudaBlob` is memory of one GPU shared between two processes of the same jail (CUDA inter-process handles); its
owner must keep what it compares against elsewhere, because the other process can write to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
    "int64": torch.int64,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ALIGNMENT = 64
_MAX_DIMENSIONS = 8
_numbers = itertools.count(1)


class BadDescription(Exception):
    """What the other process says about a tensor cannot be true."""


@dataclass(frozen=True)
class Slot:
    """Where one tensor lies in a block."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Bytes of the tensor."""
        return count(self.shape) * DTYPES[self.dtype].itemsize


def count(shape: tuple[int, ...]) -> int:
    """How many elements a shape has."""
    total = 1
    for size in shape:
        total *= size
    return total


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype on the wire; KeyError for one that is not in use."""
    return _NAMES[dtype]


def pack(tensors: Mapping[str, Tensor]) -> tuple[Slot, ...]:
    """Places for copies of these tensors, one after another."""
    slots: list[Slot] = []
    offset = 0
    for name, tensor in tensors.items():
        slots.append(Slot(name, dtype_name(tensor.dtype), tuple(tensor.shape), offset))
        offset += -(-slots[-1].size // _ALIGNMENT) * _ALIGNMENT
    return tuple(slots)


def views(block: Tensor, slots: tuple[Slot, ...]) -> dict[str, Tensor]:
    """The tensors that lie in a block of bytes."""
    return {
        slot.name: block[slot.offset : slot.offset + slot.size].view(DTYPES[slot.dtype]).view(slot.shape)
        for slot in slots
    }


def _total(slots: tuple[Slot, ...]) -> int:
    return max((slot.offset + slot.size for slot in slots), default=0)


# --- the owner's side -------------------------------------------------------------------------------------------------


class FileBlob:
    """A block in a file of a directory that both sides see."""

    def __init__(self, directory: Path, tensors: Mapping[str, Tensor]) -> None:
        self._slots = pack(tensors)
        self._path = directory / f"block-{next(_numbers)}"
        size = _total(self._slots)
        with self._path.open("wb") as stream:
            stream.truncate(size)
        self._path.chmod(0o644)
        block = torch.from_file(str(self._path), shared=True, size=size, dtype=torch.uint8)
        self.tensors = views(block, self._slots)
        self.fill(tensors)

    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the content by tensors of the same names, types and shapes."""
        for name, tensor in tensors.items():
            self.tensors[name].copy_(tensor)

    def describe(self) -> dict[str, Any]:
        """What the other side needs to open the block."""
        return {"file": self._path.name, "slots": [vars(slot) for slot in self._slots]}

    def close(self) -> None:
        """Remove the file; whoever has it open keeps its content."""
        self.tensors = {}
        self._path.unlink(missing_ok=True)


class CudaBlob:
    """A block in GPU memory, shared by an inter-process handle."""

    def __init__(self, device: str, tensors: Mapping[str, Tensor]) -> None:
        self._slots = pack(tensors)
        block = torch.empty(_total(self._slots), dtype=torch.uint8, device=device)
        self._described: dict[str, Any] = {
            "id": next(_numbers),
            "cuda": export_cuda(block),
            "slots": [vars(slot) for slot in self._slots],
        }
        self.tensors = views(block, self._slots)
        self.fill(tensors)

    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the content by tensors of the same names, types and shapes."""
        for name, tensor in tensors.items():
            self.tensors[name].copy_(tensor)

    def describe(self) -> dict[str, Any]:
        """What the other side needs to open the block, once: it keeps it open under the id."""
        return self._described

    def close(self) -> None:
        """Let go of the memory."""
        self.tensors = {}


# --- the other side ---------------------------------------------------------------------------------------------------


class BlobReader:
    """Opens blocks that another process describes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._kept: dict[int, dict[str, Tensor]] = {}

    def open(self, described: dict[str, Any]) -> dict[str, Tensor]:
        """The tensors of one block."""
        number = int(described.get("id", 0))
        if number in self._kept:
            return self._kept[number]
        slots = tuple(
            Slot(slot["name"], slot["dtype"], tuple(slot["shape"]), slot["offset"]) for slot in described["slots"]
        )
        if "cuda" not in described:
            path = self._directory / described["file"]
            block = torch.from_file(str(path), shared=False, size=_total(slots), dtype=torch.uint8)
            return views(block, slots)
        tensors = views(open_cuda(described["cuda"]), slots)
        self._kept[number] = tensors
        return tensors

    def forget(self) -> None:
        """Let go of the blocks that were kept open, before others of the same size are opened."""
        self._kept.clear()


# --- GPU memory between processes -------------------------------------------------------------------------------------

# torch's own way of sharing a tensor with another process, without the pickle that it wraps around these fields.
_CUDA_FIELDS = (
    ("device", int),
    ("handle", bytes),
    ("size", int),
    ("offset", int),
    ("counter", bytes),
    ("counter_offset", int),
    ("event", bytes),
    ("event_sync", bool),
)


def export_cuda(tensor: Tensor) -> dict[str, Any]:
    """Describe a contiguous GPU tensor so that another process can open its bytes."""
    values = tensor.untyped_storage()._share_cuda_()  # type: ignore[no-untyped-call]
    described: dict[str, Any] = {
        name: value.hex() if kind is bytes else value for (name, kind), value in zip(_CUDA_FIELDS, values, strict=True)
    }
    described["start"] = tensor.storage_offset() * tensor.element_size()
    described["bytes"] = tensor.numel() * tensor.element_size()
    return described


def open_cuda(described: dict[str, Any]) -> Tensor:
    """The bytes of a GPU tensor of another process; `BadDescription` when the fields are not what they must be."""
    values = []
    try:
        for name, kind in _CUDA_FIELDS:
            value = described[name]
            if kind is bytes:
                value = bytes.fromhex(value)
            elif type(value) is not kind:
                raise TypeError(name)
            values.append(value)
        start, size = described["start"], described["bytes"]
        if type(start) is not int or type(size) is not int or min(start, size) < 0 or start + size > described["size"]:
            raise ValueError("start")
    except (KeyError, TypeError, ValueError) as error:
        raise BadDescription(f"the description of a GPU tensor is broken: {error}") from error
    storage = torch.UntypedStorage._new_shared_cuda(*values)
    empty = torch.empty(0, dtype=torch.uint8, device=f"cuda:{values[0]}")
    return empty.set_(storage, start, (size,), (1,))


def described_shape(header: dict[str, Any]) -> tuple[tuple[int, ...], str, int]:
    """Shape, dtype and bytes that the other process claims for its result; `BadDescription` when they make no sense."""
    shape, dtype = header.get("shape"), header.get("dtype")
    if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS:
        raise BadDescription("the result has no usable shape")
    if not all(type(size) is int and 0 <= size < 2**40 for size in shape):
        raise BadDescription("the result has no usable shape")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise BadDescription(f"the result is of type {str(dtype)[:40]}")
    return tuple(shape), dtype, count(tuple(shape)) * DTYPES[dtype].itemsize
