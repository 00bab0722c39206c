"""Generated graphs: sizes, structure, degrees, row overlap, seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from gnnsparse import SparseGraph
from gnnsparse.data import (
    GENERATED_GRAPHS,
    BlockModel,
    edges_like,
    generate_graph,
    graph_like,
    sample_graph,
)

SCALES = {"reddit_like": 0.02, "products_like": 0.01, "arxiv_like": 0.2, "amazon_like": 0.05, "dd_like": 0.1}
#: nodes, nonzeros, distinct columns over groups of 8 and of 16 rows, largest degree: published or anchors.
FULL_SIZE = {
    "arxiv_like": (169_343, 2_331_000, 2_230_000, 2_170_000, 3444),
    "amazon_like": (410_236, 4_875_000, 3_040_000, 2_690_000, 1199),
    "dd_like": (334_925, 1_686_000, 1_590_000, 1_480_000, 18),
}


def rows_and_columns(graph: SparseGraph) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the nonzeros, which are in order and without repeats."""
    row, col = graph.csr.row_index(), graph.csr.indices.long()
    assert bool(((row * graph.num_cols + col).diff() > 0).all())
    return row, col


@pytest.mark.parametrize("name", GENERATED_GRAPHS)
@pytest.mark.parametrize("shuffled", [False, True])
def test_graphs_are_canonical_symmetric_and_free_of_loops(name: str, shuffled: bool) -> None:
    graph = graph_like(name, SCALES[name], shuffled=shuffled)
    row, col = rows_and_columns(graph)
    assert graph.values is None
    assert graph.nnz_index_of_edge is None
    assert graph.csr.indptr.dtype == torch.int64
    assert graph.csr.indices.dtype == torch.int32
    assert not bool((row == col).any())
    keys, mirrored = row * graph.num_cols + col, col * graph.num_cols + row
    assert torch.equal(mirrored.sort().values, keys)


@pytest.mark.parametrize("name", FULL_SIZE)
def test_full_size_matches_the_published_counts(name: str) -> None:
    nodes, nnz, columns8, columns16, degree = FULL_SIZE[name]
    graph = graph_like(name)
    assert graph.num_rows == nodes
    assert graph.nnz == pytest.approx(nnz, rel=0.005)
    assert int(graph.csr.count_columns(8).sum()) == pytest.approx(columns8, rel=0.02)
    assert int(graph.csr.count_columns(16).sum()) == pytest.approx(columns16, rel=0.02)
    assert int(graph.csr.degrees.max()) == pytest.approx(degree, rel=0.15)


@pytest.mark.parametrize("name", GENERATED_GRAPHS)
def test_scale_keeps_the_mean_degree(name: str) -> None:
    small = graph_like(name, SCALES[name] / 2)
    large = graph_like(name, SCALES[name])
    assert small.num_rows == pytest.approx(large.num_rows / 2, abs=1)
    assert small.nnz / small.num_rows == pytest.approx(large.nnz / large.num_rows, rel=0.01)


def test_shuffled_is_the_same_graph_under_other_ids() -> None:
    plain, again, seeded = (graph_like("products_like", 0.005, seed=seed) for seed in (0, 0, 1))
    assert plain.fingerprint == again.fingerprint != seeded.fingerprint
    shuffled = graph_like("products_like", 0.005, shuffled=True)
    assert torch.equal(plain.csr.degrees.sort().values, shuffled.csr.degrees.sort().values)
    counts = [int(graph.csr.count_columns(8).sum()) for graph in (plain, shuffled)]
    assert counts[1] > 1.2 * counts[0], "random ids must destroy the overlap of neighbouring rows"
    with pytest.raises(TypeError, match=r"^shuffled: got int; accepted"):
        graph_like("dd_like", 0.01, shuffled=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("shuffled", [False, True])
def test_communities_hold_their_share_of_the_edges(shuffled: bool) -> None:
    model = BlockModel(5000, 100_000, 0.6, community=100, spread=0.3, tail=2.5, cap=30)
    graph, community = sample_graph(model, shuffled=shuffled)
    row, col = rows_and_columns(graph)
    inside = (community[row] == community[col]).double().mean()
    assert float(inside) == pytest.approx(0.6, abs=0.01)
    assert int(community.max()) + 1 == 50
    assert float(community.bincount().double().mean()) == pytest.approx(100)
    assert bool((community.diff() >= 0).all()) is not shuffled
    twice, _ = sample_graph(dataclasses.replace(model, nnz=200_000))
    assert twice.nnz == pytest.approx(200_000, rel=0.005)


def test_reach_bounds_the_edges_between_communities() -> None:
    model = BlockModel(5000, 40_000, 0.5, community=20, spread=0.3, tail=3, cap=30, reach=200)
    graph, community = sample_graph(model)
    row, col = rows_and_columns(graph)
    distance = (row - col).abs()[community[row] != community[col]]
    assert int(distance.max()) <= 200
    assert float(distance.double().mean()) > 50


def test_degrees_have_a_pareto_tail() -> None:
    exponent = 2.0
    model = BlockModel(50_000, 1_000_000, 0.0, community=500, spread=0.3, tail=exponent, cap=1000)
    degrees = sample_graph(model)[0].csr.degrees.double()
    # P(degree > d) falls as d^-exponent: four times the degree, 4^-2 of the nodes.
    above = [float((degrees > d).double().mean()) for d in (40, 160)]
    assert above[1] / above[0] == pytest.approx(4**-exponent, rel=0.2)


def test_disjoint_communities_have_no_edges_between_them_and_give_what_they_can() -> None:
    full = BlockModel(60, 60 * 40, 1.0, community=20, spread=0.0, tail=5, cap=2)
    for model, most in ((full, 60 * 19), (BlockModel(2000, 10_000, 1.0, 50, 0.25, 10, 3), 10_000)):
        graph, community = sample_graph(model)
        row, col = rows_and_columns(graph)
        assert torch.equal(community[row], community[col])
        assert 0.95 * most <= graph.nnz <= most


def test_cpu_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnnsparse.data.generators._CHUNK", 1000)
    graph = graph_like("arxiv_like", 0.05)
    rows_and_columns(graph)
    assert graph.nnz == pytest.approx(2_331_000 * 0.05, rel=0.005)
    assert graph.is_symmetric


def test_the_smallest_scale_is_told_and_works() -> None:
    for name in GENERATED_GRAPHS:
        with pytest.raises(ValueError, match="accepted for") as caught:
            graph_like(name, 1e-7)
        smallest = float(str(caught.value).rsplit(":", 1)[1].split()[0])
        graph = graph_like(name, smallest * 1.05)
        assert graph.nnz > 0


@pytest.mark.parametrize("make", [graph_like, edges_like, partial(generate_graph, folder="/nowhere/g")])
@pytest.mark.parametrize(
    ("error", "name", "values"),
    [
        (ValueError, "scale", [0, -1, 1.5, float("nan"), float("inf"), 1e-9]),
        (ValueError, "seed", [-1, 2**63]),
        (ValueError, "name", ["facebook_like"]),
        (TypeError, "name", [3]),
        (TypeError, "scale", ["half", True]),
        (TypeError, "seed", [1.5]),
    ],
)
def test_bad_arguments_are_named(
    make: Callable[..., Any], error: type[Exception], name: str, values: list
) -> None:
    for value in values:
        with pytest.raises(error, match=f"^{name}: got .*accepted"):
            make(**{"name": "dd_like", "scale": 0.01, name: value})


@pytest.mark.gpu
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_gpu_makes_graphs_of_the_same_kind(shuffled: bool) -> None:
    graphs = [graph_like("amazon_like", 0.1, device="cuda", shuffled=shuffled) for _ in range(2)]
    assert graphs[0].device.type == "cuda"
    host = graphs[0].to("cpu")
    assert host.fingerprint == graphs[1].to("cpu").fingerprint
    assert host.is_symmetric
    reference = graph_like("amazon_like", 0.1, shuffled=shuffled)
    assert host.nnz == pytest.approx(reference.nnz, rel=0.01)
    counts = [int(graph.csr.count_columns(8).sum()) for graph in (host, reference)]
    assert counts[0] == pytest.approx(counts[1], rel=0.02)
