"""The public function `spmm`: it checks its arguments and calls an implementation."""

from __future__ import annotations

import torch

from gnnsparse.operand import SparseOperand, bind_matmul
from gnnsparse.ops.common import (
    check_dense,
    check_edges,
    check_operand,
    exact_rounded,
    form_of,
    is_plain,
    needs_grad,
    resolve_impl,
)
from gnnsparse.ops.spmm import reference
from gnnsparse.ops.spmm.schema import backend, transformed, with_grad
from gnnsparse.plan import Plan
from gnnsparse.plan.choose import kernel_of
from gnnsparse.precision import Precision
from gnnsparse.preprocess.normalize import explicit_values
from gnnsparse.transforms import is_direct, outside

__all__ = ["spmm"]


def _reference(a: SparseOperand, x: torch.Tensor, values: torch.Tensor | None) -> torch.Tensor:
    kernels = a.kernels
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
    return reference.spmm(a.indices(), weights.to(dense.dtype), dense, a.shape[0]).to(x.dtype)


def spmm(
    A: SparseOperand,  # noqa: N803
    x: torch.Tensor,
    values: torch.Tensor | None = None,
    *,
    impl: str = "auto",
    plan: Plan | None = None,
) -> torch.Tensor:
    """Multiplies a sparse by a dense matrix: y = A x, also written `A @ x`. Differentiable in x and values.

    Operands are rounded to the precision of A, sums are float32, and every run gives bitwise equal results.
    It has forward-mode derivatives too, and composes with torch.func. torch.vmap over x alone is one product
    with more columns; over values it is a product for each entry of the batch.

    Args:
        A: operand made by `gnnsparse.prepare`, of shape [m, k].
        x: [k, n] or [k], float32, float16 or bfloat16, any strides, on A's device.
        values: [nnz], float32, float16 or bfloat16, one value for each nonzero in A's own order, used in
            place of A's weights; None: A's weights.
        impl: "auto" (kernels of A's device), "cpu", "cuda", or "reference" (plain torch, which accepts
            float64 as well).
        plan: kernel and parameters to run with on a GPU, as returned by `A.plan`; None: A's own plan.

    Returns:
        [m, n] or [m] in the dtype of x.

    Raises:
        TypeError: an argument is of another type or dtype.
        ValueError: a shape or a device does not go with A, or `impl` or `plan` can't run there.
        RuntimeError: the native module was built without CUDA and A is on a GPU.
    """
    known, quick = None, is_direct()
    own_plan = plan is None and type(impl) is str and impl == "auto"
    if own_plan and quick and type(A) is SparseOperand:
        # If arguments of equal form have passed all checks before, their bound call is reused.
        known = "spmm", form_of(x), "own" if values is None else form_of(values)
        if (run := A.kernels.accepted.get(known)) is not None:
            return with_grad(x, values, A.handle, run) if needs_grad(x, values) else run(x, values)
    check_operand(A)
    kind = resolve_impl(impl, A)
    if plan is not None:
        kernel_of("spmm", plan)
    if isinstance(x, torch.Tensor) and x.dim() == 1:
        return spmm(A, x[:, None], values, impl=impl, plan=plan)[:, 0].contiguous()
    x = check_dense("x", x, A, A.shape[1], kind)
    if values is not None:
        values = check_edges("values", values, A, kind)
    if kind == "reference":
        return _reference(A, x, values)
    if not is_plain(x, values):
        return torch.ops.gnnsparse.spmm(x, values, A.handle)
    if not quick:
        return transformed(x, values, A.handle, plan)
    run = backend(x.device).bind(A.kernels, x.shape[1], x.dtype, values is not None, plan)
    if known is not None and None not in known:
        A.kernels.accepted[known] = run
    return with_grad(x, values, A.handle, run) if needs_grad(x, values) else run(x, values)


bind_matmul(spmm)
