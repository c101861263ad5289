"""Outgoing triangle multiplicative update: plain PyTorch in float32, with one Triton kernel for gates and mask."""

import os

import torch
import torch.nn.functional as functional

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

BLOCK = 4096
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

if triton is not None:

    @triton.jit
    def gate_kernel(value_ptr, gate_ptr, mask_ptr, out_ptr, total, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
        """out = value * sigmoid(gate) * mask, where one mask number covers HIDDEN neighbouring values."""
        index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = index < total
        value = tl.load(value_ptr + index, mask=inside, other=0.0)
        gate = tl.load(gate_ptr + index, mask=inside, other=0.0)
        keep = tl.load(mask_ptr + index // HIDDEN, mask=inside, other=0.0)
        tl.store(out_ptr + index, value * tl.sigmoid(gate) * keep, mask=inside)


def gated(value, gate, mask):
    """value * sigmoid(gate) * mask for value and gate [B, N, N, H] and mask [B, N, N]."""
    if triton is None or not (value.is_cuda or INTERPRETED):
        # A machine on which no kernel can run still checks the mathematics.
        return value * torch.sigmoid(gate) * mask.unsqueeze(-1)
    value, gate, mask = value.contiguous(), gate.contiguous(), mask.contiguous()
    out = torch.empty_like(value)
    total = value.numel()
    gate_kernel[(triton.cdiv(total, BLOCK),)](value, gate, mask, out, total, HIDDEN=value.shape[-1], BLOCK=BLOCK)
    return out


def custom_kernel(data):
    """data = (x [B, N, N, C], mask [B, N, N], weights, config); the result is [B, N, N, C] in float32."""
    x, mask, weights, config = data
    dim, hidden = config["dim"], config["hidden_dim"]
    mask = mask.to(torch.float32)

    x = functional.layer_norm(x, (dim,), weights["norm.weight"], weights["norm.bias"])
    left = functional.linear(x, weights["left_proj.weight"])
    left = gated(left, functional.linear(x, weights["left_gate.weight"]), mask)
    right = functional.linear(x, weights["right_proj.weight"])
    right = gated(right, functional.linear(x, weights["right_gate.weight"]), mask)

    # One matrix product [N, N] x [N, N] for each batch entry and hidden channel.
    product = torch.matmul(left.permute(0, 3, 1, 2), right.permute(0, 3, 2, 1)).permute(0, 2, 3, 1)

    product = functional.layer_norm(product, (hidden,), weights["to_out_norm.weight"], weights["to_out_norm.bias"])
    product = product * torch.sigmoid(functional.linear(x, weights["out_gate.weight"]))
    return functional.linear(product, weights["to_out.weight"])
