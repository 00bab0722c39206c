"""The data sets of graphs with types of nodes and edges: of nodes of a type, and of links of a relation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gnnsparse.data.datasets import WithTargets, check_finite, check_text_names
from gnnsparse.errors import bad_type, bad_value, check_choice, check_integer, check_tensor
from gnnsparse.formats.csr import are_in, check_range
from gnnsparse.sparse.typed import Relation, TypedGraph

#: The scores of ranked links by which the best epoch can be chosen.
RANKING_METRICS = ("mrr", "hits")
_PARTS = ("train", "val", "test")
#: Rounds in which targets without an edge are drawn of all, before those of a source are listed.
_ROUNDS = 32


class _OfTypedGraph:
    """A data set of a graph with types, whose nodes have features of their type."""

    graph: TypedGraph
    x: dict[str, torch.Tensor]
    node_ids: Mapping[str, tuple[str, ...]] | None

    def _check_graph(self) -> None:
        if not isinstance(self.graph, TypedGraph):
            bad_type("graph", self.graph, "a TypedGraph, as gnnsparse.prepare makes of typed graphs")
        counts = self.graph.num_nodes
        for kind, x in _checked("x", self.x, counts):
            name = f"x[{kind!r}]"
            check_finite(name, check_tensor(name, x, dtypes=(torch.float32,), shape=(counts[kind], None)))
        if self.node_ids is not None:
            for kind, names in _checked("node_ids", self.node_ids, counts):
                check_text_names(f"node_ids[{kind!r}]", names, counts[kind])

    @property
    def types(self) -> dict[str, Any]:
        """What models are made of, plain values by name.

        "features" has the number of features of a node by type, "nodes" the number of nodes of each type
        without features, and "relations" the relations, as lists.
        """
        counts = self.graph.num_nodes
        return {
            "features": {kind: self.x[kind].shape[1] for kind in counts if kind in self.x},
            "nodes": {kind: count for kind, count in counts.items() if kind not in self.x},
            "relations": [list(relation) for relation in self.graph.relations],
        }


def _checked(name: str, given: Any, known: Mapping[Any, Any]) -> Any:
    """Return the items of a dict by types or relations, or raise."""
    if not isinstance(given, Mapping):
        bad_type(name, given, "a dict")
    for key in given:
        if key not in known:
            bad_value(name, f"has {key!r}; accepted: {', '.join(map(repr, known))}")
    return given.items()


@dataclass(frozen=True, eq=False)
class TypedNodeDataset(_OfTypedGraph, WithTargets):
    """Classification or regression of the nodes of one type, in a graph with types.

    Attributes:
        name: name of the data set.
        graph: the graph.
        x: features of the nodes of each type, float32 [nodes, D], finite; D may differ. Of types that are
            left out, models learn an embedding of each node.
        target: the type of the nodes that have targets.
        y, train_mask, val_mask, test_mask: those of a NodeDataset, with a row for each node of that type.
        num_classes, metric: those of a NodeDataset.
        node_ids: for some types the names of their nodes in the user's files; None: they are numbered.
        class_names: the names of the classes or labels, num_classes texts; None: they are numbered.
        feature_transform: what made the features of columns of tables, and which nodes without features there
            are, plain values: `load_custom` takes them as `transform`, for other tables; None: nothing.
        times: for some types int64 [nodes], the times of their nodes, and of the edges that leave them:
            samples for a node of the type `target` have edges no newer than itself. None: there are none.

    Raises:
        TypeError: an attribute is of another type or dtype.
        ValueError: a type is none of the graph's, shapes do not agree, a feature is not finite, a node is in
            two masks, or a target, a number of names or the metric is not accepted.
    """

    name: str
    graph: TypedGraph
    x: dict[str, torch.Tensor]
    target: str
    y: torch.Tensor
    train_mask: torch.Tensor
    val_mask: torch.Tensor
    test_mask: torch.Tensor
    num_classes: int
    metric: str = "accuracy"
    node_ids: Mapping[str, tuple[str, ...]] | None = None
    class_names: tuple[str, ...] | None = None
    times: dict[str, torch.Tensor] | None = None
    feature_transform: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self._check_graph()
        counts = self.graph.num_nodes
        check_choice("target", self.target, list(counts))
        self.check_apart(counts[self.target], "a node")
        check_text_names("class_names", self.class_names, self.num_classes)
        if self.times is not None:
            for kind, times in _checked("times", self.times, counts):
                check_tensor(f"times[{kind!r}]", times, dtypes=(torch.int64,), shape=(counts[kind],))
            if self.target not in self.times:
                bad_value("times", f"are missing for {self.target!r}; accepted: times of the target's nodes")

    @property
    def has_times(self) -> bool:
        """Whether nodes have times."""
        return self.times is not None

    @property
    def num_nodes(self) -> int:
        """The number of nodes of the type `target`."""
        return self.graph.num_nodes[self.target]


@dataclass(frozen=True, eq=False)
class TypedLinkDataset(_OfTypedGraph):
    """Prediction of the links of one relation, in a graph with types: which targets a source will have.

    Each edge of a part is ranked among targets that its source has no edge to, by the model's scores.

    Attributes:
        name: name of the data set.
        graph: what messages pass over: the edges to train on, and those of the other relations. Where a
            relation is the reverse of the predicted one, it has no edge of the other parts either.
        x: see TypedNodeDataset.
        relation: the relation that is predicted, (source type, name, target type).
        train_edges, val_edges, test_edges: int64 [k, 2], pairs of a source and a target: to train on, to
            choose the best epoch by, and to score it on.
        edge_times: for some relations int64 [edges], times of the graph's edges; None: edges have none.
        train_times, val_times, test_times: with `edge_times` int64 [k], the times of the pairs: samples for
            them have older edges alone.
        known: int64, ascending, source * targets + target of the pairs of all parts, which are never
            negatives; None: those of the three parts and of the graph.
        negatives: how many targets each edge to score is ranked among, drawn for it; None: all others.
        hits_at: K of hits@K, the part of the edges that are among the best K of their ranking.
        metric: "mrr", the mean reciprocal rank, or "hits", by which the best epoch is chosen.
        node_ids: see TypedNodeDataset.
        pairs: int64 [k, 2], pairs to predict for; None: those of the test part.
        feature_transform: see TypedNodeDataset.

    Raises:
        TypeError: an attribute is of another type or dtype.
        ValueError: a type or relation is none of the graph's, shapes do not agree, a node is out of range, a
            part is empty, or times are there for edges only or for pairs only.
    """

    name: str
    graph: TypedGraph
    x: dict[str, torch.Tensor]
    relation: Relation
    train_edges: torch.Tensor
    val_edges: torch.Tensor
    test_edges: torch.Tensor
    edge_times: dict[Relation, torch.Tensor] | None = None
    train_times: torch.Tensor | None = None
    val_times: torch.Tensor | None = None
    test_times: torch.Tensor | None = None
    known: torch.Tensor | None = None
    negatives: int | None = None
    hits_at: int = 10
    metric: str = "mrr"
    node_ids: Mapping[str, tuple[str, ...]] | None = None
    pairs: torch.Tensor | None = None
    feature_transform: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self._check_graph()
        if self.relation not in self.graph.edges:
            accepted = ", ".join(map(repr, self.graph.edges))
            bad_value("relation", f"got {self.relation!r}; accepted: {accepted}")
        check_choice("metric", self.metric, RANKING_METRICS)
        check_integer("hits_at", self.hits_at)
        if self.negatives is not None:
            check_integer("negatives", self.negatives)
        for part, edges in self.edges.items():
            self._check_pairs(f"{part}_edges", edges)
            times = self.times[part]
            if (times is None) != (self.edge_times is None):
                problem = f"is {'None' if times is None else 'given'}, and edge_times are not"
                bad_value(f"{part}_times", f"{problem}; accepted: both or neither")
            if times is not None:
                check_tensor(f"{part}_times", times, dtypes=(torch.int64,), shape=(edges.shape[0],))
        if self.pairs is not None:
            self._check_pairs("pairs", self.pairs)
        if self.known is not None:
            check_tensor("known", self.known, dtypes=(torch.int64,), shape=(None,))
        for relation, times in _checked("edge_times", self.edge_times or {}, self.graph.edges):
            count = self.graph.edges[relation].shape[1]
            check_tensor(f"edge_times[{relation}]", times, dtypes=(torch.int64,), shape=(count,))

    def _check_pairs(self, name: str, pairs: Any) -> None:
        check_tensor(name, pairs, dtypes=(torch.int64,), shape=(None, 2))
        if pairs.shape[0] == 0:
            bad_value(name, "is empty; accepted: a pair or more")
        for end, count, kind in zip((0, 1), self.sizes, self.relation[::2], strict=True):
            check_range(name, pairs[:, end].contiguous(), count, f"the number of nodes of type {kind!r}")

    @property
    def has_times(self) -> bool:
        """Whether edges have times."""
        return self.edge_times is not None

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of nodes of the sources' and of the targets' type."""
        return self.graph.num_nodes[self.relation[0]], self.graph.num_nodes[self.relation[2]]

    @property
    def edges(self) -> dict[str, torch.Tensor]:
        """The edges of each part by name: "train", "val", "test"."""
        return {part: getattr(self, f"{part}_edges") for part in _PARTS}

    @property
    def times(self) -> dict[str, torch.Tensor | None]:
        """The times of the edges of each part by name, or None."""
        return {part: getattr(self, f"{part}_times") for part in _PARTS}

    def keys(self, pairs: torch.Tensor) -> torch.Tensor:
        """Return source * targets + target of pairs, int64 [k, 2], as `known` has them."""
        return pairs[:, 0] * self.sizes[1] + pairs[:, 1]

    @property
    def known_keys(self) -> torch.Tensor:
        """`known`, or what it stands for if it is None."""
        if self.known is not None:
            return self.known
        return self.keys(torch.cat([self.graph.edges[self.relation].T, *self.edges.values()])).unique()

    def are_known(self, pairs: torch.Tensor) -> torch.Tensor:
        """Return for pairs, int64 [k, 2], whether they are edges of any part, bool [k]."""
        return are_in(self.known_keys, self.keys(pairs))

    @property
    def joined_to_all(self) -> torch.Tensor:
        """Whether a source has edges of the three parts to all targets, bool [sources]."""
        known, (sources, targets) = self.known_keys, self.sizes
        counts = (known // targets).bincount(minlength=sources)
        if self.relation[0] == self.relation[2]:  # a source is no target of itself
            itself = torch.arange(sources, dtype=torch.int64, device=known.device) * (targets + 1)
            counts += ~are_in(known, itself)
        return counts >= targets

    def draw_targets(
        self, sources: torch.Tensor, count: int, generator: torch.Generator, known: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Draw targets that a source has no edge to, uniformly and with replacement, int64 [k, count].

        Args:
            sources: int64 [k] on the CPU.
            count: the number of targets for each of them.
            generator: the state of the random numbers, on the CPU.
            known: `known_keys`, where the caller has them.

        Raises:
            ValueError: a source has edges to all targets.
        """
        known = self.known_keys if known is None else known
        targets, is_one = self.sizes[1], self.relation[0] == self.relation[2]
        of = sources.repeat_interleave(count)
        drawn = torch.empty_like(of)
        missing = torch.arange(len(of), dtype=torch.int64, device="cpu")
        for _ in range(_ROUNDS):
            tried = torch.randint(targets, (len(missing),), generator=generator)
            drawn[missing] = tried
            wrong = are_in(known, of[missing] * targets + tried)
            missing = missing[wrong | (tried == of[missing]) if is_one else wrong]
            if len(missing) == 0:
                return drawn.view(-1, count)
        everyone = torch.arange(targets, dtype=torch.int64, device="cpu")
        for source in of[missing].unique().tolist():
            wrong = are_in(known, source * targets + everyone) | (is_one & (everyone == source))
            free, here = everyone[~wrong], missing[of[missing] == source]
            if len(free) == 0:
                bad_value("train_edges", f"join source {source} to all targets; accepted: not to all")
            drawn[here] = free[torch.randint(len(free), (len(here),), generator=generator)]
        return drawn.view(-1, count)
