"""The layers of a sample: drawn one after another, or on a GPU all at once, which the host waits for once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gnnsparse import _native
from gnnsparse.runtime.device import path
from gnnsparse.sampling.draws import Drawn, Numbering, draw_edges, launch, refuse_repeat
from gnnsparse.sampling.neighbourhood import Neighbourhood
from gnnsparse.sparse.graph import check_range

__all__ = ["Layer", "LayerDraw", "draw_at_once", "draw_in_turn"]

#: Edges of a layer for which there may be room at once. Of more the number is waited for, which takes less
#: time than the memory would be worth.
_MOST_EDGES = 2**24
#: Numbers that the kernels find out about a layer, SampleSizes in the native header.
_EDGES, _SOURCES, _DISTINCT, _LONGEST = range(4)


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
class Layer:
    """A layer of a sample.

    Attributes:
        targets: int32 [rows], the nodes whose neighbours were drawn.
        drawn: the edges.
        sources: int32 [sources], the node of each number.
        numbers: int32 [edges], the number of the source of each edge.
        longest: numbers of edges that no row and no source exceeds; None: they are not known.
    """

    targets: torch.Tensor
    drawn: Drawn
    sources: torch.Tensor
    numbers: torch.Tensor
    longest: tuple[int, int] | None = None


def draw_in_turn(
    graph: Neighbourhood,
    numbering: Numbering,
    seeds: torch.Tensor,
    draws: Sequence[LayerDraw],
    *,
    square: bool,
) -> list[Layer]:
    """Draws the layers of a sample. On a GPU the host waits several times for each.

    Args:
        graph: what is drawn from.
        numbering: numbers its nodes.
        seeds: int32 [seeds], different nodes.
        draws: what is drawn for each layer.
        square: whether targets are sources, too.

    Raises:
        ValueError: a seed is repeated.
    """
    layers, targets = [], seeds
    for layer in draws:
        drawn = draw_edges(graph.csr, targets, layer.draw, layer.fanout, graph.weights, graph.running)
        sources, numbers = numbering.number(targets if square else targets[:0], drawn.nodes)
        layers.append(Layer(targets, drawn, sources, numbers))
        targets = sources
    return layers


def draw_at_once(
    graph: Neighbourhood,
    numbering: Numbering,
    seeds: torch.Tensor,
    draws: Sequence[LayerDraw],
    *,
    square: bool,
) -> list[Layer] | None:
    """Draws the layers of a sample on a GPU, into arrays that have room for the most that can be drawn.

    The kernels of a layer read from the GPU's memory how much the layer before has drawn. The host waits
    once, at the end, for the sizes of all layers.

    Args:
        graph: what is drawn from.
        numbering: numbers its nodes.
        seeds: int32 or int64 [seeds].
        draws: what is drawn for each layer.
        square: whether targets are sources, too.

    Returns:
        The layers, those that `draw_in_turn` draws; None: there are no seeds, a row may have any number of
        edges, or there would be too many.

    Raises:
        ValueError: a seed is out of range or repeated.
    """
    nodes = graph.csr.rows
    if seeds.numel() == 0 or nodes == 0 or not _has_room(seeds.numel(), graph.csr.cols, draws):
        return None
    sizes = torch.zeros(len(draws) + 1, 4, dtype=torch.int32, device=seeds.device)
    # Seeds that are out of range are noticed after the kernels have run, which are given others.
    targets = seeds.clamp(0, nodes - 1)
    sizes[-1, 0] = (targets != seeds).any()
    targets, used, layers = targets.to(torch.int32), None, []
    with numbering.using_places() as place:
        for number, layer in enumerate(draws):
            layers.append(_draw_layer(graph, place, targets, used, layer, sizes[number], square))
            targets, used = layers[-1].sources, sizes[number, _SOURCES : _SOURCES + 1]
        found = path().read(sizes.view(-1))
    if found[-4]:
        check_range("seeds", seeds, nodes, "the number of nodes")
    if square and found[_DISTINCT] != seeds.numel():
        refuse_repeat(seeds)
    cut, rows = [], seeds.numel()
    for number, made in enumerate(layers):
        of_layer = found[4 * number : 4 * number + 4]
        cut.append(_used_part(made, rows, of_layer, draws[number].row_edges or 0))
        rows = of_layer[_SOURCES]
    return cut


def _has_room(rows: int, columns: int, draws: Sequence[LayerDraw]) -> bool:
    """Returns whether the most edges that can be drawn for some rows are few enough in each layer."""
    for layer in draws:
        if layer.row_edges is None or rows * layer.row_edges > _MOST_EDGES:
            return False
        rows = min(rows + rows * layer.row_edges, columns)
    return True


def _draw_layer(
    graph: Neighbourhood,
    place: torch.Tensor,
    targets: torch.Tensor,
    used: torch.Tensor | None,
    layer: LayerDraw,
    sizes: torch.Tensor,
    square: bool,
) -> Layer:
    """Queues the kernels of a layer.

    Args:
        graph: what is drawn from.
        place: the places of the numbering.
        targets: int32 [rows at most].
        used: int32 [1], how many of them there are; None: all.
        layer: what is drawn.
        sizes: int32 [4], zeros, for the sizes of the layer.
        square: whether targets are sources, too.

    Returns:
        The layer in arrays that have room for the most that can be drawn.
    """
    device, rows, draw = targets.device, targets.numel(), layer.draw
    assert layer.row_edges is not None
    most, slots = rows * layer.row_edges, rows * layer.fanout
    taken = _native.SampleGraph(graph.csr.view, graph.weights, graph.running)
    places, copies = (
        torch.empty(count, dtype=torch.int32, device=device)
        for count in (slots, slots if draw.replaces else 0)
    )
    keys = torch.empty(0 if graph.weights is None else slots, dtype=torch.float64, device=device)
    drawn = _native.SampleDrawn(places, copies, keys)
    indptr = torch.zeros(rows + 1, dtype=torch.int64, device=device)
    counts = indptr[1:]
    launch(device, "cuda_draw_neighbors", taken, draw, targets, drawn, counts, used)
    counts.cumsum_(0)
    nodes, numbers = (torch.empty(most, dtype=torch.int32, device=device) for _ in range(2))
    edges = torch.empty(most, dtype=torch.int64, device=device)
    times = torch.empty(most, dtype=torch.float32, device=device) if draw.replaces else None
    launch(
        device, "cuda_gather_neighbors", taken, draw, targets, drawn, indptr, nodes, edges, times, used
    )  # fmt: skip
    first_targets, first_used = (targets, used) if square else (targets[:0], None)
    rank = torch.empty(first_targets.numel() + most, dtype=torch.int32, device=device)
    launch(device, "cuda_mark_first", first_targets, nodes, place, rank, first_used, indptr)
    rank.cumsum_(0)
    different = min(rank.numel(), place.numel())
    sources = torch.empty(different, dtype=torch.int32, device=device)
    uses = torch.zeros(different, dtype=torch.int32, device=device)
    launch(
        device, "cuda_number_nodes", first_targets, nodes, rank, place, sources, numbers, first_used, indptr,
        uses, sizes,
    )  # fmt: skip
    return Layer(targets, Drawn(indptr, nodes, edges, times), sources, numbers)


def _used_part(layer: Layer, rows: int, sizes: Sequence[int], row_edges: int) -> Layer:
    """Returns the part of a layer's arrays that is used."""
    count, drawn = sizes[_EDGES], layer.drawn
    copies = None if drawn.copies is None else drawn.copies[:count]
    return Layer(
        layer.targets[:rows],
        Drawn(drawn.indptr[: rows + 1], drawn.nodes[:count], drawn.edges[:count], copies),
        layer.sources[: sizes[_SOURCES]],
        layer.numbers[:count],
        (row_edges, sizes[_LONGEST]),
    )
