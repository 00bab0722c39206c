"""The CUDA source of edge_softmax and its gradient, run on the CPU, against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseGraph, SparseOperand
from gnnsparse.testing import assert_accurate, random_graph
from tests.gpu_paths import RunningPath
from tests.helpers import make
from tests.ops.test_edge_softmax import check

#: Groups of 4, 8, 16 and 32 lanes a row, by the mean number of nonzeros, and rows with a block each.
GRAPHS = {
    4: lambda: random_graph(70, 90, 0.03, empty_rows=0.2),
    8: lambda: random_graph(70, 90, 0.08, hubs=1, empty_rows=0.2),
    16: lambda: random_graph(61, 120, 0.1, hubs=2, empty_rows=0.1),
    32: lambda: random_graph(50, 90, 0.5, hubs=2, empty_rows=0.2),
    "block": lambda: random_graph(12, 2000, 0.01, hubs=3, empty_rows=0.2),
}


def lanes_of(graph: SparseGraph) -> int:
    """As softmax.cu chooses them."""
    lanes = 4
    while lanes < 32 and lanes * graph.num_rows < graph.nnz:
        lanes *= 2
    return lanes


def check_gradient(a: SparseOperand, scores: torch.Tensor) -> None:
    """What the backward pass has of the forward pass are the weights, in their own dtype."""
    noise = torch.randn(a.nnz, generator=torch.Generator().manual_seed(0))
    leaf, grad = scores.clone().requires_grad_(), noise.to(scores.dtype)
    weights = gnnsparse.edge_softmax(a, leaf)
    (got,) = torch.autograd.grad(weights, leaf, grad)
    assert got.dtype == scores.dtype
    row = a.indices()[0]

    def of_row(x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(a.shape[0]).index_add(0, row, x)[row]

    def formula(p: torch.Tensor, dp: torch.Tensor) -> torch.Tensor:
        return p * (dp - of_row(p * dp))

    plain = formula(weights.detach().float(), grad.float()).to(scores.dtype)
    p, dp = weights.detach().double(), grad.double()
    # The difference cancels where one weight is nearly the whole row.
    size = p * (dp.square() + of_row((p * dp).square())).sqrt()
    assert_accurate(got, plain, formula(p, dp), scale=size)


@pytest.mark.parametrize("lanes", GRAPHS)
def test_cases_are_what_they_are_called(lanes: int | str) -> None:
    graph = GRAPHS[lanes]()
    longest = int(graph.csr.degrees.max())
    assert longest > 1024 if lanes == "block" else longest < 1024 and lanes_of(graph) == lanes


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("spread", [0.1, 3.0, 60.0])
@pytest.mark.parametrize("lanes", GRAPHS)
def test_matches_float64(copyless: RunningPath, dtype: torch.dtype, spread: float, lanes: int | str) -> None:
    a = make(GRAPHS[lanes](), "cpu", reorder="degree")
    scores = (spread * torch.randn(a.nnz)).to(dtype)
    check(a, scores)
    check_gradient(a, scores)
    assert copyless.called >= {"cuda_softmax", "cuda_softmax_grad"}


@pytest.mark.usefixtures("copyless")
@pytest.mark.parametrize("lanes", GRAPHS)
def test_masked_edges_get_zero(lanes: int | str) -> None:
    """Rows with some masked edges, and one with no other."""
    a = make(GRAPHS[lanes](), "cpu")
    row = a.indices()[0]
    longest = row.bincount().argmax()
    for whole in (row[0], longest):
        masked = (torch.arange(a.nnz) % 3 == 0) | (row == whole)
        scores = torch.randn(a.nnz).masked_fill(masked, float("-inf"))
        p = gnnsparse.edge_softmax(a, scores)
        assert (p[masked] == 0).all()
        plain, exact = (gnnsparse.edge_softmax(a, s, impl="reference") for s in (scores, scores.double()))
        assert_accurate(p, plain, exact)


@pytest.mark.usefixtures("copyless")
@pytest.mark.parametrize("lanes", GRAPHS)
def test_nan_stays_in_its_row_and_huge_scores_do_not_overflow(lanes: int | str) -> None:
    a = make(GRAPHS[lanes](), "cpu")
    row = a.indices()[0]
    chosen = row == row.bincount().argmax()
    scores = torch.randn(a.nnz) * 1e4 + 1e30
    check(a, scores)
    sums, plain = (
        torch.zeros(a.shape[0], dtype=torch.float64).index_add_(0, row, p.double())
        for p in (gnnsparse.edge_softmax(a, scores, impl=impl) for impl in ("auto", "reference"))
    )
    assert_accurate(sums, plain, (a.kernels.csr.degrees > 0).double())
    scores[chosen.nonzero()[-1]] = float("nan")
    p = gnnsparse.edge_softmax(a, scores)
    assert p[chosen].isnan().all()
    assert p[~chosen].isfinite().all()


@given(
    rows=st.integers(1, 40),
    cols=st.integers(1, 80),
    density=st.sampled_from([0.0, 0.1, 0.9]),
    seed=st.integers(0, 2**20),
)
def test_property(copyless: RunningPath, rows: int, cols: int, density: float, seed: int) -> None:
    a = make(random_graph(rows, cols, density, seed=seed), "cpu")
    scores = 4 * torch.randn(a.nnz, generator=torch.Generator().manual_seed(seed))
    check(a, scores)
    check_gradient(a, scores)
