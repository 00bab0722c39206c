"""What a sampler draws from, and how: edges and their weights, numbers of nodes, negatives, on CPU and GPU.

What is drawn depends on the seed, the step, the layer and the node alone. All random words are Philox's at a
counter of these (native/include/gnnsparse/sampling.h), so that every device and every number of threads draws
the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_value
from gnnsparse.formats.csr import Csr
from gnnsparse.preprocess.normalize import normalize
from gnnsparse.runtime.device import path
from gnnsparse.runtime.memo import ForkLock
from gnnsparse.sparse.graph import SparseGraph, merge_values, value_tensor

_NO_PLACE = 2**31 - 1


class Rule:
    """The codes of the rules by which edges are drawn, those of SampleRule in the native header."""

    ALL, UNIFORM, UNIFORM_REPLACED, WEIGHTED, WEIGHTED_REPLACED, LABOR = range(6)


@dataclass(frozen=True)
class LayerDraw:
    """What is drawn for a layer."""

    draw: _native.SampleDraw
    fanout: int
    row_edges: int | None  # most edges of a row, a self-loop that is added included; None: as many as it has


@dataclass(frozen=True, eq=False)
class Drawn:
    """The edges that were drawn, row by row."""

    indptr: torch.Tensor  # int64 [rows + 1], where the edges of each row begin
    nodes: torch.Tensor  # int32 [edges], the source of each edge
    edges: torch.Tensor  # int64 [edges], its nonzero in the matrix; -1: a self-loop that was added
    copies: torch.Tensor | None  # float32 [edges], how often it was drawn; None: once


def running_sums(csr: Csr, weights: torch.Tensor) -> torch.Tensor:
    """Return the sums of weights, float32 [nnz], from each row's first edge on, float64 [nnz]."""
    host = csr.to(torch.device("cpu"))
    running = torch.empty(csr.nnz, dtype=torch.float64, device="cpu")
    _native.running_sums(host.view, weights.cpu(), running, torch.get_num_threads())
    return running.to(weights.device)


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
    def make_of_edges(cls, graph: SparseGraph, weights: Any, *, replace: bool) -> Neighbourhood:
        """Make one with a nonzero for each edge given: those of a row by source, then as they were given."""
        drawn_by = _edge_weights(graph, weights)
        nonzeros, csr, order = graph.nnz_index_of_edge, graph.csr, None
        if nonzeros is not None:
            order = torch.argsort(nonzeros, stable=True)
            copies = torch.bincount(nonzeros.long(), minlength=graph.nnz)
            first = torch.nn.functional.pad(copies.cumsum(0), (1, 0))
            csr = Csr(first[csr.indptr], csr.indices.repeat_interleave(copies), csr.cols)
            drawn_by = None if drawn_by is None else drawn_by[order]
        running = None if drawn_by is None or not replace else running_sums(csr, drawn_by)
        return cls(csr, edge_of_nonzero=order, weights=drawn_by, running=running)

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
        if values is None:
            # Whatever an empty row has is multiplied by a sum of nothing.
            return None, counts.clamp_(min=1).reciprocal().float()
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
    targets: torch.Tensor,
    layer: LayerDraw,
    used: torch.Tensor | None = None,
    *,
    waits: bool = True,
) -> Drawn:
    """Draw edges of rows, int32 [rows]. On a GPU the host waits once, to learn their number.

    If it is not to wait, the arrays have room for the most edges, and `used`, int32 [1], says for how many of
    the rows they are drawn; None: for all.
    """
    device, draw, rows = graph.csr.device, layer.draw, targets.numel()
    slots = rows * layer.fanout if draw.draws_first else 0
    given = (
        _native.SampleGraph(graph.csr.view, graph.weights, graph.running), draw, targets,
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
        launch(device, "cuda_draw_neighbors", *given, counts, used)
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
        launch(device, "cuda_gather_neighbors", *given, *arrays, used)
    else:
        _native.gather_neighbors(*given, *arrays, threads)
    return drawn


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


def refuse_repeat(seeds: torch.Tensor) -> None:
    """Raise a ValueError that names the first of the seeds that was there before."""
    nodes = seeds.tolist()
    first = {node: at for at, node in reversed(list(enumerate(nodes)))}
    at, node = next((at, node) for at, node in enumerate(nodes) if first[node] < at)
    bad_value("seeds", f"element {at} is {node} once more; accepted: different nodes, as from torch.unique")


def draw_negatives(csr: Csr, draw: _native.SampleDraw, count: int) -> torch.Tensor:
    """Draw sources and targets without an edge, int64 [count, 2]; different ones if the matrix is square."""
    device = csr.device
    pairs = torch.empty(count, 2, dtype=torch.int64, device=device)
    if count == 0:
        return pairs
    if path().takes(device):
        missing = torch.full((1,), _NO_PLACE, dtype=torch.int32, device=device)
        launch(device, "cuda_draw_negatives", csr.view, draw, 0, pairs, missing)
        found = int(missing) == _NO_PLACE
    else:
        found = _native.draw_negatives(csr.view, draw, 0, pairs, torch.get_num_threads()) < 0
    if not found:
        bad_value("graph", "joins nearly all pairs of its nodes; accepted: one with pairs without an edge")
    return pairs
