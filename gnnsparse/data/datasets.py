"""The data sets that models train on: of nodes, of graphs, of links and of sequences, and their checks."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from gnnsparse.errors import bad_type, bad_value, check_choice, check_integer, check_tensor, shown
from gnnsparse.formats.csr import are_in, check_range
from gnnsparse.sparse.graph import SparseGraph

if TYPE_CHECKING:
    from typing_extensions import Self


def _number(name: str, value: Any, most: float, accepted: str) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        bad_type(name, value, accepted)
    if not 0 <= int(value) <= most:
        bad_value(name, f"got {shown(value)}; accepted: {accepted}")
    return int(value)


def check_seed(value: Any) -> int:
    """Return `value` if it can be a seed, an integer from 0 to 2^63 - 1; else raise."""
    return _number("seed", value, 2**63 - 1, "an integer from 0 to 2^63 - 1")


def check_split(value: Any, count: int | None) -> int:
    """Return `value` if it is the number of one of `count` splits, None: of any number; else raise."""
    accepted = "0, 1, 2, ..." if count is None else "0" if count == 1 else f"0 to {count - 1}"
    return _number("split", value, math.inf if count is None else count - 1, accepted)


def check_scale(value: Any) -> float:
    """Return `value` if it is a number above 0 and at most 1; else raise."""
    accepted = "a number above 0 and at most 1"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        bad_type("scale", value, accepted)
    number: Any = value
    if not 0 < number <= 1:  # before the conversion, for which an integer may be too large
        bad_value("scale", f"got {shown(value)}; accepted: {accepted}")
    return float(value)


def _check_square(graph: Any) -> int:
    """Return the number of nodes of `graph` if it is a square SparseGraph; else raise."""
    if not isinstance(graph, SparseGraph):
        bad_type("graph", graph, "a SparseGraph")
    nodes = graph.num_rows
    if graph.num_cols != nodes:
        bad_value("graph", f"has shape ({nodes}, {graph.num_cols}); accepted: a square one")
    return nodes


def check_finite(name: str, values: torch.Tensor) -> torch.Tensor:
    """Return float32 values if all are finite, else raise; only where their sum is not are they looked at."""
    if math.isfinite(float(values.sum())):
        return values
    wrong = ~torch.isfinite(values)
    if bool(wrong.any()):
        at = wrong.nonzero()[0].tolist()
        bad_value(name, f"element {at} is {float(values[tuple(at)])}; accepted: finite numbers")
    return values


def check_labels(name: str, labels: Any, items: int, count: int, *, missing: bool = False) -> None:
    """Raise unless `labels` are int64 [items], classes below `count`, or float32 [items, count] of 0 and 1.

    With `missing` some may be missing: classes of -1, and labels of NaN.
    """
    if isinstance(labels, torch.Tensor) and labels.is_floating_point():
        check_tensor(name, labels, dtypes=(torch.float32,), shape=(items, count))
        known = labels[~labels.isnan()] if missing else labels
        if not bool(((known == 0) | (known == 1)).all()):
            accepted = "1 for each label that an item has, and 0 for the others"
            if missing:
                accepted += ", NaN for missing ones (numbers to predict: metric='mae', 'mse' or 'r2')"
            bad_value(name, f"holds other numbers than 0 and 1; accepted: {accepted}")
        return
    check_tensor(name, labels, dtypes=(torch.int64,), shape=(items,))
    low, high = (int(bound) for bound in labels.aminmax()) if items else (0, -1)
    if low < -int(missing) or high >= count:
        more = ", and -1 for missing ones" if missing else ""
        bad_value(name, f"holds classes {low} to {high}; accepted: 0 to {count - 1}{more}")


#: The metrics of data sets with classes or labels, of which larger values are better.
CLASS_METRICS = ("accuracy", "macro_f1", "roc_auc", "micro_f1", "mean_roc_auc")
#: The metrics of data sets with numbers to predict: mean absolute error, mean squared error, and R^2.
REGRESSION_METRICS = ("mae", "mse", "r2")
#: The metrics that data sets are scored by.
METRICS = (*CLASS_METRICS, *REGRESSION_METRICS)


@dataclass(frozen=True, eq=False)
class EdgeFeatures:
    """Features of the edges of a graph, for models that take an `edge_attr`.

    Attributes:
        edge_index: int64 [2, edges], sources over targets; repeated edges are there several times.
        edge_attr: float32 [edges, D].
        weights: float32 [edges]; None: 1 each.
        transform: how the features were made, as feature_transform of a NodeDataset.
    """

    edge_index: torch.Tensor
    edge_attr: torch.Tensor
    weights: torch.Tensor | None
    transform: Mapping[str, Any]

    @property
    def attributes(self) -> dict[str, torch.Tensor]:
        """The attributes of PyG's Data that these are."""
        weights = {} if self.weights is None else {"edge_weight": self.weights}
        return {"edge_index": self.edge_index, "edge_attr": self.edge_attr, **weights}


class WithTargets:
    """A data set with targets, whatever they are of."""

    y: torch.Tensor
    train_mask: torch.Tensor
    val_mask: torch.Tensor
    test_mask: torch.Tensor
    num_classes: int
    metric: str

    def check_targets(self, items: int) -> dict[str, torch.Tensor]:
        """Check the targets of `items` nodes, graphs or edges; return their masks by name."""
        check_choice("metric", self.metric, METRICS)
        if self.metric not in REGRESSION_METRICS:
            check_labels("y", self.y, items, self.num_classes, missing=True)
        else:
            check_tensor("y", self.y, dtypes=(torch.float32,))
            shapes = [(items,), (items, 1)] if self.num_classes == 1 else [(items, self.num_classes)]
            if tuple(self.y.shape) not in shapes:
                accepted = " or ".join(map(str, shapes))
                bad_value("y", f"has shape {tuple(self.y.shape)}; accepted: {accepted}")
            if bool(self.y.isinf().any()):
                bad_value("y", "holds an infinite number; accepted: finite numbers, and NaN for missing ones")
        masks = {name: getattr(self, name) for name in ("train_mask", "val_mask", "test_mask")}
        for name, mask in masks.items():
            check_tensor(name, mask, dtypes=(torch.bool,), shape=(items,))
        return masks

    def check_apart(self, items: int, what: str) -> None:
        """Check targets as `check_targets` does, and that no item is in two of the masks."""
        masks = self.check_targets(items)
        if items and int(torch.stack(list(masks.values())).sum(dim=0).max()) > 1:
            bad_value("test_mask", f"{what} is in two of the masks; accepted: masks without overlap")

    @property
    def multi_label(self) -> bool:
        """Whether a node, or a graph, can have several labels."""
        return self.y.dim() == 2 and not self.regression

    @property
    def regression(self) -> bool:
        """Whether `y` are numbers to predict."""
        return self.y.is_floating_point() and self.metric in REGRESSION_METRICS


def check_text_names(name: str, names: Any, count: int) -> None:
    """Raise unless `names` are a tuple of `count` texts, or None."""
    if names is not None and (not isinstance(names, tuple) or len(names) != count):
        bad_value(name, f"accepted: a tuple of {count} texts, or None")


class _WithFeatures(WithTargets):
    """A data set of one graph, or of many as one, with features of its nodes and with targets."""

    graph: SparseGraph
    x: torch.Tensor
    on_disk: bool = False

    def _check_features(self) -> None:
        dtypes = (torch.float32, torch.float16) if self.on_disk else (torch.float32,)
        check_tensor("x", self.x, dtypes=dtypes, shape=(self.num_nodes, None))
        if not self.on_disk:  # who maps a file looks at it once
            check_finite("x", self.x)

    def _check_names(self, ids: str, items: int) -> None:
        """Raise unless there are as many names as items, whose names are the attribute `ids`, and so on."""
        sizes = {ids: items, "class_names": self.num_classes, "feature_names": self.num_features}
        for name, count in sizes.items():
            check_text_names(name, getattr(self, name), count)

    def without_weights(self) -> Self:
        """Return the task with edges that have no weights, for a model that would ignore them."""
        of: Any = self
        more = getattr(of, "edge_features", None)
        own = {} if more is None else {"edge_features": replace(more, weights=None)}
        weightless: Self = replace(of, graph=SparseGraph(self.graph.csr), **own)
        return weightless

    @property
    def num_nodes(self) -> int:
        """N, the number of nodes."""
        return self.graph.num_rows

    @property
    def train_degrees(self) -> torch.Tensor:
        """How many edges lead to each node, int64 [nodes], of many graphs to those of the training part."""
        of: Any = self
        more, degrees = getattr(of, "edge_features", None), of.graph.csr.degrees.long()
        if more is not None:  # which tells repeated edges apart
            degrees = more.edge_index[1].bincount(minlength=of.num_nodes)
        ptr = getattr(of, "graph_ptr", None)
        return degrees if ptr is None else degrees[of.train_mask.repeat_interleave(ptr.diff())]

    @property
    def num_features(self) -> int:
        """F, the number of features of a node."""
        return self.x.shape[1]


@dataclass(frozen=True, eq=False)
class NodeDataset(_WithFeatures):
    """Classification or regression of the nodes of one graph, with N nodes and F features.

    Attributes:
        name: name of the data set.
        graph: A[target, source], N x N, with the self-loops of the data.
        x: features, float32 [N, F], finite.
        y: int64 [N], the class of each node; or float32 [N, labels] of 0 and 1, if nodes have several labels;
            or float32 [N] or [N, numbers], numbers to predict, if the metric is one of REGRESSION_METRICS. A
            class of -1 and labels and numbers of NaN are missing: nothing is trained on or scored by them.
        train_mask: bool [N], the nodes to train on.
        val_mask: bool [N], the nodes by which the best model is chosen.
        test_mask: bool [N], the nodes that it is scored on. A node is in at most one of the masks.
        num_classes: number of classes, or of labels if nodes have several, or of numbers to predict for a
            node.
        metric: one of METRICS.
        node_ids: the names of the nodes in the user's files, N different texts; None: they are numbered.
        class_names: the names of the classes or labels, num_classes texts; None: they are numbered.
        feature_names: the names of the features, F different texts; None: they have none.
        feature_transform: how the features were made of columns of a user's file, plain values, by which
            `load_custom(..., transform=)` makes those of another file; None: the data are no user's file.
        on_disk: whether graph and features are memory-mapped files, which are not to be read whole: training,
            scores and predictions take samples then. Features may be float16, and were looked at before.
        edge_features: features of edges, which `gnnsparse.fit` gives to models that take them; None: none.

    Raises:
        TypeError: an attribute is of another type or dtype.
        ValueError: shapes do not agree, a feature is not finite, a node is in two masks, a class is not below
            `num_classes`, a label is neither 0 nor 1, a number to predict is infinite, there are more or
            fewer names than nodes, classes or features, or the metric is unknown.
    """

    name: str
    graph: SparseGraph
    x: torch.Tensor
    y: torch.Tensor
    train_mask: torch.Tensor
    val_mask: torch.Tensor
    test_mask: torch.Tensor
    num_classes: int
    metric: str = "accuracy"
    node_ids: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    feature_transform: Mapping[str, Any] | None = None
    on_disk: bool = False
    edge_features: EdgeFeatures | None = None

    def __post_init__(self) -> None:
        nodes = _check_square(self.graph)
        self._check_features()
        self.check_apart(nodes, "a node")
        self._check_names("node_ids", nodes)


def normalize_rows(x: torch.Tensor) -> None:
    """Divide each row of x [N, F] by the sum of its magnitudes, in place. Rows of zeros stay zero."""
    total = torch.linalg.vector_norm(x, ord=1, dim=1, keepdim=True)
    x.div_(total.where(total > 0, 1.0))


@dataclass(frozen=True, eq=False)
class GraphDataset(_WithFeatures):
    """Classification or regression of G graphs, which have N nodes with F features together.

    Graph g has the nodes graph_ptr[g] to graph_ptr[g + 1] - 1, and no edge joins nodes of two graphs:
    `gnnsparse.data.block_diagonal` makes such a matrix of single graphs.

    Attributes:
        name: name of the data set.
        graph: A[target, source], N x N, block-diagonal.
        graph_ptr: int64 [G + 1], ascending from 0 to N; each graph has a node.
        x: features of the nodes, float32 [N, F], finite.
        y: int64 [G], the class of each graph; or float32 [G, labels] of 0 and 1, if graphs have several
            labels; or float32 [G] or [G, numbers], numbers to predict, if the metric is "mae", "mse" or "r2".
            A class of -1 and labels and numbers of NaN are missing.
        train_mask: bool [G], the graphs to train on.
        val_mask: bool [G], the graphs by which the best epoch is chosen.
        test_mask: bool [G], the graphs that it is scored on, which may be those of `val_mask`.
        num_classes: number of classes, labels or numbers to predict.
        metric: one of METRICS.
        graph_ids: the names of the graphs in the user's files, G different texts; None: they are numbered.
        class_names: the names of the classes or labels, num_classes texts; None: they are numbered.
        feature_names: the names of the features, F different texts; None: they have none.
        feature_transform, edge_features: those of a NodeDataset.

    Raises:
        TypeError: an attribute is of another type or dtype.
        ValueError: shapes do not agree, an edge joins two graphs, a feature is not finite, a graph to train
            on is in another part as well, or a target or the metric is not accepted.
    """

    name: str
    graph: SparseGraph
    graph_ptr: torch.Tensor
    x: torch.Tensor
    y: torch.Tensor
    train_mask: torch.Tensor
    val_mask: torch.Tensor
    test_mask: torch.Tensor
    num_classes: int
    metric: str = "accuracy"
    graph_ids: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    feature_transform: Mapping[str, Any] | None = None
    edge_features: EdgeFeatures | None = None

    def __post_init__(self) -> None:
        nodes = _check_square(self.graph)
        check_graph_ptr(self.graph_ptr, nodes)
        csr, graphs = self.graph.csr, torch.arange(self.num_graphs, device=self.graph_ptr.device)
        graph_of = graphs.repeat_interleave(self.graph_ptr.diff()).to(csr.device)
        wrong = graph_of[csr.indices.long()] != graph_of[csr.row_index()]
        if bool(wrong.any()):
            at = int(wrong.nonzero()[0])
            row, column = int(csr.row_index()[at]), int(csr.indices[at])
            bad_value(
                "graph", f"has an edge from node {column} to node {row} of another graph; accepted: none"
            )
        self._check_features()
        self.check_targets(self.num_graphs)
        self._check_names("graph_ids", self.num_graphs)
        if bool((self.train_mask & (self.val_mask | self.test_mask)).any()):
            bad_value("train_mask", "has a graph of another part; accepted: graphs that are in no other part")

    @property
    def num_graphs(self) -> int:
        """G, the number of graphs."""
        return self.graph_ptr.numel() - 1

    @property
    def parts(self) -> dict[str, torch.Tensor]:
        """The graphs of each part of the split by name, int64: "train", "val", "test"."""
        masks = {"train": self.train_mask, "val": self.val_mask, "test": self.test_mask}
        return {name: mask.nonzero().flatten() for name, mask in masks.items()}


def check_graph_ptr(graph_ptr: torch.Tensor, nodes: int) -> None:
    """Raise unless `graph_ptr` is int64 [graphs + 1] and ascends from 0 to `nodes`, without repeats."""
    check_tensor("graph_ptr", graph_ptr, dtypes=(torch.int64,), shape=(None,))
    if graph_ptr.numel() == 0 or int(graph_ptr[0]) != 0 or int(graph_ptr[-1]) != nodes:
        accepted = "the first node of each graph, and N"
        bad_value("graph_ptr", f"does not lead from 0 to {nodes}; accepted: {accepted}")
    if bool((graph_ptr.diff() <= 0).any()):
        at = int((graph_ptr.diff() <= 0).nonzero()[0])
        bad_value("graph_ptr", f"graph {at} has no nodes; accepted: graphs of one node or more")


@dataclass(frozen=True, eq=False)
class EdgeDataset(_WithFeatures):
    """Classification or regression of k edges of one graph, with N nodes and F features.

    Attributes:
        name: name of the data set.
        graph: A[target, source], N x N, over which messages pass, whether labels of its edges are known or
            not.
        x: features of the nodes, float32 [N, F], finite.
        edge_index: int64 [2, k], sources over targets. An edge may be there several times, with other labels.
        y, train_mask, val_mask, test_mask: those of a NodeDataset, with a row for each edge.
        num_classes: number of classes, labels or numbers to predict.
        metric: one of METRICS.
        edge_attr: features of the edges, float32 [k, D], finite; None: they have none.
        node_ids: the names of the nodes in the user's files, N different texts; None: they are numbered.
        class_names: the names of the classes or labels, num_classes texts; None: they are numbered.
        feature_names, feature_transform: those of a NodeDataset.
        edge_transform: how the features of the edges were made, as feature_transform.

    Raises:
        TypeError: an attribute is of another type or dtype.
        ValueError: shapes do not agree, an end is no node, a feature is not finite, an edge is in two masks,
            or a target, a number of names or the metric is not accepted.
    """

    name: str
    graph: SparseGraph
    x: torch.Tensor
    edge_index: torch.Tensor
    y: torch.Tensor
    train_mask: torch.Tensor
    val_mask: torch.Tensor
    test_mask: torch.Tensor
    num_classes: int
    metric: str = "accuracy"
    edge_attr: torch.Tensor | None = None
    node_ids: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    feature_transform: Mapping[str, Any] | None = None
    edge_transform: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        nodes = _check_square(self.graph)
        check_tensor("edge_index", self.edge_index, dtypes=(torch.int64,), shape=(2, None))
        check_range("edge_index", self.edge_index.reshape(-1), nodes, "the number of nodes")
        edges = self.edge_index.shape[1]
        self._check_features()
        self.check_apart(edges, "an edge")
        self._check_names("node_ids", nodes)
        if self.edge_attr is not None:
            check_tensor("edge_attr", self.edge_attr, dtypes=(torch.float32,), shape=(edges, None))
            check_finite("edge_attr", self.edge_attr)


#: The scores of links by which the best epoch can be chosen.
LINK_METRICS = ("hits", "mrr", "auc")
#: Rounds after which the search for pairs without an edge is given up, and the least fraction of such pairs.
_ROUNDS, _LEAST_FRACTION = 64, 0.01
_PAIRS = ("train_edges", "val_edges", "val_negatives", "test_edges", "test_negatives")


@dataclass(frozen=True, eq=False)
class LinkDataset:
    """Prediction of the links of one graph with N nodes.

    Attributes:
        name: name of the data set.
        graph: A, N x N, with the edges to train on in both directions, or if they are directed,
            A[target, source].
        train_edges: int64 [k, 2], pairs of nodes, each edge to train on once.
        val_edges, test_edges: int64 [k, 2], edges that the graph lacks, to choose the best epoch by and to
            score it on.
        val_negatives, test_negatives: int64 [k, 2], pairs without an edge, which all edges of the part are
            ranked with.
        hits_at: K of hits@K.
        metric: "hits", "mrr" or "auc", by which the best epoch is chosen.
        x: float32 [N, F], features of the nodes; None: models learn an embedding of each.
        node_ids: what the nodes are called; None: they have numbers alone.
        directed: whether (u, v) is another pair than (v, u); pairs are (source, target).
        sides: int64 [sources] and [targets], the nodes that pairs without an edge are drawn of; None: all.
        known: int64, ascending, u * N + v of the edges (u, v) of all parts, which are never negatives; None:
            those of the graph.
        pairs: int64 [k, 2], pairs to predict for; None: those of the test part.
        feature_names, feature_transform: as in NodeDataset.

    Raises:
        TypeError: an attribute is of another type or dtype.
        ValueError: a shape or a node is out of range, a part is empty, an edge to train on is not in the
            graph, or `hits_at` is below 1.
    """

    name: str
    graph: SparseGraph
    train_edges: torch.Tensor
    val_edges: torch.Tensor
    val_negatives: torch.Tensor
    test_edges: torch.Tensor
    test_negatives: torch.Tensor
    hits_at: int = 20
    metric: str = "hits"
    x: torch.Tensor | None = None
    node_ids: tuple[str, ...] | None = None
    directed: bool = False
    sides: tuple[torch.Tensor, torch.Tensor] | None = None
    known: torch.Tensor | None = None
    pairs: torch.Tensor | None = None
    feature_names: tuple[str, ...] | None = None
    feature_transform: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        nodes = _check_square(self.graph)
        check_integer("hits_at", self.hits_at)
        check_choice("metric", self.metric, LINK_METRICS)
        if self.x is not None:
            x = check_tensor("x", self.x, dtypes=(torch.float32,), shape=(nodes, None))
            if not bool(x.isfinite().all()):
                bad_value("x", "has a number that is not finite; accepted: finite numbers")
        for name in _PAIRS:
            pairs = check_tensor(name, getattr(self, name), dtypes=(torch.int64,), shape=(None, 2))
            check_range(name, pairs.reshape(-1).contiguous(), nodes, "the number of nodes")
            if pairs.shape[0] == 0:
                bad_value(name, "is empty; accepted: a pair or more")
        keys = edge_keys(self.graph)
        both = (self.train_edges.flip(1), self.train_edges)[: 1 if self.directed else 2]
        for pairs in both:
            if not bool(has_edges(keys, pairs, nodes).all()):
                problem = "has an edge that the graph lacks"
                bad_value("train_edges", f"{problem}; accepted: edges in both directions")

    @property
    def num_nodes(self) -> int:
        """N, the number of nodes."""
        return self.graph.num_rows


def edge_keys(graph: SparseGraph) -> torch.Tensor:
    """Return row * columns + column of each edge, int64 [nnz] in ascending order, on the CPU."""
    csr = graph.csr.to(torch.device("cpu"))
    return csr.row_index() * csr.cols + csr.indices.long()


def has_edges(keys: torch.Tensor, pairs: torch.Tensor, columns: int) -> torch.Tensor:
    """Return for pairs (row, column), int64 [k, 2], whether `edge_keys` of a graph has them, bool [k]."""
    return are_in(keys, pairs[:, 0] * columns + pairs[:, 1])


def sample_negatives(
    keys: torch.Tensor,
    nodes: int,
    count: int,
    generator: torch.Generator,
    sides: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Draw pairs of two different nodes without an edge, int64 [count, 2], uniformly and with replacement.

    The keys u * nodes + v of edges (u, v) ascend, as those of `edge_keys` do. With `sides` the first node is
    one of sides[0] and the second of sides[1]. All is on the CPU.

    Raises:
        ValueError: nearly all pairs are edges.
    """
    sizes = (nodes, nodes) if sides is None else (sides[0].numel(), sides[1].numel())
    possible = nodes * (nodes - 1) if sides is None else sizes[0] * sizes[1]
    if possible - keys.numel() < _LEAST_FRACTION * possible:
        bad_value("edges", f"join nearly all pairs of the {nodes} nodes; accepted: 99 % of them at most")
    pairs = torch.empty(count, 2, dtype=torch.int64, device="cpu")
    missing = torch.arange(count, dtype=torch.int64, device="cpu")
    for _ in range(_ROUNDS * int(1 / _LEAST_FRACTION)):
        left = missing.numel()
        if sides is None:
            drawn = torch.randint(nodes, (left, 2), generator=generator, dtype=torch.int64, device="cpu")
        else:
            ends = [side[torch.randint(len(side), (left,), generator=generator)] for side in sides]
            drawn = torch.stack(ends, dim=1)
        pairs[missing] = drawn
        missing = missing[has_edges(keys, drawn, nodes) | (drawn[:, 0] == drawn[:, 1])]
        if missing.numel() == 0:
            return pairs
    bad_value("edges", "leave no pairs without an edge that were found; accepted: a graph with fewer edges")


def draw_negatives(
    keys: torch.Tensor,
    nodes: int,
    edges: torch.Tensor,
    generator: torch.Generator,
    sides: tuple[torch.Tensor, torch.Tensor] | None = None,
    directed: bool = False,
) -> torch.Tensor:
    """Draw as many pairs without an edge as there are `edges`, see `sample_negatives`.

    If they are directed, every second one is an edge turned round, where that is no edge, so that a model has
    to tell both directions.
    """
    negatives = sample_negatives(keys, nodes, edges.shape[0], generator, sides)
    if directed and sides is None:
        turned = edges.flip(1)
        free = ~has_edges(keys, turned, nodes) & (torch.arange(len(edges), device="cpu") % 2 == 0)
        negatives[free] = turned[free]
    return negatives


@dataclass(frozen=True, eq=False)
class SequencePart:
    """The sequences of one part of a split.

    Attributes:
        tokens: int16 [n, length]; tokens of a sequence are above 0, and 0 is padding after them.
        y: int64 [n], the class of each sequence.

    Raises:
        TypeError: an attribute is of another type or dtype.
        ValueError: shapes do not agree.
    """

    tokens: torch.Tensor
    y: torch.Tensor

    def __post_init__(self) -> None:
        check_tensor("tokens", self.tokens, dtypes=(torch.int16,), shape=(None, None))
        check_tensor("y", self.y, dtypes=(torch.int64,), shape=(self.tokens.shape[0],))

    def __len__(self) -> int:
        return self.y.numel()


@dataclass(frozen=True, eq=False)
class SequenceDataset:
    """A classification task on sequences.

    Attributes:
        name: name of the data set.
        train: the sequences to train on.
        val: the sequences by which the best model is chosen.
        test: the sequences that it is scored on.
        vocabulary: number of tokens, which are 0 (padding) to vocabulary - 1.
        num_classes: number of classes, which are 0 to num_classes - 1.

    Raises:
        TypeError: an attribute is of another type or dtype.
        ValueError: lengths differ, or a token or a class is out of range.
    """

    name: str
    train: SequencePart
    val: SequencePart
    test: SequencePart
    vocabulary: int
    num_classes: int

    def __post_init__(self) -> None:
        for name, part in self.parts.items():
            for what, values, limit in (
                ("tokens", part.tokens, self.vocabulary),
                ("y", part.y, self.num_classes),
            ):
                if values.numel() and not 0 <= int(values.min()) <= int(values.max()) < limit:
                    low, high = int(values.min()), int(values.max())
                    bad_value(f"{name}.{what}", f"holds {low} to {high}; accepted: 0 to {limit - 1}")
            if part.tokens.shape[1] != self.length:
                bad_value(f"{name}.tokens", f"has length {part.tokens.shape[1]}; accepted: {self.length}")

    @property
    def parts(self) -> dict[str, SequencePart]:
        """The parts of the split by name: "train", "val", "test"."""
        return {"train": self.train, "val": self.val, "test": self.test}

    @property
    def length(self) -> int:
        """Number of tokens of a sequence, padding included."""
        return self.train.tokens.shape[1]
