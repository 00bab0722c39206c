"""The inputs of `prepare`: their raw arrays, which are hashed, and functions that make graphs of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gnnsparse.errors import bad_type, bad_value, check_array, check_device
from gnnsparse.graph import SparseGraph
from gnnsparse.transforms import unwrapped

__all__ = ["Source", "read_source"]

_ACCEPTED = (
    "an edge_index [2, edges], a SparseGraph, a CSR pair (indptr, indices) or triple with values, "
    "a scipy.sparse matrix or a torch sparse tensor"
)


@dataclass(frozen=True, eq=False)
class Source:
    """An input of `prepare`.

    Attributes:
        arrays: the arrays of the input; equal arrays and parameters make equal graphs.
        parameters: everything else that the graph depends on.
        build: validates the input and makes the graph.
    """

    arrays: list[torch.Tensor | None]
    parameters: tuple[object, ...]
    build: Callable[[], SparseGraph]


def _raw(name: str, value: Any) -> torch.Tensor | None:
    """Returns a tensor over the memory of `value`, for hashing; None if it is no array (`build` raises)."""
    if isinstance(value, torch.Tensor):
        dense = check_device(name, value).layout == torch.strided
        return unwrapped(name, value) if dense else None
    if value is None:
        return None
    try:
        return torch.from_numpy(check_array(name, value, "an array"))
    except TypeError:
        return None


def _is_index_array(data: Any) -> bool:
    return isinstance(data, (torch.Tensor, np.ndarray)) and not (
        isinstance(data, torch.Tensor) and data.layout != torch.strided
    )


def read_source(data: Any, num_nodes: Any, num_cols: Any, values: Any) -> Source:
    """Recognises the form of an input and makes its Source.

    Args:
        data: argument `graph` of `gnnsparse.prepare`.
        num_nodes, num_cols: arguments of `gnnsparse.prepare`.
        values: edge values in the order of the edges given, or None.

    Raises:
        TypeError: `data` has none of the accepted forms.
        ValueError: an argument does not go with this form.
    """
    if _is_index_array(data):
        if num_cols is not None:
            bad_value("num_cols", "does not go with an edge_index: use num_nodes=(sources, targets)")
        return Source(
            [_raw("graph", data), _raw("values", values)],
            ("edge_index", repr(num_nodes)),
            lambda: SparseGraph.from_edge_index(data, num_nodes, values),
        )
    if num_nodes is not None:
        bad_value("num_nodes", "goes with an edge_index only; matrices and graphs have their own shape")
    if isinstance(data, (tuple, list)) and len(data) in (2, 3):
        if values is not None and len(data) == 3:
            bad_value("values", "are given twice: in the CSR triple and as values=")
        weights = data[2] if len(data) == 3 else values
        return Source(
            [_raw("indptr", data[0]), _raw("indices", data[1]), _raw("values", weights)],
            ("csr", repr(num_cols)),
            lambda: SparseGraph.from_csr(data[0], data[1], weights, num_cols),
        )
    if num_cols is not None:
        bad_value("num_cols", "goes with a CSR pair only; other inputs have their own shape")
    if isinstance(data, SparseGraph):
        arrays = [
            data.csr.indptr,
            data.csr.indices,
            data.values,
            data.nnz_index_of_edge,
            _raw("values", values),
        ]
        return Source(arrays, ("graph", data.num_cols), lambda: _reweighted(data, values))
    if isinstance(data, torch.Tensor):
        return _torch_sparse(data, values)
    if type(data).__module__.startswith("scipy.sparse"):
        return _scipy(data, values)
    bad_type("graph", data, _ACCEPTED)


def _reweighted(graph: SparseGraph, values: Any) -> SparseGraph:
    """Returns the graph with other values, which are in the order of its input edges."""
    if values is None:
        return graph
    if graph.nnz_index_of_edge is None:
        return SparseGraph.from_csr(graph.csr.indptr, graph.csr.indices, values, graph.num_cols)
    nnz_index = graph.nnz_index_of_edge.long()
    edge_index = torch.stack([graph.csr.indices.long()[nnz_index], graph.csr.row_index()[nnz_index]])
    return SparseGraph.from_edge_index(edge_index, (graph.num_cols, graph.num_rows), values)


def _no_values_beside(values: Any) -> None:
    if values is not None:
        bad_value("values", "a sparse matrix brings its own values; accepted here: None, 'gcn', 'mean'")


def _torch_sparse(matrix: torch.Tensor, values: Any) -> Source:
    _no_values_beside(values)
    check_device("graph", matrix)
    parts: list[torch.Tensor | None] = []
    if matrix.layout == torch.sparse_coo:
        parts = [matrix._indices(), matrix._values()]
    elif matrix.layout == torch.sparse_csr:
        parts = [matrix.crow_indices(), matrix.col_indices(), matrix.values()]
    elif matrix.layout == torch.sparse_csc:
        parts = [matrix.ccol_indices(), matrix.row_indices(), matrix.values()]
    parameters = ("torch", str(matrix.layout), tuple(matrix.shape))
    return Source(parts, parameters, lambda: SparseGraph.from_torch_sparse(matrix))


def _scipy(matrix: Any, values: Any) -> Source:
    _no_values_beside(values)
    if matrix.ndim != 2 or matrix.dtype.kind == "c":
        bad_type("graph", matrix, "a two-dimensional scipy.sparse matrix of real numbers")
    csr = matrix.tocsr()
    parts = [_raw("graph", part) for part in (csr.indptr, csr.indices, csr.data)]
    return Source(parts, ("scipy", csr.shape), lambda: SparseGraph.from_scipy(csr))
