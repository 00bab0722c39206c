"""SpMM of an X that is stored in 8 bits: it is rounded as a whole, multiplied, and scaled by feature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_value
from gnnsparse.ops import heads_cpu, heads_cuda
from gnnsparse.ops.dense import on_its_device, partial_sums
from gnnsparse.ops.quantization import StoredX, as_numbers, quantize, store
from gnnsparse.ops.result_memory import empty_result
from gnnsparse.ops.spmm import cuda
from gnnsparse.plan import PanelPlan, Plan
from gnnsparse.plan.panel import eight_bit_heights
from gnnsparse.precision import Precision, round_operand
from gnnsparse.runtime.device import describe_device, path
from gnnsparse.runtime.memo import Memo
from gnnsparse.sparse.kernel_cache import BoundCall, KernelCache, Product, SpmmCall, StoredCall

__all__ = ["bind", "bind_stored"]

#: The least compute capability with products of bytes on Tensor Cores as deep as the kernel's.
_INTEGER_MMA = (8, 0)


#: Multiplies what `store` stored: (X, edge values or None) -> y.
StoredSpmm = Callable[[StoredX, "torch.Tensor | None"], torch.Tensor]


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
    width, edge_values = x.shape[1], values is not None
    weights = None if edge_values else kernels.given_col_scale

    def make() -> SpmmCall:
        multiply = bind_stored(kernels, width, x.dtype, edge_values, plan, mean)

        def run(x: torch.Tensor, values: torch.Tensor | None) -> torch.Tensor:
            return multiply(store(x, precision, weights, seed), values)

        return on_its_device(kernels.csr.device, run) if on_gpu else run

    if seed is not None:
        return make()
    key = BoundCall(Product("spmm", width, edge_values), x.dtype, plan, mean, precision)
    return kernels.memo.get(key, make)


def bind_stored(
    kernels: KernelCache, width: int, dtype: torch.dtype, edge_values: bool, plan: Plan | None, mean: bool
) -> StoredSpmm:
    """Returns a function that multiplies an X which `store` stored with the column weights of the matrix.

    On a GPU it has to be the current one when the function is called.

    Args:
        kernels: as in `bind`.
        width: columns of X.
        dtype: dtype of the result.
        edge_values: whether values are given in the call; X is then stored without column weights.
        plan, mean: as in `bind`.
    """
    product = Product("spmm", width, edge_values)

    def make() -> StoredSpmm:
        if not path().takes(kernels.csr.device):
            return _on_cpu(kernels, product, dtype, mean)
        chosen, capability = plan, describe_device(kernels.csr.device).capability
        if chosen is None and kernels.csr.nnz and width:
            chosen = kernels.plan_of(product)
        bytewise = isinstance(chosen, PanelPlan) and capability >= _INTEGER_MMA
        return (_on_panels if bytewise else _converted)(kernels, product, dtype, chosen, mean)

    key = StoredCall(product, dtype, plan, mean, kernels.quantization)
    return kernels.memo.get(key, make)


def _on_cpu(kernels: KernelCache, product: Product, dtype: torch.dtype, mean: bool) -> StoredSpmm:
    """Binds the CPU's kernels for bytes."""
    rows, view, row_ids = kernels.csr.rows, kernels.csr.view, kernels.row_ids
    edge_values, like = product.edge_values, torch.empty(0, dtype=dtype, device="cpu")
    scale = kernels.row_factors(not edge_values, mean)
    own = _native.StoredRows(None, row_ids, scale, None if edge_values else kernels.values32)

    def run(stored: StoredX, values: torch.Tensor | None) -> torch.Tensor:
        y, stored_rows = empty_result(like, rows, product.width), own
        if values is not None:
            rounded = round_operand(values, kernels.precision).float().contiguous()
            stored_rows = _native.StoredRows(None, row_ids, scale, rounded)
        _native.cpu_spmm_quantized(
            view, stored_rows, stored.numbers, stored.scale, stored.number_type, y, torch.get_num_threads()
        )
        return y

    return run


def _on_panels(
    kernels: KernelCache, product: Product, dtype: torch.dtype, plan: Plan | None, mean: bool
) -> StoredSpmm:
    """Binds a GPU's panel kernels for bytes."""
    assert isinstance(plan, PanelPlan)
    assert kernels.quantization is not None
    if product.edge_values:
        bad_value("plan", "panels hold no place for edge values; use window or csr")
    values, rows, streams, width = kernels.values, kernels.csr.rows, kernels.streams, product.width
    heights = eight_bit_heights(kernels.quantization, values is not None)
    height = plan.height if plan.height in heights else heights[0]
    work = kernels.panel_work(height, plan.tile_limit, plan.longest_first, plan.concurrent_panels)
    view, items, partials = kernels.panel_view(height, False), work.view, work.partials
    stored_rows = path().native.StoredRows(None, kernels.row_ids, kernels.row_factors(values is None, mean))

    def run(stored: StoredX, values: torch.Tensor | None) -> torch.Tensor:
        y = torch.empty(rows, width, dtype=dtype, device=stored.numbers.device)
        partial, gpu = partial_sums(partials, height, width, y.device), path()
        gpu.native.cuda_spmm_quantized(
            view, stored_rows, items, stored.numbers, stored.scale, stored.number_type, gpu.native.Dense(y),
            width, plan.slices, partial, streams.current(),
        )  # fmt: skip
        return y

    return run


def _converted(
    kernels: KernelCache, product: Product, dtype: torch.dtype, plan: Plan | None, mean: bool
) -> StoredSpmm:
    """Binds a GPU's kernels for float16, which holds numbers of 8 bits exactly, where bytes have none."""
    width = product.width
    inner = cuda.bind(_without_column_weights(kernels), width, torch.float32, product.edge_values, plan, mean)

    def run(stored: StoredX, values: torch.Tensor | None) -> torch.Tensor:
        return (inner(as_numbers(stored, width), values) * stored.scale[:width]).to(dtype)

    return run


def _without_column_weights(kernels: KernelCache) -> KernelCache:
    """Returns kernels of the matrix without the weights that were multiplied into X already."""
    if kernels.given_col_scale is None:
        return kernels
    kept = Memo(kernels.memo.lock, kernels.csr.device)
    return replace(kernels, given_col_scale=None, memo=kept)


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
