"""The kernels of SDDMM: dot products of rows of two dense matrices at the nonzeros of a sparse one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gnnsparse import _native
from gnnsparse.ops import heads
from gnnsparse.ops.dense import CudaLoader, cpu_loader, on_its_device
from gnnsparse.plan import CsrPlan, PanelPlan, Plan, WindowPlan
from gnnsparse.plan.choose import kernel_of
from gnnsparse.runtime.device import path
from gnnsparse.sparse.kernel_cache import BoundCall, KernelCache, Product, SddmmCall


def bind_sddmm(kernels: KernelCache, q: torch.Tensor, plan: Plan | None = None) -> SddmmCall:
    """Return a function (q, k) -> scores for Q and K of the form of `q`; `plan` is for a GPU."""
    on_gpu = path().takes(q.device)
    kernels.require("A", "sddmm", "sddmm")
    if q.dim() == 3:
        if kernels.runs_format_alone:
            return lambda q, k: _by_head(kernels, q, k, plan)
        return partial(heads.sddmm, kernels, plan=plan)
    product, plan = Product("sddmm", q.shape[1]), plan if on_gpu else None
    make = (lambda: _on_gpu(kernels, product, plan)) if on_gpu else (lambda: _on_cpu(kernels))
    return kernels.memo.get(BoundCall(product, q.dtype, plan), make)


def _by_head(kernels: KernelCache, q: torch.Tensor, k: torch.Tensor, plan: Plan | None) -> torch.Tensor:
    """Compute the scores of each head, in formats that have room for those of one."""
    out = q.new_zeros(kernels.csr.nnz, q.shape[1])
    for h in range(q.shape[1]):
        out[:, h] = bind_sddmm(kernels, q[:, h], plan)(q[:, h], k[:, h])
    return out


# The CPU: over CSR rows, or over the format that was asked for.


def _on_cpu(kernels: KernelCache) -> SddmmCall:
    if kernels.runs_format_alone:
        return _blocked_on_cpu(kernels)
    nnz, view, row_ids = kernels.csr.nnz, kernels.csr.view, kernels.row_ids
    load = cpu_loader(kernels.precision)

    def run(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        out = q.new_empty(nnz)
        _native.cpu_sddmm(view, row_ids, load(q), load(k), out, torch.get_num_threads())
        return out

    return run


def _blocked_on_cpu(kernels: KernelCache) -> SddmmCall:
    """Bind the product over the prepared format, in whose blocks it writes (FlashSparse, algorithm 1)."""
    view, places, row_ids = kernels.require_blocked().view(), kernels.value_places, kernels.row_ids
    values, load = kernels.require_blocked().values, cpu_loader(kernels.precision)
    count = 0 if values is None else values.numel()

    def run(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        blocks = q.new_zeros(count)
        _native.cpu_sddmm_blocked(view, row_ids, load(q), load(k), blocks, torch.get_num_threads())
        return blocks.index_select(0, places)

    return run


# GPUs: kernels are queued on the caller's current stream, without waiting for the GPU.


#: The name of a native function, and its arguments before Q, K and the result.
_Launch = tuple[str, tuple[Any, ...]]


def _on_gpu(kernels: KernelCache, product: Product, plan: Plan | None) -> SddmmCall:
    if plan is not None:
        kernel_of("sddmm", plan)
    nnz, width = kernels.csr.nnz, product.width
    if width == 0 or nnz == 0:
        return lambda q, k: q.new_zeros(nnz)
    chosen = plan or kernels.plan_of(product)
    name, head = _LAUNCHES[type(chosen)](kernels, chosen)
    code, load, streams = kernels.precision.code, CudaLoader(kernels.precision, width), kernels.streams
    # Scores in the blocks of a dense format are for who multiplies by them next; None: not asked for.
    blocks = (None,) if name == "cuda_sddmm_blocks" else ()

    def run(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        out = q.new_empty(nnz)
        gpu = path()
        launch, result = getattr(gpu.native, name), gpu.native.EdgeValues(out)
        launch(*head, load(q), load(k), *blocks, result, width, code, streams.current())
        return out

    return on_its_device(kernels.csr.device, run)


def _rows(kernels: KernelCache) -> _native.StoredRows:
    return path().native.StoredRows(kernels.csr.indptr, kernels.row_ids)


def _csr(kernels: KernelCache, plan: CsrPlan) -> _Launch:
    work = kernels.row_work(plan.row_limit)
    lanes = _native.CsrLanes(plan.lanes, plan.row_lanes, plan.row_limit)
    return "cuda_sddmm_csr", (kernels.csr.view, _rows(kernels), work.view, lanes)


def _panel(kernels: KernelCache, plan: PanelPlan) -> _Launch:
    _, view, work = kernels.score_panels(plan.tile_limit, plan.longest_first, plan.height, "panel")
    return "cuda_sddmm_panel", (view, _rows(kernels), work.view)


def _window(kernels: KernelCache, plan: WindowPlan) -> _Launch:
    work = kernels.window_work(
        plan.tile_limit, for_scores=True, balance=plan.balance, concurrent=plan.concurrent_windows
    )
    name = "window" if kernels.require_blocked().spec.encoding == "bitmap" else "blocks"
    return f"cuda_sddmm_{name}", (kernels.view(0, False), _rows(kernels), work.view)


_LAUNCHES: dict[type[Plan], Callable[[KernelCache, Any], _Launch]] = {
    CsrPlan: _csr, PanelPlan: _panel, WindowPlan: _window,
}  # fmt: skip
