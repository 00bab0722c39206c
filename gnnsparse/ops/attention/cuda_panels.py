"""Attention on NVIDIA GPUs by the fused kernels over panels of rows: launches, work lists and workspaces."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from gnnsparse import _native
from gnnsparse.formats import BlockedMatrix
from gnnsparse.ops.attention import quantized
from gnnsparse.ops.attention.arguments import (
    AttentionCall,
    Grads,
    Needs,
    contiguous_edges,
    empty_grads,
    empty_heads,
    grads_argument,
    heads_argument,
    native_attention,
    vectorized,
)
from gnnsparse.plan import AttentionGradPlan, AttentionPlan
from gnnsparse.plan.attention import dkv_partial_bytes
from gnnsparse.plan.work import WorkList
from gnnsparse.runtime.device import SCORE_ROWS, partial_width, path
from gnnsparse.runtime.memo import made_once
from gnnsparse.sparse.kernel_cache import KernelCache

__all__ = ["backward", "forward"]


class _PanelPass(NamedTuple):
    """The arguments from the operand for the kernels of a pass over panels.

    Attributes:
        panel, work: the panels of bits and their work list.
        head: panels, stored rows and work list as native arguments, those before the workspace.
    """

    panel: BlockedMatrix
    work: WorkList
    head: tuple[Any, ...]

    def workspace(self, heads: int, widths: tuple[int, ...], device: torch.device) -> torch.Tensor | None:
        """Allocate the workspace for partial results of panels that are divided among items of a work list.

        Returns:
            Uninitialised float32 memory: for each row of a partial result of each head its sums of each
            width, padded, and two floats of the softmax (shift and sum). None if no panel is divided.
        """
        if self.work.partials == 0:
            return None
        floats = sum(map(partial_width, widths)) + _native.PARTIAL_ROW_STATS
        floats *= heads * self.work.partials * self.panel.spec.panel
        return torch.empty(floats, dtype=torch.float32, device=device)


@made_once
def _panel_pass(kernels: KernelCache, plan: AttentionPlan) -> _PanelPass:
    """Return the arguments of a pass over the rows of an orientation by a plan; `kernels` keeps them."""
    panel, view, work = kernels.score_panels(plan.tile_limit, plan.longest_first, plan.height, "attention")
    rows = _native.StoredRows(kernels.csr.indptr, kernels.row_ids)
    return _PanelPass(panel, work, (view, rows, work.view))


class _DkvPlaces(NamedTuple):
    """Places of the partial sums of dK and dV: those of a column are neighbours, in the order of the panels.

    Attributes:
        places: int32 [K tiles, 8, 4]: at [n, j] the place of column slot 8 (n // 2) + 2 j + n % 2 of the
            K tile; -1 for padded slots. A head has room for the sums of padded slots too, which are not
            written.
        starts: int32 [columns + 1], the first place of each column.
    """

    places: torch.Tensor
    starts: torch.Tensor


@made_once
def _dkv_places(kernels: KernelCache) -> _DkvPlaces:
    """Return the places at which the fused backward pass writes partial sums of dK and dV; they are kept."""
    slots = kernels.panel(SCORE_ROWS, bits=True).columns
    real = torch.nonzero(slots >= 0).squeeze(1)
    by_column = real[torch.argsort(slots[real], stable=True)]
    places = torch.full_like(slots, -1)
    places[by_column] = torch.arange(by_column.numel(), dtype=places.dtype, device=places.device)
    counts = torch.bincount(slots[real], minlength=kernels.csr.cols)
    starts = torch.zeros(kernels.csr.cols + 1, dtype=torch.int32, device=slots.device)
    torch.cumsum(counts, 0, out=starts[1:])
    # Lane j of a group of four writes the sums of slots 8 (n // 2) + 2 j + n % 2, n = 0 .. 7.
    lanes = places.view(-1, 4, 4, 2).transpose(2, 3).reshape(-1, 8, 4)
    return _DkvPlaces(lanes, starts)


def _readable(call: AttentionCall) -> AttentionCall:
    storage = call.operand.precision.storage
    q, k, v = (vectorized(x, storage) for x in (call.q, call.k, call.v))
    return replace(call, q=q, k=k, v=v, bias=contiguous_edges(call.bias))


def forward(call: AttentionCall, plan: AttentionPlan, in_bytes: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention by a plan, and the statistics of the softmax that its gradient needs.

    Args:
        call: the arguments of attention.
        plan: the plan to run by.
        in_bytes: whether k and v are stored in 8 bits for it.

    Returns:
        The output, [B, H, L, Dv] in the dtype and memory order of q; and for each row what its scores, as
        exponents of 2, are lowered by, and the factor that makes the sum of its weights 1, float32
        [B, H, L, 2]; both are 0 for rows without unmasked edges. Rows are in the caller's numbering.
    """
    kernels, width, device, gpu = call.operand.kernels, call.v.shape[3], call.q.device, path()
    out = empty_heads(call.q, width)
    stats = torch.empty(*call.q.shape[:3], 2, dtype=torch.float32, device=device)
    with gpu.current(device):
        of = _panel_pass(kernels, plan)
        partial = of.workspace(call.heads, (width,), device)
        result = _native.AttentionRows(heads_argument(out), stats)
        if in_bytes:
            problem = quantized.native_attention(replace(call, bias=contiguous_edges(call.bias)))
            gpu.native.cuda_attention_quantized(problem, *of.head, partial, result, kernels.streams.current())
        else:
            gpu.native.cuda_attention_panel(
                native_attention(_readable(call)), *of.head, partial, result, kernels.streams.current()
            )
    return out, stats


@dataclass(frozen=True)
class _Backward:
    """The arguments that the passes of one backward share.

    Attributes:
        call: the arguments of attention, laid out for the kernels.
        plan: the plan of the gradients.
        problem, stream: native form of `call`, and handle of the CUDA stream.
        given: the output, the statistics of its rows' softmax, and those with delta, which `rows` writes and
            `columns` reads, as a native argument.
        grads: the output's gradient and the gradients to be written, as a native argument.
    """

    call: AttentionCall
    plan: AttentionGradPlan
    problem: _native.Attention
    given: _native.AttentionRows
    grads: _native.AttentionGrads
    stream: int

    def rows(self) -> None:
        """Compute the gradients of q and the bias, and the row statistics that `columns` needs."""
        head, partial = self._pass(self.call.operand.kernels, self.plan.rows, 1)
        path().native.cuda_attention_panel_rows(
            self.problem, *head, partial, self.given, self.grads, self.stream
        )

    def columns(self) -> None:
        """Compute the gradients of k and v, after `rows`, in a pass over the rows of the transpose."""
        operand = self.call.operand
        index = operand.transpose_map if self.call.bias is not None else None
        head, partial = self._pass(operand.T.kernels, self.plan.columns, 2)
        path().native.cuda_attention_panel_columns(
            self.problem, *head, partial, self.given, self.grads, index, self.stream
        )

    def fused(self) -> None:
        """Compute all gradients in one pass over the rows of A, `plan.fused_heads` heads at a time."""
        operand, heads = self.call.operand, self.plan.fused_heads
        head, partial = self._pass(operand.kernels, self.plan.rows, 1)
        dkv = _dkv_places(operand.kernels)
        size = heads * dkv.places.numel() * dkv_partial_bytes(*self._widths)
        room = torch.empty(size, dtype=torch.uint8, device=operand.device)
        partials = _native.DkvPartials(room, heads, dkv.places, dkv.starts)
        path().native.cuda_attention_panel_fused_backward(
            self.problem, *head, partial, self.given, self.grads, partials, self.stream
        )

    @property
    def _widths(self) -> tuple[int, int]:
        return self.call.q.shape[3], self.call.v.shape[3]

    def _pass(self, kernels: KernelCache, plan: AttentionPlan, results: int) -> tuple[Any, Any]:
        """Return the arguments of a pass, and its workspace for results: of the width of q, and of v if 2."""
        of = _panel_pass(kernels, plan)
        return of.head, of.workspace(self.call.heads, self._widths[:results], self.call.operand.device)


def backward(
    call: AttentionCall, plan: AttentionGradPlan, out: torch.Tensor, stats: torch.Tensor,
    grad_out: torch.Tensor, needs: Needs,
) -> Grads:  # fmt: skip
    """Compute the gradients of q, k, v and bias.

    Args:
        call: the arguments of `forward`.
        plan: the plan of the gradients.
        out, stats: the results of `forward`.
        grad_out: gradient of `out`, [B, H, L, Dv], any strides.
        needs: which gradients are needed; the others are None.

    Returns:
        Gradients in the shapes of the arguments; those of q, k and v in their dtypes and memory orders, that
        of the bias float32.
    """
    device, found = call.q.device, empty_grads(call, needs)
    with path().current(device):
        call, grad = _readable(call), vectorized(grad_out, call.operand.precision.storage)
        floats = call.heads * call.q.shape[2] * _native.ROW_STATS_FLOATS
        row_stats = torch.empty(floats, dtype=torch.float32, device=device)
        given = _native.AttentionRows(heads_argument(out), stats.contiguous(), row_stats)
        passes = _Backward(
            call, plan, native_attention(call), given, grads_argument(grad, found),
            call.operand.kernels.streams.current(),
        )  # fmt: skip
        of_columns = found[1] is not None or found[2] is not None
        if of_columns and plan.fused_heads > 0:
            passes.fused()
        else:
            passes.rows()
            if of_columns:
                passes.columns()
    return tuple(found)  # type: ignore[return-value]
