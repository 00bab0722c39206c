"""SpMM of an X that is stored in 8 bits: it is rounded as a whole, multiplied, and scaled by feature."""

from __future__ import annotations

from dataclasses import replace

import torch

from gnnsparse import _native
from gnnsparse.cuda_path import describe_device, path
from gnnsparse.errors import bad_value
from gnnsparse.kept import Kept
from gnnsparse.kernel_cache import BoundCall, KernelCache, Product, SpmmCall
from gnnsparse.ops import heads_cpu, heads_cuda
from gnnsparse.ops.dense import on_its_device, partial_sums
from gnnsparse.ops.quantization import quantize, store
from gnnsparse.ops.result_memory import empty_result
from gnnsparse.ops.spmm import cuda
from gnnsparse.plan import PanelPlan, Plan
from gnnsparse.precision import Precision, round_operand
from gnnsparse.tiles import SCORE_ROWS

__all__ = ["bind"]

#: The least compute capability with products of bytes on Tensor Cores as deep as the kernel's.
_INTEGER_MMA = (8, 0)


def bind(
    kernels: KernelCache, x: torch.Tensor, values: torch.Tensor | None, plan: Plan | None = None,
    mean: bool = False, seed: int | None = None,
) -> SpmmCall:  # fmt: skip
    """Returns a function that runs SpMM for arguments of the form of `x` and `values`: (x, values) -> y.

    Column weights of a rank-1 matrix are multiplied into X before it is rounded, so that sums of integers are
    exact. Other values, of the matrix or of the call, are rounded to 16 bits.

    Args:
        kernels: cache of the orientation that is multiplied, with a quantization.
        x: [k, n], or [k, heads, d] with values for each head.
        values: [nnz], [nnz, heads] or None.
        plan: the plan to run by on a GPU; None: the operand's own.
        mean: whether a row's sum is divided by its number of nonzeros.
        seed: seed of stochastic rounding; None: X is rounded to nearest.
    """
    precision = kernels.quantization
    assert precision is not None
    on_gpu = path().takes(x.device)
    if x.dim() == 3:
        return _by_head(kernels, precision, on_gpu, plan, mean, seed)
    make = _on_gpu if on_gpu else _stored
    if seed is not None:
        return make(kernels, precision, x.shape[1], values is not None, plan, mean, seed)
    key = BoundCall(Product("spmm", x.shape[1], values is not None), x.dtype, plan, mean, precision)
    width, edge_values = x.shape[1], values is not None
    return kernels.kept.get(key, lambda: make(kernels, precision, width, edge_values, plan, mean, None))


def _stored(
    kernels: KernelCache, precision: Precision, width: int, edge_values: bool, plan: Plan | None, mean: bool,
    seed: int | None,
) -> SpmmCall:  # fmt: skip
    """Binds the CPU's kernels for bytes."""
    rows, view, row_ids = kernels.csr.rows, kernels.csr.view, kernels.row_ids
    scale = kernels.row_factors(not edge_values, mean)
    weights = None if edge_values else kernels.matrix.col_scale
    own = _native.StoredRows(None, row_ids, scale, None if edge_values else kernels.values32)

    def run(x: torch.Tensor, values: torch.Tensor | None) -> torch.Tensor:
        y, stored_rows = empty_result(x, rows, width), own
        if values is not None:
            rounded = round_operand(values, kernels.precision).float().contiguous()
            stored_rows = _native.StoredRows(None, row_ids, scale, rounded)
        stored = store(x, precision, weights, seed)
        _native.cpu_spmm_quantized(
            view, stored_rows, stored.numbers, stored.scale, stored.number_type, y, torch.get_num_threads()
        )
        return y

    return run


def _on_gpu(
    kernels: KernelCache, precision: Precision, width: int, edge_values: bool, plan: Plan | None, mean: bool,
    seed: int | None,
) -> SpmmCall:  # fmt: skip
    """Binds a GPU's kernel for bytes where the plan has panels, and otherwise those for float16."""
    chosen, capability = plan, describe_device(kernels.csr.device).capability
    if chosen is None and kernels.csr.nnz and width:
        chosen = kernels.plan_of(Product("spmm", width, edge_values))
    bind = _on_panels if isinstance(chosen, PanelPlan) and capability >= _INTEGER_MMA else _converted
    run = bind(kernels, precision, width, edge_values, chosen, mean, seed)
    return on_its_device(kernels.csr.device, run)


def _on_panels(
    kernels: KernelCache, precision: Precision, width: int, edge_values: bool, plan: Plan | None, mean: bool,
    seed: int | None,
) -> SpmmCall:  # fmt: skip
    """Binds the panel kernels for bytes."""
    assert isinstance(plan, PanelPlan)
    if edge_values:
        bad_value("plan", "panels hold no place for edge values; use window or csr")
    values, rows, streams = kernels.values, kernels.csr.rows, kernels.streams
    has_height = plan.height in _native.EIGHT_BIT_PANELS[precision.value, values is not None]
    height = plan.height if has_height else SCORE_ROWS
    # A slice has the same bytes, and thus twice the features that the plan counts with.
    slices = -(-plan.slices // 2)
    work = kernels.panel_work(height, plan.tile_limit, plan.longest_first, plan.concurrent_panels)
    view, items, partials = kernels.panel_view(height, False), work.view, work.partials
    scale, weights = kernels.row_factors(values is None, mean), kernels.matrix.col_scale
    stored_rows = path().native.StoredRows(None, kernels.row_ids, scale)

    def run(x: torch.Tensor, values: torch.Tensor | None) -> torch.Tensor:
        stored = store(x, precision, weights, seed)
        y = x.new_empty(rows, width)
        partial, gpu = partial_sums(partials, height, width, y.device), path()
        gpu.native.cuda_spmm_quantized(
            view, stored_rows, items, stored.numbers, stored.scale, stored.number_type, gpu.native.Dense(y),
            width, slices, partial, streams.current(),
        )  # fmt: skip
        return y

    return run


def _converted(
    kernels: KernelCache, precision: Precision, width: int, edge_values: bool, plan: Plan | None, mean: bool,
    seed: int | None,
) -> SpmmCall:  # fmt: skip
    """Binds a GPU's kernels for float16, which holds numbers of 8 bits exactly."""
    weights = None if edge_values else kernels.matrix.col_scale
    inner = cuda.bind(_without_column_weights(kernels), width, torch.float32, edge_values, plan, mean)

    def run(x: torch.Tensor, values: torch.Tensor | None) -> torch.Tensor:
        numbers, scale = quantize(x, precision, weights, seed)
        return (inner(numbers, values) * scale).to(x.dtype)

    return run


def _without_column_weights(kernels: KernelCache) -> KernelCache:
    """Returns kernels of the matrix without the weights that were multiplied into X already."""
    if kernels.matrix.col_scale is None:
        return kernels
    kept = Kept(kernels.kept.lock, kernels.csr.device)
    return replace(kernels, matrix=replace(kernels.matrix, col_scale=None), kept=kept)


def _by_head(
    kernels: KernelCache, precision: Precision, on_gpu: bool, plan: Plan | None, mean: bool, seed: int | None
) -> SpmmCall:
    """Returns a product with values for each head, by the kernels for float16."""
    multiply = (heads_cuda if on_gpu else heads_cpu).spmm

    def run(x: torch.Tensor, values: torch.Tensor | None) -> torch.Tensor:
        numbers, scale = quantize(x.flatten(1), precision, None, seed)
        y = multiply(kernels, numbers.view(x.shape), values, mean, plan)
        return (y * scale.view(x.shape[1:])).to(x.dtype)

    return run
