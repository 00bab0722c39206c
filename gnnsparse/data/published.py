"""The published data sets: the readers of their raw files, and their conversion to a NodeDataset.

The readers make what PyG's and OGB's own readers make, from checked bytes.

It stands alone because the catalog finds it by its names: nothing else imports it.
"""

from __future__ import annotations

import collections
import io
import os
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnnsparse.data.array_files import open_npz, parse_rows, read_lines, read_npy
from gnnsparse.data.catalog import register_dataset
from gnnsparse.data.custom.build import PARTS, Content, mask_of_ids
from gnnsparse.data.custom.readers import read_archive, read_ogb_folder
from gnnsparse.data.datasets import NodeDataset, check_finite, check_labels, normalize_rows
from gnnsparse.data.matrix_files import csr_of_archive, csr_of_arrays, dense
from gnnsparse.data.sources import SOURCES, DatasetUnavailableError, RawNodes, Source, read_source
from gnnsparse.data.splits import split_by_class
from gnnsparse.errors import bad_value, check_memory
from gnnsparse.formats.csr import check_range
from gnnsparse.runtime.safe_io import open_text, read_json, read_small, reading
from gnnsparse.sparse.graph import SparseGraph

#: Validation nodes of Planetoid's split, which follow the training nodes.
_PLANETOID_VAL = 500
#: Bytes of a JSON file, and of a pickle, of which the largest of Planetoid's has 6 MB.
_MAX_BYTES = 2**30


def _features(name: str, array: np.ndarray) -> torch.Tensor:
    check_memory(name, 4 * array.size, f"features of shape {array.shape}")
    with np.errstate(over="ignore"):  # too large ones become infinite
        return check_finite(name, torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)))


def _edges(source: np.ndarray, target: np.ndarray, nodes: int) -> torch.Tensor:
    """Make edges of sources and targets, int32 [2, edges], after a check that they are nodes."""
    ends = [torch.from_numpy(end.astype(np.int64)) for end in (source, target)]
    for end in ends:
        check_range("edges", end, nodes, "the number of nodes")
    return torch.stack(ends).to(torch.int32)


def _classes(labels: np.ndarray) -> torch.Tensor:
    wrong = ~((labels >= 0) & (labels < len(labels)) & (labels == np.trunc(labels)))
    if wrong.any():
        at, accepted = int(wrong.argmax()), f"0 to {len(labels) - 1}, below the nodes"
        bad_value("labels", f"element {at} is {labels[at]}; accepted: {accepted}")
    return torch.from_numpy(labels.astype(np.int64))


def _masks(nodes: int, parts: list[np.ndarray]) -> torch.Tensor:
    """Make masks [3, 1, nodes] of the node ids of each part, after a check that they are nodes."""
    named = zip(PARTS, parts, strict=True)
    return torch.from_numpy(np.stack([mask_of_ids(name, ids, nodes) for name, ids in named])[:, None])


def _given_masks(masks: Mapping[str, np.ndarray]) -> torch.Tensor | None:
    """Stack the masks of a file, [N] or [N, splits] each, to [3, splits, N]; None: it has none."""
    if not masks:
        return None
    parts = [np.atleast_2d(masks.get(name, np.empty((0, 0))).T) for name in PARTS]
    for name, part in zip(PARTS, parts, strict=True):
        if part.shape != parts[0].shape:
            got = f"{len(part)} splits" if part.size else "no mask"
            bad_value(f"{name}_masks", f"has {got}; accepted: as many as train_masks")
    return torch.from_numpy(np.stack(parts))


def _without_loops(edges: torch.Tensor) -> torch.Tensor:
    return edges[:, edges[0] != edges[1]]


def _raw_nodes(path: Path, content: Content) -> RawNodes:
    """Check what a reader of users' own files has read, which may be less than a published data set has."""
    with reading(path):
        if content.x is None or content.y is None or content.y.dtype.kind not in "biuf":
            bad_value("features, labels", "are missing, or of another type; accepted: real numbers")
        y = content.y.reshape(-1) if content.y.shape[1:] == (1,) else content.y
        if y.ndim != 1:
            bad_value("labels", f"have shape {y.shape}; accepted: a class for each node")
        return RawNodes(
            _edges(content.edges[0], content.edges[1], content.nodes),
            _features("features", content.x),
            _classes(y),
            _given_masks(content.masks),
        )


def read_heterophilous(folder: Path, files: tuple[str, ...]) -> RawNodes:
    """Read an npz file of Platonov et al. (2023): features, labels, edges in one direction, splits."""
    return _raw_nodes(folder / files[0], read_archive(folder / files[0]))


def read_benchmark(folder: Path, files: tuple[str, ...]) -> RawNodes:
    """Read an npz file of Shchur et al. (2018); as in PyG, features are 0 or 1, self-loops left out."""
    raw = _raw_nodes(folder / files[0], read_archive(folder / files[0]))
    raw.x[raw.x > 0] = 1
    return replace(raw, edges=_without_loops(raw.edges))


def read_ogb(folder: Path, files: tuple[str, ...]) -> RawNodes:
    """Read the compressed tables of OGB: numbers of nodes and edges, edges, features, classes, splits."""
    return _raw_nodes(folder, read_ogb_folder(folder))


def read_reddit(folder: Path, files: tuple[str, ...]) -> RawNodes:
    """Read the two npz files of Reddit: one of features, labels and parts, one of the edges."""
    with open_npz(folder / files[0]) as arrays:
        x = _features("feature", arrays.read("feature", "iuf", (None, None)))
        nodes = x.shape[0]
        y = _classes(arrays.read("label", "iu", (nodes,)))
        part = arrays.read("node_types", "iu", (nodes,))
        masks = _masks(nodes, [(part == number).nonzero()[0] for number in (1, 2, 3)])
    with open_npz(folder / files[1]) as arrays:
        row = arrays.read("row", "iu", (None,))
        return RawNodes(_edges(row, arrays.read("col", "iu", row.shape), nodes), x, y, masks)


def read_saint(folder: Path, files: tuple[str, ...]) -> RawNodes:
    """Read the files of GraphSAINT (Flickr, Yelp): CSR adjacency, features, classes, and roles of nodes."""
    adjacency, feats, class_map, role = files
    x = _features(feats, read_npy(folder / feats, "iuf", (None, None)))
    nodes = x.shape[0]
    with open_npz(folder / adjacency) as arrays:
        csr = csr_of_archive(arrays, "").csr
        edges = _edges(csr.row_index().numpy(), csr.indices.numpy(), nodes)
    labels = _json(folder / class_map)
    with reading(folder / class_map):
        y = _labels_of_map(labels, nodes)
    roles = _json(folder / role)
    with reading(folder / role):
        masks = _masks(nodes, [_ids(roles.get(name[:2]), name[:2]) for name in PARTS])
    return RawNodes(edges, x, y, masks)


def _json(path: Path) -> dict[str, Any]:
    found = read_json(path, _MAX_BYTES)
    if not isinstance(found, dict):
        raise ValueError(f"{path}: holds {type(found).__name__}; accepted: an object")
    return found


def _labels_of_map(labels: dict[str, Any], nodes: int) -> torch.Tensor:
    """Make labels of an object whose entries are the class, or the list of 0 and 1, of each node."""
    accepted = f"the nodes 0 to {nodes - 1}, each with an integer, or each with as many integers"
    if len(labels) != nodes or not all(str(node) in labels for node in range(nodes)):
        bad_value("nodes", f"are {len(labels)} others; accepted: {accepted}")
    ordered = [labels[str(node)] for node in range(nodes)]
    if all(isinstance(label, list) for label in ordered):
        width = len(ordered[0]) if ordered else 0
        flat = [number for label in ordered for number in label]
        if any(len(label) != width for label in ordered):
            bad_value("labels", f"are lists of different lengths; accepted: {accepted}")
        table = torch.from_numpy(_ids(flat, "labels").reshape(nodes, width).astype(np.float32))
        check_labels("labels", table, nodes, width)
        return table
    return _classes(_ids(ordered, "labels"))


def _ids(numbers: Any, name: str) -> np.ndarray:
    if not isinstance(numbers, list) or not all(type(n) is int and abs(n) < 2**62 for n in numbers):
        bad_value(name, "is missing, or something else; accepted: a list of integers")
    return np.array(numbers, dtype=np.int64)


class _Matrix:
    """A scipy.sparse.csr_matrix of a pickle: its attributes are the arrays."""


def _number_type(code: str, *_: Any) -> np.dtype[Any]:
    if not isinstance(code, str) or not re.fullmatch("[biuf][1248]", code):
        raise ValueError(f"has elements of type {str(code)[:40]}; accepted: integers and real numbers")
    return np.dtype(code, copy=True)  # whose byte order follows


#: What the names in Planetoid's pickles stand for; Python 3 and later releases of the packages name some
#: otherwise. None of it runs code of a file.
_NAMES: dict[str, Any] = {
    "_codecs.encode": lambda text, encoding: text.encode("latin1"), "__builtin__.bytes": lambda: b"",
    "collections.defaultdict": collections.defaultdict, "__builtin__.list": list, "builtins.list": list,
    "numpy.ndarray": None, "numpy.dtype": _number_type,
    "scipy.sparse.csr.csr_matrix": _Matrix, "scipy.sparse._csr.csr_matrix": _Matrix,
    **dict.fromkeys(
        ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"),
        lambda *_: np.empty(0, np.int8),  # whose state follows in the pickle
    ),
}  # fmt: skip


class _Unpickler(pickle._Unpickler):
    """Python's own unpickler, whose memory does not grow with numbers in the file, for the names above."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _NAMES:
            raise ValueError(f"names {module}.{name}; accepted in a pickle: {', '.join(_NAMES)}")
        return _NAMES[f"{module}.{name}"]


def _unpickled(path: Path) -> Any:
    """Read a pickle of an array, a sparse matrix or a dictionary of lists, without running code of it."""
    content = read_small(path, _MAX_BYTES)
    with reading(path):
        try:
            return _Unpickler(io.BytesIO(content), encoding="latin1").load()
        except Exception as error:  # an unpickler raises errors of many types
            problem = f"is no pickle of arrays ({type(error).__name__}: {str(error)[:400]})"
            raise ValueError(problem) from error


def _pickled_array(name: str, found: Any) -> np.ndarray:
    """Return an array of numbers of a pickle, in the byte order of this machine; raise if it is none."""
    if not isinstance(found, np.ndarray):
        bad_value(name, "is no array; accepted: an array of numbers")
    if found.dtype.kind not in "biuf":
        bad_value(name, f"has elements of type {found.dtype}; accepted: integers and real numbers")
    return np.ascontiguousarray(found, found.dtype.newbyteorder("="))


def read_planetoid(folder: Path, files: tuple[str, ...]) -> RawNodes:
    """Read the pickles of Planetoid (Yang et al. 2016), of which no code runs: PyG would run it.

    `allx` and `ally` are the features and one-hot classes of the first nodes, `tx` and `ty` those of the test
    nodes, which `test.index` numbers. Nodes that nothing describes have no features and class 0. The training
    nodes are the first ones, as many as `y` has, and the 500 next ones are for validation.
    """
    part = {file.split(".", 2)[2]: folder / file for file in files}
    allx, tx = (_planetoid_features(part[name], name) for name in ("allx", "tx"))
    y, ally, ty = (_planetoid_labels(part[name], name) for name in ("y", "ally", "ty"))
    with reading(part["test.index"]):
        rows, first = tx.shape[0], allx.shape[0]
        with open_text(part["test.index"]) as (file, _):
            test = parse_rows("test.index", read_lines(file, rows), np.int64, rows).reshape(-1)
        if (different := np.unique(test).size) != rows:
            bad_value("test.index", f"holds {different} different nodes; accepted: {rows}, as tx has rows")
        if test.size and test.min() != first:
            accepted = f"{first}, the first that allx lacks"
            bad_value("test.index", f"begins with node {test.min()}; accepted: {accepted}")
        nodes = int(test.max()) + 1 if test.size else first
    with reading(folder):
        width = allx.shape[1]
        if tx.shape[1] != width or len(ally) != first or len(ty) != len(test) or len(y) > first:
            problem = "have other sizes than allx and test.index"
            bad_value("tx, ty, y, ally", f"{problem}; accepted: as many nodes")
        check_memory("test.index", 4 * nodes * width, f"features of {nodes} nodes and {width} columns")
        x = torch.zeros(nodes, width)
        x[:first], x[torch.from_numpy(test)] = torch.from_numpy(allx), torch.from_numpy(tx)
        labels = np.zeros(nodes, np.int64)
        labels[:first], labels[test] = ally, ty
    lists = _unpickled(part["graph"])
    with reading(part["graph"]):
        accepted = "a dictionary of lists of integers"
        if not isinstance(lists, dict) or not all(type(part) is list for part in lists.values()):
            bad_value("graph", f"is something else; accepted: {accepted}")
        ends = [(node, other) for node, others in lists.items() for other in others]
        if not all(type(number) is int and -(2**62) < number < 2**62 for pair in ends for number in pair):
            bad_value("graph", f"holds something else than integers; accepted: {accepted}")
        pairs = np.array(ends, np.int64).reshape(-1, 2)
        edges = _without_loops(_edges(pairs[:, 0], pairs[:, 1], nodes))
    train = np.arange(len(y))
    val = np.arange(len(y), min(len(y) + _PLANETOID_VAL, first))
    masks = _masks(nodes, [train, val, test])
    return RawNodes(edges, x, _classes(labels), masks)


def _planetoid_features(path: Path, name: str) -> np.ndarray:
    found = _unpickled(path)
    with reading(path):
        shape: Any = getattr(found, "_shape", None)
        has_shape = isinstance(shape, tuple) and [*map(type, shape)] == [int, int]
        if not isinstance(found, _Matrix) or not has_shape:
            bad_value(name, "is no sparse matrix; accepted: a scipy.sparse.csr_matrix")
        indptr, indices, data = (
            _pickled_array(f"{name}.{part}", getattr(found, part, None))
            for part in ("indptr", "indices", "data")
        )
        if indptr.dtype.kind != "i" or indices.dtype.kind != "i":
            bad_value(name, f"has arrays of {indptr.dtype} and {indices.dtype}; accepted: integers")
        return dense("features", csr_of_arrays(indptr, indices, data, shape))


def _planetoid_labels(path: Path, name: str) -> np.ndarray:
    """Read one-hot classes, and return the class of each row; rows of zeros have class 0."""
    found = _unpickled(path)
    with reading(path):
        table = _pickled_array(name, found)
        if table.ndim != 2 or table.shape[1] == 0 or not ((table == 0) | (table == 1)).all():
            bad_value(name, f"has shape {table.shape}; accepted: a row of zeros and a one for each node")
        return table.argmax(axis=1)


#: Nodes of each class in the usual split of data sets that have no published one.
_TRAIN_PER_CLASS, _VAL_PER_CLASS = 20, 30


def load_published(
    name: str,
    root: str | os.PathLike[str] | None = None,
    split: int = 0,
    normalize_features: bool | None = None,
    download: bool = True,
) -> NodeDataset:
    """Load a published data set; `load_dataset` documents the arguments and errors."""
    source = SOURCES[name]
    data = read_source(source, root, download)
    x = data.x
    if source.normalize if normalize_features is None else normalize_features:
        normalize_rows(x)
    several = data.y.dim() == 2
    if several != (source.metric == "micro_f1"):  # the files of flickr have the names of yelp's
        raise DatasetUnavailableError(f"root: the files in {root} are not those of {source.name}")
    edges = torch.cat([data.edges, data.edges.flip(0)], dim=1) if source.directed else data.edges
    graph = SparseGraph(SparseGraph.from_edge_index(edges, x.shape[0]).csr)  # repeats count once
    classes = data.y.shape[1] if several else int(data.y.max()) + 1
    if data.masks is None:
        train, val, test = split_by_class(data.y, split, _TRAIN_PER_CLASS, _VAL_PER_CLASS)
    elif split >= (count := data.masks.shape[1]):
        raise DatasetUnavailableError(f"split: got {split}; accepted: below {count}, as the files have")
    else:
        train, val, test = data.masks[:, split].clone()
    return NodeDataset(name, graph, x, data.y, train, val, test, classes, source.metric)


_PLANETOID = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
_SAINT = ("adj_full.npz", "feats.npy", "class_map.json", "role.json")
_DRIVE = "https://drive.usercontent.google.com"
_OGB = ("raw/edge", "raw/node-feat", "raw/node-label", "raw/num-node-list", "raw/num-edge-list")


def _add(
    name: str, downloader: str, title: str, read: Callable[[Path, tuple[str, ...]], RawNodes], *files: str,
    site: str = "https://github.com", **more: Any,
) -> None:  # fmt: skip
    """Register a data set, whose class in PyG has a title as its argument, or "": none."""
    more = {"place": f"{title}/raw" if title else "raw", "args": (title,) if title else (), **more}
    SOURCES[name] = Source(name, downloader, read=read, files=files, site=site, **more)
    register_dataset(name, task="node", splits=SOURCES[name].splits)(partial(load_published, name))


for _name, _title in (("cora", "Cora"), ("citeseer", "CiteSeer"), ("pubmed", "PubMed")):
    _files = (f"ind.{_name}.{part}" for part in _PLANETOID)
    _add(_name, "Planetoid", _title, read_planetoid, *_files, normalize=True)
for _name in ("minesweeper", "tolokers"):
    _more: dict[str, Any] = {"splits": 10, "metric": "roc_auc", "directed": True}
    _add(_name, "HeterophilousGraphDataset", _name, read_heterophilous, f"{_name}.npz", **_more)
for _name, _class, _title, _file in (
    ("amazon_photo", "Amazon", "Photo", "amazon_electronics_photo.npz"),
    ("amazon_computers", "Amazon", "Computers", "amazon_electronics_computers.npz"),
    ("coauthor_cs", "Coauthor", "CS", "ms_academic_cs.npz"),
    ("coauthor_physics", "Coauthor", "Physics", "ms_academic_phy.npz"),
):
    _add(_name, _class, _title, read_benchmark, _file, splits=None, directed=True)
_add("reddit", "Reddit", "", read_reddit, "reddit_data.npz", "reddit_graph.npz", site="https://data.dgl.ai")
_add("flickr", "Flickr", "", read_saint, *_SAINT, site=_DRIVE)
_add("yelp", "Yelp", "", read_saint, *_SAINT, site=_DRIVE, metric="micro_f1")
for _name, _split, _tables in (
    ("ogbn_arxiv", "time", (*_OGB, "raw/node_year")),
    ("ogbn_products", "sales_ranking", _OGB),
):
    _tables = (*_tables, *(f"split/{_split}/{part}" for part in ("train", "valid", "test")))
    _more = {"place": _name, "site": "http://snap.stanford.edu", "directed": True}
    _add(_name, "ogb", _name.replace("_", "-"), read_ogb, *(f"{file}.csv.gz" for file in _tables), **_more)
