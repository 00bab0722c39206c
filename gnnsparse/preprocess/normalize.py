"""The weights of a matrix by the argument `values`: one for each nonzero, or rank-1 weights r[i] * c[j]."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from gnnsparse.errors import bad_value
from gnnsparse.sparse.graph import SparseGraph


@dataclass(frozen=True, eq=False)
class Weighted:
    """A graph of nonzeros row_scale[i] * value * col_scale[j] (None: 1), with either values or scales."""

    graph: SparseGraph
    row_scale: torch.Tensor | None = None
    col_scale: torch.Tensor | None = None

    def to(self, device: torch.device) -> Weighted:
        """Return the same on a device."""
        scales = (None if one is None else one.to(device) for one in (self.row_scale, self.col_scale))
        return Weighted(self.graph.to(device), *scales)


def _row_sums(graph: SparseGraph) -> torch.Tensor:
    """Sum each row's values, float64 [rows]: in float64 counts are exact, and rounding errors are small."""
    if graph.values is None:
        return graph.csr.degrees.to(torch.float64)
    if graph.nnz == 0:  # segment_reduce refuses an empty tensor
        return torch.zeros(graph.num_rows, dtype=torch.float64, device=graph.device)
    return torch.segment_reduce(graph.values.double(), "sum", lengths=graph.csr.degrees, initial=0.0)


def _with_self_loops(graph: SparseGraph, weight: float) -> SparseGraph:
    """Add missing self-loops with a weight; existing ones keep theirs, as in PyG's graph utilities."""
    csr, places = graph.csr.add_self_loops()
    values, of_edge = graph.values, graph.nnz_index_of_edge
    if values is not None or weight != 1.0:
        old = 1.0 if values is None else values
        values = torch.full((csr.nnz,), weight, dtype=torch.float32, device=graph.device)
        values[places.long()] = old
    return SparseGraph(csr, values, places if of_edge is None else places.index_select(0, of_edge))


def _apply(graph: SparseGraph, row: torch.Tensor, col: torch.Tensor | None) -> Weighted:
    if graph.values is None:
        return Weighted(graph, row.float(), None if col is None else col.float())
    scaled = graph.values.double() * row.index_select(0, graph.csr.row_index())
    if col is not None:
        scaled *= col.index_select(0, graph.csr.indices)
    return Weighted(replace(graph, values=scaled.float()))


def normalize(graph: SparseGraph, kind: str | None, self_loop_weight: float = 1.0) -> Weighted:
    """Compute normalised weights: "gcn" (Kipf and Welling 2017) is D^-1/2 (A + I) D^-1/2, "mean" is D^-1 A.

    D holds the row sums, of A + I for "gcn", which adds self-loops of a weight to nodes without one.
    """
    if graph.values is not None and bool((graph.values == 1).all()):
        graph = replace(graph, values=None)
    if kind is None:
        return Weighted(graph)
    if kind == "mean":
        sums = _row_sums(graph)
        return _apply(graph, torch.where(sums == 0, 0.0, 1.0 / sums), None)
    if graph.num_rows != graph.num_cols:
        bad_value("values", f"'gcn' needs a square matrix, got {graph.num_rows} x {graph.num_cols}")
    graph = _with_self_loops(graph, self_loop_weight)
    sums = _row_sums(graph)
    scale = torch.where(sums > 0, sums.clamp(min=1e-300).rsqrt(), 0.0)
    return _apply(graph, scale, scale)


def symmetric_scales(weighted: Weighted) -> bool:
    """Return whether rank-1 weights of a square matrix are symmetric: r equals c, or both are None."""
    row, col = weighted.row_scale, weighted.col_scale
    return row is col or (row is not None and col is not None and torch.equal(row, col))
