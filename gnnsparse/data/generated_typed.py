"""Generated graphs with types, whose structure can be learned: citations of papers, and purchases."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse.data.catalog import register_dataset
from gnnsparse.data.datasets import check_scale, check_seed
from gnnsparse.data.splits import split_by_time
from gnnsparse.data.typed import TypedLinkDataset, TypedNodeDataset
from gnnsparse.errors import bad_value, check_memory
from gnnsparse.sparse.typed import Relation, TypedGraph

#: The least scale, at which each type still has some nodes.
_LEAST = 0.001
#: The n-th most popular of n nodes is drawn about n ** -1/2 as often as the first.
_SKEW = 2
#: Fractions of the edges that join nodes of one group, and of the purchases that a user's tastes explain.
_INSIDE, _BY_TASTE = 0.7, 0.85


@dataclass(frozen=True, eq=False)
class _Nodes:
    """The nodes of a type in groups: the most popular of a group first, and popularity is a power law."""

    group: torch.Tensor  # int64 [nodes]
    order: torch.Tensor  # int64 [nodes], the nodes by group, by popularity in each
    start: torch.Tensor  # int64 [groups + 1]
    popular: torch.Tensor  # int64 [nodes], all nodes by popularity

    @classmethod
    def draw(cls, count: int, groups: int, generator: torch.Generator) -> _Nodes:
        """Draw the group of each node, where sizes of groups are a power law, too."""
        weights = torch.arange(1, groups + 1, dtype=torch.float64, device="cpu").rsqrt()
        group = torch.multinomial(weights, count, replacement=True, generator=generator)
        popular = torch.randperm(count, generator=generator, device="cpu")
        order = popular[group[popular].argsort(stable=True)]
        start = torch.zeros(groups + 1, dtype=torch.int64, device="cpu")
        torch.cumsum(group.bincount(minlength=groups), 0, out=start[1:])
        return cls(group, order, start, popular)

    def any(self, count: int, generator: torch.Generator) -> torch.Tensor:
        """Draw nodes by their popularity, int64 [count]."""
        drawn = torch.rand(count, generator=generator, dtype=torch.float64, device="cpu")
        return self.popular[(drawn**_SKEW * len(self.popular)).long()]

    def of(self, groups: torch.Tensor, inside: float, generator: torch.Generator) -> torch.Tensor:
        """Draw a node for each of `groups`, int64 [count]: a fraction `inside` of that group, others any."""
        size = self.start[groups + 1] - self.start[groups]
        drawn = torch.rand(len(groups), generator=generator, dtype=torch.float64, device="cpu")
        fits = torch.rand(len(groups), generator=generator, dtype=torch.float32, device="cpu") < inside
        at = self.start[groups] + (drawn**_SKEW * size).long()
        own = self.order[at.clamp_(max=len(self.order) - 1)]  # of an empty group it is not taken
        return torch.where(fits & (size > 0), own, self.any(len(groups), generator))


def _distinct(
    source: torch.Tensor, target: torch.Tensor, targets: int, count: int, generator: torch.Generator
) -> torch.Tensor:
    """Return about `count` different pairs of those that were drawn, int64 [2, pairs], by source."""
    keys = (source * targets + target).unique()
    kept = torch.randperm(len(keys), generator=generator, device="cpu")[:count].sort().values
    keys = keys[kept]
    return torch.stack([keys // targets, keys % targets])


#: Pairs that are drawn for each that is wanted, as some are drawn twice.
_DRAWS = 1.25


def _with_reverses(edges: dict[Relation, torch.Tensor]) -> dict[Relation, torch.Tensor]:
    return edges | {(t, f"rev_{name}", s): ends.flip(0) for (s, name, t), ends in edges.items()}


def _scaled(scale: float, seed: int, nbytes: int) -> tuple[float, torch.Generator]:
    """Check options of data that take `nbytes` at scale 1; return the scale, and a generator by the seed."""
    if check_scale(scale) < _LEAST:
        bad_value("scale", f"got {scale:g}; accepted: {_LEAST} to 1")
    check_memory("scale", round(scale * nbytes), "a generated graph with types")
    return float(scale), torch.Generator(device="cpu").manual_seed(check_seed(seed))


#: The sizes of ogbn-mag (Hu et al. 2020, "Open Graph Benchmark").
_MAG_NODES = {"paper": 736_389, "author": 1_134_649, "institution": 8_740, "field": 59_965}
_MAG_EDGES: dict[Relation, int] = {
    ("author", "affiliated_with", "institution"): 1_043_998,
    ("author", "writes", "paper"): 7_145_660,
    ("paper", "cites", "paper"): 5_416_271,
    ("paper", "has_topic", "field"): 7_505_078,
}
_MAG_FEATURES, _MAG_CLASSES, _LEAST_OF_CLASS = 128, 349, 100
#: The years of the papers, and fractions of them: to 2017 for training, then validation and test.
_FIRST_YEAR, _TRAIN_YEARS, _VAL, _TEST = 2010, 8, 64_879 / 736_389, 41_939 / 736_389
#: Fraction of the papers with a random class, and length of a class's mean features beside noise of 1.
_STRAY, _SIGNAL = 0.15, 1.5


@register_dataset("mag_like", task="typed_node")
def load_mag_like(scale: float = 1.0, seed: int = 0) -> TypedNodeDataset:
    """Generate a graph of papers, authors, institutions and fields in the sizes of ogbn-mag.

    All nodes have a group, and most edges join nodes of one; a paper's group is its class, but for some that
    have any. A paper's features are a mean vector of its group plus noise, so strong that the class can be
    told from those of a neighbourhood only. Papers cite none that are younger. They are split by their years:
    to 2017 for training, 2018 and 2019. Each relation has its reverse.

    Args:
        scale: factor of the numbers of nodes and edges, 0.001 to 1; where papers are few, classes are too.
        seed: seed of all random numbers.

    Raises:
        TypeError, ValueError: an argument is of another type or out of range.
        MemoryError: there is no room for it.
    """
    scale, generator = _scaled(scale, seed, 3 * 10**9)
    counts = {kind: round(count * scale) for kind, count in _MAG_NODES.items()}
    papers = counts["paper"]
    classes = min(_MAG_CLASSES, max(2, papers // _LEAST_OF_CLASS))
    nodes = {kind: _Nodes.draw(count, classes, generator) for kind, count in counts.items()}
    years = torch.tensor(
        [*[(1 - _VAL - _TEST) / _TRAIN_YEARS] * _TRAIN_YEARS, _VAL, _TEST], dtype=torch.float64, device="cpu"
    )
    year = torch.multinomial(years, papers, replacement=True, generator=generator)
    edges = {}
    for (source, name, target), full in _MAG_EDGES.items():
        count = round(full * scale)
        first = nodes[source].any(round(count * _DRAWS), generator)
        second = nodes[target].of(nodes[source].group[first], _INSIDE, generator)
        if source == target:
            first, second = first[first != second], second[first != second]
            older = year[first] < year[second]
            first, second = torch.where(older, second, first), torch.where(older, first, second)
        edges[source, name, target] = _distinct(first, second, counts[target], count, generator)
    group = nodes["paper"].group
    means = torch.randn(classes, _MAG_FEATURES, generator=generator, dtype=torch.float32, device="cpu")
    means *= _SIGNAL / means.norm(dim=1, keepdim=True)
    x = torch.randn(papers, _MAG_FEATURES, generator=generator, dtype=torch.float32, device="cpu")
    x.add_(means[group])
    stray = torch.rand(papers, generator=generator, dtype=torch.float32, device="cpu") < _STRAY
    y = torch.where(stray, torch.randint(classes, (papers,), generator=generator, device="cpu"), group)
    masks = year < _TRAIN_YEARS, year == _TRAIN_YEARS, year > _TRAIN_YEARS
    return TypedNodeDataset(
        "mag_like", TypedGraph(counts, _with_reverses(edges)), {"paper": x}, "paper", y, *masks, classes,
        times={"paper": year + _FIRST_YEAR},
    )  # fmt: skip


_SHOP_NODES = {"user": 100_000, "item": 20_000, "category": 1_000}
_PURCHASES, _DAYS, _TASTES = 2_000_000, 730, 3
_BUYS: Relation = ("user", "buys", "item")


@register_dataset("shop_like", task="typed_link")
def load_shop_like(scale: float = 1.0, seed: int = 0) -> TypedLinkDataset:
    """Generate a graph of users, items and their categories, of which the items that users buy are predicted.

    Each user has three favourite categories. Most purchases are of their items, others of any, both by a
    popularity that is a power law. A purchase has a day: the earliest 80 % are to train on, the next 10 % for
    validation, the last for the test. Nodes have no features. Each relation has its reverse.

    Args:
        scale: factor of the numbers of nodes and edges, 0.001 to 1; there are ten categories or more.
        seed: seed of all random numbers.

    Raises:
        TypeError, ValueError: an argument is of another type or out of range.
        MemoryError: there is no room for it.
    """
    scale, generator = _scaled(scale, seed, 10**9)
    counts = {kind: round(count * scale) for kind, count in _SHOP_NODES.items()}
    counts["category"] = max(10, counts["category"])
    items = _Nodes.draw(counts["item"], counts["category"], generator)
    users = _Nodes.draw(counts["user"], 1, generator)
    likes = torch.randint(
        counts["category"], (counts["user"], _TASTES), generator=generator, dtype=torch.int64, device="cpu"
    )
    count = round(_PURCHASES * scale)
    user = users.any(round(count * _DRAWS), generator)
    which = torch.randint(_TASTES, user.shape, generator=generator, dtype=torch.int64, device="cpu")
    item = items.of(likes[user, which], _BY_TASTE, generator)
    pairs = _distinct(user, item, counts["item"], count, generator)
    day = torch.randint(_DAYS, (pairs.shape[1],), generator=generator, dtype=torch.int64, device="cpu")
    parts = split_by_time(day, 0.8, 0.1)
    train, val, test = (pairs[:, part] for part in parts)
    every = torch.arange(counts["item"], dtype=torch.int64, device="cpu")
    edges = _with_reverses({_BUYS: train, ("item", "is_in", "category"): torch.stack([every, items.group])})
    train_day, val_day, test_day = (day[part] for part in parts)
    return TypedLinkDataset(
        "shop_like", TypedGraph(counts, edges), {}, _BUYS,
        train.T.contiguous(), val.T.contiguous(), test.T.contiguous(),
        edge_times={_BUYS: train_day, ("item", "rev_buys", "user"): train_day},
        train_times=train_day, val_times=val_day, test_times=test_day,
    )  # fmt: skip
