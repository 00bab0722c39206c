"""Masks as terms of the scores of a pattern's edges, and weights of edges as matrices."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse.errors import bad_type, bad_value, check_memory
from gnnsparse.ops import attention
from gnnsparse.runtime.memo import Key
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["attend", "dense_weights", "make_pairs", "pair_terms", "total"]


@dataclass(frozen=True)
class _Pairs(Key[torch.Tensor]):
    """Key of what `make_pairs` makes of an operand."""


def make_pairs(operand: SparseOperand) -> torch.Tensor:
    """Returns the index of each edge in the flattened matrix [L, S], int64 [nnz]; the operand keeps it."""

    def make() -> torch.Tensor:
        row, col = operand.indices()
        return row * operand.shape[1] + col

    return operand.kernels.kept.get(_Pairs(), make)


def _pairs(operand: SparseOperand) -> torch.Tensor:
    """`make_pairs`, which torch.compile calls while it traces and does not look into."""
    if not torch.compiler.is_compiling():
        return make_pairs(operand)
    # Not before: the import takes seconds, as it brings the compiler.
    from gnnsparse.patterns.tracing import make_pairs_while_tracing

    make_pairs_while_tracing(operand.handle)  # before the first look: the tracer remembers what it has seen
    found = operand.kernels.kept.find(_Pairs())
    assert found is not None
    return found


def pair_terms(operand: SparseOperand, name: str, mask: torch.Tensor, blocks: bool) -> torch.Tensor:
    """Makes the term that a mask of all pairs adds to the scores of the edges. Differentiable.

    Args:
        operand: the pattern, [L, S].
        name: the mask's name, for errors.
        mask: [..., L, S], bool or floating-point; numbers are added to the scores.
        blocks: whether True in a bool mask means that a query does not attend to a key.

    Returns:
        float32 [..., nnz], in the operand's own order.

    Raises:
        TypeError: the mask is of another dtype.
        ValueError: the mask is on another device.
    """
    if mask.device != operand.device:
        bad_value(name, f"is on {mask.device}; accepted: {operand.device}, as the queries")
    at_edges = mask.flatten(-2).index_select(-1, _pairs(operand))
    if mask.dtype == torch.bool:
        blocked = at_edges if blocks else ~at_edges
        return torch.zeros_like(blocked, dtype=torch.float32).masked_fill(blocked, float("-inf"))
    if not mask.is_floating_point():
        bad_type(name, mask, "bool or a floating dtype")
    return at_edges.float()


def total(first: torch.Tensor | None, second: torch.Tensor | None) -> torch.Tensor | None:
    """Returns the sum of two terms, either of which may be missing."""
    if first is None or second is None:
        return second if first is None else first
    return first + second


def dense_weights(operand: SparseOperand, weights: torch.Tensor) -> torch.Tensor:
    """Returns weights of edges [..., nnz] as matrices [..., L, S] with 0 elsewhere. Differentiable.

    Raises:
        MemoryError: on the CPU, the matrices need more memory than this process can get.
    """
    rows, cols = operand.shape
    if weights.device.type == "cpu" and not torch.compiler.is_compiling():
        matrices = weights.shape[:-1].numel()
        what = f"the weights of all pairs ({matrices} x {rows} x {cols}), which need_weights=False saves,"
        check_memory("need_weights", matrices * rows * cols * weights.element_size(), what)
    empty = weights.new_zeros((*weights.shape[:-1], rows * cols))
    return empty.index_copy(-1, _pairs(operand), weights).unflatten(-1, (rows, cols))


def attend(
    operand: SparseOperand,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    dropout_p: float,
    scale: float | None,
    need_weights: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Computes attention over the pattern; the arguments are those of `gnnsparse.attention`.

    Returns:
        [..., L, Dv], and with `need_weights` the weights after dropout, [..., nnz].
    """
    done = attention(
        operand, q, k, v, scale=scale, bias=bias, dropout_p=dropout_p, return_weights=need_weights
    )
    return done if need_weights else (done, None)
