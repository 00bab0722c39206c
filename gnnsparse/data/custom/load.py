"""`load_custom` and `dataset_of_pyg`, which make a data set of a user's own file, folder or PyG graph."""

from __future__ import annotations

import inspect
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gnnsparse.data.catalog import register_dataset
from gnnsparse.data.custom.build import (
    CUSTOM_TASKS,
    BuildOptions,
    Content,
    FileOptions,
    TypedContent,
    build_dataset,
)
from gnnsparse.data.custom.disk import read_disk, read_whole
from gnnsparse.data.custom.edges import content_of_edges, with_edge_attr
from gnnsparse.data.custom.graphs import (
    TU_MARK,
    content_of_graphs,
    read_graph_tables,
    read_saved,
    read_tu,
    tu_title,
)
from gnnsparse.data.custom.links import build_links, read_pairs
from gnnsparse.data.custom.readers import (
    OGB_MARK,
    OGB_TYPED_MARK,
    SAVED,
    content_of_attributes,
    read_archive,
    read_dgl,
    read_graphml,
    read_matrix,
)
from gnnsparse.data.custom.tables import ENDINGS, read_typed_tables
from gnnsparse.data.custom.typed import build_typed, content_of_typed, read_ogb
from gnnsparse.data.datasets import EdgeDataset, GraphDataset, LinkDataset, NodeDataset
from gnnsparse.data.large.folder import HEADER
from gnnsparse.data.typed import TypedLinkDataset, TypedNodeDataset
from gnnsparse.errors import bad_type, bad_value, check_choice, check_flag, path_of
from gnnsparse.preprocess.source import is_pyg_data
from gnnsparse.sparse.typed import is_hetero_data

_log = logging.getLogger("gnnsparse.data")

#: What `load_custom` makes.
CustomDataset = NodeDataset | GraphDataset | EdgeDataset | LinkDataset | TypedNodeDataset | TypedLinkDataset

#: The readers by the name of their format.
_READERS: dict[str, Callable[[Path, FileOptions], Content | TypedContent]] = {
    "pyg": read_saved, "npz": read_archive, "tables": read_graph_tables, "typed": read_typed_tables,
    "mtx": read_matrix, "graphml": read_graphml, "ogb": read_ogb, "dgl": read_dgl, "tu": read_tu,
    "disk": read_disk,
}  # fmt: skip
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
    standardize: bool = False,
    separator: str | None = None,
    transform: Mapping[str, Any] | None = None,
    task: str = "auto",
    graph: str | None = None,
    edge_label: str | Sequence[str] | None = None,
    edge_features: Sequence[str] | None = None,
    edge_transform: Mapping[str, Any] | None = None,
    bipartite: bool | None = None,
    hits_at: int | None = None,
    pairs: str | os.PathLike[str] | None = None,
    in_memory: bool = False,
) -> CustomDataset:
    """Make a data set of nodes, of graphs, of edges or of links, of your own file or folder.

    Nothing in a file can run code. Every array is checked before it is used, and every error says which file,
    array or column is wrong and what is accepted. A node whose label is missing (an empty cell of a table, -1
    or NaN in an array) is in no part of the split: it takes part in the products, and in no loss and no
    score. The logger "gnnsparse.data" says at the level INFO, in a line for each table, what its columns are
    used for.

    Args:
        path: a file or a folder: a PyG graph saved by torch.save (`.pt`); an `.npz` archive; a folder with a
            table of edges and a table of nodes (`.csv`, `.tsv`, `.txt`, these with `.gz`, `.parquet`), or the
            table of edges; a folder of `build_graph` with x.npy and y.npy in it; a Matrix Market file
            (`.mtx`) with a file of labels beside it; `.graphml`; a folder of OGB as it lies after its
            download; a file of dgl.save_graphs (`.bin`). Of many graphs: a list of PyG graphs saved by
            torch.save; a folder of TU Dortmund (NAME_A.txt and so on); or tables whose nodes have a column of
            ids of graphs, with a table `graphs` of ids, labels and split beside them, or labels that are the
            same in all rows of a graph. Of a graph with types: a folder with edges/SOURCE__NAME__TARGET.csv
            of each relation and nodes/TYPE.csv of types (those without have no features); a HeteroData saved
            by torch.save; a folder of OGB with types, as ogbn_mag.
        format: one of CUSTOM_FORMATS.
        edges: name of the table of edges in the folder; None: edges with one of the endings. Of a graph with
            types the relation whose links are predicted, SOURCE__NAME__TARGET or NAME; None: the only one.
        nodes: name of the table of nodes in the folder; None: nodes with one of the endings. Of a graph with
            types the type whose nodes are learned; None: the only one with labels.
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
        feature_columns: columns of the features; None: all others but row numbers. Of a column of texts each
            text becomes a feature NAME=TEXT. Empty cells of numbers get the mean, and if training nodes have
            some, there is a feature `NAME is missing`.
        features: "file": those of the file; or made of the graph: "degree" (32 columns, one for each power of
            two), "constant" (a column of ones), "identity" (a column for each node).
        label_kind: "auto", "class", "multilabel" or "regression"; "auto": whole numbers and texts are
            classes, and a table of 0 and 1 with several columns is multi-label.
        classes: the number of classes or labels, or their names in the order of their numbers; None: those of
            the file. Needed for a file without labels, of which predictions alone can be made.
        metric: "accuracy", "macro_f1", "roc_auc" (two classes) or "micro_f1" (multi-label); None: the usual
            one.
        split: "given" (masks, a column `split`), "given:NUMBER" of several, where a mask of one column goes
            with each of them, "random", "stratified" (the same fractions of each class), "time:COLUMN" (the
            earliest nodes for training, the latest for the test), "all" (for predictions of links of a graph
            with types: each is in all parts), or "auto": given if the file has a split, else stratified for
            classes and random for others.
        train_fraction: fraction of the nodes with a label that are for training, where the split is made.
        val_fraction: fraction of them that are for validation; the others are for the test.
        seed: seed of the split.
        directed: whether an edge leads from its source to its target alone; False: both ways. None: False for
            tables and OGB's folders, and as stored for other formats.
        normalize_features: whether features are divided by the sum of the magnitudes in their row.
        standardize: whether columns of numbers have mean 0 and deviation 1 over the training nodes. A column
            with one number for all of them stays as it is.
        separator: of tables that are texts, "comma", "semicolon", "tab", "pipe" or "space", or the character;
            None: found by their content.
        transform: the `feature_transform` of the data set a model was trained on, by which columns of its
            names become its features. Labels may be missing.
        task: "node", "graph", "edge", "link", or "auto": graph if there are several graphs; edge if
            `edge_label` is given, or the table of edges has a column label (PyG's Data an attribute
            edge_label) and nodes have no labels; link if nothing has labels. A message says which it is.
            Options of labels and of the split are then those of graphs or edges. Of a graph with types
            "typed_node" or "typed_link".
        graph: column of the table of nodes with the ids of their graphs; None: graph_id or graph.
        edge_label: column of the table of edges with their labels, or a list of columns of several labels or
            numbers; None: label or y.
        edge_features: columns of the table of edges that are features of edges, made as those of nodes are;
            None: all others if edges are learned, else none. `gnnsparse.fit` gives them to models of PyG that
            take `edge_attr`, and train.py to gine, gatedgcn, pna and meshgraphnet. Those of PyG's graphs are
            edge_attr, with a column for each of up to 32 different integers (bond types), and those of a
            folder of TU Dortmund its labels (so) and attributes of edges.
        edge_transform: the `edge_transform` of the data set a model was trained on, as `transform`.
        bipartite: of links, whether sources and targets are nodes of two kinds, as users and items: the same
            text is then another node in each column, and only pairs of both kinds are scored. None: True if
            the columns have names as user and item, or no id is in both.
        hits_at: of links, K of hits@K; None: 20, or a tenth of the pairs without an edge if these are few.
        pairs: of links, a table of pairs to predict for, or a folder with such a table `edges`; None: the
            test edges and their negatives.
        in_memory: whether a folder of `build_graph` is read whole, so that training takes steps on all of it,
            as on other graphs; False: it stays on disk, and training takes samples.

    Returns:
        The data set, on the CPU: a GraphDataset if the task is "graph", an EdgeDataset if it is "edge", a
        LinkDataset if it is "link", else a NodeDataset, and a TypedNodeDataset or TypedLinkDataset of a graph
        with types, where relations have a reverse rev_NAME unless edges are directed; with the names of nodes
        or graphs, features and classes if the file has such. Repeated edges are merged in the graph and their
        weights summed; self-loops stay.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range or does not fit the file; the file is damaged, or what it
            holds is no graph with labels that a model can be trained on; or a column could be several things.
        MemoryError: the graph does not fit into memory.
        ImportError: the package that reads the format is not installed (pandas, pyarrow, networkx, dgl).
        OSError: a file can't be opened.
    """
    options = FileOptions(
        features, label_kind, classes, metric, split, train_fraction, val_fraction, seed, directed,
        normalize_features, standardize, transform, edge_transform, bipartite, hits_at, edges, nodes,
        labels, source, target, weight, id, label, feature_columns, separator, task, graph, edge_label,
        edge_features, None if pairs is None else os.fspath(pairs),
    )  # fmt: skip
    check_flag("in_memory", in_memory)
    place, format = _find(path, check_choice("format", format, CUSTOM_FORMATS))
    try:
        content = _READERS[format](place, options)
        dataset = _made(place.name, content, options)
        if in_memory and isinstance(dataset, NodeDataset) and dataset.on_disk:
            dataset = read_whole(dataset)
        if pairs is not None:
            if not isinstance(dataset, (LinkDataset, TypedLinkDataset)):
                bad_value("pairs", f"got {pairs!r}; accepted: null but for task=link")
            dataset = replace(dataset, pairs=read_pairs(Path(pairs).expanduser(), options, dataset))
    except (ValueError, TypeError) as error:
        text = str(error)
        first = re.match(r"(\w+): ", text)
        if first and first[1] in inspect.signature(load_custom).parameters:
            raise  # it begins with the option that it is about
        text = text if text.startswith(str(place)) else f"{place}: {text}"
        raise type(error)(f"path: {text}") from error
    for line in (*content.uses, *_task_lines(content, dataset, options)):
        _log.info(line)
    return dataset


def _made(name: str, content: Content | TypedContent, options: FileOptions) -> CustomDataset:
    """Make the data set of the task that is chosen or that the content says."""
    if isinstance(content, TypedContent):
        return build_typed(name, content, options)
    task = options.task
    if task == "graph" and content.graphs is None:
        bad_value("task", f"got 'graph', and {name} has one graph; accepted: auto, node")
    if task == "link" and content.disk is not None:
        bad_value("task", f"got 'link', and {name} is a graph on disk; accepted: auto, node")
    if task.startswith("typed"):
        accepted = "a folder with the folders nodes and edges, a HeteroData, or a folder of OGB with types"
        bad_value("task", f"got {task!r}, and {name} has no types; accepted: {accepted}")
    if task == "edge" and not content.learns_edges:
        accepted = "tables of one graph, or PyG's Data with edge_label"
        bad_value("task", f"got 'edge', and {name} has no labels of edges; accepted: {accepted}")
    if _learns_links(content, options):
        return build_links(name, content, options)
    return build_dataset(name, content, options)


def _learns_links(content: Content, options: FileOptions) -> bool:
    """Return whether the task is one of links: it is chosen, or there is one graph and nothing has labels."""
    if options.task != "auto":
        return options.task == "link"
    has = content.y is not None or content.graphs or content.learns_edges or content.disk
    return not (has or options.classes is not None or options.label is not None or content.masks)


def _task_lines(
    content: Content | TypedContent, dataset: CustomDataset, options: FileOptions
) -> Iterator[str]:
    """Say which task was taken, and why, and what stands in for features."""
    is_auto = options.task == "auto"
    why = "nothing has labels" if is_auto else f"task={options.task}"
    if isinstance(dataset, TypedNodeDataset):
        what = "numbers" if dataset.regression else "labels" if dataset.multi_label else "classes"
        yield f"task = typed_node, {what} of {dataset.target} ({dataset.num_classes})"
    elif isinstance(dataset, (LinkDataset, TypedLinkDataset)):
        parts = (dataset.train_edges, dataset.val_edges, dataset.test_edges)
        counts = "{} to train on, {} for validation, {} for the test".format(*map(len, parts))
        if isinstance(dataset, TypedLinkDataset):
            yield f"task = typed_link, {' '.join(dataset.relation)} ({counts}): {why}"
            return
        how = "bipartite, " if dataset.sides is not None else ""
        how += "directed" if dataset.directed else "undirected"
        yield f"task = link, {how} ({counts}): {why}"
    elif isinstance(content, Content):
        none = options.features == "file" and content.x is None and content.features is None
        if content.learns_edges and none:
            yield "nodes have no features: features = degree (identity learns each node by itself)"
        name = "edge" if content.learns_edges else "graph" if content.graphs else "node"
        what = "numbers" if dataset.regression else "labels" if dataset.multi_label else "classes"
        if is_auto:
            yield f"task = {name}, {what} of {name}s ({dataset.num_classes}): {content.reason}"


def _find(path: Any, format: str) -> tuple[Path, str]:
    """Return the path and its format; raise ValueError if there is no such file, or it has another format."""
    accepted = "the path of a file or a folder, as in graph.npz"
    place = path_of("path", path, accepted).expanduser()
    try:
        is_folder, exists = place.is_dir(), place.exists()
    except (OSError, ValueError):  # a name that is too long, or has a null character
        is_folder = exists = False
    if not exists:
        bad_value("path", f"there is no file or folder {str(place)!r}; accepted: {accepted}")
    if format != "auto":
        folders = ("ogb", "tu", "disk", "typed")
        if is_folder != (format in folders) and not (is_folder and format in ("tables", "pyg")):
            what = "folder" if is_folder else "file"
            bad_value("path", f"{str(place)!r} is a {what}, which format={format} is not")
        return place, format
    if not is_folder:
        of_file = (format for ending, format in _ENDINGS.items() if place.name.lower().endswith(ending))
        if (found := next(of_file, None)) is None:
            accepted = f"a folder, or a file {', '.join(_ENDINGS)} (or format=)"
            bad_value("path", f"got {str(place)!r}; accepted: {accepted}")
        return place, found
    if tu_title(place) is not None:
        return place, "tu"
    if (place / "edges").is_dir():
        return place, "typed"
    marks = {
        "disk": [HEADER],
        "ogb": [OGB_MARK, OGB_TYPED_MARK],
        "tables": [f"edges{ending}" for ending in ENDINGS],
        "pyg": list(SAVED),
    }
    for found, files in marks.items():
        if any((place / file).is_file() for file in files):
            return place, found
    bad_value(
        "path",
        f"the folder {str(place)!r} has neither edges.csv, .tsv or .parquet, nor {OGB_MARK}, nor {SAVED[0]}, "
        f"nor {TU_MARK}, nor {HEADER}, nor a folder edges; "
        "accepted: such a folder, or edges=FILE with format=tables",
    )


register_dataset("custom", task="node", also=CUSTOM_TASKS[1:])(load_custom)


def dataset_of_pyg(data: Any, *, edge_features: bool = False, **options: Any) -> NodeDataset:
    """Make a data set of nodes of a torch_geometric.data.Data, as `load_custom` does of a saved one.

    Args:
        data: the graph, on any device: edge_index, x, y, and if there are such edge_weight, and train_mask,
            val_mask and test_mask, bool [N] or [N, splits].
        edge_features: whether edge_attr are features of edges, see `load_custom`.
        options: those of `load_custom` that are of no file: features, label_kind, classes, metric, split,
            train_fraction, val_fraction, seed, directed, normalize_features, standardize, transform and
            edge_transform. With directed=None edges are as they are.

    Returns:
        The data set, on the CPU.

    Raises:
        TypeError: an argument is of another type, or there is no such option.
        ValueError: an argument is out of range, or an attribute of the graph is missing, of another shape, or
            holds what a model can't be trained on.
    """
    made = BuildOptions(**options).edge_transform

    def read(graph: dict[str, Any]) -> Content:
        content = content_of_attributes(graph)
        return with_edge_attr(content, [graph], made) if edge_features else content

    dataset: NodeDataset = _of_pyg(data, read, options)
    return dataset


def dataset_of_hetero(data: Any, *, target: str | None = None, **options: Any) -> TypedNodeDataset:
    """Make a data set of nodes of a torch_geometric.data.HeteroData, as `load_custom` does of a saved one.

    Args:
        data: the graph, on any device: edge_index of each relation; x of types of nodes, of which others get
            embeddings; and of one type y, and if there are such train_mask, val_mask and test_mask.
        target: the type whose nodes are learned; None: the one with y, of several the one with masks.
        options: those of `dataset_of_pyg`. Edges are as they are, unless directed=False.

    Returns:
        The data set, on the CPU.

    Raises:
        TypeError: an argument is of another type, or there is no such option.
        ValueError: no type or several have y, or as `dataset_of_pyg`.
    """
    if not is_hetero_data(data):
        bad_type("data", data, "a torch_geometric.data.HeteroData")
    content = content_of_typed(data.to_dict())
    if target is None:
        labelled = [kind for kind, own in content.nodes.items() if own.y is not None]
        found = [kind for kind in labelled if content.nodes[kind].masks] or labelled
        if len(found) != 1:
            have = f"{' and '.join(map(repr, found))} have" if found else "no type of nodes has"
            bad_value("data", f"{have} y; accepted: y and masks of one type, or target=, the type to learn")
        target = found[0]
    check_choice("target", target, list(content.nodes))
    given = FileOptions(nodes=target, task="typed_node", **{"directed": True, **options})
    dataset: Any = build_typed("data", content, given)
    made: TypedNodeDataset = dataset
    return made


def dataset_of_edges(data: Any, **options: Any) -> EdgeDataset:
    """Make a data set of edges of a torch_geometric.data.Data, as `load_custom` does of a saved one.

    Args:
        data: the graph, on any device: edge_index, x, `edge_label` with a row for each edge, or for each of
            `edge_label_index` [2, k] if there is one; and if there are such edge_weight, edge_attr [edges] or
            [edges, D], and train_mask, val_mask and test_mask, bool [k], of the edges to learn.
        options: those of `dataset_of_pyg`.

    Returns:
        The data set, on the CPU.

    Raises:
        TypeError: an argument is of another type, or there is no such option.
        ValueError: an argument is out of range, or an attribute of the graph is missing, of another shape, or
            holds what a model can't be trained on.
    """
    dataset: EdgeDataset = _of_pyg(data, content_of_edges, options)
    return dataset


def _of_pyg(data: Any, read: Callable[[dict[str, Any]], Content], options: dict[str, Any]) -> Any:
    """Check the options and PyG's Data, and make a data set of what `read` makes of its attributes."""
    checked = BuildOptions(**options)
    if not is_pyg_data(data):
        bad_type("data", data, "a torch_geometric.data.Data with edge_index")
    return build_dataset("data", read(data.to_dict()), checked)


def dataset_of_graphs(graphs: Sequence[Any], *, edge_features: bool = False, **options: Any) -> GraphDataset:
    """Make a data set of graphs of a list of torch_geometric.data.Data, as `load_custom` does of a saved one.

    Args:
        graphs: the graphs, on any device, with edge_index, x, y (a class, or numbers), and if there are such
            edge_weight, `split` ("train", "val" or "test") and a name (graph_id, id or name).
        edge_features: the argument of `dataset_of_pyg`.
        options: those of `dataset_of_pyg`.

    Returns:
        The data set, on the CPU.

    Raises:
        TypeError: an argument is of another type, or there is no such option.
        ValueError: an argument is out of range, or an attribute of a graph is missing, of another shape, or
            holds what a model can't be trained on; the message says of which graph.
    """
    checked = BuildOptions(**options)
    for at, data in enumerate(graphs):
        if not is_pyg_data(data):
            bad_type(f"data[{at}]", data, "a torch_geometric.data.Data with edge_index")
    if not len(graphs):
        bad_value("data", "has no graph; accepted: a list of one or more")
    plain = [data.to_dict() for data in graphs]
    content = content_of_graphs(plain, "data[{}]")
    if edge_features:
        content = with_edge_attr(content, plain, checked.edge_transform)
    made: Any = build_dataset("data", content, checked)
    dataset: GraphDataset = made
    return dataset
