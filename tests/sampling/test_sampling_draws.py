"""What NeighborSampler draws has the probabilities that it says, by chi-squared tests."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy.stats import binom, chi2, chisquare

from gnnsparse import SparseGraph
from gnnsparse.formats.csr import Csr
from gnnsparse.sampling import NeighborSampler

#: Rows that draw independently. The seed is fixed: a test either passes or fails in every run.
ROWS = 20_000
#: The least probability of a statistic as large as the one found.
LEAST = 1e-3


def full(columns: int) -> SparseGraph:
    """Rows that all have the same neighbours."""
    offsets = columns * torch.arange(ROWS + 1, dtype=torch.int64)
    return SparseGraph(Csr(offsets, torch.arange(columns, dtype=torch.int32).repeat(ROWS), columns))


def drawn(columns: int, fanout: int, seed: int = 1, **options: object) -> torch.Tensor:
    """How often each row drew each column, [rows, columns]."""
    made = NeighborSampler(full(columns), [fanout], seed=seed, **options)  # type: ignore[arg-type]
    (block,) = made.sample(torch.arange(ROWS)).blocks
    found = torch.zeros(ROWS, columns)
    found[:, block.sources] = block.adj @ torch.eye(block.adj.shape[1])
    return found


def check(counts: torch.Tensor, probabilities: torch.Tensor) -> None:
    """Counts of outcomes, each of which is drawn independently in proportion to these probabilities."""
    expected = probabilities.double() * counts.sum() / probabilities.double().sum()
    assert float(expected.min()) > 20
    assert chisquare(counts, expected).pvalue > LEAST


def subsets(found: torch.Tensor, size: int) -> torch.Tensor:
    """How many rows drew each subset of so many columns, in the order of itertools.combinations."""
    assert bool((found.sum(1) == size).all())
    assert bool((found <= 1).all())
    codes = (found.long() << torch.arange(found.shape[1])).sum(1)
    wanted = [sum(1 << i for i in subset) for subset in itertools.combinations(range(found.shape[1]), size)]
    return torch.stack([(codes == code).sum() for code in wanted]).double()


@pytest.mark.parametrize(("columns", "fanout"), [(6, 2), (6, 5), (7, 3), (40, 1)])
def test_every_set_of_neighbours_is_equally_likely(columns: int, fanout: int) -> None:
    counts = subsets(drawn(columns, fanout), fanout)
    check(counts, torch.full((math.comb(columns, fanout),), 1 / math.comb(columns, fanout)))


def test_draws_with_replacement_take_all_neighbours_alike() -> None:
    found = drawn(9, 4, replace=True)
    assert bool((found.sum(1) == 4).all())
    check(found.sum(0).double(), torch.full((9,), 1 / 9))
    # How often the first column was drawn by a row has a binomial distribution.
    times = torch.bincount(found[:, 0].long(), minlength=5)[:3].double()
    check(times, torch.from_numpy(binom.pmf(range(3), 4, 1 / 9)))


WEIGHTS = torch.tensor([0.5, 3.0, 0.0, 1.0, 2.5])


def test_draws_with_replacement_are_in_proportion_to_weights() -> None:
    found = drawn(5, 3, method="weighted", weights=WEIGHTS.repeat(ROWS), replace=True)
    positive = WEIGHTS > 0
    assert float(found[:, ~positive].sum()) == 0
    check(found.sum(0)[positive].double(), (WEIGHTS / WEIGHTS.sum())[positive])


def test_draws_without_replacement_are_by_the_weights_that_are_left() -> None:
    found = drawn(5, 2, method="weighted", weights=WEIGHTS.repeat(ROWS))
    p = (WEIGHTS / WEIGHTS.sum()).double()
    want = [
        float(p[i] * p[j] / (1 - p[i]) + p[j] * p[i] / (1 - p[j]))
        for i, j in itertools.combinations(range(5), 2)
    ]
    counts, probabilities = subsets(found, 2), torch.tensor(want, dtype=torch.float64)
    assert float(counts[probabilities == 0].sum()) == 0
    check(counts[probabilities > 0], probabilities[probabilities > 0])


def test_weights_of_all_sizes_are_raced_by_exact_logarithms() -> None:
    # With weights 1 and 2^-20 the second column is drawn first once in a million rows: never here.
    found = drawn(2, 1, method="weighted", weights=torch.tensor([1.0, 2.0**-20]).repeat(ROWS))
    assert float(found[:, 1].sum()) <= 2
    found = drawn(2, 1, method="weighted", weights=torch.tensor([1e-30, 3e-30]).repeat(ROWS))
    check(found.sum(0).double(), torch.tensor([0.25, 0.75]))


@pytest.mark.parametrize(("degree", "fanout"), [(8, 3), (50, 10), (5, 1)])
def test_labor_takes_each_neighbour_with_probability_fanout_by_degree(degree: int, fanout: int) -> None:
    # Rows whose neighbours are their own, so that their numbers are independent.
    offsets = degree * torch.arange(ROWS + 1, dtype=torch.int64)
    columns = torch.arange(ROWS * degree, dtype=torch.int32)
    graph = SparseGraph(Csr(offsets, columns, ROWS * degree))
    (block,) = NeighborSampler(graph, [fanout], method="labor", seed=5).sample(torch.arange(ROWS)).blocks
    taken = torch.bincount(block.sources % degree, minlength=degree).double()
    p = fanout / degree
    statistic = float(((taken - ROWS * p) ** 2 / (ROWS * p * (1 - p))).sum())
    assert chi2.sf(statistic, degree) > LEAST
    # A row draws as many as independent decisions do.
    per_row = torch.bincount(block.sources // degree, minlength=ROWS)
    counts = torch.bincount(per_row, minlength=degree + 1).double()
    share = torch.from_numpy(binom.pmf(range(degree + 1), degree, p))
    likely = share * ROWS > 25
    check(counts[likely], share[likely])


def test_steps_and_layers_draw_independently() -> None:
    pairs = []
    for step in range(2):
        (block,) = NeighborSampler(full(4), [1], seed=3).sample(torch.arange(ROWS), step).blocks
        pairs.append(block.sources[block.adj.indices()[1]])
    check(torch.bincount(4 * pairs[0] + pairs[1], minlength=16).double(), torch.full((16,), 1 / 16))
    ring = SparseGraph.from_edge_index(
        torch.stack([torch.arange(4).repeat(4), torch.arange(4).repeat_interleave(4)]), 4
    )
    made = NeighborSampler(ring, [1, 1], seed=3, keep_edge_ids=True)
    counts = torch.zeros(16)
    for step in range(600):
        inner, outer = made.sample([0], step).blocks
        first, second = outer.sources[outer.adj.indices()[1]], inner.edge_ids
        assert second is not None
        if int(first) == 0:  # node 0 again, in the next layer
            counts[int(second[0]) % 4] += 1
    check(counts[:4].double(), torch.full((4,), 1 / 4))


def test_negatives_take_all_pairs_without_an_edge_alike() -> None:
    nodes = 6
    edge_index = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 5, 5]])
    made = NeighborSampler(edge_index, [1], num_nodes=nodes)
    sample = made.sample_links([[0, 1]], negatives=ROWS)
    source, target = sample.seeds[sample.negative].T
    counts = torch.bincount(nodes * target + source, minlength=nodes * nodes).double()
    allowed = torch.ones(nodes, nodes, dtype=torch.bool).fill_diagonal_(False)
    allowed[edge_index[1], edge_index[0]] = False
    assert float(counts[~allowed.flatten()].sum()) == 0
    check(counts[allowed.flatten()], torch.ones(int(allowed.sum())))
