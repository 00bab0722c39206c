"""sddmm against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseGraph, SparseOperand
from gnnsparse.plan import Plan
from gnnsparse.testing import assert_accurate, random_graph
from tests import emulated
from tests.gpu_paths import RunningPath
from tests.helpers import PRECISIONS, at_nonzeros, cut_at, make, product_scale
from tests.ops.conftest import Place, graphs


def check(a: SparseOperand, q: torch.Tensor, k: torch.Tensor, **options: object) -> None:
    out = gnnsparse.sddmm(a, q.to(a.device), k.to(a.device), **options)
    plain = gnnsparse.sddmm(a, q.to(a.device), k.to(a.device), impl="reference")
    assert out.dtype == q.dtype
    exact = at_nonzeros(a, q.double() @ k.double().T)
    assert_accurate(out, plain, exact, scale=at_nonzeros(a, product_scale(q, k.T)))


def operand(device: str, precision: str, name: str = "window") -> SparseOperand:
    """Rows of every length, long ones and empty ones, in another order than the caller's."""
    graph = random_graph(70, 90, 0.1, hubs=2, empty_rows=0.2)
    return make(graph, device, precision=precision, reorder="degree", format=name)


def check_dtypes(a: SparseOperand, d: int, plan: Plan) -> None:
    """Results of both sizes; rows of Q and K that are padded with NaN, and that are packed before."""
    for dtype in dict.fromkeys((torch.float32, a.precision.storage)):
        check(a, torch.randn(70, d).to(dtype), torch.randn(90, d).to(dtype), plan=plan)
    q, k = (emulated.padded(torch.randn(n, d), a.precision) for n in (70, 90))
    check(a, q, k, plan=plan)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("d", [1, 24, 45, 64, 72, 100, 136, 256])
def test_panels(gpu_place: Place, precision: str, d: int) -> None:
    """Q in registers, in 1, 2 and 4 slices of 128 bytes, and in shared memory; panels whole and cut."""
    a = operand(gpu_place.device, precision)
    for limit in (1, 3, 1000):
        check_dtypes(a, d, Plan("panel", height=16, tile_limit=limit, longest_first=limit == 3))
    assert gpu_place.ran("cuda_sddmm_panel")


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    ("name", "precision"),
    [*(("window", p) for p in ("fp16", "bf16", "tf32")), ("me-bcrs", "fp16"), ("me-bcrs", "tf32")],
)
@pytest.mark.parametrize("d", [1, 7, 32, 45, 128, 136])
def test_windows(gpu_place: Place, name: str, precision: str, d: int) -> None:
    """Q in registers, 32 and 128 features of it, and read again for every step; windows whole and cut."""
    a = operand(gpu_place.device, precision, name)
    for limit in (1, 3, 1000):
        check_dtypes(a, d, Plan("window", tile_limit=limit))
    assert gpu_place.ran("cuda_sddmm_window" if name == "window" else "cuda_sddmm_blocks")


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("lanes", [(1, 1), (2, 32), (4, 4), (16, 32), (32, 32)])
def test_csr(place: Place, precision: str, lanes: tuple[int, int]) -> None:
    """Lanes along the features, nonzeros side by side; long rows whole and cut."""
    a = operand(place.device, precision)
    for d in (1, 5, 7, 16, 32, 45, 64, 128, 150, 256) if place.path is None else (5, 64, 150):
        for limit in (20, 1000):
            check_dtypes(a, d, Plan("csr", *lanes, row_limit=limit))
    assert place.ran("cuda_sddmm_csr")


def test_reordered_and_transposed(device: str, precision: str) -> None:
    graph = random_graph(90, 90, 0.1, hubs=1)
    a = make(graph, device, precision=precision, reorder="metis")
    q, k = torch.randn(90, 24), torch.randn(90, 24)
    check(a, q, k)
    check(a.T, q, k)
    forward = gnnsparse.sddmm(a, q.to(device), k.to(device))
    assert torch.equal(a.transpose_values(forward), gnnsparse.sddmm(a.T, k.to(device), q.to(device)))


@given(
    graph=graphs(60, 100, empty_rows=0.1), d=st.integers(1, 140), limit=st.integers(1, 4),
    kernel=st.sampled_from(["csr", "window", "panel"]), precision=st.sampled_from(PRECISIONS),
)  # fmt: skip
@example(graph=random_graph(1, 1, 0.5, seed=266), d=80, limit=1, kernel="csr", precision="fp32")  # cancels
def test_property(
    anywhere: Place, graph: SparseGraph, d: int, limit: int, kernel: str, precision: str
) -> None:
    """A CPU ignores plans."""
    if kernel == "window" and precision == "fp32":
        precision = "tf32"  # the window kernel has no fp32
    a = make(graph, anywhere.device, precision=precision, format="csr" if kernel == "csr" else "window")
    q, k = (emulated.padded(torch.randn(n, d), precision) for n in a.shape)
    plan = Plan(kernel, height=16) if kernel == "panel" else Plan(kernel)
    check(a, q, k, plan=cut_at(plan, limit, 8 * limit))


def test_more_features_than_shared_memory_holds_are_refused(native: RunningPath) -> None:
    a = operand("cpu", "fp16")
    plan = Plan("panel", height=16)
    check(a, torch.randn(70, 42 * 64), torch.randn(90, 42 * 64), plan=plan)
    with pytest.raises(ValueError, match="d: too wide for the panel kernel"):
        gnnsparse.sddmm(a, torch.randn(70, 42 * 64 + 1), torch.randn(90, 42 * 64 + 1), plan=plan)
