"""The sparse product of a layer as an operator of torch.library, for torch.compile and torch.export.

What is compiled has no tensor at hand to make an operand of, so that the operator gets the edges themselves,
and finds the operand when it runs: by the identity of the edges if they are an input of the model, by their
content if the model makes them anew in each call.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from gnnsparse.interop.pyg.graphs import memo
from gnnsparse.nn.adjacency import Recipe
from gnnsparse.nn.aggregation import Aggregation, Neighbours
from gnnsparse.ops import sddmm, spmm
from gnnsparse.ops.library import register
from gnnsparse.precision import Precision
from gnnsparse.runtime.functorch import alive, outside
from gnnsparse.runtime.hashing import fingerprint

__all__ = ["adjacency", "aggregate"]

#: Graphs that are known by content.
_MOST = 8


class _ByContent:
    """Adjacencies of edges that are new tensors in each call."""

    def __init__(self) -> None:
        self._known: OrderedDict[Any, tuple[torch.Tensor | None, Any]] = OrderedDict()

    def find(self, edges: torch.Tensor, recipe: Recipe[Any], size: tuple[int, int], weighted: bool) -> Any:
        """Returns the adjacency of edges, made or kept.

        On the CPU the edges are told by a hash, on a GPU they are compared with copies of those before.
        """
        key: tuple[Any, ...] = (recipe, size, weighted, edges.device, edges.shape, edges.dtype)
        copy = None
        if edges.device.type == "cpu":
            key = (*key, fingerprint([edges]))
        with memo.lock:
            known = self._known.get(key)
            if known is not None and (known[0] is None or torch.equal(known[0], edges)):
                self._known.move_to_end(key)
                return known[1]
            with outside():
                made = recipe.make(edges.detach(), size, weighted)
                copy = None if edges.device.type == "cpu" else edges.detach().clone()
            self._known[key] = copy, made
            while len(self._known) > _MOST:
                self._known.popitem(last=False)
            return made


_by_content = _ByContent()


def adjacency(edges: torch.Tensor, recipe: Recipe[Any], size: tuple[int, int], weighted: bool) -> Any:
    """Returns what a recipe makes of edges: by their identity if they are known, else by their content."""
    graph = memo.known(edges)
    if graph is not None and (made := graph.find(recipe, size, weighted)) is not None:
        return made
    return _by_content.find(edges, recipe, size, weighted)


def _adjacency(
    edges: torch.Tensor, weighted: bool, sources: int, targets: int, reduce: str, precision: str
) -> Neighbours:
    return adjacency(edges, Aggregation(reduce, Precision.parse(precision)), (sources, targets), weighted)


def _run(
    x: torch.Tensor, edge_index: torch.Tensor, weight: torch.Tensor | None, sources: int, targets: int,
    reduce: str, precision: str,
) -> torch.Tensor:  # fmt: skip
    made = _adjacency(edge_index, weight is not None, sources, targets, reduce, precision)
    return spmm(made.operand, x, made.values(weight))


def _fake(
    x: torch.Tensor, edge_index: torch.Tensor, weight: torch.Tensor | None, sources: int, targets: int,
    reduce: str, precision: str,
) -> torch.Tensor:  # fmt: skip
    return x.new_empty((targets, *x.shape[1:]))


def _run_grad(
    grad: torch.Tensor, x: torch.Tensor, edge_index: torch.Tensor, weight: torch.Tensor | None, sources: int,
    targets: int, reduce: str, precision: str, of_x: bool, of_weight: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    made = _adjacency(edge_index, weight is not None, sources, targets, reduce, precision)
    operand, values = made.operand.unquantized, made.values(weight)
    grad = grad.contiguous()
    grad_x, grad_weight = x.new_empty(0), x.new_empty(0)
    if of_x:
        turned = None if values is None else operand.transpose_values(values)
        grad_x = spmm(operand.T, grad, turned).to(x.dtype)
    if of_weight and weight is not None:
        grad_weight = made.values_grad(sddmm(operand, grad, x)).to(weight.dtype)
    return grad_x, grad_weight


def _fake_grad(
    grad: torch.Tensor, x: torch.Tensor, edge_index: torch.Tensor, weight: torch.Tensor | None, sources: int,
    targets: int, reduce: str, precision: str, of_x: bool, of_weight: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    grad_x = torch.empty_like(x, memory_format=torch.contiguous_format) if of_x else x.new_empty(0)
    has = of_weight and weight is not None
    return grad_x, weight.new_empty(weight.shape) if has and weight is not None else x.new_empty(0)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, edges, weight, *ctx.how = inputs
    ctx.save_for_backward(x, edges, weight)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, edges, weight = alive(ctx.saved_tensors)
    of_x, of_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[2]
    found = torch.ops.gnnsparse.pyg_aggregate_grad(grad, x, edges, weight, *ctx.how, of_x, of_weight)
    return (found[0] if of_x else None, None, found[1] if of_weight else None, None, None, None, None)


_ARGUMENTS = (
    "Tensor x, Tensor edge_index, Tensor? weight, SymInt sources, SymInt targets, str reduce, str precision"
)
register(f"pyg_aggregate({_ARGUMENTS}) -> Tensor", _run, _fake, _setup, _backward)
register(
    f"pyg_aggregate_grad(Tensor grad, {_ARGUMENTS}, bool of_x, bool of_weight) -> (Tensor, Tensor)",
    _run_grad,
    _fake_grad,
)


def aggregate(
    x: torch.Tensor, edge_index: torch.Tensor, weight: torch.Tensor | None, size: tuple[int, int],
    reduce: str, precision: str,
) -> torch.Tensor:  # fmt: skip
    """Sums or averages the features of neighbours, weighted or not, by an operator. Differentiable once.

    Args:
        x: [sources, features] or [sources, heads, features].
        edge_index: int64 or int32 [2, edges].
        weight: [edges], or [edges, heads], or None.
        size: (sources, targets).
        reduce: "sum" or "mean".
        precision: precision of the operand.

    Returns:
        [targets, ...] in the dtype of x.
    """
    return torch.ops.gnnsparse.pyg_aggregate(x, edge_index, weight, *size, reduce, precision)
