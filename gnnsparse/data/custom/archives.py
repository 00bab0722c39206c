"""Graphs in npz archives: edges in one of several forms, features, labels and masks as named arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gnnsparse.data.custom.content import PARTS, Content, column_of_ids
from gnnsparse.data.files import csr_of_archive
from gnnsparse.data.npz import Arrays, open_npz
from gnnsparse.errors import bad_value, check_memory
from gnnsparse.sparse.graph import SparseGraph

__all__ = ["read_archive"]

#: The names that arrays may have; the first is that of the documentation.
_FEATURES = ("x", "features", "node_features", "feat")
_LABELS = ("y", "labels", "node_labels", "label")
_MASKS = {"train": ("train_mask", "train_masks"), "val": ("val_mask", "val_masks", "valid_mask"),
          "test": ("test_mask", "test_masks")}  # fmt: skip
_INDICES = {"train": ("train_idx",), "val": ("val_idx", "valid_idx"), "test": ("test_idx",)}
_EDGES = (
    "edge_index [2, edges]; edges [edges, 2]; indptr and indices; row and col; or adj_indptr, adj_indices "
    "and adj_shape"
)


def read_archive(path: Path) -> Content:
    """Reads a graph of an npz archive.

    Args:
        path: the archive. The edges are edge_index [2, edges], sources over targets; or edges [edges, 2]; or
            the matrix A[target, source] as indptr and indices, as row and col, or as gnn-benchmark has it.
            Other arrays: x [N, F] (or gnn-benchmark's attr_indptr and so on), y, edge_weight or data,
            train_mask, val_mask and test_mask (bool [N] or [N, splits]) or train_idx, val_idx and test_idx,
            num_nodes, and ids, texts [N].

    Raises:
        ValueError: the file is damaged, or an array is missing, of another type or shape, or out of range.
        MemoryError: what it holds does not fit into memory.
        OSError: it can't be opened.
    """
    with open_npz(path) as arrays:
        edges, weights, nodes = _edges(arrays)
        x = _features(arrays)
        y = _first(arrays, _LABELS, "biufSU", 2)
        if "num_nodes" in arrays.names:
            nodes = arrays.scalar("num_nodes")
        elif nodes is None:
            rows = [len(array) for array in (x, y) if array is not None]
            nodes = rows[0] if rows else int(edges.max(initial=-1)) + 1
        if not 0 <= nodes < 2**31:
            bad_value("num_nodes", f"is {nodes}; accepted: 0 to 2^31 - 1")
        known = {
            "num_nodes",
            "edge_index",
            "edges",
            "edge_weight",
            "indptr",
            "indices",
            "row",
            "col",
            "data",
            "ids",
        }
        for names in (_FEATURES, _LABELS, *_MASKS.values(), *_INDICES.values()):
            known |= set(names)
        columns: dict[str, np.ndarray] = {}
        for name in sorted(arrays.names - known):
            if not name.startswith(("adj_", "attr_")):
                columns |= _column(arrays, name, nodes)
        named = y is not None and y.dtype.kind in "SU"
        return Content(
            nodes,
            edges,
            weights,
            x,
            _as_text(y),
            _masks(arrays, nodes),
            columns,
            _ids(arrays, nodes),
            named=named,
        )


def _edges(arrays: Arrays) -> tuple[np.ndarray, np.ndarray | None, int | None]:
    """Returns edges, weights, and the number of nodes if the form of the edges says it."""
    names = arrays.names
    if "edge_index" in names:
        edges = _signed(arrays.read("edge_index", "iu", (2, None)))
    elif "edges" in names:
        edges = np.ascontiguousarray(_signed(arrays.read("edges", "iu", (None, 2))).T)
    elif {"row", "col"} <= names:
        row = _signed(arrays.read("row", "iu", (None,)))
        edges = np.stack([_signed(arrays.read("col", "iu", row.shape)), row])
    elif {"adj_indptr", "adj_indices", "adj_shape"} <= names:
        return _of_matrix(csr_of_archive(arrays, "adj_"))
    elif {"indptr", "indices"} <= names:
        data = "edge_weight" if "edge_weight" in names else "data"
        values = arrays.read(data, "biuf", (None,)) if data in names else None
        return _of_matrix(
            SparseGraph.from_csr(
                _signed(arrays.read("indptr", "iu", (None,))),
                _signed(arrays.read("indices", "iu", (None,))),
                None if values is None else values.astype(np.float32),
            )
        )
    else:
        bad_value(
            "edge_index", f"is missing; the archive has {', '.join(sorted(names)[:12])}; accepted: {_EDGES}"
        )
    name = "edge_weight" if "edge_weight" in names else "data"
    weights = arrays.read(name, "biuf", (edges.shape[1],)) if name in names else None
    return edges, weights, None


def _signed(array: np.ndarray) -> np.ndarray:
    """Returns integers as int64; those that do not fit become negative, which no node is."""
    return array.astype(np.int64)


def _of_matrix(graph: SparseGraph) -> tuple[np.ndarray, np.ndarray | None, int]:
    if graph.num_rows != graph.num_cols:
        bad_value("adj_shape", f"is ({graph.num_rows}, {graph.num_cols}); accepted: a square one")
    edges = np.stack([graph.csr.indices.numpy().astype(np.int64), graph.csr.row_index().numpy()])
    return edges, None if graph.values is None else graph.values.numpy(), graph.num_rows


def _features(arrays: Arrays) -> np.ndarray | None:
    if {"attr_indptr", "attr_indices", "attr_shape"} <= arrays.names:
        matrix = csr_of_archive(arrays, "attr_")
        rows, cols = matrix.num_rows, matrix.num_cols
        check_memory("attr_shape", 4 * rows * cols, f"a dense matrix of {rows} nodes and {cols} features")
        return matrix.to_scipy().toarray()
    return _first(arrays, _FEATURES, "biuf", 2, least=2)


def _first(
    arrays: Arrays, names: tuple[str, ...], kinds: str, dimensions: int, least: int = 1
) -> np.ndarray | None:
    """Reads the first of some arrays that is there; None: none is."""
    for name in names:
        if name in arrays.names:
            shape = arrays.shape(name)
            if not least <= len(shape) <= dimensions:
                accepted = "two dimensions" if least == dimensions else "one or two dimensions"
                bad_value(name, f"has shape {str(shape)[:80]}; accepted: {accepted}")
            return arrays.read(name, kinds, (None,) * len(shape))
    return None


def _as_text(y: np.ndarray | None) -> np.ndarray | None:
    if y is None or y.dtype.kind != "S":
        return y
    return np.array([value.decode("utf-8") for value in y.ravel().tolist()], dtype=str).reshape(y.shape)


def _masks(arrays: Arrays, nodes: int) -> dict[str, np.ndarray]:
    """Reads the masks, or makes them of the numbers of their nodes."""
    masks = {}
    for part in PARTS:
        for name in _MASKS[part]:
            if name not in arrays.names:
                continue
            shape = arrays.shape(name)
            mask = arrays.read(name, "biu", (None,) * (2 if len(shape) == 2 else 1))
            if mask.dtype.kind != "b":
                if not np.isin(mask, (0, 1)).all():
                    bad_value(name, "holds other numbers than 0 and 1; accepted: a mask, or ids as train_idx")
                mask = mask != 0
            rows_last = mask.ndim == 2 and mask.shape[0] != nodes and mask.shape[1] == nodes
            masks[part] = mask.T if rows_last else mask
        for name in _INDICES[part]:
            if part not in masks and name in arrays.names:
                masks[part] = column_of_ids(name, _signed(arrays.read(name, "iu", (None,))), nodes)
    return masks


def _column(arrays: Arrays, name: str, nodes: int) -> dict[str, np.ndarray]:
    """Reads an array of a number or a text for each node; an empty dict if it is something else."""
    try:
        return {name: _as_text(arrays.read(name, "biufSU", (nodes,)))}  # type: ignore[dict-item]
    except ValueError:
        return {}


def _ids(arrays: Arrays, nodes: int) -> tuple[str, ...] | None:
    if "ids" not in arrays.names:
        return None
    found = tuple(str(value) for value in _as_text(arrays.read("ids", "iuSU", (nodes,))).tolist())  # type: ignore[union-attr]
    if len(set(found)) != nodes:
        bad_value("ids", "has an id twice; accepted: a different one for each node")
    return found
