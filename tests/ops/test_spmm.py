"""spmm and `A @ X` against float64, on every device, precision, format and shape of work list."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseGraph
from gnnsparse.formats import format_spec
from gnnsparse.formats.convert import convert
from gnnsparse.plan import Plan
from gnnsparse.precision import Precision, round_operand
from gnnsparse.preprocess.reorder import REORDERINGS
from gnnsparse.testing import assert_accurate, random_graph
from tests import emulated
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
from tests.ops.conftest import Place, graphs

WIDTHS = (1, 7, 8, 33, 64, 100, 128, 200)


def check(a: gnnsparse.SparseOperand, dense: torch.Tensor, x: torch.Tensor, **options: object) -> None:
    y = gnnsparse.spmm(a, x.to(a.device), **options)
    assert y.dtype == x.dtype
    # A handful of roundings may cancel in the plain run and not in ours: one of each operand is allowed.
    floor = max(ROUNDING[a.precision], 1e-6) if y.numel() < 1000 else None
    plain, exact = plain_product(dense, x, a.precision), dense @ x.double()
    assert_accurate(y, plain, exact, floor=floor, scale=product_scale(dense, x))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("weights", [None, "gcn", "mean"])
@pytest.mark.parametrize("width", WIDTHS)
def test_matches_float64(device: str, precision: str, weights: str | None, width: int) -> None:
    graph = random_graph(150, 150, 0.06, weighted=False, hubs=2, empty_rows=0.1)
    a = make(graph, device, values=weights, precision=precision)
    check(a, dense_matrix(graph, weights), torch.randn(150, width))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    ("name", "precision", "panel"),
    [
        *((*of, None) for of in FORMAT_PRECISIONS),
        *product(["hrpb"], ["tf32"], [16, 32]),
        *product(["cvse", "me-bcrs"], ["fp16"], [8, 16]),
    ],
)
@pytest.mark.parametrize("shape", [(150, 90), (61, 300), (7, 3), (1, 1), (40, 1)])
def test_every_format(
    device: str, precision: str, name: str, panel: int | None, shape: tuple[int, int]
) -> None:
    graph = random_graph(*shape, 0.15, hubs=1, empty_rows=0.1)
    a = make(graph, device, precision=precision, format=name, panel=panel)
    assert panel is None or a.kernels.require_blocked().spec.panel == panel
    for width in (1, 40, 128):
        check(a, dense_matrix(graph, None), torch.randn(shape[1], width))
        check(a.T, dense_matrix(graph, None).T, torch.randn(shape[0], width))


def check_dtypes(
    a: gnnsparse.SparseOperand, dense: torch.Tensor, widths: tuple[int, ...], plan: Plan
) -> None:
    """Results in whole 16 bytes, and those that are not; X packed before, and with NaN behind its rows."""
    for width in widths:
        check(a, dense, emulated.padded(torch.randn(dense.shape[1], width), a.precision), plan=plan)
        for dtype in dict.fromkeys((torch.float32, a.precision.storage)):
            check(a, dense, torch.randn(dense.shape[1], width).to(dtype), plan=plan)


def weighted_operand(
    device: str, nodes: int, density: float, weights: str | None, hubs: int = 2, **options: Any
) -> tuple[gnnsparse.SparseOperand, torch.Tensor]:
    """A square operand, with "random" weights or those of a normalisation, and its dense matrix."""
    random = weights == "random"
    graph = random_graph(nodes, nodes, density, weighted=random, hubs=hubs, empty_rows=0.2)
    weights = None if random else weights
    return make(graph, device, values=weights, reorder="degree", **options), dense_matrix(graph, weights)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    ("name", "kernel", "precision"),
    [
        *(("window", "csr", p) for p in PRECISIONS), *(("window", "window", p) for p in PRECISIONS[1:]),
        ("me-bcrs", "policy", "fp16"), ("me-bcrs", "policy", "tf32"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("limit", [1, 3, 1000])
@pytest.mark.parametrize("reorder", ["none", "degree"])
def test_edge_values_of_the_call(
    anywhere: Place, name: str, kernel: str, precision: str, limit: int, reorder: str
) -> None:
    """A CPU ignores plans."""
    graph = random_graph(61, 300, 0.1, weighted=False, hubs=2, empty_rows=0.1)
    a = make(graph, anywhere.device, precision=precision, format=name, values="mean", reorder=reorder)
    values, index = torch.randn(a.nnz), tuple(a.indices().cpu())
    values[::7] = 0.0
    dense = torch.zeros(61, 300, dtype=torch.float64).index_put(index, values.double())
    for x in (torch.randn(300, 40), emulated.padded(torch.randn(300, 71), precision)):
        plan = None if kernel == "policy" else cut_at(Plan(kernel), limit, 8 * limit)
        y = gnnsparse.spmm(a, x.to(a.device), values.to(a.device), plan=plan)
        assert_accurate(y.cpu(), plain_product(dense, x, precision), dense @ x.double())
    assert anywhere.ran(f"cuda_spmm_{kernel}")


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


@pytest.mark.gpu
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


@pytest.mark.parametrize(
    ("name", "reorder", "shape"),
    [
        *product(("csr", "window", "rs-tile", "hrpb"), REORDERINGS[1:], [(140, 140)]),
        *product(("me-bcrs", "tiled-csr"), ("none", "row-shuffle", "jaccard", "tca", "auto"), [(90, 140)]),
    ],
)
def test_row_order_is_folded_into_the_result(
    device: str, name: str, reorder: str, shape: tuple[int, int]
) -> None:
    graph = random_graph(*shape, 0.05, hubs=2, empty_rows=0.05)
    a = make(graph, device, precision=precision_for(name), reorder=reorder, format=name)
    dense = dense_matrix(graph, None)
    check(a, dense, torch.randn(shape[1], 32))
    check(a.T, dense.T, torch.randn(shape[0], 32))


def test_vector(device: str) -> None:
    a, x = make(random_graph(50, 80, 0.1), device), torch.randn(80).to(device)
    assert (a @ x).shape == (50,)
    assert torch.equal(a @ x, (a @ x[:, None])[:, 0])
    for reduce in ("mean", "max", "min"):
        y = gnnsparse.spmm(a, x, reduce=reduce)
        assert torch.equal(y, gnnsparse.spmm(a, x[:, None], reduce=reduce)[:, 0])


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (4, 4), (1, 1)])
@pytest.mark.parametrize("name", FORMATS)
def test_matrices_without_nonzeros(device: str, shape: tuple[int, int], name: str) -> None:
    graph = random_graph(*shape, 0.0)
    a = make(graph, device, precision=precision_for(name), format=name)
    y = a @ torch.randn(shape[1], 16, device=device)
    assert torch.equal(y.cpu(), torch.zeros(shape[0], 16))
    assert (a.T @ torch.randn(shape[0], 0, device=device)).shape == (shape[1], 0)


@given(
    case=st.sampled_from(FORMAT_PRECISIONS), weights=st.sampled_from([None, "mean"]),
    graph=graphs(70, 70, (0.0, 0.02, 0.2, 0.9), weighted=st.booleans()), width=st.integers(1, 70),
)  # fmt: skip
def test_property(
    device: str, case: tuple[str, str], weights: str | None, graph: SparseGraph, width: int
) -> None:
    name, precision = case
    if weights == "mean":
        graph = replace(graph, values=None)
    a = make(graph, device, precision=precision, format=name, values=weights)
    check(a, dense_matrix(graph, weights), torch.randn(graph.num_cols, width))
    check(a.T, dense_matrix(graph, weights).T, torch.randn(graph.num_rows, width))


# X with leading dimensions, as torch.matmul has them.


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("lead", [(1,), (3,), (2, 3), (0,), (2, 0, 3), (110,)])
def test_leading_dimensions(device: str, precision: str, lead: tuple[int, ...]) -> None:
    graph = random_graph(70, 110, 0.1, weighted=False, hubs=1, empty_rows=0.1)
    a, matrix = make(graph, device, values="mean", precision=precision), dense_matrix(graph, "mean")
    x = torch.randn(*lead, 110, 12)
    y = a @ x.to(device)
    assert (y.shape, y.dtype) == ((*lead, 70, 12), x.dtype)
    assert y.is_contiguous()
    if y.numel() == 0:
        return
    plain, exact = plain_product(matrix, x, precision), matrix @ x.double()
    floor = max(ROUNDING[precision], 1e-6)
    assert_accurate(y, plain, exact, floor=floor, scale=product_scale(matrix, x))
    assert torch.equal(y, torch.matmul(a, x.to(device)))


@given(
    lead=st.lists(st.integers(0, 3), min_size=1, max_size=3), rows=st.integers(0, 9), cols=st.integers(0, 9),
    width=st.integers(0, 5), density=st.sampled_from([0.0, 0.3, 1.0]),
    order=st.permutations(range(5)), dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)  # fmt: skip
@settings(deadline=None, max_examples=30)
def test_any_leading_dimensions_and_strides(
    lead: list[int], rows: int, cols: int, width: int, density: float, order: list[int], dtype: torch.dtype
) -> None:
    """Each matrix of the batch is multiplied as it is by itself, whatever the strides."""
    a = gnnsparse.prepare(random_graph(rows, cols, density), cache=False)
    shape = (*lead, cols, width)
    kept = [d for d in order if d < len(shape)]
    back = [kept.index(d) for d in range(len(shape))]
    x = torch.randn([shape[d] for d in kept]).to(dtype).permute(back)
    y = a @ x
    assert (y.shape, y.dtype) == ((*lead, rows, width), dtype)
    for mine, one in zip(y.flatten(0, -3), x.flatten(0, -3), strict=True):
        assert torch.equal(mine, a @ one)


@pytest.mark.parametrize(
    ("write", "shape"),
    [(lambda a, x: a @ x, (20, 30)), (torch.matmul, (20, 30)), (torch.matmul, (6, 6))],
    ids=["@", "torch.matmul", "square"],
)
def test_compiled(device: str, write: Any, shape: tuple[int, int]) -> None:
    """Where X has as many columns as A has rows, `A @ X` looks like `X @ A` to TorchDynamo."""
    a = make(random_graph(*shape, 0.3), device)
    x = torch.randn(4, shape[1], 6, device=device, requires_grad=True)
    run = torch.compile(partial(write, a), fullgraph=True, backend="aot_eager")
    assert torch.equal(run(x), a @ x)
    (gradient,) = torch.autograd.grad(run(x).square().sum(), x)
    torch.testing.assert_close(gradient, 2 * (a.T @ (a @ x.detach())))
