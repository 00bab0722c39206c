"""The native operations of sampling, on a CPU or a GPU: drawing edges, numbering nodes, drawing negatives.

What is drawn depends on the seed, the step, the layer and the node alone. All random words are Philox's at a
counter of these (native/include/gnnsparse/sampling.h), so that every device and every number of threads draws
the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_value
from gnnsparse.formats.csr import Csr
from gnnsparse.runtime.device import path
from gnnsparse.runtime.memo import ForkLock

__all__ = [
    "Drawn", "LayerDraw", "Numbering", "Rule", "draw_edges", "draw_negatives", "launch", "queue_draws",
    "refuse_repeat", "running_sums",
]  # fmt: skip

_NO_PLACE = 2**31 - 1


class Rule:
    """The codes of the rules by which edges are drawn, those of SampleRule in the native header."""

    ALL, UNIFORM, UNIFORM_REPLACED, WEIGHTED, WEIGHTED_REPLACED, LABOR = range(6)


@dataclass(frozen=True)
class LayerDraw:
    """What is drawn for a layer.

    Attributes:
        draw: for the native functions.
        fanout: the fan-out in it.
        loops: 1 if each row begins with an edge from its own node, else 0.
    """

    draw: _native.SampleDraw
    fanout: int
    loops: int

    @property
    def row_edges(self) -> int | None:
        """Most edges of a row; None: as many as it has."""
        return self.fanout + self.loops if self.draw.draws_first else None


@dataclass(frozen=True, eq=False)
class Drawn:
    """The edges that were drawn, row by row.

    Attributes:
        indptr: int64 [rows + 1], where the edges of each row begin.
        nodes: int32 [edges], the source of each edge.
        edges: int64 [edges], its nonzero in the matrix; -1: a self-loop that was added.
        copies: float32 [edges], how often it was drawn; None: once.
    """

    indptr: torch.Tensor
    nodes: torch.Tensor
    edges: torch.Tensor
    copies: torch.Tensor | None


def running_sums(csr: Csr, weights: torch.Tensor) -> torch.Tensor:
    """Return the sums of weights, float32 [nnz], from each row's first edge on, float64 [nnz].

    They are computed on the CPU, in the order of the edges, and moved to the device of the weights.
    """
    host = csr.to(torch.device("cpu"))
    running = torch.empty(csr.nnz, dtype=torch.float64, device="cpu")
    _native.running_sums(host.view, weights.cpu(), running, torch.get_num_threads())
    return running.to(weights.device)


def _arguments(
    csr: Csr,
    targets: torch.Tensor,
    layer: LayerDraw,
    weights: torch.Tensor | None,
    running: torch.Tensor | None,
) -> tuple[_native.SampleGraph, _native.SampleDraw, torch.Tensor, _native.SampleDrawn]:
    """Return what the functions that draw and gather edges take first; the last of it is what is drawn."""
    device, draw = csr.device, layer.draw
    slots = targets.numel() * layer.fanout if draw.draws_first else 0
    places, copies = (
        torch.empty(count, dtype=torch.int32, device=device)
        for count in (slots, slots if draw.replaces else 0)
    )
    keys = torch.empty(0 if weights is None else slots, dtype=torch.float64, device=device)
    graph, drawn = _native.SampleGraph(csr.view, weights, running), _native.SampleDrawn(places, copies, keys)
    return graph, draw, targets, drawn


def _room_for(count: int, indptr: torch.Tensor, layer: LayerDraw) -> Drawn:
    """Return arrays for `count` edges, whose rows begin at `indptr`."""
    device = indptr.device
    nodes = torch.empty(count, dtype=torch.int32, device=device)
    edges = torch.empty(count, dtype=torch.int64, device=device)
    copies = torch.empty(count, dtype=torch.float32, device=device) if layer.draw.replaces else None
    return Drawn(indptr, nodes, edges, copies)


def draw_edges(
    csr: Csr,
    targets: torch.Tensor,
    layer: LayerDraw,
    weights: torch.Tensor | None = None,
    running: torch.Tensor | None = None,
) -> Drawn:
    """Draw edges of some rows. On a GPU the host waits for the current stream once, to learn their number.

    Args:
        csr: the matrix, [targets, sources].
        targets: int32 [rows], the rows.
        layer: what is drawn.
        weights: float32 [nnz], for WEIGHTED.
        running: what `running_sums` returned, for WEIGHTED_REPLACED.
    """
    device, rows, threads = csr.device, targets.numel(), torch.get_num_threads()
    given = _arguments(csr, targets, layer, weights, running)
    on_gpu = path().takes(device)
    if on_gpu:
        counts = torch.empty(rows, dtype=torch.int64, device=device)
        launch(device, "cuda_draw_neighbors", *given, counts, None)
        indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    else:
        indptr = torch.empty(rows + 1, dtype=torch.int64, device=device)
        _native.draw_neighbors(*given, indptr, threads)
    (total,) = path().read(indptr[-1:])
    drawn = _room_for(total, indptr, layer)
    arrays = drawn.indptr, drawn.nodes, drawn.edges, drawn.copies
    if on_gpu:
        launch(device, "cuda_gather_neighbors", *given, *arrays, None)
    else:
        _native.gather_neighbors(*given, *arrays, threads)
    return drawn


def queue_draws(
    csr: Csr,
    targets: torch.Tensor,
    used: torch.Tensor | None,
    layer: LayerDraw,
    weights: torch.Tensor | None,
    running: torch.Tensor | None,
) -> Drawn:
    """Draw what `draw_edges` draws on a GPU, into arrays with room for the most edges, without a wait.

    `used`, int32 [1], says how many of the targets there are; None: all.
    """
    assert layer.row_edges is not None
    device, rows = csr.device, targets.numel()
    given = _arguments(csr, targets, layer, weights, running)
    indptr = torch.zeros(rows + 1, dtype=torch.int64, device=device)
    counts = indptr[1:]
    launch(device, "cuda_draw_neighbors", *given, counts, used)
    counts.cumsum_(0)
    drawn = _room_for(rows * layer.row_edges, indptr, layer)
    launch(
        device, "cuda_gather_neighbors", *given, indptr, drawn.nodes, drawn.edges, drawn.copies, used
    )  # fmt: skip
    return drawn


def launch(device: torch.device, name: str, *arguments: Any) -> None:
    """Call a native CUDA function on the current stream of a device."""
    with path().current(device):
        getattr(path().native, name)(*arguments, path().stream(device))


class Numbering:
    """Numbers nodes in the order of their first appearance, by 4 bytes for each of all nodes.

    It may be used from several threads, which wait for one another. `place`, int32 [nodes], is between calls
    the same for all nodes; `using_places` says who may use it.
    """

    def __init__(self, nodes: int, device: torch.device) -> None:
        self.place = torch.full((nodes,), _NO_PLACE, dtype=torch.int32, device=device)
        self._lock = ForkLock()

    def __reduce__(self) -> Any:
        return Numbering, (self.place.numel(), self.place.device)  # the places are free between calls

    @contextmanager
    def using_places(self) -> Iterator[torch.Tensor]:
        """Give `place` to one thread at a time, in a `with` block.

        The block has to free the places that it takes, and on a GPU to wait for its kernels. If it raises an
        error between taking and freeing places, such as that memory is used up, all places are freed here:
        the next nodes would get the numbers of these ones.
        """
        with self._lock:
            try:
                yield self.place
            except BaseException:
                self.place.fill_(_NO_PLACE)
                if path().takes(self.place.device):
                    path().finish(self.place.device)
                raise

    def number(self, targets: torch.Tensor, nodes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Number the targets, int32 [rows], and behind them the nodes, int32 [edges], that are no target.

        On a GPU the host waits for the current stream once, to learn how many numbers there are. A target
        that is repeated is a ValueError.

        Returns:
            The node of each number, int32 [numbers], and the number of each of `nodes`, int32 [edges].
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
    """Number nodes by kernels, which take places and free them; see `Numbering.number`."""
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
    """Draw pairs of nodes without an edge, uniformly and with replacement, by a seed and a step.

    Returns:
        int64 [count, 2], a source and a target each; two different nodes if the matrix is square.
    """
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
