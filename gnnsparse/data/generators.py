"""Random graphs with the size, degrees and row overlap of well-known ones, for runs without downloads.

The model is a degree-corrected block model. Every node has a weight from a Pareto law, cut off at a
largest one. A given share of the edges joins nodes of one community, the rest joins nodes of
different communities; within these limits both ends are drawn in proportion to their weights. The
nodes of a community have consecutive ids, as a community order gives them, so that neighbouring
rows share columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from gnnsparse.csr import Csr
from gnnsparse.data.checks import check_scale, check_seed
from gnnsparse.errors import bad_value, check_choice, check_flag
from gnnsparse.graph import SparseGraph
from gnnsparse.registry import Names, Registry

__all__ = ["GENERATED_GRAPHS", "BlockModel", "graph_like", "register_block_model", "sample_graph"]

#: Draws in flight: bounds the scratch memory of a draw to about 0.3 GB.
_CHUNK = 2**22
#: Draws repeat edges, so that they come in rounds; a community may be too full for its share.
_ROUNDS = 24


@dataclass(frozen=True)
class BlockModel:
    """The parameters of a graph.

    Attributes:
        nodes: number of nodes.
        nnz: stored elements of the symmetric adjacency matrix: twice the edges.
        inside: share of the edges that join nodes of one community.
        community: mean number of nodes of a community.
        spread: standard deviation of the logarithm of the communities' sizes.
        tail: exponent of the Pareto law of the weights; smaller: more skewed.
        cap: largest weight, in units of the smallest.
        reach: edges between communities join nodes whose ids differ by at most this; None: any.
    """

    nodes: int
    nnz: int
    inside: float
    community: float
    spread: float
    tail: float
    cap: float
    reach: int | None = None

    @property
    def smallest_scale(self) -> float:
        """Below it the nodes are too few for the mean degree, or for two communities."""
        return max(2 * self.community, 3 * self.nnz / self.nodes) / self.nodes

    def scaled(self, scale: float) -> tuple[int, int]:
        """Numbers of nodes and of undirected edges at `scale`."""
        return round(self.nodes * scale), round(self.nnz * scale / 2)


#: The parameters of the graphs that have a name.
BLOCK_MODELS: Registry[BlockModel] = Registry("name")

#: The names `graph_like` knows.
GENERATED_GRAPHS = Names(BLOCK_MODELS)


def register_block_model(name: str, model: BlockModel) -> None:
    """Gives the parameters of a graph a name.

    Raises:
        ValueError: the name is taken.
    """
    BLOCK_MODELS.register(name, model)


# Fitted to the published sizes, degrees and numbers of distinct columns in groups of 8 and 16 rows.
register_block_model("reddit_like", BlockModel(232_965, 114_420_000, 0.68, 1150, 0.3, 2.2, 57))
register_block_model("products_like", BlockModel(2_449_029, 126_120_000, 0.56, 112, 0.3, 2.5, 43))
register_block_model("arxiv_like", BlockModel(169_343, 2_331_000, 0.5, 800, 0.8, 1.6, 800))
register_block_model("amazon_like", BlockModel(410_236, 4_875_000, 0.6, 16, 0.3, 2.1, 600, reach=3000))
register_block_model("dd_like", BlockModel(334_925, 1_686_000, 1.0, 270, 0.25, 10.0, 3))


def graph_like(
    name: str,
    scale: float = 1.0,
    seed: int = 0,
    device: torch.device | str = "cpu",
    shuffled: bool = False,
) -> SparseGraph:
    """A random graph like a well-known one: symmetric, without self-loops, all values 1.

    Args:
        name: one of GENERATED_GRAPHS.
        scale: factor on the numbers of nodes and of edges, at most 1. Mean degree and community
            sizes stay.
        seed: of the graph. The same seed, type of device and release of torch give the same graph.
        device: where to make it.
        shuffled: give the nodes random ids, instead of consecutive ones in each community.

    Returns:
        The graph on `device`: int64 offsets [nodes + 1], int32 columns [nnz], values None.

    Raises:
        TypeError: an argument is of another type.
        ValueError: the name is not known, `scale` is outside (0, 1] or too small for the graph's
            mean degree, or `seed` is negative.
    """
    return sample_named(check_choice("name", name, GENERATED_GRAPHS), scale, seed, device, shuffled)[0]


def sample_named(
    name: str,
    scale: float = 1.0,
    seed: int = 0,
    device: torch.device | str = "cpu",
    shuffled: bool = False,
) -> tuple[SparseGraph, torch.Tensor]:
    """The graph of `graph_like`, and the community of each node, int64 [nodes] on the CPU."""
    return sample_graph(BLOCK_MODELS[name], check_scale_of(name, scale), seed, device, shuffled)


def check_scale_of(name: str, scale: float) -> float:
    """Returns `scale` if the graph of that name can be generated at it, else raises ValueError."""
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
    """A graph drawn from a model, and the community of each node, int64 [nodes] on the CPU.

    Arguments as of `graph_like`. The number of nonzeros comes within a few in a thousand of the
    model's, and stays below it where communities are too small for their share.
    """
    check_seed(seed)
    check_flag("shuffled", shuffled)
    nodes, edges = model.scaled(scale)
    # What decides about the structure is drawn on the CPU: it is then alike on every device.
    host = torch.Generator().manual_seed(seed)
    bounds = _community_bounds(nodes, model, host)
    weights = _pareto_weights(nodes, model, host)
    relabel = torch.randperm(nodes, generator=host)
    sampler = _Sampler(weights, bounds, seed, torch.device(device))
    inside = round(edges * model.inside)
    parts = [*sampler.inside(inside), sampler.outside(edges - inside, model.reach)]
    community = torch.repeat_interleave(torch.arange(bounds.numel() - 1), bounds.diff())
    if shuffled:
        ids = relabel.to(sampler.device)
        parts = [_pair_keys(ids[part // nodes], ids[part % nodes], nodes) for part in parts]
        community = torch.empty_like(community).scatter_(0, relabel, community)
    keys = torch.cat(parts)
    del parts  # as large as the graph itself, like what is dropped below
    keys = _distinct(keys)
    small, large = _split_keys(keys, nodes)
    del keys
    return SparseGraph(_symmetric_csr(small, large, nodes)), community


def _community_bounds(nodes: int, model: BlockModel, generator: torch.Generator) -> torch.Tensor:
    """The first node of each community, and the number of nodes at the end: int64 [communities + 1]."""
    count = max(2, round(nodes / model.community))
    sizes = torch.exp(model.spread * torch.randn(count, generator=generator, dtype=torch.float64))
    ends = (sizes.cumsum(0) / sizes.sum() * nodes).round().long()
    return torch.unique(pad(ends, (1, 0)))


def _pareto_weights(nodes: int, model: BlockModel, generator: torch.Generator) -> torch.Tensor:
    """The quantiles of the Pareto law in random order: every seed has the same degrees to expect."""
    quantile = (torch.arange(nodes, dtype=torch.float64) + 0.5) / nodes
    weights = quantile.pow(-1 / model.tail).clamp(max=model.cap)
    return weights[torch.randperm(nodes, generator=generator)]


def _pair_keys(u: torch.Tensor, v: torch.Tensor, nodes: int) -> torch.Tensor:
    """One number for each unordered pair: smaller node times `nodes` plus larger node."""
    return torch.minimum(u, v) * nodes + torch.maximum(u, v)


def _distinct(keys: torch.Tensor) -> torch.Tensor:
    """The keys in ascending order, each once; may overwrite `keys`."""
    if keys.device.type == "cpu":
        keys.numpy().sort()  # in place, and several times as fast as torch's sort on the CPU
        return torch.unique_consecutive(keys)
    return torch.unique(keys)


class _Sampler:
    """Draws distinct pairs of nodes, in proportion to the product of the nodes' weights."""

    def __init__(self, weights: torch.Tensor, bounds: torch.Tensor, seed: int, device: torch.device) -> None:
        self.nodes, self.device = weights.numel(), device
        self.bounds = bounds
        # Summed up on the CPU: a running sum on a GPU may differ from run to run.
        self.weight_below = pad(weights.cumsum(0), (1, 0)).to(device)
        spans = bounds.diff()
        self.start = torch.repeat_interleave(bounds[:-1], spans).to(device)
        self.end = torch.repeat_interleave(bounds[1:], spans).to(device)
        self.generator = torch.Generator(device=device).manual_seed(seed)

    def inside(self, count: int) -> list[torch.Tensor]:
        """About `count` pairs in the communities, as keys in chunks that have no pair in common."""
        share = self.weight_below[self.bounds.to(self.device)].cpu()
        wanted = (share / share[-1] * count).round().long()
        chunks, first = [], 0
        while first < wanted.numel() - 1:
            fits = int(torch.searchsorted(wanted, wanted[first] + _CHUNK, right=True)) - 1
            last = max(first + 1, min(fits, wanted.numel() - 1))
            nodes = slice(int(self.bounds[first]), int(self.bounds[last]))
            chunks.append(self._fill(int(wanted[last] - wanted[first]), nodes, self.start, self.end))
            first = last
        return chunks

    def outside(self, count: int, reach: int | None) -> torch.Tensor:
        """About `count` pairs between communities, as keys."""
        low, high = torch.zeros_like(self.start), torch.full_like(self.end, self.nodes)
        if reach is not None:
            ids = torch.arange(self.nodes, device=self.device)
            low, high = (ids - reach).clamp(min=0), (ids + reach + 1).clamp(max=self.nodes)
        return self._fill(count, slice(0, self.nodes), low, high, between=True)

    def _fill(
        self, count: int, nodes: slice, low: torch.Tensor, high: torch.Tensor, between: bool = False
    ) -> torch.Tensor:
        """Draws until there are `count` distinct pairs, or no more are to be had."""
        found = torch.empty(0, dtype=torch.int64, device=self.device)
        for _ in range(_ROUNDS):
            missing = count - found.numel()
            if missing <= count // 2000:
                break
            draws, parts = missing + missing // 16 + 16, [found]
            for at in range(0, draws, _CHUNK):
                parts.append(self._draw(min(_CHUNK, draws - at), nodes, low, high, between))
            found = _distinct(torch.cat(parts))
        if found.numel() > count:
            chosen = torch.randperm(found.numel(), generator=self.generator, device=self.device)
            found = found[chosen[:count]]
        return found

    def _draw(
        self, count: int, nodes: slice, low: torch.Tensor, high: torch.Tensor, between: bool
    ) -> torch.Tensor:
        """The keys of `count` draws, less those that are no edge: repeats may be among them."""
        u = self._pick(torch.arange(count, device=self.device), count, nodes)
        below, above = self.weight_below[low[u]], self.weight_below[high[u]]
        at = torch.lerp(below, above, self._uniform(count))
        v = torch.searchsorted(self.weight_below, at, right=True) - 1
        v = v.clamp(low[u], high[u] - 1)  # rounding may have led over the limits
        is_edge = u != v
        if between:
            is_edge &= self.start[u] != self.start[v]
        return _pair_keys(u[is_edge], v[is_edge], self.nodes)

    def _pick(self, stratum: torch.Tensor, strata: int, nodes: slice) -> torch.Tensor:
        """A node of each stratum of the weights: ascending, and even in its counts."""
        below, above = self.weight_below[nodes.start], self.weight_below[nodes.stop]
        at = below + (stratum + self._uniform(stratum.numel())) / strata * (above - below)
        u = torch.searchsorted(self.weight_below, at, right=True) - 1
        return u.clamp(nodes.start, nodes.stop - 1)

    def _uniform(self, count: int) -> torch.Tensor:
        return torch.rand(count, dtype=torch.float64, device=self.device, generator=self.generator)


def _split_keys(keys: torch.Tensor, nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The smaller and the larger node of each key, int32."""
    small = torch.empty(keys.numel(), dtype=torch.int32, device=keys.device)
    large = torch.empty_like(small)
    for part in _chunks(keys.numel()):
        small[part], large[part] = keys[part] // nodes, keys[part] % nodes
    return small, large


def _symmetric_csr(small: torch.Tensor, large: torch.Tensor, nodes: int) -> Csr:
    """The matrix of distinct pairs, both ways; the pairs ascend by the smaller node, then the larger.

    Row i is its smaller neighbours, then its larger ones. The pairs have the larger ones in order;
    a stable sort by the larger node brings the smaller ones in order. Nothing else needs sorting.
    """
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
    """Writes the columns of ascending rows, row i of `count[i]` columns from `start[i]` on."""
    shift = start - (count.cumsum(0) - count)
    for part in _chunks(row.numel()):
        edge = torch.arange(part.start, part.stop, device=row.device)
        out[edge + shift[row[part].long()]] = col[part]


def _chunks(count: int) -> list[slice]:
    return [slice(at, min(at + _CHUNK, count)) for at in range(0, count, _CHUNK)]
