"""Attention on the CPU, through the native kernels: one pass over rows forward, two backward."""

from __future__ import annotations

import torch

from gnnsparse import _native
from gnnsparse.csr import address
from gnnsparse.operand import SparseOperand
from gnnsparse.ops.heads import attention_problem, edge_values, grads_view, heads_view
from gnnsparse.ops.layout import empty_grads, empty_heads
from gnnsparse.precision import Precision, round_operand

__all__ = ["attention", "attention_grad"]

_Grads = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


def _rows(x: torch.Tensor) -> torch.Tensor:
    """`x` with contiguous rows."""
    return x if x.stride(3) == 1 or x.shape[3] == 1 else x.contiguous()


def _operand(x: torch.Tensor, precision: Precision) -> torch.Tensor:
    """`x` rounded to the precision, with contiguous rows."""
    return _rows(round_operand(x, precision))


def _interleaved(x: torch.Tensor) -> bool:
    """Whether the heads of a row lie closer together than the rows of a head: they go one after another."""
    return x.stride(1) < x.stride(2)


def attention(
    operand: SparseOperand, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
    scale: float, dropout_p: float, seed: torch.Tensor | None, is_causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """See gnnsparse.attention. Every argument has been checked.

    Args:
        q, k, v: [B, H, L, D], [B, H, S, D], [B, H, S, Dv], any strides.
        bias: [B or 1, H or 1, nnz] in the order of `operand.side`, or None.
        seed: int64 [1], where dropout_p > 0.

    Returns:
        [B, H, L, Dv] in the dtype and the memory order of q, and float32 [B, H, L]: the logarithm of
        each row's sum of exp(score), -inf where no edge counts. Rows in the caller's numbering.
    """
    side = operand.side
    out = empty_heads(q, v.shape[3])
    lse = torch.empty(q.shape[:3], dtype=torch.float32)
    q, k, v = (_operand(x, side.precision) for x in (q, k, v))
    edges = edge_values(bias)  # kept here while the kernel reads it
    problem = attention_problem(operand, q, k, v, edges, scale, dropout_p, seed, is_causal)
    _native.cpu_attention(
        problem, side.csr.view, address(side.row_ids), _interleaved(k), heads_view(out), address(lse),
        torch.get_num_threads(),
    )  # fmt: skip
    return out, lse


def attention_grad(
    operand: SparseOperand, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
    out: torch.Tensor, lse: torch.Tensor, grad_out: torch.Tensor, scale: float, dropout_p: float,
    seed: torch.Tensor | None, is_causal: bool, needs: tuple[bool, bool, bool, bool],
) -> _Grads:  # fmt: skip
    """Gradients of q, k, v and bias, each None where it is not needed.

    Args:
        out, lse: what `attention` gave. Only lse is read: the weights and their gradients, of which a
            row is at hand, give the same sum as grad_out times out without the rounding of out.
        grad_out: gradient of out, any strides.
        needs: which gradients to make.

    Returns:
        In the dtypes of the arguments; those of q, k and v in their memory orders.
    """
    side, threads = operand.side, torch.get_num_threads()
    dq, dk, dv = empty_grads((q, k, v), needs)
    dbias = torch.zeros(bias.shape) if bias is not None and needs[3] else None
    q, k, v, grad = (_operand(x, side.precision) for x in (q, k, v, grad_out))
    lse = lse.contiguous()
    delta = torch.empty_like(lse)
    edges = edge_values(bias)  # kept here while the kernels read it
    problem = attention_problem(operand, q, k, v, edges, scale, dropout_p, seed, is_causal)
    # One thread adds up the gradient of a bias that several heads share.
    one_batch, one_head = (dbias is not None and dbias.shape[i] == 1 for i in (0, 1))
    grads = grads_view(grad, dq, dk, dv, dbias)
    _native.cpu_attention_row_grads(
        problem, side.csr.view, address(side.row_ids), one_batch, one_head or _interleaved(k),
        address(lse), address(delta), grads, threads,
    )  # fmt: skip
    if dk is not None or dv is not None:
        slots = operand.transpose_map
        back = operand.T.side
        _native.cpu_attention_column_grads(
            problem, back.csr.view, address(back.row_ids), _interleaved(q),
            _native.NnzIndices(address(slots), slots.dtype == torch.int64), address(lse), address(delta),
            grads, threads,
        )  # fmt: skip
    return dq, dk, dv, None if bias is None or dbias is None else dbias.to(bias.dtype)
