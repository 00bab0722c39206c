"""Tensors with a row for each edge, in the order of the edges given to `prepare` or in the operand's."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from gnnsparse.errors import bad_value
from gnnsparse.ops.dispatch import direct, register
from gnnsparse.runtime.functorch import is_eager
from gnnsparse.runtime.memo import made_once
from gnnsparse.sparse.operand import SparseOperand, operand_of

__all__ = ["EdgeOrder", "from_coo", "order_of", "to_coo"]


class EdgeOrder(NamedTuple):
    """How nonzeros and the edges given to `prepare` correspond.

    Attributes:
        edge_of: for each nonzero the index of its edge, int64 [nnz]; `edges` for self-loops that were added.
        nonzero_of: for each edge the index of its nonzero, int64 [edges].
        edges: number of edges.
        has_repeats: whether edges share a nonzero.
        has_added: whether `prepare` added self-loops, which are none of the edges.
    """

    edge_of: torch.Tensor
    nonzero_of: torch.Tensor
    edges: int
    has_repeats: bool
    has_added: bool


@made_once
def order_of(operand: SparseOperand) -> EdgeOrder:
    """Return how nonzeros and edges correspond; the operand keeps it."""
    edges, device = operand.num_edges, operand.device
    numbers = torch.arange(edges, dtype=torch.int64, device=device)
    # The number of a nonzero, moved to the place of each edge.
    nonzero_of = operand.to_coo_order(torch.arange(operand.nnz, dtype=torch.int64, device=device))
    edge_of = torch.full((operand.nnz,), edges, dtype=torch.int64, device=device)
    edge_of = edge_of.scatter(0, nonzero_of, numbers)
    has_repeats = bool((edge_of[nonzero_of] != numbers).any())
    has_added = bool((edge_of == edges).any())
    return EdgeOrder(edge_of, nonzero_of, edges, has_repeats, has_added)


class _FromCoo(torch.autograd.Function):
    """Gather rows of edges into the operand's order; its gradient gathers too, with no atomic addition."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, order: EdgeOrder) -> torch.Tensor:
        ctx.order = order
        if not order.has_added:
            return x.index_select(0, order.edge_of)
        # Self-loops that were added read the row of zeros behind the last edge.
        return torch.cat([x, x.new_zeros(1, *x.shape[1:])]).index_select(0, order.edge_of)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return _quick_to_coo(grad, ctx.order), None


class _ToCoo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, order: EdgeOrder) -> torch.Tensor:
        ctx.order = order
        return x.index_select(0, order.nonzero_of)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return _quick_from_coo(grad, ctx.order), None


_quick_from_coo, _quick_to_coo = direct(_FromCoo), direct(_ToCoo)


# The registered operators, which torch.compile needs: it can't look up what an operand keeps.


def _check(x: torch.Tensor, operand: SparseOperand, rows: int) -> None:
    if x.dim() < 1 or x.shape[0] != rows or x.device != operand.device:
        bad_value(
            "x", f"has shape {tuple(x.shape)} on {x.device}; accepted: ({rows}, ..) on {operand.device}"
        )


def _run_from(x: torch.Tensor, handle: int) -> torch.Tensor:
    operand = operand_of(handle)
    _check(x, operand, operand.num_edges)
    return from_coo("x", x, operand)


def _run_to(x: torch.Tensor, handle: int) -> torch.Tensor:
    operand = operand_of(handle)
    _check(x, operand, operand.nnz)
    return to_coo(x, operand)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.handle = inputs[1]


register(
    "edges_from_coo(Tensor x, int operand) -> Tensor",
    _run_from,
    lambda x, operand: x.new_empty(operand_of(operand).nnz, *x.shape[1:]),
    _setup,
    lambda ctx, grad: (torch.ops.gnnsparse.edges_to_coo(grad.contiguous(), ctx.handle), None),
)
register(
    "edges_to_coo(Tensor x, int operand) -> Tensor",
    _run_to,
    lambda x, operand: x.new_empty(operand_of(operand).num_edges, *x.shape[1:]),
    _setup,
    lambda ctx, grad: (torch.ops.gnnsparse.edges_from_coo(grad.contiguous(), ctx.handle), None),
)


def from_coo(name: str, x: torch.Tensor, operand: SparseOperand) -> torch.Tensor:
    """Reorder [edges, ...] to the operand's order [nnz, ...]; self-loops that were added get zeros.

    Raises:
        ValueError: an edge was given several times, so that its rows of `x` would belong to one nonzero.
    """
    if torch.compiler.is_compiling():
        found: torch.Tensor = torch.ops.gnnsparse.edges_from_coo(x, operand.handle)
        return found
    order = order_of(operand)
    if order.has_repeats:
        bad_value(
            name,
            "has a row for each edge, but edges were repeated in `prepare`, which merged them; accepted: a "
            'graph without repeated edges, or edge_order="operand" with a row for each nonzero',
        )
    return _quick_from_coo(x, order) if is_eager() else operand.from_coo_order(x)


def to_coo(x: torch.Tensor, operand: SparseOperand) -> torch.Tensor:
    """Reorder [nnz, ...] to the order of the edges [edges, ...]; repeats of an edge get the same row."""
    if torch.compiler.is_compiling():
        found: torch.Tensor = torch.ops.gnnsparse.edges_to_coo(x, operand.handle)
        return found
    order = order_of(operand)
    return _quick_to_coo(x, order) if is_eager() and not order.has_repeats else operand.to_coo_order(x)
