"""Graphs larger than memory: built by an external sort, kept in folders, opened without being read."""

from gnnsparse.data.large.build import build_graph
from gnnsparse.data.large.folder import DamagedGraphError, StoredGraph, graph_info, open_graph
from gnnsparse.data.large.generated import EdgeStream, edges_like, generate_graph
from gnnsparse.data.large.space import NoSpaceError

__all__ = [
    "DamagedGraphError", "EdgeStream", "NoSpaceError", "StoredGraph", "build_graph", "edges_like",
    "generate_graph", "graph_info", "open_graph",
]  # fmt: skip
