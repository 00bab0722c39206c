"""Attention in the precisions of 8 bits: K and V are rounded to them with a scale for each feature of a head.

A GPU's kernel over panels of 16 rows gathers their bytes. Everything else computes with the numbers times
their scales, in float16: another form of the same function.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from gnnsparse import _native
from gnnsparse.ops.attention.arguments import (
    AttentionCall,
    edges_argument,
    empty_heads,
    heads_argument,
    padded,
)
from gnnsparse.ops.dense import current
from gnnsparse.ops.quantization import NUMBER_TYPES, as_numbers, fake_quantized, store, store_heads
from gnnsparse.plan import AttentionPlan, Plan
from gnnsparse.precision import Precision
from gnnsparse.runtime.device import SCORE_ROWS


def _own(x: torch.Tensor) -> torch.Tensor:
    """Return `x` [B, H, n, d] without the copies of a batch or head that was expanded."""
    batch, head = (slice(0, 1) if x.stride(i) == 0 else slice(None) for i in (0, 1))
    return x[batch, head]


def _by_row(x: torch.Tensor) -> torch.Tensor:
    """Return [B, H, n, d] as [n, B * H * d], whose columns are the features of every head."""
    return x.movedim(2, 0).flatten(1)


def _from_rows(rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Undo `_by_row` for a tensor of the shape of `like`."""
    return rows.reshape(like.shape[2], like.shape[0], like.shape[1], like.shape[3]).movedim(0, 2)


def _rounded(x: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Return `x` rounded to 8 bits and back in its memory order, float16 if it is, otherwise float32."""
    own = _own(x)
    dtype = torch.float16 if x.dtype == torch.float16 else torch.float32
    back = empty_heads(own, x.shape[3], dtype)
    if own.numel():
        rows = _by_row(own)
        stored = store(rows, precision)
        columns = rows.shape[1]
        wide = as_numbers(stored, columns).mul_(stored.scale[:columns])
        back.copy_(_from_rows(wide, own))
    return back.expand(x.shape)


def dequantized(call: AttentionCall) -> AttentionCall:
    """Return a call whose k and v are what the operand's precision stores of them; others as they are."""
    precision = call.operand.kernels.quantization
    if precision is None:
        return call
    with torch.no_grad(), current(call.operand.device):
        k = _rounded(call.k, precision)
        v = k if call.v is call.k else _rounded(call.v, precision)
    return replace(call, k=k, v=v)


def differentiable(call: AttentionCall) -> AttentionCall:
    """Return `dequantized(call)`, but of float64, for autograd: gradients pass the rounding unchanged."""
    precision = call.operand.kernels.quantization
    if precision is None:
        return call

    def rounded(x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float64 or not x.numel():
            return x
        return _from_rows(fake_quantized(_by_row(x).float(), precision), x)

    return replace(call, k=rounded(call.k), v=rounded(call.v))


def takes_bytes(call: AttentionCall, plan: Plan) -> bool:
    """Return whether a GPU's kernel for bytes computes a call by a plan."""
    widths = call.q.shape[3], call.v.shape[3]
    return (
        call.operand.kernels.quantization is not None
        and isinstance(plan, AttentionPlan)
        and plan.height == SCORE_ROWS
        and max(widths) <= _native.EIGHT_BIT_HEAD_FEATURES
    )


@torch.no_grad()
def native_attention(call: AttentionCall) -> _native.QuantizedAttention:
    """Return the native form of a call on a GPU, whose K and V are stored in 8 bits for it.

    A row of K and the row of V lie side by side. The scales of K, and that of the scores, are multiplied into
    Q: its products with numbers then have the size of scores, whatever the scales are.
    """
    precision = call.operand.kernels.quantization
    assert precision is not None
    k, v, width, value_width = _own(call.k), _own(call.v), call.q.shape[3], call.v.shape[3]
    padding = _native.EIGHT_BIT_PADDING
    widths = [-(-x.shape[3] // padding) * padding for x in (k, v)]
    if k.shape[:2] == v.shape[:2]:
        both = torch.empty(*k.shape[:3], sum(widths), dtype=torch.uint8, device=k.device)
        keys, values = both.split(widths, dim=3)
    else:
        keys, values = (
            torch.empty(*x.shape[:3], w, dtype=torch.uint8, device=x.device)
            for x, w in zip((k, v), widths, strict=True)
        )
    key_scale, value_scale = store_heads(k, precision, keys), store_heads(v, precision, values)
    heads = call.q.shape[:2]
    factors = key_scale[..., :width] * call.scale
    # In float32, and rounded once.
    queries = torch.mul(call.q, factors[:, :, None], out=padded(call.q, torch.float16))
    return _native.QuantizedAttention(
        heads_argument(queries), keys[..., :width].expand(*heads, -1, -1),
        values[..., :value_width].expand(*heads, -1, -1), value_scale.expand(*heads, -1),
        NUMBER_TYPES[precision], edges_argument(call.bias), 1.0, call.is_causal, call.dropout_p, call.seed,
    )  # fmt: skip
