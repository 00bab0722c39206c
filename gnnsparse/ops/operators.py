"""Checks of what attention's registered operators are called with."""

from __future__ import annotations

import torch

from gnnsparse.errors import bad_type, bad_value, check_share
from gnnsparse.ops.dispatch import check_operator_tensor
from gnnsparse.sparse.operand import SparseOperand, operand_of

__all__ = ["attention", "attention_grad"]


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, seed: torch.Tensor | None,
    handle: int, dropout_p: float,
) -> SparseOperand:  # fmt: skip
    """Returns the operand of an attention, after checking its arguments. Raises as `spmm`.

    Args:
        q, k, v: [L, D], [S, D], [S, Dv] with up to two leading sizes (batch, heads), equal ones.
        bias: [1 or B, 1 or H, nnz], or None.
        seed: int64 [1]; None if `dropout_p` is 0.
        handle: handle of the operand [L, S].
        dropout_p: probability with which a weight is dropped.
    """
    operand = operand_of(handle)
    operand.kernels.require("operand", "attention", "sddmm")
    rows, cols = operand.shape
    lead = tuple(q.shape[:-2])
    if not 2 <= q.dim() <= 4:
        bad_value("q", f"has {q.dim()} dimensions; accepted: 2 to 4")
    check_operator_tensor("q", q, operand, (*lead, rows, None))
    check_operator_tensor("k", k, operand, (*lead, cols, q.shape[-1]))
    check_operator_tensor("v", v, operand, (*lead, cols, None))
    if bias is not None:
        sizes = (1, 1, *lead)[-2:]
        shape = tuple(1 if one == 1 else size for one, size in zip(bias.shape[:-1], sizes, strict=False))
        check_operator_tensor(
            "bias", bias, operand, (*shape, operand.nnz) if bias.dim() == 3 else (*sizes, operand.nnz)
        )
    check_share("dropout_p", dropout_p)
    if (seed is None) != (dropout_p == 0):
        bad_type("seed", seed, "an int64 tensor [1] with dropout, None without")
    if seed is not None:
        check_operator_tensor("seed", seed, operand, (1,), (torch.int64,))
    return operand


def attention_grad(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor,
    stats: torch.Tensor, grad: torch.Tensor, seed: torch.Tensor | None, handle: int, dropout_p: float,
    needs: list[bool],
) -> SparseOperand:  # fmt: skip
    """Returns the operand of an attention, after checking the arguments of its gradient. Raises as `spmm`.

    Args:
        q, k, v, bias, seed, handle, dropout_p: as in `attention`.
        out, grad: the output and its gradient, [B, H, L, Dv].
        stats: statistics of each row's softmax, which the attention has given, float32 [B, H, L, 2].
        needs: whether the gradients of q, k, v and the bias are needed.
    """
    operand = attention(q, k, v, bias, seed, handle, dropout_p)
    lead, rows = (1, 1, *q.shape[:-2])[-2:], operand.shape[0]
    for name, x in (("out", out), ("grad", grad)):
        check_operator_tensor(name, x, operand, (*lead, rows, v.shape[-1]))
    check_operator_tensor("stats", stats, operand, (*lead, rows, 2), (torch.float32,))
    if needs[3] and bias is None:
        bad_value("needs", "got True for the bias; accepted: False, as there is none")
    return operand
