"""What a data set of a graph on disk is made of: its folder, with features and labels in .npy files."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch

from gnnsparse.data.array_files import map_npy, read_npy
from gnnsparse.data.custom.build import PARTS, Content, FileOptions, mask_of_ids
from gnnsparse.data.datasets import NodeDataset
from gnnsparse.data.large.folder import graph_ids, graph_info, open_graph
from gnnsparse.errors import bad_value, check_memory
from gnnsparse.formats.csr import Csr
from gnnsparse.sparse.graph import SparseGraph

#: Rows of features that are looked at at a time.
_ROWS = 1 << 16
#: Options that are of tables, and those of features that would be made in memory, with their usual values.
_NOT_HERE = {
    **dict.fromkeys(("edges", "nodes", "labels", "source", "target", "weight", "id", "label", "separator")),
    **dict.fromkeys(("feature_columns", "graph", "directed")),
    "features": "file", "normalize_features": False, "standardize": False,
}  # fmt: skip


def read_disk(path: Path, options: FileOptions) -> Content:
    """Read the files beside a graph that `build_graph` made: x.npy, y.npy, and masks or ids of the split.

    The graph and the features are memory-mapped.

    Raises:
        ValueError: a file is missing, damaged or of another shape, or an option does not go with it.
    """
    for name, usual in _NOT_HERE.items():
        if (got := getattr(options, name)) != usual:
            accepted = "null" if usual is None else f"{str(usual).lower()}, as x.npy has the features"
            bad_value(name, f"got {got!r}, and {path} is a graph on disk; accepted: {accepted}")
    nodes = graph_info(path).num_nodes
    x = _features(path, nodes)
    y, masks = None, {}
    if (file := path / "y.npy").exists():
        y = read_npy(file, "biuf", None)
    elif options.classes is None:
        _refuse_missing(file, f"labels: integers [{nodes}], classes or -1, or real numbers", True)
    for part in PARTS:
        if (file := path / f"{part}_mask.npy").exists():
            masks[part] = read_npy(file, "b", (nodes,))
        elif (file := path / f"{part}_idx.npy").exists():
            masks[part] = mask_of_ids(file.name, read_npy(file, "iu", (None,)).astype(np.int64), nodes)
    used = ["x.npy = features", *(["y.npy = labels"] if y is not None else [])]
    used += [f"{', '.join(masks)} = split"] if masks else []
    return Content(
        nodes, np.empty((2, 0), np.int64), y=y, masks=masks, ids=graph_ids(path), disk=(open_graph(path), x),
        uses=(f"{path.name}: {'; '.join(used)}",), reason="it is a graph on disk",
    )  # fmt: skip


def read_whole(dataset: NodeDataset) -> NodeDataset:
    """Read a graph on disk and its features into memory; raise MemoryError if they do not fit."""
    graph, csr = dataset.graph, dataset.graph.csr
    values = 0 if graph.values is None else graph.values.nbytes
    check_memory(
        "in_memory", csr.nbytes + values + 4 * dataset.x.numel(), f"{dataset.name} with its features"
    )
    own = Csr(csr.indptr.clone(), csr.indices.clone(), csr.cols)
    whole = SparseGraph(own, None if graph.values is None else graph.values.clone())
    if "is_symmetric" in vars(graph):
        vars(whole)["is_symmetric"] = graph.is_symmetric
    return replace(dataset, graph=whole, x=dataset.x.to(torch.float32, copy=True), on_disk=False)


def _features(path: Path, nodes: int) -> torch.Tensor:
    """Map the features, float32 or float16 [nodes, F], and look at all of them, some at a time."""
    if not (file := path / "x.npy").exists():
        _refuse_missing(file, f"features: float32 or float16 [{nodes}, features]", False)
    mapped = map_npy(file, (np.float32, np.float16), (nodes, None))
    for first in range(0, nodes, _ROWS):
        part = mapped[first : first + _ROWS]
        if not math.isfinite(float(part.sum(dtype=np.float64))):
            row, column = np.argwhere(~np.isfinite(part))[0].tolist()
            got = f"element [{first + row}, {column}] is {part[row, column]}"
            raise ValueError(f"{file}: {got}; accepted: finite numbers")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*not writable", UserWarning)  # nothing writes to it
        return torch.from_numpy(mapped)


def _refuse_missing(file: Path, what: str, labels: bool) -> NoReturn:
    found = ", ".join(sorted(item.name for item in file.parent.glob("*.npy")))
    more = ", or classes= where only predictions are made" if labels else ""
    bad_value(
        "path",
        f"{file.parent} is a graph on disk, and has no {file.name}, but {found}; accepted: {file.name} with "
        f"{what}{more}",
    )
