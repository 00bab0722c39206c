"""SDDMM on NVIDIA GPUs. Kernels are queued on the caller's current stream, without waiting for the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from gnnsparse import _native
from gnnsparse.ops.dense import CudaLoader, on_its_device
from gnnsparse.plan import CsrPlan, PanelPlan, Plan, WindowPlan
from gnnsparse.plan.choose import kernel_of
from gnnsparse.runtime.device import path
from gnnsparse.sparse.kernel_cache import BoundCall, KernelCache, Product, SddmmCall

__all__ = ["bind"]


class _Launch(NamedTuple):
    """A kernel that is ready to launch.

    Attributes:
        name: name of the native function.
        head: its arguments before Q, K and the result.
    """

    name: str
    head: tuple[Any, ...]


def bind(kernels: KernelCache, width: int, dtype: torch.dtype, plan: Plan | None = None) -> SddmmCall:
    """Returns a function that runs SDDMM for Q and K of a width: (q, k) -> scores. `kernels` keeps it.

    Args:
        kernels: cache of the operand.
        width: features of Q and K.
        dtype: dtype of Q and of the scores.
        plan: the plan to run by; None: the operand's own.

    Raises:
        ValueError: `plan` is no plan of SDDMM.
        RuntimeError: `plan` is of the window kernel and the operand has no blocked format.
    """
    product = Product("sddmm", width)

    def make() -> SddmmCall:
        if plan is not None:
            kernel_of("sddmm", plan)
        nnz = kernels.csr.nnz
        if width == 0 or nnz == 0:
            return lambda q, k: q.new_zeros(nnz)
        chosen = plan or kernels.plan_of(product)
        name, head = _LAUNCHES[type(chosen)](kernels, chosen)
        code, load, streams = kernels.precision.code, CudaLoader(kernels.precision, width), kernels.streams

        def run(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            out = q.new_empty(nnz)
            gpu = path()
            launch, result = getattr(gpu.native, name), gpu.native.EdgeValues(out)
            # Scores in the blocks of a dense format are for who multiplies by them next; None: not asked for.
            blocks = (None,) if name == "cuda_sddmm_blocks" else ()
            launch(*head, load(q), load(k), *blocks, result, width, code, streams.current())
            return out

        return on_its_device(kernels.csr.device, run)

    return kernels.memo.get(BoundCall(product, dtype, plan), make)


def _rows(kernels: KernelCache) -> _native.StoredRows:
    return path().native.StoredRows(kernels.csr.indptr, kernels.row_ids)


def _csr(kernels: KernelCache, plan: CsrPlan) -> _Launch:
    work = kernels.row_work(plan.row_limit)
    lanes = _native.CsrLanes(plan.lanes, plan.row_lanes, plan.row_limit)
    return _Launch("cuda_sddmm_csr", (kernels.csr.view, _rows(kernels), work.view, lanes))


def _panel(kernels: KernelCache, plan: PanelPlan) -> _Launch:
    _, view, work = kernels.score_panels(plan.tile_limit, plan.longest_first, plan.height, "panel")
    return _Launch("cuda_sddmm_panel", (view, _rows(kernels), work.view))


def _window(kernels: KernelCache, plan: WindowPlan) -> _Launch:
    work = kernels.window_work(
        plan.tile_limit, for_scores=True, balance=plan.balance, concurrent=plan.concurrent_windows
    )
    name = "window" if kernels.require_blocked().spec.encoding == "bitmap" else "blocks"
    return _Launch(f"cuda_sddmm_{name}", (kernels.blocked_view(weighted=False), _rows(kernels), work.view))


_LAUNCHES: dict[type[Plan], Callable[[KernelCache, Any], _Launch]] = {
    CsrPlan: _csr, PanelPlan: _panel, WindowPlan: _window,
}  # fmt: skip
