"""Edges and folders for the tests of graphs larger than memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from gnnsparse import SparseGraph
from gnnsparse.data.large.build import NpyWriter
from gnnsparse.data.large.folder import FILES, Header, write_header

#: The least memory that a graph can be built in: 227 edges are read and 5,461 sorted at a time.
LEAST = 65_536


def random_edges(nodes: int, count: int, seed: int = 0, hub: float = 0.0) -> np.ndarray:
    """Edges with repeats and loops, int64 [2, count]; of a share of them the target is the last node."""
    draw = np.random.default_rng(seed)
    edges = draw.integers(0, max(nodes, 1), (2, count if nodes else 0))
    edges[1, : int(hub * count)] = nodes - 1
    return edges


def expected(edges: np.ndarray, nodes: int, *, symmetric: bool = False) -> SparseGraph:
    """The graph that is made in memory."""
    both = np.concatenate([edges, edges[::-1]], axis=1) if symmetric else edges
    return SparseGraph.from_edge_index(torch.from_numpy(both.astype(np.int64)), nodes)


def assert_same(found: SparseGraph, wanted: SparseGraph) -> None:
    assert found.values is None
    assert found.nnz_index_of_edge is None
    assert found.csr.cols == wanted.csr.cols
    for name in ("indptr", "indices"):
        ours, theirs = getattr(found.csr, name), getattr(wanted.csr, name)
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


def write_folder(folder: Path, indptr: list[int], indices: list[int], *, symmetric: bool = False) -> Path:
    """Writes a folder with right checksums, whatever the arrays hold."""
    folder.mkdir()
    files = {}
    for name, dtype, values in zip(FILES, (np.int64, np.int32), (indptr, indices), strict=True):
        writer = NpyWriter(folder / name, dtype)
        writer.append(np.array(values, dtype))
        files[name] = writer.finish()
        writer.close()
    count, date = len(indices), "2026-11-25T00:00:00"
    write_header(folder, Header(len(indptr) - 1, count, count, symmetric, "", date, files))
    return folder
