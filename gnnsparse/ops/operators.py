"""Checks of what the registered operators are called with.

The public functions check their arguments and then call an operator. The operators can be called directly as
well, as `torch.ops.gnnsparse.spmm(x, values, handle)`, so they check again. Eager calls do not run this code.
A tensor on the meta device, which has a shape alone, goes with an operand on every device.
"""

from __future__ import annotations

import torch

from gnnsparse.errors import bad_type, bad_value, check_share, check_tensor
from gnnsparse.ops.common import FLOATS
from gnnsparse.sparse.operand import SparseOperand, operand_of

__all__ = [
    "attention",
    "attention_grad",
    "divide_by_counts",
    "edge_softmax",
    "edge_softmax_grad",
    "sddmm",
    "spmm",
    "spmm_extreme",
    "spmm_extreme_grad",
    "spmm_extreme_values_grad",
    "transpose_values",
]


def _check(
    name: str,
    x: torch.Tensor,
    operand: SparseOperand,
    shape: tuple[int | None, ...],
    dtypes: tuple[torch.dtype, ...] = FLOATS,
) -> None:
    device = None if x.device.type == "meta" else operand.device
    check_tensor(name, x, dtypes=dtypes, device=device, shape=shape)


def _heads(x: torch.Tensor) -> tuple[int, ...]:
    """Returns the sizes of a row of x that edge values have too: (heads,) of x [rows, heads, d], else ()."""
    return (x.shape[1],) if x.dim() == 3 else ()


def spmm(x: torch.Tensor, values: torch.Tensor | None, handle: int) -> SparseOperand:
    """Returns the operand of an SpMM, after checking x [k, n] and the values [nnz], or None.

    With heads, they are [k, heads, d] and [nnz, heads].

    Raises:
        TypeError: a dtype or layout is not accepted.
        ValueError: a shape or a device does not go with the operand.
        RuntimeError: the operand no longer exists.
    """
    operand = operand_of(handle)
    if x.dim() == 3:
        _check("x", x, operand, (operand.shape[1], None, None))
        if values is None:
            bad_value("x", "has 3 dimensions; accepted: 2, where no values of its heads are given")
    else:
        _check("x", x, operand, (operand.shape[1], None))
    if values is not None:
        operand.kernels.require("values", "edge values", "sddmm")
        _check("values", values, operand, (operand.nnz, *_heads(x)))
    return operand


def spmm_extreme(x: torch.Tensor, values: torch.Tensor | None, handle: int) -> SparseOperand:
    """Returns the operand of a maximum or minimum, after checking its arguments. Raises as `spmm`."""
    operand = spmm(x, values, handle)
    operand.kernels.require("operand", "a maximum or minimum", None)
    return operand


def spmm_extreme_grad(
    grad: torch.Tensor, winners: torch.Tensor, values: torch.Tensor | None, handle: int
) -> SparseOperand:
    """Returns the operand of a maximum, after checking the arguments of its gradient. Raises as `spmm`.

    Args:
        grad: gradient of the result, [m, n] or [m, heads, d].
        winners: int32 of the shape of `grad`.
        values: [nnz] or [nnz, heads], or None.
        handle: handle of the operand.
    """
    operand = operand_of(handle)
    operand.kernels.require("operand", "a maximum or minimum", None)
    rows = (operand.shape[0], None, None) if grad.dim() == 3 else (operand.shape[0], None)
    _check("grad", grad, operand, rows)
    _check("winners", winners, operand, tuple(grad.shape), (torch.int32,))
    if values is not None:
        _check("values", values, operand, (operand.nnz, *_heads(grad)))
    return operand


def spmm_extreme_values_grad(
    grad: torch.Tensor, x: torch.Tensor, winners: torch.Tensor, handle: int
) -> SparseOperand:
    """Returns the operand of a maximum, after checking what its values' gradient needs. Raises as `spmm`.

    Args:
        grad, winners, handle: as in `spmm_extreme_grad`.
        x: [k, n] or [k, heads, d].
    """
    operand = spmm_extreme_grad(grad, winners, None, handle)
    _check("x", x, operand, (operand.shape[1], *grad.shape[1:]))
    return operand


def divide_by_counts(x: torch.Tensor, handle: int) -> SparseOperand:
    """Returns the operand by whose rows x [m, ...] is divided, after checking it. Raises as `spmm`."""
    operand = operand_of(handle)
    _check("x", x, operand, (operand.shape[0], *x.shape[1:]))
    return operand


def sddmm(q: torch.Tensor, k: torch.Tensor, handle: int) -> SparseOperand:
    """Returns the operand of an SDDMM, after checking q [m, d] and k [k, d]. Raises as `spmm`.

    With heads, they are [m, heads, d] and [k, heads, d].
    """
    operand = operand_of(handle)
    operand.kernels.require("operand", "sddmm", "sddmm")
    _check("q", q, operand, (operand.shape[0], None, None) if q.dim() == 3 else (operand.shape[0], None))
    _check("k", k, operand, (operand.shape[1], *q.shape[1:]))
    return operand


def edge_softmax(scores: torch.Tensor, handle: int) -> SparseOperand:
    """Returns the operand of a softmax, after checking the scores [nnz] or [nnz, heads]. Raises as `spmm`."""
    operand = operand_of(handle)
    operand.kernels.require("operand", "edge_softmax", "sddmm")
    _check("scores", scores, operand, (operand.nnz, None) if scores.dim() == 2 else (operand.nnz,))
    return operand


def edge_softmax_grad(weights: torch.Tensor, grad: torch.Tensor, handle: int) -> SparseOperand:
    """Returns the operand of a softmax, after checking its result and gradient. Raises as `spmm`.

    They are [nnz] or [nnz, heads].
    """
    operand = operand_of(handle)
    _check("weights", weights, operand, (operand.nnz, None) if weights.dim() == 2 else (operand.nnz,))
    _check("grad", grad, operand, tuple(weights.shape))
    return operand


def transpose_values(values: torch.Tensor, handle: int) -> SparseOperand:
    """Returns the operand whose edge values [nnz, ...] are reordered, after checking them.

    Raises as `spmm`.
    """
    operand = operand_of(handle)
    _check("values", values, operand, (operand.nnz, *values.shape[1:]), (values.dtype,))
    return operand


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
    _check("q", q, operand, (*lead, rows, None))
    _check("k", k, operand, (*lead, cols, q.shape[-1]))
    _check("v", v, operand, (*lead, cols, None))
    if bias is not None:
        sizes = (1, 1, *lead)[-2:]
        shape = tuple(1 if one == 1 else size for one, size in zip(bias.shape[:-1], sizes, strict=False))
        _check("bias", bias, operand, (*shape, operand.nnz) if bias.dim() == 3 else (*sizes, operand.nnz))
    check_share("dropout_p", dropout_p)
    if (seed is None) != (dropout_p == 0):
        bad_type("seed", seed, "an int64 tensor [1] with dropout, None without")
    if seed is not None:
        _check("seed", seed, operand, (1,), (torch.int64,))
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
        _check(name, x, operand, (*lead, rows, v.shape[-1]))
    _check("stats", stats, operand, (*lead, rows, 2), (torch.float32,))
    if needs[3] and bias is None:
        bad_value("needs", "got True for the bias; accepted: False, as there is none")
    return operand
