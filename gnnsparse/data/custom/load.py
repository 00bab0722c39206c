"""`load_custom` and `dataset_of_pyg`, which make a data set of a user's own file, folder or PyG graph."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnsparse.data.catalog import register_dataset
from gnnsparse.data.custom.build import BuildOptions, Content, build_dataset
from gnnsparse.data.custom.readers import (
    OGB_MARK,
    content_of_attributes,
    read_archive,
    read_dgl,
    read_graphml,
    read_matrix,
    read_ogb_folder,
    read_saved,
)
from gnnsparse.data.custom.table_files import ENDINGS
from gnnsparse.data.custom.tables import Columns, find_tables, read_tables
from gnnsparse.data.datasets import NodeDataset
from gnnsparse.errors import bad_type, bad_value, check_choice
from gnnsparse.preprocess.source import is_pyg_data

__all__ = ["CUSTOM_FORMATS", "dataset_of_pyg", "load_custom"]

_log = logging.getLogger("gnnsparse.data")


@dataclass(frozen=True)
class _Request:
    """What is to be read: the file or folder, and the options of the readers."""

    path: Path
    edges: str | None
    nodes: str | None
    labels: str | None
    columns: Columns


def _tables(request: _Request) -> Content:
    found = find_tables(request.path, request.edges, request.nodes)
    return read_tables(*found, request.columns)


def _saved(request: _Request) -> Content:
    path = request.path
    if path.is_dir():
        path = next(place for place in _processed(path) if place.is_file())
    return read_saved(path)


def _processed(folder: Path) -> list[Path]:
    """Return where a folder of PyG has its processed file."""
    return [folder / "processed" / "data.pt", folder / "data.pt"]


def _graphml(request: _Request) -> Content:
    columns = request.columns
    if columns.label is not None and not isinstance(columns.label, str):
        bad_type("label", columns.label, "the name of one attribute of a GraphML file")
    features = None if columns.features is None else list(columns.features)
    return read_graphml(request.path, columns.label, columns.weight, features)


#: The readers by the name of their format.
_READERS: dict[str, Callable[[_Request], Content]] = {
    "pyg": _saved,
    "npz": lambda request: read_archive(request.path),
    "tables": _tables,
    "mtx": lambda request: read_matrix(request.path, request.labels),
    "graphml": _graphml,
    "ogb": lambda request: read_ogb_folder(request.path),
    "dgl": lambda request: read_dgl(request.path),
}
#: The formats that `load_custom` reads; "auto": by the ending of the name or by what is in the folder.
CUSTOM_FORMATS = ("auto", *_READERS)
#: Endings of the names of files, and their formats.
_ENDINGS = {
    ".pt": "pyg", ".pth": "pyg", ".npz": "npz", **dict.fromkeys(ENDINGS, "tables"), ".mtx": "mtx",
    ".mtx.gz": "mtx", ".graphml": "graphml", ".bin": "dgl", ".dgl": "dgl",
}  # fmt: skip


def load_custom(
    path: str | os.PathLike[str] | None = None,
    *,
    format: str = "auto",
    edges: str | None = None,
    nodes: str | None = None,
    labels: str | None = None,
    source: str | None = None,
    target: str | None = None,
    weight: str | None = None,
    id: str | None = None,
    label: str | Sequence[str] | None = None,
    feature_columns: Sequence[str] | None = None,
    features: str = "file",
    label_kind: str = "auto",
    classes: int | Sequence[str] | None = None,
    metric: str | None = None,
    split: str = "auto",
    train_fraction: float = 0.6,
    val_fraction: float = 0.2,
    seed: int = 0,
    directed: bool | None = None,
    normalize_features: bool = False,
) -> NodeDataset:
    """Make a data set of nodes of your own file or folder.

    Nothing in a file can run code. Every array is checked before it is used, and every error says which file,
    array or column is wrong and what is accepted. A node whose label is missing (an empty cell of a table, -1
    or NaN in an array) is in no part of the split: it takes part in the products, and in no loss and no
    score. The logger "gnnsparse.data" says at the level INFO, in a line for each table, what its columns are
    used for.

    Args:
        path: a file or a folder: a PyG graph saved by torch.save (`.pt`); an `.npz` archive; a folder with a
            table of edges and a table of nodes (`.csv`, `.tsv`, `.csv.gz`, `.tsv.gz`, `.parquet`), or the
            table of edges; a Matrix Market file (`.mtx`) with a file of labels beside it; `.graphml`; a
            folder of OGB as it lies after its download; a file of dgl.save_graphs (`.bin`).
        format: one of CUSTOM_FORMATS.
        edges: name of the table of edges in the folder; None: edges with one of the endings.
        nodes: name of the table of nodes in the folder; None: nodes with one of the endings.
        labels: name of the file of labels beside an `.mtx` file, one in a line.
        source: column of the table of edges with the ids of sources; None: source, src or from, or the first
            of two columns.
        target: column with the ids of targets; None: target, dst or to, or the second of two columns.
        weight: column (attribute in GraphML) of the weights of edges; None: weight, weights, edge_weight or
            w, or the third of three columns without names.
        id: column of the ids in the table of nodes, any texts; None: id, node or node_id, or the only column
            that has each end of an edge once.
        label: column (attribute in GraphML) of the labels, or a list of columns of 0 and 1 of several labels;
            None: label or y.
        feature_columns: columns of the features; None: all others but row numbers, which must be numbers.
        features: "file": those of the file; or made of the graph: "degree" (32 columns, one for each power of
            two), "constant" (a column of ones), "identity" (a column for each node).
        label_kind: "auto", "class", "multilabel" or "regression"; "auto": whole numbers and texts are
            classes, and a table of 0 and 1 with several columns is multi-label.
        classes: the number of classes or labels, or their names in the order of their numbers; None: those of
            the file. Needed for a file without labels, of which predictions alone can be made.
        metric: "accuracy", "roc_auc" (two classes) or "micro_f1" (multi-label); None: the usual one.
        split: "given" (masks, a column `split`), "given:NUMBER" of several, where a mask of one column goes
            with each of them, "random", "stratified" (the same fractions of each class), "time:COLUMN" (the
            earliest nodes for training, the latest for the test), or "auto": given if the file has a split,
            else stratified for classes and random for others.
        train_fraction: fraction of the nodes with a label that are for training, where the split is made.
        val_fraction: fraction of them that are for validation; the others are for the test.
        seed: seed of the split.
        directed: whether an edge leads from its source to its target alone; False: both ways. None: False for
            tables and OGB's folders, and as stored for other formats.
        normalize_features: whether features are divided by the sum of the magnitudes in their row.

    Returns:
        The data set, on the CPU, with the names of nodes, features and classes if the file has such.
        Repeated edges are merged and their weights summed; self-loops stay.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range or does not fit the file; the file is damaged, or what it
            holds is no graph with labels that a model can be trained on; or a column could be several things.
        MemoryError: the graph does not fit into memory.
        ImportError: the package that reads the format is not installed (pandas, pyarrow, networkx, dgl).
        OSError: a file can't be opened.
    """
    options = BuildOptions(
        features, label_kind, classes, metric, split, train_fraction, val_fraction, seed, directed,
        normalize_features,
    )  # fmt: skip
    kind, rest = options.split_parts()
    time = rest if kind == "time" else None
    columns = Columns(source, target, weight, id, label, feature_columns, time, features == "file")
    for name, value in (("edges", edges), ("nodes", nodes), ("labels", labels)):
        if value is not None and not isinstance(value, str):
            bad_type(name, value, "the name of a file")
    place, read = _find(path, check_choice("format", format, CUSTOM_FORMATS))
    with _naming_file(place):
        content = read(_Request(place, edges, nodes, labels, columns))
        dataset = build_dataset(place.name, content, options)
    for line in content.uses:
        _log.info(line)
    return dataset


@contextlib.contextmanager
def _naming_file(path: Path) -> Iterator[None]:
    """Make errors inside a `with` block begin with the option that they are about, `path` if it is none."""
    try:
        yield
    except (ValueError, TypeError) as error:
        text = str(error)
        first = re.match(r"(\w+): ", text)
        if first and first[1] in inspect.signature(load_custom).parameters:
            raise
        raise type(error)(
            f"path: {text}" if text.startswith(str(path)) else f"path: {path}: {text}"
        ) from error


def _find(path: Any, format: str) -> tuple[Path, Callable[[_Request], Content]]:
    """Return the path and its reader; raise ValueError if there is no such file or no such format."""
    accepted = "the path of a file or a folder, as in graph.npz"
    if not isinstance(path, (str, os.PathLike)):
        bad_type("path", path, accepted)
    place = Path(os.fsdecode(path)).expanduser()
    try:
        is_folder, exists = place.is_dir(), place.exists()
    except (OSError, ValueError):  # a name that is too long, or has a null character
        is_folder = exists = False
    if not exists:
        bad_value("path", f"there is no file or folder {str(place)!r}; accepted: {accepted}")
    if format == "auto":
        format = _format_of_folder(place) if is_folder else _format_of_file(place)
    elif is_folder != (format == "ogb") and not (is_folder and format in ("tables", "pyg")):
        bad_value(
            "path", f"{str(place)!r} is a {'folder' if is_folder else 'file'}, which format={format} is not"
        )
    return place, _READERS[format]


def _format_of_file(path: Path) -> str:
    for ending, format in _ENDINGS.items():
        if path.name.lower().endswith(ending):
            return format
    bad_value("path", f"got {str(path)!r}; accepted: a folder, or a file {', '.join(_ENDINGS)} (or format=)")


def _format_of_folder(folder: Path) -> str:
    if (folder / OGB_MARK).is_file():
        return "ogb"
    if any((folder / f"edges{ending}").is_file() for ending in ENDINGS):
        return "tables"
    if any(place.is_file() for place in _processed(folder)):
        return "pyg"
    bad_value(
        "path",
        f"the folder {str(folder)!r} has neither edges.csv, .tsv or .parquet, nor {OGB_MARK}, nor "
        "processed/data.pt; accepted: such a folder, or edges=FILE with format=tables",
    )


register_dataset("custom", task="node")(load_custom)


def dataset_of_pyg(
    data: Any,
    *,
    features: str = "file",
    label_kind: str = "auto",
    classes: int | Sequence[str] | None = None,
    metric: str | None = None,
    split: str = "auto",
    train_fraction: float = 0.6,
    val_fraction: float = 0.2,
    seed: int = 0,
    directed: bool | None = None,
    normalize_features: bool = False,
) -> NodeDataset:
    """Make a data set of nodes of a torch_geometric.data.Data, as `load_custom` does of a saved one.

    Args:
        data: the graph, on any device: edge_index, x, y, and if there are such edge_weight, and train_mask,
            val_mask and test_mask, bool [N] or [N, splits].
        features: "file" (x), "degree", "constant" or "identity", see `load_custom`.
        label_kind: "auto", "class", "multilabel" or "regression".
        classes: the number of classes or labels, or their names; None: those of y.
        metric: the metric; None: the usual one.
        split: "auto", "given", "given:NUMBER", "random", "stratified" or "time:COLUMN".
        train_fraction: fraction of the training nodes, where the split is made.
        val_fraction: fraction of the validation nodes; the others are for the test.
        seed: seed of the split.
        directed: False adds the reverse of each edge; None or True: the edges are as they are.
        normalize_features: whether features are divided by the sum of the magnitudes in their row.

    Returns:
        The data set, on the CPU.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range, or an attribute of the graph is missing, of another shape, or
            holds what a model can't be trained on.
    """
    options = BuildOptions(
        features, label_kind, classes, metric, split, train_fraction, val_fraction, seed, directed,
        normalize_features,
    )  # fmt: skip
    if not is_pyg_data(data):
        bad_type("data", data, "a torch_geometric.data.Data with edge_index")
    return build_dataset("data", content_of_attributes(data.to_dict()), options)
