"""The operator itself: inputs, the reference result, and the comparison that decides.

The only module that says what is right.  It runs in the judge and in the judge's own process on a GPU, never in the
process of a candidate.  Everything is float32 without TF32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor

from judges.trimul.cases import CAUCHY, HIDDEN, Case, Rules

EPSILON = 1e-5
ABSOLUTE_TOLERANCE = 0.02
RELATIVE_TOLERANCE = 0.02
GLOBAL_SEED = 67280421310721
"""The seed of torch's own generator when nobody seeds it; the public evaluator drew its weights from that."""
_CAUCHY_SCALE = 2.0
_CHUNK_ELEMENTS = 1 << 25


@dataclass(frozen=True)
class Inputs:
    """What a kernel is called with; `weights` by their names in the task's statement."""

    x: Tensor
    mask: Tensor
    weights: dict[str, Tensor]


def weight_shapes(dim: int, hidden: int = HIDDEN) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight, in the order in which they are drawn."""
    return {
        "norm.weight": (dim,),
        "norm.bias": (dim,),
        "left_proj.weight": (hidden, dim),
        "right_proj.weight": (hidden, dim),
        "left_gate.weight": (hidden, dim),
        "right_gate.weight": (hidden, dim),
        "out_gate.weight": (hidden, dim),
        "to_out_norm.weight": (hidden,),
        "to_out_norm.bias": (hidden,),
        "to_out.weight": (dim, hidden),
    }


def make_x_and_mask(case: Case, rules: Rules, *, seed: int, device: str) -> tuple[Tensor, Tensor]:
    """`x` float32 [B, N, N, C], and the mask [B, N, N]: ones (float32), or zeros and ones (int64) where masked."""
    generator = torch.Generator(device=device).manual_seed(seed)
    shape = (case.batch, case.seqlen, case.seqlen, case.dim)
    if case.kind == CAUCHY:
        x = torch.rand(shape, generator=generator, device=device)
        x.sub_(0.5).mul_(math.pi).tan_().mul_(_CAUCHY_SCALE)
    else:
        x = torch.randn(shape, generator=generator, device=device)
    if rules.masked(case):
        return x, torch.randint(0, 2, shape[:3], generator=generator, device=device)
    return x, torch.ones(shape[:3], device=device)


def make_weights(dim: int, generator: torch.Generator, hidden: int = HIDDEN) -> dict[str, Tensor]:
    """Random weights on the generator's device: norms of spread 1, matrices scaled so that results are near 1."""
    weights = {}
    for name, shape in weight_shapes(dim, hidden).items():
        values = torch.randn(shape, generator=generator, device=generator.device)
        if name == "to_out.weight":
            values /= math.sqrt(dim)
        elif len(shape) == 2:
            values /= math.sqrt(hidden)
        weights[name] = values
    return weights


def make_inputs(case: Case, rules: Rules, *, seed: int, device: str, shared: torch.Generator | None = None) -> Inputs:
    """Everything for one call.  Weights come from `shared` when it is given, else from the seed as well."""
    x, mask = make_x_and_mask(case, rules, seed=seed, device=device)
    if shared is None:
        # Not the generator of `x`: weights must not repeat what is already in the input.
        shared = torch.Generator(device=device).manual_seed(seed + 2**40)
    return Inputs(x, mask, make_weights(case.dim, shared))


def reference(inputs: Inputs) -> Tensor:
    """The outgoing triangle multiplicative update, [B, N, N, C].

    Works through the rows in pieces: beside the result it holds two tensors of [B, H, N, N].
    """
    x, weights = inputs.x, inputs.weights
    mask = inputs.mask.to(torch.float32).unsqueeze(-1)
    batch, seqlen = x.shape[0], x.shape[1]
    hidden = weights["left_proj.weight"].shape[0]
    left = x.new_empty((batch, hidden, seqlen, seqlen))
    right = torch.empty_like(left)
    for rows in _row_slices(x):
        normed = _layer_norm(x[:, rows], weights, "norm")
        for name, side in (("left", left), ("right", right)):
            value = functional.linear(normed, weights[f"{name}_proj.weight"]) * mask[:, rows]
            value *= functional.linear(normed, weights[f"{name}_gate.weight"]).sigmoid_()
            side[:, :, rows] = value.permute(0, 3, 1, 2)
    result = torch.empty_like(x)
    for rows in _row_slices(x):
        # o[b, i, j, h] = sum over k of left[b, i, k, h] * right[b, j, k, h]
        product = torch.matmul(left[:, :, rows], right.transpose(-1, -2)).permute(0, 2, 3, 1)
        normed = _layer_norm(product, weights, "to_out_norm")
        gate = functional.linear(_layer_norm(x[:, rows], weights, "norm"), weights["out_gate.weight"]).sigmoid_()
        result[:, rows] = functional.linear(normed * gate, weights["to_out.weight"])
    return result


def _layer_norm(values: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return functional.layer_norm(values, (weight.shape[0],), weight, bias, eps=EPSILON)


def _row_slices(x: Tensor) -> Iterator[slice]:
    batch, seqlen, _, dim = x.shape
    step = max(1, min(seqlen, _CHUNK_ELEMENTS // (batch * seqlen * max(dim, HIDDEN))))
    for start in range(0, seqlen, step):
        yield slice(start, min(seqlen, start + step))


def mismatch(got: Tensor, want: Tensor) -> str | None:
    """None when every element is within tolerance and NaN and infinities are in the same places; else what is wrong."""
    if got.shape != want.shape:
        return f"the result has shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    wrong = 0
    first = ""
    for index, (ours, theirs) in enumerate(zip(_flat_pieces(got), _flat_pieces(want), strict=True)):
        bad = _outside(ours, theirs)
        count = int(bad.sum())
        if count and not wrong:
            place = int(bad.nonzero()[0])
            where = _position(index * _CHUNK_ELEMENTS + place, want.shape)
            first = f"at {where} it is {float(ours[place]):.6g}, expected {float(theirs[place]):.6g}"
        wrong += count
    return f"{wrong} of {want.numel()} elements are wrong; {first}" if wrong else None


def _outside(got: Tensor, want: Tensor) -> Tensor:
    """True where an element is wrong."""
    got = got.to(torch.float32)
    close = (got - want).abs() <= ABSOLUTE_TOLERANCE + RELATIVE_TOLERANCE * want.abs()
    # The comparison above is false for NaN, and for two equal infinities, whose difference is NaN.
    same = (got == want) | (got.isnan() & want.isnan())
    finite = got.isfinite() & want.isfinite()
    return ~((close & finite) | same)


def _flat_pieces(values: Tensor) -> Iterator[Tensor]:
    flat = values.reshape(-1)
    for start in range(0, flat.numel(), _CHUNK_ELEMENTS):
        yield flat[start : start + _CHUNK_ELEMENTS]


def _position(index: int, shape: torch.Size) -> str:
    place = []
    for size in reversed(shape):
        place.append(index % size)
        index //= size
    return "[" + ", ".join(str(value) for value in reversed(place)) + "]"
