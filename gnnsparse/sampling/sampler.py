"""NeighborSampler: blocks of neighbours that are drawn for nodes, or for the ends of links."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_type, bad_value, check_choice, check_flag, check_integer, device_of
from gnnsparse.formats.csr import check_range
from gnnsparse.precision import Precision
from gnnsparse.preprocess.source import read_source
from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import runs_outside
from gnnsparse.runtime.memo import Streams, cached_property
from gnnsparse.sampling.blocks import (
    Block,
    BlockArrays,
    BlockPlans,
    arrange,
    draw_at_once,
    draw_in_turn,
    draw_padded,
    fits_at_once,
    plan_blocks,
    prepare_block,
)
from gnnsparse.sampling.draws import (
    Clock,
    LayerDraw,
    Neighbourhood,
    Nodes,
    Numbering,
    Relation,
    Rule,
    draw_hops,
    draw_negatives,
    time_tensor,
)
from gnnsparse.sparse.graph import SparseGraph, index_tensor, merge_values, value_tensor
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.sparse.prepared import NORMALIZATIONS

_MOST_FANOUT = 2**31 - 1


def check_fanouts(name: str, fanouts: Any, *, zero: bool = False) -> tuple[int, ...]:
    """Return fan-outs, positive integers or -1, and 0 if it may be, as a tuple, else raise."""
    accepted = f"{'integers of 0 or more' if zero else 'positive integers'}, or -1 for all neighbours"
    if isinstance(fanouts, (str, bytes)) or not isinstance(fanouts, Sequence):
        bad_type(name, fanouts, f"a sequence of {accepted}")
    if len(fanouts) == 0:
        bad_value(name, f"is empty; accepted: {accepted}, one for each layer")
    for fanout in fanouts:
        if check_integer(name, fanout, -1, accepted, _MOST_FANOUT) == 0 and not zero:
            bad_value(name, f"got 0; accepted: {accepted}")
    return tuple(fanouts)


#: The rules by which edges are drawn, by method and whether neighbours are drawn with replacement.
_RULES = {
    ("uniform", False): Rule.UNIFORM, ("uniform", True): Rule.UNIFORM_REPLACED,
    ("weighted", False): Rule.WEIGHTED, ("weighted", True): Rule.WEIGHTED_REPLACED,
    ("labor", False): Rule.LABOR,
}  # fmt: skip
#: Values of the argument `method`.
METHODS = tuple(dict.fromkeys(method for method, _ in _RULES))
_MOST_STEPS, _MOST_SEED = 2**32 - 1, 2**63 - 1
#: Values of the argument `temporal_strategy`.
TEMPORAL_STRATEGIES = ("uniform", "last")
#: Trees and layers of a disjoint sample that have random words of their own.
_MOST_TREES, MOST_LAYERS = 2**24 - 2, 2**8


@dataclass(frozen=True)
class Drawing:
    """How edges are drawn: the options of `NeighborSampler` of these names."""

    method: str
    replace: bool
    seed: int
    newest: bool

    @classmethod
    def check(cls, method: Any, replace: Any, seed: Any, temporal_strategy: Any, weights: Any) -> Drawing:
        """Check the options, else raise."""
        check_choice("method", method, METHODS)
        check_flag("replace", replace)
        if (weights is None) == (method == "weighted"):
            got = "None" if weights is None else "weights"
            bad_value("weights", f"got {got} with method={method!r}; accepted: with 'weighted'")
        if replace and method == "labor":
            bad_value("replace", "got True with method='labor', which draws an edge once; accepted: False")
        check_integer("seed", seed, 0, "an integer from 0 to 2^63 - 1", _MOST_SEED)
        newest = check_choice("temporal_strategy", temporal_strategy, TEMPORAL_STRATEGIES) == "last"
        return cls(method, replace, seed, newest)

    def layer(self, fanout: int, step: int, number: int, relation: int = 0, loops: int = 0) -> LayerDraw:
        """Return the draw of a layer; those of each relation have random words of their own."""
        rule, count = (Rule.ALL, 0) if fanout < 0 else (_RULES[self.method, self.replace], fanout)
        # The multiples of this odd number, 2^64 over the golden ratio, lie apart.
        seed = (self.seed + 0x9E3779B97F4A7C15 * relation) & _MOST_SEED
        draw = _native.SampleDraw(rule, count, seed, step, number, bool(loops))
        return LayerDraw(draw, count, count + loops if draw.draws_first else None)


@dataclass(frozen=True, eq=False)
class Sample:
    """The neighbourhoods that were drawn for nodes.

    Attributes:
        blocks: a block for each layer, in the order in which layers run: the targets of the last one are the
            seeds, and the sources of each are the targets of the one before.
        seeds: int64 [seeds], the nodes.
    """

    blocks: tuple[Block, ...]
    seeds: torch.Tensor

    @property
    def nodes(self) -> torch.Tensor:
        """The nodes whose features the first layer reads, int64 [sources of the first block]."""
        return self.blocks[0].sources

    @property
    def adjs(self) -> list[Any]:
        """The operands of the blocks, one for each layer."""
        return [block.adj for block in self.blocks]


@dataclass(frozen=True, eq=False)
class LinkSample(Sample):
    """The neighbourhoods that were drawn for the ends of links.

    Attributes:
        blocks, seeds: see Sample; the seeds are the ends of all pairs, each node once.
        positive: int64 [k, 2], the given pairs, as positions in `seeds`.
        negative: int64 [n, 2], pairs without an edge, as positions in `seeds`.
    """

    positive: torch.Tensor
    negative: torch.Tensor


@dataclass(frozen=True, eq=False)
class Subgraph:
    """The neighbourhoods that were drawn for nodes, as one graph.

    Attributes:
        nodes: int64 [nodes], the seeds first, then by the hop in which they were reached.
        edge_index: int64 [2, edges], sources over targets, as positions in `nodes`, by hop. An edge that the
            graph repeats is there as often as it was drawn, each repeat with its own `edge_ids`.
        edge_ids: int64 [edges], the edges of the graph, as they were given.
        num_nodes, num_edges: how many each hop has, that of the seeds, without edges, first in `num_nodes`.
        trees: int64 [nodes], the position of the seed in whose tree each node is; None: not disjoint.
    """

    nodes: torch.Tensor
    edge_index: torch.Tensor
    edge_ids: torch.Tensor
    num_nodes: list[int]
    num_edges: list[int]
    trees: torch.Tensor | None = None


def seed_times(name: str, given: Any, count: int, clock: Clock) -> torch.Tensor:
    """Return times of seeds [count], of the dtype of the edges' times, else raise."""
    times = time_tensor(name, given, count, clock.moments.device)
    if times.dtype != clock.moments.dtype:
        bad_type(name, times, f"{str(clock.moments.dtype).removeprefix('torch.')}, as the edges' times are")
    return times


def trees_of(seeds: torch.Tensor, first: int = 0) -> Nodes:
    """Return seeds, int32 [seeds], each in a tree of its own, numbered from `first` on."""
    end = first + seeds.numel()
    if end > _MOST_TREES:
        bad_value("seeds", f"are {end}; accepted if disjoint: up to {_MOST_TREES}")
    return Nodes(seeds, torch.arange(first, end, dtype=torch.int32, device=seeds.device))


def check_step(step: Any) -> int:
    """Return the number of a draw, else raise."""
    return check_integer("step", step, 0, "an integer from 0 to 2^32 - 1", _MOST_STEPS)


def edge_sources(graph: SparseGraph) -> torch.Tensor:
    """Return the source of each edge given, int32 [edges]."""
    nonzeros, sources = graph.nnz_index_of_edge, graph.csr.indices
    return sources if nonzeros is None else sources[nonzeros.long()]


def _values_of_edges(graph: SparseGraph, edge_weight: Any) -> torch.Tensor | None:
    """Return the weight of each edge given, float32 [edges]; None: 1 each."""
    nonzeros = graph.nnz_index_of_edge
    if edge_weight is not None:
        return value_tensor("edge_weight", edge_weight, graph.num_edges, graph.device)
    if graph.values is None or nonzeros is None:
        return graph.values
    if graph.nnz < graph.num_edges:
        if not torch.equal(graph.values, merge_values(None, nonzeros, graph.nnz)):  # type: ignore[arg-type]
            problem = "is None, and the graph has added up the weights of repeated edges"
            bad_value("edge_weight", f"{problem}; accepted with times: the weight of each edge given")
        return None
    return graph.values[nonzeros.long()]


class NeighborSampler:
    """Draws neighbours of nodes, layer by layer, as operands for the layers of `gnnsparse.nn`.

    What is drawn depends on the graph, the options, the seed, the step and the nodes alone: it is the same on
    the CPU and on a GPU, and for every number of threads. A row's edges are drawn by numbers of Philox4x32-10
    (Salmon et al., SC 2011) at a counter of node, draw, layer and step. A sampler may be used from several
    threads.

    - method="uniform" draws `fanout` different neighbours, all of them if there are no more, every set of
      them with equal probability (Floyd's algorithm, Bentley and Floyd 1987); with `replace` that many draws,
      of which each takes every neighbour with equal probability.
    - method="weighted" draws by `weights`: with `replace` each draw with a probability in proportion to the
      weight; without, one neighbour after another in proportion to the weights of those that are left
      (Efraimidis and Spirakis 2006). Neighbours of weight 0 are never drawn.
    - method="labor" is LABOR-0 (Balin and Catalyurek, "Layer-Neighbor Sampling", NeurIPS 2023, section 3.1):
      a neighbour of a node with more than `fanout` neighbours is drawn with probability fanout / neighbours,
      if a random number that its source has in this layer is below it. Targets share these numbers, so that
      fewer different sources are drawn. `fanout` is the expected number of draws.

    The weights of a block's operand are by `values`:

    - None: those that the graph has, or 1 each, times how often an edge was drawn.
    - "mean": those over their sum in the row, so that a product is the mean of what was drawn.
    - "gcn": each node has a self-loop. Edges have the weights of D^-1/2 (A + I) D^-1/2 of the whole graph,
      and those of neighbours are multiplied by the number of neighbours over the number of draws: the
      expectation of a product is that of the whole graph (of "labor" up to the correlation with the number
      of draws, by which is divided), and with fanouts of -1 it is equal. Not for "weighted".

    A disjoint sample has a tree for each seed, which shares no nodes and no random numbers with the others.
    If edges or nodes have times, samples are disjoint, and a tree has only edges that are not later than its
    seed: those of the same time count, and nothing of the future reaches a seed.

    Args:
        graph: the graph, or a matrix [targets, sources], in a form that `gnnsparse.prepare` takes. A matrix
            that is not square has one layer of its own: targets and sources are nodes of two kinds.
        fanouts: neighbours that are drawn in each layer, from the seeds outwards: `fanouts[0]` are those of
            the seeds, in the last layer of a model. -1: all neighbours.
        method: one of METHODS.
        replace: whether neighbours are drawn with replacement; not for "labor". Repeats are merged into one
            edge, whose weight counts them; attention, which ignores weights, counts it once.
        weights: for "weighted": real numbers [edges] of 0 or more, in the order of the edges given.
        values: None, "mean" or "gcn".
        edge_weight: weights of the edges given, [edges]; None: those that the graph has.
        num_nodes: see `gnnsparse.prepare`.
        precision: precision of the operands.
        seed: seed of all draws, an integer from 0 to 2^63 - 1.
        keep_edge_ids: whether blocks have `edge_ids`.
        disjoint: whether samples are disjoint; seeds may then be repeated.
        edge_time: times of the edges given, integers or floating-point numbers [edges].
        node_time: times of the nodes [sources], in place of `edge_time`: an edge has that of its source.
        temporal_strategy: which of the edges that are not too late a row draws from: "uniform", all, or
            "last", the `fanout` latest (of equal ones the last given).
        device: where blocks are made; None: where the graph is.

    Attributes:
        fanouts: the fan-outs.
        num_nodes: the number of nodes that can be seeds, the rows of the matrix.
        precision: precision of the operands.
        normalization: how the weights of blocks are made, the argument `values`.
        disjoint: whether samples are disjoint.
        node_time: the nodes' times, int64 or float64 [sources], or None.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range, or does not go with another one.
    """

    @runs_outside
    def __init__(
        self,
        graph: Any,
        fanouts: Sequence[int],
        *,
        method: str = "uniform",
        replace: bool = False,
        weights: Any = None,
        values: str | None = None,
        edge_weight: Any = None,
        num_nodes: int | tuple[int, int] | None = None,
        precision: Precision | str = "fp32",
        seed: int = 0,
        keep_edge_ids: bool = False,
        disjoint: bool = False,
        edge_time: Any = None,
        node_time: Any = None,
        temporal_strategy: str = "uniform",
        device: torch.device | str | None = None,
    ) -> None:
        self.fanouts = check_fanouts("fanouts", fanouts)
        self._drawing = Drawing.check(method, replace, seed, temporal_strategy, weights)
        if values is not None:
            check_choice("values", values, NORMALIZATIONS)
        if values == "gcn" and method == "weighted":
            problem = "'gcn' with method='weighted', whose draws have no weights that keep its expectation"
            bad_value("values", f"got {problem}; accepted: None, mean")
        self.precision, self.normalization = Precision.parse(precision), values
        self._keep_edge_ids = check_flag("keep_edge_ids", keep_edge_ids)
        device = None if device is None else device_of("device", device)
        given: SparseGraph = read_source(graph, num_nodes, None, edge_weight).build()
        if given.num_rows != given.num_cols and len(self.fanouts) != 1:
            shape = f"{given.num_rows} x {given.num_cols}"
            bad_value("fanouts", f"has {len(self.fanouts)} numbers for a matrix {shape}; accepted: one")
        given = given if device is None else given.to(device)
        weights, edge_weight, edge_time, node_time = (
            array.to(given.device) if isinstance(array, torch.Tensor) and device is not None else array
            for array in (weights, edge_weight, edge_time, node_time)
        )
        self._links, self._repeating = given.csr, None
        self.node_time: torch.Tensor | None = None
        if node_time is not None:
            if edge_time is not None:
                bad_value("node_time", "is given with edge_time; accepted: one of them")
            self.node_time = time_tensor("node_time", node_time, given.num_cols, given.device)
            edge_time = self.node_time[edge_sources(given)]
        if edge_time is None:
            self._graph = Neighbourhood.make(given, values, weights, replace=replace)
            self._repeating = (given, weights) if given.nnz < given.num_edges else None
        else:
            if values == "gcn":
                bad_value("values", "'gcn' weighs by edges of all times; accepted with times: None, mean")
            self._graph = Neighbourhood.make_of_edges(
                given, weights, replace=replace, normalization=values, newest=self._drawing.newest,
                times=time_tensor("edge_time", edge_time, given.num_edges, given.device),
                values=_values_of_edges(given, edge_weight),
            )  # fmt: skip
        self.disjoint = check_flag("disjoint", disjoint) or edge_time is not None
        if self.disjoint and len(self.fanouts) > MOST_LAYERS:
            bad_value("fanouts", f"has {len(self.fanouts)} numbers; accepted if disjoint: {MOST_LAYERS}")
        self.num_nodes = given.num_rows
        self._numbering = Numbering(given.num_cols, given.device)
        self._plans, self._streams = BlockPlans(), Streams(given.device)
        if path().takes(given.device):
            arrays = self._graph, self._links, self._numbering.place
            weakref.finalize(self, self._streams.keep_until_done, arrays).atexit = False

    @cached_property
    def _of_edges(self) -> Neighbourhood:
        """What subgraphs are drawn from: each edge given is a nonzero of it, repeated ones included."""
        if self._repeating is None:
            return self._graph
        made = Neighbourhood.make_of_edges(*self._repeating, replace=self._drawing.replace)
        if path().takes(self.device):
            path().finish(self.device)  # another stream may draw from it next
            weakref.finalize(self, self._streams.keep_until_done, made).atexit = False
        return made

    @property
    def device(self) -> torch.device:
        """Where blocks are made."""
        return self._links.device

    @property
    def has_times(self) -> bool:
        """Whether edges have times, by themselves or by their sources."""
        return self._graph.clock is not None

    @property
    def source_degrees(self) -> torch.Tensor:
        """Of how many rows each node is a source, int64 [nodes]: about how often it is drawn."""
        return torch.bincount(self._links.indices, minlength=self._links.cols)

    @runs_outside
    def sample(self, seeds: Any, step: int = 0, time: Any = None) -> Sample:
        """Draw the neighbourhoods of nodes.

        Args:
            seeds: int32 or int64 [seeds], different nodes, unless samples are disjoint; there may be none.
            step: number of the draw, from 0 to 2^32 - 1: each has random numbers of its own.
            time: times of the seeds [seeds], of the dtype of the edges' or nodes' times, if these have some;
                None: those that the seeds have, with `node_time`.

        Returns:
            A block for each layer.

        Raises:
            TypeError: an argument is of another type or dtype.
            ValueError: an argument is out of range, on another device, or a seed is repeated.
        """
        given = index_tensor("seeds", seeds)
        return Sample(self._blocks(self.draw(given, step, time)), given.long())

    @runs_outside
    def draw(self, seeds: Any, step: int = 0, time: Any = None) -> tuple[BlockArrays, ...]:
        """Draw what `sample` draws, as arrays of which no operands are made yet.

        `sample` documents the arguments and errors.

        Returns:
            The arrays of a block for each layer, in the order in which layers run.
        """
        given = self._here("seeds", index_tensor("seeds", seeds))
        return self._arrays(given, check_step(step), "seeds", self._times(given, time))

    def pads(self, seeds: int) -> bool:
        """Return whether `draw_padded` draws for so many seeds: on a GPU, with a bound for each row."""
        plain = self._graph.is_square and not self._graph.repeats and not self.disjoint and seeds > 0
        return path().takes(self.device) and plain and fits_at_once(self._graph, seeds, self._layer_draws(0))

    def draw_padded(
        self,
        seeds: torch.Tensor,
        step: torch.Tensor,
        place: torch.Tensor,
        sizes: Sequence[tuple[int, int, int]],
    ) -> tuple[list[BlockArrays], torch.Tensor]:
        """Draw what `draw` draws into arrays of fixed sizes, see `gnnsparse.sampling.blocks.draw_padded`."""
        self._streams.current()
        return draw_padded(self._graph, place, seeds, step, self._layer_draws(0), sizes)

    @runs_outside
    def operands(self, arrays: Sequence[BlockArrays]) -> list[SparseOperand]:
        """Make the operands of blocks, those of `sample`, of what `draw` returned."""
        return [block.adj for block in self._blocks(tuple(arrays))]

    @property
    def most_edges(self) -> list[tuple[int, int]]:
        """For each block, in the order in which layers run: numbers of nonzeros that no row and no column
        exceeds, whatever is drawn. On a GPU the host waits for them.
        """
        csr, loops = self._graph.csr, int(self.normalization == "gcn")
        row, column = (
            int(counts.max()) + loops if counts.numel() else loops
            for counts in (csr.degrees, torch.bincount(csr.indices, minlength=csr.cols))
        )
        rows = [draw.row_edges for draw in self._layer_draws(0)]
        return [(row if most is None else min(row, most), column) for most in reversed(rows)]

    @runs_outside
    def sample_subgraph(self, seeds: Any, step: int = 0, time: Any = None) -> Subgraph:
        """Draw the neighbourhoods of nodes as one graph, in which each node has neighbours of one draw.

        Edges are drawn for the nodes that a hop reaches first, as PyG's NeighborLoader does. Repeated edges
        are not merged: each repeat counts for the fan-out and is drawn by its own weight. `values` play no
        part. The arguments are those of `sample`.

        Raises:
            TypeError, ValueError: as `sample`; or the graph is not square, or drawn with self-loops
                (values="gcn").
        """
        self.check_subgraphs()
        nodes = self._nodes("seeds", index_tensor("seeds", seeds))
        relation = Relation("", "", self._of_edges, self._layer_draws(check_step(step)))
        times, seed_nodes = self._times(nodes, time), self._trees(nodes)
        if path().takes(self.device):
            self._streams.current()
        reached, counts, drawn = draw_hops({"": relation}, {"": self._numbering}, {"": seed_nodes}, times)
        of_hops = [after - before for before, after in itertools.pairwise(counts[""])]
        (found, hops) = reached[""], drawn[""]
        trees = None if found.trees is None else found.trees.long()
        edge_index, edges = torch.cat(hops.pairs, dim=1), torch.cat(hops.edges)
        return Subgraph(found.ids.long(), edge_index, edges, of_hops, hops.counts, trees)

    def check_subgraphs(self) -> None:
        """Raise what `sample_subgraph` raises for any seeds, and make what it draws from."""
        if not self._graph.is_square or self.normalization == "gcn":
            bad_value("values", "of subgraphs: accepted: None, mean, with a square graph")
        self._of_edges  # noqa: B018

    @runs_outside
    def sample_links(self, pairs: Any, negatives: int = 1, step: int = 0, time: Any = None) -> LinkSample:
        """Draw pairs without an edge, and the neighbourhoods of the ends of all pairs.

        Args:
            pairs: int32 or int64 [k, 2], a source and a target each, which may be repeated.
            negatives: number of pairs without an edge that are drawn for each given pair, uniformly, of two
                different nodes.
            step: see `sample`.
            time: times of the pairs [k], see `sample`; pair i of those without an edge, of whatever time, has
                that of the given pair i mod k.

        Returns:
            The pairs, as positions in the seeds, and a block for each layer.

        Raises:
            TypeError: an argument is of another type or dtype.
            ValueError: an argument is out of range or on another device; the graph is not square; or it
                joins nearly all pairs of its nodes.
        """
        if not self._graph.is_square:
            bad_value("graph", "is not square; accepted for links: one with nodes of one kind")
        given = index_tensor("pairs", pairs, dim=2)
        if given.shape[1] != 2:
            bad_value("pairs", f"has shape {tuple(given.shape)}; accepted: (pairs, 2)")
        check_integer("negatives", negatives, 0, "an integer, 0 or more")
        ends = self._nodes("pairs", given.reshape(-1))
        count, draw = given.shape[0], self._drawing.layer(-1, check_step(step), 0).draw
        drawn = draw_negatives(self._links, draw, count * negatives)
        ends = torch.cat([ends, drawn.reshape(-1).to(torch.int32)])
        if time is not None:
            time = time_tensor("time", time, count, self.device).repeat(1 + negatives).repeat_interleave(2)
        seeds, times = ends, self._times(ends, time)
        numbers = torch.arange(ends.numel(), dtype=torch.int32, device=self.device)
        if not self.disjoint:
            seeds, numbers = self._numbering.number(ends[:0], ends)
        both = numbers.long().reshape(-1, 2)
        blocks = self._blocks(self._arrays(seeds, step, None, times))
        return LinkSample(blocks, seeds.long(), both[:count], both[count:])

    def _here(self, name: str, given: torch.Tensor) -> torch.Tensor:
        if given.device != self.device:
            bad_value(name, f"is on {given.device}; accepted: {self.device}, where blocks are made")
        return given

    def _nodes(self, name: str, given: torch.Tensor) -> torch.Tensor:
        check_range(name, self._here(name, given), self.num_nodes, "the number of nodes")
        return given.to(torch.int32)

    def _times(self, seeds: torch.Tensor, time: Any) -> torch.Tensor | None:
        """Return the times of seeds that `time` says, or None if edges have no times."""
        clock = self._graph.clock
        if clock is None:
            if time is not None:
                bad_value("time", "is given, but edges have no times: edge_time and node_time are None")
            return None
        if time is None:
            if self.node_time is None or not self._graph.is_square:
                bad_value("time", "is None; accepted: the seeds' times, for edges have times")
            check_range("seeds", seeds, self.num_nodes, "the number of nodes")
            return self.node_time[seeds.long()]
        return seed_times("time", time, seeds.numel(), clock)

    def _trees(self, seeds: torch.Tensor) -> Nodes:
        """Return seeds, int32 [seeds], with the tree of each if samples are disjoint."""
        return trees_of(seeds) if self.disjoint else Nodes(seeds)

    def _arrays(
        self, seeds: torch.Tensor, step: int, name: str | None = None, times: torch.Tensor | None = None
    ) -> tuple[BlockArrays, ...]:
        """Draw the blocks of nodes, which are checked as the argument `name`, if it is given."""
        draws = self._layer_draws(step)
        graph, layers = self._graph, None
        if path().takes(self.device):
            self._streams.current()
            if not self.disjoint:
                layers = draw_at_once(graph, self._numbering, seeds, draws)
        if layers is None:
            if name is not None:
                check_range(name, seeds, self.num_nodes, "the number of nodes")
            layers = draw_in_turn(graph, self._numbering, self._trees(seeds.to(torch.int32)), draws, times)
        return tuple(arrange(graph, layer, keep_edge_ids=self._keep_edge_ids) for layer in reversed(layers))

    def _layer_draws(self, step: int) -> list[LayerDraw]:
        loops = int(self.normalization == "gcn")
        return [
            self._drawing.layer(fanout, step, number, loops=loops)
            for number, fanout in enumerate(self.fanouts)
        ]

    def _blocks(self, arrays: tuple[BlockArrays, ...]) -> tuple[Block, ...]:
        blocks = []
        for one in arrays:
            adj = SparseOperand(prepare_block(one, self.normalization, self.precision))
            trees = None if one.trees is None else one.trees.long()
            blocks.append(Block(adj, one.targets.long(), one.sources.long(), one.edge_ids, trees))
        if path().takes(self.device):
            plan_blocks(blocks, self._plans, [one.longest for one in arrays])
        return tuple(blocks)
