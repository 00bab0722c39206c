"""Native handles of attention's arguments."""

from __future__ import annotations

import torch

from gnnsparse import _native
from gnnsparse.ops.attention.call import AttentionCall

__all__ = ["contiguous_edges", "edge_view", "grads_view", "heads_view", "problem_of"]

_NO_HEADS = _native.Heads()
_NO_EDGES = _native.EdgeValues()


def contiguous_edges(bias: torch.Tensor | None) -> torch.Tensor | None:
    """Returns `bias` [B, H, nnz] with contiguous edges, copied if it has other strides; None for None."""
    return bias if bias is None or bias.stride(2) == 1 else bias.contiguous()


def heads_view(x: torch.Tensor | None) -> _native.Heads:
    """Returns the native handle of [B, H, n, d] with contiguous rows, or that of None."""
    return _NO_HEADS if x is None else _native.Heads(x)


def edge_view(x: torch.Tensor | None) -> _native.EdgeValues:
    """Returns the native handle of edge values [B or 1, H or 1, nnz], contiguous along nnz, or of None."""
    return _NO_EDGES if x is None else _native.EdgeValues(x)


def grads_view(
    grad: torch.Tensor, dq: torch.Tensor | None, dk: torch.Tensor | None, dv: torch.Tensor | None,
    dbias: torch.Tensor | None,
) -> _native.AttentionGrads:  # fmt: skip
    """Returns the native handle of the output's gradient and of the gradients to write; None: not needed."""
    return _native.AttentionGrads(
        heads_view(grad), heads_view(dq), heads_view(dk), heads_view(dv), edge_view(dbias)
    )


def problem_of(call: AttentionCall) -> _native.Attention:
    """Returns the native handle of a call.

    Args:
        call: the arguments, with q, k and v in the storage dtype with contiguous rows, and a bias with
            contiguous edges.
    """
    return _native.Attention(
        heads_view(call.q), heads_view(call.k), heads_view(call.v), edge_view(call.bias), call.scale,
        call.is_causal, call.dropout_p, call.seed, call.operand.precision.code,
    )  # fmt: skip
