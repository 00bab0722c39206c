"""Tensors with a row for each edge, in the order of the edges given to `prepare` or in the operand's."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from gnnsparse.errors import bad_value
from gnnsparse.ops.dispatch import direct, keep_operand, operand_at, register
from gnnsparse.runtime.functorch import is_eager
from gnnsparse.runtime.memo import made_once
from gnnsparse.sparse.operand import SparseOperand


class EdgeOrder(NamedTuple):
    """How nonzeros and the edges given to `prepare` correspond.

    `edge_of` int32 [nnz] has the number of edges for self-loops that were added (`has_added`); `nonzero_of`
    is int32 [edges]; `has_repeats`: edges share a nonzero.
    """

    edge_of: torch.Tensor
    nonzero_of: torch.Tensor
    has_repeats: bool
    has_added: bool


@made_once
def order_of(operand: SparseOperand) -> EdgeOrder:
    """Return how nonzeros and edges correspond, which is cached with the operand."""
    edges, device = operand.num_edges, operand.device
    numbers = torch.arange(edges, dtype=torch.int64, device=device)
    # The number of a nonzero, moved to the place of each edge.
    nonzero_of = operand.to_coo_order(torch.arange(operand.nnz, dtype=torch.int64, device=device))
    if operand.added_loops is None and operand.nnz == edges:  # each edge has a nonzero of its own
        return EdgeOrder(torch.empty_like(numbers).scatter_(0, nonzero_of, numbers), nonzero_of, False, False)
    edge_of = torch.full((operand.nnz,), edges, dtype=torch.int64, device=device)
    edge_of = edge_of.scatter(0, nonzero_of, numbers)
    has_repeats = bool((edge_of[nonzero_of] != numbers).any())
    has_added = bool((edge_of == edges).any())
    # There are fewer than 2^31 of both: half of the memory, for as long as the operand is there.
    return EdgeOrder(edge_of.int(), nonzero_of.int(), has_repeats, has_added)


class _Reorder(torch.autograd.Function):
    """Gather rows of edges into the other order; the gradient gathers too, with no atomic addition."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, order: EdgeOrder, to_coo: bool) -> torch.Tensor:
        ctx.order, ctx.to_coo = order, to_coo
        if order.has_added and not to_coo:
            # Self-loops that were added read a row of zeros behind the last edge.
            x = torch.cat([x, x.new_zeros(1, *x.shape[1:])])
        return x.index_select(0, order.nonzero_of if to_coo else order.edge_of)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return _reorder(grad, ctx.order, not ctx.to_coo), None, None


_reorder = direct(_Reorder)


def from_coo(name: str, x: torch.Tensor, operand: SparseOperand) -> Any:
    """Reorder [edges, ...] to the operand's [nnz, ...], 0 for added self-loops; raise for repeated edges."""
    if torch.compiler.is_compiling():  # which can't look up what is cached with an operand
        return torch.ops.gnnsparse.edges_from_coo(x, operand.handle)
    order = order_of(operand)
    if order.has_repeats:
        bad_value(
            name,
            "has a row for each edge, but edges were repeated in `prepare`, which merged them; accepted: a "
            'graph without repeated edges, or edge_order="operand" with a row for each nonzero',
        )
    return _reorder(x, order, False) if is_eager() else operand.from_coo_order(x)


def summed_from_coo(x: torch.Tensor, operand: SparseOperand) -> torch.Tensor:
    """Reorder [edges, ...] to the operand's [nnz, ...], where repeats are summed; without any it gathers."""
    if not is_eager() or (order := order_of(operand)).has_repeats:
        return operand.from_coo_order(x)
    return _reorder(x, order, False)


def to_coo(x: torch.Tensor, operand: SparseOperand) -> Any:
    """Reorder [nnz, ...] to the order of the edges [edges, ...]; repeats of an edge get the same row."""
    if torch.compiler.is_compiling():
        return torch.ops.gnnsparse.edges_to_coo(x, operand.handle)
    order = order_of(operand)
    return _reorder(x, order, True) if is_eager() and not order.has_repeats else operand.to_coo_order(x)


def _register(name: str, reverse: str, to_edges: bool) -> None:
    given, found = ("nnz", "num_edges") if to_edges else ("num_edges", "nnz")

    def run(x: torch.Tensor, handle: int) -> torch.Tensor:
        operand = operand_at(handle)
        wanted = getattr(operand, given)
        if x.dim() < 1 or x.shape[0] != wanted or x.device != operand.device:
            accepted = f"({wanted}, ..) on {operand.device}"
            bad_value("x", f"has shape {tuple(x.shape)} on {x.device}; accepted: {accepted}")
        return to_coo(x, operand) if to_edges else from_coo("x", x, operand)

    register(
        f"{name}(Tensor x, int operand) -> Tensor",
        run,
        lambda x, operand: x.new_empty(getattr(operand_at(operand), found), *x.shape[1:]),
        keep_operand,
        lambda ctx, grad: (
            getattr(torch.ops.gnnsparse, reverse)(grad.contiguous(), ctx.operand.handle),
            None,
        ),
    )


_register("edges_from_coo", "edges_to_coo", False)
_register("edges_to_coo", "edges_from_coo", True)
