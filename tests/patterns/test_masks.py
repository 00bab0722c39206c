"""gnnsparse.patterns.masks against dense boolean matrices made by loops, and what it costs."""

from __future__ import annotations

import re
import resource
from collections.abc import Callable
from typing import Any

import pytest
import scipy.sparse.csgraph
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnsparse import SparseGraph, masks
from gnnsparse.testing import random_graph

LENGTHS = st.integers(0, 40)


def dense_of(graph: SparseGraph) -> torch.Tensor:
    """The pattern as a boolean matrix, after a check of what every pattern has to be."""
    assert graph.values is None
    assert graph.nnz_index_of_edge is None
    assert (graph.csr.indptr.dtype, graph.csr.indices.dtype) == (torch.int64, torch.int32)
    again = SparseGraph.from_csr(graph.csr.indptr, graph.csr.indices, num_cols=graph.num_cols)
    assert torch.equal(again.csr.indices, graph.csr.indices), "ascending columns, without repeats"
    return torch.from_numpy(graph.to_scipy().toarray()).bool()


def by_rule(rows: int, cols: int, rule: Callable[[int, int], bool]) -> torch.Tensor:
    cells = [[rule(i, j) for j in range(cols)] for i in range(rows)]
    return torch.tensor(cells, dtype=torch.bool).reshape(rows, cols)


@given(LENGTHS, LENGTHS, st.integers(0, 50), st.integers(1, 9))
def test_window(rows: int, cols: int, radius: int, dilation: int) -> None:
    def rule(i: int, j: int) -> bool:
        return (i - j) % dilation == 0 and abs(i - j) <= radius * dilation

    got = masks.window(rows, radius, dilation, keys=cols)
    assert torch.equal(dense_of(got), by_rule(rows, cols, rule))


@given(LENGTHS, st.integers(1, 50), st.integers(1, 9))
def test_dilated(length: int, segment: int, dilation: int) -> None:
    def rule(i: int, j: int) -> bool:
        return i // segment == j // segment and (i - j) % dilation == 0

    assert torch.equal(dense_of(masks.dilated(length, segment, dilation)), by_rule(length, length, rule))


@given(LENGTHS, LENGTHS)
def test_causal_and_full(rows: int, cols: int) -> None:
    assert torch.equal(dense_of(masks.causal(rows, cols)), by_rule(rows, cols, lambda i, j: j <= i))
    assert dense_of(masks.full(rows, cols)).all()
    assert masks.full(rows, cols).nnz == rows * cols


@given(st.integers(1, 40), st.data())
def test_global_tokens(length: int, data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.integers(0, length - 1), max_size=5))
    want = by_rule(length, length, lambda i, j: i in tokens or j in tokens)
    assert torch.equal(dense_of(masks.global_tokens(length, tokens)), want)
    assert torch.equal(dense_of(masks.global_tokens(length, torch.tensor(tokens, dtype=torch.int32))), want)
    count = data.draw(st.integers(0, length))
    want = by_rule(length, length, lambda i, j: min(i, j) < count)
    assert torch.equal(dense_of(masks.global_tokens(length, count)), want)


@given(LENGTHS, LENGTHS, st.integers(0, 10**6), st.data())
def test_random(rows: int, cols: int, seed: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, cols))
    state = torch.get_rng_state()
    got = masks.random(rows, count, seed, keys=cols)
    assert torch.equal(torch.get_rng_state(), state), "torch's own random numbers were used"
    assert torch.equal(dense_of(got).sum(dim=1), torch.full((rows,), count))
    assert got.fingerprint == masks.random(rows, count, seed, keys=cols).fingerprint
    if rows > 10 and 2 < count < cols - 2:
        assert got.fingerprint != masks.random(rows, count, seed + 1, keys=cols).fingerprint


@pytest.mark.parametrize("count", [1, 3, 5, 8])
def test_random_is_uniform(count: int) -> None:
    """Each of the 9 columns is in count / 9 of the rows, and each pair as often as it should be."""
    rows = 30_000
    kept = dense_of(masks.random(rows, count, seed=1, keys=9)).double()
    share = kept.mean(dim=0)
    assert (share - count / 9).abs().max() < 5 * (0.25 / rows) ** 0.5
    pairs = (kept.T @ kept / rows)[~torch.eye(9, dtype=torch.bool)]
    assert (pairs - count * (count - 1) / 72).abs().max() < 5 * (0.25 / rows) ** 0.5


@given(st.integers(0, 40), st.integers(0, 10**6), st.data())
def test_expander(nodes: int, seed: int, data: st.DataObject) -> None:
    degree = data.draw(st.integers(0, max(nodes - 1, 0)).filter(lambda d: nodes * d % 2 == 0))
    state = torch.get_rng_state()
    graph = masks.expander(nodes, degree, seed=seed)
    assert torch.equal(torch.get_rng_state(), state), "torch's own random numbers were used"
    got = dense_of(graph)
    assert torch.equal(got.sum(dim=1), torch.full((nodes,), degree))
    assert torch.equal(got, got.T)
    assert not got.diagonal().any()
    assert graph.fingerprint == masks.expander(nodes, degree, seed=seed).fingerprint
    if degree >= 2:
        assert scipy.sparse.csgraph.connected_components(graph.to_scipy())[0] == 1
    if nodes > 10 and 3 <= degree <= nodes - 4:
        assert graph.fingerprint != masks.expander(nodes, degree, seed=seed + 1).fingerprint


@pytest.mark.parametrize(("nodes", "degree"), [(1000, 3), (1001, 4), (600, 7), (400, 40), (150, 140)])
@pytest.mark.parametrize("seed", range(3))
def test_an_expander_has_a_spectral_gap(nodes: int, degree: int, seed: int) -> None:
    """The eigenvalues but the first are near Alon and Boppana's bound, and far below the degree.

    Those of a ring of equal degree are not, although it is regular and connected.
    """
    graph = masks.expander(nodes, degree, seed=seed)
    values = torch.linalg.eigvalsh(dense_of(graph).double())
    assert values[-1] == pytest.approx(degree)
    assert max(values[-2], -values[0]) < 1.1 * 2 * (degree - 1) ** 0.5
    if degree == 4:
        ring = dense_of(masks.window(nodes, 2)) | dense_of(masks.window(nodes, 2, nodes - 2))
        assert torch.linalg.eigvalsh(ring.double())[-2] > 0.98 * 5


def test_the_edges_of_expanders_are_uniform() -> None:
    """Each of the 28 pairs of 8 nodes is an edge in 3 of 7 graphs of degree 3."""
    count = 3000
    graphs = (masks.expander(8, 3, seed=seed).csr for seed in range(count))
    found = sum(torch.bincount(8 * csr.row_index() + csr.indices, minlength=64) for csr in graphs) / count
    pairs = found.double()[~torch.eye(8, dtype=torch.bool).flatten()]
    assert (pairs - 3 / 7).abs().max() < 5 * (0.25 / count) ** 0.5


@given(LENGTHS, LENGTHS, st.floats(0, 1), st.sampled_from([1, 3, 8, 16]))
def test_vector_wise(rows: int, cols: int, sparsity: float, vector: int) -> None:
    got = dense_of(masks.vector_wise(rows, sparsity, vector, seed=3, keys=cols))
    assert torch.equal(got.sum(dim=1), torch.full((rows,), round((1 - sparsity) * cols)))
    for begin in range(0, rows, vector):
        strip = got[begin : begin + vector]
        assert torch.equal(strip, strip[:1].expand_as(strip)), "a vector is kept whole"
    strips = dense_of(masks.vector_wise(64, 0.5, 8, seed=rows))
    assert len({tuple(row.tolist()) for row in strips}) == 8, "and is no other"


@given(st.integers(0, 5), st.integers(0, 5), st.integers(1, 7), st.data())
def test_block(block_rows: int, block_cols: int, size: int, data: st.DataObject) -> None:
    blocks = torch.rand(block_rows, block_cols) < 0.5
    rows = block_rows * size - data.draw(st.integers(0, size - 1)) if block_rows else 0
    cols = block_cols * size - data.draw(st.integers(0, size - 1)) if block_cols else 0
    whole = blocks.repeat_interleave(size, 0).repeat_interleave(size, 1)
    assert torch.equal(dense_of(masks.block(blocks, size)), whole)
    assert torch.equal(dense_of(masks.block(blocks, size, rows, cols)), whole[:rows, :cols])


@pytest.mark.parametrize("length", [0, 1, 63, 64, 250])
@pytest.mark.parametrize("size", [1, 16, 64])
def test_bigbird(length: int, size: int) -> None:
    got = dense_of(masks.bigbird(length, size, 3, 2, 1, seed=5))
    count = -(-length // size)
    sure = by_rule(
        length, length, lambda i, j: abs(i // size - j // size) <= 1 or min(i // size, j // size) < 1
    )
    assert torch.equal(got & sure, sure)
    blocks = got[::size, ::size]
    assert torch.equal(got, blocks.repeat_interleave(size, 0).repeat_interleave(size, 1)[:length, :length])
    random = masks.random(count, min(2, count), 5)
    assert torch.equal(blocks, sure[::size, ::size] | dense_of(random))


def test_from_edges() -> None:
    edges = torch.tensor([[4, 0, 4, 2], [1, 1, 1, 0]])
    want = torch.zeros(3, 6, dtype=torch.bool)
    want[edges[1], edges[0]] = True
    assert torch.equal(dense_of(masks.from_edges(edges, (6, 3))), want)
    assert masks.from_edges(edges).num_rows == 5


@given(LENGTHS, LENGTHS, st.floats(0, 1))
def test_from_dense(rows: int, cols: int, density: float) -> None:
    mask = density > torch.rand(cols, rows).T  # not contiguous
    assert torch.equal(dense_of(masks.from_dense(mask)), mask)


@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 4))
def test_union_and_intersection(rows: int, cols: int, count: int) -> None:
    dense = [torch.rand(rows, cols) < 0.6 for _ in range(count)]
    graphs = [masks.from_dense(mask) for mask in dense]
    assert torch.equal(dense_of(masks.union(*graphs)), torch.stack(dense).any(dim=0))
    assert torch.equal(dense_of(masks.intersection(*graphs)), torch.stack(dense).all(dim=0))


def test_union_of_a_weighted_graph_is_its_structure() -> None:
    graph = random_graph(9, 9, 0.3)
    both = dense_of(masks.union(graph, masks.window(9, 0)))
    assert torch.equal(both, torch.from_numpy(graph.to_scipy().toarray() != 0) | torch.eye(9).bool())


@pytest.mark.parametrize(
    "make",
    [
        lambda n: masks.window(n, 2),
        lambda n: masks.dilated(n, 8, 2),
        lambda n: masks.random(n, 3, seed=0),
        lambda n: masks.expander(n, 4, seed=0),
        lambda n: masks.bigbird(n, 4, 3, 1, 0, seed=0),
        lambda n: masks.union(masks.window(n, 1), masks.from_edges(torch.tensor([[0], [n - 1]]), n)),
    ],
    ids=["window", "dilated", "random", "expander", "bigbird", "union"],
)
def test_memory_follows_the_edges(make: Callable[[int], SparseGraph]) -> None:
    """Of 300,000 tokens a dense mask would have 90 GB, or 45 GB of indices of a causal half."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph = make(300_000)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert graph.num_rows == 300_000
    assert grown < 200 * graph.nnz + 64 * 300_000 + 2**27


def test_positions_beyond_int32_products() -> None:
    """row x columns passes 2^31 for the last rows."""
    csr = masks.random(2**17, 2, seed=0).csr
    assert torch.equal(csr.indptr, 2 * torch.arange(2**17 + 1))
    assert 0 <= int(csr.indices.min()) <= int(csr.indices.max()) < 2**17


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: masks.window(-1, 2), "length: got -1; accepted: an integer, 0 or more"),
        (lambda: masks.window(4, 1, 0), "dilation: got 0; accepted: a positive integer"),
        (lambda: masks.window(2**31, 1), "length: got 2147483648; accepted: 0 to 2^31 - 1"),
        (lambda: masks.window(4.0, 1), "length: got float"),
        (lambda: masks.dilated(4, 0, 1), "segment: got 0"),
        (lambda: masks.random(4, 5, 0), "per_row: got 5; accepted: at most 4, the number of keys"),
        (lambda: masks.random(4, 2, -1), "seed: got -1; accepted: an integer from 0 to 2^63 - 1"),
        (lambda: masks.random(4, 2, None), "seed: got NoneType"),
        (
            lambda: masks.expander(5, 5, seed=0),
            "degree: got 5; accepted: at most 4, the number of other nodes",
        ),
        (
            lambda: masks.expander(5, 3, seed=0),
            "degree: got 3; accepted: an even number, as there are 5 nodes",
        ),
        (lambda: masks.expander(0, 1, seed=0), "degree: got 1; accepted: at most 0"),
        (lambda: masks.expander(2**31, 2, seed=0), "nodes: got 2147483648; accepted: 0 to 2^31 - 1"),
        (lambda: masks.expander(4, 2.0, seed=0), "degree: got float"),
        (lambda: masks.expander(4, 2, seed=2**63), "seed: got 9223372036854775808"),
        (lambda: masks.vector_wise(4, 1.5, seed=0), "sparsity: got 1.5; accepted: a number in [0, 1]"),
        (lambda: masks.vector_wise(4, "0.5", seed=0), "sparsity: got str"),
        (lambda: masks.global_tokens(4, 5), "tokens: got 5; accepted: a count up to 4, or positions below"),
        (lambda: masks.global_tokens(4, [0, 4]), "tokens: runs from 0 to 4"),
        (lambda: masks.global_tokens(4, 1.0), "tokens: got float"),
        (lambda: masks.global_tokens(4, torch.rand(2)), "tokens: got a tensor of dtype torch.float32"),
        (lambda: masks.global_tokens(6, torch.eye(2).long().to_sparse()), "tokens: got a tensor"),
        (lambda: masks.global_tokens(6, torch.empty(1, 0, 1).long().to_sparse()), "tokens: got a tensor"),
        (lambda: masks.bigbird(64, window_blocks=2, seed=0), "window_blocks: got 2; accepted: an odd number"),
        (lambda: masks.block(torch.ones(2, 2), 4), "blocks: got a tensor of dtype torch.float32"),
        (lambda: masks.block(torch.ones(2, 2).bool(), 4, 9), "length: got 9; accepted: 5 to 8 with 2 blocks"),
        (lambda: masks.from_dense(torch.ones(3).bool()), "mask: has shape (3,)"),
        (lambda: masks.union(), "graphs: there are none"),
        (lambda: masks.union(torch.ones(2, 2)), "graphs: got a tensor"),
        (lambda: masks.union(masks.window(2, 0), masks.window(3, 0)), "graphs: one is (3, 3) on cpu"),
    ],
)
def test_bad_arguments(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call()


def test_every_named_pattern_takes_a_length() -> None:
    options: dict[str, dict[str, Any]] = {
        "bigbird": {"seed": 0},
        "dilated": {"segment": 8, "dilation": 2},
        "expander": {"degree": 4, "seed": 0},
        "full": {},
        "global_tokens": {"tokens": 2},
        "random": {"per_row": 3, "seed": 0},
        "vector_wise": {"sparsity": 0.5, "seed": 0},
        "window": {"radius": 2},
    }
    assert set(options) == set(masks.PATTERNS)
    for name, make in masks.PATTERNS.items():
        assert make(37, **options[name]).num_rows == 37
