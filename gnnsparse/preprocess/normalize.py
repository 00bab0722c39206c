"""Turning `values=` into the weights of a matrix: edge values, or a rank-1 r[i] * c[j]."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from gnnsparse.csr import Csr
from gnnsparse.errors import bad_value
from gnnsparse.graph import SparseGraph
from gnnsparse.precision import Precision, round_operand

__all__ = ["NORMALIZATIONS", "Weighted", "explicit_values", "normalize", "symmetric_scales"]

#: Names that `values=` accepts besides a tensor.
NORMALIZATIONS = ("gcn", "mean")


@dataclass(frozen=True, eq=False)
class Weighted:
    """A graph and its weights: element (i, j) is row_scale[i] * value * col_scale[j].

    At most one of `graph.values` and the scales is set, so that a matrix either stores a value for
    each nonzero or is rank-1 on its structure. None stands for ones.
    """

    graph: SparseGraph
    row_scale: torch.Tensor | None = None
    col_scale: torch.Tensor | None = None


def _row_sums(graph: SparseGraph) -> torch.Tensor:
    """Sum of each row's values, float64: counts stay exact and the order does not matter."""
    if graph.values is None:
        return graph.csr.degrees.to(torch.float64)
    return torch.segment_reduce(graph.values.double(), "sum", lengths=graph.csr.degrees, initial=0.0)


def _with_self_loops(graph: SparseGraph, weight: float) -> SparseGraph:
    """Adds the self-loops that are missing, as PyG's add_remaining_self_loops does."""
    csr, source = graph.csr.add_self_loops()
    kept = source >= 0
    values = graph.values
    if values is not None or weight != 1.0:
        old = torch.ones(graph.nnz, device=graph.device) if values is None else values
        values = torch.full((csr.nnz,), weight, device=graph.device)
        values[kept] = old[source[kept].long()]
    new_index = torch.empty(graph.nnz, dtype=source.dtype, device=graph.device)
    new_index[source[kept].long()] = kept.nonzero().flatten().to(source.dtype)
    nnz_index_of_edge = (
        new_index if graph.nnz_index_of_edge is None else new_index[graph.nnz_index_of_edge.long()]
    )
    return SparseGraph(csr, values, nnz_index_of_edge)


def _apply(graph: SparseGraph, row: torch.Tensor, col: torch.Tensor | None) -> Weighted:
    if graph.values is None:
        return Weighted(graph, row.float(), None if col is None else col.float())
    scaled = graph.values.double() * row[graph.csr.row_index()]
    if col is not None:
        scaled *= col[graph.csr.indices.long()]
    return Weighted(replace(graph, values=scaled.float()))


def _drop_ones(graph: SparseGraph) -> SparseGraph:
    if graph.values is not None and bool((graph.values == 1).all()):
        return replace(graph, values=None)
    return graph


def normalize(graph: SparseGraph, kind: str | None, self_loop_weight: float = 1.0) -> Weighted:
    """The weights that `kind` stands for.

    Args:
        graph: with or without edge values.
        kind: None leaves the values as they are. "gcn": D^-1/2 (A + I) D^-1/2 with D the row sums of
            A + I and a self-loop added where there is none (Kipf and Welling 2017). "mean": D^-1 A.
        self_loop_weight: of the loops that "gcn" adds.

    Raises:
        ValueError: "gcn" of a matrix that is not square.
    """
    graph = _drop_ones(graph)
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


def symmetric_scales(weighted: Weighted, csr: Csr) -> bool:
    """Whether the rank-1 weights are symmetric: r = c, or none."""
    row, col = weighted.row_scale, weighted.col_scale
    if row is None and col is None:
        return True
    return row is not None and col is not None and csr.rows == csr.cols and torch.equal(row, col)


def explicit_values(
    csr: Csr,
    row_ids: torch.Tensor | None,
    values: torch.Tensor | None,
    scales: tuple[torch.Tensor | None, torch.Tensor | None],
    precision: Precision,
) -> torch.Tensor:
    """The value of each nonzero of stored rows, rounded: [nnz] in the storage dtype."""
    if values is None:
        values = torch.ones(csr.nnz, device=csr.device)
    row_scale, col_scale = scales
    if row_scale is not None:
        by_row = row_scale if row_ids is None else row_scale[row_ids.long()]
        values = values * by_row[csr.row_index()]
    if col_scale is not None:
        values = values * col_scale[csr.indices.long()]
    return round_operand(values, precision)
