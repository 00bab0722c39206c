"""Products over rows with heads, and maxima with the nonzeros that gave them.

Dense arguments are [rows, n], or [rows, heads, d] with edge values [nnz, heads]. Kernels of a GPU are queued
on the caller's current stream, without waiting for it. The CPU has one kernel of each, and ignores plans.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_value
from gnnsparse.ops.dense import CudaLoader, aligned_values, cpu_loader, partial_sums
from gnnsparse.plan import CsrPlan, Plan
from gnnsparse.plan.csr import CSR
from gnnsparse.plan.work import WorkList
from gnnsparse.precision import Precision, round_operand
from gnnsparse.runtime.device import VECTOR_BYTES, path
from gnnsparse.runtime.memo import made_once
from gnnsparse.sparse.kernel_cache import KernelCache, Product


class _Shape(NamedTuple):
    """Features of a row in heads; rows without heads are one head."""

    heads: int
    width: int  # features of a head

    @classmethod
    def of(cls, x: torch.Tensor) -> _Shape:
        return cls(x.shape[1], x.shape[2]) if x.dim() == 3 else cls(1, x.shape[1])

    @property
    def features(self) -> int:
        return self.heads * self.width

    def padded(self, precision: Precision) -> int:
        """The elements that a head takes in an operand of a GPU's kernel, whole vectors."""
        elements = VECTOR_BYTES // precision.storage.itemsize
        return -(-self.width // elements) * elements


def _plan(kernels: KernelCache, op: str, shape: _Shape, plan: Plan | None) -> CsrPlan:
    """The caller's plan, or a default one: SDDMM divides lanes among heads, SpMM among vectors."""
    if plan is not None:
        if not isinstance(plan, CsrPlan):
            bad_value("plan", f"got {plan.label} with heads, a maximum or a minimum; accepted: csr")
        return plan
    return _default_plan(kernels, op, shape)


@made_once
def _default_plan(kernels: KernelCache, op: str, shape: _Shape) -> CsrPlan:
    width = shape.padded(kernels.precision) * (shape.heads if op == "spmm" else 1)
    # Edge values: the csr kernel is the one that reads them in the order of the nonzeros.
    chosen = CSR.by_vectors(kernels.problem(Product("spmm", width, True)))
    row_lanes = chosen.row_lanes
    if op == "sddmm":
        row_lanes = min(32, chosen.lanes * (1 << (shape.heads - 1).bit_length()))
    return CsrPlan(chosen.lanes, row_lanes, kernels.row_limit(chosen.row_limit))


def _gpu_operand(x: torch.Tensor, shape: _Shape, precision: Precision) -> _native.Dense:
    """An operand in the storage dtype, each head padded to whole vectors; `x` itself if it is so."""
    padded = shape.padded(precision)
    if shape.heads == 1 or shape.width == padded:
        return CudaLoader(precision, shape.features)(x.flatten(1))
    gpu = path()
    out = torch.empty(x.shape[0], shape.heads * padded, dtype=precision.storage, device=x.device)
    by_head = gpu.native.Dense(out.view(-1, padded))
    gpu.native.cuda_pack(x.reshape(-1, shape.width), None, by_head, gpu.stream(x.device))
    return gpu.native.Dense(out)


def _gpu_rows(
    kernels: KernelCache, plan: CsrPlan, values: torch.Tensor | None = None, scale: torch.Tensor | None = None
) -> tuple[tuple[Any, ...], WorkList]:
    """The arguments with which kernels of a GPU begin: matrix, rows, work list, lanes; and the work list."""
    gpu, work = path().native, kernels.row_work(plan.row_limit)
    stored = gpu.StoredRows(None, kernels.row_ids, scale, values)
    lanes = gpu.CsrLanes(plan.lanes, plan.row_lanes, plan.row_limit)
    return (kernels.csr.view, stored, work.view, lanes), work


def _weights(kernels: KernelCache, values: torch.Tensor | None) -> torch.Tensor | None:
    """Edge values, or A's own weights in place of None, as the kernels read them."""
    if path().takes(kernels.csr.device):
        return kernels.own_weights if values is None else aligned_values(values, kernels.precision)
    if values is None:
        own = kernels.own_weights
        return None if own is None else own.float()
    return round_operand(values, kernels.precision).float().contiguous()


def _multiply(
    kernels: KernelCache, x: torch.Tensor, values: torch.Tensor | None, *options: Any, kind: str = "heads",
    scale: torch.Tensor | None = None, plan: Plan | None = None,
) -> torch.Tensor:  # fmt: skip
    """Run the product "heads", whose option is an argmax, or "extreme": whether it is the largest, argmax."""
    shape, precision = _Shape.of(x), kernels.precision
    y = x.new_empty(kernels.csr.rows, *x.shape[1:])
    if y.numel() == 0 or kernels.csr.nnz == 0:
        return y.zero_()
    flat, weights = y.flatten(1), _weights(kernels, values)
    if not path().takes(x.device):
        rows, load = _native.StoredRows(None, kernels.row_ids, scale, weights), cpu_loader(precision)
        getattr(_native, f"cpu_spmm_{kind}")(
            kernels.csr.view, rows, load(x.flatten(1)), flat, *shape, *options, torch.get_num_threads()
        )
        return y
    gpu, (begin, work) = path(), _gpu_rows(kernels, _plan(kernels, "spmm", shape, plan), weights, scale)
    partials = [partial_sums(work.partials, 1, shape.features, x.device)]
    if kind == "extreme":  # the columns that gave them
        partials += [None if sums is None else torch.empty_like(sums, dtype=torch.int32) for sums in partials]
    with gpu.current(x.device):
        getattr(gpu.native, f"cuda_spmm_{kind}")(
            *begin, _gpu_operand(x, shape, precision), gpu.native.Dense(flat), *shape, *options, *partials,
            precision.code, kernels.streams.current(),
        )  # fmt: skip
    return y


def spmm(
    kernels: KernelCache, x: torch.Tensor, values: torch.Tensor, mean: bool, plan: Plan | None = None
) -> torch.Tensor:
    """Compute the SpMM of x [k, heads, d] with edge values [nnz, heads], into [m, heads, d]."""
    return _multiply(kernels, x, values, None, scale=kernels.row_factors(False, mean), plan=plan)


def spmm_max_grad(
    kernels: KernelCache, grad: torch.Tensor, argmax: torch.Tensor, values: torch.Tensor | None
) -> torch.Tensor:
    """Compute the gradient of x from that of `spmm_max`, by the transpose's kernels, values in its order."""
    return _multiply(kernels, grad, values, argmax.contiguous())


def spmm_max(
    kernels: KernelCache, x: torch.Tensor, values: torch.Tensor | None, largest: bool,
    plan: Plan | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return each row's largest or smallest products, and their columns, int32; of no nonzeros 0, -1."""
    argmax = x.new_empty(kernels.csr.rows, *x.shape[1:], dtype=torch.int32)
    if kernels.csr.nnz == 0:
        argmax.fill_(-1)
    return _multiply(kernels, x, values, largest, argmax, kind="extreme", plan=plan), argmax


def sddmm(
    kernels: KernelCache, q: torch.Tensor, k: torch.Tensor, argmax: torch.Tensor | None = None,
    plan: Plan | None = None,
) -> torch.Tensor:  # fmt: skip
    """Compute the dot products of rows of q and k at the nonzeros, in each head: [nnz] or [nnz, heads].

    With `argmax` of `spmm_max`, of the shape of q, a feature counts only at the nonzero that gave it. The
    `lanes` of a plan are those of a head, its `row_lanes` those of a nonzero.
    """
    shape, precision = _Shape.of(q), kernels.precision
    out = q.new_empty(kernels.csr.nnz, *q.shape[1:-1])
    if q.shape[-1] == 0 or out.numel() == 0:
        return out.zero_()
    argmax = None if argmax is None else argmax.contiguous()
    if not path().takes(q.device):
        load = cpu_loader(precision)
        _native.cpu_sddmm_heads(
            kernels.csr.view, kernels.row_ids, load(q.flatten(1)), load(k.flatten(1)), *shape, argmax, out,
            torch.get_num_threads(),
        )  # fmt: skip
        return out
    gpu, (begin, _) = path(), _gpu_rows(kernels, _plan(kernels, "sddmm", shape, plan))
    with gpu.current(q.device):
        gpu.native.cuda_sddmm_heads(
            *begin, *(_gpu_operand(x, shape, precision) for x in (q, k)), *shape, argmax, out,
            precision.code, kernels.streams.current(),
        )  # fmt: skip
    return out
