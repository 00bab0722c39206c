"""The data set that is made of a file's content and the user's options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gnnsparse.data.checks import check_seed
from gnnsparse.data.custom.content import PARTS, Content, dense_features
from gnnsparse.data.custom.labels import LABEL_KINDS, Labels, check_classes, read_labels
from gnnsparse.data.dataset import METRICS, REGRESSION_METRICS, NodeDataset, normalize_rows
from gnnsparse.data.splits import Masks, random_split, split_by_time, split_generator, stratified_split
from gnnsparse.errors import bad_type, bad_value, check_choice, check_flag, check_memory
from gnnsparse.formats.csr import coo_to_csr
from gnnsparse.sparse.graph import SparseGraph, node_count

__all__ = ["FEATURES", "SPLITS", "BuildOptions", "build_dataset"]

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
        """Returns the kind of split, and what follows the colon."""
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
    """Makes a data set.

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
    """Returns the metric of labels of a kind; raises ValueError if another one is given."""
    accepted = {"class": ("accuracy", "roc_auc"), "multilabel": ("micro_f1", "mean_roc_auc")}.get(
        kind, REGRESSION_METRICS
    )
    if given is not None and given not in accepted:
        bad_value("metric", f"got {given!r} for labels of the kind {kind}; accepted: {', '.join(accepted)}")
    return given or accepted[0]


def _graph(content: Content, directed: bool | None) -> SparseGraph:
    """Makes the graph A[target, source]; in an undirected one each edge leads both ways.

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
    """Returns features, float32 [N, F]: those of the file, or made of the graph."""
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
    """Makes the split of the nodes that have a label; checks that no part is empty."""
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
    """Draws a split of the nodes with a label, or makes one of their times."""
    present = labels.present.nonzero().flatten()
    generator = split_generator(0, options.seed)
    shares = (options.train_fraction, options.val_fraction)
    if kind == "random":
        masks = random_split(present.numel(), generator, *shares)
    elif kind == "stratified":
        if labels.kind != "class":
            bad_value(
                "split", "got 'stratified' for labels that are no classes; accepted: random or time:COLUMN"
            )
        masks = stratified_split(labels.y[present], generator, *shares)
    else:
        times = _times(content, column)[present]
        present, times = present[~times.isnan()], times[~times.isnan()]
        if times.unique().numel() < len(PARTS):
            bad_value(
                "split", f"column {column!r} has less than three different times; accepted: three or more"
            )
        masks = split_by_time(times, *shares)
    whole = torch.zeros(len(PARTS), content.nodes, dtype=torch.bool, device="cpu")
    for row, mask in zip(whole, masks, strict=True):
        row[present[mask]] = True
    return whole[0], whole[1], whole[2]


def _times(content: Content, column: str) -> torch.Tensor:
    """Returns a column of times as numbers, float64 [N], NaN where there is none."""
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
    """Returns a date in the form of ISO 8601 as seconds."""
    from datetime import datetime, timezone

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        bad_value(
            "split",
            f"column {column!r} has {text[:40]!r} for node {row}; accepted: numbers, or dates as 2024-12-31",
        )
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
