"""Attention on NVIDIA GPUs: the fused kernels over panels.

What they do not take runs the unfused chain: more features than they hold, and operands that may not be
converted to panels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse import _native
from gnnsparse.csr import address, on_device, stream_of
from gnnsparse.operand import SparseOperand
from gnnsparse.ops import unfused
from gnnsparse.ops.attention_work import (
    VECTOR,
    addend_bytes,
    addends_of,
    heads_at_once,
    may_be_tall,
    work_of,
    workspace,
)
from gnnsparse.ops.heads import attention_problem, edge_values, grads_view, heads_view
from gnnsparse.ops.layout import empty_grads, empty_heads
from gnnsparse.plan import describe_device
from gnnsparse.precision import Precision

__all__ = ["attention", "attention_grad"]

_Grads = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
#: With more, what a warp holds would not fit its registers.
_MOST_FEATURES = {Precision(name): most for name, most in _native.ATTENTION_FEATURES.items()}


def _is_fused(operand: SparseOperand, q: torch.Tensor, v: torch.Tensor) -> bool:
    precision = operand.precision
    widths = q.shape[3], v.shape[3]
    return (
        min(widths) > 0
        and max(widths) <= _MOST_FEATURES[precision]
        and q.shape[0] * q.shape[1] > 0
        and operand.nnz > 0
        and operand.side.panels
        and describe_device(operand.device).has_panel_kernel(precision)
    )


def _vectorized(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`x` [B, H, n, d] in `dtype`, every row contiguous from an address that is a multiple of 16.

    Rows are padded with zeros to whole 16 bytes.
    """
    steps = [x.stride(i) for i in range(3) if x.shape[i] > 1]
    width, aligned = x.shape[3], VECTOR // dtype.itemsize
    if (
        x.dtype == dtype
        and width % aligned == 0
        and x.stride(3) == 1
        and x.data_ptr() % VECTOR == 0
        and all(step % aligned == 0 for step in steps)
    ):
        return x
    packed = x.new_empty(*x.shape[:3], -(-width // aligned) * aligned, dtype=dtype)
    if width % aligned:
        packed[..., width:] = 0
    packed[..., :width] = x
    return packed[..., :width]


def attention(
    operand: SparseOperand, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
    scale: float, dropout_p: float, seed: torch.Tensor | None, is_causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """See gnnsparse.ops.cpu_attention.attention."""
    if not _is_fused(operand, q, v):
        return unfused.attention(operand, q, k, v, bias, scale, dropout_p, seed, is_causal)
    side, heads = operand.side, q.shape[0] * q.shape[1]
    out = empty_heads(q, v.shape[3])
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    with on_device(q.device):
        q, k, v = (_vectorized(x, side.precision.storage) for x in (q, k, v))
        edges = edge_values(bias)  # kept here while the kernel reads it
        problem = attention_problem(operand, q, k, v, edges, scale, dropout_p, seed, is_causal)
        work = work_of(side, heads * q.shape[3], may_be_tall(q, v, bias, seed, is_causal))
        partial = workspace(work, heads, (v.shape[3],), q.device)
        _native.cuda_attention_panel(
            problem, *work.head, address(partial), _native.AttentionRows(heads_view(out), address(lse)),
            stream_of(q.device),
        )  # fmt: skip
    return out, lse


@dataclass(frozen=True)
class _Backward:
    """What the passes of one backward share."""

    operand: SparseOperand
    problem: _native.Attention
    heads: int
    d: int
    dv: int
    tall: bool
    given: _native.AttentionRows  # rows() writes its row statistics, columns() reads them
    grads: _native.AttentionGrads
    stream: int

    def rows(self) -> None:
        """The gradients of q and the bias, and the row statistics that columns() needs."""
        work = work_of(self.operand.side, self.heads * self.d, self.tall)
        partial = workspace(work, self.heads, (self.d,), self.operand.device)
        _native.cuda_attention_panel_rows(
            self.problem, *work.head, address(partial), self.given, self.grads, self.stream
        )

    def columns(self, has_bias: bool) -> None:
        """The gradients of k and v, after rows()."""
        operand = self.operand
        slots = operand.transpose_map if has_bias else None
        wide = slots is not None and slots.dtype == torch.int64
        index_map = _native.NnzIndices(address(slots), wide)
        work = work_of(operand.T.side, self.heads * self.d, self.tall)
        partial = workspace(work, self.heads, (self.d, self.dv), operand.device)
        _native.cuda_attention_panel_columns(
            self.problem, *work.head, address(partial), self.given, self.grads, index_map, self.stream
        )

    def once(self, at_once: int) -> None:
        """All of them, `at_once` heads at a time."""
        operand = self.operand
        work = work_of(operand.side, self.heads * self.d, tall=False)
        partial = workspace(work, self.heads, (self.d,), operand.device)
        addends = addends_of(operand.side)
        size = at_once * addends.slots * addend_bytes(self.d, self.dv)
        room = torch.empty(size, dtype=torch.uint8, device=operand.device)
        partials = _native.DkvPartials(
            address(room), at_once, addends.slots, address(addends.places), address(addends.starts)
        )
        _native.cuda_attention_panel_fused_backward(
            self.problem, *work.head, address(partial), self.given, self.grads, partials, self.stream
        )


def attention_grad(
    operand: SparseOperand, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
    out: torch.Tensor, lse: torch.Tensor, grad_out: torch.Tensor, scale: float, dropout_p: float,
    seed: torch.Tensor | None, is_causal: bool, needs: tuple[bool, bool, bool, bool],
) -> _Grads:  # fmt: skip
    """See gnnsparse.ops.cpu_attention.attention_grad. Here `out` is read: grad_out times out gives delta."""
    if not _is_fused(operand, q, v):
        return unfused.attention_grad(
            operand, q, k, v, bias, out, lse, grad_out, scale, dropout_p, seed, is_causal, needs
        )
    heads = q.shape[0] * q.shape[1]
    dq, dk, dv = empty_grads((q, k, v), needs)
    dbias = torch.zeros(bias.shape, device=q.device) if bias is not None and needs[3] else None
    storage = operand.precision.storage
    with on_device(q.device):
        q, k, v, grad = (_vectorized(x, storage) for x in (q, k, v, grad_out))
        lse = lse.contiguous()
        edges = edge_values(bias)  # kept here while the kernels read it
        problem = attention_problem(operand, q, k, v, edges, scale, dropout_p, seed, is_causal)
        tall, stream = may_be_tall(q, v, bias, seed, is_causal), stream_of(q.device)
        row_stats = torch.empty(
            heads * q.shape[2], _native.ROW_STATS_FLOATS, dtype=torch.float32, device=q.device
        )
        backward = _Backward(
            operand, problem, heads, q.shape[3], v.shape[3], tall,
            _native.AttentionRows(heads_view(out), address(lse), address(row_stats)),
            grads_view(grad, dq, dk, dv, dbias), stream,
        )  # fmt: skip
        of_columns = dk is not None or dv is not None
        at_once = heads_at_once(operand, heads, q.shape[3], v.shape[3], tall) if of_columns else 0
        if at_once > 0:
            backward.once(at_once)
        else:
            backward.rows()
            if of_columns:
                backward.columns(bias is not None)
    return dq, dk, dv, None if bias is None or dbias is None else dbias.to(bias.dtype)
