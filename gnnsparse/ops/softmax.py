"""The softmax over the nonzeros of each row."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from gnnsparse import _native
from gnnsparse.ops import dispatch, reference
from gnnsparse.ops.arguments import check_edges, check_operand, resolve_impl
from gnnsparse.plan.gpu_records.record import record_for
from gnnsparse.runtime.device import describe_device, path
from gnnsparse.runtime.functorch import alive, materialised
from gnnsparse.runtime.memo import made_once
from gnnsparse.runtime.nvtx import ranged
from gnnsparse.sparse.kernel_cache import KernelCache
from gnnsparse.sparse.operand import SparseOperand


@ranged("edge_softmax")
def edge_softmax(
    A: SparseOperand,  # noqa: N803
    scores: torch.Tensor,
    *,
    impl: str = "auto",
) -> torch.Tensor:
    """Compute the softmax over the nonzeros of each row of A, in float32. Differentiable.

    It composes with torch.func's grad, vjp, jacrev and vmap, which computes a softmax for each entry of the
    batch.

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
    check_operand(A)
    kind = resolve_impl(impl, A)
    if A.operations is not None:
        return A.operations.edge_softmax(scores, impl)
    scores = check_edges("scores", scores, A, kind, any_heads=True)
    if kind == "reference":
        exact = scores if scores.dtype == torch.float64 else scores.float()
        return reference.edge_softmax(A.indices(), exact, A.shape[0]).to(scores.dtype)
    A.kernels.require("A", "edge_softmax", "sddmm")
    bind, operator = lambda: partial(softmax, A.kernels), torch.ops.gnnsparse.edge_softmax
    return dispatch.call(_EdgeSoftmax, operator, A, (scores,), bind)


@made_once
def _row_limit(kernels: KernelCache) -> int:
    """The nonzeros of the longest row that a few lanes of a warp compute."""
    return record_for(describe_device(kernels.csr.device)).csr.softmax_limit


def _run(kernels: KernelCache, name: str, *inputs: torch.Tensor) -> torch.Tensor:
    """Call a native softmax or its gradient, for [nnz] or [nnz, heads]; the result has the first's dtype."""
    if inputs[0].numel() == 0:
        return torch.empty_like(inputs[0])
    wide = [x.float().contiguous() for x in inputs]
    out, csr, heads, gpu = torch.empty_like(wide[0]), kernels.csr.view, wide[0].shape[1:], path()
    if gpu.takes(out.device):
        limit = _row_limit(kernels)
        with gpu.current(out.device):
            getattr(gpu.native, f"cuda_{name}")(
                csr, kernels.row_work(limit).view, limit, *wide, *(heads or (1,)), out,
                kernels.streams.current(),
            )  # fmt: skip
    else:
        run = getattr(_native, f"cpu_{name.replace('softmax', 'softmax_heads') if heads else name}")
        run(csr, *wide, *heads, out, torch.get_num_threads())
    return out.to(inputs[0].dtype)


def softmax(kernels: KernelCache, scores: torch.Tensor) -> torch.Tensor:
    """Compute the softmax of scores [nnz] or [nnz, heads] in float32, and return it in their dtype."""
    return _run(kernels, "softmax", scores)


def softmax_grad(kernels: KernelCache, weights: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Compute the gradient of the scores from the softmax and its gradient, [nnz] or [nnz, heads]."""
    return _run(kernels, "softmax_grad", weights, grad)


def _times_jacobian(operand: SparseOperand, weights: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """Compute p (d - sum of p d over the row) for the softmax p in torch operations, which compose."""
    row, p, d = operand.indices()[0], weights.float(), d.float()
    inner = p.new_zeros(operand.shape[0], *p.shape[1:]).index_add(0, row, p * d)
    return (p * (d - inner[row])).to(weights.dtype)


class _EdgeSoftmax(dispatch.Operation):
    name = "edge_softmax"

    @staticmethod
    def forward(scores: torch.Tensor, operand: SparseOperand, run: Any) -> Any:
        return run(scores)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.operand = dispatch.operand_at(inputs[1])
        ctx.save_for_backward(output)

    @staticmethod
    @ranged("edge_softmax_backward")
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Compute ds = p (dp - sum of p dp over the row) for the softmax p of the scores s."""
        (weights,), operand = alive(ctx.saved_tensors), ctx.operand
        grad = dispatch.gradient("edge_softmax", grad)

        def native() -> torch.Tensor:
            if dispatch.is_plain(weights, grad):
                return softmax_grad(operand.kernels, weights, materialised(grad))
            return torch.ops.gnnsparse.edge_softmax_grad(weights, grad, operand.handle)

        composed = lambda: _times_jacobian(operand, weights, grad)  # noqa: E731
        of_scores = dispatch.native_or_composed((grad, weights), native, composed)
        return of_scores, *[None] * (len(ctx.needs_input_grad) - 1)


def _of_scores(scores: torch.Tensor, handle: int) -> SparseOperand:
    operand = dispatch.operand_at(handle)
    operand.kernels.require("operand", "edge_softmax", "sddmm")
    dispatch.check_operator_tensor("scores", scores, operand, (operand.nnz, *scores.shape[1:2]))
    return operand


def _of_weights(weights: torch.Tensor, grad: torch.Tensor, handle: int) -> SparseOperand:
    operand = dispatch.operand_at(handle)
    dispatch.check_operator_tensor("weights", weights, operand, (operand.nnz, *weights.shape[1:2]))
    dispatch.check_operator_tensor("grad", grad, operand, tuple(weights.shape))
    return operand


dispatch.register(
    "edge_softmax(Tensor scores, int operand) -> Tensor",
    lambda scores, operand: softmax(_of_scores(scores, operand).kernels, scores),
    lambda scores, operand: scores.new_empty(_of_scores(scores, operand).nnz, *scores.shape[1:]),
    _EdgeSoftmax.setup_context,
    _EdgeSoftmax.backward,
)
dispatch.register(
    "edge_softmax_grad(Tensor weights, Tensor grad, int operand) -> Tensor",
    lambda weights, grad, a: softmax_grad(_of_weights(weights, grad, a).kernels, weights, grad),
    lambda weights, grad, a: weights.new_empty(_of_weights(weights, grad, a).nnz, *weights.shape[1:]),
)
