"""Graph classification data sets of TU Dortmund (Morris et al. 2020): proteins, enzymes and dd."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnnsparse.data.array_files import open_npz
from gnnsparse.data.catalog import register_dataset
from gnnsparse.data.datasets import GraphDataset, check_seed
from gnnsparse.data.optional import import_optional
from gnnsparse.data.sources import DatasetUnavailableError, Source, raw_folder
from gnnsparse.errors import bad_value, check_choice, check_flag, check_integer, path_of
from gnnsparse.runtime.safe_io import open_regular, reading
from gnnsparse.sparse.graph import SparseGraph

#: The number of folds of the cross-validation.
_FOLDS = 10


@dataclass(frozen=True, eq=False)
class TextGraphs:
    """What files hold: the block-diagonal matrix of G graphs with N nodes; None: there are none.

    `graph_ptr` is int64 [G + 1], `y` has the numbers [G] or [G, columns] of the graphs, `node_labels` int64
    [N], `attributes` float32 [N, F] and `folds` the fold, int64 [G], in which each graph is tested.
    """

    graph: SparseGraph
    graph_ptr: torch.Tensor
    y: torch.Tensor
    node_labels: torch.Tensor | None
    attributes: torch.Tensor | None
    folds: torch.Tensor | None = None
    #: As the files list them, int64 [2, edges], sources over targets, with labels int64 [edges] and
    #: attributes float32 [edges, D]; None: edges have none of both.
    edges: torch.Tensor | None = None
    edge_labels: torch.Tensor | None = None
    edge_attributes: torch.Tensor | None = None


def load_tu(
    title: str,
    root: str | os.PathLike[str] | None = None,
    fold: int = 0,
    seed: int | None = None,
    validation: str = "holdout",
    node_attributes: bool = False,
    download: bool = True,
) -> GraphDataset:
    """Load a data set of graphs and a split of ten-fold cross-validation.

    The features of a node are its label, one-hot. A fold holds a tenth of the graphs, and of each class the
    same fraction as the data set.

    Args:
        title: the name that TU Dortmund gives it: "PROTEINS", "ENZYMES" or "DD".
        root: a folder with the text files of TU Dortmund (TITLE_A.txt and so on: in itself, in TITLE, in raw
            or in TITLE/raw), or with TITLE.npz, or the path of that file, which has the arrays `graph_ptr`,
            `indptr`, `indices`, `node_labels`, `graph_labels` and, for the folds, `test_fold`. Nothing is
            written to it. None: PyG downloads the text files the first time.
        fold: the fold to test on, 0 to 9.
        seed: seed of the folds; None: those of the file if it has folds, else seed 0.
        validation: by which graphs the best epoch is chosen. "holdout": by a tenth of the graphs that are not
            tested on, drawn with equal fractions of the classes, which are not trained on. "fold": by those
            that are tested on, as Xu et al. (2019) do, so that the score of a single fold is too good. They
            choose one epoch for all ten folds: `gnnsparse.train.statistics.cross_validated`.
        node_attributes: whether the attributes of the nodes in TITLE_node_attributes.txt, as they are, are
            features before the labels.
        download: whether missing files may be downloaded.

    Raises:
        TypeError, ValueError: an argument is of another type or range, or there are no node attributes.
        DatasetUnavailableError: the files are not there, can't be downloaded or read, or are malformed.
        ImportError: scikit-learn, which draws folds, or torch-geometric, which downloads, is not installed.
    """
    if not 0 <= check_integer("fold", fold, 0) < _FOLDS:
        bad_value("fold", f"got {fold}; accepted: 0 to {_FOLDS - 1}")
    if seed is not None:
        check_seed(seed)
    check_choice("validation", validation, ("holdout", "fold"))
    check_flag("node_attributes", node_attributes)
    check_flag("download", download)
    found = _read(title, root, download)
    y, folds = _ranks(found.y), found.folds
    assert found.node_labels is not None
    x = torch.nn.functional.one_hot(_ranks(found.node_labels)).float()
    if node_attributes:
        if found.attributes is None:
            bad_value("node_attributes", f"the files of {title} have none; accepted: false")
        x = torch.cat([found.attributes, x], dim=1)
    if seed is not None or folds is None:
        folds = stratified_folds(y, _FOLDS, seed or 0)
    test = folds == fold
    train, val = ~test, test
    if validation == "holdout":
        rest = train.nonzero().flatten()
        val = torch.zeros_like(test)
        val[rest[stratified_folds(y[rest], _FOLDS, seed or 0) == 0]] = True
        train = train & ~val
    try:
        of = found.graph, found.graph_ptr
        return GraphDataset(title.lower(), *of, x, y, train, val, test, int(y.max()) + 1)
    except ValueError as error:
        raise DatasetUnavailableError(f"root: the files of {title} can't be read ({error})") from error


def stratified_folds(y: torch.Tensor, folds: int, seed: int) -> torch.Tensor:
    """Return the fold of each item, int64 [n], by StratifiedKFold, shuffled; seeds count modulo 2^32."""
    selection = import_optional("sklearn.model_selection", "a data set of graphs without folds of its own")
    if y.numel() < folds:
        bad_value("fold", f"{y.numel()} graphs can't be divided into {folds} folds")
    split = selection.StratifiedKFold(folds, shuffle=True, random_state=seed % 2**32)
    of_item = torch.empty(y.numel(), dtype=torch.int64, device="cpu")
    for number, (_, chosen) in enumerate(split.split(np.zeros(y.numel()), y.numpy())):
        of_item[torch.from_numpy(chosen)] = number
    return of_item


def _read(title: str, root: str | os.PathLike[str] | None, download: bool) -> TextGraphs:
    base = None
    try:
        if root is not None:
            base = path_of("root", root, "a folder, or None to download").expanduser().absolute()
            for file in (base, base / f"{title}.npz", base / "tu" / f"{title}.npz"):
                if file.suffix == ".npz" and file.is_file():
                    return _read_npz(file)
            if (base / title / f"{title}_A.txt").is_file():
                base = base / title  # the archive, unpacked
        parts = ("A", "graph_indicator", "graph_labels", "node_labels")
        files, site = tuple(f"{title}_{part}.txt" for part in parts), "https://www.chrsmrrs.com"
        source = Source(title.lower(), "TUDataset", (title,), None, f"{title}/raw", files, site)
        return read_text(raw_folder(source, base, download), title)
    except (ValueError, OSError) as error:
        raise DatasetUnavailableError(f"root: the files of {title} can't be read ({error})") from error


def _read_npz(file: Path) -> TextGraphs:
    with open_npz(file) as arrays:
        ptr, offsets, columns, labels, y = (
            torch.from_numpy(arrays.read(name, "iu", (None,)).astype(np.int64))
            for name in ("graph_ptr", "indptr", "indices", "node_labels", "graph_labels")
        )
        folds = None
        if "test_fold" in arrays.names:
            folds = torch.from_numpy(arrays.read("test_fold", "iu", (y.numel(),)).astype(np.int64))
    with reading(file):
        graph = SparseGraph.from_csr(offsets, columns)
        if ptr.numel() != y.numel() + 1 or labels.numel() != graph.num_rows:
            raise ValueError("graph_ptr, graph_labels, node_labels: have sizes that do not fit")
        return TextGraphs(graph, ptr, y, labels, None, folds)


def read_text(folder: Path, title: str) -> TextGraphs:
    """Read the text files; nodes and graphs are counted from 1 in them."""
    pairs = _numbers(folder / f"{title}_A.txt", np.int64)
    graph_of = _numbers(folder / f"{title}_graph_indicator.txt", np.int64)[:, 0] - 1
    labels = attributes = edge_labels = edge_attributes = None
    if (file := folder / f"{title}_graph_labels.txt").is_file() or not (
        folder / f"{title}_graph_attributes.txt"
    ).is_file():
        y = _numbers(file, np.int64)[:, 0]
    else:
        y = _numbers(folder / f"{title}_graph_attributes.txt", np.float64)
    if (file := folder / f"{title}_node_labels.txt").is_file():
        labels = torch.from_numpy(_numbers(file, np.int64)[:, 0].copy())
    if (file := folder / f"{title}_node_attributes.txt").is_file():
        attributes = torch.from_numpy(_numbers(file, np.float32))
    if (file := folder / f"{title}_edge_labels.txt").is_file():
        edge_labels = torch.from_numpy(_numbers(file, np.int64)[:, 0].copy())
    if (file := folder / f"{title}_edge_attributes.txt").is_file():
        edge_attributes = torch.from_numpy(_numbers(file, np.float32))
    with reading(folder):
        nodes = graph_of.size
        if pairs.shape[1] != 2 or pairs.min(initial=1) < 1 or pairs.max(initial=0) > nodes:
            raise ValueError(f"{title}_A.txt: holds other than pairs of nodes from 1 to {nodes}")
        if (np.diff(graph_of) < 0).any() or sorted(set(graph_of.tolist())) != list(range(len(y))):
            raise ValueError(f"{title}_graph_indicator.txt: does not count from 1 to {len(y)}, node by node")
        if any(rows is not None and rows.shape[0] != nodes for rows in (labels, attributes)):
            files = f"{title}_node_labels.txt, _node_attributes.txt"
            raise ValueError(f"{files}: have other rows than {nodes} nodes")
        beside = (edge_labels, edge_attributes)
        if any(rows is not None and rows.shape[0] != len(pairs) for rows in beside):
            files = f"{title}_edge_labels.txt, _edge_attributes.txt"
            raise ValueError(f"{files}: have other rows than {len(pairs)} edges")
        edges = torch.from_numpy(pairs - 1).T.flip(0)
        csr = SparseGraph.from_edge_index(edges, nodes).csr
        ptr = torch.from_numpy(np.searchsorted(graph_of, np.arange(len(y) + 1)).astype(np.int64))
        targets = torch.from_numpy(y.copy())
        return TextGraphs(SparseGraph(csr), ptr, targets, labels, attributes, None, edges.long(), *beside)


def _numbers(file: Path, dtype: Any) -> np.ndarray:
    with open_regular(file) as lines, reading(file):
        table = np.loadtxt(lines, dtype=dtype, delimiter=",", ndmin=2)
        if table.size == 0 or (table.dtype.kind == "f" and not np.isfinite(table).all()):
            raise ValueError("is empty, or holds a number that is not finite; accepted: a row a line")
        return table


def _ranks(labels: torch.Tensor) -> torch.Tensor:
    """Return for each label how many different labels are smaller."""
    return torch.unique(labels, return_inverse=True)[1]


for _title in ("PROTEINS", "ENZYMES", "DD"):
    register_dataset(_title.lower(), task="graph")(partial(load_tu, _title))
