"""The data set that is made of what a user's file holds and of the options: labels, features and split."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gnnsparse.data.custom.table_files import is_number
from gnnsparse.data.datasets import METRICS, REGRESSION_METRICS, NodeDataset, check_seed, normalize_rows
from gnnsparse.data.splits import Masks, random_split, split_by_time, split_generator, stratified_split
from gnnsparse.errors import bad_type, bad_value, check_choice, check_flag, check_integer, check_memory
from gnnsparse.formats.csr import coo_to_csr
from gnnsparse.sparse.graph import SparseGraph, node_count

__all__ = [
    "FEATURES", "LABEL_KINDS", "MISSING_WORDS", "PARTS", "SPLITS", "BuildOptions", "Content", "Labels",
    "build_dataset", "check_classes", "column_of_ids", "dense_features", "read_labels",
]  # fmt: skip

#: The parts of a split.
PARTS = ("train", "val", "test")
#: Words, in small letters, that programs write where a value is missing, and that may be names as well.
MISSING_WORDS = ("na", "n/a", "nan", "null", "none")


@dataclass(frozen=True, eq=False)
class Content:
    """A graph of N nodes as its file has it.

    Attributes:
        nodes: N.
        edges: int64 [2, edges], sources over targets; they are checked when a graph is made of them.
        weights: real [edges]; None: the edges have none.
        x: real [N, F]; None: the nodes have no features.
        y: what the file says of each node: integers, real numbers or texts, [N] or [N, columns]; None:
            nothing.
        masks: of each of PARTS, bool [N] or, with several splits, [N, splits]; empty: the file has no split.
        columns: other columns of the nodes by name, [N] each.
        ids: the names of the nodes; None: they are numbered.
        feature_names: the names of the features, F different texts; None: they have none.
        label_columns: the names of the columns of `y`, if it has several with names.
        directed: whether an edge stands for one direction, unless the user says otherwise.
        named: whether each value of `y` is the name of a class; otherwise integers are numbers of classes.
        uses: for each table that was read a line that says what its columns are used for.

    Raises:
        ValueError: an array is not that of N nodes; the message names it.
    """

    nodes: int
    edges: np.ndarray
    weights: np.ndarray | None = None
    x: np.ndarray | None = None
    y: np.ndarray | None = None
    masks: Mapping[str, np.ndarray] = field(default_factory=dict)
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    ids: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    label_columns: tuple[str, ...] | None = None
    directed: bool = True
    named: bool = False
    uses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rows = {"x": self.x, "y": self.y, **{f"{name}_mask": mask for name, mask in self.masks.items()}}
        for name, array in rows.items():
            if array is not None and (array.ndim not in (1, 2) or len(array) != self.nodes):
                bad_value(name, f"has shape {array.shape}; accepted: a row for each of {self.nodes} nodes")
        if self.x is not None and self.x.ndim != 2:
            bad_value("x", f"has shape {self.x.shape}; accepted: ({self.nodes}, features)")
        if self.edges.ndim != 2 or self.edges.shape[0] != 2:
            bad_value("edge_index", f"has shape {self.edges.shape}; accepted: (2, edges)")
        if self.weights is not None and self.weights.shape != self.edges.shape[1:]:
            bad_value(
                "edge_weight",
                f"has shape {self.weights.shape}; accepted: ({self.edges.shape[1]}), one an edge",
            )


def column_of_ids(name: str, ids: np.ndarray, nodes: int) -> np.ndarray:
    """Make a mask, bool [nodes], of the numbers of nodes.

    Raises:
        ValueError: a number is that of no node.
    """
    wrong = (ids < 0) | (ids >= nodes)
    if wrong.any():
        at = int(wrong.argmax())
        bad_value(name, f"element {at} is {ids[at]}; accepted: the nodes 0 to {nodes - 1}")
    mask = np.zeros(nodes, bool)
    mask[ids.astype(np.int64)] = True
    return mask


def dense_features(x: np.ndarray) -> np.ndarray:
    """Return features as float32 [N, F], those beyond its range as infinity."""
    check_memory("x", 4 * x.size, f"features of shape {x.shape}")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(x, dtype=np.float32)


#: What labels can be; "auto": what they look like.
LABEL_KINDS = ("auto", "class", "multilabel", "regression")
#: What means that there is no label among numbers of classes, and may be the name of a class elsewhere.
_NO_CLASS = "-1"
#: Nodes whose labels are names and no classes if all of them differ.
_MANY = 20


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of N nodes.

    Attributes:
        y: int64 [N], classes, -1 where there is none; or float32 [N, labels] of 0 and 1, or float32 [N,
            targets], NaN where there are none.
        present: bool [N], the nodes that have a label, or some of several.
        count: number of classes, labels or targets.
        kind: one of LABEL_KINDS but "auto".
        names: the names of the classes or labels; None: they are numbered.
    """

    y: torch.Tensor
    present: torch.Tensor
    count: int
    kind: str
    names: tuple[str, ...] | None = None


def check_classes(classes: Any) -> int | tuple[str, ...] | None:
    """Return the option `classes`: a number of classes, their names, or None; else raise."""
    accepted = "the number of classes, or a list of their different names"
    if classes is None or (isinstance(classes, int) and not isinstance(classes, bool)):
        return None if classes is None else check_integer("classes", classes, 1, accepted, 2**31 - 1)
    if isinstance(classes, (str, bytes)) or not isinstance(classes, Sequence):
        bad_type("classes", classes, accepted)
    names = tuple(str(name) for name in classes)
    if not names or len(set(names)) != len(names):
        bad_value("classes", f"got {', '.join(names)[:200] or 'nothing'}; accepted: {accepted}")
    return names


def read_labels(content: Content, kind: str, classes: int | tuple[str, ...] | None) -> Labels:
    """Make labels of what a file says of its nodes.

    Args:
        content: the file's content.
        kind: one of LABEL_KINDS. "auto": whole numbers and texts are classes, other numbers are targets of a
            regression, and a table of 0 and 1 with several columns is multi-label.
        classes: the number of classes or labels, or their names in the order of their numbers; None: those
            that there are. An empty text is a missing label, and so is -1 unless it is one of the names.

    Raises:
        ValueError: there are no labels and `classes` is None; there are fewer than two classes; a label is
            out of range, infinite, or none of the names; or it may be a class or a missing label.
    """
    y = content.y
    if y is None:
        return _no_labels(content.nodes, kind, classes)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim == 1 and (content.named or y.dtype.kind not in "biuf") and kind != "regression":
        if kind == "multilabel":
            bad_value("label_kind", "got 'multilabel' for one column; accepted: class, regression or auto")
        texts = _texts(y)
        if kind == "class" or not _are_fractions(texts):
            return _named(texts, classes)
    return _of_numbers(_numbers(y), kind, classes, content.label_columns)


def _no_labels(nodes: int, kind: str, classes: int | tuple[str, ...] | None) -> Labels:
    if classes is None:
        bad_value(
            "label",
            "there are no labels; accepted: y, a column of labels (label=COLUMN), or for predictions alone "
            "classes=, the number or the names of the classes",
        )
    names = classes if isinstance(classes, tuple) else None
    count = classes if isinstance(classes, int) else len(classes)
    present = torch.zeros(nodes, dtype=torch.bool, device="cpu")
    if kind in ("auto", "class"):
        _check_count(classes)
        return Labels(torch.full((nodes,), -1, device="cpu"), present, count, "class", names)
    y = torch.full((nodes, count), math.nan, dtype=torch.float32, device="cpu")
    return Labels(y, present, count, kind, names)


def _texts(y: np.ndarray) -> np.ndarray:
    """Return labels as texts, "" where there is none."""
    if y.dtype.kind == "f":
        whole = np.isfinite(y) & (y == np.floor(y))
        return np.array(
            [str(int(v)) if w else "" if v != v else str(v) for v, w in zip(y, whole, strict=True)]
        )
    return np.array([str(value).strip() for value in y.tolist()], dtype=object)


def _are_fractions(texts: np.ndarray) -> bool:
    """Return whether labels are numbers that are not all whole.

    Raises:
        ValueError: some are, and others are no numbers.
    """
    words = set(texts.tolist()) - {""}
    if not any(is_number(word) and not float(word).is_integer() for word in words):
        return False
    others = sorted(word for word in words if not is_number(word) and word.casefold() != "nan")
    if others:
        bad_value(
            "label",
            f"some labels are numbers, and others are not, as {others[0][:80]!r}; accepted: an empty cell "
            "where there is no number, or label_kind=class",
        )
    return True


def _check_count(classes: int | tuple[str, ...]) -> int:
    """Return the number of classes that the option `classes` says; raise unless it is two or more."""
    count = classes if isinstance(classes, int) else len(classes)
    if count < 2:
        got = classes if isinstance(classes, int) else classes[0]
        bad_value("classes", f"got {got}, one class; accepted: two or more")
    return count


def _named(texts: np.ndarray, classes: int | tuple[str, ...] | None) -> Labels:
    """Make classes of names. Without `classes` they are sorted, as numbers if all of them are integers."""
    words = set(texts.tolist()) - {""}
    if classes is None:
        _check_words(words, texts)
    elif isinstance(classes, int) or _NO_CLASS not in classes:
        words.discard(_NO_CLASS)
    found = sorted(words)
    if all(_is_integer(name) for name in found):
        found.sort(key=int)
    if isinstance(classes, int):
        wrong = next((name for name in found if not (_is_integer(name) and 0 <= int(name) < classes)), None)
        if wrong is not None:
            bad_value(
                "classes", f"got {classes}, and a label is {wrong!r}; accepted: labels below it, or names"
            )
    elif classes is not None:
        unknown = [name for name in found if name not in set(classes)]
        if unknown:
            bad_value("classes", f"lacks {unknown[0]!r}, which is a label in the file; accepted: all labels")
    if classes is not None:
        _check_count(classes)
    present = np.array([text in words for text in texts.tolist()], dtype=bool)
    if not found:
        bad_value("label", "no node has a label; accepted: at least one that is not empty")
    if classes is None and len(found) == int(present.sum()) >= _MANY:
        bad_value(
            "label",
            f"each of {len(found)} nodes has a label of its own, as a name is; accepted: classes of several "
            "nodes (label=COLUMN), or classes= for what they are",
        )
    if classes is None and len(found) < 2:
        _refuse_one_class("label", found[0], int(present.sum()))
    if isinstance(classes, int):
        number = {name: int(name) for name in found}
        names = tuple(map(str, range(classes)))
    else:
        names = classes or tuple(found)
        number = {name: at for at, name in enumerate(names)}
    y = np.array([number[text] if have else -1 for text, have in zip(texts.tolist(), present, strict=True)])
    return Labels(torch.from_numpy(y.astype(np.int64)), torch.from_numpy(present), len(names), "class", names)


def _refuse_one_class(option: str, name: object, nodes: int) -> None:
    bad_value(
        option,
        f"all nodes with a label, {nodes}, have {str(name)[:80]!r}; accepted: two classes or more, or "
        "classes= with the names of all for predictions",
    )


def _check_words(words: set[str], texts: np.ndarray) -> None:
    """Raise ValueError if a label may be a class or a missing one; warn of a class with such a name."""
    accepted = "an empty cell where there is no label, or classes= with the names of all classes"
    doubt = "which may be a class or a missing label"
    if _NO_CLASS in words:
        count = int((texts == _NO_CLASS).sum())
        bad_value("label", f"got '-1' ({count} times), {doubt}; accepted: {accepted}, -1 among them or not")
    doubtful = sorted(word for word in words if word.casefold() in MISSING_WORDS)
    if not doubtful:
        return
    got = f"got {doubtful[0]!r} ({int((texts == doubtful[0]).sum())} times)"
    if all(is_number(word) for word in words - set(doubtful)):
        bad_value("label", f"{got} and beside it numbers or nothing, {doubt}; accepted: {accepted}")
    warnings.warn(f"label: {got}, which is taken as a class; accepted without this warning: {accepted}",
                  UserWarning, stacklevel=2)  # fmt: skip


def _is_integer(text: str) -> bool:
    return len(text) < 19 and text.removeprefix("-").isdecimal()


def _numbers(y: np.ndarray) -> np.ndarray:
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
            got = f"node {at * len(y) // y.size} has {text[:80]!r}"
            bad_value("label", f"{got}; accepted: numbers, or an empty cell where there is none")
    return flat.reshape(y.shape)


def _of_numbers(
    y: np.ndarray, kind: str, classes: int | tuple[str, ...] | None, columns: tuple[str, ...] | None
) -> Labels:
    if np.isinf(y).any():
        bad_value(
            "y",
            f"node {int(np.isinf(y).reshape(len(y), -1).any(1).argmax())} has infinity; accepted: numbers",
        )
    known = y[~np.isnan(y)]
    if kind == "auto":
        whole = bool((known == np.floor(known)).all())
        several = y.ndim == 2 and bool(np.isin(known, (-1, 0, 1)).all())
        kind = "multilabel" if several else "class" if y.ndim == 1 and whole else "regression"
    if kind == "class":
        return _numbered(y, known, classes)
    table = y.reshape(len(y), -1)
    if kind == "multilabel":
        table = np.where(table == -1, np.nan, table)
        if not (np.isnan(table) | np.isin(table, (0, 1))).all():
            bad_value("y", "holds other numbers than 0 and 1; accepted: 1 for each label that a node has")
        if np.isin(y, -1).any() and not (table == 0).any():
            bad_value("y", "holds -1 and no 0; accepted: 0 for a label that a node does not have, and -1 or "
                      "NaN where it is not known")  # fmt: skip
    present = ~np.isnan(table).all(axis=1)
    if not present.any():
        bad_value("y", "no node has a label; accepted: at least one that is not NaN")
    with np.errstate(over="ignore"):
        table = table.astype(np.float32)
    if np.isinf(table).any():
        bad_value("y", "holds a number beyond the range of float32; accepted: smaller ones")
    names = _names_of(classes, columns, table.shape[1])
    return Labels(torch.from_numpy(table), torch.from_numpy(present), table.shape[1], kind, names)


def _names_of(
    classes: int | tuple[str, ...] | None, columns: tuple[str, ...] | None, count: int
) -> tuple[str, ...] | None:
    """Return the names of labels or targets, after a check that there are so many."""
    given = classes if isinstance(classes, int) else count if classes is None else len(classes)
    if given != count:
        bad_value("classes", f"got {given}, and there are {count} columns of labels; accepted: as many")
    return classes if isinstance(classes, tuple) else columns


def _numbered(y: np.ndarray, known: np.ndarray, classes: int | tuple[str, ...] | None) -> Labels:
    """Make classes of integers, which are the numbers of the classes."""
    accepted = f"0 to {len(y) - 1}, or -1 or NaN where there is none" if len(y) else "integers"
    if y.ndim != 1:
        bad_value("y", f"has shape {y.shape}; accepted: one class for each node")
    limit = len(y) if classes is None else _check_count(classes)
    wrong = ~np.isnan(y) & ((y != np.floor(y)) | (y < -1) | (y >= limit))
    if wrong.any():
        at = int(wrong.argmax())
        if classes is not None:
            accepted = f"0 to {limit - 1}, as classes= says, or -1 or NaN where there is none"
        bad_value("y", f"node {at} has the class {y[at]:g}; accepted: {accepted}")
    found = known[known >= 0]
    if classes is None and not found.size:
        bad_value("y", "no node has a label; accepted: at least one that is not NaN or -1")
    if classes is None and len(set(found.tolist())) < 2:
        _refuse_one_class("y", int(found[0]), found.size)
    count = limit if classes is not None else int(found.max()) + 1
    numbers = np.where(np.isnan(y), -1, y).astype(np.int64)
    names = classes if isinstance(classes, tuple) else None
    return Labels(torch.from_numpy(numbers), torch.from_numpy(numbers >= 0), count, "class", names)


#: What `features` can be: those of the file, or made of the graph.
FEATURES = ("file", "degree", "constant", "identity")
#: What `split` can be, beside "given:NUMBER" and "time:COLUMN".
SPLITS = ("auto", "given", "random", "stratified")
#: Columns of the features that are made of degrees, one for each power of two of 32 bits.
_DEGREES = 32


@dataclass(frozen=True)
class BuildOptions:
    """How a data set is made of a file's content; `load_custom` documents the attributes.

    Raises:
        TypeError: an attribute is of another type.
        ValueError: an attribute is out of range.
    """

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

    def __post_init__(self) -> None:
        check_choice("features", self.features, FEATURES)
        check_choice("label_kind", self.label_kind, LABEL_KINDS)
        check_classes(self.classes)
        if self.metric is not None:
            check_choice("metric", self.metric, METRICS)
        self.split_parts()
        for name in ("train_fraction", "val_fraction"):
            _check_fraction(name, getattr(self, name))
        if self.train_fraction + self.val_fraction >= 1:
            got = f"{self.val_fraction} beside train_fraction={self.train_fraction}"
            bad_value("val_fraction", f"got {got}; accepted: fractions that leave some nodes for the test")
        check_seed(self.seed)
        if self.directed is not None:
            check_flag("directed", self.directed)
        check_flag("normalize_features", self.normalize_features)

    def split_parts(self) -> tuple[str, str]:
        """Return the kind of split, and what follows the colon."""
        accepted = ", ".join([*SPLITS, "given:NUMBER", "time:COLUMN"])
        if not isinstance(self.split, str):
            bad_type("split", self.split, f"one of {accepted}")
        kind, colon, rest = self.split.partition(":")
        plain = kind in SPLITS and not colon
        numbered = kind == "given" and rest.isdecimal() and len(rest) < 10
        if not (plain or numbered or (kind == "time" and rest)):
            bad_value("split", f"got {self.split!r}; accepted: {accepted}")
        return kind, rest


def _check_fraction(name: str, value: Any) -> None:
    accepted = "a number between 0 and 1, without both"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        bad_type(name, value, accepted)
    if not 0 < value < 1:
        bad_value(name, f"got {value}; accepted: {accepted}")


def build_dataset(name: str, content: Content, options: BuildOptions) -> NodeDataset:
    """Make a data set.

    Args:
        name: name of the data set.
        content: what the file holds.
        options: how to make labels, features and the split of it.

    Raises:
        ValueError: something that the options ask for is not in the file, or what it holds can't be trained
            on; the message begins with the option or the array.
        MemoryError: the data set does not fit into memory.
    """
    labels = read_labels(content, options.label_kind, check_classes(options.classes))
    graph = _graph(content, options.directed)
    x = _features(content, graph, options.features)
    if options.normalize_features:
        normalize_rows(x)
    train, val, test = _split(content, labels, options)
    return NodeDataset(
        name=name,
        graph=graph,
        x=x,
        y=labels.y,
        train_mask=train,
        val_mask=val,
        test_mask=test,
        num_classes=labels.count,
        metric=_metric(labels.kind, options.metric),
        node_ids=content.ids,
        class_names=labels.names,
        feature_names=content.feature_names if options.features == "file" else None,
    )


def _metric(kind: str, given: str | None) -> str:
    """Return the metric of labels of a kind; raise ValueError if another one is given."""
    accepted = {"class": ("accuracy", "roc_auc"), "multilabel": ("micro_f1", "mean_roc_auc")}.get(
        kind, REGRESSION_METRICS
    )
    if given is not None and given not in accepted:
        bad_value("metric", f"got {given!r} for labels of the kind {kind}; accepted: {', '.join(accepted)}")
    return given or accepted[0]


def _graph(content: Content, directed: bool | None) -> SparseGraph:
    """Make the graph A[target, source]; in an undirected one each edge leads both ways.

    Of an undirected graph without weights repeated edges count once, since its file may have each edge once
    or in both directions. Weights of repeated edges are summed.
    """
    directed = content.directed if directed is None else directed
    edges, weights = torch.from_numpy(content.edges), content.weights
    check_memory("edge_index", 48 * edges.shape[1], f"a graph of {edges.shape[1]} edges")
    if weights is not None:
        with np.errstate(over="ignore"):  # too large ones become infinite, which the graph refuses
            weights = weights.astype(np.float32)
    if directed:
        made = SparseGraph.from_edge_index(edges, content.nodes, weights)
        return SparseGraph(made.csr, made.values)
    if weights is None:
        node_count("num_nodes", content.nodes)
        _check_nodes(content)
        both = torch.cat([edges, edges.flip(0)], dim=1)
        csr, _ = coo_to_csr(both[1].contiguous(), both[0].contiguous(), content.nodes, content.nodes)
        return SparseGraph(csr)
    beside = edges[0] != edges[1]
    both = torch.cat([edges, edges.flip(0)[:, beside]], dim=1)
    made = SparseGraph.from_edge_index(
        both, content.nodes, np.concatenate([weights, weights[beside.numpy()]])
    )
    return SparseGraph(made.csr, made.values)


def _check_nodes(content: Content) -> None:
    for name, ends in zip(("sources", "targets"), content.edges, strict=True):
        wrong = (ends < 0) | (ends >= content.nodes)
        if wrong.any():
            at = int(wrong.argmax())
            bad_value(
                "edge_index",
                f"the {name} have {ends[at]} as element {at}; accepted: 0 to {content.nodes - 1}",
            )


def _features(content: Content, graph: SparseGraph, kind: str) -> torch.Tensor:
    """Return features, float32 [N, F]: those of the file, or made of the graph."""
    nodes = content.nodes
    if kind == "file":
        if content.x is None:
            bad_value(
                "features",
                "got 'file', and the file has no features; accepted: degree, constant or identity, as in "
                "features=degree",
            )
        return torch.from_numpy(dense_features(content.x))
    if kind == "constant":
        return torch.ones(nodes, 1, dtype=torch.float32, device="cpu")
    if kind == "identity":
        check_memory("features", 4 * nodes * nodes, f"a column for each of {nodes} nodes")
        return torch.eye(nodes, dtype=torch.float32, device="cpu")
    place = (graph.csr.degrees.double() + 1).log2().floor().long()
    return torch.nn.functional.one_hot(place, _DEGREES).float()


def _split(content: Content, labels: Labels, options: BuildOptions) -> Masks:
    """Make the split of the nodes that have a label; check that no part is empty."""
    kind, rest = options.split_parts()
    if not labels.present.any():
        return labels.present, labels.present.clone(), labels.present.clone()
    if kind == "auto":
        kind = "given" if content.masks else "stratified" if labels.kind == "class" else "random"
    parts = _given(content, rest) if kind == "given" else _made(kind, rest, content, labels, options)
    train, val, test = (part & labels.present for part in parts)
    for name, part in zip(PARTS, (train, val, test), strict=True):
        if not part.any():
            of = f"{int(labels.present.sum())} nodes with a label"
            bad_value("split", f"{options.split!r} of {of} leaves none for {name}; accepted: no empty part")
    return train, val, test


def _given(content: Content, number: str) -> Masks:
    missing = [f"{name}_mask" for name in PARTS if name not in content.masks]
    if missing:
        there = "no split" if len(missing) == len(PARTS) else f"no {', '.join(missing)}"
        bad_value(
            "split", f"got 'given', and the file has {there}; accepted: random, stratified or time:COLUMN"
        )
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
    parts = [torch.from_numpy(np.ascontiguousarray(column)) for column in columns]
    twice = torch.stack(parts).sum(dim=0) > 1
    if twice.any():
        at = int(twice.long().argmax())
        node = at if content.ids is None else repr(content.ids[at])
        bad_value("split", f"node {node} is in two parts of the given split; accepted: parts without overlap")
    return parts[0], parts[1], parts[2]


def _made(kind: str, column: str, content: Content, labels: Labels, options: BuildOptions) -> Masks:
    """Draw a split of the nodes with a label, or make one of their times."""
    present = labels.present.nonzero().flatten()
    generator = split_generator(0, options.seed)
    fractions = (options.train_fraction, options.val_fraction)
    if kind == "random":
        masks = random_split(present.numel(), generator, *fractions)
    elif kind == "stratified":
        if labels.kind != "class":
            bad_value(
                "split", "got 'stratified' for labels that are no classes; accepted: random or time:COLUMN"
            )
        masks = stratified_split(labels.y[present], generator, *fractions)
    else:
        times = _times(content, column)[present]
        present, times = present[~times.isnan()], times[~times.isnan()]
        if times.unique().numel() < len(PARTS):
            bad_value(
                "split", f"column {column!r} has less than three different times; accepted: three or more"
            )
        masks = split_by_time(times, *fractions)
    whole = torch.zeros(len(PARTS), content.nodes, dtype=torch.bool, device="cpu")
    for row, mask in zip(whole, masks, strict=True):
        row[present[mask]] = True
    return whole[0], whole[1], whole[2]


def _times(content: Content, column: str) -> torch.Tensor:
    """Return a column of times as numbers, float64 [N], NaN where there is none."""
    if column not in content.columns:
        known = ", ".join(content.columns) or "none"
        bad_value(
            "split", f"got 'time:{column}', and the nodes have no such column; they have: {known}"[:400]
        )
    values = content.columns[column]
    if values.ndim != 1:
        bad_value("split", f"column {column!r} has shape {values.shape}; accepted: a number for each node")
    if values.dtype.kind in "biuf":
        return torch.from_numpy(values.astype(np.float64))
    times = np.full(len(values), np.nan)
    for at, value in enumerate(values.tolist()):
        text = str(value).strip()
        try:
            times[at] = float(text) if text else np.nan
        except ValueError:
            times[at] = _date(column, at, text)
    return torch.from_numpy(times)


def _date(column: str, row: int, text: str) -> float:
    """Return a date in the form of ISO 8601 as seconds."""
    from datetime import datetime, timezone

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        bad_value(
            "split",
            f"column {column!r} has {text[:40]!r} for node {row}; accepted: numbers, or dates as 2024-12-31",
        )
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
