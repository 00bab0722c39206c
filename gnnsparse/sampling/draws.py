"""What a sampler draws from, and how: edges and their weights, numbers of nodes, negatives, on CPU and GPU.

What is drawn depends on the seed, the step, the layer and the node alone. All random words are Philox's at a
counter of these (native/include/gnnsparse/sampling.h), so that every device and every number of threads draws
the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_type, bad_value, check_array
from gnnsparse.formats.csr import Csr
from gnnsparse.preprocess.normalize import normalize
from gnnsparse.runtime.device import path
from gnnsparse.runtime.memo import ForkLock
from gnnsparse.sparse.graph import SparseGraph, merge_values, value_tensor

_NO_PLACE, _MOST = 2**31 - 1, 2**63 - 1

Key = TypeVar("Key")


class Rule:
    """The codes of the rules by which edges are drawn, those of SampleRule in the native header."""

    ALL, UNIFORM, UNIFORM_REPLACED, WEIGHTED, WEIGHTED_REPLACED, LABOR = range(6)


@dataclass(frozen=True)
class LayerDraw:
    """What is drawn for a layer."""

    draw: _native.SampleDraw
    fanout: int
    row_edges: int | None  # most edges of a row, a self-loop that is added included; None: as many as it has


class Nodes(NamedTuple):
    """Nodes, and of a disjoint sample the seed in whose tree each is: the same node may be in several."""

    ids: torch.Tensor  # int32 [nodes]
    trees: torch.Tensor | None = None  # int32 [nodes], the seed's position

    def between(self, begin: int, end: int) -> Nodes:
        """Return a part of them."""
        return Nodes(self.ids[begin:end], None if self.trees is None else self.trees[begin:end])

    def sources(self, drawn: Drawn) -> Nodes:
        """Return the sources of the edges that were drawn of these nodes."""
        if self.trees is None:
            return Nodes(drawn.nodes)
        return Nodes(drawn.nodes, _by_edge(self.trees, drawn.indptr.diff(), drawn.nodes))


def join(nodes: Sequence[Nodes]) -> Nodes:
    """Return nodes one after another."""
    trees = [found.trees for found in nodes if found.trees is not None]
    return Nodes(torch.cat([found.ids for found in nodes]), torch.cat(trees) if trees else None)


@dataclass(frozen=True, eq=False)
class Drawn:
    """The edges that were drawn, row by row."""

    indptr: torch.Tensor  # int64 [rows + 1], where the edges of each row begin
    nodes: torch.Tensor  # int32 [edges], the source of each edge
    edges: torch.Tensor  # int64 [edges], its nonzero in the matrix; -1: a self-loop that was added
    copies: torch.Tensor | None  # float32 [edges], how often it was drawn; None: once

    def repeated(self, copies: torch.Tensor) -> Drawn:
        """Return the edges with each as often as `copies` says."""
        times = copies.long()
        ends = torch.nn.functional.pad(times.cumsum(0), (1, 0))
        nodes, edges = (array.repeat_interleave(times) for array in (self.nodes, self.edges))
        return Drawn(ends[self.indptr], nodes, edges, None)


def running_sums(csr: Csr, weights: torch.Tensor) -> torch.Tensor:
    """Return the sums of weights, float32 [nnz], from each row's first edge on, float64 [nnz]."""
    host = csr.to(torch.device("cpu"))
    running = torch.empty(csr.nnz, dtype=torch.float64, device="cpu")
    _native.running_sums(host.view, weights.cpu(), running, torch.get_num_threads())
    return running.to(weights.device)


def time_tensor(name: str, given: Any, count: int, device: torch.device) -> torch.Tensor:
    """Return times [count], int64 or float64, of a tensor, an array or a list of numbers."""
    accepted = f"{count} integers or floating-point numbers, which are times"
    times = given if isinstance(given, torch.Tensor) else torch.from_numpy(check_array(name, given, accepted))
    if times.dtype not in (torch.int32, torch.int64, torch.float32, torch.float64):
        bad_type(name, times, accepted)
    if times.shape != (count,):
        bad_value(name, f"has shape {tuple(times.shape)}; accepted: ({count},)")
    if times.device != device:
        bad_value(name, f"is on {times.device}; accepted: {device}")
    times = times.detach().to(torch.float64 if times.is_floating_point() else torch.int64)
    if times.is_floating_point() and bool(times.isnan().any()):  # later than all, and no time
        bad_value(name, f"element {int(times.isnan().nonzero()[0])} is nan; accepted: {accepted}")
    return times


@dataclass(frozen=True, eq=False)
class Clock:
    """When the edges of a matrix came, which are in order of time in each row."""

    moments: torch.Tensor  # int64 or float64 [moments], the different times, ascending
    keys: torch.Tensor  # int64 [nnz], ascending: row * moments + the number of the edge's time
    newest: bool  # whether as many edges as are drawn are the last ones

    def windows(
        self, indptr: torch.Tensor, targets: torch.Tensor, times: torch.Tensor, fanout: int
    ) -> torch.Tensor:
        """Return for each target the first edge that it may draw and how many there are, int64 [rows, 2]."""
        rows, moments = targets.long(), self.moments.numel()
        past = torch.searchsorted(self.moments, times, right=True)
        begin, end = indptr[rows], torch.searchsorted(self.keys, rows * moments + past)
        if self.newest and fanout > 0:
            begin = torch.maximum(begin, end - fanout)
        return torch.stack([begin, end - begin], dim=1)


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """A graph to draw from."""

    csr: Csr  # the edges, [targets, sources]; with "gcn" without self-loops, which are added to drawn rows
    normalization: str | None = None  # "mean" or "gcn"
    values: torch.Tensor | None = None  # float32 [nnz], the weights, normalised with "gcn"; None: 1 each
    scale: torch.Tensor | None = None  # float32 [nodes] of a graph without weights, with "gcn": D^-1/2
    loops: torch.Tensor | None = None  # float32 [nodes], the normalised weights of self-loops, with "gcn"
    nnz_index: torch.Tensor | None = None  # int64 [nnz], nonzeros of the given graph; None: the same
    #: For each nonzero of the given graph the first edge that was merged into it; None: nonzero e is edge e.
    edge_of_nonzero: torch.Tensor | None = None
    weights: torch.Tensor | None = None  # float32 [nnz], by which edges are drawn
    running: torch.Tensor | None = None  # float64 [nnz], see `running_sums`, for draws with replacement
    clock: Clock | None = None  # None: edges have no times
    repeats: bool = False  # whether rows may have several edges of one source

    @classmethod
    def make(
        cls, graph: SparseGraph, normalization: str | None, weights: Any, *, replace: bool
    ) -> Neighbourhood:
        """Make the neighbourhood of a graph; edges are drawn by `weights`, [edges] as given, or None."""
        made = (
            _without_loops(graph) if normalization == "gcn" else cls(graph.csr, normalization, graph.values)
        )
        nonzeros, first, drawn_by = graph.nnz_index_of_edge, None, _edge_weights(graph, weights)
        if nonzeros is not None:
            edges = torch.arange(nonzeros.numel(), dtype=torch.int64, device=graph.device)
            first = torch.full((graph.nnz,), nonzeros.numel(), dtype=torch.int64, device=graph.device)
            first.scatter_reduce_(0, nonzeros.long(), edges, "amin")
            drawn_by = None if drawn_by is None else merge_values(drawn_by, nonzeros, graph.nnz)
        running = None if drawn_by is None or not replace else running_sums(graph.csr, drawn_by)
        return dataclasses.replace(made, edge_of_nonzero=first, weights=drawn_by, running=running)

    @classmethod
    def make_of_edges(
        cls,
        graph: SparseGraph,
        weights: Any,
        *,
        replace: bool,
        times: torch.Tensor | None = None,
        newest: bool = False,
        normalization: str | None = None,
        values: torch.Tensor | None = None,
    ) -> Neighbourhood:
        """Make one with a nonzero for each edge given: those of a row by source, then as they were given.

        With `times`, int64 or float64 [edges], they are by time in place of the source. `values`, float32
        [edges], are the edges' weights.
        """
        drawn_by = _edge_weights(graph, weights)
        nonzeros, csr, order, clock = graph.nnz_index_of_edge, graph.csr, None, None
        if nonzeros is not None or times is not None:
            at = torch.arange(graph.nnz, device=graph.device) if nonzeros is None else nonzeros.long()
            keys = at
            if times is not None:
                moments, number = times.unique(return_inverse=True)
                keys = csr.row_index()[at] * moments.numel() + number
            order = torch.argsort(keys, stable=True)
            clock = None if times is None else Clock(moments, keys[order], newest)
            first = torch.nn.functional.pad(torch.bincount(at, minlength=graph.nnz).cumsum(0), (1, 0))
            csr = Csr(first[csr.indptr], csr.indices[at[order]], csr.cols)
            drawn_by, values = (None if given is None else given[order] for given in (drawn_by, values))
        running = None if drawn_by is None or not replace else running_sums(csr, drawn_by)
        return cls(
            csr, normalization, values, edge_of_nonzero=order, weights=drawn_by, running=running, clock=clock,
            repeats=graph.nnz < graph.num_edges,
        )  # fmt: skip

    @property
    def is_square(self) -> bool:
        """Whether targets are sources, too."""
        return self.csr.rows == self.csr.cols

    def edge_ids(self, edges: torch.Tensor) -> torch.Tensor:
        """Return the numbers of the edges given of nonzeros of `csr`, int64 [n]; -1 stays -1."""
        for table in (self.nnz_index, self.edge_of_nonzero):
            if table is not None:
                if table.numel() == 0:  # all edges are self-loops that were added
                    return edges
                edges = torch.where(edges < 0, -1, table[edges.clamp(min=0)])
        return edges

    def weigh(self, targets: torch.Tensor, drawn: Drawn) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Compute the weights of the edges that were drawn of target rows, int32 [rows].

        They are float32 [edges], and factors of the rows, float32 [rows]; None: 1 each.

        A sum has the given weights, times how often an edge was drawn. A mean is over what was drawn. With
        "gcn" the edges have the weights that they have in the whole graph, those of neighbours times the
        number of neighbours over the number of draws, so that a sum over neighbours that are drawn uniformly
        is that over all neighbours in expectation; the self-loop keeps its own.
        """
        if self.normalization == "gcn":
            return self._gcn_weights(targets, drawn), None
        values = None if self.values is None else self.values[drawn.edges]
        if drawn.copies is not None:
            values = drawn.copies if values is None else values * drawn.copies
        if self.normalization is None:
            return values, None
        counts = drawn.indptr.diff()
        if values is None and not self.repeats:
            # Whatever an empty row has is multiplied by a sum of nothing.
            return None, counts.clamp_(min=1).reciprocal().float()
        if values is None:  # of which some will be merged: a matrix has no factors of rows beside values
            values = torch.ones(drawn.nodes.shape, dtype=torch.float32, device=drawn.nodes.device)
        sums = _row_sums(values, counts)
        factor = torch.where(sums == 0, 0.0, 1.0 / sums)
        return (values.double() * _by_edge(factor, counts, values)).float(), None

    def _gcn_weights(self, targets: torch.Tensor, drawn: Drawn) -> torch.Tensor:
        assert self.loops is not None
        rows, counts = targets.long(), drawn.indptr.diff()
        is_loop = drawn.edges < 0
        at = drawn.edges.clamp(min=0)
        copies = drawn.copies
        taken = counts - 1 if copies is None else _row_sums(copies, counts) - 1
        degrees = self.csr.indptr[rows + 1] - self.csr.indptr[rows]
        factor = (degrees / taken.clamp(min=1)).float()
        if self.scale is not None:
            values = _by_edge(self.scale[rows] * factor, counts, drawn.nodes) * self.scale[drawn.nodes.long()]
        else:
            assert self.values is not None
            # A graph without edges but self-loops has no weights to index.
            own = self.values[at] if self.csr.nnz else self.values.new_zeros(at.numel())
            values = own * _by_edge(factor, counts, drawn.nodes)
        if copies is not None:
            values = values * copies
        return torch.where(is_loop, self.loops[drawn.nodes.long()], values)


def _without_loops(graph: SparseGraph) -> Neighbourhood:
    """Make the neighbourhood with "gcn" of a graph, whose weights are those with self-loops."""
    if graph.values is None and graph.num_rows == graph.num_cols and graph.csr.count_near(0) == 0:
        # Nothing of the size of the edges is made: they may be those of a file that is memory-mapped.
        factors = (graph.csr.degrees + 1).double().rsqrt().float()
        return Neighbourhood(graph.csr, "gcn", None, factors, factors * factors)
    weighted = normalize(graph, "gcn")
    whole = weighted.graph
    rows = whole.csr.row_index()
    apart = rows != whole.csr.indices
    values, scale = whole.values, weighted.row_scale
    loops = scale * scale if scale is not None else values[~apart]  # type: ignore[index]
    values = None if values is None else values[apart]
    if whole.nnz - graph.nnz == graph.num_rows:  # it had no self-loops
        return Neighbourhood(graph.csr, "gcn", values, scale, loops)
    nodes = torch.arange(graph.num_rows + 1, dtype=torch.int64, device=graph.device)
    csr = Csr(whole.csr.indptr - nodes, whole.csr.indices[apart], graph.num_cols)
    own = (graph.csr.row_index() != graph.csr.indices).nonzero().flatten()
    return Neighbourhood(csr, "gcn", values, scale, loops, own)


def _edge_weights(graph: SparseGraph, weights: Any) -> torch.Tensor | None:
    """Return the weights by which edges are drawn, float32 [edges], numbers of 0 or more, or None."""
    if weights is None:
        return None
    given = value_tensor("weights", weights, graph.num_edges, graph.device)
    if given.numel() and float(given.min()) < 0:
        at = int((given < 0).nonzero()[0])
        bad_value("weights", f"element {at} is {float(given[at])}; accepted: numbers of 0 or more")
    return given


def _row_sums(values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Sum the values of each row, float64 [rows]."""
    if values.numel() == 0:  # segment_reduce refuses an empty tensor
        return torch.zeros(counts.numel(), dtype=torch.float64, device=values.device)
    # Not its checks, for which the host would wait for a GPU.
    return torch.segment_reduce(values.double(), "sum", lengths=counts, initial=0.0, unsafe=True)


def _by_edge(of_row: torch.Tensor, counts: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    return torch.repeat_interleave(of_row, counts, output_size=edges.numel())


def draw_edges(
    graph: Neighbourhood,
    targets: Nodes,
    layer: LayerDraw,
    used: torch.Tensor | None = None,
    *,
    times: torch.Tensor | None = None,
    step: torch.Tensor | None = None,
    waits: bool = True,
) -> Drawn:
    """Draw edges of rows. On a GPU the host waits once, to learn their number.

    `times` [seeds] are those of the trees, after which no edge is drawn of a graph whose edges have times.
    If the host is not to wait, the arrays have room for the most edges, and `used`, int32 [1], says for how
    many of the rows they are drawn; None: for all. On a GPU `step`, int64 [1], may have the number of the
    draw in place of the layer's.
    """
    device, draw, rows = graph.csr.device, layer.draw, targets.ids.numel()
    windows = None
    if graph.clock is not None:
        assert times is not None
        assert targets.trees is not None
        own = times[targets.trees.long()]
        windows = graph.clock.windows(graph.csr.indptr, targets.ids, own, layer.fanout)
    slots = rows * layer.fanout if draw.draws_first else 0
    given = (
        _native.SampleGraph(graph.csr.view, graph.weights, graph.running), draw,
        _native.SampleRows(targets.ids, used, windows, targets.trees, *(() if step is None else (step,))),
        _native.SampleDrawn(
            torch.empty(slots, dtype=torch.int32, device=device),
            torch.empty(slots if draw.replaces else 0, dtype=torch.int32, device=device),
            torch.empty(0 if graph.weights is None else slots, dtype=torch.float64, device=device),
        ),
    )  # fmt: skip
    indptr = torch.zeros(rows + 1, dtype=torch.int64, device=device)
    on_gpu, threads = path().takes(device), torch.get_num_threads()
    if on_gpu:
        counts = indptr[1:]
        launch(device, "cuda_draw_neighbors", *given, counts)
        counts.cumsum_(0)
    else:
        _native.draw_neighbors(*given, indptr, threads)
    (total,) = path().read(indptr[-1:]) if waits else (rows * (layer.row_edges or 0),)
    drawn = Drawn(
        indptr,
        torch.empty(total, dtype=torch.int32, device=device),
        torch.empty(total, dtype=torch.int64, device=device),
        torch.empty(total, dtype=torch.float32, device=device) if draw.replaces else None,
    )
    arrays = drawn.indptr, drawn.nodes, drawn.edges, drawn.copies
    if on_gpu:
        launch(device, "cuda_gather_neighbors", *given, *arrays)
    else:
        _native.gather_neighbors(*given, *arrays, threads)
    return drawn


def merge_repeats(
    drawn: Drawn, numbers: torch.Tensor, values: torch.Tensor | None
) -> tuple[Drawn, torch.Tensor, torch.Tensor | None]:
    """Merge edges of a row from one source, whose number is int32 [edges]: the weights are added up.

    The first of them in the graph stands for all. The result is the edges, their numbers and weights.
    """
    rows = drawn.indptr.numel() - 1
    row = torch.repeat_interleave(drawn.indptr.diff(), output_size=numbers.numel())
    keys, index = (row << 31 | numbers).unique(return_inverse=True)
    edges = torch.full_like(keys, _MOST).scatter_reduce_(0, index, drawn.edges, "amin")
    bounds = torch.arange(rows + 1, dtype=torch.int64, device=numbers.device) << 31
    indptr = torch.searchsorted(keys, bounds)
    numbers = (keys & _NO_PLACE).to(torch.int32)
    return Drawn(indptr, numbers, edges, None), numbers, merge_values(values, index, keys.numel())


def launch(device: torch.device, name: str, *arguments: Any) -> None:
    """Call a native CUDA function on the current stream of a device."""
    with path().current(device):
        getattr(path().native, name)(*arguments, path().stream(device))


class Numbering:
    """Numbers nodes in the order of first appearance, by 4 bytes for each; threads wait for one another.

    `place`, int32 [nodes], is between calls the same for all nodes; `using_places` says who may use it.
    """

    def __init__(self, nodes: int, device: torch.device) -> None:
        self.place = torch.full((nodes,), _NO_PLACE, dtype=torch.int32, device=device)
        self._lock = ForkLock()

    def __reduce__(self) -> Any:
        return Numbering, (self.place.numel(), self.place.device)  # the places are free between calls

    @contextmanager
    def using_places(self) -> Iterator[torch.Tensor]:
        """Give `place` to one thread, whose block frees what it takes, and on a GPU waits for its kernels."""
        with self._lock:
            try:
                yield self.place
            except BaseException:  # or the next nodes would get the numbers of these ones
                self.place.fill_(_NO_PLACE)
                if path().takes(self.place.device):
                    path().finish(self.place.device)
                raise

    def number(self, targets: torch.Tensor, nodes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Number the targets, int32 [rows], and behind them the nodes, int32 [edges], that are no target.

        A target that is repeated is a ValueError. The result is the node of each number, int32 [numbers], for
        whose count the host waits for a GPU once, and the number of each of `nodes`, int32 [edges].
        """
        numbers = torch.empty_like(nodes)
        with self.using_places() as place:
            if path().takes(nodes.device):
                return _number_on_gpu(targets, nodes, place, numbers), numbers
            sources = torch.empty(targets.numel() + nodes.numel(), dtype=torch.int32, device=nodes.device)
            threads = torch.get_num_threads()
            count = _native.number_nodes(targets, nodes, place, sources, numbers, threads)
        if count < 0:
            refuse_repeat(targets)
        return sources[:count].clone(), numbers

    def extend(self, known: Nodes, found: Nodes) -> tuple[Nodes, torch.Tensor]:
        """Number nodes behind those that are known, as `number` does, in the trees of a disjoint sample.

        The result is the node of each number, and the number of each of the nodes found, int32 [found].
        """
        if known.trees is None or found.trees is None:
            sources, numbers = self.number(known.ids, found.ids)
            return Nodes(sources), numbers
        # Of each pair of a tree and a node the first place, and how many first places come before it.
        everything = join([known, found])
        assert everything.trees is not None
        keys = everything.trees.long() * self.place.numel() + everything.ids
        different, index = keys.unique(return_inverse=True)
        places = torch.arange(keys.numel(), dtype=torch.int64, device=keys.device)
        first = torch.full_like(different, keys.numel()).scatter_reduce_(0, index, places, "amin")
        first, order = first.sort()
        numbers = torch.empty_like(order, dtype=torch.int32)
        numbers[order] = torch.arange(order.numel(), dtype=torch.int32, device=keys.device)
        ids, trees = everything.ids[first], everything.trees[first]
        return Nodes(ids, trees), numbers[index[known.ids.numel() :]]


def _number_on_gpu(
    targets: torch.Tensor, nodes: torch.Tensor, place: torch.Tensor, numbers: torch.Tensor
) -> torch.Tensor:
    device, rows = nodes.device, targets.numel()
    first = torch.empty(rows + nodes.numel(), dtype=torch.int32, device=device)
    if first.numel() == 0:
        return first
    launch(device, "cuda_mark_first", targets, nodes, place, first, None, None)
    rank = first.cumsum(0, dtype=torch.int32)
    ends = rank[-1:] if rows in (0, rank.numel()) else torch.cat([rank[-1:], rank[rows - 1 : rows]])
    count, *of_targets = path().read(ends)
    distinct = of_targets[0] if of_targets else count
    sources = torch.empty(count, dtype=torch.int32, device=device)
    tail = None, None, None, None
    launch(device, "cuda_number_nodes", targets, nodes, rank, place, sources, numbers, *tail)
    # Another stream may number next, which would find the places of this one.
    path().finish(device)
    if rows and distinct != rows:
        refuse_repeat(targets)
    return sources


@dataclass(frozen=True, eq=False)
class Relation:
    """Edges from nodes of one type to nodes of one type, of which hops are drawn."""

    source: str
    target: str
    graph: Neighbourhood
    draws: Sequence[LayerDraw | None]  # one for each hop; None: it draws nothing


@dataclass(eq=False)
class Hops:
    """The edges of a relation that hops have drawn."""

    counts: list[int]  # of each hop
    pairs: list[torch.Tensor]  # int64 [2, edges], sources over targets, as positions in the nodes
    edges: list[torch.Tensor]  # int64 [edges], the edges as they were given

    @classmethod
    def make(cls, device: torch.device) -> Hops:
        """Make that of a relation of which nothing has been drawn."""
        none = torch.empty(2, 0, dtype=torch.int64, device=device)
        return cls([], [none], [none[0]])


def draw_hops(
    relations: Mapping[Key, Relation],
    numberings: Mapping[str, Numbering],
    seeds: Mapping[str, Nodes],
    times: torch.Tensor | None = None,
) -> tuple[dict[str, Nodes], dict[str, list[int]], dict[Key, Hops]]:
    """Draw edges for the nodes that each hop reaches first, as one graph of nodes of several types.

    The result is the nodes of each type, the seeds first, where those of each hop begin and end, and the
    edges. `times` [seeds] are those of the seeds of all types, one after another.
    """
    nodes = dict(seeds)
    counts = {kind: [0, found.ids.numel()] for kind, found in seeds.items()}
    edges: dict[Key, Hops] = {key: Hops.make(of.graph.csr.device) for key, of in relations.items()}
    for hop in range(max(len(relation.draws) for relation in relations.values())):
        reached: dict[str, list[tuple[Key, torch.Tensor, Nodes]]] = {kind: [] for kind in nodes}
        for key, relation in relations.items():
            layer, (begin, end) = relation.draws[hop], counts[relation.target][-2:]
            if layer is None or begin == end:  # also because the host would wait for a GPU
                edges[key].counts.append(0)
                continue
            targets = nodes[relation.target].between(begin, end)
            drawn = draw_edges(relation.graph, targets, layer, times=times)
            if drawn.copies is not None:
                drawn = drawn.repeated(drawn.copies)
            own, found = drawn.edges, targets.sources(drawn)
            rows = torch.arange(begin, end, dtype=torch.int64, device=own.device)
            rows = _by_edge(rows, drawn.indptr.diff(), own)
            edges[key].edges.append(relation.graph.edge_ids(own))
            edges[key].counts.append(own.numel())
            reached[relation.source].append((key, rows, found))
        for kind, parts in reached.items():
            if parts:
                known = nodes[kind]
                nodes[kind], numbers = numberings[kind].extend(known, join([found for _, _, found in parts]))
                sizes = [rows.numel() for _, rows, _ in parts]
                for (key, rows, _), of_part in zip(parts, numbers.long().split(sizes), strict=True):
                    edges[key].pairs.append(torch.stack([of_part, rows]))
            counts[kind].append(nodes[kind].ids.numel())
    return nodes, counts, edges


def refuse_repeat(seeds: torch.Tensor) -> None:
    """Raise a ValueError that names the first of the seeds that was there before."""
    nodes = seeds.tolist()
    first = {node: at for at, node in reversed(list(enumerate(nodes)))}
    at, node = next((at, node) for at, node in enumerate(nodes) if first[node] < at)
    bad_value("seeds", f"element {at} is {node} once more; accepted: different nodes, as from torch.unique")


def draw_negatives(
    csr: Csr,
    draw: _native.SampleDraw,
    count: int,
    *,
    distinct: bool = True,
    sources: torch.Tensor | None = None,
) -> torch.Tensor:
    """Draw sources and targets without an edge, int64 [count, 2]; `distinct`: of two different nodes.

    With `sources`, int64 [count], only targets are drawn.
    """
    device, of = csr.device, _native.SampleNegatives(distinct, sources is not None)
    pairs = torch.empty(count, 2, dtype=torch.int64, device=device)
    if count == 0:
        return pairs
    if sources is not None:
        pairs[:, 0] = sources
    if path().takes(device):
        missing = torch.full((1,), _NO_PLACE, dtype=torch.int32, device=device)
        launch(device, "cuda_draw_negatives", csr.view, draw, of, pairs, missing)
        found = int(missing) == _NO_PLACE
    else:
        found = _native.draw_negatives(csr.view, draw, of, pairs, torch.get_num_threads()) < 0
    if not found:
        bad_value("graph", "joins nearly all pairs of its nodes; accepted: one with pairs without an edge")
    return pairs
