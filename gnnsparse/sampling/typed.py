"""TypedNeighborSampler: neighbours in graphs with several types of nodes and relations."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gnnsparse.errors import bad_type, bad_value, check_flag, check_integer, device_of
from gnnsparse.formats.csr import Csr, check_range
from gnnsparse.preprocess.source import read_source
from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import runs_outside
from gnnsparse.runtime.memo import Streams, cached_property
from gnnsparse.sampling.blocks import EDGES, MOST_EDGES, SOURCES, Layer, draw_layer, resized
from gnnsparse.sampling.draws import (
    Clock,
    LayerDraw,
    Neighbourhood,
    Nodes,
    Numbering,
    Relation,
    draw_hops,
    draw_negatives,
    time_tensor,
)
from gnnsparse.sampling.sampler import (
    MOST_LAYERS,
    Drawing,
    check_fanouts,
    check_step,
    edge_sources,
    seed_times,
    trees_of,
)
from gnnsparse.sparse.graph import SparseGraph, index_tensor
from gnnsparse.sparse.typed import Relation as Triple
from gnnsparse.sparse.typed import TypedGraph, read_typed, starts_of


@dataclass(frozen=True, eq=False)
class TypedSubgraph:
    """The neighbourhoods that were drawn for nodes of several types, as one typed graph.

    Attributes:
        nodes: for each type int64 [nodes], the seeds first, then by the hop in which they were reached.
        edge_index: for each relation int64 [2, edges], sources over targets, as positions in the nodes of
            their types, by hop. A repeated edge is there as often as it was drawn.
        edge_ids: for each relation int64 [edges], the edges of the graph, as they were given.
        num_nodes: for each type how many nodes each hop has, that of the seeds first.
        num_edges: for each relation how many edges each hop has.
        trees: for each type int64 [nodes], the seed in whose tree each node is, counted over the seeds of all
            types in the order in which these were given; None: the sample is not disjoint.
    """

    nodes: dict[str, torch.Tensor]
    edge_index: dict[Triple, torch.Tensor]
    edge_ids: dict[Triple, torch.Tensor]
    num_nodes: dict[str, list[int]]
    num_edges: dict[Triple, list[int]]
    trees: dict[str, torch.Tensor] | None

    @property
    def graph(self) -> TypedGraph:
        """The graph of what was drawn, which `gnnsparse.prepare` and layers take."""
        return TypedGraph.of_checked({kind: own.numel() for kind, own in self.nodes.items()}, self.edge_index)


@dataclass(frozen=True, eq=False)
class TypedLinkSample:
    """The neighbourhoods that were drawn for the ends of links of one relation.

    Attributes:
        sample: the neighbourhoods.
        positive: int64 [k, 2], the given pairs, as positions in the nodes of their types.
        negative: int64 [k, negatives], for each pair targets to which its source has no edge, as positions in
            the nodes of their type.
    """

    sample: TypedSubgraph
    positive: torch.Tensor
    negative: torch.Tensor


@dataclass(frozen=True)
class TypedRoom:
    """The room of arrays for a sample of so many seeds of one type.

    Attributes:
        nodes: for each type how many nodes there is room for, more than a sample has: the last are padding.
        reached: for each type how many nodes each hop may draw for, the seeds in the first one.
        edges: for each relation how many edges each hop may draw.
        columns: for each relation the column of the matrix that its first source has, and how many columns
            there are from one source to the next. The last column is that of a node that is padding.
        mean: whether edges have weights, 1 / (edges of the relation at their target).
    """

    nodes: dict[str, int]
    reached: dict[str, list[int]]
    edges: dict[Triple, list[int]]
    columns: dict[Triple, tuple[int, int]]
    mean: bool

    @property
    def size(self) -> tuple[int, int, int]:
        """The rows, columns and nonzeros of the matrix."""
        cols = sum(self.nodes[key[0]] for key in self.columns)
        return sum(self.nodes.values()), cols, sum(map(sum, self.edges.values()))


class PaddedTypedDraw:
    """Draws what `TypedNeighborSampler.sample` draws on a GPU, into arrays of fixed sizes.

    The host waits for nothing and gives no numbers, so that a CUDA graph can hold a call. Rows of the matrix
    are the nodes of all types, those of each by the order of the sample, with padding behind them. A relation
    that is repeated or an edge that is drawn twice has as many nonzeros.

    Args:
        sampler: the sampler, which has no `padding_obstacle` for so many seeds.
        kind: the type of the seeds.
        room: the room.
    """

    def __init__(self, sampler: TypedNeighborSampler, kind: str, room: TypedRoom) -> None:
        self._sampler, self._kind, self.room, device = sampler, kind, room, sampler.device
        self._marks = {of: Numbering(count, device).place for of, count in sampler.num_nodes.items()}
        self._starts = starts_of(room.nodes)
        rows, cols, nnz = room.size
        self._last = torch.tensor([rows - 1, cols - 1], dtype=torch.int64, device=device)
        self._places = torch.arange(max(rows, nnz) + 1, dtype=torch.int64, device=device)
        limits: list[int] = []
        for hop, draws in enumerate(sampler.draws):
            limits += [room.reached[of][hop] for of in self._targets(draws)]
            for key, _ in draws:
                if room.edges[key][hop]:
                    limits += [room.edges[key][hop], room.nodes[key[0]] - 1]
        self._limits = torch.tensor(limits, dtype=torch.int32, device=device)

    @staticmethod
    def _targets(draws: Sequence[tuple[Triple, LayerDraw]]) -> dict[str, None]:
        return dict.fromkeys(key[2] for key, _ in draws)

    def __call__(self, seeds: torch.Tensor, step: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Draw for different seeds in range, int32 [seeds], with the number `step`, int64 [1].

        The result is the nodes of all types, int32; of the matrix and of its transpose the offsets, int64,
        and the columns, int32; for each nonzero of the transpose its index in the matrix; with `mean` the
        weights, float32. And whether there was room, a bool []; if not, arrays hold anything. Nonzeros behind
        those of the sample belong to no row.
        """
        sampler, room = self._sampler, self.room
        sampler._streams.current()
        nodes = {of: resized(seeds[: (of == self._kind) * len(seeds)], n) for of, n in room.nodes.items()}
        ends = {of: torch.zeros(1, dtype=torch.int32, device=seeds.device) for of in nodes}
        begins, ends[self._kind] = dict(ends), ends[self._kind] + len(seeds)
        counts: list[torch.Tensor] = []
        edges: list[tuple[torch.Tensor, ...]] = []
        for hop, draws in enumerate(sampler.draws):
            until = dict(ends)
            targets = {}
            for of in self._targets(draws):
                most = room.reached[of][hop]
                counts.append(until[of] - begins[of])
                at = self._places[:most] + begins[of]
                own = nodes[of].index_select(0, at.clamp_(max=room.nodes[of] - 1))
                targets[of] = own, counts[-1].clamp(max=most)
            for key, layer in draws:
                source, _, target = key
                if not room.edges[key][hop]:
                    continue
                sizes = torch.zeros(4, dtype=torch.int32, device=seeds.device)
                own, used = targets[target]
                made = draw_layer(
                    sampler._graphs[key], self._marks[source], own, layer, used, sizes, step,
                    (nodes[source], ends[source]),
                )  # fmt: skip
                counts += [sizes[EDGES : EDGES + 1], sizes[SOURCES : SOURCES + 1]]
                nodes[source] = resized(made.sources, room.nodes[source])
                ends[source] = counts[-1].clamp(max=room.nodes[source])
                edges.append(self._edges(key, room.edges[key][hop], made, begins[target]))
            begins = until
        found = [nodes[of].masked_fill(self._places[:n] >= ends[of], 0) for of, n in room.nodes.items()]
        fits = (torch.cat(counts) <= self._limits).all()
        return [torch.cat(found), *self._matrix(*map(torch.cat, zip(*edges, strict=True)))], fits

    def _edges(self, key: Triple, room: int, made: Layer, begin: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return rows and columns of edges, int64 [room], and with `mean` the weights, float32 [room]."""
        (first, stride), indptr = self.room.columns[key], made.drawn.indptr
        places = self._places[:room]
        row = torch.searchsorted(indptr[1:], places, right=True)
        # Without room for a node its number is out of range.
        col = resized(made.numbers, room).clamp_(max=self.room.nodes[key[0]] - 1) * stride + first
        both = torch.stack([row + begin + self._starts[key[2]], col.long()])
        found = torch.where(places < indptr[-1:], both, self._last[:, None]).unbind()
        if not self.room.mean:
            return found
        weights = 1 / indptr.diff().clamp_(min=1).float()
        return *found, weights.index_select(0, row.clamp_(max=len(weights) - 1))

    def _matrix(self, rows: torch.Tensor, cols: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
        """Return the arrays of the matrix, sorted by rows, and of its transpose."""
        size, nnz = self.room.size, len(rows)
        # A matrix with a row for each edge, whose columns are the rows: its transpose is sorted by them.
        by_row, order = Csr(self._places[: nnz + 1], rows.int(), size[0]).transpose()
        csr = Csr(by_row.indptr, cols.int()[order.long()], size[1])
        transposed, index = csr.transpose()
        for side in (csr, transposed):
            side.indptr[-1:].copy_(side.indptr[-2:-1])  # the last row and the last column are padding
        structure = [array for side in (csr, transposed) for array in (side.indptr, side.indices)]
        return [*structure, index, *(of[order.long()] for of in weights)]


class TypedNeighborSampler:
    """Draws neighbours of nodes by type and relation, hop by hop, as `NeighborSampler.sample_subgraph` does.

    In each hop every relation draws edges for the nodes of its target type that the hop before has reached
    first, by random numbers of its own: those of the first relation are the ones of a `NeighborSampler` with
    the same seed. What is drawn is the same on the CPU and on a GPU. `NeighborSampler` documents the
    strategies, disjoint samples and times.

    Args:
        graph: the graph, in a form with types that `gnnsparse.prepare` takes, as HeteroData or a dict of
            relations (source type, name, target type) to edge_index [2, edges].
        fanouts: neighbours that are drawn in each hop, for all relations, or a mapping of every relation to
            its own, as many for each; -1: all neighbours, 0: none.
        num_nodes: for a dict, the numbers of nodes of all types.
        method: see `NeighborSampler`.
        replace: see `NeighborSampler`.
        seed: see `NeighborSampler`.
        disjoint: see `NeighborSampler`.
        temporal_strategy: see `NeighborSampler`.
        weights: for "weighted": for every relation real numbers [edges] of 0 or more.
        edge_time: times of the edges [edges] of some relations; the edges of others are in time always.
        node_time: in place of `edge_time`, times of the nodes [nodes] of some types: an edge has that of its
            source.
        device: where samples are made; None: where the graph is.

    Attributes:
        num_nodes: the number of nodes of each type.
        relations: the relations.
        disjoint: whether samples are disjoint.
        has_times: whether some edges have times.
        node_time: the times of the nodes of some types, int64 or float64, or None.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range, names a type or relation that there is not, or does not go
            with another one.
    """

    @runs_outside
    def __init__(
        self,
        graph: Any,
        fanouts: Sequence[int] | Mapping[Triple, Sequence[int]],
        *,
        num_nodes: Mapping[str, int] | None = None,
        method: str = "uniform",
        replace: bool = False,
        weights: Mapping[Triple, Any] | None = None,
        seed: int = 0,
        disjoint: bool = False,
        edge_time: Mapping[Triple, Any] | None = None,
        node_time: Mapping[str, Any] | None = None,
        temporal_strategy: str = "uniform",
        device: torch.device | str | None = None,
    ) -> None:
        self._drawing = Drawing.check(method, replace, seed, temporal_strategy, weights)
        typed = read_typed(graph, num_nodes)
        if typed is None:
            accepted = "a TypedGraph, PyG's HeteroData, a heterograph of DGL or a dict of relations"
            bad_type("graph", graph, accepted)
        self.num_nodes, edges, self.relations = typed.num_nodes, typed.edges, tuple(typed.edges)
        own = fanouts if isinstance(fanouts, Mapping) else dict.fromkeys(edges, fanouts)
        _check_names("fanouts", own, edges, every=True)
        self._fanouts = {key: check_fanouts("fanouts", own[key], zero=True) for key in edges}
        hops = {len(of_relation) for of_relation in self._fanouts.values()}
        if len(hops) != 1:
            bad_value("fanouts", f"have {sorted(hops)} numbers; accepted: as many for every relation")
        if edge_time is not None and node_time is not None:
            bad_value("node_time", "is given with edge_time; accepted: one of them")
        _check_names("weights", weights, edges, every=True)
        _check_names("edge_time", edge_time, edges)
        _check_names("node_time", node_time, self.num_nodes)
        self.has_times = bool(edge_time or node_time)
        self.disjoint = check_flag("disjoint", disjoint) or self.has_times
        if self.disjoint and hops.pop() > MOST_LAYERS:
            bad_value("fanouts", f"have too many numbers; accepted if disjoint: {MOST_LAYERS}")
        graphs: dict[Triple, SparseGraph] = {}
        for key, edge_index in edges.items():
            sizes = self.num_nodes[key[0]], self.num_nodes[key[2]]
            given = read_source(edge_index, sizes, None, None).build()
            graphs[key] = given if device is None else given.to(device_of("device", device))
        self.device = next(iter(graphs.values())).device
        self.node_time = None
        if node_time is not None:
            self.node_time = {
                kind: time_tensor(
                    f"node_time[{kind!r}]", self._moved(times), self.num_nodes[kind], self.device
                )
                for kind, times in node_time.items()
            }
        self._graphs, self._links = {}, {key: made.csr for key, made in graphs.items()}
        for key, made in graphs.items():
            times = None if edge_time is None or key not in edge_time else self._moved(edge_time[key])
            if times is not None:
                times = time_tensor(f"edge_time[{key}]", times, made.num_edges, self.device)
            elif self.node_time is not None and key[0] in self.node_time:
                times = self.node_time[key[0]][edge_sources(made)]
            by = None if weights is None else self._moved(weights[key])
            self._graphs[key] = Neighbourhood.make_of_edges(
                made, by, replace=replace, times=times, newest=self._drawing.newest
            )
        clocks = [made.clock for made in self._graphs.values() if made.clock is not None]
        moments = *(clock.moments for clock in clocks), *(self.node_time or {}).values()
        if len({times.dtype for times in moments}) > 1:
            bad_value(
                "edge_time" if node_time is None else "node_time", "has integers and floats; accepted: one"
            )
        self._clock: Clock | None = clocks[0] if clocks else None
        self._numberings = {kind: Numbering(count, self.device) for kind, count in self.num_nodes.items()}
        self._streams = Streams(self.device)
        if path().takes(self.device):
            path().finish(self.device)  # another stream may draw next
            arrays = self._graphs, self._links, self._numberings, self.node_time
            weakref.finalize(self, self._streams.keep_until_done, arrays).atexit = False

    @cached_property
    def draws(self) -> list[list[tuple[Triple, LayerDraw]]]:
        """For each hop the relations that draw edges, and how they do in step 0."""
        return [
            [
                (key, self._drawing.layer(fanouts[hop], 0, hop, number))
                for number, (key, fanouts) in enumerate(self._fanouts.items())
                if fanouts[hop] and self._graphs[key].csr.nnz
            ]
            for hop in range(len(next(iter(self._fanouts.values()))))
        ]

    def padding_obstacle(self, kind: str, seeds: int) -> str | None:
        """Return why PaddedTypedDraw can't draw for so many seeds of a type; None: it can."""
        if not path().takes(self.device):
            return f"samples are drawn on {self.device}"
        if self.disjoint:
            return "each seed has a tree of its own, as in samples by time, which differ in their sizes"
        if all(key[2] != kind for key, _ in self.draws[0]):
            return f"no edge ends at nodes of type {kind!r}"
        rows = seeds
        for hop in self.draws:
            if self._drawing.replace or any(layer.row_edges is None for _, layer in hop):
                return "a row may have any number of edges (fan-outs of -1, LABOR, draws with replacement)"
            edges = rows * sum(layer.fanout for _, layer in hop)  # as if each node had all relations
            if edges > MOST_EDGES:
                return f"there may be more than {MOST_EDGES} edges"
            rows = min(rows + edges, sum(self.num_nodes.values()))
        return None

    @property
    def most_edges(self) -> tuple[int, int]:
        """Numbers of nonzeros that no row and no column of PaddedTypedDraw's matrix exceeds.

        On a GPU the host waits for them.
        """
        rows = [Counter[str]() for _ in self.draws]
        for row, hop in zip(rows, self.draws, strict=True):
            for key, layer in hop:
                row[key[2]] += layer.fanout
        columns = [
            int(torch.bincount(graph.csr.indices).max()) for graph in self._graphs.values() if graph.csr.nnz
        ]
        return max(max(row.values(), default=0) for row in rows), max(columns, default=0)

    @runs_outside
    def sample(
        self, seeds: Mapping[str, Any], step: int = 0, time: Mapping[str, Any] | None = None
    ) -> TypedSubgraph:
        """Draw the neighbourhoods of nodes.

        Args:
            seeds: for some types int32 or int64 [seeds], different nodes, unless samples are disjoint.
            step: number of the draw, from 0 to 2^32 - 1: each has random numbers of its own.
            time: if edges have times, for each type of the seeds their times [seeds], of the same dtype;
                those of types with `node_time` need none.

        Raises:
            TypeError: an argument is of another type or dtype.
            ValueError: an argument is out of range, on another device, names another type, or a seed is
                repeated.
        """
        if seeds is None:
            bad_type("seeds", seeds, "a mapping of types to nodes")
        _check_names("seeds", seeds, self.num_nodes)
        given = {kind: self._nodes(f"seeds[{kind!r}]", kind, nodes) for kind, nodes in seeds.items()}
        for kind, nodes in given.items():
            if not self.disjoint:  # nodes of a type that is no source would be repeated unnoticed
                self._numberings[kind].number(nodes, nodes[:0])
        return self._draw(given, check_step(step), time)

    @runs_outside
    def sample_links(
        self, relation: Triple, pairs: Any, negatives: int = 1, step: int = 0, time: Any = None
    ) -> TypedLinkSample:
        """Draw targets without an edge for links of a relation, and the neighbourhoods of all ends.

        Args:
            relation: the relation, which need not have the links.
            pairs: int32 or int64 [k, 2], a source and a target each, which may be repeated.
            negatives: number of targets without an edge from the pair's source that are drawn for each pair,
                uniformly from the nodes of the targets' type; not the source itself.
            step: see `sample`.
            time: times of the pairs [k], if edges have times; negatives, which have no edge of whatever time,
                have those of their pairs.

        Raises:
            TypeError, ValueError: as `sample`; or a source is joined to nearly all targets.
        """
        if relation not in self.relations:
            bad_value("relation", f"got {relation!r}; accepted: {', '.join(map(str, self.relations))}")
        source, _, target = relation
        given = index_tensor("pairs", pairs, dim=2)
        if given.shape[1] != 2:
            bad_value("pairs", f"has shape {tuple(given.shape)}; accepted: (pairs, 2)")
        check_integer("negatives", negatives, 0, "an integer, 0 or more")
        ends = [self._nodes("pairs", kind, given[:, side]) for side, kind in enumerate((source, target))]
        count = given.shape[0]
        layer = self._drawing.layer(-1, check_step(step), 0, self.relations.index(relation))
        drawn = draw_negatives(
            self._links[relation], layer.draw, count * negatives,
            distinct=source == target, sources=ends[0].long().repeat_interleave(negatives),
        )  # fmt: skip
        ends[1] = torch.cat([ends[1], drawn[:, 1].to(torch.int32)])
        times = None
        if time is not None:
            own = time_tensor("time", time, count, self.device)
            times = [own, torch.cat([own, own.repeat_interleave(negatives)])]
        if source == target:
            seeds = {source: torch.cat(ends)}
            of_seeds = None if times is None else {source: torch.cat(times)}
        else:
            seeds = {source: ends[0], target: ends[1]}
            of_seeds = None if times is None else {source: times[0], target: times[1]}
        numbers = {
            kind: torch.arange(nodes.numel(), dtype=torch.int32, device=self.device)
            for kind, nodes in seeds.items()
        }
        if not self.disjoint:
            for kind, nodes in seeds.items():
                seeds[kind], numbers[kind] = self._numberings[kind].number(nodes[:0], nodes)
        first = numbers[source].long()
        others = first[count:] if source == target else numbers[target].long()
        positive = torch.stack([first[:count], others[:count]], dim=1)
        sample = self._draw(seeds, step, of_seeds)
        return TypedLinkSample(sample, positive, others[count:].view(count, negatives))

    def _moved(self, given: Any) -> Any:
        return given.to(self.device) if isinstance(given, torch.Tensor) else given

    def _nodes(self, name: str, kind: str, given: Any) -> torch.Tensor:
        nodes = index_tensor(name, given)
        if nodes.device != self.device:
            bad_value(name, f"is on {nodes.device}; accepted: {self.device}, where samples are made")
        check_range(name, nodes, self.num_nodes[kind], f"the number of nodes of type {kind!r}")
        return nodes.to(torch.int32)

    def _times(
        self, seeds: Mapping[str, torch.Tensor], time: Mapping[str, Any] | None
    ) -> torch.Tensor | None:
        """Return the times of the seeds of all types, one after another, or None if edges have none."""
        if self._clock is None:
            if time is not None and not self.has_times:
                bad_value("time", "is given, but edges have no times: edge_time and node_time are None")
            return None
        _check_names("time", time, seeds)
        found = []
        for kind, nodes in seeds.items():
            if time is not None and kind in time:
                found.append(seed_times(f"time[{kind!r}]", time[kind], nodes.numel(), self._clock))
            elif self.node_time is not None and kind in self.node_time:
                found.append(self.node_time[kind][nodes.long()])
            else:
                bad_value("time", f"is missing for seeds of type {kind!r}, for edges have times")
        return torch.cat(found) if found else self._clock.moments[:0]

    def _draw(
        self, seeds: dict[str, torch.Tensor], step: int, time: Mapping[str, Any] | None
    ) -> TypedSubgraph:
        """Draw the neighbourhoods of nodes, int32 [seeds] of each type."""
        times, nodes, count = self._times(seeds, time), {}, 0
        for kind, own in seeds.items():
            nodes[kind] = trees_of(own, count) if self.disjoint else Nodes(own)
            count += own.numel()
        for kind in self.num_nodes:
            empty = torch.empty(0, dtype=torch.int32, device=self.device)
            nodes.setdefault(kind, Nodes(empty, empty if self.disjoint else None))
        relations = {
            key: Relation(key[0], key[2], self._graphs[key], [
                None if fanout == 0 else self._drawing.layer(fanout, step, hop, number)
                for hop, fanout in enumerate(fanouts)
            ])
            for number, (key, fanouts) in enumerate(self._fanouts.items())
        }  # fmt: skip
        if path().takes(self.device):
            self._streams.current()
        found, reached, edges = draw_hops(relations, self._numberings, nodes, times)
        return TypedSubgraph(
            {kind: own.ids.long() for kind, own in found.items()},
            {key: torch.cat(hops.pairs, dim=1) for key, hops in edges.items()},
            {key: torch.cat(hops.edges) for key, hops in edges.items()},
            {kind: [b - a for a, b in itertools.pairwise(ends)] for kind, ends in reached.items()},
            {key: hops.counts for key, hops in edges.items()},
            {kind: own.trees.long() for kind, own in found.items() if own.trees is not None}
            if self.disjoint
            else None,
        )


def _check_names(name: str, given: Any, known: Mapping[Any, Any], *, every: bool = False) -> None:
    """Raise unless the keys of a mapping, which may be None, are known; with `every`, all of them."""
    if given is None:
        return
    if not isinstance(given, Mapping):
        bad_type(name, given, "a mapping")
    for key in given:
        if key not in known:
            bad_value(name, f"names {key!r}; accepted: {', '.join(map(str, known))}")
    for key in known:
        if every and key not in given:
            bad_value(name, f"lacks {key!r}; accepted: a mapping of all of {', '.join(map(str, known))}")
