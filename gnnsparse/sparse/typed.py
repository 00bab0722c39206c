"""Graphs whose nodes and edges have types: several kinds of nodes, and relations between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gnnsparse.errors import bad_type, bad_value, device_of
from gnnsparse.runtime.memo import ForkLock
from gnnsparse.sparse.graph import check_edge_index, node_count
from gnnsparse.sparse.operand import SparseOperand

#: The type of the sources of a relation, its name, and the type of its targets.
Relation = tuple[str, str, str]


def is_dgl_graph(graph: Any) -> bool:
    """Return whether an object is a DGLGraph or a DGLBlock, without an import of DGL."""
    return any(kind.__module__ == "dgl.heterograph" for kind in type(graph).__mro__)


def is_hetero_data(graph: Any) -> bool:
    """Return whether an object is a HeteroData of PyG, without an import of PyG."""
    names = [f"{kind.__module__}.{kind.__name__}" for kind in type(graph).__mro__]
    return "torch_geometric.data.hetero_data.HeteroData" in names


def edges_of_relation(graph: Any, relation: Any) -> tuple[torch.Tensor, tuple[int, int]]:
    """Return the edges of a DGL relation, sources over targets by their number, and (sources, targets)."""
    # A graph that holds only CSR arrays can't list its edges by number.
    source, target, number = graph.all_edges(form="all", order=None, etype=relation)
    edges = torch.stack([source, target])
    if not torch.equal(number, torch.arange(number.numel(), dtype=number.dtype, device=number.device)):
        edges = torch.empty_like(edges).index_copy_(1, number.long(), edges)
    return edges, (graph.num_src_nodes(relation[0]), graph.num_dst_nodes(relation[2]))


@dataclass(frozen=True, eq=False)
class TypedGraph:
    """A graph whose nodes and edges have types; `gnnsparse.prepare` makes it of those of PyG and DGL.

    The global number of a node is its own number plus the offset of its type. In the matrix of all relations
    the rows are the targets, by their global numbers, and the columns are blocks: one for each relation, with
    a column for each node of the type of its sources.

    Args:
        num_nodes: the number of nodes of each type; the order of the types is that of their offsets.
        edges: for each relation (source type, name, target type) an integer [2, edges], sources over targets
            by their own numbers; empty ones and repeated edges are fine. They are stored as int64.
        operand: what `prepare` made of the matrix of all relations; None: the graph is not prepared.

    Raises:
        TypeError: an argument is of another type or dtype.
        ValueError: a relation is between types that do not exist, a number of a node is out of range, or
            relations are on several devices.
    """

    num_nodes: dict[str, int]
    edges: dict[Relation, torch.Tensor]
    operand: SparseOperand | None = None
    _made: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)
    _lock: ForkLock = field(default_factory=ForkLock, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, value in ("num_nodes", self.num_nodes), ("edges", self.edges):
            if not isinstance(value, Mapping) or not value:
                keys = (
                    "types of nodes to numbers" if name == "num_nodes" else "triples to edge_index [2, edges]"
                )
                bad_type(name, value, f"a dict of {keys}, not empty")
        counts = {kind: node_count(f"num_nodes[{kind!r}]", n) for kind, n in self.num_nodes.items()}
        node_count("num_nodes", sum(counts.values()))
        edges = {relation: _checked(relation, given, counts) for relation, given in self.edges.items()}
        if len(devices := {str(given.device) for given in edges.values()}) > 1:
            bad_value(
                "edges", f"are on {' and '.join(sorted(devices))}; accepted: one device for all relations"
            )
        object.__setattr__(self, "num_nodes", counts)
        object.__setattr__(self, "edges", edges)
        node_count("edges", self.block_size[0])

    @classmethod
    def of_checked(
        cls, num_nodes: dict[str, int], edges: dict[Relation, torch.Tensor],
        operand: SparseOperand | None = None,
    ) -> TypedGraph:  # fmt: skip
        """Make a graph of arguments known to be right, with int64 edges: the host waits for no device."""
        made = object.__new__(cls)
        given = {"num_nodes": num_nodes, "edges": edges, "operand": operand}
        for name, value in (given | {"_made": {}, "_lock": ForkLock()}).items():
            object.__setattr__(made, name, value)
        return made

    # It is immutable like its operand: copies of a model share it, and pickles are without what layers made.
    def __copy__(self) -> TypedGraph:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TypedGraph:
        return self

    def __reduce__(self) -> Any:
        return TypedGraph, (self.num_nodes, self.edges, self.operand)

    @property
    def device(self) -> torch.device:
        """The device of the edges."""
        return next(iter(self.edges.values())).device

    @property
    def cache_hit(self) -> bool:
        """Whether the operand was read from the cache."""
        return self.operand is not None and self.operand.cache_hit

    def to(self, device: torch.device | str) -> TypedGraph:
        """Return the graph on `device`, with its operand: this object if it is there already.

        Raises:
            TypeError: `device` is neither a device nor a name.
            ValueError: there is no such device, or operands can't be there.
        """
        place = device_of("device", device)
        if place == self.device:
            return self
        operand = None if self.operand is None else self.operand.to(place)
        edges = {relation: of.to(place) for relation, of in self.edges.items()}
        return self.of_checked(self.num_nodes, edges, operand)

    @property
    def relations(self) -> list[Relation]:
        """The relations, in the order in which they were given."""
        return list(self.edges)

    @property
    def num_edges(self) -> int:
        """The number of edges of all relations."""
        return sum(given.shape[1] for given in self.edges.values())

    @property
    def offsets(self) -> dict[str, int]:
        """The global number of the first node of each type."""
        return starts_of(self.num_nodes)

    @property
    def blocks(self) -> dict[Relation, int]:
        """The first column of each relation's block."""
        return starts_of({relation: self.num_nodes[relation[0]] for relation in self.edges})

    @property
    def block_size(self) -> tuple[int, int]:
        """How many columns and rows the matrix of all relations has: (sources of all blocks, targets)."""
        return sum(self.num_nodes[relation[0]] for relation in self.edges), sum(self.num_nodes.values())

    def block_edges(self, by_relation: bool = False) -> torch.Tensor:
        """Return the edges of all relations in turn: columns over global targets, int64 [2, edges].

        `by_relation`: rows are blocks too, one of the targets of each relation.
        """
        rows = starts_of({relation: self.num_nodes[relation[2]] for relation in self.edges})
        return self._shifted(self.blocks, rows if by_relation else self._of_targets)

    @property
    def _of_targets(self) -> dict[Relation, int]:
        offsets = self.offsets
        return {relation: offsets[relation[2]] for relation in self.edges}

    def global_edges(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the edges of all relations in turn, by global numbers [2, edges], and their relations."""
        offsets = self.offsets
        sources = {relation: offsets[relation[0]] for relation in self.edges}
        edges = self._shifted(sources, self._of_targets)
        counts = torch.tensor(
            [e.shape[1] for e in self.edges.values()], dtype=torch.int64, device=self.device
        )
        kinds = torch.arange(len(counts), dtype=torch.int64, device=self.device)
        return edges, kinds.repeat_interleave(counts, output_size=edges.shape[1])

    def _shifted(self, sources: dict[Relation, int], targets: dict[Relation, int]) -> torch.Tensor:
        joined = torch.empty((2, self.num_edges), dtype=torch.int64, device=self.device)
        at = 0
        for relation, given in self.edges.items():
            end = at + given.shape[1]
            torch.add(given[0], sources[relation], out=joined[0, at:end])
            torch.add(given[1], targets[relation], out=joined[1, at:end])
            at = end
        return joined

    def adjacency(self, recipe: Any, by_relation: bool = False) -> Any:
        """Return what a layer's recipe makes of the edges of `block_edges`, made once."""
        columns, rows = self.block_size
        if by_relation:
            rows = sum(self.num_nodes[relation[2]] for relation in self.edges)
        return self._once(
            (recipe, by_relation),
            lambda: recipe.make(self.block_edges(by_relation), (columns, rows), False),
        )

    def of_relations(self, recipe: Any) -> Any:
        """Return what a layer's recipe makes of `global_edges` and relations, int64 [3, edges], made once."""
        _, nodes = self.block_size

        def make() -> Any:
            edges, kinds = self.global_edges()
            return recipe.make(torch.cat([edges, kinds[None]]), (nodes, nodes), False)

        return self._once(recipe, make)

    def spanning(self, relations: Sequence[Relation]) -> TypedGraph:
        """Return the graph with these relations in their order, of which those that it lacks have no edge."""
        if self.relations == list(relations):
            return self
        none = torch.empty((2, 0), dtype=torch.int64, device=self.device)
        return self._once(
            tuple(relations),
            lambda: self.of_checked(self.num_nodes, {one: self.edges.get(one, none) for one in relations}),
        )

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]

    def __repr__(self) -> str:
        nodes = ", ".join(f"{kind}: {count}" for kind, count in self.num_nodes.items())
        edges = ", ".join(f"{'-'.join(r)}: {e.shape[1]}" for r, e in self.edges.items())
        return f"TypedGraph(nodes {nodes}; edges {edges}; {'not ' if self.operand is None else ''}prepared)"


@dataclass(frozen=True, eq=False)
class StaticTypedGraph(TypedGraph):
    """A typed graph of fixed sizes for which layers take `made`, whose arrays are overwritten in each step.

    Its relations have no edges of their own (None), so that what would read them fails.
    """

    made: Any = None

    @classmethod
    def of(cls, num_nodes: dict[str, int], relations: Sequence[Relation], made: Any) -> StaticTypedGraph:
        """Make the graph of which layers take `made`, an object with an `operand`."""
        none: Any = dict.fromkeys(relations)
        graph = cls.of_checked(num_nodes, none)
        object.__setattr__(graph, "made", made)
        assert isinstance(graph, StaticTypedGraph)
        return graph

    @property
    def num_edges(self) -> int:
        """The number of edges that there is room for."""
        return int(self.made.operand.nnz)

    def adjacency(self, recipe: Any, by_relation: bool = False) -> Any:
        """Return `made`, if a layer's recipe would make it."""
        if by_relation or recipe.precision != self.made.operand.precision:
            problem = "rows by relation" if by_relation else f"operand in {recipe.precision.value}"
            precision = self.made.operand.precision.value
            bad_value("graph", f"a captured step has no {problem}; accepted: rows of targets in {precision}")
        return self.made

    def of_relations(self, recipe: Any) -> Any:
        """Return `made`, if a layer's recipe would make it."""
        if not recipe.mean:
            bad_value("graph", "a captured step has the means of relations; accepted: aggr='mean'")
        return self.adjacency(recipe)


def starts_of(counts: dict[Any, int]) -> dict[Any, int]:
    """Return where each part begins, if parts of so many follow one another."""
    starts, start = {}, 0
    for name, count in counts.items():
        starts[name], start = start, start + count
    return starts


def _checked(relation: Any, given: Any, counts: dict[str, int]) -> torch.Tensor:
    """Return the edges of a relation as int64 [2, edges], or raise."""
    is_triple = isinstance(relation, tuple) and len(relation) == 3
    if not is_triple or not all(isinstance(part, str) for part in relation):
        bad_type("edges", relation, "keys that are triples of names: (source type, relation, target type)")
    for kind in (relation[0], relation[2]):
        if kind not in counts:
            accepted = ", ".join(map(repr, counts))
            bad_value("edges", f"{relation} has nodes of type {kind!r}; accepted: {accepted} (num_nodes)")
    try:
        edges = check_edge_index(given, None)[0].long()
    except (TypeError, ValueError) as error:
        raise type(error)(f"edges[{relation}]: {error}") from None
    for what, row, kind in zip(("sources", "targets"), edges, (relation[0], relation[2]), strict=True):
        low, high = (int(end) for end in row.aminmax()) if len(row) > 0 else (0, -1)
        if low < 0 or high >= counts[kind]:
            got = f"has {what} from {low} to {high}"
            bad_value(f"edges[{relation}]", f"{got}; accepted: 0 to {counts[kind] - 1}, of type {kind!r}")
    return edges


def read_typed(graph: Any, num_nodes: Any = None) -> TypedGraph | None:
    """Return the typed graph that an argument of `prepare` stands for, or None if it has no types.

    Args:
        graph: a TypedGraph, PyG's HeteroData, a DGL graph with several types, or a dict of relations.
        num_nodes: with a dict: the number of nodes of each type.

    Raises:
        TypeError: an argument is of another type.
        ValueError: the graph is not as TypedGraph needs it, or has numbers of nodes of its own.
    """
    is_dict = isinstance(graph, Mapping) and not hasattr(graph, "tocsr")  # scipy's dok_array is a dict
    is_pyg = is_hetero_data(graph)
    is_dgl = is_dgl_graph(graph) and not graph.is_homogeneous
    if not (is_dict or is_pyg or is_dgl or isinstance(graph, TypedGraph)):
        return None
    if is_dict and not is_pyg:
        return TypedGraph(num_nodes, dict(graph))
    if num_nodes is not None:
        bad_value("num_nodes", "goes with a dict of relations; a typed graph has its own numbers of nodes")
    if isinstance(graph, TypedGraph):
        return graph
    if is_pyg:
        return _from_pyg(graph)
    if graph.is_block:
        bad_type("graph", graph, "a DGL graph that is no block, or a dict of relations with num_nodes")
    counts = {kind: graph.num_nodes(kind) for kind in graph.ntypes}
    return TypedGraph(counts, {tuple(r): edges_of_relation(graph, r)[0] for r in graph.canonical_etypes})


def _from_pyg(data: Any) -> TypedGraph:
    counts, edges = {kind: data[kind].num_nodes for kind in data.node_types}, {}
    for kind, count in counts.items():
        if count is None:
            bad_value(
                "graph", f"has no number of nodes of type {kind!r}; accepted: data[{kind!r}].num_nodes set"
            )
    for relation in data.edge_types:
        given = data[relation].get("edge_index")
        if given is None:
            bad_value("graph", f"has no edge_index of {relation}; accepted: one for each relation")
        edges[relation] = given
    return TypedGraph(counts, edges)
