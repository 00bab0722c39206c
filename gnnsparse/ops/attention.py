"""attention: checks, dispatch and gradient. Eager and compiled calls part ways as in products.py."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from gnnsparse.errors import bad_type, bad_value, check_flag, check_share, check_tensor
from gnnsparse.operand import SparseOperand, operand_of
from gnnsparse.ops import cpu_attention, cuda_attention, unfused
from gnnsparse.ops.backend import FLOATS, check_operand, resolve_impl
from gnnsparse.ops.layout import to_heads, to_slots
from gnnsparse.ops.philox import draw_seed
from gnnsparse.ops.products import direct, is_plain, needs_grad

__all__ = ["attention", "attention_backend", "attention_grads", "attention_setup"]

_Grads = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


def attention_backend(device: torch.device) -> ModuleType:
    """The module whose `attention` and `attention_grad` run on a device."""
    return cpu_attention if device.type == "cpu" else cuda_attention


def attention_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Saves what attention's gradient needs: nothing of the size of the edges but the bias."""
    q, k, v, bias, seed, handle, *ctx.options = inputs
    ctx.operand = operand_of(handle)
    ctx.save_for_backward(q, k, v, bias, seed, *output)


def _four(x: torch.Tensor) -> torch.Tensor:
    """[n, d] or [H, n, d] as [1, H or 1, n, d]."""
    return x if x.dim() == 4 else x[(None,) * (4 - x.dim())]


def _as_given(x: torch.Tensor, dim: int) -> torch.Tensor:
    """What _four made, with the dimensions that were given."""
    return x if dim == 4 else x[(0,) * (4 - dim)]


def attention_grads(ctx: Any, grad: torch.Tensor, run: Callable[..., _Grads]) -> tuple[Any, ...]:
    """Gradients of the arguments of the operator; `run` is a backend's attention_grad, or the operator."""
    q, k, v, bias, seed, out, lse = ctx.saved_tensors
    scale, dropout_p, is_causal = ctx.options
    needs = tuple(ctx.needs_input_grad[:4])
    *grads, dbias = run(
        ctx.operand, _four(q), _four(k), _four(v), bias, _four(out), lse, _four(grad), scale, dropout_p, seed,
        is_causal, needs,
    )  # fmt: skip
    dim = q.dim()
    given = (None if x is None else _as_given(x, dim) for x in grads)
    return *given, dbias, None, None, None, None, None


def _grads_with_graph(
    a: SparseOperand, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
    grad: torch.Tensor, scale: float, dropout_p: float, seed: torch.Tensor | None, is_causal: bool,
    needs: tuple[bool, bool, bool, bool],
) -> _Grads:  # fmt: skip
    """Gradients that can be differentiated again: those of the unfused chain."""
    out, _ = unfused.chain(a, _four(q), _four(k), _four(v), bias, scale, dropout_p, seed, is_causal, "auto")
    wanted = [x for x, need in zip((q, k, v, bias), needs, strict=True) if need and x is not None]
    found = iter(torch.autograd.grad(out, wanted, _four(grad), create_graph=True))
    return tuple(next(found) if need else None for need in needs)  # type: ignore[return-value]


class _Attention(torch.autograd.Function):
    """Of the operands as they were given, if all have the same dimensions: views of them are nodes, too."""

    @staticmethod
    def forward(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
        seed: torch.Tensor | None, handle: int, scale: float, dropout_p: float, is_causal: bool,
    ) -> Any:  # fmt: skip
        run = attention_backend(q.device).attention
        operands = _four(q), _four(k), _four(v)
        out, lse = run(operand_of(handle), *operands, bias, scale, dropout_p, seed, is_causal)
        return _as_given(out, q.dim()), lse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        attention_setup(ctx, inputs, output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
        q, k, v, bias, seed = ctx.saved_tensors[:5]
        if needs_grad(grad, q, k, v, bias):
            scale, dropout_p, is_causal = ctx.options
            grads = _grads_with_graph(
                ctx.operand, q, k, v, bias, grad, scale, dropout_p, seed, is_causal, ctx.needs_input_grad[:4]
            )
            return *grads, None, None, None, None, None
        return attention_grads(ctx, grad, attention_backend(grad.device).attention_grad)


_attention_with_grad = direct(_Attention)


def _check_heads(
    a: SparseOperand, q: Any, k: Any, v: Any, dtypes: tuple[torch.dtype, ...]
) -> tuple[int, ...]:
    """The leading sizes that q, k and v are broadcast to; raises where they or their shapes don't fit."""
    rows, cols = a.shape
    for name, x, size in (("q", q, rows), ("k", k, cols), ("v", v, cols)):
        check_tensor(name, x, dtypes=dtypes, device=a.device)
        if x.dim() < 2 or x.shape[-2] != size:
            bad_value(name, f"has shape {tuple(x.shape)}; accepted: (.., {size}, any) for this A")
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


def _check_bias(a: SparseOperand, bias: Any, lead: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> None:
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
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        bad_type("scale", scale, "a number or None")
    return float(scale)


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
    fused: bool = True,
    impl: str = "auto",
) -> Any:
    """Attention over the edges of A: softmax(scale * q k^T + bias at A's nonzeros) v. Differentiable.

    One pass over the edges with nothing stored for each of them; the backward pass makes the weights
    anew from the logarithm of each row's sum (Dao et al., "FlashAttention", NeurIPS 2022). Operands of
    both products are rounded to A's precision; sums and the softmax are float32. The weights of A play
    no part. A row without edges, or with none that counts, gives zeros.

    Args:
        A: from `gnnsparse.prepare`, of shape [L, S]: row i attends to the columns of its nonzeros.
        q: [.., L, D], float32, float16 or bfloat16, any strides, on A's device. All leading dimensions
            (batch, heads) share the pattern of A.
        k: [.., S, D], likewise; leading sizes of q, k and v are broadcast.
        v: [.., S, Dv], likewise.
        scale: of the dot products; None: 1 / sqrt(D).
        bias: [nnz] or [.., nnz], in A's own order (`A.from_coo_order`), added to the scaled scores;
            leading sizes are those of q or 1. -inf masks an edge. It gets a gradient.
        dropout_p: share of the weights that is set to 0, in [0, 1); the others are divided by
            1 - dropout_p. The edges depend on one draw from torch's default generator of the device,
            and on nothing else: not on layout, device, or the way it is computed.
        is_causal: edges with column > row do not count.
        return_weights: also give the weights, after dropout. This stores them for each edge and head,
            and runs as with `fused=False`.
        fused: False runs `sddmm`, `edge_softmax` and `spmm` for each head.
        impl: as in `spmm`; "reference" is the unfused chain in plain torch.

    Returns:
        [.., L, Dv] in the dtype of q; with `return_weights` also the weights [.., nnz] in A's own
        order, in that dtype.

    Raises:
        TypeError: an argument is of another type or dtype.
        ValueError: a shape or a device does not go with A, dropout_p is out of range, or impl can't
            run there.
    """
    check_operand(A)
    kind = resolve_impl(impl, A)
    dtypes = (*FLOATS, torch.float64) if kind == "reference" else FLOATS
    lead = _check_heads(A, q, k, v, dtypes)
    if bias is not None:
        _check_bias(A, bias, lead, dtypes)
        bias = to_slots(bias, lead)
    for name, flag in (("is_causal", is_causal), ("return_weights", return_weights), ("fused", fused)):
        check_flag(name, flag)
    factor, p = _check_scale(scale, q.shape[-1]), check_share("dropout_p", dropout_p)
    seed = draw_seed(A.device) if p > 0 else None
    shape = (*lead, A.shape[0], v.shape[-1])
    plain = is_plain(q, k, v, bias)
    follows = plain and needs_grad(q, k, v, bias)
    same = len(lead) < 2 and q.dim() == k.dim() == v.dim() and q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
    if follows and same and fused and not return_weights and kind != "reference":
        return _attention_with_grad(q, k, v, bias, seed, A.handle, factor, p, is_causal)[0]
    q, k, v = to_heads(q, lead), to_heads(k, lead), to_heads(v, lead)

    if return_weights or not fused or kind == "reference":
        out, weights = unfused.chain(A, q, k, v, bias, factor, p, seed, is_causal, impl)
        out = out.reshape(shape)
        return (out, weights.reshape(*lead, A.nnz)) if return_weights else out
    if not plain:
        out, _ = torch.ops.gnnsparse.attention(q, k, v, bias, seed, A.handle, factor, p, is_causal)
    elif follows:
        out, _ = _attention_with_grad(q, k, v, bias, seed, A.handle, factor, p, is_causal)
    else:
        run = attention_backend(q.device).attention
        out, _ = run(A, q, k, v, bias, factor, p, seed, is_causal)
    return out if out.shape == shape else out.reshape(shape)
