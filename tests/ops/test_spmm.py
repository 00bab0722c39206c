"""spmm against float64, on every device, precision, format and shape of work list."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse.formats import format_spec
from gnnsparse.formats.convert import convert
from gnnsparse.plan import Plan, WindowPlan
from gnnsparse.plan.window import BALANCES
from gnnsparse.precision import Precision, round_operand
from gnnsparse.preprocess.reorder import REORDERINGS
from gnnsparse.runtime.device import NARROW_WIDTH
from gnnsparse.testing import assert_accurate, random_graph
from tests.helpers import (
    FORMAT_PRECISIONS,
    FORMATS,
    PRECISIONS,
    ROUNDING,
    cut_at,
    dense_matrix,
    make,
    plain_product,
    precision_for,
    product_scale,
)
from tests.ops.conftest import Place

WIDTHS = (1, 7, 8, 33, 64, 100, 128, 200)


def check(a: gnnsparse.SparseOperand, dense: torch.Tensor, x: torch.Tensor, **options: object) -> None:
    y = gnnsparse.spmm(a, x.to(a.device), **options)
    assert y.dtype == x.dtype
    # A handful of roundings may cancel in the plain run and not in ours: one of each operand is allowed.
    floor = max(ROUNDING[a.precision], 1e-6) if y.numel() < 1000 else None
    plain, exact = plain_product(dense, x, a.precision), dense @ x.double()
    assert_accurate(y, plain, exact, floor=floor, scale=product_scale(dense, x))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("weights", [None, "gcn", "mean"])
@pytest.mark.parametrize("width", WIDTHS)
def test_matches_float64(device: str, precision: str, weights: str | None, width: int) -> None:
    graph = random_graph(150, 150, 0.06, weighted=False, hubs=2, empty_rows=0.1)
    a = make(graph, device, values=weights, precision=precision)
    check(a, dense_matrix(graph, weights), torch.randn(150, width))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("name", "precision"), FORMAT_PRECISIONS)
@pytest.mark.parametrize("shape", [(150, 90), (61, 300), (7, 3), (1, 1), (40, 1)])
def test_every_format(device: str, precision: str, name: str, shape: tuple[int, int]) -> None:
    graph = random_graph(*shape, 0.15, hubs=1, empty_rows=0.1)
    a = make(graph, device, precision=precision, format=name)
    for width in (1, 40, 128):
        check(a, dense_matrix(graph, None), torch.randn(shape[1], width))
        check(a.T, dense_matrix(graph, None).T, torch.randn(shape[0], width))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    ("name", "panel"),
    [("hrpb", 16), ("hrpb", 32), ("cvse", 8), ("cvse", 16), ("me-bcrs", 8), ("me-bcrs", 16)],
)
def test_panels_that_are_asked_for(device: str, name: str, panel: int) -> None:
    graph = random_graph(150, 90, 0.1)
    a = make(graph, device, precision=precision_for(name), format=name, panel=panel)
    assert a.kernels.require_blocked().spec.panel == panel
    check(a, dense_matrix(graph, None), torch.randn(90, 40))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("width", [1, 24, 64, 130])
@pytest.mark.parametrize("lanes", [(1, 1), (1, 2), (2, 4), (4, 32), (8, 8), (16, 32), (32, 32)])
def test_every_csr_plan(device: str, precision: str, width: int, lanes: tuple[int, int]) -> None:
    """Any lane layout and any cut of long rows gives the same product."""
    graph = random_graph(70, 400, 0.05, hubs=3)
    a = make(graph, device, precision=precision)
    for limit in (8, 50, 10_000):
        plan = Plan("csr", *lanes, row_limit=limit)
        check(a, dense_matrix(graph, None), torch.randn(400, width), plan=plan)


def weighted_operand(
    device: str, nodes: int, density: float, weights: str | None, hubs: int = 2, **options: Any
) -> tuple[gnnsparse.SparseOperand, torch.Tensor]:
    """A square operand, with "random" weights or those of a normalisation, and its dense matrix."""
    random = weights == "random"
    graph = random_graph(nodes, nodes, density, weighted=random, hubs=hubs, empty_rows=0.2)
    weights = None if random else weights
    return make(graph, device, values=weights, reorder="degree", **options), dense_matrix(graph, weights)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("weights", [None, "gcn", "random"])
@pytest.mark.parametrize("lanes", [1, 8, 32])
@pytest.mark.parametrize("group", [1, 20, 10_000])
def test_every_group_of_rows(
    device: str, precision: str, weights: str | None, lanes: int, group: int
) -> None:
    a, dense = weighted_operand(device, 120, 0.04, weights, precision=precision)
    for limit, width in ((8, 40), (10_000, 130)):
        plan = Plan("csr", lanes, lanes, row_limit=limit, group=group)
        check(a, dense, torch.randn(120, width), plan=plan)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("weights", [None, "gcn", "random"])
@pytest.mark.parametrize("group", [1, 60, 240, 10_000])
def test_groups_of_few_columns(device: str, precision: str, weights: str | None, group: int) -> None:
    """Rows of hundreds of nonzeros and of none, cut and whole."""
    a, dense = weighted_operand(device, 350, 0.02, weights, hubs=3, precision=precision)
    for limit, prescale in ((8, True), (200, False), (10_000, weights != "gcn")):
        plan = Plan("csr", row_limit=limit, group=group, narrow=True, prescale=prescale)
        for width in (1, 2, 7, 16, 31, NARROW_WIDTH):
            check(a, dense, torch.randn(350, width), plan=plan)
            check(a, dense, torch.randn(350, width + 3)[:, 3:].to(a.precision.storage), plan=plan)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("group", "limit", "narrow"),
    [
        *((group, 10_000, False) for group in (0, 1, 20)),
        (1, 10_000, True), (100, 10_000, True), (100, 20, True),
    ],
)  # fmt: skip
def test_infinity_stays_in_its_rows(
    place: Place, precision: str, group: int, limit: int, narrow: bool
) -> None:
    """A csr batch also holds nonzeros of neighbouring rows."""
    plan = Plan("csr", 4, 4 if group else 32, row_limit=limit, group=group, narrow=narrow)
    graph = random_graph(80, 80, 0.05, hubs=1, empty_rows=0.1)
    a = make(graph, place.device, precision=precision)
    dense = dense_matrix(graph, None)
    without = dense[:, 3] == 0
    assert 0 < int(without.sum()) < 80
    for width in (1, 7) if narrow else (16,):
        x = torch.randn(80, width)
        plain, exact = plain_product(dense[without], x, precision), dense[without] @ x.double()
        x[3] = torch.inf
        y = gnnsparse.spmm(a, x.to(place.device), plan=plan).cpu()
        assert_accurate(y[without], plain, exact)
        assert not y[~without].isfinite().any()
    assert place.ran("cuda_spmm_csr")


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("prescale", [True, False])
def test_rank_one_weights_either_way(device: str, precision: str, prescale: bool) -> None:
    graph = random_graph(90, 90, 0.1, weighted=False, hubs=2)
    a = make(graph, device, precision=precision, values="gcn", reorder="degree")
    check(a, dense_matrix(graph, "gcn"), torch.randn(90, 72), plan=Plan("csr", 16, 32, prescale=prescale))


@pytest.mark.gpu
@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    ("name", "precision"), [case for case in FORMAT_PRECISIONS if case[0] != "csr" and case[1] != "fp32"]
)
@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_every_window_cut(precision: str, name: str, limit: int) -> None:
    graph = random_graph(70, 400, 0.05, hubs=3)
    a = make(graph, "cuda", precision=precision, format=name)
    own = a.plan(100)  # of a paper's format, with the paper's policy
    plan = replace(own if isinstance(own, WindowPlan) else WindowPlan(), tile_limit=limit)
    check(a, dense_matrix(graph, None), torch.randn(400, 100), plan=plan)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("density", [0.0, 0.02, 0.3, 1.0])
def test_entries_are_those_of_the_cpu(precision: str, density: float) -> None:
    graph = random_graph(150, 300, density, hubs=2 if density else 0, empty_rows=0.1)
    assert graph.values is not None
    spec = format_spec("panel-values", precision, panel=32)
    values = round_operand(graph.values, Precision.parse(precision))
    here = convert(graph.csr, spec, values)
    there = convert(graph.csr.to(torch.device("cuda")), spec, values.cuda())
    assert here.arrays.keys() == there.arrays.keys()
    for name, array in here.arrays.items():
        assert torch.equal(array, there.arrays[name].cpu()), name


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kernel", ["csr", "window"])
def test_edge_values_of_the_call(device: str, precision: str, kernel: str) -> None:
    if kernel == "window" and (device == "cpu" or precision == "fp32"):
        pytest.skip("the window kernel runs on Tensor Cores")
    graph = random_graph(90, 200, 0.1, weighted=False, hubs=2)
    a = make(graph, device, precision=precision, format="window", values="mean")
    values = torch.randn(a.nnz)
    dense = torch.zeros(90, 200, dtype=torch.float64)
    row, col = a.indices().cpu()
    dense[row, col] = values.double()
    x = torch.randn(200, 72)
    for limit in (2, 1000):
        plan = cut_at(Plan(kernel), limit, 256)
        y = gnnsparse.spmm(a, x.to(device), values.to(device), plan=plan)
        assert_accurate(y.cpu(), plain_product(dense, x, precision), dense @ x.double())


@pytest.mark.parametrize("reorder", REORDERINGS[1:])
@pytest.mark.parametrize("name", ["csr", "window", "rs-tile", "hrpb"])
def test_row_order_is_folded_into_the_result(device: str, reorder: str, name: str) -> None:
    graph = random_graph(140, 140, 0.05, hubs=2, empty_rows=0.05)
    a = make(graph, device, precision=precision_for(name), reorder=reorder, format=name)
    dense = dense_matrix(graph, None)
    check(a, dense, torch.randn(140, 32))
    check(a.T, dense.T, torch.randn(140, 32))


@pytest.mark.parametrize("reorder", ["none", "row-shuffle", "jaccard", "tca", "auto"])
@pytest.mark.parametrize("name", ["me-bcrs", "tiled-csr"])
def test_row_orders_of_matrices_that_are_not_square(device: str, reorder: str, name: str) -> None:
    graph = random_graph(90, 140, 0.05, hubs=2, empty_rows=0.05)
    a = make(graph, device, precision="fp16", reorder=reorder, format=name)
    dense = dense_matrix(graph, None)
    check(a, dense, torch.randn(140, 32))
    check(a.T, dense.T, torch.randn(90, 32))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("balance", BALANCES)
@pytest.mark.parametrize("name", [name for name in FORMATS if name != "csr"])
def test_every_balance(device: str, balance: str, name: str) -> None:
    """The plan's own cuts; sums are added in a fixed order, so that a second run gives the same bits."""
    graph = random_graph(300, 4000, 0.004, hubs=3, empty_rows=0.1)
    a = make(graph, device, precision=precision_for(name), format=name, balance=balance)
    x = torch.randn(4000, 100)
    check(a, dense_matrix(graph, None), x)
    check(a.T, dense_matrix(graph, None).T, torch.randn(300, 100))
    assert torch.equal(a @ x.to(device), a @ x.to(device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_result_has_the_dtype_of_x(device: str, precision: str, dtype: torch.dtype) -> None:
    graph = random_graph(60, 60, 0.1)
    a = make(graph, device, precision=precision)
    check(a, dense_matrix(graph, None), torch.randn(60, 48).to(dtype))


def test_any_strides(device: str) -> None:
    graph = random_graph(50, 80, 0.1)
    a = make(graph, device, precision="fp16")
    big = torch.randn(160, 90).to(device)
    views = {
        "transposed": torch.randn(33, 80).to(device).T,
        "columns": big[:80, 3:40],
        "rows": big[::2, :64],
        "offset": big.flatten()[1 : 1 + 80 * 64].view(80, 64),
        "expanded row": torch.randn(1, 40).to(device).expand(80, 40),
        "expanded column": torch.randn(80, 1).to(device).expand(80, 40),
        "reversed": big[:80].flip(0),
    }
    for name, x in views.items():
        want = a @ x.clone(memory_format=torch.contiguous_format)
        assert torch.equal(a @ x, want), name


def test_vector(device: str) -> None:
    graph = random_graph(50, 80, 0.1)
    a = make(graph, device)
    x = torch.randn(80).to(device)
    assert (a @ x).shape == (50,)
    assert torch.equal(a @ x, (a @ x[:, None])[:, 0])


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (4, 4), (1, 1)])
@pytest.mark.parametrize("name", FORMATS)
def test_matrices_without_nonzeros(device: str, shape: tuple[int, int], name: str) -> None:
    graph = random_graph(*shape, 0.0)
    a = make(graph, device, precision=precision_for(name), format=name)
    y = a @ torch.randn(shape[1], 16, device=device)
    assert torch.equal(y.cpu(), torch.zeros(shape[0], 16))
    assert (a.T @ torch.randn(shape[0], 0, device=device)).shape == (shape[1], 0)


@given(
    rows=st.integers(1, 70),
    cols=st.integers(1, 70),
    density=st.sampled_from([0.0, 0.02, 0.2, 0.9]),
    width=st.integers(1, 70),
    case=st.sampled_from(FORMAT_PRECISIONS),
    weights=st.sampled_from([None, "mean"]),
    weighted=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_property(
    device: str, rows: int, cols: int, density: float, width: int, case: tuple[str, str],
    weights: str | None, weighted: bool, seed: int,
) -> None:  # fmt: skip
    name, precision = case
    graph = random_graph(rows, cols, density, seed=seed, weighted=weighted and weights is None)
    a = make(graph, device, precision=precision, format=name, values=weights)
    x = torch.randn(cols, width, generator=torch.Generator().manual_seed(seed))
    check(a, dense_matrix(graph, weights), x)
    back = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    check(a.T, dense_matrix(graph, weights).T, back)
