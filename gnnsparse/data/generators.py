"""Random graphs with the sizes, degrees and row overlap of well-known graphs, for runs without downloads.

The model is a degree-corrected stochastic block model (Karrer and Newman 2011). Every node has a weight from
a Pareto distribution with a largest value. A given fraction of the edges joins nodes of one community, the
others join nodes of different communities; with this restriction both ends are drawn in proportion to their
weights. The nodes of a community have consecutive ids, as the reordering "community" would give them, so that
neighbouring rows share columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn.functional import pad

from gnnsparse.data.datasets import check_scale, check_seed
from gnnsparse.errors import bad_value, check_flag, check_integer, check_memory, check_number, shown
from gnnsparse.formats.csr import Csr
from gnnsparse.registry import Names, Registry
from gnnsparse.sparse.graph import SparseGraph

#: Edges drawn at a time, which bounds the scratch memory to about 0.3 GB.
_CHUNK = 2**22
#: Most rounds of draws. Draws repeat edges, so more rounds replace those; but a community may have too few
#: nodes for its fraction of the edges, so the rounds must end.
_ROUNDS = 24
#: The first node of a range and the node behind it, int64 [n] each, for nodes int64 [n].
Span = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def _chunks(count: int) -> list[slice]:
    return [slice(at, min(at + _CHUNK, count)) for at in range(0, count, _CHUNK)]


def _pair_keys(u: torch.Tensor, v: torch.Tensor, nodes: int) -> torch.Tensor:
    """Return a key for each unordered pair of nodes: the smaller one times `nodes`, plus the larger one."""
    return torch.minimum(u, v) * nodes + torch.maximum(u, v)


def _distinct(keys: torch.Tensor) -> torch.Tensor:
    """Return the distinct keys in ascending order; may overwrite `keys`."""
    if keys.device.type == "cpu":
        keys.numpy().sort()  # in place, and several times as fast as torch's sort on the CPU
        return torch.unique_consecutive(keys)
    return torch.unique(keys)


class Sampler:
    """Draws distinct pairs of nodes on a device, in proportion to the product of the nodes' weights.

    Communities, `bounds` int64 [communities + 1] on the CPU, and weights are drawn by `host`, a generator on
    the CPU, so that they are equal for every device. `generator`, on the device, may be replaced.
    """

    def __init__(
        self, model: BlockModel, nodes: int, host: torch.Generator, generator: torch.Generator
    ) -> None:
        self.nodes, self.device, self.generator = nodes, generator.device, generator
        self.bounds = _community_bounds(nodes, model, host)
        # Summed on the CPU, because a running sum on a GPU may differ from run to run.
        self.weight_below = pad(_pareto_weights(nodes, model, host).cumsum(0), (1, 0)).to(self.device)
        self._bounds_there = self.bounds.to(self.device)

    def inside_parts(self, count: int, most: int) -> Iterator[tuple[int, slice]]:
        """Yield numbers of pairs inside communities, `most` or those of one, and their range of nodes."""
        weight = self.weight_below[self._bounds_there].cpu()
        wanted = (weight / weight[-1] * count).round().long()
        first = 0
        while first < wanted.numel() - 1:
            fits = int(torch.searchsorted(wanted, wanted[first] + most, right=True)) - 1
            last = max(first + 1, min(fits, wanted.numel() - 1))
            nodes = slice(int(self.bounds[first]), int(self.bounds[last]))
            yield int(wanted[last] - wanted[first]), nodes
            first = last

    def even_parts(self, count: int, most: int) -> Iterator[tuple[int, slice]]:
        """Yield numbers of pairs, about `most` or less, and ranges of first ends, of about equal weight."""
        parts = max(1, -(-count // most))
        total = self.weight_below[-1]
        bounds_of_weight = torch.arange(1, parts, dtype=torch.float64, device=self.device) / parts * total
        ends = torch.searchsorted(self.weight_below, bounds_of_weight).clamp(max=self.nodes)
        bounds = torch.unique(pad(pad(ends, (1, 0)), (0, 1), value=self.nodes))
        wanted = (self.weight_below[bounds] / total * count).round().long().tolist()
        for at, (first, last) in enumerate(itertools.pairwise(bounds.tolist())):
            yield wanted[at + 1] - wanted[at], slice(first, last)

    def span_within(self, reach: int | None, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the ranges of the nodes whose ids differ by at most `reach`; None: of all."""
        reach = self.nodes if reach is None else reach
        return (u - reach).clamp(min=0), (u + reach + 1).clamp(max=self.nodes)

    def _community(self, u: torch.Tensor) -> torch.Tensor:
        return torch.searchsorted(self._bounds_there, u, right=True)

    def own_community(self, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the range of the nodes of a node's community: the first ones, and those behind the last."""
        behind = self._community(u)
        return self._bounds_there[behind - 1], self._bounds_there[behind]

    def fill(self, count: int, nodes: slice, span: Span, between: bool = False) -> torch.Tensor:
        """Draw about `count` distinct pairs, or fewer after all rounds; return their keys, int64 [pairs].

        First ends are of `nodes`, second ones of the `span` of each, with `between` of another community.
        """
        found = torch.empty(0, dtype=torch.int64, device=self.device)
        for _ in range(_ROUNDS):
            missing = count - found.numel()
            if missing <= count // 2000:
                break
            draws, parts = missing + missing // 16 + 16, [found]
            for at in range(0, draws, _CHUNK):
                parts.append(self._draw(min(_CHUNK, draws - at), nodes, span, between))
            found = _distinct(torch.cat(parts))
        if found.numel() > count:
            chosen = torch.randperm(found.numel(), generator=self.generator, device=self.device)
            found = found[chosen[:count]]
        return found

    def _draw(self, count: int, nodes: slice, span: Span, between: bool) -> torch.Tensor:
        """Draw `count` pairs; return the keys of those that can be edges, with repeats."""
        # From each of `count` equal parts of the summed weights one first end: they ascend, and the number of
        # times that a node is drawn varies little.
        below, above = self.weight_below[nodes.start], self.weight_below[nodes.stop]
        stratum = torch.arange(count, device=self.device) + self._uniform(count)
        u = self._node_at(below + stratum / count * (above - below)).clamp(nodes.start, nodes.stop - 1)
        low, high = span(u)
        at = torch.lerp(self.weight_below[low], self.weight_below[high], self._uniform(count))
        v = self._node_at(at).clamp(low, high - 1)  # rounding may exceed the range
        is_edge = u != v
        if between:
            is_edge &= self._community(u) != self._community(v)
        return _pair_keys(u[is_edge], v[is_edge], self.nodes)

    def _node_at(self, weight: torch.Tensor) -> torch.Tensor:
        return torch.searchsorted(self.weight_below, weight, right=True) - 1

    def _uniform(self, count: int) -> torch.Tensor:
        return torch.rand(count, dtype=torch.float64, device=self.device, generator=self.generator)


#: Bytes of memory that each node and each edge take at the least: measured peaks, rounded down.
_NODE_BYTES, _EDGE_BYTES = 64, 48
#: Nonzeros above which a graph is too large to be made in memory by default.
_MOST_IN_MEMORY = 2**30
#: The largest number among the other parameters of a model.
_MAX = 1e9


@dataclass(frozen=True)
class BlockModel:
    """The parameters of a random graph.

    Attributes:
        nodes: number of nodes.
        nnz: nonzeros of the symmetric adjacency matrix, twice the number of edges.
        inside: fraction of the edges that join nodes of one community.
        community: mean number of nodes of a community.
        spread: standard deviation of the logarithm of the communities' sizes.
        tail: exponent of the Pareto distribution of the weights; smaller ones make degrees more skewed.
        cap: largest weight, in units of the smallest.
        reach: largest difference of the ids that an edge between communities joins; None: any.

    Raises:
        TypeError: an attribute is no number, or a count is no integer.
        ValueError: an attribute is out of range.
    """

    nodes: int
    nnz: int
    inside: float
    community: float
    spread: float
    tail: float
    cap: float
    reach: int | None = None

    def __post_init__(self) -> None:
        check_integer("nodes", self.nodes)
        check_integer("nnz", self.nnz, 0, "an integer from 0 on")
        if self.reach is not None:
            check_integer("reach", self.reach)
        for name, least, most in (
            ("inside", 0, 1), ("community", 1, _MAX), ("spread", 0, _MAX), ("tail", 0, _MAX), ("cap", 1, _MAX)
        ):  # fmt: skip
            value = getattr(self, name)
            accepted = f"a number from {least} to {most:g}"
            if not least <= check_number(name, value, accepted) <= most or (name == "tail" and value == 0):
                bad_value(name, f"got {shown(value)}; accepted: {accepted}")

    @property
    def smallest_scale(self) -> float:
        """The least scale at which there are nodes enough for the mean degree and for two communities."""
        return max(2 * self.community, 3 * self.nnz / self.nodes) / self.nodes

    def scaled(self, scale: float) -> tuple[int, int]:
        """Return the numbers of nodes and of undirected edges at `scale`."""
        return round(self.nodes * scale), round(self.nnz * scale / 2)


#: The parameters of the named graphs.
BLOCK_MODELS: Registry[BlockModel] = Registry("name")

#: The graphs that `graph_like` can generate at their full size in the memory of a large machine. It takes
#: other names of BLOCK_MODELS, too, at a scale that fits.
GENERATED_GRAPHS = Names(BLOCK_MODELS, where=lambda model: model.nnz <= _MOST_IN_MEMORY)


def register_block_model(name: str, model: BlockModel) -> None:
    """Register the parameters of a graph under a name."""
    BLOCK_MODELS.register(name, model)


# Fitted to the published sizes, degrees and numbers of distinct columns in groups of 8 and 16 rows.
register_block_model("reddit_like", BlockModel(232_965, 114_420_000, 0.68, 1150, 0.3, 2.2, 57))
register_block_model("products_like", BlockModel(2_449_029, 126_120_000, 0.56, 112, 0.3, 2.5, 43))
register_block_model("arxiv_like", BlockModel(169_343, 2_331_000, 0.5, 800, 0.8, 1.6, 800))
register_block_model("amazon_like", BlockModel(410_236, 4_875_000, 0.6, 16, 0.3, 2.1, 600, reach=3000))
register_block_model("dd_like", BlockModel(334_925, 1_686_000, 1.0, 270, 0.25, 10.0, 3))
# The size of ogbn-papers100M, with every citation in both directions. Communities and tail are those of
# arxiv_like, which was fitted to another graph of citations; `cap` is chosen for hubs of about 10^5 edges.
register_block_model("papers100m_like", BlockModel(111_059_956, 3_231_371_744, 0.5, 800, 0.8, 1.6, 20_000))


def graph_like(
    name: str,
    scale: float = 1.0,
    seed: int = 0,
    device: torch.device | str = "cpu",
    shuffled: bool = False,
) -> SparseGraph:
    """Generate a random graph like a well-known one: symmetric, without self-loops, all values 1.

    Args:
        name: one of GENERATED_GRAPHS, or "papers100m_like" at a scale that fits into memory.
        scale: factor of the numbers of nodes and of edges, above 0 and at most 1. The mean degree and the
            sizes of communities do not depend on it.
        seed: seed of the graph. Equal seeds make equal graphs on one type of device and release of torch.
        device: the device to generate the graph on.
        shuffled: whether nodes get random ids, instead of consecutive ones in each community.

    Returns:
        The graph on `device`: int64 offsets [nodes + 1], int32 columns [nnz], values None.

    Raises:
        TypeError: an argument is of another type.
        ValueError: the name is unknown, `scale` is outside (0, 1] or too small for the graph's mean degree,
            or `seed` is negative.
        MemoryError: on the CPU, the graph needs more memory than this process can get.
    """
    scale = check_scale_of(BLOCK_MODELS.check(name), scale)
    return sample_graph(BLOCK_MODELS[name], scale, seed, device, shuffled)[0]


def check_scale_of(name: str, scale: float) -> float:
    """Return `scale` if the graph called `name` can be generated at it, else raise ValueError."""
    scale, model = check_scale(scale), BLOCK_MODELS[name]
    if scale < model.smallest_scale:
        bad_value("scale", f"got {scale:g}; accepted for {name}: {model.smallest_scale:.2g} to 1")
    return scale


def sample_graph(
    model: BlockModel,
    scale: float = 1.0,
    seed: int = 0,
    device: torch.device | str = "cpu",
    shuffled: bool = False,
) -> tuple[SparseGraph, torch.Tensor]:
    """Draw a graph from a model.

    The number of nonzeros is within a few thousandths of the model's. It is lower if communities are too
    small for their fraction of the edges. The other arguments are those of `graph_like`.

    Args:
        model: the parameters.

    Returns:
        The graph on `device`, and the community of each node, int64 [nodes] on the CPU.

    Raises:
        TypeError: `scale`, `seed` or `shuffled` is of another type.
        ValueError: `scale` is outside (0, 1], `seed` is negative, or the model has too many or too few nodes.
        MemoryError: on the CPU, the graph needs more memory than this process can get.
    """
    check_seed(seed)
    check_flag("shuffled", shuffled)
    nodes, edges = model.scaled(check_scale(scale))
    if not 1 < nodes < 2**31:
        bad_value("model", f"has {shown(nodes)} nodes at this scale; accepted: 2 to 2^31 - 1")
    if not 0 <= edges <= nodes * (nodes - 1) // 2:
        accepted = f"at most one between each two of {nodes} nodes"
        bad_value("model", f"has {shown(edges)} edges; accepted: {accepted}")
    if torch.device(device).type == "cpu":
        what = f"generating {nodes} nodes and {edges} edges"
        check_memory("scale", _NODE_BYTES * nodes + _EDGE_BYTES * edges, what)
    host = torch.Generator().manual_seed(seed)
    sampler = Sampler(model, nodes, host, torch.Generator(device=torch.device(device)).manual_seed(seed))
    relabel = torch.randperm(nodes, generator=host)
    inside = round(edges * model.inside)
    parts = [sampler.fill(*part, sampler.own_community) for part in sampler.inside_parts(inside, _CHUNK)]
    span = partial(sampler.span_within, model.reach)
    parts.append(sampler.fill(edges - inside, slice(0, nodes), span, between=True))
    community = torch.arange(sampler.bounds.numel() - 1).repeat_interleave(sampler.bounds.diff())
    if shuffled:
        ids = relabel.to(sampler.device)
        parts = [_pair_keys(ids[part // nodes], ids[part % nodes], nodes) for part in parts]
        community = torch.empty_like(community).scatter_(0, relabel, community)
    keys = torch.cat(parts)
    del parts  # as large as the graph; so are the keys that are deleted below
    keys = _distinct(keys)
    small = torch.empty(keys.numel(), dtype=torch.int32, device=keys.device)
    large = torch.empty_like(small)
    for part in _chunks(keys.numel()):
        small[part], large[part] = keys[part] // nodes, keys[part] % nodes
    del keys
    return SparseGraph(_symmetric_csr(small, large, nodes)), community


def _community_bounds(nodes: int, model: BlockModel, generator: torch.Generator) -> torch.Tensor:
    """Draw the first node of each community, and the number of nodes as the end: int64 [communities + 1]."""
    count = max(2, round(nodes / model.community))
    sizes = torch.exp(model.spread * torch.randn(count, generator=generator, dtype=torch.float64))
    ends = (sizes.cumsum(0) / sizes.sum() * nodes).round().long()
    return torch.unique(pad(ends, (1, 0)))


def _pareto_weights(nodes: int, model: BlockModel, generator: torch.Generator) -> torch.Tensor:
    """Return Pareto quantiles in random order, float64 [nodes]; draws would make degrees vary by seed."""
    weights = torch.arange(nodes, dtype=torch.float64).add_(0.5).div_(nodes)
    weights.pow_(-1 / model.tail).clamp_(max=model.cap)
    return weights[torch.randperm(nodes, generator=generator)]


def _symmetric_csr(small: torch.Tensor, large: torch.Tensor, nodes: int) -> Csr:
    """Make the symmetric matrix of distinct pairs, which ascend by the smaller node, then by the larger."""
    # Row i holds its smaller neighbours, ordered by a stable sort, then its larger ones, in order already.
    upper, lower = (torch.bincount(ends, minlength=nodes) for ends in (small, large))
    indptr = pad((upper + lower).cumsum(0), (1, 0))
    indices = torch.empty(2 * small.numel(), dtype=torch.int32, device=small.device)
    _write_rows(indices, small, large, indptr[:-1] + lower, upper)
    large, order = large.sort(stable=True)
    _write_rows(indices, large, small[order], indptr[:-1], lower)
    return Csr(indptr, indices, nodes)


def _write_rows(
    out: torch.Tensor, row: torch.Tensor, col: torch.Tensor, start: torch.Tensor, count: torch.Tensor
) -> None:
    """Write elements that ascend by row to a CSR array, in which each row has its start and its count."""
    shift = start - (count.cumsum(0) - count)
    for part in _chunks(row.numel()):
        edge = torch.arange(part.start, part.stop, device=row.device)
        out[edge + shift[row[part].long()]] = col[part]
