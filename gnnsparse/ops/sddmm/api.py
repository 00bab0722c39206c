"""The public function `sddmm`: it checks its arguments and calls an implementation."""

from __future__ import annotations

import torch

from gnnsparse.errors import bad_value
from gnnsparse.ops.common import (
    check_features,
    check_operand,
    exact_rounded,
    form_of,
    is_plain,
    needs_grad,
    resolve_impl,
)
from gnnsparse.ops.sddmm import reference
from gnnsparse.ops.sddmm.schema import bind, transformed, with_grad
from gnnsparse.plan import Plan
from gnnsparse.plan.choose import kernel_of
from gnnsparse.runtime.functorch import is_direct
from gnnsparse.runtime.nvtx import ranged
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["sddmm"]


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

    A's weights are ignored. Operands are rounded to A's precision, sums are float32. It has forward-mode
    derivatives too, and composes with torch.func; torch.vmap computes a product for each entry of the batch.

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
    known, quick = None, is_direct()
    own_plan = plan is None and type(impl) is str and impl == "auto"
    if own_plan and quick and type(A) is SparseOperand:
        # If arguments of equal form have passed all checks before, their bound call is reused.
        known = "sddmm", form_of(q), form_of(k)
        if (run := A.kernels.dispatch_cache.get(known)) is not None:
            return with_grad(q, k, A.handle, run) if needs_grad(q, k) else run(q, k)
    check_operand(A)
    kind = resolve_impl(impl, A)
    if A.operations is not None:
        return A.operations.sddmm(A, q, k, impl, plan)
    if plan is not None:
        kernel_of("sddmm", plan)
    q = check_features("q", q, A, A.shape[0], kind)
    k = check_features("k", k, A, A.shape[1], kind)
    if q.dim() == 2 and k.dim() == 2 and q.shape[1] != k.shape[1]:
        bad_value("k", f"has {k.shape[1]} columns; accepted: {q.shape[1]}, as q")
    if q.shape[1:] != k.shape[1:]:
        bad_value("k", f"has shape {tuple(k.shape)}; accepted: {(A.shape[1], *q.shape[1:])}, as q")
    if kind == "reference":
        rounded = exact_rounded(q, A.precision), exact_rounded(k, A.precision)
        return reference.sddmm(A.indices(), *rounded).to(q.dtype)
    A.kernels.require("A", "sddmm", "sddmm")
    if q.dim() == 3 and q.shape[1] == 1:
        return sddmm(A, q[:, 0], k[:, 0], impl=impl, plan=plan)[:, None]
    if not is_plain(q, k):
        return torch.ops.gnnsparse.sddmm(q, k, A.handle)
    if not quick:
        return transformed(q, k, A.handle, plan)
    run = bind(A.kernels, q, plan)
    if known is not None and None not in known:
        A.kernels.dispatch_cache[known] = run
    return with_grad(q, k, A.handle, run) if needs_grad(q, k) else run(q, k)
