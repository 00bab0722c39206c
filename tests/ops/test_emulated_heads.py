"""The CUDA sources over rows with heads, and of the maximum, run on the CPU, against float64."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseOperand, _native
from gnnsparse.formats.policy import TILE_POLICY
from gnnsparse.plan import Plan
from gnnsparse.precision import Precision, dense_view
from gnnsparse.testing import random_graph
from tests.gpu_paths import RunningPath
from tests.helpers import PRECISIONS, has_precision, make
from tests.reductions import compare, on_grid

REDUCTIONS = ("sum", "mean", "max", "min")
#: Lanes of a vector of features and of a row, and the longest row that is not cut.
PLANS = (
    None,
    Plan("csr", 1, 32, row_limit=8),
    Plan("csr", 2, 8, row_limit=50),
    Plan("csr", 8, 8, row_limit=9),
)
#: Heads and features of each: one vector of them, a part of one, and many.
SHAPES = ((2, 8), (3, 5), (16, 1), (2, 47), (5, 24))


def operand(precision: str, transposed: bool = False) -> SparseOperand:
    """40 x 130 with hubs among its rows; the transpose has them among its columns."""
    graph = random_graph(40, 130, 0.06, weighted=False, hubs=2, empty_rows=0.2)
    a = make(graph, "cpu", precision=precision)
    return a.T if transposed else a


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("transposed", [False, True])
def test_values_of_heads(copyless: RunningPath, precision: str, reduce: str, transposed: bool) -> None:
    """Every shape of heads, with both gradients; rows are cut and not."""
    a = operand(precision, transposed)
    for heads, width in SHAPES:
        for dtype in dict.fromkeys((torch.float32, a.precision.storage)):
            x = on_grid(a.shape[1], heads, width).to(dtype)
            values = on_grid(a.nnz, heads, seed=1, step=0.5, most=3).to(dtype)
            compare(gnnsparse.spmm, a, [x, values], reduce=reduce)
    for plan in PLANS:
        compare(gnnsparse.spmm, a, [x, values], reduce=reduce, plan=plan)
    assert "cuda_spmm_heads" in copyless.called
    assert ("cuda_spmm_extreme" in copyless.called) == (reduce in ("max", "min"))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("weighted", [False, True])
def test_extremes(
    copyless: RunningPath, precision: str, reduce: str, plan: Plan | None, weighted: bool
) -> None:
    for transposed in (False, True):
        a = operand(precision, transposed)
        for width in (1, 7, 64, 72):
            values = [on_grid(a.nnz, seed=1, step=0.5, most=3)] if weighted else []
            compare(gnnsparse.spmm, a, [on_grid(a.shape[1], width), *values], reduce=reduce, plan=plan)
    assert copyless.called >= {"cuda_spmm_extreme", "cuda_spmm_heads"}
    assert ("cuda_sddmm_heads" in copyless.called) == weighted


@pytest.mark.usefixtures("copyless", "poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("plan", PLANS)
def test_infinity_and_nan_in_extremes(precision: str, plan: Plan | None) -> None:
    """Rows that are cut, and neighbours in a batch; what is not taken leaves no trace."""
    a = operand(precision)
    x = on_grid(130, 9)
    x[7], x[20:90, 4], x[:, 5], x[:, 6] = torch.nan, torch.inf, -torch.inf, torch.inf
    for reduce in ("max", "min"):
        results = []
        for impl in ("auto", "reference"):
            leaf = x.clone().requires_grad_()
            y = gnnsparse.spmm(a, leaf, reduce=reduce, impl=impl, plan=plan)
            results.append((y.detach(), torch.autograd.grad(y, leaf, torch.ones_like(y))[0]))
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "format_and_plan",
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
    native: RunningPath, precision: str, format_and_plan: tuple[str, Plan], weights: str | None
) -> None:
    name, plan = format_and_plan
    if (plan.kernel == "window" and precision == "fp32") or not has_precision(name, precision):
        pytest.skip("the window kernel runs on Tensor Cores, and rs-tile in the precision of its paper")
    graph = random_graph(60, 60, 0.1, weighted=weights == "random", hubs=2, empty_rows=0.2)
    values = None if weights == "random" else weights
    a = make(graph, "cpu", precision=precision, format=name, values=values, reorder="degree")
    compare(gnnsparse.spmm, a, [on_grid(60, 40)], reduce="mean", plan=plan)
    if plan.kernel != "panel" and a.kernels.blocked is None:
        compare(gnnsparse.spmm, a, [on_grid(60, 40), on_grid(a.nnz)], reduce="mean", plan=plan)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("plan", PLANS)
def test_scores_of_heads(copyless: RunningPath, precision: str, plan: Plan | None) -> None:
    a = operand(precision)
    for heads, width in (*SHAPES, (4, 130)):
        for dtype in dict.fromkeys((torch.float32, a.precision.storage)):
            q, k = on_grid(40, heads, width).to(dtype), on_grid(130, heads, width, seed=1).to(dtype)
            compare(gnnsparse.sddmm, a, [q, k], plan=plan)
    assert copyless.called >= {"cuda_sddmm_heads", "cuda_spmm_heads"}


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("heads", [2, 3, 8, 33, 70])
def test_softmax_of_heads(copyless: RunningPath, heads: int) -> None:
    for graph in (random_graph(30, 60, 0.2, empty_rows=0.2), random_graph(5, 2000, 0.01, hubs=2)):
        a = make(graph, "cpu")
        scores = 3 * torch.randn(a.nnz, heads)
        scores[::7] = -torch.inf
        compare(gnnsparse.edge_softmax, a, [scores])
    assert copyless.called >= {"cuda_softmax", "cuda_softmax_grad"}


@given(
    rows=st.integers(1, 30),
    cols=st.integers(1, 100),
    density=st.sampled_from([0.0, 0.05, 0.9]),
    heads=st.integers(2, 17),  # one head takes other kernels, which copy
    width=st.integers(1, 40),
    precision=st.sampled_from(PRECISIONS),
    reduce=st.sampled_from(REDUCTIONS),
    plan=st.sampled_from(PLANS),
    seed=st.integers(0, 2**20),
)
def test_property(
    copyless: RunningPath, rows: int, cols: int, density: float, heads: int, width: int, precision: str,
    reduce: str, plan: Plan | None, seed: int,
) -> None:  # fmt: skip
    graph = random_graph(rows, cols, density, seed=seed, weighted=False, hubs=1, empty_rows=0.2)
    a = make(graph, "cpu", precision=precision)
    x = on_grid(cols, width, heads, seed=seed).movedim(2, 1)
    values = on_grid(a.nnz, heads, seed=seed + 1, step=0.5)
    compare(gnnsparse.spmm, a, [x, values], reduce=reduce, plan=plan)
    compare(gnnsparse.sddmm, a, [on_grid(rows, heads, width, seed=seed), x])


@pytest.mark.usefixtures("native")
def test_plans_of_other_kernels_are_refused() -> None:
    a = operand("fp16")
    x, values = torch.randn(130, 3, 8), torch.randn(a.nnz, 3)
    panel = Plan("panel", height=16)
    for call in (
        lambda: gnnsparse.spmm(a, x, values, plan=panel),
        lambda: gnnsparse.spmm(a, x[:, 0], reduce="max", plan=panel),
        lambda: gnnsparse.sddmm(a, torch.randn(40, 3, 8), x, plan=panel),
    ):
        with pytest.raises(ValueError, match=r"plan: got panel 16 with heads, .*; accepted: csr"):
            call()


def test_what_the_kernels_do_not_take_is_refused(built: ModuleType) -> None:
    csr = random_graph(6, 5, 0.5).csr
    work, lanes = _native.WorkList(None, None, 0), _native.CsrLanes(1, 32, 1000)
    code = Precision.FP32.code
    nnz = csr.nnz

    def spmm(**changed: object) -> None:
        given = {
            "a": csr.view, "rows": _native.StoredRows(values=torch.zeros(nnz, 2)), "work": work,
            "lanes": lanes, "x": dense_view(torch.zeros(5, 8)), "y": dense_view(torch.zeros(6, 6)),
            "heads": 2, "width": 3, "winners": None, "partial": None, "precision": code, "stream": 0,
        }  # fmt: skip
        built.cuda_spmm_heads(**{**given, **changed})

    def extreme(**changed: object) -> None:
        given = {
            "a": csr.view, "rows": _native.StoredRows(), "work": work, "lanes": lanes,
            "x": dense_view(torch.zeros(5, 8)), "y": dense_view(torch.zeros(6, 6)), "heads": 2,
            "width": 3, "largest": True, "winners": torch.zeros(6, 6, dtype=torch.int32), "partial": None,
            "partial_winners": None, "precision": code, "stream": 0,
        }  # fmt: skip
        built.cuda_spmm_extreme(**{**given, **changed})

    def sddmm(**changed: object) -> None:
        given = {
            "a": csr.view, "rows": _native.StoredRows(), "work": work, "lanes": lanes,
            "q": dense_view(torch.zeros(6, 8)), "k": dense_view(torch.zeros(5, 8)), "heads": 2,
            "width": 3, "winners": None, "out": torch.zeros(nnz, 2), "precision": code, "stream": 0,
        }  # fmt: skip
        built.cuda_sddmm_heads(**{**given, **changed})

    for call in (spmm, extreme, sddmm):
        call()
        with pytest.raises(ValueError, match="heads: must be at least 1"):
            call(heads=0)
        with pytest.raises(ValueError, match="width: must be at least 1"):
            call(width=0)
        with pytest.raises(ValueError, match=r"heads: and width have a product of 2\^31 or more"):
            call(heads=2**16, width=2**16)
        with pytest.raises(ValueError, match=r"winners: has .* bytes"):
            call(winners=torch.zeros(29, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"values: has .* bytes"):
        spmm(rows=_native.StoredRows(values=torch.zeros(nnz)))
    with pytest.raises(ValueError, match=r"x: has shape \(5, 6\); accepted: at least \(5, 7\)"):
        spmm(x=dense_view(torch.zeros(5, 6)))
    with pytest.raises(ValueError, match="y: has shape"):
        extreme(y=dense_view(torch.zeros(6, 5)))
    with pytest.raises(ValueError, match=r"out: has .* bytes"):
        sddmm(out=torch.zeros(nnz))
