"""Native handles of attention's arguments."""

from __future__ import annotations

import torch

from gnnsparse import _native
from gnnsparse.csr import address
from gnnsparse.operand import SparseOperand
from gnnsparse.precision import DTYPE_CODES

__all__ = ["attention_problem", "edge_values", "grads_view", "heads_view", "slots_view"]

_NO_HEADS = _native.Heads(0, 0, 0, 0, 0)
_NO_SLOTS = _native.EdgeValues(0, 0, 0, 0)


def edge_values(bias: torch.Tensor | None) -> torch.Tensor | None:
    """`bias` with contiguous edges."""
    return bias if bias is None or bias.stride(2) == 1 else bias.contiguous()


def heads_view(x: torch.Tensor | None) -> _native.Heads:
    """A native handle of [B, H, n, d] with contiguous rows; None has no address."""
    if x is None:
        return _NO_HEADS
    return _native.Heads(x.data_ptr(), x.stride(0), x.stride(1), x.stride(2), DTYPE_CODES[x.dtype])


def slots_view(x: torch.Tensor | None) -> _native.EdgeValues:
    """Edge values with contiguous edges; those of one batch or head serve all."""
    if x is None:
        return _NO_SLOTS
    batch, head = (0 if x.shape[i] == 1 else x.stride(i) for i in (0, 1))
    return _native.EdgeValues(x.data_ptr(), batch, head, DTYPE_CODES[x.dtype])


def grads_view(
    grad: torch.Tensor, dq: torch.Tensor | None, dk: torch.Tensor | None, dv: torch.Tensor | None,
    dbias: torch.Tensor | None,
) -> _native.AttentionGrads:  # fmt: skip
    """The gradient of the result, and where those of the arguments go; None where one is not wanted."""
    return _native.AttentionGrads(
        heads_view(grad), heads_view(dq), heads_view(dk), heads_view(dv), slots_view(dbias)
    )


def attention_problem(
    operand: SparseOperand, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
    scale: float, dropout_p: float, seed: torch.Tensor | None, is_causal: bool,
) -> _native.Attention:  # fmt: skip
    """What every kernel of attention is told. It holds addresses: keep the tensors."""
    return _native.Attention(
        heads_view(q), heads_view(k), heads_view(v), slots_view(bias),
        _native.AttentionSizes(q.shape[0], q.shape[1], q.shape[3], v.shape[3]), scale, is_causal,
        _native.Dropout(dropout_p, address(seed)), operand.precision.code,
    )  # fmt: skip
