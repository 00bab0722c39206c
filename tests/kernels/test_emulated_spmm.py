"""The CUDA sources of SpMM, run on the CPU, against float64."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest
import torch

from gnnsparse import SparseOperand
from gnnsparse.plan import Plan
from gnnsparse.testing import random_graph
from tests import emulated
from tests.gpu_paths import RunningPath
from tests.helpers import PRECISIONS, dense_matrix, make
from tests.kernels.test_spmm import check, check_infinity


@pytest.fixture
def native(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> RunningPath:
    return emulated.install(monkeypatch, module)


def check_dtypes(a: SparseOperand, dense: torch.Tensor, widths: tuple[int, ...], plan: Plan) -> None:
    """Results in whole 16 bytes, and those that are not."""
    for width in widths:
        for dtype in {torch.float32, a.precision.storage}:
            check(a, dense, torch.randn(dense.shape[1], width).to(dtype), plan=plan)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("height", [16, 32])
@pytest.mark.parametrize("weights", [None, "gcn", "random"])
@pytest.mark.parametrize(("limit", "slices"), [(1, 1), (1000, 2)])
def test_panels(
    native: RunningPath, precision: str, height: int, weights: str | None, limit: int, slices: int
) -> None:
    """Panels in one piece and cut, one slice of X a warp and two; whole ones start anywhere."""
    random = weights == "random"
    graph = random_graph(70, 90, 0.06, weighted=random, hubs=2, empty_rows=0.2)
    weights = None if random else weights
    if weights == "gcn":
        graph = random_graph(90, 90, 0.06, weighted=False, hubs=2, empty_rows=0.2)
    a = make(graph, "cpu", precision=precision, values=weights, reorder="degree", format="window")
    once = slices == 1
    plan = Plan("panel", height=height, tile_limit=limit, slices=slices, longest_first=once, prescale=once)
    for at_once in (0, 3):
        check_dtypes(a, dense_matrix(graph, weights), (7, 64, 136), replace(plan, concurrent_panels=at_once))
    assert "cuda_spmm_panel" in native.called


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("weights", [None, "random"])
@pytest.mark.parametrize(("lanes", "group"), [(1, 0), (8, 0), (8, 20), (32, 1), (32, 10_000)])
def test_csr(native: RunningPath, precision: str, weights: str | None, lanes: int, group: int) -> None:
    """Rows by themselves and in groups, long ones cut."""
    graph = random_graph(70, 70, 0.06, weighted=weights is not None, hubs=2, empty_rows=0.2)
    a = make(graph, "cpu", precision=precision, reorder="degree")
    for limit in (8, 10_000):
        plan = Plan("csr", lanes, 32 if group == 0 else lanes, row_limit=limit, group=group)
        check_dtypes(a, dense_matrix(graph, None), (7, 64), plan)
    assert "cuda_spmm_csr" in native.called


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", ["fp16", "bf16", "tf32"])
@pytest.mark.parametrize("limit", [1, 1000])
def test_windows(native: RunningPath, precision: str, limit: int) -> None:
    graph = random_graph(50, 90, 0.08, hubs=1, empty_rows=0.2)
    a = make(graph, "cpu", precision=precision, format="window")
    plan = Plan("window", tile_limit=limit)
    check_dtypes(a, dense_matrix(graph, None), (7, 64), plan)
    assert "cuda_spmm_window" in native.called


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("group", [0, 1, 20])
def test_infinity_stays_in_its_rows(native: RunningPath, precision: str, group: int) -> None:
    check_infinity("cpu", precision, group)
    assert "cuda_spmm_csr" in native.called
