"""The inputs of `prepare`: their checked arrays, which are hashed, and functions that make graphs of them.

Types, dtypes, shapes and values are checked before anything is looked up in the cache, so that what is
refused without a cache is refused with one. Indices are checked when a graph is made of them: one that is out
of range has never been stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gnnsparse.errors import bad_type, bad_value, check_device
from gnnsparse.sparse.graph import (
    SparseGraph,
    check_edge_index,
    index_tensor,
    node_count,
    scipy_parts,
    value_tensor,
)


def is_pyg_data(value: Any) -> bool:
    """Return whether a value is a torch_geometric.data.Data, or of a subclass."""
    names = [f"{kind.__module__}.{kind.__name__}" for kind in type(value).__mro__]
    return "torch_geometric.data.data.Data" in names


_ACCEPTED = (
    "an edge_index [2, edges], a pair (sources, targets) with num_nodes, a SparseGraph, a CSR pair "
    "(indptr, indices) or triple with values, a scipy.sparse matrix, a torch sparse tensor or PyG's Data; "
    "graphs with types go to gnnsparse.prepare or TypedNeighborSampler"
)


@dataclass(frozen=True, eq=False)
class Source:
    """An input of `prepare`: its arrays, what else the graph depends on, and what makes the graph of them."""

    arrays: list[torch.Tensor | None]
    parameters: tuple[object, ...]
    build: Callable[[], SparseGraph]


def _read_values(values: Any, count: int, device: torch.device) -> torch.Tensor | None:
    return None if values is None else value_tensor("values", values, count, device)


def read_source(data: Any, num_nodes: Any, num_cols: Any, values: Any) -> Source:
    """Recognise the form of an input, by the arguments of `gnnsparse.prepare`, and check its arrays."""
    if isinstance(data, np.ndarray) or (isinstance(data, torch.Tensor) and data.layout == torch.strided):
        if num_cols is not None:
            bad_value("num_cols", "does not go with an edge_index: use num_nodes=(sources, targets)")
        return _edge_index(data, num_nodes, values)
    if is_pyg_data(data):
        return _pyg(data, num_nodes, num_cols, values)
    if num_nodes is not None and isinstance(data, (tuple, list)) and len(data) == 2:
        if num_cols is not None:
            bad_value("num_cols", "does not go with num_nodes; accepted: num_nodes=(sources, targets)")
        return _edge_index(_edge_pair(*data), num_nodes, values)
    if num_nodes is not None:
        accepted = "an edge_index, or a pair (sources, targets)"
        bad_value("num_nodes", f"goes with {accepted} only; matrices and graphs have their own shape")
    if isinstance(data, (tuple, list)) and len(data) in (2, 3):
        if values is not None and len(data) == 3:
            bad_value("values", "are given twice: in the CSR triple and as values=")
        return _csr(data[0], data[1], data[2] if len(data) == 3 else values, num_cols)
    if num_cols is not None:
        bad_value("num_cols", "goes with a CSR pair only; other inputs have their own shape")
    if isinstance(data, SparseGraph):
        given = _read_values(values, data.num_edges, data.device)
        arrays = [data.csr.indptr, data.csr.indices, data.values, data.nnz_index_of_edge, given]
        return Source(arrays, ("graph", data.num_cols), lambda: _reweighted(data, given))
    if values is not None and (isinstance(data, torch.Tensor) or _is_scipy(data)):
        bad_value("values", "a sparse matrix brings its own values; accepted here: None, 'gcn', 'mean'")
    if isinstance(data, torch.Tensor):
        return _torch_sparse(data)
    if _is_scipy(data):
        form, parts = scipy_parts(data)
        return Source([*parts], ("scipy", form, data.shape), lambda: SparseGraph.from_scipy(data))
    bad_type("graph", data, _ACCEPTED)


def _is_scipy(data: Any) -> bool:
    return type(data).__module__.startswith("scipy.sparse")


def _edge_index(data: Any, num_nodes: Any, values: Any) -> Source:
    edges, counts = check_edge_index(data, num_nodes)
    given = _read_values(values, edges.shape[1], edges.device)
    build = lambda: SparseGraph.from_edge_index(edges, counts, given)  # noqa: E731
    return Source([edges, given], ("edge_index", counts), build)


def _edge_pair(source: Any, target: Any) -> torch.Tensor:
    """Return the ends of edges in DGL's form, two arrays, as an edge_index."""
    sources, targets = index_tensor("graph[0]", source), index_tensor("graph[1]", target)
    if sources.numel() != targets.numel():
        problem = f"have {sources.numel()} and {targets.numel()} elements with num_nodes"
        bad_value("graph", f"sources and targets {problem}; accepted: a source and a target for each edge, "
                  "or a CSR pair (indptr, indices) without num_nodes")  # fmt: skip
    if sources.device != targets.device:
        bad_value("graph[1]", f"is on {targets.device}; accepted: {sources.device}, as graph[0]")
    dtype = torch.promote_types(sources.dtype, targets.dtype)
    return torch.stack([sources.to(dtype), targets.to(dtype)])


def _pyg(data: Any, num_nodes: Any, num_cols: Any, values: Any) -> Source:
    """Read the edges of a PyG graph, with its edge_weight if no other values are given."""
    for name, given in (("num_nodes", num_nodes), ("num_cols", num_cols)):
        if given is not None:
            bad_value(name, "does not go with PyG's Data, which has its own number of nodes")
    if data.edge_index is None:
        adjacency = data.get("adj_t") if isinstance(data.get("adj_t"), torch.Tensor) else None
        if adjacency is None:
            bad_value(
                "graph", "is a Data without edge_index; accepted: one with edge_index, or with a sparse adj_t"
            )
        return read_source(adjacency, None, None, values)
    if values is None:
        weight = data.get("edge_weight")
        values = weight.reshape(-1) if isinstance(weight, torch.Tensor) and weight.dim() == 2 else weight
    return _edge_index(data.edge_index, data.num_nodes, values)


def _csr(indptr: Any, indices: Any, values: Any, num_cols: Any) -> Source:
    offsets, columns = index_tensor("indptr", indptr), index_tensor("indices", indices)
    given = _read_values(values, columns.numel(), columns.device)
    cols = None if num_cols is None else node_count("num_cols", num_cols)
    build = lambda: SparseGraph.from_csr(offsets, columns, given, cols)  # noqa: E731
    return Source([offsets, columns, given], ("csr", cols), build)


def _reweighted(graph: SparseGraph, values: torch.Tensor | None) -> SparseGraph:
    """Return the graph with other values, which are in the order of its input edges."""
    if values is None:
        return graph
    if graph.nnz_index_of_edge is None:
        return SparseGraph.from_csr(graph.csr.indptr, graph.csr.indices, values, graph.num_cols)
    nnz_index = graph.nnz_index_of_edge.long()
    edge_index = torch.stack([graph.csr.indices.long()[nnz_index], graph.csr.row_index()[nnz_index]])
    return SparseGraph.from_edge_index(edge_index, (graph.num_cols, graph.num_rows), values)


def _torch_sparse(matrix: torch.Tensor) -> Source:
    check_device("graph", matrix)
    names = {
        torch.sparse_coo: ("_indices", "_values"),
        torch.sparse_csr: ("crow_indices", "col_indices", "values"),
        torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    }
    parts: list[torch.Tensor | None] = [getattr(matrix, name)() for name in names.get(matrix.layout, ())]
    parameters = ("torch", str(matrix.layout), tuple(matrix.shape))
    return Source(parts, parameters, lambda: SparseGraph.from_torch_sparse(matrix))
