"""Attention on NVIDIA GPUs: the fused kernels over panels, in 16 bits.

What they do not take runs the unfused chain: 32-bit precisions, more than 128 features, operands that may
not be converted to panels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from gnnsparse import _native
from gnnsparse.csr import address, on_device, stream_of
from gnnsparse.operand import SparseOperand
from gnnsparse.ops import unfused
from gnnsparse.ops.heads import attention_problem, edge_values, heads_view, slots_view
from gnnsparse.ops.layout import empty_grads, empty_heads
from gnnsparse.plan import describe_device, panel_plan
from gnnsparse.precision import Precision
from gnnsparse.preprocess.balance import Segments
from gnnsparse.side import Side

__all__ = ["attention", "attention_grad"]

_Grads = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
_MOST_FEATURES = 128
_ROWS = 16  # of a panel
_ALIGNED = 8  # elements of 16 bytes


def _is_fused(operand: SparseOperand, q: torch.Tensor, v: torch.Tensor) -> bool:
    precision = operand.precision
    wide = max(q.shape[3], v.shape[3])
    fits = min(q.shape[3], v.shape[3]) > 0 and wide <= _MOST_FEATURES and q.shape[0] * q.shape[1] > 0
    return (
        fits
        and operand.nnz > 0
        and precision in (Precision.FP16, Precision.BF16)
        and operand.side.panels
        and describe_device(operand.device).has_panel_kernel(precision)
    )


def _vectorized(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`x` [B, H, n, d] in `dtype`, every row contiguous from an address that is a multiple of 16."""
    steps = [x.stride(i) for i in range(3) if x.shape[i] > 1]
    if (
        x.dtype == dtype
        and (x.stride(3) == 1 or x.shape[3] == 1)
        and x.data_ptr() % 16 == 0
        and all(step % _ALIGNED == 0 for step in steps)
    ):
        return x
    width = x.shape[3]
    padded = -(-width // _ALIGNED) * _ALIGNED
    packed = torch.empty(*x.shape[:3], padded, dtype=dtype, device=x.device)[..., :width]
    return packed.copy_(x)


class _Work(NamedTuple):
    """The work list of a side for a number of heads, and what the kernels read of the side."""

    view: _native.Blocked
    segments: Segments
    head: tuple[_native.Blocked, _native.Segments, int, int, int, int, int]  # before the workspace

    @property
    def partials(self) -> int:
        return self.segments.partials


def _work(side: Side, features: int) -> _Work:
    """For `features` in all heads together: the more there are, the less long panels have to be cut."""

    def make() -> _Work:
        plan = panel_plan(side.problem("sddmm", features, False), _ROWS)
        view, segments = side.score_panels(plan.step_limit, plan.longest_first)
        head = (
            view, segments.view, address(side.csr.indptr), address(side.row_ids), address(segments.cuts),
            segments.cuts.shape[0], segments.partials,
        )  # fmt: skip
        return _Work(view, segments, head)

    return side.remember(("attention", features), make)


def _workspace(work: _Work, heads: int, widths: tuple[int, ...], device: torch.device) -> torch.Tensor | None:
    """Partial sums of cut panels: rows of every width, rounded up to 64, and two facts of each row."""
    if work.partials == 0:
        return None
    floats = sum(-(-width // 64) * 64 for width in widths) + 2
    return torch.empty(heads * work.partials * _ROWS * floats, dtype=torch.float32, device=device)


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
        work = _work(side, heads * q.shape[3])
        partial = _workspace(work, heads, (v.shape[3],), q.device)
        _native.cuda_attention_panel(
            problem, *work.head, address(partial), heads_view(out), address(lse), stream_of(q.device)
        )
    return out, lse


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
        # Of the rounded gradient, as the kernels multiply it; contiguous, for the order of a sum
        # depends on strides.
        delta = (grad.float() * out.float()).contiguous().sum(3)
        lse = lse.contiguous()
        edges = edge_values(bias)  # kept here while the kernels read it
        problem = attention_problem(operand, q, k, v, edges, scale, dropout_p, seed, is_causal)
        facts, stream = (heads_view(grad), address(lse), address(delta)), stream_of(q.device)
        if dq is not None or dbias is not None:
            work = _work(operand.side, heads * q.shape[3])
            partial = _workspace(work, heads, (q.shape[3],), q.device)
            _native.cuda_attention_panel_rows(
                problem, *work.head, address(partial), *facts, heads_view(dq), slots_view(dbias), stream
            )
        if dk is not None or dv is not None:
            slots = operand.transpose_map if bias is not None else None
            work = _work(operand.T.side, heads * q.shape[3])
            partial = _workspace(work, heads, (q.shape[3], v.shape[3]), q.device)
            _native.cuda_attention_panel_columns(
                problem, *work.head, address(partial), address(slots),
                slots is not None and slots.dtype == torch.int64, *facts, heads_view(dk), heads_view(dv),
                stream,
            )  # fmt: skip
    return dq, dk, dv, None if bias is None or dbias is None else dbias.to(bias.dtype)
