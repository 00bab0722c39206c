"""The public function `spmm`: it checks its arguments and calls an implementation."""

from __future__ import annotations

import math
from typing import Any

import torch

from gnnsparse.errors import bad_value, check_choice, check_integer
from gnnsparse.ops.common import (
    check_edges,
    check_features,
    check_operand,
    exact_rounded,
    form_of,
    is_plain,
    needs_grad,
    resolve_impl,
)
from gnnsparse.ops.quantization import fake_quantized
from gnnsparse.ops.spmm import reference
from gnnsparse.ops.spmm.extreme import extreme
from gnnsparse.ops.spmm.schema import bind, recorded, transformed, with_grad
from gnnsparse.ops.spmm.stored import StoredFeatures, multiply_stored
from gnnsparse.plan import Plan
from gnnsparse.plan.choose import kernel_of
from gnnsparse.precision import Precision
from gnnsparse.runtime.functorch import is_direct, outside
from gnnsparse.runtime.nvtx import ranged
from gnnsparse.sparse.kernel_cache import explicit_values
from gnnsparse.sparse.operand import SparseOperand, bind_matmul

__all__ = ["spmm"]


#: What `reduce=` accepts.
REDUCTIONS = ("sum", "mean", "max", "min")


def _reference(
    a: SparseOperand, x: torch.Tensor, values: torch.Tensor | None, reduce: str, seed: int | None
) -> torch.Tensor:
    kernels = a.kernels
    if kernels.quantization is not None and reduce in ("sum", "mean") and x.dtype != torch.float64:
        return _quantized_reference(a, x, values, reduce, kernels.quantization, seed)
    if values is None:
        own = kernels.values
        own = None if own is None else own.float()
        scales = kernels.row_scale, kernels.col_scale
        with outside():
            own = explicit_values(kernels.csr, None, own, scales, Precision.FP32)
        weights = own.to(x.dtype if x.dtype == torch.float64 else torch.float32)
    else:
        weights = exact_rounded(values, a.precision)
    dense = exact_rounded(x, a.precision)
    return reference.spmm(a.indices(), weights.to(dense.dtype), dense, a.shape[0], reduce).to(x.dtype)


def _quantized_reference(
    a: SparseOperand, x: torch.Tensor, values: torch.Tensor | None, reduce: str, precision: Precision,
    seed: int | None,
) -> torch.Tensor:  # fmt: skip
    """Computes the product with an X of 8 bits, into which column weights are multiplied first."""
    kernels, index = a.kernels, a.indices()
    wide = x.float()
    if values is not None:
        weights = exact_rounded(values, a.precision)
    else:
        columns = kernels.given_col_scale
        wide = wide if columns is None else wide * columns.reshape(-1, *[1] * (x.dim() - 1))
        own = kernels.values
        scales = kernels.row_scale, None
        with outside():
            weights = explicit_values(
                kernels.csr, None, None if own is None else own.float(), scales, Precision.FP32
            )
    dense = fake_quantized(wide.flatten(1), precision, seed).view(x.shape)
    return reference.spmm(index, weights, dense, a.shape[0], reduce).to(x.dtype)


def _require(a: SparseOperand, values: torch.Tensor | None, reduce: str) -> None:
    """Raises ValueError if the format of A was asked for and does not have the product."""
    if reduce in ("max", "min"):
        a.kernels.require("reduce", f"a {reduce}", None)
    if values is not None:
        a.kernels.require("values", "edge values", "sddmm")


def _check_seed(a: SparseOperand, seed: Any, reduce: str) -> None:
    """Raises TypeError or ValueError if a seed of stochastic rounding is none, or has nothing to round."""
    check_integer("seed", seed, least=0, accepted="an integer from 0 to 2^63 - 1")
    if not a.precision.quantizes:
        bad_value(
            "seed", f"got {seed}, and an operand in {a.precision.value}; accepted: None, or int8 or fp8"
        )
    if reduce in ("max", "min"):
        bad_value("seed", f"got {seed} with reduce={reduce!r}, which stores no 8 bits; accepted: None")


def _launched(a: SparseOperand, x: Any, reduce: Any, impl: Any) -> torch.Tensor | None:
    """Returns A x by a native launch that was bound before; None: the call has to go the long way."""
    if type(impl) is not str or type(reduce) is not str or impl != "auto" or torch.compiler.is_compiling():
        return None
    if reduce != "sum" and reduce != "mean":
        return None
    mean = reduce == "mean"
    y: Any = a.kernels.dispatch_cache.multiply[mean](x)
    return recorded(x, a, mean) if y is NotImplemented else y


@ranged("spmm")
def spmm(
    A: SparseOperand,  # noqa: N803
    x: torch.Tensor | StoredFeatures,
    values: torch.Tensor | None = None,
    *,
    reduce: str = "sum",
    impl: str = "auto",
    plan: Plan | None = None,
    seed: int | None = None,
) -> torch.Tensor:
    """Multiplies a sparse by a dense matrix: y = A x. Differentiable in x and values.

    `A @ x` is the same for a matrix or a vector x. With more dimensions it takes x [..., k, n], as
    torch.matmul does.

    Operands are rounded to the precision of A, sums are float32, and every run gives bitwise equal results.
    It has forward-mode derivatives too, and composes with torch.func. torch.vmap over x alone is one product
    with more columns; over values, or of a maximum, it is a product for each entry of the batch.

    Args:
        A: operand made by `gnnsparse.prepare`, of shape [m, k].
        x: [k, n], [k, heads, d] or [k], float32, float16 or bfloat16, any strides, on A's device;
            or what `gnnsparse.store_features` made of a matrix: then `values` and `seed` are None, and
            `reduce` is a sum or a mean.
        values: [nnz], or [nnz, heads] with x [k, heads, d]; float32, float16 or bfloat16, one value for each
            nonzero (and head) in A's own order, used in place of A's weights; None: A's weights.
        reduce: what becomes of the products weight * x of a row. "sum" adds them; "mean" divides the sum by
            the number of the row's nonzeros; "max" and "min" take the largest or smallest of each feature,
            where NaN counts as both. Rows without nonzeros are 0. The gradient of a maximum goes to the
            nonzero that gave it, the first in A's order among equals. Edges that were merged are one nonzero,
            whose weight is the sum of theirs.
        impl: "auto" (kernels of A's device), "cpu", "cuda", or "reference" (plain torch, which accepts
            float64 as well).
        plan: kernel and parameters to run with on a GPU, as returned by `A.plan`; None: A's own plan. With a
            value for each head, "max" and "min" the csr kernel alone can run.
        seed: in the precisions int8 and fp8: the numbers of X are rounded up or down at random, so that their
            mean is X, and equally for equal seeds; None: to nearest. It needs a sum or a mean.

    Returns:
        [m, n], [m, heads, d] or [m] in the dtype of x.

    Raises:
        TypeError: an argument is of another type or dtype.
        ValueError: a shape or a device does not go with A, `reduce`, `impl`, `plan` or `seed` can't run
            there, or A's format has no edge values, maxima or minima.
        RuntimeError: the native module was built without CUDA and A is on a GPU.
    """
    if values is None and plan is None and seed is None and type(A) is SparseOperand:
        y = _launched(A, x, reduce, impl)
        if y is not None:
            return y
    if isinstance(x, StoredFeatures):
        return multiply_stored(A, x, values, reduce, impl, plan, seed)
    known, quick = None, is_direct()
    mean = type(reduce) is str and reduce == "mean"
    own_plan = plan is None and seed is None and type(impl) is str and impl == "auto"
    if (
        own_plan
        and quick
        and type(A) is SparseOperand
        and (mean or (type(reduce) is str and reduce == "sum"))
    ):
        # If arguments of equal form have passed all checks before, their bound call is reused.
        known = "spmm", reduce, form_of(x), "own" if values is None else form_of(values)
        if (run := A.kernels.dispatch_cache.get(known)) is not None:
            return with_grad(x, values, A.handle, mean, run) if needs_grad(x, values) else run(x, values)
    check_operand(A)
    kind = resolve_impl(impl, A)
    check_choice("reduce", reduce, REDUCTIONS)
    if plan is not None:
        kernel_of("spmm", plan)
    if seed is not None:
        _check_seed(A, seed, reduce)
    if isinstance(x, torch.Tensor) and x.dim() == 1:
        y = spmm(A, x[:, None], values, reduce=reduce, impl=impl, plan=plan, seed=seed)
        return y[:, 0].contiguous()
    x = check_features("x", x, A, A.shape[1], kind)
    if A.operations is not None:
        return A.operations.spmm(A, x, values, reduce, impl, plan)
    if values is not None:
        heads = x.shape[1] if x.dim() == 3 else None
        values = check_edges("values", values, A, kind, heads=heads)
    if kind == "reference":
        return _reference(A, x, values, reduce, seed)
    _require(A, values, reduce)
    if x.dim() == 3 and (values is None or values.dim() == 1 or values.shape[1] == 1):
        # The same weight in every head: heads are columns.
        shared = values if values is None or values.dim() == 1 else values[:, 0]
        y = spmm(A, x.flatten(1), shared, reduce=reduce, impl=impl, plan=plan, seed=seed)
        return y.unflatten(1, x.shape[1:])
    if reduce in ("max", "min"):
        return extreme(A, x, values, reduce == "max", plan)
    if not is_plain(x, values):
        return torch.ops.gnnsparse.spmm(x, values, A.handle, mean, seed)
    if not quick:
        return transformed(x, values, A.handle, mean, plan, seed)
    run = bind(A.kernels, x, values, plan, mean, seed)
    if known is not None and None not in known:
        A.kernels.dispatch_cache[known] = run
    return with_grad(x, values, A.handle, mean, run) if needs_grad(x, values) else run(x, values)


def _matmul(A: SparseOperand, x: torch.Tensor | StoredFeatures) -> torch.Tensor:  # noqa: N803
    """Returns A X for X [..., k, n] or [k], with torch.matmul's meaning of the dimensions."""
    if not isinstance(x, torch.Tensor) or x.dim() <= 2 or x.layout != torch.strided or x.is_nested:
        return spmm(A, x)
    k = A.shape[1]
    if x.shape[-2] != k:
        heads = "; features of heads [k, heads, d] go to gnnsparse.spmm" if x.shape[0] == k else ""
        bad_value("x", f"has shape {tuple(x.shape)}; accepted: (..., {k}, any){heads}")
    folded = x.movedim(-2, 0)
    y = spmm(A, folded.reshape(k, math.prod(folded.shape[1:])))
    return y.reshape(A.shape[0], *folded.shape[1:]).movedim(0, -2).contiguous()


bind_matmul(_matmul, recorded)
