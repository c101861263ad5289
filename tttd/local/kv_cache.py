"""The keys and values of all running sequences: one row each, every row at its own length.

transformers' own caches either copy everything for each new token or need all rows to be equally long. Here the
buffers are allocated once and written in place; a model layer calls `update` exactly as it would on a transformers
cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

_LENGTH_STEP = 128
_ROW_STEP = 4


@dataclass(frozen=True)
class Prefix:
    """A prompt that has been run once: its keys and values per layer ([heads, tokens, dim]) and the next-token
    logits."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    logits: Tensor

    @property
    def length(self) -> int:
        """Prompt tokens."""
        return int(self.keys[0].shape[1])


class RowCache:
    """Rows 0..n-1 are running.  A row that ends is replaced by the last one, so that the running rows stay together."""

    def __init__(self) -> None:
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._lengths: list[int] = []
        # Of the current step: where each row's new token goes, and how far the longest row reaches.
        self._rows = self._positions = torch.empty(0, dtype=torch.long)
        self._visible = 0

    @property
    def rows(self) -> int:
        """Running rows."""
        return len(self._lengths)

    def add(self, prefix: Prefix, capacity: int) -> int:
        """Start a row with a prompt's keys and values and room for `capacity` tokens in all; returns its number."""
        row = self.rows
        self._reserve(prefix, row + 1, capacity)
        for buffer, source in zip((*self._keys, *self._values), (*prefix.keys, *prefix.values), strict=True):
            buffer[row, :, : prefix.length] = source
        self._lengths.append(prefix.length)
        return row

    def remove(self, row: int) -> None:
        """End a row; the last row takes its number."""
        last = self.rows - 1
        if row != last:
            length = self._lengths[last]
            for buffer in (*self._keys, *self._values):
                buffer[row, :, :length] = buffer[last, :, :length]
            self._lengths[row] = self._lengths[last]
        self._lengths.pop()
        if not self._lengths:
            self._keys, self._values = [], []

    def begin_step(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Make room for one token in every row; returns its positions [rows, 1] and the attention mask [rows, 1, 1,
        n]."""
        self._rows = torch.arange(self.rows, device=device)
        self._positions = torch.tensor(self._lengths, device=device)
        self._visible = max(self._lengths) + 1
        mask = torch.arange(self._visible, device=device)[None, :] <= self._positions[:, None]
        self._lengths = [length + 1 for length in self._lengths]
        return self._positions[:, None], mask[:, None, None, :]

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Store one token's keys and values ([rows, heads, 1, dim]) and return all that the step may look at."""
        key_buffer, value_buffer = self._keys[layer], self._values[layer]
        key_buffer[self._rows, :, self._positions] = keys[:, :, 0]
        value_buffer[self._rows, :, self._positions] = values[:, :, 0]
        window = (slice(0, self.rows), slice(None), slice(0, self._visible))
        return key_buffer[window], value_buffer[window]

    def _reserve(self, prefix: Prefix, rows: int, length: int) -> None:
        if self._keys and self._keys[0].shape[0] >= rows and self._keys[0].shape[2] >= length:
            return
        old_rows, old_length = (self._keys[0].shape[0], self._keys[0].shape[2]) if self._keys else (0, 0)
        rows = max(old_rows, _round_up(rows, _ROW_STEP))
        length = max(old_length, _round_up(length, _LENGTH_STEP))
        self._keys = _grown(self._keys, prefix.keys, rows, length)
        self._values = _grown(self._values, prefix.values, rows, length)


def prompt_layers(cache: DynamicCache) -> list[tuple[DynamicLayer, Tensor, Tensor]]:
    """The layers of a cache that holds a prompt, each with its keys and values ([rows, heads, tokens, dim])."""
    layers = []
    for layer in cache.layers:
        if not isinstance(layer, DynamicLayer) or layer.keys is None or layer.values is None:
            raise TypeError(f"expected a filled full-attention cache, got a {type(layer).__name__}")
        layers.append((layer, layer.keys, layer.values))
    return layers


def cache_tokens(lengths: Sequence[int]) -> int:
    """Token places that rows of these full lengths take up: the buffers are as long as the longest."""
    return len(lengths) * max(lengths, default=0)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _grown(buffers: list[Tensor], like: Sequence[Tensor], rows: int, length: int) -> list[Tensor]:
    grown = []
    for layer, source in enumerate(like):
        # Zeros, not garbage: a masked place is multiplied by 0, and 0 times NaN would not vanish.
        buffer = source.new_zeros((rows, source.shape[0], length, source.shape[2]))
        if buffers:
            old = buffers[layer]
            buffer[: old.shape[0], :, : old.shape[2]] = old
        grown.append(buffer)
    return grown
