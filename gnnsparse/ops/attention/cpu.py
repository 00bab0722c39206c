"""Attention on the CPU by the native kernels: forward over rows, backward over rows and then columns."""

from __future__ import annotations

from dataclasses import replace

import torch

from gnnsparse import _native
from gnnsparse.ops.attention.call import AttentionCall, Grads, Needs
from gnnsparse.ops.attention.layout import empty_grads, empty_heads
from gnnsparse.ops.attention.views import contiguous_edges, grads_view, heads_view, problem_of
from gnnsparse.precision import Precision, round_operand

__all__ = ["backward", "forward"]


def _rounded(x: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Returns `x` rounded to the precision, with contiguous rows."""
    x = round_operand(x, precision)
    return x if x.stride(3) == 1 or x.shape[3] == 1 else x.contiguous()


def _readable(call: AttentionCall) -> AttentionCall:
    """Returns the call with operands rounded and laid out for the kernels."""
    q, k, v = (_rounded(x, call.operand.precision) for x in (call.q, call.k, call.v))
    return replace(call, q=q, k=k, v=v, bias=contiguous_edges(call.bias))


def _interleaved(x: torch.Tensor) -> bool:
    """Returns whether `x` [B, H, n, d] is stored row by row, with the heads of a row beside one another.

    Kernels then take the heads of a row one after another in one thread, since they share cache lines.
    """
    return x.stride(1) < x.stride(2)


def forward(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes attention, and the statistics of the softmax that its gradient needs.

    Returns:
        The output, [B, H, L, Dv] in the dtype and memory order of q; and for each row what its scores are
        lowered by before they are exponents, and the factor that makes the sum of its weights 1, float32
        [B, H, L, 2]; both are 0 for rows without unmasked edges. Rows are in the caller's numbering.
    """
    kernels = call.operand.kernels
    out = empty_heads(call.q, call.v.shape[3])
    stats = torch.empty(*call.q.shape[:3], 2, dtype=torch.float32, device=call.q.device)
    call = _readable(call)
    _native.cpu_attention(
        problem_of(call), kernels.csr.view, kernels.row_ids, _interleaved(call.k), heads_view(out), stats,
        torch.get_num_threads(),
    )  # fmt: skip
    return out, stats


def backward(
    call: AttentionCall, out: torch.Tensor, stats: torch.Tensor, grad_out: torch.Tensor, needs: Needs
) -> Grads:
    """Computes the gradients of q, k, v and bias.

    Args:
        call: the arguments of `forward`.
        out, stats: the results of `forward`. `out` is not read: delta, the row sum of grad_out times out,
            equals the row sum of the weights times their gradients, which has no rounding of `out` in it.
        grad_out: gradient of `out`, [B, H, L, Dv], any strides.
        needs: which gradients are needed; the others are None.

    Returns:
        Gradients in the shapes and dtypes of the arguments; those of q, k and v in their memory orders.
    """
    operand, threads, bias = call.operand, torch.get_num_threads(), call.bias
    dq, dk, dv = empty_grads((call.q, call.k, call.v), needs)
    dbias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None and needs[3] else None
    call, grad = _readable(call), _rounded(grad_out, operand.precision)
    stats = stats.contiguous()
    delta = torch.empty_like(stats[..., 0])
    problem, kernels = problem_of(call), operand.kernels
    grads = grads_view(grad, dq, dk, dv, dbias)
    # If several heads or batch entries share a bias, one thread adds their gradients, in a fixed order.
    one_batch, one_head = (dbias is not None and dbias.shape[i] == 1 for i in (0, 1))
    _native.cpu_attention_row_grads(
        problem, kernels.csr.view, kernels.row_ids, one_batch, one_head or _interleaved(call.k), stats, delta,
        grads, threads,
    )  # fmt: skip
    if dk is not None or dv is not None:
        back = operand.T.kernels
        _native.cpu_attention_column_grads(
            problem, back.csr.view, back.row_ids, _interleaved(call.q), operand.transpose_map, stats, delta,
            grads, threads,
        )  # fmt: skip
    return dq, dk, dv, None if bias is None or dbias is None else dbias.to(bias.dtype)
