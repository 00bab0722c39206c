"""The data set that is made of what a user's file holds and of the options: labels, features and split."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gnnsparse.data.custom.delimited import MISSING_WORDS, is_number, separator_of
from gnnsparse.data.custom.features import FeatureTransform, TypedTransform
from gnnsparse.data.datasets import (
    METRICS,
    REGRESSION_METRICS,
    EdgeDataset,
    EdgeFeatures,
    GraphDataset,
    NodeDataset,
    check_seed,
    normalize_rows,
)
from gnnsparse.data.splits import Masks, random_split, split_by_time, split_generator, stratified_split
from gnnsparse.errors import (
    bad_type,
    bad_value,
    check_choice,
    check_flag,
    check_integer,
    check_memory,
    check_number,
)
from gnnsparse.formats.csr import check_range
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.typed import Relation

if TYPE_CHECKING:
    from typing_extensions import Self

#: The parts of a split.
PARTS = ("train", "val", "test")
#: The metrics of each kind of labels, the usual one first.
_METRICS = {
    "class": ("accuracy", "macro_f1", "roc_auc"), "multilabel": ("micro_f1", "macro_f1", "mean_roc_auc"),
    "regression": REGRESSION_METRICS,
}  # fmt: skip
#: What `features` and `split` can be; `split` also "given:NUMBER" and "time:COLUMN".
_FEATURES = ("file", "degree", "constant", "identity")
_SPLITS = ("auto", "given", "random", "stratified", "all")
#: Columns of the features that are made of degrees, one for each power of two of 32 bits.
_DEGREES = 32
#: The tasks that a user's own data can be for.
CUSTOM_TASKS = ("node", "graph", "edge", "link", "typed_node", "typed_link")
#: What means that there is no label among numbers of classes, and may be the name of a class elsewhere.
_NO_CLASS = "-1"
#: Nodes whose labels are names and no classes if all of them differ.
_MANY = 20

#: The number of classes or labels, or their names; None: those of the file.
Classes = int | tuple[str, ...] | None


@dataclass(frozen=True, eq=False)
class Content:
    """A graph of N nodes as its file has it."""

    nodes: int
    edges: np.ndarray  # int64 [2, edges], sources over targets; checked when a graph is made of them
    weights: np.ndarray | None = None  # real [edges]; None: the edges have none
    x: np.ndarray | None = None  # real [N, F]
    y: np.ndarray | None = None  # integers, real numbers or texts, [N] or [N, columns]
    #: Of each of PARTS, bool [N] or, with several splits, [N, splits]; empty: the file has no split.
    masks: Mapping[str, np.ndarray] = field(default_factory=dict)
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)  # others of the nodes by name, [N] each
    ids: tuple[str, ...] | None = None
    label_columns: tuple[str, ...] | None = None  # the names of the columns of `y`, if it has several
    directed: bool = True  # whether an edge stands for one direction, unless the user says otherwise
    named: bool = False  # whether values of `y` are names of classes; otherwise integers are their numbers
    uses: tuple[str, ...] = ()  # for each table that was read a line that says what its columns are used for
    #: In place of x the columns of features by name, as FeatureTransform.fit takes them.
    features: Mapping[str, np.ndarray] | None = None
    #: Of many graphs what they have themselves (labels, split, names), and the first node of each, and N.
    graphs: Content | None = None
    graph_ptr: np.ndarray | None = None
    #: Features of the edges, and of those to learn, which are its `edges`, labels and split.
    of_edges: Content | None = None
    learns_edges: bool = False
    learns_links: bool = False
    bipartite: bool = False  # whether sources and targets are nodes of two kinds
    reason: str = "there is one graph"  # what the task is taken from
    item: str = "node"  # what errors call that of which there are `nodes`
    class_names: tuple[str, ...] | None = None  # those of `y`, if there is no doubt
    #: In place of edges and x the graph and features, [N, F], which are memory-mapped.
    disk: tuple[SparseGraph, torch.Tensor] | None = None

    def __post_init__(self) -> None:
        rows = {"x": self.x, "y": self.y, **{f"{name}_mask": mask for name, mask in self.masks.items()}}
        for name, array in rows.items():
            if array is not None and (array.ndim not in (1, 2) or len(array) != self.nodes):
                bad_value(
                    name, f"has shape {array.shape}; accepted: a row for each of {self.nodes} {self.item}s"
                )
        if self.x is not None and self.x.ndim != 2:
            bad_value("x", f"has shape {self.x.shape}; accepted: ({self.nodes}, features)")
        count = self.edges.shape[1]
        if self.weights is not None and self.weights.shape != (count,):
            bad_value("edge_weight", f"has shape {self.weights.shape}; accepted: ({count}), one an edge")


@dataclass(frozen=True, eq=False)
class TypedContent:
    """A graph with types as its files have it: a Content of each type, without edges, and of each relation.

    The latter has its edges between the numbers of the nodes of its types, and a row for each edge otherwise.
    """

    nodes: dict[str, Content]
    edges: dict[Relation, Content]
    directed: bool = True
    uses: tuple[str, ...] = ()


def mask_of_ids(name: str, ids: np.ndarray, nodes: int) -> np.ndarray:
    """Make a mask, bool [nodes], of the numbers of nodes; raise ValueError if one is that of no node."""
    check_range(name, torch.from_numpy(ids), nodes, "the number of nodes")
    mask = np.zeros(nodes, bool)
    mask[ids] = True
    return mask


@dataclass(frozen=True, eq=False)
class _Labels:
    """Labels: classes, int64 [N], -1 where there is none; or float32 [N, count], NaN where there is none."""

    y: torch.Tensor
    count: int
    kind: str
    names: tuple[str, ...] | None = None


def sorted_texts(texts: Iterable[str]) -> list[str]:
    """Sort texts, as numbers if all of them are integers."""
    found = sorted(texts)
    return sorted(found, key=int) if all(map(_is_integer, found)) else found


def text_of(value: Any) -> str:
    """Return a value of a table as a text, "" if it is missing."""
    if isinstance(value, (float, np.floating)):
        return "" if value != value else str(int(value)) if value.is_integer() else str(value)
    return "" if value is None else str(value).strip()


def _classes_of(classes: Any) -> Classes:
    accepted = "the number of classes, or a list of their different names"
    if classes is None:
        return None
    if isinstance(classes, int) and not isinstance(classes, bool):
        return check_integer("classes", classes, 1, accepted, 2**31 - 1)
    if isinstance(classes, (str, bytes)) or not isinstance(classes, Sequence):
        bad_type("classes", classes, accepted)
    names = tuple(str(name) for name in classes)
    if not names or len(set(names)) != len(names):
        bad_value("classes", f"got {', '.join(names)[:200] or 'nothing'}; accepted: {accepted}")
    return names


def _count_and_names(classes: int | tuple[str, ...], least: int = 1) -> tuple[int, tuple[str, ...] | None]:
    count, names = (classes, None) if isinstance(classes, int) else (len(classes), classes)
    if count < least:
        bad_value("classes", f"got {names[0] if names else count}, one class; accepted: two or more")
    return count, names


def _read_labels(content: Content, kind: str, classes: Classes) -> _Labels:
    """Make labels; an empty text and -1 are missing ones unless `classes` have them as names."""
    y = content.y
    if y is None:
        if classes is None:
            own = "edge_label" if content.item == "edge" else "y, a column of labels (label=COLUMN)"
            there = f" among the columns {', '.join(content.columns)[:200]}" if content.columns else ""
            bad_value(
                "label",
                f"there are no labels{there}; accepted: {own}, or for predictions alone classes=, the number "
                "or the names of the classes; or task=link, which needs none",
            )
        count, names = _count_and_names(classes, least=2 if kind in ("auto", "class") else 1)
        if kind in ("auto", "class"):
            return _Labels(torch.full((content.nodes,), -1, device="cpu"), count, "class", names)
        unknown = torch.full((content.nodes, count), math.nan, dtype=torch.float32, device="cpu")
        return _Labels(unknown, count, kind, names)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim == 1 and (content.named or y.dtype.kind not in "biuf") and kind != "regression":
        if kind == "multilabel":
            bad_value("label_kind", "got 'multilabel' for one column; accepted: class, regression or auto")
        texts = [text_of(value) for value in (y if y.dtype.kind == "f" else y.tolist())]
        filled, names = {*texts} - {""}, classes if isinstance(classes, tuple) else ()
        if filled.isdisjoint(names) and all(t.endswith(".0") and _is_integer(t[:-2]) for t in filled):
            texts = [text[:-2] for text in texts]  # as pandas writes whole numbers of which some are missing
        given = isinstance(classes, tuple) and len(classes) > 1
        if kind == "class" or given or not _are_fractions(set(texts)):
            return _of_names(content.item, texts, classes)
    return _of_numbers(content, _numbers(content.item, y), kind, classes)


def _are_fractions(texts: set[str]) -> bool:
    """Return whether labels are numbers that are not all whole; raise if others of them are no numbers."""
    if not any(is_number(text) and not float(text).is_integer() for text in texts):
        return False
    others = sorted(text for text in texts if text and not is_number(text) and text.casefold() != "nan")
    if others:
        bad_value(
            "label",
            f"some labels are numbers, and others are not, as {others[0][:80]!r}; accepted: an empty cell "
            "where there is no number, or label_kind=class",
        )
    return True


def _of_names(item: str, texts: list[str], classes: Classes) -> _Labels:
    """Make classes of names. Without `classes` they are sorted, as numbers if all of them are integers."""
    words = set(texts) - ({""} - set(classes if isinstance(classes, tuple) else ()))
    if isinstance(classes, int) or (classes is not None and _NO_CLASS not in classes):
        words.discard(_NO_CLASS)
    found = sorted_texts(words)
    present = sum(text in words for text in texts)
    if isinstance(classes, int):
        wrong = next((name for name in found if not (_is_integer(name) and 0 <= int(name) < classes)), None)
        if wrong is not None:
            got = f"got {classes}, and a label is {wrong!r}"
            bad_value("classes", f"{got}; accepted: labels below it, or names")
    elif unknown := [name for name in found if name not in (classes or found)]:
        bad_value("classes", f"lacks {unknown[0]!r}, which is a label in the file; accepted: all labels")
    if classes is None:
        _check_words(words, texts)
    else:
        _count_and_names(classes, least=2)
    if not found:
        bad_value("label", f"no {item} has a label; accepted: at least one that is not empty")
    if classes is None and len(found) == present >= _MANY:
        bad_value(
            "label",
            f"each of {len(found)} {item}s has a label of its own, as a name is; accepted: classes of "
            f"several {item}s (label=COLUMN), or classes= for what they are",
        )
    if classes is None and len(found) < 2:
        _refuse_one_class("label", found[0], f"{item}s with a label, {present}")
    if isinstance(classes, int):
        names, number = tuple(map(str, range(classes))), {name: int(name) for name in found}
    else:
        names = classes or tuple(found)
        number = {name: at for at, name in enumerate(names) if name in words}
    y = torch.tensor([number.get(text, -1) for text in texts], dtype=torch.int64, device="cpu")
    return _Labels(y, len(names), "class", names)


def _refuse_one_class(option: str, name: object, who: str) -> None:
    bad_value(
        option,
        f"all {who}, have {str(name)[:80]!r}; accepted: two classes or more, or "
        "classes= with the names of all for predictions",
    )


def _check_words(words: set[str], texts: list[str]) -> None:
    """Raise ValueError if a label may be a class or a missing one; warn of a class with such a name."""
    accepted = "an empty cell where there is no label, or classes= with the names of all classes"
    doubt = "which may be a class or a missing label"
    if _NO_CLASS in words:
        got = f"got '-1' ({texts.count(_NO_CLASS)} times), {doubt}"
        bad_value("label", f"{got}; accepted: {accepted}, -1 among them or not")
    doubtful = sorted(word for word in words if word.casefold() in MISSING_WORDS)
    if not doubtful:
        return
    got = f"got {doubtful[0]!r} ({texts.count(doubtful[0])} times)"
    if all(is_number(word) for word in words - set(doubtful)):
        bad_value("label", f"{got} and beside it numbers or nothing, {doubt}; accepted: {accepted}")
    problem = f"label: {got}, which is taken as a class; accepted without this warning: {accepted}"
    warnings.warn(problem, UserWarning, stacklevel=2)


def _is_integer(text: str) -> bool:
    return len(text) < 19 and text.removeprefix("-").isdecimal()


def _numbers(item: str, y: np.ndarray) -> np.ndarray:
    """Return labels as float64, NaN where there is none."""
    if y.dtype.kind in "biuf":
        return y.astype(np.float64)
    check_memory("y", 8 * y.size, f"labels of shape {y.shape}")
    flat = np.empty(y.size)
    for at, value in enumerate(y.ravel().tolist()):
        text = str(value).strip()
        try:
            flat[at] = float(text or "nan")
        except ValueError:
            got = f"{item} {at * len(y) // y.size} has {text[:80]!r}"
            bad_value("label", f"{got}; accepted: numbers, or an empty cell where there is none")
    return flat.reshape(y.shape)


def _of_numbers(content: Content, y: np.ndarray, kind: str, classes: Classes) -> _Labels:
    item, columns = content.item, content.label_columns
    table = y.reshape(len(y), -1)
    if np.isinf(y).any():
        bad_value("y", f"{item} {int(np.isinf(table).any(1).argmax())} has infinity; accepted: numbers")
    known = y[~np.isnan(y)]
    if kind == "auto":
        whole = bool((known == np.floor(known)).all())
        several = y.ndim == 2 and bool(np.isin(known, (-1, 0, 1)).all())
        kind = "multilabel" if several else "class" if y.ndim == 1 and whole else "regression"
    if kind == "class":  # of which integers are the numbers
        if y.ndim != 1:
            bad_value("y", f"has shape {y.shape}; accepted: one class for each {item}")
        count, names = (len(y), None) if classes is None else _count_and_names(classes, least=2)
        wrong = ~np.isnan(y) & ((y != np.floor(y)) | (y < -1) | (y >= count))
        if wrong.any():
            at, option = int(wrong.argmax()), "" if classes is None else " as classes= says,"
            accepted = f"0 to {count - 1},{option} or -1 or NaN where there is none"
            bad_value("y", f"{item} {at} has the class {y[at]:g}; accepted: {accepted}")
        found = known[known >= 0]
        if classes is None:
            if not found.size:
                bad_value("y", f"no {item} has a label; accepted: at least one that is not NaN or -1")
            if len(np.unique(found)) < 2:
                _refuse_one_class("y", int(found[0]), f"{item}s with a label, {found.size}")
            count = int(found.max()) + 1
        numbers = np.where(np.isnan(y), -1, y).astype(np.int64)
        return _Labels(torch.from_numpy(numbers), count, "class", names)
    if kind == "multilabel":
        table = np.where(table == -1, np.nan, table)
        if not (np.isnan(table) | np.isin(table, (0, 1))).all():
            bad_value("y", f"holds other numbers than 0 and 1; accepted: 1 for each label that a {item} has")
        if -1 in y and not (table == 0).any():
            accepted = f"0 for a label that a {item} does not have, and -1 or NaN where it is not known"
            bad_value("y", f"holds -1 and no 0; accepted: {accepted}")
    if np.isnan(table).all():
        bad_value("y", f"no {item} has a label; accepted: at least one that is not NaN")
    with np.errstate(over="ignore"):
        table = table.astype(np.float32)
    if np.isinf(table).any():
        bad_value("y", "holds a number beyond the range of float32; accepted: smaller ones")
    count = table.shape[1]
    given, names = (count, None) if classes is None else _count_and_names(classes)
    if given != count:
        bad_value("classes", f"got {given}, and there are {count} columns of labels; accepted: as many")
    names = columns if names is None and not isinstance(classes, tuple) else names
    return _Labels(torch.from_numpy(table), count, kind, names)


@dataclass(frozen=True)
class BuildOptions:
    """How a data set is made of a file's content; `load_custom` documents the attributes and errors."""

    features: str = "file"
    label_kind: str = "auto"
    classes: int | Sequence[str] | None = None
    metric: str | None = None
    split: str = "auto"
    train_fraction: float = 0.6
    val_fraction: float = 0.2
    seed: int = 0
    directed: bool | None = None
    normalize_features: bool = False
    standardize: bool = False
    transform: Any = None  # a FeatureTransform or TypedTransform, given as what its to_dict returns; or None
    edge_transform: Any = None  # that of the features of edges, likewise
    bipartite: bool | None = None
    hits_at: int | None = None

    def __post_init__(self) -> None:
        check_choice("features", self.features, _FEATURES)
        check_choice("label_kind", self.label_kind, ("auto", *_METRICS))
        object.__setattr__(self, "classes", _classes_of(self.classes))
        if self.metric is not None:
            check_choice("metric", self.metric, METRICS)
        self.split_kind()
        for name in ("train_fraction", "val_fraction"):
            value, accepted = getattr(self, name), "a number between 0 and 1, without both"
            if not 0 < check_number(name, value, accepted) < 1:
                bad_value(name, f"got {value}; accepted: {accepted}")
        if self.train_fraction + self.val_fraction >= 1:
            got = f"{self.val_fraction} beside train_fraction={self.train_fraction}"
            bad_value("val_fraction", f"got {got}; accepted: fractions that leave some for the test")
        check_seed(self.seed)
        for flag in ("directed", "bipartite"):
            if getattr(self, flag) is not None:
                check_flag(flag, getattr(self, flag))
        if self.hits_at is not None:
            check_integer("hits_at", self.hits_at)
        for flag in ("normalize_features", "standardize"):
            check_flag(flag, getattr(self, flag))
        for name in ("transform", "edge_transform"):
            if isinstance(made := getattr(self, name), Mapping) and "types" in made:
                object.__setattr__(self, name, TypedTransform.read(made))
            elif made is not None and not isinstance(made, TypedTransform):
                object.__setattr__(self, name, FeatureTransform.read(made, name))

    @property
    def of_model(self) -> FeatureTransform | None:
        """What makes the features of a trained model, if they are made of columns of a file."""
        made = self.transform if isinstance(self.transform, FeatureTransform) else None
        return made if made is not None and made.columns and self.features == "file" else None

    def of_type(self, kind: str) -> Self:
        """Return the options of the nodes of a type, whose features are made as those of a trained model."""
        if not isinstance(self.transform, TypedTransform):
            return self
        return replace(self, transform=self.transform.types.get(kind))

    def split_kind(self) -> tuple[str, str]:
        """Return the kind of split, and what follows the colon."""
        accepted = ", ".join([*_SPLITS, "given:NUMBER", "time:COLUMN"])
        if not isinstance(self.split, str):
            bad_type("split", self.split, f"one of {accepted}")
        kind, _, rest = self.split.partition(":")
        numbered = kind == "given" and rest.isdecimal() and len(rest) < 10
        if not (self.split in _SPLITS or numbered or (kind == "time" and rest)):
            bad_value("split", f"got {self.split!r}; accepted: {accepted}")
        return kind, rest

    @property
    def time(self) -> str | None:
        """The column of times, which is no feature; None: there is none."""
        kind, rest = self.split_kind()
        return rest if kind == "time" else None


@dataclass(frozen=True)
class FileOptions(BuildOptions):
    """What a user says of a file; `load_custom` documents the attributes and errors."""

    edges: str | None = None
    nodes: str | None = None
    labels: str | None = None
    source: str | None = None
    target: str | None = None
    weight: str | None = None
    id: str | None = None
    label: str | Sequence[str] | None = None
    feature_columns: Sequence[str] | None = None
    separator: str | None = None
    task: str = "auto"
    graph: str | None = None
    edge_label: str | Sequence[str] | None = None
    edge_features: Sequence[str] | None = None
    pairs: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "separator", separator_of(self.separator))
        check_choice("task", self.task, ("auto", *CUSTOM_TASKS))
        files, columns = ("edges", "nodes", "labels"), ("source", "target", "weight", "id", "graph")
        for name in (*files, *columns):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                bad_type(name, value, f"the name of a {'file' if name in files else 'column'}")
        accepted = "a list of names of columns"
        for name in ("label", "feature_columns", "edge_label", "edge_features"):
            value = getattr(self, name)
            if value is None or (name in ("label", "edge_label") and isinstance(value, str)):
                continue
            if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
                bad_type(name, value, accepted)
            empty = not value and name != "edge_features"
            if empty or not all(isinstance(item, str) for item in value):
                bad_value(name, f"got {str(list(value))[:100]}; accepted: {accepted}")
            if len(set(value)) != len(value):
                bad_value(name, f"got {str(list(value))[:100]}; accepted: each column once")

    @property
    def label_columns(self) -> list[str]:
        """The columns of labels that are given."""
        return [self.label] if isinstance(self.label, str) else list(self.label or ())

    @property
    def edge_labels(self) -> list[str]:
        """The columns of labels of edges that are given."""
        return [self.edge_label] if isinstance(self.edge_label, str) else list(self.edge_label or ())


def build_dataset(
    name: str, content: Content, options: BuildOptions
) -> NodeDataset | GraphDataset | EdgeDataset:
    """Make a data set of a file's content: of nodes, of graphs if it has several, or of edges to learn."""
    learned = content.of_edges if content.learns_edges else None
    items = content.graphs or learned or content  # what has labels and a split
    classes: Any = options.classes
    if classes is None and options.label_kind in ("auto", "class"):
        classes = items.class_names
    labels = _read_labels(items, options.label_kind, classes)
    graph = graph_of(content, options.directed) if content.disk is None else content.disk[0]
    masks = _split(items, labels, options)
    train = masks[0]
    if content.graph_ptr is not None:  # the nodes of the graphs to train on
        train = train.repeat_interleave(torch.from_numpy(np.diff(content.graph_ptr)))
    if learned is not None:
        train = torch.ones(content.nodes, dtype=torch.bool, device="cpu")
    x, transform = features_of_nodes(content, graph, options, train)
    if options.normalize_features:
        normalize_rows(x)
    metrics = _METRICS[labels.kind]
    metric = options.metric or metrics[0]
    if metric not in metrics:
        got = f"got {metric!r} for labels of the kind {labels.kind}"
        bad_value("metric", f"{got}; accepted: {', '.join(metrics)}")
    names = None if transform is None or content.features is None else transform.names
    made_of: dict[str, Any] = {} if transform is None else transform.to_dict()
    more = None if learned is not None else _features_beside(content, options)
    if content.graph_ptr is not None:
        ptr = torch.from_numpy(content.graph_ptr)
        return GraphDataset(
            name,
            graph,
            ptr,
            x,
            labels.y,
            *masks,
            labels.count,
            metric,
            items.ids,
            labels.names,
            names,
            made_of,
            more,
        )
    if learned is not None:
        attr, how = _edge_features(items, options, masks[0])
        pairs = torch.from_numpy(np.ascontiguousarray(items.edges))
        return EdgeDataset(
            name, graph, x, pairs, labels.y, *masks, labels.count, metric, attr, content.ids, labels.names,
            names, made_of, how,
        )  # fmt: skip
    return NodeDataset(
        name, graph, x, labels.y, *masks, labels.count, metric, content.ids, labels.names, names, made_of,
        content.disk is not None, more,
    )  # fmt: skip


def graph_of(content: Content, directed: bool | None) -> SparseGraph:
    """Make A[target, source]; undirected edges lead both ways, and repeats without weights count once."""
    directed = content.directed if directed is None else directed
    for ends in torch.from_numpy(content.edges).contiguous():
        check_range("edge_index", ends, content.nodes, "num_nodes")
    count = content.edges.shape[1]
    check_memory("edge_index", 48 * count, f"a graph of {count} edges")
    edges, number = _both_ways(content, directed)
    weights = content.weights
    if weights is not None:
        with np.errstate(over="ignore"):  # too large ones become infinite, which the graph refuses
            weights = weights.astype(np.float32)[number.numpy()]
    made = SparseGraph.from_edge_index(edges, content.nodes, weights)
    return SparseGraph(made.csr, made.values if directed or weights is not None else None)


def _both_ways(content: Content, directed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return edges, int64 [2, edges], with those that lead back unless directed, and their numbers."""
    edges = torch.from_numpy(content.edges).contiguous()
    number = torch.arange(edges.shape[1], device="cpu")
    if directed:
        return edges, number
    beside = edges[0] != edges[1]
    return torch.cat([edges, edges.flip(0)[:, beside]], dim=1), torch.cat([number, number[beside]])


def _features_beside(content: Content, options: BuildOptions) -> EdgeFeatures | None:
    """Return features of edges for models that take them; None: there are none."""
    if content.of_edges is None:
        return None
    everyone = torch.ones(content.of_edges.nodes, dtype=torch.bool, device="cpu")
    attr, made_of = _edge_features(content.of_edges, options, everyone)
    if attr is None:
        return None
    directed = content.directed if options.directed is None else options.directed
    edges, number = _both_ways(content, directed)
    if not directed and content.weights is None:  # as in the graph, an edge that is there twice counts once
        rows = torch.cat([edges.T.double(), attr[number].double()], dim=1)
        found, which = rows.unique(dim=0, return_inverse=True)
        places = torch.arange(len(rows), device="cpu")
        first = torch.full((len(found),), len(rows), device="cpu").scatter_reduce(0, which, places, "amin")
        kept = first.sort().values
        edges, number = edges[:, kept], number[kept]
    weights = None if content.weights is None else torch.from_numpy(content.weights).float()[number]
    return EdgeFeatures(edges, attr[number], weights, made_of)


def _edge_features(
    items: Content, options: BuildOptions, train: torch.Tensor
) -> tuple[torch.Tensor | None, dict[str, Any]]:
    """Return features of edges [k, D], None if there are none, and what made them."""
    columns = items.features or {}
    if items.x is not None:
        columns = {str(at): items.x[:, at].astype(np.float64) for at in range(items.x.shape[1])}
    transform: FeatureTransform | None = options.edge_transform
    if transform is None:
        rows = train.numpy() if train.any() else np.ones(len(train), bool)
        transform = FeatureTransform.fit(columns, rows, options.standardize)
    if missing := [name for name in transform.columns if name not in columns]:
        accepted = f"the columns of the training, {', '.join(transform.columns)[:200]}"
        bad_value("edge_features", f"lack {', '.join(missing)[:200]}; accepted: {accepted}")
    if not transform.names:
        return None, transform.to_dict()
    attr = torch.from_numpy(transform(columns))
    if not bool(attr.isfinite().all()):
        bad_value("edge_attr", "holds a number beyond the range of float32; accepted: smaller ones")
    return attr, transform.to_dict()


def features_of_nodes(
    content: Content, graph: SparseGraph, options: BuildOptions, train: torch.Tensor
) -> tuple[torch.Tensor, FeatureTransform | None]:
    """Return features [N, F], and what made them of columns if columns have names or are scaled."""
    nodes, kind = content.nodes, options.features
    if content.disk is not None:
        return content.disk[1], None
    none = content.x is None and content.features is None
    if content.learns_edges and kind == "file" and none and options.of_model is None:
        kind = "degree"
    if kind == "file":
        return features_of(content.x, content.features, options, train)
    if kind == "identity" and content.graphs is not None:
        bad_value("features", "got 'identity' for many graphs; accepted: file, degree, constant")
    return _made_features(graph, nodes, kind), None


def features_of(
    x: np.ndarray | None, columns: Mapping[str, np.ndarray] | None, options: BuildOptions, train: torch.Tensor
) -> tuple[torch.Tensor, FeatureTransform | None]:
    """Make features of an array [N, F], or of columns as FeatureTransform.fit takes them.

    The rows `train`, bool [N], decide what columns become, or all if there are none to train on, unless the
    options have a transform.
    """
    transform = options.of_model
    if columns is None:
        if x is None:
            accepted = "degree, constant or identity, as in features=degree"
            if transform is not None:
                accepted = f"nodes with the columns of the training, {', '.join(transform.columns)[:200]}"
            bad_value("features", f"got 'file', and the file has no features; accepted: {accepted}")
        if transform is None and not options.standardize:
            check_memory("x", 4 * x.size, f"features of shape {x.shape}")
            with np.errstate(over="ignore"):  # too large ones become infinite, which the data set refuses
                return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)), None
        names = list(map(str, range(x.shape[1]))) if transform is None else transform.columns
        if len(names) != x.shape[1] or (transform is not None and transform.categories):
            accepted = f"a table with the {len(names)} columns of the training"
            bad_value("x", f"has {x.shape[1]} columns of numbers; accepted: {accepted}")
        if not np.isfinite(x).all():
            bad_value("x", "has a number that is not finite; accepted: finite numbers")
        columns = {name: x[:, at].astype(np.float64) for at, name in enumerate(names)}
    if transform is None:
        rows = train.numpy() if train.any() else np.ones(len(train), bool)
        transform = FeatureTransform.fit(columns, rows, options.standardize)
    return torch.from_numpy(transform(columns)), transform


def _made_features(graph: SparseGraph, nodes: int, kind: str) -> torch.Tensor:
    """Make features of the graph alone."""
    if kind == "constant":
        return torch.ones(nodes, 1, dtype=torch.float32, device="cpu")
    if kind == "identity":
        check_memory("features", 4 * nodes * nodes, f"a column for each of {nodes} nodes")
        return torch.eye(nodes, dtype=torch.float32, device="cpu")
    place = (graph.csr.degrees.double() + 1).log2().floor().long()
    return torch.nn.functional.one_hot(place, _DEGREES).float()


def _split(content: Content, labels: _Labels, options: BuildOptions) -> Masks:
    """Make the split of the nodes that have a label; check that no part is empty."""
    kind, rest = options.split_kind()
    present = labels.y >= 0 if labels.kind == "class" else ~labels.y.isnan().all(dim=1)
    if kind == "all":
        accepted = "other splits, as 'all' is for links of a graph with types, to be predicted"
        bad_value("split", f"got 'all' for {content.item}s; accepted: {accepted}")
    if not present.any():
        return present, present.clone(), present.clone()
    if kind == "auto":
        kind = "given" if content.masks else "stratified" if labels.kind == "class" else "random"
    nodes = present.nonzero().flatten()
    parts = _given(content, rest) if kind == "given" else _drawn(kind, rest, content, labels, nodes, options)
    train, val, test = (part & present for part in parts)
    for name, part in zip(PARTS, (train, val, test), strict=True):
        if not part.any():
            of = f"{int(present.sum())} {content.item}s" + (" with a label" if content.y is not None else "")
            bad_value("split", f"{options.split!r} of {of} leaves none for {name}; accepted: no empty part")
    return train, val, test


def split_items(items: Content, present: torch.Tensor, options: BuildOptions) -> Masks:
    """Make the split of items without labels, of which those that `present` [N] excludes are in no part."""
    y = torch.zeros(items.nodes, 1, dtype=torch.float32, device="cpu")
    y[~present] = math.nan
    return _split(items, _Labels(y, 1, "regression"), options)


def _given(content: Content, number: str) -> list[torch.Tensor]:
    missing = [f"{name}_mask" for name in PARTS if name not in content.masks]
    if missing:
        there = "no split" if len(missing) == len(PARTS) else f"no {', '.join(missing)}"
        accepted = "random, stratified or time:COLUMN"
        bad_value("split", f"got 'given', and the file has {there}; accepted: {accepted}")
    which = int(number or 0)
    masks = [mask[:, None] if mask.ndim == 1 else mask for mask in (content.masks[name] for name in PARTS)]
    # A mask of one column goes with each split of the others.
    counts = [mask.shape[1] for mask in masks if mask.shape[1] != 1]
    if len(set(counts)) > 1:
        found = ", ".join(f"{name}_mask {mask.shape[1]}" for name, mask in zip(PARTS, masks, strict=True))
        bad_value("split", f"the masks have several numbers of splits ({found}); accepted: one number, or 1")
    if which >= (count := max(counts, default=1)):
        bad_value("split", f"got 'given:{which}', and the file has {count}; accepted: smaller numbers")
    columns = [mask[:, 0 if mask.shape[1] == 1 else which] for mask in masks]
    twice = np.sum(columns, axis=0) > 1
    if twice.any():
        at = int(twice.argmax())
        node = at if content.ids is None else repr(content.ids[at])
        bad_value(
            "split",
            f"{content.item} {node} is in two parts of the given split; accepted: parts without overlap",
        )
    return [torch.from_numpy(np.ascontiguousarray(column)) for column in columns]


def _drawn(
    kind: str, column: str, content: Content, labels: _Labels, present: torch.Tensor, options: BuildOptions
) -> torch.Tensor:
    """Draw a split of the nodes with a label, or make one of their times; bool [3, N]."""
    generator = split_generator(0, options.seed)
    fractions = (options.train_fraction, options.val_fraction)
    if kind == "random":
        masks = random_split(present.numel(), generator, *fractions)
    elif kind == "stratified":
        if labels.kind != "class":
            accepted = "random or time:COLUMN"
            bad_value("split", f"got 'stratified' for labels that are no classes; accepted: {accepted}")
        masks = stratified_split(labels.y[present], generator, *fractions)
    else:
        times = times_of(content, column)[present]
        present, times = present[~times.isnan()], times[~times.isnan()]
        if times.unique().numel() < len(PARTS):
            problem = f"column {column!r} has less than three different times"
            bad_value("split", f"{problem}; accepted: three or more")
        masks = split_by_time(times, *fractions)
    whole = torch.zeros(len(PARTS), content.nodes, dtype=torch.bool, device="cpu")
    whole[:, present] = torch.stack(masks)
    return whole


def times_of(content: Content, column: str) -> torch.Tensor:
    """Return a column of times, float64 [N], NaN where there is none; dates are seconds since 1970."""
    if column not in content.columns:
        known = ", ".join(content.columns) or "none"
        problem = f"got 'time:{column}', and the {content.item}s have no such column; they have: {known}"
        bad_value("split", problem[:400])
    values = content.columns[column]
    if values.dtype.kind in "biuf":
        return torch.from_numpy(values.astype(np.float64))
    times = np.full(len(values), np.nan)
    for at, value in enumerate(values.tolist()):
        text = str(value).strip()
        try:
            times[at] = float(text or "nan")
        except ValueError:
            try:
                moment = datetime.fromisoformat(text)
            except ValueError:
                got = f"column {column!r} has {text[:40]!r} for {content.item} {at}"
                bad_value("split", f"{got}; accepted: numbers, or dates as 2024-12-31")
            moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
            times[at] = moment.timestamp()
    return torch.from_numpy(times)
