"""Operands that layers make of an `edge_index` and edge weights, and keep from one call to the next."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch

from gnnsparse.api import prepare
from gnnsparse.errors import bad_type, bad_value
from gnnsparse.operand import SparseOperand
from gnnsparse.precision import Precision

__all__ = ["AdjacencyMemo", "GcnAdjacency", "GcnRecipe"]


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
        edge_index = edge_index.as_subclass(torch.Tensor)  # PyG's EdgeIndex is a subclass of Tensor
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
        if self._indices is None:
            self._indices = self.operand.indices()
        row, col = self._indices
        # Sums each row in a fixed order; a scattered sum on a GPU may differ from run to run.
        lengths = self.operand.kernels.csr.degrees
        degree = torch.segment_reduce(weights, "sum", lengths=lengths, initial=0.0)
        positive = degree > 0
        # A degree of 0 is replaced by 1 under the root, so that its gradient is not NaN.
        scale = torch.where(positive, torch.where(positive, degree, 1.0).rsqrt(), 0.0)
        return scale[row] * weights * scale[col]


class _Watched:
    """Remembers a tensor and its version, to tell later whether it is that tensor with unchanged contents."""

    def __init__(self, tensor: torch.Tensor | None) -> None:
        # Tensors made in inference mode have no version counter, so in-place changes can't be detected.
        self._unknown = tensor is not None and tensor.is_inference()
        self._ref = None if tensor is None else weakref.ref(tensor)
        self._version = 0 if tensor is None or self._unknown else tensor._version

    def is_still(self, tensor: torch.Tensor | None) -> bool:
        if tensor is None or self._ref is None or self._unknown:
            return tensor is None and self._ref is None
        return self._ref() is tensor and tensor._version == self._version


@dataclass
class _Entry:
    """The last operand of a layer, with the arguments it was made of.

    Attributes:
        num_nodes, weighted, edges: the arguments.
        adjacency: the operand.
        values: the last edge values.
        weights: the edge weights that `values` were computed from; None: none were computed yet.
    """

    num_nodes: int
    weighted: bool
    adjacency: GcnAdjacency
    edges: _Watched
    values: torch.Tensor | None = None
    weights: _Watched | None = None


class AdjacencyMemo:
    """Keeps the operand that a layer made of an `edge_index`, for calls with that edge_index.

    Copies share the operand; pickles do not contain it.

    Args:
        forever: False: another edge_index, or an in-place change, makes a new operand. True: the first
            operand is used in all calls, whatever their edge_index. In both cases edge values that need a
            gradient are computed in each call.
    """

    def __init__(self, forever: bool) -> None:
        self._forever = forever
        self._entry: _Entry | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> AdjacencyMemo:
        other = AdjacencyMemo(self._forever)
        other._entry = None if self._entry is None else replace(self._entry)
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
        if isinstance(adj, SparseOperand):
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
        # Tensors made in inference mode could not be used in training later.
        with torch.inference_mode(False):
            return self.get(edge_index, edge_weight, num_nodes, recipe)

    def get(
        self,
        edge_index: torch.Tensor,
        edge_weight: torch.Tensor | None,
        num_nodes: int,
        recipe: GcnRecipe,
    ) -> tuple[SparseOperand, torch.Tensor | None]:
        """Returns the operand of an `edge_index`, made or kept, and its edge values (see GcnAdjacency)."""
        entry = self._entry
        weighted = edge_weight is not None
        if entry is None or not self._matches(entry, edge_index, num_nodes, weighted):
            adjacency = GcnAdjacency(edge_index, num_nodes, recipe, weighted)
            entry = _Entry(num_nodes, weighted, adjacency, _Watched(edge_index))
            self._entry = entry
        if edge_weight is not None and edge_weight.requires_grad:
            return entry.adjacency.operand, entry.adjacency.values(edge_weight)
        if entry.weights is None or not (self._forever or entry.weights.is_still(edge_weight)):
            entry.values = entry.adjacency.values(edge_weight)
            entry.weights = _Watched(edge_weight)
        return entry.adjacency.operand, entry.values

    def _matches(self, entry: _Entry, edge_index: torch.Tensor, num_nodes: int, weighted: bool) -> bool:
        if self._forever:
            return True
        if (entry.num_nodes, entry.weighted) != (num_nodes, weighted):
            return False
        return entry.edges.is_still(edge_index)
