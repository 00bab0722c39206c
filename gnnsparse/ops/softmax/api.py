"""The public function `edge_softmax`: it checks its arguments and calls an implementation."""

from __future__ import annotations

import torch

from gnnsparse.ops.common import check_edges, check_operand, form_of, is_plain, needs_grad, resolve_impl
from gnnsparse.ops.softmax import reference
from gnnsparse.ops.softmax.schema import backend, transformed, with_grad
from gnnsparse.runtime.functorch import is_direct
from gnnsparse.runtime.nvtx import ranged
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["edge_softmax"]


@ranged("edge_softmax")
def edge_softmax(
    A: SparseOperand,  # noqa: N803
    scores: torch.Tensor,
    *,
    impl: str = "auto",
) -> torch.Tensor:
    """Computes the softmax over the nonzeros of each row of A, in float32. Differentiable.

    It has forward-mode derivatives too, and composes with torch.func; torch.vmap computes a softmax for each
    entry of the batch.

    Args:
        A: operand made by `gnnsparse.prepare`. Its weights are ignored.
        scores: [nnz] or [nnz, heads] in A's own order, float32, float16 or bfloat16, on A's device. Each head
            has a softmax of its own. -inf masks an edge.
        impl: "auto" (kernels of A's device), "cpu", "cuda", or "reference" (plain torch, which accepts
            float64 as well).

    Returns:
        [nnz] or [nnz, heads], in the order and dtype of scores. A row whose scores are all -inf gives zeros.

    Raises:
        TypeError: an argument is of another type or dtype.
        ValueError: a shape or a device does not go with A, `impl` can't run there, or A's format has no edge
            values.
        RuntimeError: the native module was built without CUDA and A is on a GPU.
    """
    known, quick = None, is_direct()
    if type(impl) is str and impl == "auto" and quick and type(A) is SparseOperand:
        # If scores of equal form have passed all checks before, the function that ran is reused.
        known = "edge_softmax", form_of(scores)
        if (run := A.kernels.dispatch_cache.get(known)) is not None:
            return with_grad(scores, A.handle) if needs_grad(scores) else run(A.kernels, scores)
    check_operand(A)
    kind = resolve_impl(impl, A)
    if A.operations is not None:
        return A.operations.edge_softmax(A, scores, impl)
    scores = check_edges("scores", scores, A, kind, any_heads=True)
    if kind == "reference":
        exact = scores if scores.dtype == torch.float64 else scores.float()
        return reference.edge_softmax(A.indices(), exact, A.shape[0]).to(scores.dtype)
    A.kernels.require("A", "edge_softmax", "sddmm")
    if not is_plain(scores):
        return torch.ops.gnnsparse.edge_softmax(scores, A.handle)
    if not quick:
        return transformed(scores, A.handle)
    run = backend(scores.device).edge_softmax
    if known is not None and None not in known:
        A.kernels.dispatch_cache[known] = run
    return with_grad(scores, A.handle) if needs_grad(scores) else run(A.kernels, scores)
