"""The community order: what it finds, that threads do not change it, and its options."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnsparse import SparseGraph
from gnnsparse.data.generators import BlockModel, graph_like, sample_graph
from gnnsparse.preprocess.reorder import reorder
from gnnsparse.testing import random_graph


def find_order(graph: SparseGraph, **options: Any) -> torch.Tensor:
    result = reorder(graph, "community", **options)
    assert result.order is not None
    assert result.order.dtype == torch.int32
    assert torch.equal(result.order.sort().values, torch.arange(graph.num_rows, dtype=torch.int32))
    assert result.after.columns_32 <= result.before.columns_32
    return result.order


def from_edges(edges: list[tuple[int, int]], n: int) -> SparseGraph:
    return SparseGraph.from_edge_index(torch.tensor(edges).T.reshape(2, -1), n)


@pytest.mark.parametrize(("name", "scale"), [("reddit_like", 0.01), ("products_like", 0.01)])
def test_gives_back_what_shuffling_took(name: str, scale: float) -> None:
    natural = reorder(graph_like(name, scale), "none").before
    found = reorder(graph_like(name, scale, shuffled=True), "community")
    for count in ("columns_8", "columns_32"):
        lost = getattr(found.before, count) - getattr(natural, count)
        back = getattr(found.before, count) - getattr(found.after, count)
        assert back >= 0.95 * lost


def columns_given_back(model: BlockModel, **options: Any) -> float:
    """The share of what shuffling took: 1 is as good as the planted order."""
    natural = reorder(sample_graph(model)[0], "none").before.columns_32
    found = reorder(sample_graph(model, shuffled=True)[0], "community", **options)
    return (found.before.columns_32 - found.after.columns_32) / (found.before.columns_32 - natural)


@pytest.mark.parametrize("resolution", [0.03, 1.0, 30.0])
def test_groups_are_found_at_every_resolution(resolution: float) -> None:
    model = BlockModel(8000, 320_000, inside=0.7, community=64, spread=0.2, tail=3.0, cap=10)
    assert columns_given_back(model, resolution=resolution) > 0.85


def test_large_communities_are_ordered_inside() -> None:
    """Points in space with their neighbours: communities are as large as the resolution lets them."""
    n, degree = 6000, 64
    points = torch.rand(n, 3, generator=torch.Generator().manual_seed(0))
    near = torch.cdist(points, points).topk(degree + 1, largest=False).indices[:, 1:]
    edges = torch.stack([near.flatten(), torch.arange(n).repeat_interleave(degree)])
    found = reorder(SparseGraph.from_edge_index(edges, n), "community")
    # 0.23 with the communities alone, 0.22 with METIS at part_size=32.
    assert found.after.columns_32 < 0.21 * found.before.columns_32


def test_isolated_rows_come_last() -> None:
    order = find_order(from_edges([(1, 90), (90, 1), (40, 90), (90, 40)], 100))
    assert set(order[:3].tolist()) == {1, 40, 90}


@pytest.mark.parametrize(
    ("edges", "n"),
    [
        ([(0, 0)], 1),
        ([(i, i) for i in range(70)], 70),
        ([(0, 1)], 2),
        ([(i, 0) for i in range(1, 400)], 400),
        ([(0, i) for i in range(1, 400)], 400),
        ([(i, i + 1) for i in range(99)] + [(i, i) for i in range(0, 99, 3)], 100),
        ([(i, j) for i in range(256) for j in range(max(0, i - 2), min(256, i + 3))], 256),
    ],
    ids=["one loop", "loops", "one edge", "star out", "star in", "directed path with loops", "band"],
)
def test_odd_graphs(edges: list[tuple[int, int]], n: int) -> None:
    find_order(from_edges(edges, n))


def test_self_loops_do_not_count() -> None:
    graph = graph_like("amazon_like", 0.01, shuffled=True)
    both = torch.stack([graph.csr.indices.long(), graph.csr.row_index()])
    loops = torch.arange(graph.num_rows).repeat(2, 1)
    with_loops = SparseGraph.from_edge_index(torch.cat([both, loops], 1), graph.num_rows)
    found = reorder(with_loops, "community")
    assert found.after.columns_32 < 0.8 * found.before.columns_32


@given(
    n=st.integers(1, 60),
    density=st.sampled_from([0.01, 0.1, 0.6]),
    rounds=st.integers(1, 4),
    resolution=st.sampled_from([1e-3, 1, 50.0]),
    seed=st.integers(0, 2**20),
)
def test_any_graph_has_an_order(n: int, density: float, rounds: int, resolution: float, seed: int) -> None:
    graph = random_graph(n, n, density, seed=seed)
    if graph.nnz:
        find_order(graph, rounds=rounds, resolution=resolution)
