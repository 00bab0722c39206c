"""Patterns of attention that models make of a graph once, and keep with it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch

from gnnsparse import SparseGraph, SparseOperand, masks, prepare
from gnnsparse.errors import bad_value
from gnnsparse.nn.adjacency import AdjacencyMemo, Recipe
from gnnsparse.precision import Precision

__all__ = [
    "ALL_PAIRS_UP_TO", "ATTENTIONS", "EDGE_TYPES", "AllNodes", "Interactions", "Pattern", "pattern_of",
]  # fmt: skip

#: What AllNodes may let a node attend to.
ATTENTIONS = ("auto", "full", "expander", "window")
#: The most nodes whose pairs `attention="auto"` makes all: the indices of a pattern of 2^20 pairs take 4 MB.
ALL_PAIRS_UP_TO = 1024
#: The types of edges of Interactions. An edge of several types is one of the first of them.
EDGE_TYPES = ("self", "graph", "expander", "from virtual", "to virtual")


@dataclass(eq=False)
class Pattern:
    """What a node attends to.

    Attributes:
        operand: the operand, [nodes, nodes].
        types: float32 [nnz, types] in the operand's order, 1 for the type of an edge and else 0; None: there
            are no types.
    """

    operand: SparseOperand
    types: torch.Tensor | None = None


@dataclass(frozen=True)
class AllNodes(Recipe):
    """Attention to all nodes, or to a pattern in their place, whatever the edges.

    Attributes:
        attention: "full": all pairs; "expander": a node, and its neighbours in a random regular graph;
            "window": a node, and the next ones by number; "auto": "full" up to ALL_PAIRS_UP_TO nodes, and
            else "expander", with a warning that says so.
        degree: neighbours of a node in an expander or window; fewer if there are not as many others.
        seed: seed of an expander.
        precision: precision of the operand.
    """

    attention: str
    degree: int
    seed: int
    precision: Precision

    def make(self, edge_index: torch.Tensor, size: tuple[int, int], weighted: bool) -> Pattern:
        """Make the pattern."""
        graph = self._graph(size[0]).to(edge_index.device)
        return Pattern(prepare(graph, precision=self.precision, cache=False))

    def _graph(self, nodes: int) -> SparseGraph:
        attention = self.attention
        if attention == "auto" and nodes > ALL_PAIRS_UP_TO:
            warnings.warn(
                f"attention over all pairs of {nodes} nodes is too large: each attends to itself and to "
                f"{self.degree} others of an expander (attention='expander'; 'full' for all pairs)",
                stacklevel=2,
            )
            attention = "expander"
        if attention in ("auto", "full"):
            return masks.full(nodes)
        if attention == "window":
            return masks.window(nodes, (self.degree + 1) // 2)
        return masks.union(masks.window(nodes, 0), _expander(nodes, self.degree, self.seed))


@dataclass(frozen=True)
class Interactions(Recipe):
    """The interaction graph of Exphormer (Shirzad et al. 2023, section 3), whose edges have types.

    It has the graph's edges, those of an expander, edges in both directions between each node and each
    virtual node, which follow the nodes, and a self-loop of every node.

    Attributes:
        degree: neighbours of a node in the expander; fewer if there are not as many others.
        virtual_nodes: number of virtual nodes.
        seed: seed of the expander.
        precision: precision of the operand.
    """

    degree: int
    virtual_nodes: int
    seed: int
    precision: Precision

    def make(self, edge_index: torch.Tensor, size: tuple[int, int], weighted: bool) -> Pattern:
        """Make the pattern."""
        nodes, total, device = size[0], size[0] + self.virtual_nodes, edge_index.device
        csr = _expander(nodes, self.degree, self.seed).csr
        others = torch.stack([csr.indices.long(), csr.row_index().long()]).to(device)
        every = torch.arange(total, dtype=torch.int64, device=device)
        hub = torch.cartesian_prod(every[nodes:], every[:nodes]).T
        parts = every.expand(2, -1), edge_index.long(), others, hub, hub.flip(0)  # as EDGE_TYPES
        source, target = torch.cat(parts, dim=1)
        kinds = torch.arange(len(parts), dtype=torch.int64, device=device)
        kinds = kinds.repeat_interleave(torch.tensor([part.shape[1] for part in parts], device=device))
        # In the order of rows and columns; of equal edges the first type is first.
        number, order = (target * total + source).sort(stable=True)
        new = torch.ones_like(number, dtype=torch.bool)
        new[1:] = number[1:] != number[:-1]
        first = order[new]
        edges = torch.stack([source[first], target[first]])
        operand = prepare(edges, num_nodes=total, precision=self.precision, cache=False)
        types = torch.nn.functional.one_hot(kinds[first], len(parts)).float()
        return Pattern(operand, operand.from_coo_order(types))


def _expander(nodes: int, degree: int, seed: int) -> SparseGraph:
    """Make an expander of the degree, or of the next smaller one that a graph of so many nodes can have."""
    degree = min(degree, max(nodes - 1, 0))
    return masks.expander(nodes, degree - degree * nodes % 2, seed=seed)


def pattern_of(memo: AdjacencyMemo, adj: SparseOperand | torch.Tensor, nodes: int, recipe: Recipe) -> Pattern:
    """Return the pattern that a recipe makes of a graph: made in the first call, and kept.

    An operand keeps its pattern, `memo` that of the last edge_index. Where torch.compile must not break
    the graph, run a model with an operand once before.
    """
    if not isinstance(adj, SparseOperand):
        return memo.adjacency((nodes, nodes), adj, recipe)
    if adj.shape != (nodes, nodes):
        bad_value(
            "adj", f"an operand of shape {adj.shape}, and x of {nodes} nodes; accepted: {(nodes, nodes)}"
        )
    kept, key = adj.kernels.memo, ("pattern", recipe)
    found = kept.find(key)
    if found is not None:
        return found
    get = torch.compiler.disable(kept.get) if torch.compiler.is_compiling() else kept.get
    return get(key, lambda: recipe.make(adj.indices().flip(0), (nodes, nodes), False))
