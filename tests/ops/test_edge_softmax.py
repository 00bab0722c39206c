"""edge_softmax and its gradient against float64, with and without heads."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import gnnsparse
from gnnsparse import SparseGraph
from gnnsparse.testing import assert_accurate, random_graph, with_gradients
from tests.helpers import make
from tests.ops.conftest import Place

#: By the lanes of a GPU that compute a row, which softmax.cu chooses by the mean number of nonzeros; rows
#: with a block of threads each.
GRAPHS = {
    4: lambda: random_graph(70, 90, 0.03, empty_rows=0.2),
    8: lambda: random_graph(70, 90, 0.08, hubs=1, empty_rows=0.2),
    16: lambda: random_graph(61, 120, 0.1, hubs=2, empty_rows=0.1),
    32: lambda: random_graph(50, 90, 0.5, hubs=2, empty_rows=0.2),
    "block": lambda: random_graph(12, 2000, 0.01, hubs=3, empty_rows=0.2),
    "long": lambda: random_graph(12, 9000, 0.002, hubs=3),
}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def lanes_of(graph: SparseGraph) -> int:
    lanes = 4
    while lanes < 32 and lanes * graph.num_rows < graph.nnz:
        lanes *= 2
    return lanes


def exact_softmax(a: gnnsparse.SparseOperand, scores: torch.Tensor) -> torch.Tensor:
    row, scores = a.indices()[0].cpu(), scores.double().cpu()
    out = torch.zeros_like(scores)
    for r in row.unique():
        of_row = scores[row == r]
        weights = torch.softmax(of_row, 0)
        out[row == r] = torch.where((of_row == -torch.inf).all(0), 0.0, weights)
    return out


def check(a: gnnsparse.SparseOperand, scores: torch.Tensor) -> None:
    """The softmax, and its gradient, which has the weights of the forward pass in their own dtype."""
    scores = scores.to(a.device)
    plain = gnnsparse.edge_softmax(a, scores, impl="reference")
    weights, got = with_gradients(partial(gnnsparse.edge_softmax, a), [scores])
    assert weights.dtype == got.dtype == scores.dtype
    assert (weights[scores == -torch.inf] == 0).all()
    assert_accurate(weights.cpu(), plain.cpu(), exact_softmax(a, scores))
    probe = torch.randn(scores.shape, generator=torch.Generator().manual_seed(0)).to(weights)
    row = a.indices()[0]

    def of_row(x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(a.shape[0], *x.shape[1:]).index_add(0, row, x)[row]

    def formula(p: torch.Tensor, dp: torch.Tensor) -> torch.Tensor:
        return p * (dp - of_row(p * dp))

    p, dp = weights.double(), probe.double()
    # The difference cancels where one weight is nearly the whole row.
    size = p * (dp.square() + of_row((p * dp).square())).sqrt()
    assert_accurate(got, formula(weights.float(), probe.float()).to(scores.dtype), formula(p, dp), scale=size)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spread", [0.1, 3.0, 60.0])
@pytest.mark.parametrize("graph", GRAPHS)
def test_matches_float64(place: Place, dtype: torch.dtype, spread: float, graph: int | str) -> None:
    """Also of rows with some masked edges, and two with no other."""
    made = GRAPHS[graph]()
    longest, long = int(made.csr.degrees.max()), graph in ("block", "long")
    assert longest > 1024 if long else longest < 1024 and lanes_of(made) == graph
    a = make(made, place.device, reorder="degree")
    row, scores = a.indices()[0].cpu(), (spread * torch.randn(a.nnz)).to(dtype)
    check(a, scores)
    scores[::3] = scores[row == row[0]] = scores[row == row.bincount().argmax()] = -torch.inf
    check(a, scores)
    assert place.ran("cuda_softmax", "cuda_softmax_grad")


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [1, 2, 3, 8, 16, 33, 70])
def test_heads(place: Place, dtype: torch.dtype, heads: int) -> None:
    """Rows with some masked edges, one with no other, and long ones."""
    for graph in (random_graph(50, 60, 0.2, empty_rows=0.2), random_graph(5, 2000, 0.01, hubs=2)):
        a = make(graph, place.device)
        row = a.indices()[0].cpu()
        for spread in (0.1, 60.0):
            scores = (spread * torch.randn(a.nnz, heads)).to(dtype)
            scores[::7] = scores[row == row[0]] = -torch.inf
            check(a, scores)
    assert place.ran("cuda_softmax", "cuda_softmax_grad")


@pytest.mark.parametrize("graph", GRAPHS)
def test_nan_stays_in_its_row_and_head_and_huge_scores_do_not_overflow(
    place: Place, graph: int | str
) -> None:
    a = make(GRAPHS[graph](), place.device)
    row = a.indices()[0]
    chosen = row == row.bincount().argmax()
    for shape in ((a.nnz,), (a.nnz, 3)):
        scores = torch.randn(shape, device=a.device) * 1e4 + 1e30
        sums, plain = (
            torch.zeros(a.shape[0], *shape[1:], dtype=torch.float64).index_add_(
                0, row.cpu(), p.double().cpu()
            )
            for p in (gnnsparse.edge_softmax(a, scores, impl=impl) for impl in ("auto", "reference"))
        )
        exact = (torch.bincount(row.cpu(), minlength=a.shape[0]) > 0).double()
        assert_accurate(sums, plain, exact.reshape(-1, *[1] * (len(shape) - 1)).expand(sums.shape))
        before = gnnsparse.edge_softmax(a, scores)
        at = (chosen.nonzero()[-1, 0], *[1] * (len(shape) - 1))
        scores[at] = float("nan")
        p, spoiled = gnnsparse.edge_softmax(a, scores), torch.zeros(shape, dtype=torch.bool, device=a.device)
        spoiled[(chosen, *at[1:])] = True
        assert p[spoiled].isnan().all()
        assert torch.equal(p[~spoiled], before[~spoiled])
