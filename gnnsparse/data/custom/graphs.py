"""Many graphs of a user's own: lists of PyG graphs, folders of TU Dortmund, and tables with ids of graphs.

All nodes are one Content, in the order of their graphs, and its `graphs` has what the graphs themselves have:
labels, split and names.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnnsparse.data.custom.build import PARTS, Content, FileOptions, TypedContent, text_of
from gnnsparse.data.custom.edges import (
    columns_of_attr,
    content_of_edges,
    is_of_edges,
    together,
    with_edge_attr,
)
from gnnsparse.data.custom.readers import array_of, content_of_attributes, is_typed, saved_graphs
from gnnsparse.data.custom.tables import ENDINGS, SPLIT_WORDS, Table, graph_column, read_table, read_tables
from gnnsparse.data.custom.typed import content_of_typed
from gnnsparse.data.tu import read_text
from gnnsparse.errors import bad_value

#: The attributes of a PyG graph that are of its nodes and edges, and those of which the rows are its nodes.
_OF_NODES, _NODE_ROWS = ("edge_index", "edge_weight", "x", "num_nodes"), ("x", "pos", "z")
#: The attributes that can be the names of graphs.
_NAMES = ("graph_id", "id", "name")
#: The file of a folder of TU Dortmund by which it is known.
TU_MARK = "*_graph_indicator.txt"


def read_saved(path: Path, options: FileOptions) -> Content | TypedContent:
    """Read one graph or many that torch.save has written, by the task that is chosen or by their number."""
    graphs = saved_graphs(path)
    if any(map(is_typed, graphs)):
        if len(graphs) > 1:
            bad_value("path", f"{path.name} holds {len(graphs)} graphs, with types; accepted: one HeteroData")
        return content_of_typed(graphs[0])
    many = len(graphs) > 1 if options.task == "auto" else options.task == "graph"
    if len(graphs) > 1 and not many:
        problem = f"got {options.task!r}, and {path.name} holds {len(graphs)} graphs"
        bad_value("task", f"{problem}; accepted: auto, graph")
    if not many and is_of_edges(graphs[0], options.task):
        return content_of_edges(graphs[0])
    content = content_of_graphs(graphs, "graph {}") if many else content_of_attributes(graphs[0])
    if many:
        count = f"{len(graphs)} graphs" if len(graphs) > 1 else "one graph"
        content = replace(content, reason=f"{path.name} holds {count}")
    return with_edge_attr(content, graphs, options.edge_transform)


def content_of_graphs(graphs: Sequence[Mapping[str, Any]], called: str) -> Content:
    """Make a content of the attributes of PyG graphs; errors call graph i `called.format(i)`."""
    parts = []
    for at, graph in enumerate(graphs):
        try:
            parts.append(_part(graph))
        except (ValueError, TypeError) as error:
            raise type(error)(f"{called.format(at)}: {error}") from error
    ptr = np.cumsum([0, *(part.nodes for part in parts)])
    edges = [part.edges + first for part, first in zip(parts, ptr, strict=False)]
    weights, x = ([getattr(part, name) for part in parts] for name in ("weights", "x"))
    return Content(
        int(ptr[-1]),
        np.concatenate(edges, axis=1),
        together("edge_weight", weights, called),
        together("x", x, called),
        graphs=_of_graphs(graphs, np.diff(ptr), called),
        graph_ptr=ptr,
    )


def _part(graph: Mapping[str, Any]) -> Content:
    """Make a content of the nodes of one graph, whose edges are checked to be between them."""
    own = {name: graph[name] for name in _OF_NODES if graph.get(name) is not None}
    if "num_nodes" not in own:
        rows = (graph[name] for name in _NODE_ROWS if isinstance(graph.get(name), torch.Tensor))
        if (first := next(rows, None)) is not None and first.dim():
            own["num_nodes"] = len(first)
    part = content_of_attributes(own)
    if part.nodes == 0:
        bad_value("num_nodes", "is 0; accepted: graphs of one node or more")
    if part.edges.size and (part.edges.min() < 0 or part.edges.max() >= part.nodes):
        wrong = part.edges.max() if part.edges.min() >= 0 else part.edges.min()
        bad_value("edge_index", f"has node {wrong}; accepted: 0 to {part.nodes - 1}, the nodes of the graph")
    return part


def _of_graphs(graphs: Sequence[Mapping[str, Any]], nodes: np.ndarray, called: str) -> Content:
    """Make a content of what the graphs have themselves: y, split and names."""
    masks = {}
    if any(graph.get("split") is not None for graph in graphs):
        texts = np.array([text_of(graph.get("split")) for graph in graphs], dtype=object)
        masks = _masks(texts, lambda at: f"{called.format(at)} has")
    ids = None
    for name in _NAMES:
        found = tuple(text_of(graph[name]) for graph in graphs if isinstance(graph.get(name), (str, int)))
        if len(set(found)) == len(graphs):
            ids = found
            break
    y = [graph.get("y") for graph in graphs]
    named = any(isinstance(value, str) for value in y)
    targets = np.array([text_of(value) for value in y], dtype=object) if named else _targets(y, nodes, called)
    return _items(len(graphs), y=targets, masks=masks, ids=ids, named=named)


def _items(count: int, **has: Any) -> Content:
    """Make the content of graphs, which have no edges between them."""
    return Content(count, np.empty((2, 0), np.int64), item="graph", **has)


def _targets(y: list[Any], nodes: np.ndarray, called: str) -> np.ndarray | None:
    """Return the labels of graphs, real [graphs] or [graphs, columns], NaN where one is missing."""
    if all(value is None for value in y):
        return None
    given = [None if value is None else array_of("y", value) for value in y]
    rows = np.array([-1 if array is None else len(array) if array.ndim else 1 for array in given])
    known = rows >= 0
    if rows.max() > 1 and (rows == nodes)[known].all():
        problem = "has a row for each node, and labels of the nodes of several graphs are no task here"
        accepted = "labels of the graphs, or one Data with all of them (PyG's Batch.from_data_list)"
        bad_value("y", f"{problem}; accepted: {accepted}")
    arrays = [None if array is None else array.reshape(-1) for array in given]
    sizes = [-1 if array is None else array.size for array in arrays]
    if len({size for size in sizes if size >= 0}) > 1:
        at = next(at for at, size in enumerate(sizes) if size not in (-1, max(sizes)))
        got = f"{called.format(at)} has {sizes[at]} numbers, and others have {max(sizes)}"
        bad_value("y", f"{got}; accepted: as many for each graph")
    width = max(sizes)
    if known.all():
        found = np.stack([array for array in arrays if array is not None])
    else:
        missing = np.full(width, np.nan)
        found = np.stack([missing if array is None else array.astype(np.float64) for array in arrays])
    return found[:, 0] if width == 1 else found


def _masks(texts: np.ndarray, who: Any) -> dict[str, np.ndarray]:
    """Make the masks of a split of the names of its parts; `who(i)` begins the error about the i-th."""
    small = [text.lower() for text in texts.tolist()]
    for at, text in enumerate(small):
        if text and text not in SPLIT_WORDS:
            bad_value("split", f"{who(at)} {text[:40]!r}; accepted: train, val, test, or nothing")
    of = np.array([SPLIT_WORDS.get(text, "") for text in small], dtype=object)
    return {part: of == part for part in PARTS}


def tu_title(folder: Path) -> tuple[Path, str] | None:
    """Return where a folder has the text files of TU Dortmund, and their title; None: it has none."""
    for place in (folder, folder / "raw"):
        for file in sorted(place.glob(TU_MARK))[:1]:
            return place, file.name.removesuffix(TU_MARK[1:])
    return None


def read_tu(path: Path, options: FileOptions) -> Content:
    """Read a folder of TU Dortmund; attributes of nodes and their labels, one-hot, are the features."""
    found = tu_title(path)
    if found is None:
        raise ValueError(f"{path} has no file {TU_MARK}; accepted: a folder with NAME_A.txt and the others")
    if options.task not in ("auto", "graph"):
        problem = f"got {options.task!r}, and {path.name} is a folder of many graphs"
        bad_value("task", f"{problem}; accepted: auto, graph")
    folder, title = found
    read = read_text(folder, title)
    csr, columns = read.graph.csr, []
    if read.attributes is not None:
        columns.append(read.attributes.numpy())
    if read.node_labels is not None:
        columns.append(np.equal.outer(read.node_labels.numpy(), np.unique(read.node_labels.numpy())))
    items = _items(len(read.y), y=read.y.numpy())
    if not read.y.is_floating_point():  # classes, of which one may be -1
        texts = read.y.numpy().astype(str).astype(object)
        names = tuple(map(str, np.unique(read.y.numpy()).tolist()))
        items = replace(items, y=texts, named=True, class_names=names)
    edges = np.stack([csr.indices.numpy().astype(np.int64), csr.row_index().numpy()])
    features: dict[str, np.ndarray] = {}
    if read.edge_labels is not None:
        features["label"] = read.edge_labels.numpy().astype(str).astype(object)
    if read.edge_attributes is not None:
        features |= columns_of_attr(read.edge_attributes.numpy())
    if features and read.edges is not None:
        edges = read.edges.numpy()
    beside = Content(edges.shape[1], edges, features=features, item="edge") if features else None
    return Content(
        read.graph.num_rows,
        edges,
        x=np.concatenate(columns, axis=1, dtype=np.float32) if columns else None,
        graphs=items,
        graph_ptr=read.graph_ptr.numpy(),
        of_edges=beside,
        reason=f"{path.name} has the files of TU Dortmund",
    )


def read_graph_tables(path: Path, options: FileOptions) -> Content:
    """Read tables as one graph or as many, by the task that is chosen or by what the tables have."""
    files = [] if not path.is_dir() else [path / f"graphs{ending}" for ending in ENDINGS]
    file = next((file for file in files if file.is_file()), None)
    if options.task in ("node", "edge", "link"):
        return read_tables(path, options)
    content = read_tables(path, options if file is None else replace(options, label=None, task="graph"))
    if content.learns_edges:
        return content
    column = graph_column(content.columns, options)
    if column is None:
        if options.task == "graph" or file is not None:
            accepted = "nodes.csv with a column graph_id, or graph=COLUMN"
            bad_value("graph", f"no column of the nodes has the ids of graphs; accepted: {accepted}")
        return content
    of_nodes = np.array([text_of(value) for value in content.columns[column].tolist()], dtype=object)
    if (empty := of_nodes == "").any():
        bad_value(
            "graph",
            f"column {column!r} is empty in row {int(empty.argmax()) + 1}; accepted: an id of a graph",
        )
    if file is not None:
        table = read_table(file, options.separator).with_names()
        ids, items = _graph_table(table, options)
        reason = f"there is a table {file.name}"
    else:
        ids = tuple(dict.fromkeys(of_nodes.tolist()))
        constant = _constant(content, of_nodes, ids, options)
        reason = f"the nodes have a column {column!r}"
        if constant is None:
            return content
        items = constant
    number = {name: at for at, name in enumerate(ids)}
    unknown = next((name for name in of_nodes.tolist() if name not in number), None)
    if unknown is not None:
        bad_value(
            "graph",
            f"a node is of graph {unknown[:80]!r}, which {file and file.name} lacks; accepted: its ids",
        )
    graph_of = np.array([number[name] for name in of_nodes.tolist()], dtype=np.int64)
    counts = np.bincount(graph_of, minlength=len(ids))
    if not counts.all():
        bad_value(
            "graph", f"graph {ids[int((counts == 0).argmax())][:80]!r} has no node; accepted: one or more"
        )
    return replace(
        _in_order(content, graph_of), graphs=items, graph_ptr=np.cumsum([0, *counts]), reason=reason,
        uses=(*content.uses, *items.uses),
    )  # fmt: skip


def _in_order(content: Content, graph_of: np.ndarray) -> Content:
    """Return a content with its nodes in the order of their graphs; no edge may join two graphs."""
    source, target = content.edges
    apart = graph_of[source] != graph_of[target]
    if apart.any():
        ends = [content.edges[end, int(apart.argmax())] for end in (0, 1)]
        named = [repr(content.ids[end][:80]) if content.ids else str(end) for end in ends]
        bad_value(
            "graph", f"an edge joins {named[0]} and {named[1]} of two graphs; accepted: edges within a graph"
        )
    order = np.argsort(graph_of, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    ids = None if content.ids is None else tuple(content.ids[at] for at in order)
    x = None if content.x is None else content.x[order]
    features = content.features and {name: column[order] for name, column in content.features.items()}
    own: dict[str, Any] = {"x": x, "features": features, "ids": ids}
    return replace(content, edges=place[content.edges], **own, columns={}, y=None, masks={})


def _constant(
    content: Content, of_nodes: np.ndarray, ids: tuple[str, ...], options: FileOptions
) -> Content | None:
    """Make the content of graphs of what all nodes of each have in common; None: labels are of nodes."""
    number = {name: at for at, name in enumerate(ids)}
    graph_of = np.array([number[name] for name in of_nodes.tolist()])
    first = np.unique(graph_of, return_index=True)[1]

    def differs(array: np.ndarray) -> np.ndarray:
        whole = array[first][graph_of]
        same = (array == whole) | ((array != array) & (whole != whole))
        return ~(same if array.ndim == 1 else same.all(axis=1))

    if content.y is not None and (wrong := differs(content.y)).any():
        if options.task == "auto":
            return None
        graph = ids[graph_of[int(wrong.argmax())]]
        accepted = "one label in all rows of a graph, or a table graphs.csv with the columns id and label"
        bad_value("label", f"the nodes of graph {graph[:80]!r} have several labels; accepted: {accepted}")
    for mask in content.masks.values():
        if (wrong := differs(mask)).any():
            graph = ids[graph_of[int(wrong.argmax())]]
            bad_value("split", f"the nodes of graph {graph[:80]!r} are in several parts; accepted: one")
    y = None if content.y is None else content.y[first]
    masks = {part: mask[first] for part, mask in content.masks.items()}
    return _items(
        len(ids), y=y, ids=ids, named=content.named, label_columns=content.label_columns, masks=masks
    )


def _graph_table(table: Table, options: FileOptions) -> tuple[tuple[str, ...], Content]:
    """Read the table of graphs: ids, labels and split."""
    own = [] if options.graph is None else [name for name in table.names if name == options.graph]
    usual = own or table.called(("graph_id", "graph")) or table.called(("id",))
    if len(usual) != 1:
        bad_value(
            "graph", f"{table.file} has {', '.join(table.names)[:200]}; accepted: a column graph_id or id"
        )
    ids = tuple(table.full_texts("graph", usual[0]).tolist())
    if len(set(ids)) != len(ids):
        twice = next(name for at, name in enumerate(ids) if name in ids[:at])
        bad_value("graph", f"{table.file}: {twice[:80]!r} has two rows; accepted: one for each graph")
    several = options.label is not None and not isinstance(options.label, str)
    given = options.label_columns
    if options.transform is not None and not set(given) & set(table.names):
        given = []  # a model predicts for graphs without labels too
    labels = [table.choose("label", name) for name in given] or table.called(("label", "y"))
    if not given and len(labels) > 1:
        bad_value("label", f"{table.file} has {' and '.join(labels)}; accepted: label=COLUMN")
    y = table.values(labels[0]) if labels and not several else None
    if several and labels:
        y = np.stack([table.numbers("label", name, missing=True) for name in labels], axis=1)
    split = table.called(("split",))[:1]
    masks = {} if not split else _masks(table.texts(split[0]), lambda at: f"{table.file}: row {at + 1} has")
    times = {name: table.values(name) for name in table.names if name == options.time}
    used = {*usual, *labels, *split, *times}
    if unused := [name for name in table.names if name not in used]:
        problem = f"label: {table.file}: columns that are not used: {', '.join(unused)[:300]}"
        warnings.warn(problem, UserWarning, stacklevel=2)
    line = f"{table.file}: {usual[0]} = ids" + (f"; {', '.join(labels)} = labels" if labels else "")
    return ids, _items(
        len(ids), y=y, ids=ids, named=bool(labels) and not several, masks=masks, columns=times,
        label_columns=tuple(labels) if several else None,
        uses=(line + (f"; {split[0]} = split" if split else ""),),
    )  # fmt: skip
