"""Generated graphs with types: sizes, splits by time, and structure that a model can learn."""

from __future__ import annotations

import pytest
import torch

from gnnsparse.data.generated_typed import load_mag_like, load_shop_like
from gnnsparse.sparse.typed import Relation

BUYS = ("user", "buys", "item")


def mean_of_neighbours(x: torch.Tensor, edges: torch.Tensor, nodes: int) -> torch.Tensor:
    total = torch.zeros(nodes, x.shape[1], dtype=x.dtype).index_add_(0, edges[1], x[edges[0]])
    return total / edges[1].bincount(minlength=nodes).clamp(min=1)[:, None]


def test_sizes_of_papers_and_their_years() -> None:
    """Those of ogbn-mag: 736,389 papers, of which 85.5 % are to train on, and 21.1 million edges."""
    data = load_mag_like(scale=0.01)
    assert data.graph.num_nodes == {"paper": 7364, "author": 11346, "institution": 87, "field": 600}
    counts = {relation: edges.shape[1] for relation, edges in data.graph.edges.items()}
    wanted: dict[Relation, int] = {
        ("author", "affiliated_with", "institution"): 10440, ("author", "writes", "paper"): 71457,
        ("paper", "cites", "paper"): 54163, ("paper", "has_topic", "field"): 75051,
    }  # fmt: skip
    for (source, name, target), count in wanted.items():
        edges = data.graph.edges[source, name, target]
        assert 0.8 * count < counts[source, name, target] <= count  # at scale 1 it is all
        assert edges.unique(dim=1).shape == edges.shape
        assert torch.equal(data.graph.edges[target, f"rev_{name}", source], edges.flip(0))
    assert {kind: x.shape for kind, x in data.x.items()} == {"paper": (7364, 128)}
    assert data.times is not None
    year = data.times["paper"]
    assert [int(year[mask].min()) for mask in (data.train_mask, data.val_mask, data.test_mask)] == [
        2010, 2018, 2019
    ]  # fmt: skip
    assert [int(year[mask].max()) for mask in (data.train_mask, data.val_mask)] == [2017, 2018]
    assert 0.84 < float(data.train_mask.float().mean()) < 0.87
    citing, cited = data.graph.edges["paper", "cites", "paper"]
    assert bool((year[citing] >= year[cited]).all())
    assert bool((citing != cited).all())
    degrees = data.graph.edges["author", "writes", "paper"][0].bincount()
    assert int(degrees.max()) > 20 * float(degrees.float().mean())


def test_papers_are_known_by_their_neighbours() -> None:
    """A linear model of means over neighbours of neighbours, against the features alone and the majority."""
    data = load_mag_like(scale=0.01)
    edges, counts, x = data.graph.edges, data.graph.num_nodes, data.x["paper"]
    seen = [x, mean_of_neighbours(x, edges["paper", "cites", "paper"], counts["paper"])]
    for name, kind in (("has_topic", "field"), ("rev_writes", "author")):
        back = name.removeprefix("rev_") if name.startswith("rev_") else f"rev_{name}"
        means = mean_of_neighbours(x, edges["paper", name, kind], counts[kind])
        seen.append(mean_of_neighbours(means, edges[kind, back, "paper"], counts["paper"]))

    def score(features: torch.Tensor) -> float:
        torch.manual_seed(0)
        linear = torch.nn.Linear(features.shape[1], data.num_classes)
        optimizer = torch.optim.Adam(linear.parameters(), lr=0.02)
        for _ in range(80):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(
                linear(features[data.train_mask]), data.y[data.train_mask]
            ).backward()
            optimizer.step()
        right = linear(features).argmax(dim=1) == data.y
        return float(right[data.test_mask].float().mean())

    majority = float(data.y[data.test_mask].bincount().max() / data.test_mask.sum())
    alone, together = score(x), score(torch.cat(seen, dim=1))
    assert alone > 1.5 * majority
    assert together > 2 * alone
    assert together > 0.4


def test_purchases_are_split_by_their_days() -> None:
    data = load_shop_like(scale=0.01)
    assert data.graph.num_nodes == {"user": 1000, "item": 200, "category": 10}
    assert (data.relation, data.x) == (BUYS, {})
    assert torch.equal(data.graph.edges[BUYS], data.train_edges.T)
    assert torch.equal(data.graph.edges["item", "rev_buys", "user"], data.train_edges.T.flip(0))
    assert data.graph.edges["item", "is_in", "category"].shape == (2, 200)
    train, val, test = (data.times[part] for part in ("train", "val", "test"))
    assert train is not None
    assert val is not None
    assert test is not None
    assert int(train.max()) < int(val.min()) <= int(val.max()) < int(test.min())
    assert data.edge_times is not None
    assert torch.equal(data.edge_times[BUYS], train)
    pairs = torch.cat([*data.edges.values()])
    assert len(pairs.unique(dim=0)) == len(pairs)
    assert 0.78 < len(train) / len(pairs) < 0.82


def test_purchases_are_known_by_tastes() -> None:
    """Items by how often the user bought of their category, and by popularity, against the latter alone."""
    data = load_shop_like(scale=0.02)
    user, item = data.train_edges.T
    category = data.graph.edges["item", "is_in", "category"][1]
    users, items = data.sizes
    bought = torch.zeros(users, data.graph.num_nodes["category"])
    bought.index_put_((user, category[item]), torch.ones(len(user)), accumulate=True)
    popular = item.bincount(minlength=items).float().expand(users, items)
    known = torch.zeros(users, items, dtype=torch.bool).index_put_((user, item), torch.tensor(True))

    def mrr(score: torch.Tensor) -> float:
        of_pairs = score.masked_fill(known, -1)[data.test_edges[:, 0]]
        own = of_pairs.gather(1, data.test_edges[:, 1:])
        return float((1 / (1 + (of_pairs > own).sum(dim=1))).mean())

    assert mrr(bought[:, category] * popular) > 3 * mrr(popular)


@pytest.mark.parametrize("load", [load_mag_like, load_shop_like])
def test_equal_arguments_make_equal_data(load: type) -> None:
    first, again, other = load(scale=0.002), load(scale=0.002), load(scale=0.002, seed=1)
    for relation, edges in first.graph.edges.items():
        assert torch.equal(edges, again.graph.edges[relation])
        same = edges.shape == other.graph.edges[relation].shape
        assert not same or not torch.equal(edges, other.graph.edges[relation]) or relation[1] == "is_in"


@pytest.mark.parametrize("load", [load_mag_like, load_shop_like])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0.0001}, "scale: got 0.0001; accepted: 0.001 to 1"),
        ({"scale": 2.0}, "scale: got 2.0; accepted: a number above 0 and at most 1"),
        ({"seed": -1}, "seed: got -1; accepted: an integer from 0 to 2^63 - 1"),
    ],
)
def test_options_out_of_range(load: type, options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("^", r"\^")):
        load(**options)


def test_the_least_scale() -> None:
    assert load_mag_like(scale=0.001).num_classes == 7
    assert len(load_shop_like(scale=0.001).test_edges) > 0
