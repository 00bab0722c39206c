"""sddmm against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse.plan import Plan
from gnnsparse.testing import assert_accurate, random_graph
from tests.helpers import PRECISIONS, at_nonzeros, cut_at, make, product_scale


def check(a: gnnsparse.SparseOperand, q: torch.Tensor, k: torch.Tensor, **options: object) -> None:
    out = gnnsparse.sddmm(a, q.to(a.device), k.to(a.device), **options)
    plain = gnnsparse.sddmm(a, q.to(a.device), k.to(a.device), impl="reference")
    assert out.dtype == q.dtype
    exact = at_nonzeros(a, q.double() @ k.double().T)
    assert_accurate(out, plain, exact, scale=at_nonzeros(a, product_scale(q, k.T)))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("d", [1, 7, 16, 32, 45, 64, 100, 128, 200, 256])
@pytest.mark.parametrize("kernel", ["csr", "window", "panel"])
def test_matches_float64(device: str, precision: str, d: int, kernel: str) -> None:
    if kernel != "csr" and device == "cpu":
        pytest.skip("only the csr kernel runs without Tensor Cores")
    if kernel == "window" and precision == "fp32":
        pytest.skip("the window kernel has no fp32")
    graph = random_graph(130, 170, 0.06, hubs=2, empty_rows=0.1)
    a = make(graph, device, precision=precision, format="window")
    q, k = torch.randn(130, d), torch.randn(170, d)
    for limit in (1, 3, 1000):
        height = {"height": 16} if kernel == "panel" else {}
        plan = cut_at(Plan(kernel, **height), limit, 8 * limit)
        check(a, q, k, plan=plan)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("lanes", [(1, 1), (2, 32), (4, 4), (16, 32), (32, 32)])
@pytest.mark.parametrize("d", [5, 64, 300])
def test_every_csr_plan(device: str, lanes: tuple[int, int], d: int) -> None:
    graph = random_graph(40, 300, 0.1, hubs=2)
    a = make(graph, device)
    check(a, torch.randn(40, d), torch.randn(300, d), plan=Plan("csr", *lanes, row_limit=20))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_reordered_and_transposed(device: str, precision: str) -> None:
    graph = random_graph(90, 90, 0.1, hubs=1)
    a = make(graph, device, precision=precision, reorder="metis")
    q, k = torch.randn(90, 24), torch.randn(90, 24)
    check(a, q, k)
    check(a.T, q, k)
    forward = gnnsparse.sddmm(a, q.to(device), k.to(device))
    assert torch.equal(a.transpose_values(forward), gnnsparse.sddmm(a.T, k.to(device), q.to(device)))


def test_any_strides_and_padding(device: str) -> None:
    """What lies beside the features, NaN say, must not reach the result."""
    graph = random_graph(50, 60, 0.1)
    a = make(graph, device, precision="fp16", format="window")
    wide = torch.full((60, 64), float("nan"), dtype=torch.float16, device=device)
    wide[:, :45] = torch.randn(60, 45)
    q = wide[:50, :45]
    out = gnnsparse.sddmm(a, q, wide[:, :45])
    assert torch.equal(out, gnnsparse.sddmm(a, q.clone(), wide[:, :45].clone()))
    assert torch.isfinite(out).all()


def test_twenty_runs_are_bitwise_equal(device: str) -> None:
    a = make(random_graph(200, 200, 0.05, hubs=3), device, precision="fp16")
    q, k = torch.randn(200, 96, device=device), torch.randn(200, 96, device=device)
    first = gnnsparse.sddmm(a, q, k)
    assert all(torch.equal(gnnsparse.sddmm(a, q, k), first) for _ in range(20))


@given(
    rows=st.integers(1, 60),
    cols=st.integers(1, 60),
    density=st.sampled_from([0.0, 0.05, 0.5]),
    d=st.integers(1, 80),
    precision=st.sampled_from(PRECISIONS),
    name=st.sampled_from(["csr", "window"]),
    seed=st.integers(0, 2**20),
)
@example(rows=1, cols=1, density=0.5, d=80, precision="fp32", name="csr", seed=266)  # terms that cancel
def test_property(
    device: str, rows: int, cols: int, density: float, d: int, precision: str, name: str, seed: int
) -> None:
    a = make(random_graph(rows, cols, density, seed=seed), device, precision=precision, format=name)
    generator = torch.Generator().manual_seed(seed)
    check(a, torch.randn(rows, d, generator=generator), torch.randn(cols, d, generator=generator))
