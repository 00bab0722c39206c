"""The public function `attention`: it checks its arguments and calls an implementation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gnnsparse.errors import bad_value, check_flag, check_number, check_share, check_tensor
from gnnsparse.ops.attention.call import AttentionCall
from gnnsparse.ops.attention.chain import chain
from gnnsparse.ops.attention.layout import to_edges, to_heads
from gnnsparse.ops.attention.philox import draw_seed
from gnnsparse.ops.attention.schema import run_forward, transformed, with_grad
from gnnsparse.ops.common import FLOATS, check_fits, check_operand, is_plain, needs_grad, resolve_impl
from gnnsparse.plan import ChainPlan, Plan
from gnnsparse.plan.choose import kernel_of
from gnnsparse.runtime.functorch import is_direct, settled
from gnnsparse.runtime.memo import Key
from gnnsparse.runtime.nvtx import ranged
from gnnsparse.sparse.kernel_keys import Product
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["attention"]


def _check_heads(
    a: SparseOperand, q: Any, k: Any, v: Any, dtypes: tuple[torch.dtype, ...]
) -> tuple[int, ...]:
    """Returns the leading sizes that q, k and v are broadcast to; raises if an argument does not fit."""
    (rows, cols), device = a.shape, a.device
    for name, x, size in (("q", q, rows), ("k", k, cols), ("v", v, cols)):
        check_tensor(name, x, dtypes=dtypes, device=device)
        if x.dim() < 2 or x.shape[-2] != size:
            bad_value(name, f"has shape {tuple(x.shape)}; accepted: (.., {size}, any) for this A")
        check_fits(name, x, a)
    if k.shape[-1] != q.shape[-1]:
        bad_value("k", f"has {k.shape[-1]} features; accepted: {q.shape[-1]}, as q")
    lead = tuple(q.shape[:-2])
    for name, x in (("k", k), ("v", v)):
        if x.shape[:-2] == lead:
            continue
        try:
            lead = tuple(torch.broadcast_shapes(lead, x.shape[:-2]))
        except RuntimeError:
            bad_value(name, f"has leading sizes {tuple(x.shape[:-2])}; accepted: {lead}, or 1 in places")
    return lead


def check_bias(a: SparseOperand, bias: Any, lead: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> None:
    """Raise unless a bias has a value for each edge of A, and leading sizes that are broadcast to `lead`."""
    check_tensor("bias", bias, dtypes=dtypes, device=a.device)
    sizes = tuple(bias.shape[:-1])
    fits = bias.dim() >= 1 and len(sizes) <= len(lead) and bias.shape[-1] == a.nnz
    if not fits or any(
        size not in (1, full) for size, full in zip(sizes, lead[len(lead) - len(sizes) :], strict=True)
    ):
        wanted = ", ".join(map(str, (*lead, a.nnz)))
        bad_value(
            "bias",
            f"has shape {tuple(bias.shape)}; accepted: ({a.nnz},) or ({wanted}) with leading sizes of 1 "
            "in places, one value for each edge of A",
        )


def _check_scale(scale: Any, width: int) -> float:
    if scale is None:
        return 1 / max(width, 1) ** 0.5
    return check_number("scale", scale, "a finite number in the range of float32, or None")


@dataclass(frozen=True)
class _Checked(Key[bool]):
    """Key under which it is kept that a plan of the caller has passed the check for a product."""

    product: Product
    plan: Plan


def _check_plan(call: AttentionCall, plan: Plan) -> None:
    kernel_of("attention", plan)
    kernels, product = call.operand.kernels, call.product("attention")

    def check() -> bool:
        problem = kernels.problem(product)
        kernel_of("attention", plan).check(problem, plan)
        return True

    kernels.kept.get(_Checked(product, plan), check)


def _check_fused(call: AttentionCall, return_weights: bool) -> None:
    """Raises a ValueError if `fused=True` was given and no fused kernel can run."""
    if return_weights:
        bad_value(
            "fused",
            "got True with return_weights, which stores a weight for each edge; accepted: None, False",
        )
    plan = call.operand.kernels.plan_of(call.product("attention"))
    if isinstance(plan, ChainPlan) and min(call.heads, call.operand.nnz, call.v.shape[3], call.q.shape[3]):
        bad_value("fused", f"got True, but there is no fused kernel here ({'; '.join(plan.reasons)})")


@ranged("attention")
def attention(
    A: SparseOperand,  # noqa: N803
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    bias: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_weights: bool = False,
    fused: bool | None = None,
    impl: str = "auto",
    plan: Plan | None = None,
) -> Any:
    """Attention over the edges of A: softmax(scale * q k^T + bias at A's nonzeros) v. Differentiable.

    The fused kernels make one pass over the edges and store no weight for any of them. The backward pass
    computes the weights again from two statistics of each row (Dao et al., "FlashAttention", NeurIPS 2022,
    section 3.1). Operands of both products are rounded to A's precision; sums and the softmax are float32. In
    int8 and fp8 k and v are rounded to 8 bits with a scale for each feature of each head and batch entry;
    gradients pass this rounding unchanged.
    A's own weights are ignored. A row without edges, or with masked edges only, gives zeros. It has
    forward-mode derivatives too, and composes with torch.func; torch.vmap makes the batch larger, or with
    dropout calls the kernel for each entry. Gradients inside torch.func, tangents and second derivatives
    store a weight for each edge.

    Args:
        A: operand made by `gnnsparse.prepare`, of shape [L, S]: row i attends to the columns of its
            nonzeros.
        q: [..., L, D], float32, float16 or bfloat16, any strides, on A's device. All leading dimensions
            (batch, heads) share the pattern of A.
        k: [..., S, D], of a dtype that q may have; leading sizes of q, k and v are broadcast.
        v: [..., S, Dv], of a dtype that q may have.
        scale: factor of the dot products; None: 1 / sqrt(D).
        bias: [nnz] or [..., nnz], in A's own order (`A.from_coo_order`), added to the scaled scores; leading
            sizes are those of q, or 1. -inf masks an edge. It gets a gradient. None: no bias.
        dropout_p: probability with which a weight is set to 0, in [0, 1); the others are divided by
            1 - dropout_p. Which ones are dropped depends only on one seed, which is drawn from the device's
            default generator in torch: not on strides, the kernel or the device.
        is_causal: whether edges with column > row are masked.
        return_weights: whether the weights after dropout are returned as well. They are then stored for each
            edge and head, as `fused=False` does.
        fused: None: the plan decides, which `A.plan(op="attention", width=D, heads=H)` returns with its
            reasons. False: `sddmm`, `edge_softmax` and `spmm` run for each head. True: a fused kernel runs,
            or an error is raised if none can.
        impl: "auto" (kernels of A's device), "cpu", "cuda", or "reference" (plain torch, which stores all
            weights and accepts float64 as well).
        plan: kernel and parameters to run with, as returned by `A.plan`; None: A's own plan. Calls inside
            torch.compile ignore it.

    Returns:
        [..., L, Dv] in the dtype of q; with `return_weights` a pair of that and the weights [..., nnz], in
        A's own order and the dtype of q.

    Raises:
        TypeError: an argument is of another type or dtype.
        ValueError: a shape or a device does not go with A, dropout_p is out of range, `impl`, `plan` or
            fused=True can't run there, or A's format has no attention. A format that has it runs the three
            operations for each head.
        RuntimeError: the native module was built without CUDA and A is on a GPU.
    """
    check_operand(A)
    kind = resolve_impl(impl, A)
    if A.operations is not None:
        given = {
            "scale": scale, "bias": bias, "dropout_p": dropout_p, "is_causal": is_causal,
            "return_weights": return_weights, "fused": fused, "impl": impl, "plan": plan,
        }  # fmt: skip
        return A.operations.attention(A, q, k, v, given)
    if kind != "reference":
        A.kernels.require("A", "attention", "sddmm")
    dtypes = (*FLOATS, torch.float64) if kind == "reference" else FLOATS
    lead = _check_heads(A, q, k, v, dtypes)
    if bias is not None:
        check_bias(A, bias, lead, dtypes)
        bias = to_edges(bias, lead)
    for name, flag in (("is_causal", is_causal), ("return_weights", return_weights)):
        check_flag(name, flag)
    if fused is not None:
        check_flag("fused", fused)
    factor, p = _check_scale(scale, q.shape[-1]), check_share("dropout_p", dropout_p)
    seed = draw_seed(A.device) if p > 0 else None
    shape = (*lead, A.shape[0], v.shape[-1])
    plain, quick = is_plain(q, k, v, bias), is_direct()
    q, k, v, bias = settled(q), settled(k), settled(v), None if bias is None else settled(bias)
    follows = plain and (not quick or needs_grad(q, k, v, bias))
    as_chain = return_weights or fused is False or kind == "reference"
    as_is = quick and follows and len(lead) < 2 and not as_chain and fused is None and plan is None
    if as_is and q.dim() == k.dim() == v.dim() and q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
        return with_grad(q, k, v, bias, seed, A.handle, factor, p, is_causal, None)[0]
    call = AttentionCall(
        A, to_heads(q, lead), to_heads(k, lead), to_heads(v, lead), bias, seed, factor, p, is_causal
    )
    if fused:
        _check_fused(call, return_weights)
    if plan is not None:
        _check_plan(call, plan)
    if as_chain:
        out, weights = chain(call, impl)
        out = out.reshape(shape)
        return (out, weights.reshape(*lead, A.nnz)) if return_weights else out
    if not plain:
        options = seed, A.handle, factor, p, is_causal
        out, _ = torch.ops.gnnsparse.attention(call.q, call.k, call.v, bias, *options)
    elif follows:
        record = with_grad if quick else transformed
        out, _ = record(call.q, call.k, call.v, bias, seed, A.handle, factor, p, is_causal, plan)
    else:
        out, _ = run_forward(call, plan)
    return out if out.shape == shape else out.reshape(shape)
