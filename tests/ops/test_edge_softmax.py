"""edge_softmax against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse.testing import assert_accurate, random_graph
from tests.helpers import make


def exact_softmax(a: gnnsparse.SparseOperand, scores: torch.Tensor) -> torch.Tensor:
    row = a.indices()[0].cpu()
    out = torch.zeros(a.nnz, dtype=torch.float64)
    for r in row.unique():
        out[row == r] = torch.softmax(scores.double()[row == r], 0)
    return out


def check(a: gnnsparse.SparseOperand, scores: torch.Tensor) -> None:
    got = gnnsparse.edge_softmax(a, scores.to(a.device))
    plain = gnnsparse.edge_softmax(a, scores.to(a.device), impl="reference")
    assert got.dtype == scores.dtype
    assert_accurate(got.cpu(), plain.cpu(), exact_softmax(a, scores))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("spread", [0.1, 3.0, 60.0])
def test_matches_float64(device: str, dtype: torch.dtype, spread: float) -> None:
    a = make(random_graph(100, 120, 0.1, hubs=2, empty_rows=0.2), device)
    check(a, (spread * torch.randn(a.nnz)).to(dtype))


@pytest.mark.usefixtures("poisoned")
def test_long_rows(device: str) -> None:
    a = make(random_graph(12, 9000, 0.002, hubs=3), device)
    check(a, 5 * torch.randn(a.nnz))


def test_rows_sum_to_one_and_huge_scores_do_not_overflow(device: str) -> None:
    a = make(random_graph(50, 60, 0.2), device)
    scores, ones = torch.randn(a.nnz, device=device) * 1e4 + 1e30, torch.ones(60, device=device)
    sums, plain = (
        gnnsparse.spmm(a, ones, gnnsparse.edge_softmax(a, scores, impl=impl), impl=impl)
        for impl in ("auto", "reference")
    )
    assert_accurate(sums, plain, (a.kernels.csr.degrees > 0).double())


def test_masked_edges_get_zero(device: str) -> None:
    a = make(random_graph(40, 40, 0.2, empty_rows=0.1), device)
    row = a.indices()[0]
    scores = torch.randn(a.nnz, device=device)
    masked = (torch.arange(a.nnz, device=device) % 3 == 0) | (row == row[0])
    scores = scores.masked_fill(masked, float("-inf"))
    p = gnnsparse.edge_softmax(a, scores)
    assert (p[masked] == 0).all()
    plain, exact = (gnnsparse.edge_softmax(a, s, impl="reference") for s in (scores, scores.double()))
    assert_accurate(p, plain, exact)


def test_nan_stays_in_its_row(device: str) -> None:
    a = make(random_graph(40, 3000, 0.1), device)
    row = a.indices()[0]
    scores = torch.randn(a.nnz, device=device)
    scores[row == 3] = float("nan")
    p = gnnsparse.edge_softmax(a, scores)
    assert torch.isnan(p[row == 3]).all()
    assert torch.isfinite(p[row != 3]).all()


@given(
    rows=st.integers(1, 40),
    cols=st.integers(1, 80),
    density=st.sampled_from([0.0, 0.1, 0.9]),
    seed=st.integers(0, 2**20),
)
def test_property(device: str, rows: int, cols: int, density: float, seed: int) -> None:
    a = make(random_graph(rows, cols, density, seed=seed), device)
    check(a, 4 * torch.randn(a.nnz, generator=torch.Generator().manual_seed(seed)))
