"""Attention on the CPU, through the native kernels: one pass over rows forward, two backward."""

from __future__ import annotations

from dataclasses import replace

import torch

from gnnsparse import _native
from gnnsparse.csr import address
from gnnsparse.ops.attention.call import AttentionCall, Grads, Needs
from gnnsparse.ops.attention.layout import empty_grads, empty_heads
from gnnsparse.ops.attention.views import contiguous_edges, grads_view, heads_view, problem_of
from gnnsparse.precision import Precision, round_operand

__all__ = ["backward", "forward"]


def _rounded(x: torch.Tensor, precision: Precision) -> torch.Tensor:
    """`x` rounded to the precision, with contiguous rows."""
    x = round_operand(x, precision)
    return x if x.stride(3) == 1 or x.shape[3] == 1 else x.contiguous()


def _readable(call: AttentionCall) -> AttentionCall:
    """The call with operands as the kernels read them. Hold it while they run."""
    q, k, v = (_rounded(x, call.operand.precision) for x in (call.q, call.k, call.v))
    return replace(call, q=q, k=k, v=v, bias=contiguous_edges(call.bias))


def _interleaved(x: torch.Tensor) -> bool:
    """Whether the heads of a row lie closer together than the rows of a head: they go one after another."""
    return x.stride(1) < x.stride(2)


def forward(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention and what its gradient needs. Every argument has been checked.

    Returns:
        [B, H, L, Dv] in the dtype and the memory order of q, and float32 [B, H, L]: the logarithm of
        each row's sum of exp(score), -inf where no edge counts. Rows in the caller's numbering.
    """
    kernels = call.operand.kernels
    out = empty_heads(call.q, call.v.shape[3])
    lse = torch.empty(call.q.shape[:3], dtype=torch.float32)
    call = _readable(call)
    _native.cpu_attention(
        problem_of(call), kernels.csr.view, address(kernels.row_ids), _interleaved(call.k), heads_view(out),
        address(lse), torch.get_num_threads(),
    )  # fmt: skip
    return out, lse


def backward(
    call: AttentionCall, out: torch.Tensor, lse: torch.Tensor, grad_out: torch.Tensor, needs: Needs
) -> Grads:
    """Gradients of q, k, v and bias, each None where it is not needed.

    Args:
        call: as it was given to `forward`.
        out, lse: what `forward` gave. Only lse is read: the weights and their gradients, of which a
            row is at hand, give the same sum as grad_out times out without the rounding of out.
        grad_out: gradient of out, any strides.
        needs: which gradients to make.

    Returns:
        In the dtypes of the arguments; those of q, k and v in their memory orders.
    """
    operand, threads, bias = call.operand, torch.get_num_threads(), call.bias
    dq, dk, dv = empty_grads((call.q, call.k, call.v), needs)
    dbias = torch.zeros(bias.shape) if bias is not None and needs[3] else None
    call, grad = _readable(call), _rounded(grad_out, operand.precision)
    lse = lse.contiguous()
    delta = torch.empty_like(lse)
    problem, kernels = problem_of(call), operand.kernels
    grads = grads_view(grad, dq, dk, dv, dbias)
    # One thread adds up the gradient of a bias that several heads share.
    one_batch, one_head = (dbias is not None and dbias.shape[i] == 1 for i in (0, 1))
    _native.cpu_attention_row_grads(
        problem, kernels.csr.view, address(kernels.row_ids), one_batch, one_head or _interleaved(call.k),
        address(lse), address(delta), grads, threads,
    )  # fmt: skip
    if dk is not None or dv is not None:
        index = operand.transpose_map
        back = operand.T.kernels
        _native.cpu_attention_column_grads(
            problem, back.csr.view, address(back.row_ids), _interleaved(call.q),
            _native.NnzIndices(address(index), index.dtype == torch.int64), address(lse), address(delta),
            grads, threads,
        )  # fmt: skip
    return dq, dk, dv, None if bias is None or dbias is None else dbias.to(bias.dtype)
