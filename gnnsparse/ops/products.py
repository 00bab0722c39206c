"""The two sparse products, SpMM and SDDMM. Each is computed in the gradient of the other."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.compiler import is_compiling

from gnnsparse.errors import bad_value, check_choice, check_integer
from gnnsparse.ops import dispatch, reference
from gnnsparse.ops.arguments import check_edges, check_features, check_operand, resolve_impl
from gnnsparse.ops.dense import empty_padded, has_padded_rows
from gnnsparse.ops.dispatch import direct, form_of, needs_grad
from gnnsparse.ops.maximum import spmm_max
from gnnsparse.ops.quantization import exact_rounded, fake_quantized
from gnnsparse.ops.sddmm_kernels import bind_sddmm
from gnnsparse.ops.spmm_kernels import bind_spmm, spmm_into
from gnnsparse.ops.spmm_quantized import StoredFeatures, multiply_stored
from gnnsparse.plan import Plan
from gnnsparse.plan.choose import kernel_of
from gnnsparse.precision import Precision
from gnnsparse.runtime.functorch import alive, is_eager, outside
from gnnsparse.runtime.nvtx import ranged
from gnnsparse.sparse.kernel_cache import explicit_values
from gnnsparse.sparse.operand import SparseOperand, bind_matmul

#: What `reduce=` accepts.
REDUCTIONS = ("sum", "mean", "max", "min")


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
    """Multiply a sparse by a dense matrix: y = A x. Differentiable in x and values.

    `A @ x` is the same for a matrix or a vector x. With more dimensions it takes x [..., k, n], as
    torch.matmul does.

    Operands are rounded to the precision of A, sums are float32, and every run gives bitwise equal results.
    It composes with torch.func's grad, vjp, jacrev and vmap, which computes a product for each entry of the
    batch; over x alone, write the batch as more columns.

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
    form, mean = None, type(reduce) is str and reduce == "mean"
    if (
        plan is None
        and seed is None
        and type(impl) is str
        and impl == "auto"
        and (mean or (type(reduce) is str and reduce == "sum"))
        and type(A) is SparseOperand
    ):
        # If arguments of equal form have passed all checks before, their launch or bound call is reused.
        known = A.kernels.dispatch_cache
        dense: Any = x  # features stored in 8 bits have no form
        if values is None and not is_compiling() and (y := known.multiply[mean](x)) is not None:
            return _recorded(dense, A, mean) if y is NotImplemented else y
        if is_eager():
            form = "spmm", reduce, form_of(dense), "own" if values is None else form_of(values)
            if (run := known.get(form)) is not None:
                return (
                    _spmm_with_grad(x, values, A, mean, run) if needs_grad(dense, values) else run(x, values)
                )
    if isinstance(x, StoredFeatures):
        return multiply_stored(A, x, values, reduce, impl, plan, seed)
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
        return A.operations.spmm(x, values, reduce, impl, plan)
    if values is not None:
        heads = x.shape[1] if x.dim() == 3 else None
        values = check_edges("values", values, A, kind, heads=heads)
    if kind == "reference":
        return _reference(A, x, values, reduce, seed)
    if values is not None:
        A.kernels.require("values", "edge values", "sddmm")
    if x.dim() == 3 and (values is None or values.dim() == 1 or values.shape[1] == 1):
        # The same weight in every head: heads are columns.
        shared = values if values is None or values.dim() == 1 else values[:, 0]
        y = spmm(A, x.flatten(1), shared, reduce=reduce, impl=impl, plan=plan, seed=seed)
        return y.unflatten(1, x.shape[1:])
    if reduce in ("max", "min"):
        return spmm_max(A, x, values, reduce == "max", plan)
    bind = lambda: bind_spmm(A.kernels, x, values, plan, mean, seed)  # noqa: E731
    operator = torch.ops.gnnsparse.spmm
    return dispatch.call(_Spmm, operator, A, (x, values), bind, (mean,), (seed,), form)


def _reference(
    a: SparseOperand, x: torch.Tensor, values: torch.Tensor | None, reduce: str, seed: int | None
) -> torch.Tensor:
    kernels = a.kernels
    stored_in = kernels.quantization if reduce in ("sum", "mean") and x.dtype != torch.float64 else None
    if values is not None:
        weights = exact_rounded(values, a.precision)
    else:
        own, scales = kernels.values, (kernels.row_scale, None if stored_in else kernels.col_scale)
        own = None if own is None else own.float()
        with outside():
            weights = explicit_values(kernels.csr, None, own, scales, Precision.FP32)
    if stored_in is None:
        dense = exact_rounded(x, a.precision)
    else:  # column weights are multiplied into an X of 8 bits
        columns = kernels.given_col_scale if values is None else None
        wide = x.float() if columns is None else x.float() * columns.reshape(-1, *[1] * (x.dim() - 1))
        dense = fake_quantized(wide.flatten(1), stored_in, seed).view(x.shape)
    return reference.spmm(a.indices(), weights.to(dense.dtype), dense, a.shape[0], reduce).to(x.dtype)


def _check_seed(a: SparseOperand, seed: Any, reduce: str) -> None:
    """Raise TypeError or ValueError if a seed of stochastic rounding is none, or has nothing to round."""
    check_integer("seed", seed, least=0, accepted="an integer from 0 to 2^63 - 1")
    if not a.precision.quantizes:
        bad_value(
            "seed", f"got {seed}, and an operand in {a.precision.value}; accepted: None, or int8 or fp8"
        )
    if reduce in ("max", "min"):
        bad_value("seed", f"got {seed} with reduce={reduce!r}, which stores no 8 bits; accepted: None")


class _Spmm(dispatch.Operation):
    name = "spmm"

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        x, values, operand, ctx.mean, _ = inputs
        ctx.operand, ctx.x_dtype, ctx.weighted = dispatch.operand_at(operand), x.dtype, values is not None
        ctx.padded = is_eager() and values is None and has_padded_rows(x)
        if values is not None:
            ctx.save_for_backward(x if values.requires_grad else None, values)

    @staticmethod
    @ranged("spmm_backward")
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Compute dX = A^T dY, and the values' gradient: dY X^T at the nonzeros of A.

        For a mean, rows of dY are divided by the numbers of nonzeros first. An X of 8 bits gets the gradient
        of one that was rounded to 16.
        """
        operand: SparseOperand = ctx.operand.unquantized
        dispatch.refuse_batch("spmm", grad)
        if ctx.mean:
            grad = dispatch.divide_by_counts(operand, grad)
        if not ctx.weighted:
            through = transposed_product(operand.T, grad, ctx.padded)
            return through.to(ctx.x_dtype), None, None, None, None
        grad = grad.contiguous()
        x, values = alive(ctx.saved_tensors)
        grad_x = grad_values = None
        if ctx.needs_input_grad[0]:
            grad_x = spmm(operand.T, grad, dispatch.transpose_values(operand, values)).to(ctx.x_dtype)
        if ctx.needs_input_grad[1]:
            grad_values = sddmm(operand, grad, x).to(values.dtype)
        return grad_x, grad_values, None, None, None


#: (x, values or None, operand, whether it is a mean, the bound call) -> y, recorded by autograd.
_spmm_with_grad = direct(_Spmm)


def transposed_product(transpose: SparseOperand, grad: torch.Tensor, padded: bool = False) -> torch.Tensor:
    """Compute A^T dY with A's own weights, by a native launch if there is one.

    With `padded` the result has padded rows, if no gradient of it is recorded.
    """
    if padded and not (has_padded_rows(grad) or torch.is_grad_enabled() or transpose.operations):
        spmm_into(transpose, grad, y := empty_padded(grad, transpose.shape[0], grad.shape[1]))
        return y
    if not is_compiling():
        # It copies a gradient with strides of 0, as that of a sum, itself.
        found: torch.Tensor | None = transpose.kernels.dispatch_cache.multiply[False](grad)
        if found is not None and found is not NotImplemented:
            return found
    return spmm(transpose, grad if padded else grad.contiguous())


class _LaunchedSpmm(torch.autograd.Function):
    """SpMM without values where both passes are native launches, as in most training steps.

    `forward` takes the context, where `Operation` has a `setup_context`, which transforms need: that is a
    call more, and a tenth of the forward pass's host time.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, operand: SparseOperand, mean: bool) -> torch.Tensor:
        ctx.operand, ctx.mean, ctx.padded = operand, mean, has_padded_rows(x)
        # The launch takes x, unless another thread has replaced the operand's plans meanwhile.
        y: torch.Tensor | None = operand.kernels.dispatch_cache.multiply[mean](x)
        return bind_spmm(operand.kernels, x, None, None, mean)(x, None) if y is None else y

    @staticmethod
    @ranged("spmm_backward")
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        operand: SparseOperand = ctx.operand.unquantized
        dispatch.refuse_batch("spmm", grad)
        if ctx.mean:
            grad = dispatch.divide_by_counts(operand, grad)
        return transposed_product(operand.T, grad, ctx.padded), None, None


#: (x, operand, whether it is a mean) -> y, recorded by autograd, of an x that `DispatchCache.multiply` takes.
_recorded = direct(_LaunchedSpmm)


def _of_features(x: torch.Tensor, values: torch.Tensor | None, handle: int) -> SparseOperand:
    operand = dispatch.operand_of_product(x, values, handle)
    if x.dim() == 3 and values is None:
        bad_value("x", "has 3 dimensions; accepted: 2, where no values of its heads are given")
    return operand


dispatch.register(
    "spmm(Tensor x, Tensor? values, int operand, bool mean=False, int? seed=None) -> Tensor",
    lambda x, values, a, mean=False, seed=None: bind_spmm(
        _of_features(x, values, a).kernels, x, values, None, mean, seed
    )(x, values).contiguous(),  # as it is traced, whatever the strides of X
    lambda x, values, a, mean=False, seed=None: x.new_empty(
        _of_features(x, values, a).shape[0], *x.shape[1:]
    ),
    _Spmm.setup_context,
    _Spmm.backward,
)


def _matmul(A: SparseOperand, x: torch.Tensor | StoredFeatures) -> torch.Tensor:  # noqa: N803
    """Return A X for X [..., k, n] or [k], with torch.matmul's meaning of the dimensions."""
    if not isinstance(x, torch.Tensor) or x.dim() <= 2 or x.layout != torch.strided or x.is_nested:
        return spmm(A, x)
    k = A.shape[1]
    if x.shape[-2] != k:
        heads = "; features of heads [k, heads, d] go to gnnsparse.spmm" if x.shape[0] == k else ""
        bad_value("x", f"has shape {tuple(x.shape)}; accepted: (..., {k}, any){heads}")
    folded = x.movedim(-2, 0)
    y = spmm(A, folded.reshape(k, math.prod(folded.shape[1:])))
    return y.reshape(A.shape[0], *folded.shape[1:]).movedim(0, -2).contiguous()


bind_matmul(_matmul, _recorded)


@ranged("sddmm")
def sddmm(
    A: SparseOperand,  # noqa: N803
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    impl: str = "auto",
    plan: Plan | None = None,
) -> torch.Tensor:
    """Sampled dense-dense product: dot(q[i], k[j]) at every nonzero (i, j) of A. Differentiable.

    A's weights are ignored. Operands are rounded to A's precision, sums are float32. It composes with
    torch.func's grad, vjp, jacrev and vmap, which computes a product for each entry of the batch.

    Args:
        A: operand made by `gnnsparse.prepare`, of shape [m, n].
        q: [m, d] or [m, heads, d], float32, float16 or bfloat16, any strides, on A's device.
        k: [n, d] or [n, heads, d], float32, float16 or bfloat16, any strides, on A's device.
        impl: "auto" (kernels of A's device), "cpu", "cuda", or "reference" (plain torch, which accepts
            float64 as well).
        plan: kernel and parameters to run with on a GPU, as returned by `A.plan`; None: A's own plan. With
            heads the csr kernel alone can run.

    Returns:
        [nnz] or [nnz, heads] in A's own order and the dtype of q, which `spmm` accepts as `values`.

    Raises:
        TypeError: an argument is of another type or dtype.
        ValueError: a shape or a device does not go with A, `impl` or `plan` can't run there, or A's format
            has no SDDMM.
        RuntimeError: the native module was built without CUDA and A is on a GPU.
    """
    form = None
    if plan is None and type(impl) is str and impl == "auto" and is_eager() and type(A) is SparseOperand:
        # If arguments of equal form have passed all checks before, their bound call is reused.
        form = "sddmm", form_of(q), form_of(k)
        if (run := A.kernels.dispatch_cache.get(form)) is not None:
            return _sddmm_with_grad(q, k, A, run) if needs_grad(q, k) else run(q, k)
    check_operand(A)
    kind = resolve_impl(impl, A)
    if A.operations is not None:
        return A.operations.sddmm(q, k, impl, plan)
    if plan is not None:
        kernel_of("sddmm", plan)
    q = check_features("q", q, A, A.shape[0], kind)
    k = check_features("k", k, A, A.shape[1], kind)
    if q.dim() == k.dim() == 2 and q.shape[1] != k.shape[1]:
        bad_value("k", f"has {k.shape[1]} columns; accepted: {q.shape[1]}, as q")
    if q.shape[1:] != k.shape[1:]:
        bad_value("k", f"has shape {tuple(k.shape)}; accepted: {(A.shape[1], *q.shape[1:])}, as q")
    if kind == "reference":
        rounded = exact_rounded(q, A.precision), exact_rounded(k, A.precision)
        return reference.sddmm(A.indices(), *rounded).to(q.dtype)
    A.kernels.require("A", "sddmm", "sddmm")
    if q.dim() == 3 and q.shape[1] == 1:
        return sddmm(A, q[:, 0], k[:, 0], impl=impl, plan=plan)[:, None]
    return dispatch.call(
        _Sddmm, torch.ops.gnnsparse.sddmm, A, (q, k), lambda: bind_sddmm(A.kernels, q, plan), form=form
    )


class _Sddmm(dispatch.Operation):
    name = "sddmm"

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        q, k = inputs[:2]
        ctx.operand = dispatch.operand_at(inputs[2])
        ctx.save_for_backward(q, k)

    @staticmethod
    @ranged("sddmm_backward")
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Compute dQ = S K and dK = S^T Q, where the values of S are the gradient of the scores."""
        q, k = alive(ctx.saved_tensors)
        operand: SparseOperand = ctx.operand.unquantized
        grad = dispatch.gradient("sddmm", grad)
        grad_q = spmm(operand, k, grad).to(q.dtype) if ctx.needs_input_grad[0] else None
        grad_k = None
        if ctx.needs_input_grad[1]:
            grad_k = spmm(operand.T, q, dispatch.transpose_values(operand, grad)).to(k.dtype)
        return grad_q, grad_k, *[None] * (len(ctx.needs_input_grad) - 2)


#: (q, k, the operand, the bound call) -> scores, recorded by autograd.
_sddmm_with_grad = direct(_Sddmm)


def _of_rows(q: torch.Tensor, k: torch.Tensor, handle: int) -> SparseOperand:
    operand = dispatch.operand_at(handle)
    operand.kernels.require("operand", "sddmm", "sddmm")
    dispatch.check_operator_tensor("q", q, operand, dispatch.row_of_heads(q, operand.shape[0]))
    dispatch.check_operator_tensor("k", k, operand, (operand.shape[1], *q.shape[1:]))
    return operand


dispatch.register(
    "sddmm(Tensor q, Tensor k, int operand) -> Tensor",
    lambda q, k, operand: bind_sddmm(_of_rows(q, k, operand).kernels, q)(q, k),
    lambda q, k, operand: q.new_empty(_of_rows(q, k, operand).nnz, *q.shape[1:-1]),
    _Sddmm.setup_context,
    _Sddmm.backward,
)
