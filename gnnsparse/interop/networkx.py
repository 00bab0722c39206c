"""NetworkX's graphs as ours, and ours as NetworkX's."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from numbers import Real
from typing import Any

import numpy as np

from gnnsparse.errors import bad_type, bad_value, check_flag
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["from_networkx", "to_networkx"]


def from_networkx(
    graph: Any, weight: str | None = None, nodelist: Iterable[Hashable] | None = None
) -> SparseGraph:
    """Make a graph of one of NetworkX's. An edge from u to v is the element [v, u], as in an `edge_index`.

    Without repeats it is the transpose of `networkx.to_scipy_sparse_array(graph, nodelist, weight=weight)`.
    The edges of the result are in the order of `graph.edges`; those of an undirected graph are followed by
    all of them in the other direction, self-loops left out, which are there once.

    Args:
        graph: a Graph, DiGraph, MultiGraph or MultiDiGraph. Repeated edges of a multigraph are merged, and
            their values summed.
        weight: name of the edge attribute that holds the values, where an edge without it has 1, as in
            NetworkX; None: 1 for each edge.
        nodelist: all nodes, in the order in which they are numbered; None: the order of `graph.nodes`.

    Returns:
        The square matrix, on the CPU. Its values are None with `weight` None and without repeats.

    Raises:
        TypeError: `graph` is no NetworkX graph, `weight` no text, or an attribute no real number.
        ValueError: `nodelist` has a node twice, lacks one, or has one that is not in the graph; an attribute
            is not finite.
    """
    import networkx

    if not isinstance(graph, networkx.Graph):
        bad_type("graph", graph, "a networkx.Graph, DiGraph, MultiGraph or MultiDiGraph")
    if weight is not None and not isinstance(weight, str):
        bad_type("weight", weight, "the name of an edge attribute, or None")
    number = _numbers(graph, nodelist)
    edges = list(graph.edges(data=weight, default=1))
    ends = np.array([(number[u], number[v]) for u, v, _ in edges], dtype=np.int64).reshape(-1, 2).T
    values = None
    if weight is not None:
        for source, target, value in edges:
            if not isinstance(value, Real):
                of = f"{weight!r} of the edge from {source!r} to {target!r}"
                bad_type("weight", value, f"a real number as {of}")
        values = np.array([float(value) for _, _, value in edges], dtype=np.float64)
    if not graph.is_directed():
        others = ends[0] != ends[1]
        ends = np.concatenate([ends, ends[::-1, others]], axis=1)
        values = None if values is None else np.concatenate([values, values[others]])
    return SparseGraph.from_edge_index(ends, len(number), values)


def _numbers(graph: Any, nodelist: Any) -> dict[Any, int]:
    nodes = list(graph.nodes if nodelist is None else nodelist)
    number = {node: at for at, node in enumerate(nodes)}
    if len(number) != len(nodes):
        bad_value("nodelist", "has a node twice; accepted: each node of the graph once")
    if number.keys() != set(graph.nodes):
        missing, unknown = set(graph.nodes) - number.keys(), number.keys() - set(graph.nodes)
        what = f"lacks {next(iter(missing))!r}" if missing else f"has {next(iter(unknown))!r}"
        bad_value("nodelist", f"{what}; accepted: each node of the graph once, and no other")
    return number


def to_networkx(
    matrix: SparseGraph | SparseOperand, *, directed: bool = True, weight: str | None = "weight"
) -> Any:
    """Make a NetworkX graph. The element [v, u] is an edge from u to v, with its value as an attribute.

    Args:
        matrix: a square graph or operand, on any device.
        directed: whether the result is a DiGraph; False: a Graph, for a symmetric matrix.
        weight: name of the attribute; None: edges have none, and values are lost.

    Returns:
        A networkx.DiGraph or Graph of the nodes 0 to rows - 1, those without edges too. Edges are in the
        order of their targets, then of their sources.

    Raises:
        TypeError: an argument is of another type.
        ValueError: the matrix is not square; or `directed` is False and it is not symmetric.
    """
    import networkx

    if not isinstance(matrix, (SparseGraph, SparseOperand)):
        bad_type("matrix", matrix, "a SparseGraph or a SparseOperand")
    if weight is not None and not isinstance(weight, str):
        bad_type("weight", weight, "the name of an edge attribute, or None")
    found = matrix.to_scipy()
    if found.shape[0] != found.shape[1]:
        bad_value(
            "matrix", f"has shape {found.shape}; accepted: a square one, of edges among one set of nodes"
        )
    graph = networkx.DiGraph() if check_flag("directed", directed) else networkx.Graph()
    if not directed:
        turned, arrays = found.T.tocsr(), ("indptr", "indices", "data")
        if not all(np.array_equal(getattr(found, name), getattr(turned, name)) for name in arrays):
            bad_value("directed", "got False for a matrix that is not symmetric; accepted: True")
    graph.add_nodes_from(range(found.shape[0]))
    coo = found.tocoo()
    target, source = (ends.tolist() for ends in (coo.row, coo.col))
    if weight is None:
        graph.add_edges_from(zip(source, target, strict=True))
    else:
        graph.add_weighted_edges_from(zip(source, target, coo.data.tolist(), strict=True), weight=weight)
    return graph
