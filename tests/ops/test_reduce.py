"""The mean, the maximum and the minimum in place of SpMM's sum, with their gradients, against float64."""

from __future__ import annotations

import pytest
import torch

import gnnsparse
from gnnsparse.formats.policy import TILE_POLICY
from gnnsparse.plan import Plan
from gnnsparse.testing import assert_accurate, random_graph
from tests.helpers import FREE_FORMATS, has_precision, make
from tests.ops.conftest import Place
from tests.ops.reductions import compare, on_grid

REDUCTIONS = ("mean", "max", "min")


def scattered(a: gnnsparse.SparseOperand, x: torch.Tensor, values: torch.Tensor, reduce: str) -> torch.Tensor:
    """The result by torch.scatter_reduce."""
    row, col = a.indices().cpu()
    terms = x[col] * values.reshape(-1, *[1] * (x.dim() - 1))
    at = row.reshape(-1, *[1] * (x.dim() - 1)).expand(terms.shape)
    kind = {"mean": "mean", "max": "amax", "min": "amin"}[reduce]
    return x.new_zeros(a.shape[0], *x.shape[1:]).scatter_reduce(0, at, terms, kind, include_self=False)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("width", [1, 7, 8, 33, 64, 100, 128, 200])
def test_matches_scatter_reduce(device: str, reduce: str, precision: str, width: int) -> None:
    graph = random_graph(150, 130, 0.06, weighted=False, hubs=2, empty_rows=0.2)
    a = make(graph, device, precision=precision, reorder="degree")
    x, values = on_grid(130, width), on_grid(a.nnz, seed=1, step=0.5, most=3)
    ones = torch.ones(a.nnz)
    for weights, given_values in ((ones, None), (values, values)):
        arguments = [t.to(device) for t in (x, given_values) if t is not None]
        y = gnnsparse.spmm(a, *arguments, reduce=reduce)
        exact = scattered(a, x.double(), weights.double(), reduce)
        assert y.dtype == x.dtype
        assert_accurate(y.cpu(), scattered(a, x, weights, reduce), exact)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("name", FREE_FORMATS)
@pytest.mark.parametrize("weights", [None, "gcn", "mean", "random"])
def test_every_format_and_weight(device: str, reduce: str, name: str, weights: str | None) -> None:
    graph = random_graph(90, 90, 0.08, weighted=weights == "random", hubs=2, empty_rows=0.1)
    values = None if weights == "random" else weights
    for precision in ("fp32", "fp16"):
        a = make(graph, device, precision=precision, format=name, values=values)
        x = torch.randn(90, 40)
        y = gnnsparse.spmm(a, x.to(device), reduce=reduce)
        plain = gnnsparse.spmm(a, x.to(device), reduce=reduce, impl="reference")
        exact = gnnsparse.spmm(a, x.double().to(device), reduce=reduce, impl="reference")
        assert_accurate(y, plain, exact, floor=2**-9 if precision == "fp16" else None)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("window", Plan("window", tile_limit=1)),
        ("csr", Plan("csr", 8, 32, row_limit=9)),
        ("csr", Plan("csr", 8, 8, group=20)),
        ("csr", Plan("panel", height=16, tile_limit=1)),
        ("csr", Plan("panel", height=32)),
        ("rs-tile", Plan("window", policy=TILE_POLICY)),
    ],
)
@pytest.mark.parametrize("weights", [None, "gcn", "random"])
def test_every_kernel_of_the_mean(
    gpu_place: Place, precision: str, name: str, plan: Plan, weights: str | None
) -> None:
    if (plan.kernel == "window" and precision == "fp32") or not has_precision(name, precision):
        pytest.skip("the window kernel runs on Tensor Cores, and rs-tile in the precision of its paper")
    graph = random_graph(60, 60, 0.1, weighted=weights == "random", hubs=2, empty_rows=0.2)
    values = None if weights == "random" else weights
    a = make(graph, gpu_place.device, precision=precision, format=name, values=values, reorder="degree")
    compare(gnnsparse.spmm, a, [on_grid(60, 40)], reduce="mean", plan=plan)
    if plan.kernel != "panel" and a.kernels.blocked is None:
        compare(gnnsparse.spmm, a, [on_grid(60, 40), on_grid(a.nnz)], reduce="mean", plan=plan)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_mean_of_many_does_not_overflow(device: str, precision: str) -> None:
    graph = random_graph(2, 400, 1.0, weighted=False)
    a = make(graph, device, precision=precision)
    x = torch.full((400, 9), 1000.0, dtype=torch.float16, device=device)
    assert torch.equal(gnnsparse.spmm(a, x, reduce="mean"), x[:2])


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_ties_go_to_the_first_nonzero(device: str, reduce: str) -> None:
    a = make(random_graph(12, 300, 0.5, weighted=False, hubs=2), device)
    x = torch.ones(300, 5, device=device, requires_grad=True)
    gnnsparse.spmm(a, x, reduce=reduce).sum().backward()
    row, col = a.indices().cpu()
    first = torch.stack([col[row == r].min() for r in range(12)])
    assert torch.equal(x.grad[:, 0].cpu(), torch.bincount(first, minlength=300).float())


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("limit", [9, 1000])
def test_nan_and_infinity(place: Place, reduce: str, precision: str, limit: int) -> None:
    """NaN stays in its rows; rows of one infinity are that, with a gradient; cut rows leave no trace."""
    a = make(random_graph(40, 130, 0.1, weighted=False, hubs=2), place.device, precision=precision)
    x = on_grid(130, 11)
    x[7], x[20:90, 4], x[:, 5], x[:, 6] = torch.nan, torch.inf, -torch.inf, torch.inf
    plan, want = Plan("csr", 8, 32, row_limit=limit), scattered(a, x, torch.ones(a.nnz), reduce)
    leaf, reference = (x.to(place.device).requires_grad_() for _ in range(2))
    y = gnnsparse.spmm(a, leaf, reduce=reduce, plan=plan)
    torch.testing.assert_close(y.detach().cpu(), want, rtol=0, atol=0, equal_nan=True)
    y.sum().backward()
    gnnsparse.spmm(a, reference, reduce=reduce, impl="reference").sum().backward()
    torch.testing.assert_close(leaf.grad, reference.grad, rtol=0, atol=0, equal_nan=True)
