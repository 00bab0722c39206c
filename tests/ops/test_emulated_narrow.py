"""The CUDA source of SpMM of few columns, whose nonzeros a warp takes side by side, run on the CPU."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import _native
from gnnsparse.plan import Plan
from gnnsparse.precision import Precision, dense_view
from gnnsparse.runtime.device import NARROW_WIDTH
from gnnsparse.testing import random_graph
from tests.gpu_paths import RunningPath
from tests.helpers import PRECISIONS, dense_matrix, make
from tests.ops.test_emulated_spmm import check_dtypes
from tests.ops.test_spmm import check, check_narrow_infinity


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("weights", [None, "gcn", "random"])
@pytest.mark.parametrize("group", [1, 60, 10_000])
def test_groups_of_a_warp(copyless: RunningPath, precision: str, weights: str | None, group: int) -> None:
    """Rows that fit into the warp's memory together, longer ones, those that are cut, and empty ones."""
    random = weights == "random"
    graph = random_graph(140, 140, 0.08, weighted=random, hubs=2, empty_rows=0.2)
    weights = None if random else weights
    a = make(graph, "cpu", precision=precision, values=weights, reorder="degree")
    dense, prescale = dense_matrix(graph, weights), weights is None or group == 60
    for limit, widths in ((3, (1, 5)), (50, (2, 31)), (10_000, (3, 7, NARROW_WIDTH))):
        plan = Plan("csr", row_limit=limit, group=group, narrow=True, prescale=prescale)
        check_dtypes(a, dense, widths, plan)
    assert "cuda_spmm_csr" in copyless.called


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_rows_longer_than_a_warp_has_room_for(native: RunningPath, precision: str) -> None:
    """One column leaves a warp room for 256 nonzeros: shorter and longer rows, cut and whole."""
    graph = random_graph(9, 700, 0.45, hubs=2, empty_rows=0.3)
    a, dense = make(graph, "cpu", precision=precision), dense_matrix(graph, None)
    for limit in (100, 257, 10_000):
        for group in (1, 1000):
            plan = Plan("csr", row_limit=limit, group=group, narrow=True)
            check(a, dense, torch.randn(700, 1), plan=plan)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_infinity_stays_in_its_rows(native: RunningPath, precision: str) -> None:
    check_narrow_infinity("cpu", precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_features_are_read_where_they_are(native: RunningPath, precision: str) -> None:
    """A column of a matrix, and rows that begin at any element, need no copy."""
    graph = random_graph(60, 60, 0.1, weighted=False)
    a, dense = make(graph, "cpu", precision=precision), dense_matrix(graph, None)
    whole = torch.randn(60, 11).to(a.precision.storage)
    for width in (1, 2, 7):
        native.called.clear()
        check(a, dense, whole[:, 3 : 3 + width], plan=Plan("csr", row_limit=1000, group=40, narrow=True))
        assert "cuda_pack" not in native.called


@given(
    rows=st.integers(1, 90),
    cols=st.integers(1, 300),
    density=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    empty_rows=st.sampled_from([0.0, 0.5]),
    weighted=st.booleans(),
    width=st.integers(1, NARROW_WIDTH),
    group=st.sampled_from([1, 30, 200, 3000]),
    limit=st.sampled_from([1, 9, 40, 300]),
    precision=st.sampled_from(PRECISIONS),
    seed=st.integers(0, 2**20),
)
def test_any_rows(
    native: RunningPath, rows: int, cols: int, density: float, empty_rows: float, weighted: bool, width: int,
    group: int, limit: int, precision: str, seed: int,
) -> None:  # fmt: skip
    graph = random_graph(rows, cols, density, seed=seed, empty_rows=empty_rows, weighted=weighted)
    a = make(graph, "cpu", precision=precision)
    x = torch.randn(cols, width, generator=torch.Generator().manual_seed(seed))
    check(a, dense_matrix(graph, None), x, plan=Plan("csr", row_limit=limit, group=group, narrow=True))


def test_what_it_does_not_take_is_refused(native: RunningPath, built: ModuleType) -> None:
    graph = random_graph(20, 20, 0.2)
    a, wide = make(graph, "cpu"), NARROW_WIDTH + 1
    for group, width in ((10, wide), (0, 1)):
        with pytest.raises(ValueError, match="plan: narrow takes group > 0 and at most 32 columns"):
            gnnsparse.spmm(a, torch.zeros(20, width), plan=Plan("csr", group=group, narrow=True))

    def spmm(width: int, groups: torch.Tensor | None) -> None:
        x = torch.zeros(20, width)
        built.cuda_spmm_csr(
            graph.csr.view, _native.StoredRows(), _native.WorkList(None, None, 0),
            _native.CsrLanes(1, 1, 1000, groups, narrow=True), dense_view(x), dense_view(x), width, None,
            Precision.FP32.code, 0,
        )  # fmt: skip

    with pytest.raises(ValueError, match="n: is 33; with narrow lanes at most 32 is accepted"):
        spmm(wide, torch.tensor([0, 20], dtype=torch.int32))
    with pytest.raises(ValueError, match="groups: are needed by narrow lanes"):
        spmm(1, None)
