"""Native handles of attention's arguments."""

from __future__ import annotations

import torch

from gnnsparse import _native
from gnnsparse.csr import address
from gnnsparse.ops.attention.call import AttentionCall
from gnnsparse.precision import DTYPE_CODES

__all__ = ["contiguous_edges", "edge_view", "grads_view", "heads_view", "problem_of"]

_NO_HEADS = _native.Heads(0, 0, 0, 0, 0)
_NO_EDGES = _native.EdgeValues(0, 0, 0, 0)


def contiguous_edges(bias: torch.Tensor | None) -> torch.Tensor | None:
    """Returns `bias` [B, H, nnz] with contiguous edges, copied if it has other strides; None for None."""
    return bias if bias is None or bias.stride(2) == 1 else bias.contiguous()


def heads_view(x: torch.Tensor | None) -> _native.Heads:
    """Returns the native handle of [B, H, n, d] with contiguous rows; the handle for None has address 0."""
    if x is None:
        return _NO_HEADS
    return _native.Heads(x.data_ptr(), x.stride(0), x.stride(1), x.stride(2), DTYPE_CODES[x.dtype])


def edge_view(x: torch.Tensor | None) -> _native.EdgeValues:
    """Returns the native handle of edge values [B or 1, H or 1, nnz] with contiguous edges.

    Dimensions of size 1 get stride 0, which broadcasts them. The handle for None has address 0.
    """
    if x is None:
        return _NO_EDGES
    batch, head = (0 if x.shape[i] == 1 else x.stride(i) for i in (0, 1))
    return _native.EdgeValues(x.data_ptr(), batch, head, DTYPE_CODES[x.dtype])


def grads_view(
    grad: torch.Tensor, dq: torch.Tensor | None, dk: torch.Tensor | None, dv: torch.Tensor | None,
    dbias: torch.Tensor | None,
) -> _native.AttentionGrads:  # fmt: skip
    """Returns the native handle of the output's gradient and of the gradients to write; None: not needed."""
    return _native.AttentionGrads(
        heads_view(grad), heads_view(dq), heads_view(dk), heads_view(dv), edge_view(dbias)
    )


def problem_of(call: AttentionCall) -> _native.Attention:
    """Returns the native handle of a call, which holds addresses: the caller keeps the tensors alive.

    Args:
        call: the arguments, with q, k and v in the storage dtype with contiguous rows, and a bias with
            contiguous edges.
    """
    q, v = call.q, call.v
    return _native.Attention(
        heads_view(q), heads_view(call.k), heads_view(v), edge_view(call.bias),
        _native.AttentionSizes(q.shape[0], q.shape[1], q.shape[3], v.shape[3]), call.scale, call.is_causal,
        _native.Dropout(call.dropout_p, address(call.seed)), call.operand.precision.code,
    )  # fmt: skip
