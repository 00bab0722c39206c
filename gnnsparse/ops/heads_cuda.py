"""Products over rows with heads on NVIDIA GPUs, and maxima with the nonzeros that gave them.

Dense arguments are [rows, n], or [rows, heads, d] with edge values [nnz, heads]. Kernels are queued on the
caller's current stream, without waiting for the GPU.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_value
from gnnsparse.ops.dense import CudaLoader, aligned_values, partial_sums
from gnnsparse.plan import CsrPlan, Plan
from gnnsparse.plan.csr import CSR
from gnnsparse.plan.work import WorkList
from gnnsparse.precision import Precision
from gnnsparse.runtime.device import VECTOR_BYTES, partial_width, path
from gnnsparse.runtime.memo import made_once
from gnnsparse.sparse.kernel_cache import KernelCache, Product

__all__ = ["sddmm", "spmm", "spmm_max", "spmm_max_grad"]


class _Shape(NamedTuple):
    """Features of a row in heads; rows without heads are one head.

    Attributes:
        heads: number of heads.
        width: features of one.
        padded: elements that one takes in an operand, whole vectors.
    """

    heads: int
    width: int
    padded: int

    @classmethod
    def of(cls, x: torch.Tensor, precision: Precision) -> _Shape:
        heads, width = (x.shape[1], x.shape[2]) if x.dim() == 3 else (1, x.shape[1])
        elements = VECTOR_BYTES // precision.storage.itemsize
        return cls(heads, width, -(-width // elements) * elements)

    @property
    def features(self) -> int:
        return self.heads * self.width


def _plan(kernels: KernelCache, op: str, shape: _Shape, plan: Plan | None) -> CsrPlan:
    """Returns the caller's plan, or a default one: SDDMM shares out lanes among heads, SpMM among vectors."""
    if plan is not None:
        if not isinstance(plan, CsrPlan):
            bad_value("plan", f"got {plan.label} with heads, a maximum or a minimum; accepted: csr")
        return plan
    return _default_plan(kernels, op, shape.padded * (shape.heads if op == "spmm" else 1), shape.heads)


@made_once
def _default_plan(kernels: KernelCache, op: str, width: int, heads: int) -> CsrPlan:
    # Edge values: the csr kernel is the one that reads them in the order of the nonzeros.
    chosen = CSR.by_vectors(kernels.problem(Product("spmm", width, True)))
    row_lanes = chosen.row_lanes
    if op != "spmm":
        row_lanes = min(32, chosen.lanes * (1 << (heads - 1).bit_length()))
    return CsrPlan(chosen.lanes, row_lanes, kernels.row_limit(chosen.row_limit))


def _operand(x: torch.Tensor, shape: _Shape, precision: Precision) -> _native.Dense:
    """Returns an operand in the storage dtype, each head padded to whole vectors; `x` itself if it is so."""
    if shape.heads == 1 or shape.width == shape.padded:
        return CudaLoader(precision, shape.features)(x.flatten(1))
    gpu = path()
    out = torch.empty(x.shape[0], shape.heads * shape.padded, dtype=precision.storage, device=x.device)
    by_head = gpu.native.Dense(out.view(-1, shape.padded))
    gpu.native.cuda_pack(x.reshape(-1, shape.width), None, by_head, gpu.stream(x.device))
    return gpu.native.Dense(out)


class _Rows(NamedTuple):
    """The arguments with which every kernel begins: matrix, rows, work list, lanes."""

    csr: _native.Csr
    stored: _native.StoredRows
    work: _native.WorkList
    lanes: _native.CsrLanes


def _rows(
    kernels: KernelCache, plan: CsrPlan, values: torch.Tensor | None = None, scale: torch.Tensor | None = None
) -> tuple[_Rows, WorkList]:
    gpu, work = path().native, kernels.row_work(plan.row_limit)
    stored = gpu.StoredRows(None, kernels.row_ids, scale, values)
    lanes = gpu.CsrLanes(plan.lanes, plan.row_lanes, plan.row_limit)
    return _Rows(kernels.csr.view, stored, work.view, lanes), work


def _weights(kernels: KernelCache, values: torch.Tensor | None) -> torch.Tensor | None:
    """Returns edge values, or A's own weights in place of None, as the kernels read them."""
    return kernels.own_weights if values is None else aligned_values(values, kernels.precision)


def _multiply(
    kernels: KernelCache, x: torch.Tensor, values: torch.Tensor | None, argmax: torch.Tensor | None,
    scale: torch.Tensor | None, plan: Plan | None,
) -> torch.Tensor:  # fmt: skip
    shape, precision = _Shape.of(x, kernels.precision), kernels.precision
    y = x.new_empty(kernels.csr.rows, *x.shape[1:])
    if y.numel() == 0 or kernels.csr.nnz == 0:
        return y.zero_()
    rows, work = _rows(kernels, _plan(kernels, "spmm", shape, plan), values, scale)
    gpu = path()
    with gpu.current(x.device):
        gpu.native.cuda_spmm_heads(
            *rows, _operand(x, shape, precision), gpu.native.Dense(y.flatten(1)), shape.heads, shape.width,
            argmax, partial_sums(work.partials, 1, shape.features, x.device), precision.code,
            kernels.streams.current(),
        )  # fmt: skip
    return y


def spmm(
    kernels: KernelCache, x: torch.Tensor, values: torch.Tensor, mean: bool, plan: Plan | None = None
) -> torch.Tensor:
    """Computes the SpMM of x [k, heads, d] with edge values [nnz, heads], into [m, heads, d].

    Args:
        kernels: cache of the orientation that is multiplied.
        x, values: the operands.
        mean: whether a row's sum is divided by its number of nonzeros.
        plan: a plan of the csr kernel to run by; None: a default one.
    """
    scale = kernels.row_factors(False, mean)
    return _multiply(kernels, x, aligned_values(values, kernels.precision), None, scale, plan)


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
    return _multiply(kernels, grad, _weights(kernels, values), argmax.contiguous(), None, None)


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
        plan: a plan of the csr kernel to run by; None: a default one.

    Returns:
        The results [m, ...], 0 for rows without nonzeros, and the columns of the nonzeros that gave them,
        int32 [m, ...], -1 for rows without nonzeros.
    """
    shape, precision = _Shape.of(x, kernels.precision), kernels.precision
    y = x.new_empty(kernels.csr.rows, *x.shape[1:])
    argmax = torch.empty(y.shape, dtype=torch.int32, device=y.device)
    if y.numel() == 0 or kernels.csr.nnz == 0:
        return y.zero_(), argmax.fill_(-1)
    rows, work = _rows(kernels, _plan(kernels, "spmm", shape, plan), _weights(kernels, values))
    gpu, partial_argmax = path(), None
    if work.partials:
        elements = work.partials * partial_width(shape.features)
        partial_argmax = torch.empty(elements, dtype=torch.int32, device=x.device)
    with gpu.current(x.device):
        gpu.native.cuda_spmm_extreme(
            *rows, _operand(x, shape, precision), gpu.native.Dense(y.flatten(1)), shape.heads, shape.width,
            largest, argmax, partial_sums(work.partials, 1, shape.features, x.device), partial_argmax,
            precision.code, kernels.streams.current(),
        )  # fmt: skip
    return y, argmax


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
        plan: a plan of the csr kernel to run by, whose `lanes` are those of a head and whose `row_lanes` are
            those of a nonzero; None: a default one.

    Returns:
        [nnz], or [nnz, heads], in the dtype of q.
    """
    shape, precision = _Shape.of(q, kernels.precision), kernels.precision
    out = q.new_empty(kernels.csr.nnz, *q.shape[1:-1])
    if q.shape[-1] == 0 or out.numel() == 0:
        return out.zero_()
    rows, _ = _rows(kernels, _plan(kernels, "sddmm", shape, plan))
    gpu = path()
    with gpu.current(q.device):
        gpu.native.cuda_sddmm_heads(
            *rows, _operand(q, shape, precision), _operand(k, shape, precision), shape.heads, shape.width,
            None if argmax is None else argmax.contiguous(), out, precision.code, kernels.streams.current(),
        )  # fmt: skip
    return out
