"""SpMM of an X in 8 bits: it is rounded as a whole, once for all products if it does not change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_type, bad_value, check_choice, check_integer
from gnnsparse.ops import heads, spmm_cuda
from gnnsparse.ops.arguments import check_features, check_operand, resolve_impl
from gnnsparse.ops.dense import current, on_its_device, partial_sums
from gnnsparse.ops.quantization import StoredX, as_numbers, quantize, store
from gnnsparse.plan import PanelPlan, Plan
from gnnsparse.plan.choose import kernel_of
from gnnsparse.plan.panel import eight_bit_heights
from gnnsparse.precision import Precision, round_operand
from gnnsparse.runtime.device import describe_device, path
from gnnsparse.runtime.functorch import is_eager
from gnnsparse.runtime.memo import Memo
from gnnsparse.sparse.kernel_cache import BoundCall, KernelCache, Product, SpmmCall
from gnnsparse.sparse.operand import SparseOperand

if TYPE_CHECKING:
    from typing_extensions import Self

#: The least compute capability with products of bytes on Tensor Cores as deep as the kernel's.
_INTEGER_MMA = (8, 0)


#: Multiplies what `store` stored: (X, edge values or None) -> y.
StoredSpmm = Callable[[StoredX, "torch.Tensor | None"], torch.Tensor]


def bind(
    kernels: KernelCache, x: torch.Tensor, values: torch.Tensor | None, plan: Plan | None = None,
    mean: bool = False, seed: int | None = None,
) -> SpmmCall:  # fmt: skip
    """Return a function that runs SpMM for arguments of the form of `x` and `values`, as `bind_spmm` does.

    Column weights of a rank-1 matrix are multiplied into X before it is rounded, so that sums of integers are
    exact. Other values, of the matrix or of the call, are rounded to 16 bits.
    """
    precision, device = kernels.quantization, kernels.csr.device
    assert precision is not None
    if x.dim() == 3:  # with values for each head: by the kernels for float16

        def by_head(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            numbers, scale = quantize(x.flatten(1), precision, None, seed)
            y = heads.spmm(kernels, numbers.view(x.shape), values, mean, plan)
            return (y * scale.view(x.shape[1:])).to(x.dtype)

        return by_head
    product = Product("spmm", x.shape[1], values is not None)
    weights = None if product.edge_values else kernels.given_col_scale

    def make() -> SpmmCall:
        multiply = bind_stored(kernels, product, x.dtype, plan, mean)

        def run(x: torch.Tensor, values: torch.Tensor | None) -> torch.Tensor:
            return multiply(store(x, precision, weights, seed), values)

        return on_its_device(device, run) if path().takes(device) else run

    if seed is not None:
        return make()
    return kernels.memo.get(BoundCall(product, x.dtype, plan, mean, precision), make)


def bind_stored(
    kernels: KernelCache, product: Product, dtype: torch.dtype, plan: Plan | None, mean: bool
) -> StoredSpmm:
    """Return a function that multiplies an X that `store` stored, on the current GPU, into a `dtype`."""

    def make() -> StoredSpmm:
        if not path().takes(kernels.csr.device):
            return _on_cpu(kernels, product, dtype, mean)
        chosen, capability = plan, describe_device(kernels.csr.device).capability
        if chosen is None and kernels.csr.nnz and product.width:
            chosen = kernels.plan_of(product)
        if isinstance(chosen, PanelPlan) and capability >= _INTEGER_MMA:
            return _on_panels(kernels, product, dtype, chosen, mean)
        return _converted(kernels, product, dtype, chosen, mean)

    key = BoundCall(product, dtype, plan, mean, kernels.quantization, stored=True)
    return kernels.memo.get(key, make)


def _on_cpu(kernels: KernelCache, product: Product, dtype: torch.dtype, mean: bool) -> StoredSpmm:
    rows, view, row_ids, precision = kernels.csr.rows, kernels.csr.view, kernels.row_ids, kernels.precision
    scale = kernels.row_factors(not product.edge_values, mean)
    own = _native.StoredRows(None, row_ids, scale, None if product.edge_values else kernels.values32)

    def run(stored: StoredX, values: torch.Tensor | None) -> torch.Tensor:
        y, of_rows = torch.empty(rows, product.width, dtype=dtype, device="cpu"), own
        if values is not None:
            rounded = round_operand(values, precision).float().contiguous()
            of_rows = _native.StoredRows(None, row_ids, scale, rounded)
        _native.cpu_spmm_quantized(
            view, of_rows, stored.numbers, stored.scale, stored.number_type, y, torch.get_num_threads()
        )
        return y

    return run


def _on_panels(
    kernels: KernelCache, product: Product, dtype: torch.dtype, plan: PanelPlan, mean: bool
) -> StoredSpmm:
    """Bind a GPU's panel kernels for bytes."""
    assert kernels.quantization is not None
    if product.edge_values:
        bad_value("plan", "panels hold no place for edge values; use window or csr")
    values, rows, streams, width = kernels.values, kernels.csr.rows, kernels.streams, product.width
    heights = eight_bit_heights(kernels.quantization, values is not None)
    height = plan.height if plan.height in heights else heights[0]
    work = kernels.panel_work(height, plan.tile_limit, plan.longest_first, plan.concurrent_panels)
    view, items, partials = kernels.view(height, False), work.view, work.partials
    of_rows = path().native.StoredRows(None, kernels.row_ids, kernels.row_factors(values is None, mean))

    def run(stored: StoredX, values: torch.Tensor | None) -> torch.Tensor:
        y = torch.empty(rows, width, dtype=dtype, device=stored.numbers.device)
        partial, gpu = partial_sums(partials, height, width, y.device), path()
        gpu.native.cuda_spmm_quantized(
            view, of_rows, items, stored.numbers, stored.scale, stored.number_type, gpu.native.Dense(y),
            width, plan.slices, partial, streams.current(),
        )  # fmt: skip
        return y

    return run


def _converted(
    kernels: KernelCache, product: Product, dtype: torch.dtype, plan: Plan | None, mean: bool
) -> StoredSpmm:
    """Bind a GPU's kernels for float16, which holds numbers of 8 bits exactly, where bytes have none."""
    width = product.width
    if kernels.given_col_scale is not None:  # X has these weights already
        memo = Memo(kernels.memo.lock, kernels.csr.device)
        kernels = replace(kernels, given_col_scale=None, memo=memo)
    inner = spmm_cuda.bind(kernels, product, torch.float32, plan, mean)

    def run(stored: StoredX, values: torch.Tensor | None) -> torch.Tensor:
        return (inner(as_numbers(stored, width), values) * stored.scale[:width]).to(dtype)

    return run


class StoredFeatures:
    """A matrix X in 8 bits, as an operand's SpMM reads it; made by `gnnsparse.store_features`.

    `A @ stored` and `gnnsparse.spmm(A, stored)` are the products with the X that it was made from, bit for
    bit, without the time that rounding X takes. The column weights of a rank-1 A are in it, so that it
    goes with A alone; without such weights it goes with every operand of the precision and of k columns.

    Attributes:
        shape: (k, n).
        dtype: the dtype of X, and of the products.
        precision: int8 or fp8.
    """

    def __init__(
        self, stored: StoredX, shape: tuple[int, int], dtype: torch.dtype, precision: Precision,
        weights: torch.Tensor | None,
    ) -> None:  # fmt: skip
        self.shape, self.dtype, self.precision = torch.Size(shape), dtype, precision
        self._stored, self._weights = stored, weights

    @property
    def device(self) -> torch.device:
        """The device that it is on."""
        return self._stored.numbers.device

    @property
    def nbytes(self) -> int:
        """Bytes of its memory: one for an element, rows padded to 16, and four for the scale of a feature."""
        return self._stored.numbers.nbytes + self._stored.scale.nbytes

    def dequantize(self) -> torch.Tensor:
        """Return what is stored, [k, n] in its dtype, without the column weights of A.

        A row whose column weight is 0 is NaN: nothing of it is stored.
        """
        wide = as_numbers(self._stored, self.shape[1]) * self._stored.scale[: self.shape[1]]
        return (wide if self._weights is None else wide / self._weights[:, None]).to(self.dtype)

    def __repr__(self) -> str:
        rows, columns = self.shape
        return (
            f"StoredFeatures({rows} x {columns}, {self.precision.value}, dtype={self.dtype}, "
            f"device='{self.device}')"
        )

    def __rmatmul__(self, A: SparseOperand) -> torch.Tensor:  # noqa: N803
        return multiply_stored(A, self, None, "sum", "auto", None, None)

    def __copy__(self) -> Self:
        return self  # nothing changes it

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("StoredFeatures can't be pickled; store X again where it is loaded")


def _require_quantized(operand: SparseOperand) -> Precision:
    """Return the precision of 8 bits in which an operand stores X."""
    if not operand.precision.quantizes:
        bad_value("A", f"is in {operand.precision.value}; accepted: an operand in int8 or fp8")
    if operand.operations is not None:
        bad_value("A", "has products of its own; accepted: an operand from gnnsparse.prepare")
    return operand.precision


def store_features(A: SparseOperand, x: torch.Tensor, *, seed: int | None = None) -> StoredFeatures:  # noqa: N803
    """Round a matrix X to the 8 bits of an operand's precision once, for products that repeat.

    A product `A @ x` in int8 or fp8 reads X twice to round it, which takes as long as the product itself on a
    graph with few neighbours. Where X does not change between products, as the features of a data set do not,
    that time is saved: `A @ gnnsparse.store_features(A, x)` is `A @ x` bit for bit.

    Args:
        A: operand made by `gnnsparse.prepare` in the precision int8 or fp8, of shape [m, k]. Its column
            weights are multiplied into X first.
        x: [k, n], float32, float16 or bfloat16, any strides, on A's device. It gets no gradient.
        seed: numbers are rounded up or down at random, so that their mean is X; None: to nearest.

    Returns:
        What `A @ ...` and `gnnsparse.spmm` take in place of X, on A's device.

    Raises:
        TypeError: an argument is of another type or dtype.
        ValueError: A is in another precision, x has another shape, is on another device or requires a
            gradient, or a transform of torch.func or torch.compile is active.
        RuntimeError: the native module was built without CUDA and A is on a GPU.
    """
    precision = _require_quantized(check_operand(A))
    if seed is not None:
        check_integer("seed", seed, least=0, accepted="an integer from 0 to 2^63 - 1")
    if not is_eager():
        bad_value("x", "a transform of torch.func or torch.compile is active; accepted: a call outside of it")
    kind = resolve_impl("auto", A)
    x = check_features("x", x, A, A.shape[1], kind, heads=False)
    if x.requires_grad and torch.is_grad_enabled():
        bad_value("x", "requires a gradient, which stored features do not pass on; accepted: x.detach()")
    weights = A.kernels.given_col_scale
    with torch.no_grad(), current(x.device):
        stored = store(x, precision, weights, seed)
    return StoredFeatures(stored, (x.shape[0], x.shape[1]), x.dtype, precision, weights)


def multiply_stored(
    operand: Any, stored: StoredFeatures, values: Any, reduce: Any, impl: Any, plan: Plan | None, seed: Any
) -> torch.Tensor:
    """Compute SpMM of stored features; the arguments are those of `spmm`, and so are the errors."""
    operand = check_operand(operand)
    precision, kernels = _require_quantized(operand), operand.kernels
    check_choice("reduce", reduce, ("sum", "mean", "max", "min"))
    if reduce in ("max", "min"):
        bad_value("reduce", f"got {reduce!r} with stored features; accepted: 'sum', 'mean'")
    for name, value in (("values", values), ("seed", seed)):
        if value is not None:
            bad_value(name, "is given with features that are stored already; accepted: None")
    if resolve_impl(impl, operand) == "reference":
        bad_value("impl", "got 'reference' with stored features; accepted: 'auto' or the operand's device")
    if stored.precision is not precision:
        bad_value("x", f"is stored in {stored.precision.value}; accepted: {precision.value}, as A is in")
    if stored.shape[0] != operand.shape[1]:
        bad_value("x", f"has shape {tuple(stored.shape)}; accepted: ({operand.shape[1]}, any)")
    if stored.device != operand.device:
        bad_value("x", f"is on {stored.device}; accepted: {operand.device}, where the operand is")
    if kernels.given_col_scale is not stored._weights:
        bad_value(
            "x", "was stored with other column weights; accepted: gnnsparse.store_features(A, x) of this A"
        )
    if plan is not None:
        kernel_of("spmm", plan)
    if not is_eager():
        bad_type("x", stored, "a tensor inside transforms of torch.func and torch.compile")
    multiply = bind_stored(kernels, Product("spmm", stored.shape[1]), stored.dtype, plan, reduce == "mean")
    with current(operand.device):
        return multiply(stored._stored, None)
