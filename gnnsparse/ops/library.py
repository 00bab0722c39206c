"""The operations as torch.library operators: what torch.compile and tensor subclasses see.

An operand is passed as its integer handle; whoever calls keeps the operand alive.
"""

from __future__ import annotations

from typing import Any

import torch

from gnnsparse.operand import SparseOperand, operand_of
from gnnsparse.ops import products
from gnnsparse.ops.attention import attention_backend, attention_grads, attention_setup
from gnnsparse.ops.backend import backend_of
from gnnsparse.ops.layout import empty_heads

__all__: list[str] = []

_library = torch.library.Library("gnnsparse", "DEF")
_library.define("spmm(Tensor x, Tensor? values, int operand) -> Tensor")
_library.define("sddmm(Tensor q, Tensor k, int operand) -> Tensor")
_library.define("edge_softmax(Tensor scores, int operand) -> Tensor")
_library.define("transpose_values(Tensor values, int operand) -> Tensor")
_library.define("edge_softmax_grad(Tensor weights, Tensor grad, int operand) -> Tensor")
_library.define(
    "attention(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? seed, int operand, float scale, "
    "float dropout_p, bool is_causal) -> (Tensor, Tensor)"
)
# Gradients that are not needed come back empty.
_library.define(
    "attention_grad(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor out, Tensor lse, Tensor grad, "
    "Tensor? seed, int operand, float scale, float dropout_p, bool is_causal, bool[4] needs) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)


def _spmm(x: torch.Tensor, values: torch.Tensor | None, operand: int) -> torch.Tensor:
    return backend_of(x.device).spmm(operand_of(operand).side, x, values, None)


def _sddmm(q: torch.Tensor, k: torch.Tensor, operand: int) -> torch.Tensor:
    return backend_of(q.device).sddmm(operand_of(operand).side, q, k, None)


def _edge_softmax(scores: torch.Tensor, operand: int) -> torch.Tensor:
    return backend_of(scores.device).edge_softmax(operand_of(operand).side, scores)


def _transpose_values(values: torch.Tensor, operand: int) -> torch.Tensor:
    return operand_of(operand).transpose_values(values)


def _edge_softmax_grad(weights: torch.Tensor, grad: torch.Tensor, operand: int) -> torch.Tensor:
    return backend_of(grad.device).edge_softmax_grad(operand_of(operand).side, weights, grad)


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, seed: torch.Tensor | None,
    operand: int, scale: float, dropout_p: float, is_causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    run = attention_backend(q.device).attention
    return run(operand_of(operand), q, k, v, bias, scale, dropout_p, seed, is_causal)


def _attention_grad(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor,
    lse: torch.Tensor, grad: torch.Tensor, seed: torch.Tensor | None, operand: int, scale: float,
    dropout_p: float, is_causal: bool, needs: list[bool],
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    run = attention_backend(q.device).attention_grad
    grads = run(
        operand_of(operand), q, k, v, bias, out, lse, grad, scale, dropout_p, seed, is_causal, tuple(needs)
    )
    return tuple(q.new_empty(0) if g is None else g for g in grads)


for _name, _function in (
    ("spmm", _spmm),
    ("sddmm", _sddmm),
    ("edge_softmax", _edge_softmax),
    ("edge_softmax_grad", _edge_softmax_grad),
    ("transpose_values", _transpose_values),
    ("attention", _attention),
    ("attention_grad", _attention_grad),
):
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _function, _key)


@torch.library.register_fake("gnnsparse::spmm", lib=_library)
def _spmm_fake(x: torch.Tensor, values: torch.Tensor | None, operand: int) -> torch.Tensor:
    return x.new_empty(operand_of(operand).shape[0], x.shape[1])


@torch.library.register_fake("gnnsparse::sddmm", lib=_library)
def _sddmm_fake(q: torch.Tensor, k: torch.Tensor, operand: int) -> torch.Tensor:
    return q.new_empty(operand_of(operand).nnz)


@torch.library.register_fake("gnnsparse::edge_softmax", lib=_library)
def _edge_softmax_fake(scores: torch.Tensor, operand: int) -> torch.Tensor:
    return scores.new_empty(scores.shape)


@torch.library.register_fake("gnnsparse::transpose_values", lib=_library)
def _transpose_values_fake(values: torch.Tensor, operand: int) -> torch.Tensor:
    return values.new_empty(values.shape)


@torch.library.register_fake("gnnsparse::edge_softmax_grad", lib=_library)
def _edge_softmax_grad_fake(weights: torch.Tensor, grad: torch.Tensor, operand: int) -> torch.Tensor:
    return weights.new_empty(weights.shape)


@torch.library.register_fake("gnnsparse::attention", lib=_library)
def _attention_fake(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return empty_heads(q, v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.register_fake("gnnsparse::attention_grad", lib=_library)
def _attention_grad_fake(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, *rest: Any
) -> tuple[torch.Tensor, ...]:
    needs = rest[-1]
    grads = [empty_heads(x, x.shape[-1]) if need else None for x, need in zip((q, k, v), needs, strict=False)]
    grads.append(bias.new_empty(bias.shape) if bias is not None and needs[3] else None)
    return tuple(q.new_empty(0) if g is None else g for g in grads)


def _transpose_op(a: SparseOperand, values: torch.Tensor) -> torch.Tensor:
    return torch.ops.gnnsparse.transpose_values(values, a.handle)


def _softmax_grad_op(a: SparseOperand, weights: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    return torch.ops.gnnsparse.edge_softmax_grad(weights, grad, a.handle)


_REGISTERED = products.Products(
    spmm=lambda a, x, values=None: torch.ops.gnnsparse.spmm(x, values, a.handle),
    sddmm=lambda a, q, k: torch.ops.gnnsparse.sddmm(q, k, a.handle),
    transpose_values=_transpose_op,
)


def _spmm_backward(ctx: Any, grad: torch.Tensor) -> Any:
    return products.spmm_grad(ctx, grad, _REGISTERED)


def _sddmm_backward(ctx: Any, grad: torch.Tensor) -> Any:
    return products.sddmm_grad(ctx, grad, _REGISTERED)


def _softmax_backward(ctx: Any, grad: torch.Tensor) -> Any:
    (weights,) = ctx.saved_tensors
    return _softmax_grad_op(ctx.operand, weights, grad.contiguous()), None


def _transpose_setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.operand = operand_of(inputs[1])


def _transpose_backward(ctx: Any, grad: torch.Tensor) -> Any:
    return _transpose_op(ctx.operand.T, grad.contiguous()), None


def _attention_grad_op(
    a: SparseOperand, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
    out: torch.Tensor, lse: torch.Tensor, grad: torch.Tensor, scale: float, dropout_p: float,
    seed: torch.Tensor | None, is_causal: bool, needs: tuple[bool, ...],
) -> Any:  # fmt: skip
    grads = torch.ops.gnnsparse.attention_grad(
        q, k, v, bias, out, lse, grad, seed, a.handle, scale, dropout_p, is_causal, list(needs)
    )
    return tuple(g if need else None for g, need in zip(grads, needs, strict=True))


def _attention_backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
    return attention_grads(ctx, grad, _attention_grad_op)


for _name, _backward, _setup in (
    ("spmm", _spmm_backward, products.spmm_setup),
    ("sddmm", _sddmm_backward, products.sddmm_setup),
    ("edge_softmax", _softmax_backward, products.softmax_setup),
    ("transpose_values", _transpose_backward, _transpose_setup),
    ("attention", _attention_backward, attention_setup),
):
    torch.library.register_autograd(f"gnnsparse::{_name}", _backward, setup_context=_setup, lib=_library)
