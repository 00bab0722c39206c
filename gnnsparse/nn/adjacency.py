"""Operands that layers make of an `edge_index` and edge weights, and keep from one call to the next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from gnnsparse.api import prepare
from gnnsparse.errors import bad_type, bad_value
from gnnsparse.nn.unchanged import Seen
from gnnsparse.operand import SparseOperand
from gnnsparse.precision import Precision
from gnnsparse.transforms import innermost, is_direct, outside, unwrapped

__all__ = ["AdjacencyMemo", "GcnAdjacency", "GcnRecipe", "check_precision", "check_self_loops"]


def check_precision(operand: SparseOperand, precision: Precision | None) -> None:
    """Raises a ValueError if a layer was asked for a precision that its operand does not have."""
    if precision not in (None, operand.precision):
        asked, has = precision.value, operand.precision.value
        bad_value(
            "precision", f"got {asked!r}, the operand has {has!r}; accepted: that of the operand, or None"
        )


def check_self_loops(operand: SparseOperand, instead: str) -> None:
    """Raises a ValueError if nodes of an operand lack a self-loop.

    Args:
        operand: the operand.
        instead: what else is accepted, for the message.
    """
    rows, cols = operand.shape
    if rows == cols and not operand.has_self_loops:
        accepted = f"one prepared with values='gcn', an edge_index, or {instead}"
        bad_value("adj", f"an operand of which nodes lack self-loops; accepted: {accepted}")


@dataclass(frozen=True)
class GcnRecipe:
    """How a layer makes a matrix of edges.

    Attributes:
        normalize: whether the matrix is scaled by D^-1/2 on both sides, where D holds the sums of the rows.
        loop_weight: weight of the self-loops that nodes without one get; None: none are added.
        precision: precision of the operand.
    """

    normalize: bool
    loop_weight: float | None
    precision: Precision


@dataclass(frozen=True, eq=False)
class _Loops:
    """The self-loops of an edge list. If a node has several, the last one counts, as in PyG.

    Attributes:
        others: int64 [n], indices of the edges that are no self-loops.
        nodes, edges: int64 [loops], the nodes with a self-loop, and the index of its edge.
    """

    others: torch.Tensor
    nodes: torch.Tensor
    edges: torch.Tensor

    @classmethod
    def find(cls, edge_index: torch.Tensor) -> _Loops:
        is_loop = edge_index[0] == edge_index[1]
        edges = is_loop.nonzero().flatten()
        nodes, group = edge_index[0][edges].long().unique(return_inverse=True)
        last = torch.zeros_like(nodes).scatter_reduce(0, group, edges, "amax", include_self=False)
        return cls((~is_loop).nonzero().flatten(), nodes, last)


class GcnAdjacency:
    """The operand that a layer makes of an `edge_index`.

    If it is normalised, has self-loops and no edge weights, the operand has rank-1 weights, and no edge
    values are needed. In all other cases the operand is the structure alone, and `values` returns its edge
    values.

    Args:
        edge_index: int64 or int32 [2, edges], sources over targets.
        num_nodes: number of nodes.
        recipe: how the matrix is made.
        weighted: whether `values` will be called with edge weights.
    """

    def __init__(self, edge_index: torch.Tensor, num_nodes: int, recipe: GcnRecipe, weighted: bool) -> None:
        edge_index = unwrapped("adj", edge_index)
        self._recipe, self._num_nodes = recipe, num_nodes
        self._edges = edge_index.shape[1]
        self._loops: _Loops | None = None
        if recipe.loop_weight is not None:
            self._loops = _Loops.find(edge_index)
            edge_index = edge_index[:, self._loops.others]
        self._has_scales = recipe.normalize and recipe.loop_weight is not None and not weighted
        if self._loops is not None and not self._has_scales:
            nodes = torch.arange(num_nodes, dtype=edge_index.dtype, device=edge_index.device)
            edge_index = torch.cat([edge_index, nodes.expand(2, -1)], dim=1)
        self.operand: SparseOperand = prepare(
            edge_index,
            num_nodes=num_nodes,
            values="gcn" if self._has_scales else None,
            precision=recipe.precision,
            cache=False,
        )
        self._indices: torch.Tensor | None = None

    def values(self, edge_weight: torch.Tensor | None) -> torch.Tensor | None:
        """Computes the edge values for a product with the operand. Differentiable.

        Args:
            edge_weight: floating-point [edges]; None: 1 each.

        Returns:
            float32 [nnz]; None if the operand's own weights are right.

        Raises:
            TypeError: `edge_weight` is not a floating-point tensor.
            ValueError: it has another size or device than the edges.
        """
        if edge_weight is None:
            if self._has_scales or not self._recipe.normalize:
                return None
            edge_weight = torch.ones(self._edges, dtype=torch.float32, device=self.operand.device)
        weights = self._with_loops(self._check(edge_weight).float())
        weights = self.operand.from_coo_order(weights)
        return self._normalized(weights) if self._recipe.normalize else weights

    def _check(self, edge_weight: Any) -> torch.Tensor:
        if not isinstance(edge_weight, torch.Tensor) or not edge_weight.is_floating_point():
            bad_type("edge_weight", edge_weight, f"a floating-point tensor [{self._edges}]")
        if edge_weight.shape != (self._edges,):
            bad_value("edge_weight", f"has shape {tuple(edge_weight.shape)}; accepted: ({self._edges},)")
        if edge_weight.device != self.operand.device:
            bad_value("edge_weight", f"is on {edge_weight.device}; accepted: {self.operand.device}")
        return edge_weight

    def _with_loops(self, weights: torch.Tensor) -> torch.Tensor:
        """Returns the weights with those of self-loops, in the order of the edges given to `prepare`."""
        if self._loops is None or self._recipe.loop_weight is None:
            return weights
        loops = weights.new_full((self._num_nodes,), self._recipe.loop_weight)
        loops = loops.index_copy(0, self._loops.nodes, weights[self._loops.edges])
        return torch.cat([weights[self._loops.others], loops])

    def _normalized(self, weights: torch.Tensor) -> torch.Tensor:
        with outside():  # both are kept
            if self._indices is None:
                self._indices = self.operand.indices()
            lengths = self.operand.kernels.csr.degrees
        row, col = self._indices
        if is_direct() and len(weights) > 0:
            # Sums each row in a fixed order; a scattered sum on a GPU may differ from run to run.
            degree = torch.segment_reduce(weights, "sum", lengths=lengths, initial=0.0)
        else:  # segment_reduce has no rules for transforms, and refuses an empty tensor
            degree = weights.new_zeros(lengths.shape).index_add(0, row, weights)
        positive = degree > 0
        # A degree of 0 is replaced by 1 under the root, so that its gradient is not NaN.
        scale = torch.where(positive, torch.where(positive, degree, 1.0).rsqrt(), 0.0)
        return scale[row] * weights * scale[col]


@dataclass(frozen=True, eq=False)
class _Entry:
    """The last operand of a layer, and what it was made of. Replaced as a whole, for calls from threads.

    Attributes:
        num_nodes, weighted, edges: the arguments of GcnAdjacency.
        adjacency: the operand.
        weights: the edge weights that `values` were computed from; None: none were computed yet.
        values: the last edge values.
    """

    num_nodes: int
    weighted: bool
    edges: Seen
    adjacency: GcnAdjacency
    weights: Seen | None = None
    values: torch.Tensor | None = None


class AdjacencyMemo:
    """Keeps the operand that a layer made of an `edge_index`, for calls with that edge_index.

    Copies share the operand; pickles do not contain it.

    Args:
        forever: False: an edge_index that `Seen` tells from the last one makes a new operand. True: the
            first operand is used in all calls, whatever their edge_index. In both cases edge values that
            need a gradient are computed in each call.
    """

    def __init__(self, forever: bool) -> None:
        self._forever = forever
        self._entry: _Entry | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> AdjacencyMemo:
        other = AdjacencyMemo(self._forever)
        other._entry = self._entry
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {"_forever": self._forever, "_entry": None}

    def clear(self) -> None:
        """Drops the operand."""
        self._entry = None

    def resolve(
        self, x: Any, adj: Any, edge_weight: torch.Tensor | None, recipe: GcnRecipe
    ) -> tuple[SparseOperand, torch.Tensor | None]:
        """Returns the operand of a call, and edge values to use in place of its own weights, or None.

        Args:
            x: the layer's input [nodes, features].
            adj: an operand, which is returned itself, or an edge_index.
            edge_weight: with an edge_index: floating-point [edges], or None for 1 each.
            recipe: how a matrix is made of the edge_index.

        Raises:
            TypeError: an argument is of another type.
            ValueError: an argument has another shape or device, or does not go with another one.
        """
        if isinstance(adj, SparseOperand):  # the layer has checked what it is
            if edge_weight is not None:
                bad_value("edge_weight", "goes with an edge_index; an operand has its weights already")
            return adj, None
        if not isinstance(adj, torch.Tensor):
            bad_type("adj", adj, "a SparseOperand, from gnnsparse.prepare, or an edge_index [2, edges]")
        if not isinstance(x, torch.Tensor) or x.dim() != 2:
            bad_type("x", x, "a tensor [nodes, in_channels]")
        if edge_weight is not None and not isinstance(edge_weight, torch.Tensor):
            bad_type("edge_weight", edge_weight, "a floating-point tensor [edges], or None")
        if torch.compiler.is_compiling():  # only then: `disable` imports modules, which takes seconds
            return torch.compiler.disable(self._prepare)(adj, edge_weight, x.shape[0], recipe)
        return self._prepare(adj, edge_weight, x.shape[0], recipe)

    def _prepare(
        self, edge_index: torch.Tensor, edge_weight: torch.Tensor | None, num_nodes: int, recipe: GcnRecipe
    ) -> tuple[SparseOperand, torch.Tensor | None]:
        if edge_index.dim() != 2 or edge_index.shape[0] != 2:
            bad_value("adj", f"has shape {tuple(edge_index.shape)}; accepted: (2, edges)")
        if edge_index.layout != torch.strided or edge_index.dtype not in (torch.int64, torch.int32):
            bad_type("edge_index", edge_index, "a tensor [2, edges] of dtype int64 or int32")
        return self._get(edge_index, edge_weight, num_nodes, recipe)

    def _get(
        self,
        edge_index: torch.Tensor,
        edge_weight: torch.Tensor | None,
        num_nodes: int,
        recipe: GcnRecipe,
    ) -> tuple[SparseOperand, torch.Tensor | None]:
        """Returns the operand of an `edge_index`, made or kept, and its edge values (see GcnAdjacency)."""
        entry, weighted = self._entry, edge_weight is not None
        seen = None if self._forever and entry is not None else Seen(innermost("adj", edge_index))
        if entry is None or not (seen is None or self._matches(entry, seen, num_nodes, weighted)):
            assert seen is not None
            with outside():
                adjacency = GcnAdjacency(edge_index, num_nodes, recipe, weighted)
            entry = _Entry(num_nodes, weighted, seen, adjacency)
        if edge_weight is not None and (edge_weight.requires_grad or not is_direct()):
            self._entry = entry
            return entry.adjacency.operand, entry.adjacency.values(edge_weight)
        if entry.weights is None or not self._forever:
            weights = Seen(edge_weight)
            if entry.weights is None or not entry.weights.equals(weights):
                with outside():
                    entry = replace(entry, weights=weights, values=entry.adjacency.values(edge_weight))
        self._entry = entry
        return entry.adjacency.operand, entry.values

    @staticmethod
    def _matches(entry: _Entry, edges: Seen, num_nodes: int, weighted: bool) -> bool:
        return (entry.num_nodes, entry.weighted) == (num_nodes, weighted) and entry.edges.equals(edges)
