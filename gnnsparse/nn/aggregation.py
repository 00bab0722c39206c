"""Sums, means and extrema over neighbours, of which the layers without attention are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gnnsparse.errors import bad_value
from gnnsparse.nn.adjacency import (
    AdjacencyMemo,
    Preparation,
    Recipe,
    check_edge_weight,
    check_precision,
    copies_apart,
)
from gnnsparse.nn.linear import linear_in_padded_rows
from gnnsparse.ops import spmm
from gnnsparse.ops.attention.edges import summed_from_coo
from gnnsparse.precision import Precision
from gnnsparse.sparse.operand import SparseOperand

#: What the argument `aggr` of a layer names -> the reduction.
AGGREGATIONS = {"add": "sum", "sum": "sum", "mean": "mean", "max": "max", "min": "min"}


@dataclass(frozen=True)
class Aggregation(Recipe):
    """How a layer reduces ("sum", "mean", "max" or "min") features of neighbours, and makes operands.

    `apart`: copies of an edge are told apart where a maximum or minimum needs the weight of each.
    """

    reduce: str
    precision: Precision
    preparation: Preparation | None = None
    apart: bool = False

    def make(self, edge_index: torch.Tensor, size: tuple[int, int], weighted: bool) -> Neighbours:
        """See Recipe."""
        return Neighbours(edge_index, size, self, weighted)


class Neighbours:
    """The operand of an Aggregation, which counts repeated edges; without weights it stores no values."""

    def __init__(
        self, edge_index: torch.Tensor, size: tuple[int, int], recipe: Aggregation, weighted: bool
    ) -> None:
        self._reduce = recipe.reduce
        mean = recipe.reduce == "mean"
        self.operand = recipe.prepare(edge_index, size, "mean" if mean and not weighted else None)
        self.copies: torch.Tensor | None = None
        if recipe.apart and weighted and self._merges:
            edge_index, self.copies = copies_apart(edge_index, size[0])
            self.operand = recipe.prepare(edge_index, (size[0] + len(self.copies), size[1]))
        self._fraction: torch.Tensor | None = None
        if mean and weighted:
            target = edge_index[1].long()
            counts = torch.bincount(target, minlength=size[1])
            self._fraction = counts[target].float().reciprocal()

    @property
    def _merges(self) -> bool:
        """Whether a maximum or minimum is over an operand in which edges were merged."""
        return self._reduce in ("max", "min") and self.operand.num_edges != self.operand.nnz

    def values(self, edge_weight: torch.Tensor | None) -> torch.Tensor | None:
        """Compute edge values [nnz] or [nnz, heads] of weights; None: the operand's own are right."""
        operand, merged = self.operand, self._merges
        if edge_weight is None:  # an operand of merged edges has their numbers as weights
            return torch.ones(operand.nnz, dtype=torch.float32, device=operand.device) if merged else None
        weights = check_edge_weight(edge_weight, operand.num_edges, operand.device, by_head=True).float()
        if merged:
            bad_value(
                "edge_weight",
                f"repeated edges are merged, and aggr={self._reduce!r} needs the weight of each; accepted: "
                "edges without repeats",
            )
        return summed_from_coo(self._divided(weights), operand)

    def values_grad(self, grad: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the edge weights for that of what `values` made of them."""
        return self._divided(self.operand.to_coo_order(grad))

    def _divided(self, numbers: torch.Tensor) -> torch.Tensor:
        """Divide numbers [edges] or [edges, heads] by those of the edges at a target, for a mean."""
        if self._fraction is None:
            return numbers
        return numbers * (self._fraction if numbers.dim() == 1 else self._fraction[:, None])


def neighbours_of(
    memo: AdjacencyMemo,
    adj: Any,
    size: tuple[int, int],
    edge_weight: torch.Tensor | None,
    reduce: str,
    precision: Precision | None,
    *,
    weighted: bool = False,
) -> tuple[SparseOperand, torch.Tensor | None]:
    """Return the operand of a layer's call, and edge values to use in place of its own weights, or None.

    `size` is (sources, targets); `weighted` says whether the layer uses the weights of an operand.
    """
    if isinstance(adj, SparseOperand):
        check_precision(adj, precision)
        _check_operand(reduce, adj, weighted)
    return memo.resolve(size, adj, edge_weight, Aggregation(reduce, precision or Precision.FP32))


def _check_operand(reduce: str, adj: SparseOperand, weighted: bool) -> None:
    kind = adj.normalization
    has = "weights of its own" if kind is None else f"values={kind!r}"
    if reduce == "mean":
        if kind != "mean":
            bad_value("adj", f"an operand prepared with {has}; accepted: values='mean', or an edge_index")
        return
    if kind is not None and not weighted:
        bad_value(
            "adj",
            f"an operand prepared with {has}, whose weights aggr={reduce!r} has no use for; accepted: "
            "values=None, or an edge_index",
        )
    if reduce == "sum":
        return
    if not weighted and adj.kernels.given_values is not None:
        bad_value(
            "adj",
            f"an operand with weights or repeated edges, and aggr={reduce!r} has none; accepted: an operand "
            "without, or an edge_index",
        )
    if adj.merges_edges:
        bad_value(
            "adj",
            f"an operand of repeated edges, which are merged, and aggr={reduce!r} needs the weight of each; "
            "accepted: an operand of edges without repeats",
        )


def linear_of_neighbours(
    operand: SparseOperand, x: torch.Tensor, values: torch.Tensor | None, linear: torch.nn.Linear, reduce: str
) -> torch.Tensor:
    """Apply a linear layer to reduced neighbours, in the cheaper order; extrema have one order only."""
    if reduce in ("max", "min"):
        return linear(spmm(operand, x, values, reduce=reduce))
    if product_first(x, linear.weight, values):
        return linear(spmm(operand, x, values))
    out = spmm(operand, linear_in_padded_rows(x, linear.weight), values)
    return out if linear.bias is None else out + linear.bias.to(out.dtype)


def product_first(x: torch.Tensor, weight: torch.Tensor, values: torch.Tensor | None) -> bool:
    """Return whether (A x) W costs less than A (x W), for W the transpose of `weight` [out, in].

    A sparse product costs its width, forward and for each gradient that passes through A: in (A x) W for that
    of x, in A (x W) for that of x or of W. Without gradients equal widths are for (A x) W, whose dense
    product adds the bias.
    """
    if not torch.is_grad_enabled():
        return weight.shape[1] <= weight.shape[0]
    of_x, of_w = x.requires_grad, weight.requires_grad
    of_values = values is not None and values.requires_grad
    first = weight.shape[1] * (1 + of_x + of_values)
    last = weight.shape[0] * (1 + (of_x or of_w) + of_values)
    return first < last
