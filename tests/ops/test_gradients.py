"""Gradients against float64 autograd on dense matrices."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import gnnsparse
from gnnsparse.testing import assert_accurate, assert_all_accurate, random_graph
from tests.helpers import at_nonzeros, dense_matrix, make

FORMATS = ("csr", "window")


def dense_with(a: gnnsparse.SparseOperand, values: torch.Tensor) -> torch.Tensor:
    row, col = a.indices().cpu()
    return torch.zeros(a.shape, dtype=values.dtype).index_put((row, col), values)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("weights", [None, "gcn", "mean"])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("width", [5, 64, 136])
def test_spmm_of_x(
    device: str, precision: str, name: str, weights: str | None, symmetric: bool, width: int
) -> None:
    graph = random_graph(90, 90, 0.08, weighted=weights is None, hubs=2, symmetric=symmetric)
    a = make(graph, device, precision=precision, format=name, values=weights)
    x = torch.randn(90, width)
    g = torch.randn(90, width)
    got = torch.autograd.grad(a @ (leaf := x.to(device).requires_grad_()), leaf, g.to(device))[0]
    plain = gnnsparse.spmm(a.T, g.to(device), impl="reference")
    assert_accurate(got, plain, dense_matrix(graph, weights).T @ g.double())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("width", [5, 64, 136])
def test_edge_values_and_scores(device: str, precision: str, name: str, width: int) -> None:
    """A plain backward rounds what it multiplies: A^T with rounded values, dY and X rounded."""
    a = make(random_graph(70, 110, 0.1, hubs=2, empty_rows=0.1), device, precision=precision, format=name)
    x, q, g = (torch.randn(rows, width, device=device) for rows in (110, 70, 70))
    v, e = torch.randn(2, a.nnz, device=device)
    leaves = x_leaf, q_leaf, v_leaf = [t.clone().requires_grad_() for t in (x, q, v)]
    got = (
        *torch.autograd.grad(gnnsparse.spmm(a, x_leaf, v_leaf), leaves[::2], g),
        *torch.autograd.grad(gnnsparse.sddmm(a, q_leaf, x_leaf), leaves[1::-1], e),
    )
    product = partial(gnnsparse.spmm, impl="reference")
    plain = (
        product(a.T, g, a.transpose_values(v)), gnnsparse.sddmm(a, g, x, impl="reference"),
        product(a, x, e), product(a.T, q, a.transpose_values(e)),
    )  # fmt: skip
    x, q, g, v, e = (t.cpu().double() for t in (x, q, g, v, e))
    values, grads = dense_with(a, v), dense_with(a, e)
    exact = values.T @ g, at_nonzeros(a, g @ x.T), grads @ x, grads.T @ q
    assert_all_accurate(got, plain, exact)


def test_expanded_gradients(device: str) -> None:
    """sum() sends an expanded gradient: raw addresses would read beyond its one element."""
    a = make(random_graph(60, 60, 0.1, weighted=False), device)
    x, q = torch.randn(2, 60, 24, device=device)
    x, q, v = (t.requires_grad_() for t in (x, q, torch.randn(a.nnz, device=device)))
    ones, of_edges = torch.ones(60, 24, device=device), a.transpose_values(v.detach())
    (found,) = torch.autograd.grad(gnnsparse.spmm(a, x, v).sum(), x)
    assert torch.equal(found, gnnsparse.spmm(a.T, ones, of_edges))
    (found,) = torch.autograd.grad((a @ x).sum(), x)
    assert torch.equal(found, a.T @ ones)
    (found,) = torch.autograd.grad(gnnsparse.sddmm(a, q, q).sum(), q)
    assert torch.isfinite(found).all()
