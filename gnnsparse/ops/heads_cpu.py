"""Products over rows with heads on the CPU, and maxima with the nonzeros that gave them.

Dense arguments are [rows, n], or [rows, heads, d] with edge values [nnz, heads].
"""

from __future__ import annotations

import torch

from gnnsparse import _native
from gnnsparse.ops.dense import cpu_loader
from gnnsparse.ops.result_memory import empty_result
from gnnsparse.plan import Plan
from gnnsparse.precision import round_operand
from gnnsparse.sparse.kernel_cache import KernelCache

__all__ = ["sddmm", "spmm", "spmm_max", "spmm_max_grad"]

#: Of a dtype that is poisoned by NaN, with elements as wide as those of an argmax.
_WORDS = torch.empty(0, dtype=torch.float32, device="cpu")


def _shape(x: torch.Tensor) -> tuple[int, int]:
    """Returns the number of heads and the features of one; rows without heads are one head."""
    return (x.shape[1], x.shape[2]) if x.dim() == 3 else (1, x.shape[1])


def _weights(kernels: KernelCache, values: torch.Tensor | None) -> torch.Tensor | None:
    """Returns edge values, or A's own weights in place of None, as the kernels read them."""
    if values is None:
        own = kernels.own_weights
        return None if own is None else own.float()
    return round_operand(values, kernels.precision).float().contiguous()


def _multiply(
    kernels: KernelCache, x: torch.Tensor, values: torch.Tensor | None, argmax: torch.Tensor | None,
    scale: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    heads, width = _shape(x)
    if kernels.csr.rows * heads * width == 0 or kernels.csr.nnz == 0:
        return x.new_zeros(kernels.csr.rows, *x.shape[1:])
    y = empty_result(x, kernels.csr.rows, heads * width)
    rows, load = _native.StoredRows(None, kernels.row_ids, scale, values), cpu_loader(kernels.precision)
    _native.cpu_spmm_heads(
        kernels.csr.view, rows, load(x.flatten(1)), y, heads, width, argmax, torch.get_num_threads()
    )
    return y.unflatten(1, x.shape[1:])


def spmm(
    kernels: KernelCache, x: torch.Tensor, values: torch.Tensor, mean: bool, plan: Plan | None = None
) -> torch.Tensor:
    """Computes the SpMM of x [k, heads, d] with edge values [nnz, heads], into [m, heads, d].

    Args:
        kernels: cache of the orientation that is multiplied.
        x, values: the operands.
        mean: whether a row's sum is divided by its number of nonzeros.
        plan: ignored: the CPU has one kernel.
    """
    return _multiply(kernels, x, _weights(kernels, values), None, kernels.row_factors(False, mean))


def spmm_max(
    kernels: KernelCache,
    x: torch.Tensor,
    values: torch.Tensor | None,
    largest: bool,
    plan: Plan | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes the largest or smallest product of each row and feature.

    Args:
        kernels: cache of the orientation that is multiplied.
        x: [k, n], or [k, heads, d].
        values: [nnz], or [nnz, heads]; None: A's weights.
        largest: True for the maximum, False for the minimum.
        plan: ignored: the CPU has one kernel.

    Returns:
        The results [m, ...], 0 for rows without nonzeros, and the columns of the nonzeros that gave them,
        int32 [m, ...], -1 for rows without nonzeros.
    """
    heads, width = _shape(x)
    rows, size = kernels.csr.rows, heads * width
    if rows * size == 0 or kernels.csr.nnz == 0:
        y = x.new_zeros(rows, *x.shape[1:])
        return y, torch.full(y.shape, -1, dtype=torch.int32, device=x.device)
    y = empty_result(x, rows, size)
    argmax = empty_result(_WORDS, rows, size).view(torch.int32)
    stored = _native.StoredRows(None, kernels.row_ids, None, _weights(kernels, values))
    load = cpu_loader(kernels.precision)
    _native.cpu_spmm_extreme(
        kernels.csr.view, stored, load(x.flatten(1)), y, heads, width, largest, argmax,
        torch.get_num_threads(),
    )  # fmt: skip
    return y.unflatten(1, x.shape[1:]), argmax.unflatten(1, x.shape[1:])


def spmm_max_grad(
    kernels: KernelCache, grad: torch.Tensor, argmax: torch.Tensor, values: torch.Tensor | None
) -> torch.Tensor:
    """Computes the gradient of x from that of `spmm_max`.

    Args:
        kernels: cache of the transpose.
        grad: gradient of the results, [m, n] or [m, heads, d].
        argmax: the columns that `spmm_max` has returned, of the shape of `grad`.
        values: edge values in the order of the transpose; None: A's weights.
    """
    return _multiply(kernels, grad, _weights(kernels, values), argmax.contiguous(), None)


def sddmm(
    kernels: KernelCache, q: torch.Tensor, k: torch.Tensor, argmax: torch.Tensor | None = None,
    plan: Plan | None = None,
) -> torch.Tensor:  # fmt: skip
    """Computes the dot products of rows of q and k at the nonzeros, in each head.

    Args:
        kernels: cache of the operand.
        q, k: [m, n] and [k, n], or [m, heads, d] and [k, heads, d].
        argmax: the columns that `spmm_max` has returned, of the shape of q: a feature counts at the nonzero
            that gave it. None: every feature counts.
        plan: ignored: the CPU has one kernel.

    Returns:
        [nnz], or [nnz, heads], in the dtype of q.
    """
    heads, width = _shape(q)
    out = q.new_empty(kernels.csr.nnz, *q.shape[1:-1])
    if q.shape[-1] == 0 or out.numel() == 0:
        return out.zero_()
    load = cpu_loader(kernels.precision)
    _native.cpu_sddmm_heads(
        kernels.csr.view, kernels.row_ids, load(q.flatten(1)), load(k.flatten(1)), heads, width,
        None if argmax is None else argmax.contiguous(), out, torch.get_num_threads(),
    )  # fmt: skip
    return out
