"""Sums, means and extrema over neighbours, of which the layers without attention are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gnnsparse.errors import bad_type, bad_value
from gnnsparse.nn.adjacency import DEFAULT, AdjacencyMemo, Preparation, check_edge_weight, check_precision
from gnnsparse.nn.linear import linear_in_vectors
from gnnsparse.ops import spmm
from gnnsparse.precision import Precision
from gnnsparse.preprocess.api import prepare
from gnnsparse.sparse.operand import SparseOperand

__all__ = [
    "AGGREGATIONS", "Aggregation", "Neighbours", "check_aggregation", "product_first",
]  # fmt: skip

#: What the argument `aggr` of a layer names -> the reduction.
AGGREGATIONS = {"add": "sum", "sum": "sum", "mean": "mean", "max": "max", "min": "min"}


def check_aggregation(aggr: Any) -> str:
    """Returns the reduction that `aggr` names: "sum", "mean", "max" or "min". Else raises."""
    accepted = ", ".join(AGGREGATIONS)
    if not isinstance(aggr, str):
        bad_type("aggr", aggr, f"one of {accepted}")
    if aggr not in AGGREGATIONS:
        bad_value("aggr", f"got {aggr!r}; accepted: {accepted}")
    return AGGREGATIONS[aggr]


@dataclass(frozen=True)
class Aggregation:
    """How a layer reduces the features of a node's neighbours, and the recipe of its operands.

    Attributes:
        reduce: "sum", "mean", "max" or "min".
        precision: precision of the operand.
        preparation: how much work goes into the operand; None: that of `DEFAULT`.
    """

    reduce: str
    precision: Precision
    preparation: Preparation | None = None

    def make(self, edge_index: torch.Tensor, size: tuple[int, int], weighted: bool) -> Neighbours:
        """Makes the operand of an edge_index."""
        return Neighbours(edge_index, size, self, weighted)


class Neighbours:
    """The operand that a layer makes of an `edge_index` to reduce the features of neighbours.

    A mean without edge weights has rank-1 weights in the operand, and a sum none, so that neither stores a
    value for each edge. An edge that is repeated counts several times.

    Args:
        edge_index: int64 or int32 [2, edges], sources over targets.
        size: (sources, targets).
        recipe: how the features are reduced.
        weighted: whether `values` will be called with edge weights.
    """

    def __init__(
        self, edge_index: torch.Tensor, size: tuple[int, int], recipe: Aggregation, weighted: bool
    ) -> None:
        self._reduce = recipe.reduce
        mean = recipe.reduce == "mean"
        self.operand: SparseOperand = prepare(
            edge_index,
            num_nodes=size,
            values="mean" if mean and not weighted else None,
            precision=recipe.precision,
            **(recipe.preparation or DEFAULT).options(),
        )
        self._share: torch.Tensor | None = None
        if mean and weighted:
            target = edge_index[1].long()
            counts = torch.bincount(target, minlength=size[1])
            self._share = counts[target].float().reciprocal()

    @property
    def _has_repeats(self) -> bool:
        return self.operand.num_edges != self.operand.nnz

    def values(self, edge_weight: torch.Tensor | None) -> torch.Tensor | None:
        """Computes the edge values for a product with the operand. Differentiable.

        Args:
            edge_weight: floating-point [edges], or [edges, heads]; None: 1 each.

        Returns:
            float32 [nnz], or [nnz, heads]; None if the operand's own weights are right.

        Raises:
            TypeError: `edge_weight` is not a floating-point tensor.
            ValueError: it has another size or device than the edges, or edges are repeated whose weights
                have to be kept apart.
        """
        operand, extremum = self.operand, self._reduce in ("max", "min")
        if edge_weight is None:
            if extremum and self._has_repeats:  # the operand has their numbers as weights
                return torch.ones(operand.nnz, dtype=torch.float32, device=operand.device)
            return None
        weights = check_edge_weight(edge_weight, operand.num_edges, operand.device, by_head=True).float()
        if extremum and self._has_repeats:
            bad_value(
                "edge_weight",
                f"repeated edges are merged, and aggr={self._reduce!r} needs the weight of each; accepted: "
                "edges without repeats",
            )
        if self._share is not None:
            weights = weights * _by_edge(self._share, weights)
        return operand.from_coo_order(weights)

    def values_grad(self, grad: torch.Tensor) -> torch.Tensor:
        """Returns the gradient of the edge weights for that of what `values` made of them.

        Args:
            grad: floating-point [nnz], or [nnz, heads].

        Returns:
            [edges], or [edges, heads].
        """
        grad = self.operand.to_coo_order(grad)
        return grad if self._share is None else grad * _by_edge(self._share, grad)


def _by_edge(numbers: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Returns numbers [edges] in a shape that multiplies `like`, [edges] or [edges, heads]."""
    return numbers if like.dim() == 1 else numbers[:, None]


def check_operand_for(aggregation: Aggregation, adj: SparseOperand, weighted: bool) -> None:
    """Raises a ValueError unless a product with an operand is the reduction that a layer computes.

    Args:
        aggregation: how the layer reduces.
        adj: the operand.
        weighted: whether the layer has edge weights, so that those of the operand are used.
    """
    kind, reduce = adj.normalization, aggregation.reduce
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
    if reduce != "sum" and not weighted and adj.kernels.given_values is not None:
        bad_value(
            "adj",
            f"an operand with weights or repeated edges, and aggr={reduce!r} has none; accepted: an operand "
            "without, or an edge_index",
        )
    if reduce != "sum" and adj.merges_edges:
        bad_value(
            "adj",
            f"an operand of repeated edges, which are merged, and aggr={reduce!r} needs the weight of each; "
            "accepted: an operand of edges without repeats",
        )


def neighbours_of(
    memo: AdjacencyMemo[Neighbours],
    adj: Any,
    size: tuple[int, int],
    edge_weight: torch.Tensor | None,
    aggregation: Aggregation,
    *,
    precision: Precision | None,
    weighted: bool = False,
) -> tuple[SparseOperand, torch.Tensor | None]:
    """Returns the operand of a layer's call, and edge values to use in place of its own weights, or None.

    Args:
        memo: what the layer made before.
        adj: an operand, or an edge_index.
        size: (sources, targets).
        edge_weight: weights of the edges, or None.
        aggregation: how the layer reduces.
        precision: what the layer was asked for, or None.
        weighted: whether the layer has edge weights.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument has another shape or device, or does not go with another one.
    """
    if isinstance(adj, SparseOperand):
        check_precision(adj, precision)
        check_operand_for(aggregation, adj, weighted)
    return memo.resolve(size, adj, edge_weight, aggregation)


def linear_of_neighbours(
    operand: SparseOperand,
    x: torch.Tensor,
    values: torch.Tensor | None,
    linear: torch.nn.Linear,
    aggregation: Aggregation,
) -> torch.Tensor:
    """Applies a linear layer to the reduced features of neighbours, in the order that costs less.

    Args:
        operand: the operand, [targets, sources].
        x: features of the sources, [sources, in_features].
        values: edge values, or None.
        linear: the linear layer.
        aggregation: how features are reduced. Extrema do not commute with the linear layer.

    Returns:
        [targets, out_features].
    """
    if aggregation.reduce in ("max", "min"):
        return linear(spmm(operand, x, values, reduce=aggregation.reduce))
    if product_first(x, linear.weight, values):
        return linear(spmm(operand, x, values))
    out = spmm(operand, linear_in_vectors(x, linear.weight), values)
    return out if linear.bias is None else out + linear.bias.to(out.dtype)


def product_first(x: torch.Tensor, weight: torch.Tensor, values: torch.Tensor | None) -> bool:
    """Returns whether (A x) W costs less than A (x W).

    The dense products cost equally much in both. The cost of a sparse product is proportional to its width,
    the columns or the rows of the weight. There is one in the forward pass, and one in the backward pass for
    each gradient that has to pass through A: in (A x) W for the gradient of x, which the first layer of a
    model does not need; in A (x W) for the gradient of x or of W. Without gradients equal widths are for
    (A x) W, whose dense product adds the bias on its way.

    Args:
        x: the input.
        weight: [out, in], weight of the linear layer.
        values: edge values, or None.
    """
    if not torch.is_grad_enabled():
        return weight.shape[1] <= weight.shape[0]
    of_x, of_w = x.requires_grad, weight.requires_grad
    of_values = values is not None and values.requires_grad
    first = weight.shape[1] * (1 + of_x + of_values)
    last = weight.shape[0] * (1 + (of_x or of_w) + of_values)
    return first < last
