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
from gnnsparse.plan import describe_device, panel_plan, panel_step_limit
from gnnsparse.precision import Precision
from gnnsparse.preprocess.balance import STAGE, Segments
from gnnsparse.side import Side

__all__ = ["attention", "attention_grad", "shares_rows"]

_Grads = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
_MOST_FEATURES = 128
_ALIGNED = 8  # elements of 16 bytes
#: Rows of a panel: of one warp, or of four that share the gathered rows.
_ROWS, _TALL_ROWS = 16, 64
_TALL_FEATURES = 64
#: Tall panels may have this many times the column slots of four of 16 rows: the four warps look at every one,
#: but it is gathered once. Where panels of 16 rows hold less than _FULL of them, tall ones are not counted.
_TALL_SLOTS, _FULL = 1.4, 8
_TALL_BLOCKS = 4  # at a time on a multiprocessor


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
    """`x` [B, H, n, d] in `dtype`, every row contiguous from an address that is a multiple of 16.

    Rows are padded with zeros to whole 16 bytes.
    """
    steps = [x.stride(i) for i in range(3) if x.shape[i] > 1]
    width = x.shape[3]
    if (
        x.dtype == dtype
        and width % _ALIGNED == 0
        and x.stride(3) == 1
        and x.data_ptr() % 16 == 0
        and all(step % _ALIGNED == 0 for step in steps)
    ):
        return x
    packed = x.new_empty(*x.shape[:3], -(-width // _ALIGNED) * _ALIGNED, dtype=dtype)
    if width % _ALIGNED:
        packed[..., width:] = 0
    packed[..., :width] = x
    return packed[..., :width]


class _Work(NamedTuple):
    """The work list of a side for a number of heads, and what the kernels read of the side."""

    view: _native.Blocked
    segments: Segments
    rows: int  # of a panel
    head: tuple[_native.Blocked, _native.Segments, int, int, int, int, int]  # before the workspace

    @property
    def partials(self) -> int:
        return self.segments.partials


def shares_rows(side: Side) -> bool:
    """Whether panels of 64 rows gather little more than one of 16: windows and blocks do, graphs don't."""

    def count() -> bool:
        slots = side.panel_slots(_ROWS)
        return side.csr.nnz >= _FULL * slots and 4 * side.panel_slots(_TALL_ROWS) <= _TALL_SLOTS * slots

    return side.remember("attention shares rows", count)


def _tall_limit(side: Side, features: int) -> int:
    """Stages of a tall panel's parts: as few as keep every multiprocessor busy."""
    stages = side.panel_slots(_TALL_ROWS) // STAGE
    mean = stages * _TALL_ROWS // max(side.csr.rows, 1)
    at_once = _TALL_BLOCKS * describe_device(side.csr.device).multiprocessors
    share = stages * features // _TALL_FEATURES // at_once
    return panel_step_limit(mean, share, 20)


def _work(side: Side, features: int, tall: bool) -> _Work:
    """For `features` in all heads together: the more there are, the less long panels have to be cut.

    `tall`: the problem may take panels of 64 rows.
    """
    tall = tall and shares_rows(side)

    def make() -> _Work:
        if tall:
            rows, limit, longest_first = _TALL_ROWS, _tall_limit(side, features), True
        else:
            plan = panel_plan(side.problem("sddmm", features, False), _ROWS)
            rows, limit, longest_first = _ROWS, plan.step_limit, plan.longest_first
        view, segments = side.score_panels(limit, longest_first, rows)
        head = (
            view, segments.view, address(side.csr.indptr), address(side.row_ids), address(segments.cuts),
            segments.cuts.shape[0], segments.partials,
        )  # fmt: skip
        return _Work(view, segments, rows, head)

    return side.remember(("attention", features, tall), make)


def _workspace(work: _Work, heads: int, widths: tuple[int, ...], device: torch.device) -> torch.Tensor | None:
    """Partial sums of cut panels: rows of every width, rounded up to 64, and two facts of each row."""
    if work.partials == 0:
        return None
    floats = sum(-(-width // 64) * 64 for width in widths) + 2
    return torch.empty(heads * work.partials * work.rows * floats, dtype=torch.float32, device=device)


def _may_be_tall(
    q: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, seed: torch.Tensor | None, is_causal: bool
) -> bool:
    narrow = max(q.shape[3], v.shape[3]) <= _TALL_FEATURES
    return narrow and bias is None and seed is None and not is_causal


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
        work = _work(side, heads * q.shape[3], _may_be_tall(q, v, bias, seed, is_causal))
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
        lse = lse.contiguous()
        edges = edge_values(bias)  # kept here while the kernels read it
        problem = attention_problem(operand, q, k, v, edges, scale, dropout_p, seed, is_causal)
        tall, stream = _may_be_tall(q, v, bias, seed, is_causal), stream_of(q.device)
        facts = torch.empty(heads * q.shape[2], 4, dtype=torch.float32, device=q.device)
        _native.cuda_attention_panel_facts(
            problem, q.shape[2], heads_view(grad), heads_view(out), address(lse), address(facts), stream
        )
        given = heads_view(grad), address(facts)
        if dq is not None or dbias is not None:
            work = _work(operand.side, heads * q.shape[3], tall)
            partial = _workspace(work, heads, (q.shape[3],), q.device)
            _native.cuda_attention_panel_rows(
                problem, *work.head, address(partial), *given, heads_view(dq), slots_view(dbias), stream
            )
        if dk is not None or dv is not None:
            slots = operand.transpose_map if bias is not None else None
            work = _work(operand.T.side, heads * q.shape[3], tall)
            partial = _workspace(work, heads, (q.shape[3], v.shape[3]), q.device)
            _native.cuda_attention_panel_columns(
                problem, *work.head, address(partial), address(slots),
                slots is not None and slots.dtype == torch.int64, *given, heads_view(dk), heads_view(dv),
                stream,
            )  # fmt: skip
    return dq, dk, dv, None if bias is None or dbias is None else dbias.to(bias.dtype)
