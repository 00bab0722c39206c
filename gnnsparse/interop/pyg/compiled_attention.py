"""Attention of a layer as an operator of torch.library, for torch.compile; see `compiled`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gnnsparse.interop.pyg.compiled import adjacency
from gnnsparse.nn.edges import EdgeRecipe
from gnnsparse.ops import graph_attention
from gnnsparse.ops.library import register
from gnnsparse.precision import Precision
from gnnsparse.runtime.functorch import alive

__all__ = ["attend"]

_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? att, Tensor edge_index, SymInt sources, SymInt targets, "
    "bool add_self_loops, str score, float negative_slope, str precision"
)


@contextmanager
def _recording() -> Iterator[None]:
    """Records gradients inside the implementation of an operator, where torch has switched autograd off."""
    keys = torch._C._dispatch_tls_local_exclude_set()
    for name in ("AutogradOther", "AutogradCPU", "AutogradCUDA", "AutogradFunctionality"):
        key = getattr(torch._C.DispatchKey, name, None)
        keys = keys if key is None else keys.remove(key)
    include = torch._C._dispatch_tls_local_include_set()
    with torch._C._ForceDispatchKeyGuard(include, keys), torch.enable_grad():
        yield


def _run(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, att: torch.Tensor | None, edge_index: torch.Tensor,
    sources: int, targets: int, add_self_loops: bool, score: str, negative_slope: float, precision: str,
) -> torch.Tensor:  # fmt: skip
    recipe = EdgeRecipe(add_self_loops, Precision.parse(precision))
    edges = adjacency(edge_index, recipe, (sources, targets), False)
    return graph_attention(
        edges.operand, q, k, v, score=score, att=att, negative_slope=negative_slope, bias=edges.log_counts,
        edge_order="operand",
    )  # fmt: skip


def _fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> torch.Tensor:
    return v.new_empty((rest[3], *v.shape[1:]))


def _run_grad(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, att: torch.Tensor | None, *how: Any
) -> tuple[torch.Tensor, ...]:
    """Computes the attention again, and its gradients: operators do not hand over what attention keeps."""
    with _recording():
        leaves = [None if t is None else t.detach().requires_grad_() for t in (q, k, v, att)]
        out = _run(*leaves, *how)  # type: ignore[arg-type]
        found = torch.autograd.grad(out, [t for t in leaves if t is not None], grad.contiguous())
    # Not the memory of an argument, nor of each other, as the operator's schema promises.
    grads = [g.clone(memory_format=torch.contiguous_format) for g in found]
    return (*grads, q.new_empty(0))[:4]


def _fake_grad(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, att: torch.Tensor | None, *how: Any
) -> tuple[torch.Tensor, ...]:
    found = [t.new_empty(t.shape) for t in (q, k, v, att) if t is not None]
    return (*found, q.new_empty(0))[:4]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    *tensors, ctx.sources, ctx.targets, ctx.loops, ctx.score, ctx.slope, ctx.precision = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    q, k, v, att, edges = alive(ctx.saved_tensors)
    how = ctx.sources, ctx.targets, ctx.loops, ctx.score, ctx.slope, ctx.precision
    dq, dk, dv, datt = torch.ops.gnnsparse.pyg_attention_grad(grad, q, k, v, att, edges, *how)
    return dq, dk, dv, None if att is None else datt, *(None,) * 7


register(f"pyg_attention({_ARGUMENTS}) -> Tensor", _run, _fake, _setup, _backward)
register(
    f"pyg_attention_grad(Tensor grad, {_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)",
    _run_grad,
    _fake_grad,
)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, att: torch.Tensor | None, edge_index: torch.Tensor,
    size: tuple[int, int], *, add_self_loops: bool, score: str, negative_slope: float, precision: str,
) -> torch.Tensor:  # fmt: skip
    """Computes graph_attention over edges without features, by an operator. Differentiable once.

    Args:
        q, k, v, att, score, negative_slope: see gnnsparse.graph_attention.
        edge_index: int64 or int32 [2, edges].
        size: (sources, targets).
        add_self_loops: whether self-loops are replaced by one for each node.
        precision: precision of the operand.

    Returns:
        [targets, heads, width] in the dtype of v.
    """
    return torch.ops.gnnsparse.pyg_attention(
        q, k, v, att, edge_index, *size, add_self_loops, score, negative_slope, precision
    )
