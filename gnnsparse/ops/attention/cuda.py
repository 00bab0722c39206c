"""Attention on NVIDIA GPUs: the fused kernels over panels, or the unfused chain if the plan is one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from gnnsparse import _native
from gnnsparse.ops.attention import chain, quantized, rows
from gnnsparse.ops.attention.call import AttentionCall, Grads, Needs
from gnnsparse.ops.attention.layout import empty_grads, empty_heads
from gnnsparse.ops.attention.views import contiguous_edges, grads_view, heads_view, problem_of
from gnnsparse.ops.attention.work import dkv_places, panel_pass, workspace
from gnnsparse.plan import AttentionGradPlan, AttentionPlan, ChainPlan, CsrAttentionPlan, Plan
from gnnsparse.plan.attention import dkv_partial_bytes
from gnnsparse.runtime.device import VECTOR_BYTES, path

__all__ = ["backward", "forward", "vectorized"]


def vectorized(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns `x` [B, H, n, d] in `dtype`, each row contiguous and aligned to VECTOR_BYTES.

    If that takes a copy, the memory of its rows is padded with zeros to whole vectors.
    """
    steps = [x.stride(i) for i in range(3) if x.shape[i] > 1]
    width, aligned = x.shape[3], VECTOR_BYTES // dtype.itemsize
    if (
        x.dtype == dtype
        and width % aligned == 0
        and x.stride(3) == 1
        and x.data_ptr() % VECTOR_BYTES == 0
        and all(step % aligned == 0 for step in steps)
    ):
        return x
    packed = x.new_empty(*x.shape[:3], -(-width // aligned) * aligned, dtype=dtype)
    if width % aligned:
        packed[..., width:] = 0
    packed[..., :width] = x
    return packed[..., :width]


def _readable(call: AttentionCall) -> AttentionCall:
    """Returns the call with operands laid out for the kernels."""
    storage = call.operand.precision.storage
    q, k, v = (vectorized(x, storage) for x in (call.q, call.k, call.v))
    return replace(call, q=q, k=k, v=v, bias=contiguous_edges(call.bias))


def forward(call: AttentionCall, plan: Plan | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes attention by a plan, and the statistics of the softmax that its gradient needs.

    Args:
        call: the arguments of attention.
        plan: the plan to run by; None: the operand's own.

    Returns:
        The output, [B, H, L, Dv] in the dtype and memory order of q; and for each row what its scores, as
        exponents of 2, are lowered by, and the factor that makes the sum of its weights 1, float32
        [B, H, L, 2]; both are 0 for rows without unmasked edges. Rows are in the caller's numbering.
    """
    kernels = call.operand.kernels
    plan = plan or kernels.plan_of(call.product("attention"))
    in_bytes = quantized.takes_bytes(call, plan)
    if not in_bytes:
        call = quantized.dequantized(call)
    if isinstance(plan, CsrAttentionPlan):
        return rows.forward(call)
    if not isinstance(plan, AttentionPlan):
        return chain.forward(call)
    heads, width, device = call.heads, call.v.shape[3], call.q.device
    out = empty_heads(call.q, width)
    stats = torch.empty(*call.q.shape[:3], 2, dtype=torch.float32, device=device)
    gpu = path()
    with gpu.current(device):
        of = panel_pass(kernels, plan)
        partial = workspace(of, heads, (width,), device)
        result = _native.AttentionRows(heads_view(out), stats)
        if in_bytes:
            call = replace(call, bias=contiguous_edges(call.bias))
            problem = quantized.problem_of(call)
            gpu.native.cuda_attention_quantized(problem, *of.head, partial, result, kernels.streams.current())
        else:
            gpu.native.cuda_attention_panel(
                problem_of(_readable(call)), *of.head, partial, result, kernels.streams.current()
            )
    return out, stats


@dataclass(frozen=True)
class _Backward:
    """The arguments that the passes of one backward share.

    Attributes:
        call: the arguments of attention, laid out for the kernels.
        plan: the plan of the gradients.
        problem, stream: native handle of `call`, and of the CUDA stream.
        given: native handle of the output, of the statistics of its rows' softmax, and of those with delta,
            which `rows` writes and `columns` reads.
        grads: native handle of the output's gradient and of the gradients to be written.
    """

    call: AttentionCall
    plan: AttentionGradPlan
    problem: _native.Attention
    given: _native.AttentionRows
    grads: _native.AttentionGrads
    stream: int

    @property
    def _widths(self) -> tuple[int, int]:
        return self.call.q.shape[3], self.call.v.shape[3]

    def rows(self) -> None:
        """Computes the gradients of q and the bias, and the row statistics that `columns` needs."""
        operand = self.call.operand
        of = panel_pass(operand.kernels, self.plan.rows)
        partial = workspace(of, self.call.heads, self._widths[:1], operand.device)
        path().native.cuda_attention_panel_rows(
            self.problem, *of.head, partial, self.given, self.grads, self.stream
        )

    def columns(self) -> None:
        """Computes the gradients of k and v, after `rows`, in a pass over the rows of the transpose."""
        operand = self.call.operand
        index = operand.transpose_map if self.call.bias is not None else None
        of = panel_pass(operand.T.kernels, self.plan.columns)
        partial = workspace(of, self.call.heads, self._widths, operand.device)
        path().native.cuda_attention_panel_columns(
            self.problem, *of.head, partial, self.given, self.grads, index, self.stream
        )

    def fused(self) -> None:
        """Computes all gradients in one pass over the rows of A, `plan.fused_heads` heads at a time."""
        operand, heads = self.call.operand, self.plan.fused_heads
        of = panel_pass(operand.kernels, self.plan.rows)
        partial = workspace(of, self.call.heads, self._widths[:1], operand.device)
        dkv = dkv_places(operand.kernels)
        size = heads * dkv.size * dkv_partial_bytes(*self._widths)
        room = torch.empty(size, dtype=torch.uint8, device=operand.device)
        partials = _native.DkvPartials(room, heads, dkv.places, dkv.starts)
        path().native.cuda_attention_panel_fused_backward(
            self.problem, *of.head, partial, self.given, self.grads, partials, self.stream
        )


def _grad_plan(call: AttentionCall, plan: Plan | None) -> Plan:
    """Returns the plan of the gradients for a forward pass by `plan`; None: the operand's own plans."""
    if isinstance(plan, (ChainPlan, CsrAttentionPlan)):
        return plan
    if isinstance(plan, AttentionPlan) and plan.backward is not None:
        return plan.backward
    operand = call.operand
    return operand.kernels.plan_of(call.product("attention_grad"), operand.T.kernels)


def backward(
    call: AttentionCall, out: torch.Tensor, stats: torch.Tensor, grad_out: torch.Tensor, needs: Needs,
    plan: Plan | None = None,
) -> Grads:  # fmt: skip
    """Computes the gradients of q, k, v and bias.

    Args:
        call: the arguments of `forward`.
        out, stats: the results of `forward`.
        grad_out: gradient of `out`, [B, H, L, Dv], any strides.
        needs: which gradients are needed; the others are None.
        plan: the plan given for the forward pass; None: the operand's own.

    Returns:
        Gradients in the shapes and dtypes of the arguments; those of q, k and v in their memory orders.
    """
    plan = _grad_plan(call, plan)
    if isinstance(plan, CsrAttentionPlan):
        dq, dk, dv, dbias = rows.backward(call, out, stats, grad_out, needs)
        return dq, dk, dv, dbias if dbias is None or call.bias is None else dbias.to(call.bias.dtype)
    if not isinstance(plan, AttentionGradPlan):
        return chain.backward(call, out, stats, grad_out, needs)
    bias, device, gpu = call.bias, call.q.device, path()
    dq, dk, dv = empty_grads((call.q, call.k, call.v), needs)
    dbias = (
        torch.zeros(bias.shape, dtype=torch.float32, device=device) if bias is not None and needs[3] else None
    )
    with gpu.current(device):
        call, grad = _readable(call), vectorized(grad_out, call.operand.precision.storage)
        stats = stats.contiguous()
        floats = call.heads * call.q.shape[2] * _native.ROW_STATS_FLOATS
        row_stats = torch.empty(floats, dtype=torch.float32, device=device)
        passes = _Backward(
            call, plan, problem_of(call),
            _native.AttentionRows(heads_view(out), stats, row_stats),
            grads_view(grad, dq, dk, dv, dbias), call.operand.kernels.streams.current(),
        )  # fmt: skip
        of_columns = dk is not None or dv is not None
        if of_columns and plan.fused_heads > 0:
            passes.fused()
        else:
            passes.rows()
            if of_columns:
                passes.columns()
    return dq, dk, dv, None if bias is None or dbias is None else dbias.to(bias.dtype)
