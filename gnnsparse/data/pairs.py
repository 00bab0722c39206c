"""Random pairs of nodes, drawn in proportion to their weights: the edges of generated graphs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from torch.nn.functional import pad

__all__ = ["Sampler", "chunks", "distinct", "pair_keys"]

#: Edges drawn at a time, which bounds the scratch memory to about 0.3 GB.
_CHUNK = 2**22
#: Most rounds of draws. Draws repeat edges, so more rounds replace those; but a community may have too few
#: nodes for its share of the edges, so the rounds must end.
_ROUNDS = 24
#: The first node of a range and the node behind it, int64 [n] each, for nodes int64 [n].
Span = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def chunks(count: int) -> list[slice]:
    """Returns the ranges of `count` things that are worked on at a time."""
    return [slice(at, min(at + _CHUNK, count)) for at in range(0, count, _CHUNK)]


def pair_keys(u: torch.Tensor, v: torch.Tensor, nodes: int) -> torch.Tensor:
    """Returns a key for each unordered pair of nodes: the smaller one times `nodes`, plus the larger one."""
    return torch.minimum(u, v) * nodes + torch.maximum(u, v)


def distinct(keys: torch.Tensor) -> torch.Tensor:
    """Returns the distinct keys in ascending order; may overwrite `keys`."""
    if keys.device.type == "cpu":
        keys.numpy().sort()  # in place, and several times as fast as torch's sort on the CPU
        return torch.unique_consecutive(keys)
    return torch.unique(keys)


class Sampler:
    """Draws distinct pairs of nodes, in proportion to the product of the nodes' weights.

    Args:
        weights: float64 [nodes], on the CPU.
        bounds: int64 [communities + 1], the first node of each community and the number of nodes, on the CPU.
        seed: seed of the draws.
        device: where pairs are drawn.

    Attributes:
        generator: the random numbers, which may be replaced.
    """

    def __init__(self, weights: torch.Tensor, bounds: torch.Tensor, seed: int, device: torch.device) -> None:
        self.nodes, self.device = weights.numel(), device
        self.bounds = bounds
        # Summed on the CPU, because a running sum on a GPU may differ from run to run.
        self.weight_below = pad(weights.cumsum(0), (1, 0)).to(device)
        self._bounds_there = bounds.to(device)
        self.generator = torch.Generator(device=device).manual_seed(seed)

    def inside(self, count: int) -> list[torch.Tensor]:
        """Draws about `count` pairs inside communities; returns keys, in chunks without common pairs."""
        return [
            self.fill(wanted, nodes, self.own_community) for wanted, nodes in self.inside_parts(count, _CHUNK)
        ]

    def inside_parts(self, count: int, most: int) -> Iterator[tuple[int, slice]]:
        """Divides `count` pairs inside communities among these.

        Yields:
            A number of pairs, at most `most` or those of one community, and the nodes of the communities that
            they are in.
        """
        share = self.weight_below[self._bounds_there].cpu()
        wanted = (share / share[-1] * count).round().long()
        first = 0
        while first < wanted.numel() - 1:
            fits = int(torch.searchsorted(wanted, wanted[first] + most, right=True)) - 1
            last = max(first + 1, min(fits, wanted.numel() - 1))
            yield (
                int(wanted[last] - wanted[first]), slice(int(self.bounds[first]), int(self.bounds[last]))
            )  # fmt: skip
            first = last

    def even_parts(self, count: int, most: int) -> Iterator[tuple[int, slice]]:
        """Divides `count` pairs with any first ends among ranges of nodes of about equal weight.

        Yields:
            A number of pairs, about `most` or less, and the nodes that their first ends are drawn from.
        """
        parts = max(1, -(-count // most))
        total = self.weight_below[-1]
        shares = torch.arange(1, parts, dtype=torch.float64, device=self.device) / parts * total
        ends = torch.searchsorted(self.weight_below, shares).clamp(max=self.nodes)
        bounds = torch.unique(pad(pad(ends, (1, 0)), (0, 1), value=self.nodes))
        wanted = (self.weight_below[bounds] / total * count).round().long().tolist()
        for at, (first, last) in enumerate(itertools.pairwise(bounds.tolist())):
            yield wanted[at + 1] - wanted[at], slice(first, last)

    def outside(self, count: int, reach: int | None) -> torch.Tensor:
        """Draws about `count` pairs of nodes of different communities; returns their keys."""
        return self.fill(count, slice(0, self.nodes), self.span_within(reach), between=True)

    def span_within(self, reach: int | None) -> Span:
        """Returns a function of nodes: the range of those whose ids differ by at most `reach`; None: all."""

        def span(u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            if reach is None:
                return torch.zeros_like(u), torch.full_like(u, self.nodes)
            return (u - reach).clamp(min=0), (u + reach + 1).clamp(max=self.nodes)

        return span

    def _community(self, u: torch.Tensor) -> torch.Tensor:
        return torch.searchsorted(self._bounds_there, u, right=True)

    def own_community(self, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the range of the nodes of a node's community: the first ones, and those behind the last."""
        behind = self._community(u)
        return self._bounds_there[behind - 1], self._bounds_there[behind]

    def fill(self, count: int, nodes: slice, span: Span, between: bool = False) -> torch.Tensor:
        """Draws until there are about `count` distinct pairs, or all rounds are used.

        Args:
            count: number of pairs.
            nodes: the nodes that the first ends are drawn from.
            span: the range that the second end is drawn from, for each first end.
            between: whether both ends must be in different communities.

        Returns:
            Keys, int64 [pairs].
        """
        found = torch.empty(0, dtype=torch.int64, device=self.device)
        for _ in range(_ROUNDS):
            missing = count - found.numel()
            if missing <= count // 2000:
                break
            draws, parts = missing + missing // 16 + 16, [found]
            for at in range(0, draws, _CHUNK):
                parts.append(self._draw(min(_CHUNK, draws - at), nodes, span, between))
            found = distinct(torch.cat(parts))
        if found.numel() > count:
            chosen = torch.randperm(found.numel(), generator=self.generator, device=self.device)
            found = found[chosen[:count]]
        return found

    def _draw(self, count: int, nodes: slice, span: Span, between: bool) -> torch.Tensor:
        """Draws `count` pairs; returns the keys of those that can be edges, with repeats."""
        u = self._pick(torch.arange(count, device=self.device), count, nodes)
        low, high = span(u)
        below, above = self.weight_below[low], self.weight_below[high]
        at = torch.lerp(below, above, self._uniform(count))
        v = torch.searchsorted(self.weight_below, at, right=True) - 1
        v = v.clamp(low, high - 1)  # rounding may exceed the range
        is_edge = u != v
        if between:
            is_edge &= self._community(u) != self._community(v)
        return pair_keys(u[is_edge], v[is_edge], self.nodes)

    def _pick(self, stratum: torch.Tensor, strata: int, nodes: slice) -> torch.Tensor:
        """Draws a node from each of `strata` equal parts of the summed weights.

        Stratified draws are ascending, and the number of times that a node is drawn varies little.
        """
        below, above = self.weight_below[nodes.start], self.weight_below[nodes.stop]
        at = below + (stratum + self._uniform(stratum.numel())) / strata * (above - below)
        u = torch.searchsorted(self.weight_below, at, right=True) - 1
        return u.clamp(nodes.start, nodes.stop - 1)

    def _uniform(self, count: int) -> torch.Tensor:
        return torch.rand(count, dtype=torch.float64, device=self.device, generator=self.generator)
