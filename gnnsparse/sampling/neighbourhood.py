"""The graph that a sampler draws from, and the weights of what it draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gnnsparse.errors import bad_value
from gnnsparse.formats.csr import Csr
from gnnsparse.preprocess.normalize import normalize
from gnnsparse.sampling.draws import Drawn, running_sums
from gnnsparse.sparse.graph import SparseGraph, merge_values, value_tensor

__all__ = ["Neighbourhood"]


#: The weights of a block's edges: float32 [nnz], in the order in which edges were drawn, and factors of the
#: rows, float32 [rows]; None: 1 each.
Weights = tuple[torch.Tensor | None, torch.Tensor | None]


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """A graph to draw from.

    Attributes:
        csr: the edges, [targets, sources]; with normalization "gcn" without self-loops, which are added to
            each row that is drawn.
        normalization: None, "mean" or "gcn".
        values: float32 [nnz], the weights of the edges; None: 1 each. With "gcn" normalised ones.
        scale: float32 [nodes] of a graph without weights, with "gcn": D^-1/2.
        loops: float32 [nodes], the normalised weights of self-loops, with "gcn".
        nnz_index: int64 [nnz], for each edge its nonzero in the given graph; None: they are the same.
        edge_of_nonzero: for each nonzero of the given graph the first edge that was merged into it; None:
            nonzero e is edge e.
        weights: float32 [nnz], by which edges are drawn, or None.
        running: float64 [nnz], their sums from each row's first edge on, for draws with replacement.
    """

    csr: Csr
    normalization: str | None = None
    values: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    loops: torch.Tensor | None = None
    nnz_index: torch.Tensor | None = None
    edge_of_nonzero: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    running: torch.Tensor | None = None

    @classmethod
    def make(
        cls, graph: SparseGraph, normalization: str | None, weights: Any, *, replace: bool
    ) -> Neighbourhood:
        """Make the neighbourhood of a graph.

        Args:
            graph: the graph, square with "gcn".
            normalization: None, "mean" or "gcn".
            weights: by which edges are drawn, [edges] in the order of the edges given; None: they are not.
            replace: whether they are drawn with replacement.
        """
        csr, values, scale, loops, nnz_index = graph.csr, graph.values, None, None, None
        if normalization == "gcn":
            csr, values, scale, loops, nnz_index = _without_loops(graph)
        drawn_by = None if weights is None else _drawing_weights(graph, weights)
        if drawn_by is not None and nnz_index is not None:
            drawn_by = drawn_by[nnz_index]
        running = None if drawn_by is None or not replace else running_sums(csr, drawn_by)
        return cls(
            csr, normalization, values, scale, loops, nnz_index, _first_edges(graph), drawn_by, running
        )

    @classmethod
    def make_of_edges(cls, graph: SparseGraph, weights: Any, *, replace: bool) -> Neighbourhood:
        """Make the neighbourhood of a graph with a nonzero for each edge given, repeated ones included.

        The edges of a row are sorted by their sources, and those of a source as they were given. `make`
        documents the arguments.
        """
        drawn_by = None if weights is None else _edge_weights(graph, weights)
        nonzeros, csr, order = graph.nnz_index_of_edge, graph.csr, None
        if nonzeros is not None:
            order = torch.argsort(nonzeros, stable=True)
            copies = torch.bincount(nonzeros.long(), minlength=graph.nnz)
            first = torch.nn.functional.pad(copies.cumsum(0), (1, 0))
            csr = Csr(first[csr.indptr], csr.indices.repeat_interleave(copies), csr.cols)
            drawn_by = None if drawn_by is None else drawn_by[order]
        running = None if drawn_by is None or not replace else running_sums(csr, drawn_by)
        return cls(csr, edge_of_nonzero=order, weights=drawn_by, running=running)

    def edge_ids(self, edges: torch.Tensor) -> torch.Tensor:
        """Return the numbers of the edges given of nonzeros of `csr`, int64 [n]; -1 stays -1."""
        for table in (self.nnz_index, self.edge_of_nonzero):
            if table is not None:
                if table.numel() == 0:  # all edges are self-loops that were added
                    return edges
                edges = torch.where(edges < 0, -1, table[edges.clamp(min=0)])
        return edges

    def weigh(self, targets: torch.Tensor, drawn: Drawn) -> Weights:
        """Compute the weights of the edges that were drawn of target rows, int32 [rows].

        A sum has the given weights, times how often an edge was drawn. A mean is over what was drawn. With
        "gcn" the edges have the weights that they have in the whole graph, those of neighbours times the
        number of neighbours over the number of draws, so that a sum over neighbours that are drawn uniformly
        is that over all neighbours in expectation; the self-loop keeps its own.
        """
        if self.normalization == "gcn":
            return self._gcn_weights(targets, drawn), None
        values = None if self.values is None else self.values[drawn.edges]
        if drawn.copies is not None:
            values = drawn.copies if values is None else values * drawn.copies
        if self.normalization is None:
            return values, None
        counts = drawn.indptr.diff()
        if values is None:
            # Whatever an empty row has is multiplied by a sum of nothing.
            return None, counts.clamp_(min=1).reciprocal().float()
        sums = _row_sums(values, counts)
        factor = torch.where(sums == 0, 0.0, 1.0 / sums)
        return (values.double() * _by_edge(factor, counts, values)).float(), None

    def _gcn_weights(self, targets: torch.Tensor, drawn: Drawn) -> torch.Tensor:
        assert self.loops is not None
        rows, counts = targets.long(), drawn.indptr.diff()
        is_loop = drawn.edges < 0
        at = drawn.edges.clamp(min=0)
        copies = drawn.copies
        taken = counts - 1 if copies is None else _row_sums(copies, counts) - 1
        degrees = self.csr.indptr[rows + 1] - self.csr.indptr[rows]
        factor = (degrees / taken.clamp(min=1)).float()
        if self.scale is not None:
            values = _by_edge(self.scale[rows] * factor, counts, drawn.nodes) * self.scale[drawn.nodes.long()]
        else:
            assert self.values is not None
            # A graph without edges but self-loops has no weights to index.
            own = self.values[at] if self.csr.nnz else self.values.new_zeros(at.numel())
            values = own * _by_edge(factor, counts, drawn.nodes)
        if copies is not None:
            values = values * copies
        return torch.where(is_loop, self.loops[drawn.nodes.long()], values)


def _without_loops(
    graph: SparseGraph,
) -> tuple[Csr, torch.Tensor | None, torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
    """Return the edges of a graph that are no self-loops and their normalised weights.

    Returns:
        The edges, their normalised weights or None, the scales of a graph without weights or None, the
        normalised weights of self-loops, and for each edge its nonzero in `graph` or None.
    """
    if graph.values is None and graph.num_rows == graph.num_cols and graph.csr.count_near(0) == 0:
        # Nothing of the size of the edges is made: they may be those of a file that is memory-mapped.
        factors = (graph.csr.degrees + 1).double().rsqrt().float()
        return graph.csr, None, factors, factors * factors, None
    weighted = normalize(graph, "gcn")
    whole = weighted.graph
    rows = whole.csr.row_index()
    apart = rows != whole.csr.indices
    values, scale = whole.values, weighted.row_scale
    loops = scale * scale if scale is not None else values[~apart]  # type: ignore[index]
    values = None if values is None else values[apart]
    if whole.nnz - graph.nnz == graph.num_rows:  # it had no self-loops
        return graph.csr, values, scale, loops, None
    nodes = torch.arange(graph.num_rows + 1, dtype=torch.int64, device=graph.device)
    csr = Csr(whole.csr.indptr - nodes, whole.csr.indices[apart], graph.num_cols)
    own = (graph.csr.row_index() != graph.csr.indices).nonzero().flatten()
    return csr, values, scale, loops, own


def _edge_weights(graph: SparseGraph, weights: Any) -> torch.Tensor:
    """Return the weights by which edges are drawn, float32 [edges], numbers of 0 or more, else raise."""
    given = value_tensor("weights", weights, graph.num_edges, graph.device)
    if given.numel() and float(given.min()) < 0:
        at = int((given < 0).nonzero()[0])
        bad_value("weights", f"element {at} is {float(given[at])}; accepted: numbers of 0 or more")
    return given


def _drawing_weights(graph: SparseGraph, weights: Any) -> torch.Tensor:
    """Return the weights by which nonzeros are drawn, float32 [nnz]: sums of those of their edges."""
    given = _edge_weights(graph, weights)
    if graph.nnz_index_of_edge is None:
        return given
    merged = merge_values(given, graph.nnz_index_of_edge, graph.nnz)
    assert merged is not None
    return merged


def _first_edges(graph: SparseGraph) -> torch.Tensor | None:
    nonzeros = graph.nnz_index_of_edge
    if nonzeros is None:
        return None
    edges = torch.arange(nonzeros.numel(), dtype=torch.int64, device=graph.device)
    found = torch.full((graph.nnz,), nonzeros.numel(), dtype=torch.int64, device=graph.device)
    return found.scatter_reduce(0, nonzeros.long(), edges, "amin")


def _row_sums(values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Sum the values of each row, float64 [rows]."""
    if values.numel() == 0:  # segment_reduce refuses an empty tensor
        return torch.zeros(counts.numel(), dtype=torch.float64, device=values.device)
    # Not its checks, for which the host would wait for a GPU.
    return torch.segment_reduce(values.double(), "sum", lengths=counts, initial=0.0, unsafe=True)


def _by_edge(of_row: torch.Tensor, counts: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """Repeat a number of each row for each of its edges, [edges]."""
    return torch.repeat_interleave(of_row, counts, output_size=edges.numel())
