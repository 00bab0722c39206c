"""Gradients against float64 autograd on dense matrices."""

from __future__ import annotations

import pytest
import torch

import gnnsparse
from gnnsparse.testing import assert_accurate, assert_all_accurate, random_graph
from tests.helpers import dense_matrix, make

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
def test_spmm_of_values(device: str, precision: str, name: str, width: int) -> None:
    graph = random_graph(70, 110, 0.1, weighted=False, hubs=2, empty_rows=0.1)
    a = make(graph, device, precision=precision, format=name)
    x, v, g = torch.randn(110, width), torch.randn(a.nnz), torch.randn(70, width)

    def grads(impl: str) -> tuple[torch.Tensor, ...]:
        leaves = [t.to(device).requires_grad_() for t in (x, v)]
        return torch.autograd.grad(gnnsparse.spmm(a, *leaves, impl=impl), leaves, g.to(device))

    exact_x, exact_v = (t.double().requires_grad_() for t in (x, v))
    exact = torch.autograd.grad(dense_with(a, exact_v) @ exact_x, (exact_x, exact_v), g.double())
    # A plain backward rounds what it multiplies: A^T with rounded values, dY and X rounded.
    plain_x = gnnsparse.spmm(a.T, g.to(device), a.transpose_values(v.to(device)), impl="reference")
    plain_v = gnnsparse.sddmm(a, g.to(device), x.to(device), impl="reference")
    assert_all_accurate(grads("auto"), (plain_x, plain_v), exact)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("d", [5, 64, 136])
def test_sddmm(device: str, precision: str, name: str, d: int) -> None:
    graph = random_graph(70, 110, 0.1, hubs=2, empty_rows=0.1)
    a = make(graph, device, precision=precision, format=name)
    q, k, g = torch.randn(70, d), torch.randn(110, d), torch.randn(a.nnz)
    leaves = [t.to(device).requires_grad_() for t in (q, k)]
    got = torch.autograd.grad(gnnsparse.sddmm(a, *leaves), leaves, g.to(device))
    dense = dense_with(a, g.double())
    plain_q = gnnsparse.spmm(a, k.to(device), g.to(device), impl="reference")
    plain_k = gnnsparse.spmm(a.T, q.to(device), a.transpose_values(g.to(device)), impl="reference")
    assert_accurate(got[0], plain_q, dense @ k.double())
    assert_accurate(got[1], plain_k, dense.T @ q.double())


def test_expanded_gradients(device: str) -> None:
    """sum() sends an expanded gradient: raw addresses would read beyond its one element."""
    a = make(random_graph(60, 60, 0.1, weighted=False), device)
    x = torch.randn(60, 24, device=device, requires_grad=True)
    v = torch.randn(a.nnz, device=device, requires_grad=True)
    gnnsparse.spmm(a, x, v).sum().backward()
    ones = torch.ones(60, 24, device=device)
    assert torch.equal(x.grad, gnnsparse.spmm(a.T, ones, a.transpose_values(v.detach())))
    x.grad = None
    (a @ x).sum().backward()
    assert torch.equal(x.grad, a.T @ ones)
    q = torch.randn(60, 24, device=device, requires_grad=True)
    gnnsparse.sddmm(a, q, q).sum().backward()
    assert torch.isfinite(q.grad).all()
