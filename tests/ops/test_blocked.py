"""Published formats on a CPU: products read every array that a format stores, and nothing else runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseGraph, SparseOperand
from gnnsparse.formats import PRESETS, BlockedMatrix
from gnnsparse.formats.convert import convert
from gnnsparse.formats.registry import register_preset
from gnnsparse.formats.spec import FormatSpec
from gnnsparse.nn import AGNNConv
from gnnsparse.plan import BlockedPlan, Plan, UnfusedPlan
from gnnsparse.precision import ROUNDED_PRECISIONS, Precision
from gnnsparse.registry import temporary_registrations
from gnnsparse.testing import assert_accurate, random_graph
from tests.helpers import FORMAT_PRECISIONS, FORMATS, FREE_FORMATS, dense_matrix, make, precision_for
from tests.ops.conftest import graphs
from tests.ops.test_spmm import check

EXCLUSIVE = tuple(name for name in FORMATS if name not in FREE_FORMATS)
CASES = tuple((name, precision) for name, precision in FORMAT_PRECISIONS if name in EXCLUSIVE)
#: Of the formats that have SDDMM.
EDGES = tuple((name, precision) for name, precision in CASES if "sddmm" in PRESETS[name].ops)


def operand(name: str, panel: int | None = None) -> SparseOperand:
    """A matrix whose windows have several blocks; of rs-tile some rows are kept out of them."""
    graph = random_graph(90, 80, 0.12, hubs=2, seed=3)
    dense = abs(graph.to_scipy().toarray())
    dense[40:60] = 0
    dense[40:60, :2] = 2
    sparse = torch.from_numpy(dense).float().to_sparse()
    return make(sparse, "cpu", format=name, precision=precision_for(name), panel=panel)


def with_blocked(a: SparseOperand, blocked: BlockedMatrix) -> SparseOperand:
    forward = a.prepared.forward.with_blocked(blocked)
    return SparseOperand(replace(a.prepared, forward=forward))


def change(part: str, array: torch.Tensor, blocked: BlockedMatrix) -> None:
    """Changes one array of a format in place."""
    match part:
        case "panel_rows" | "residual_rows":
            array[-1] -= 1
        case "columns" | "zero_cols" | "residual_cols":
            array[0] = 79 if int(array[0]) == 0 else 0
        case "size_ptr":
            array[1] = 0
        case "bitmap":
            array[0] ^= 3
        case "values" | "residual_values":
            array[int(array.nonzero()[0])] = 99
        case "packed_blocks":  # of the last record, which zeros fill up
            array[int(array.nonzero()[-1])] = 99
        case _:  # offsets: a part of what belongs to one panel, row or block goes to the one before it
            size = blocked.spec.block if part == "panel_ptr" else 1
            array[int((array.diff() > size).nonzero()[1])] += size


ARRAYS = [
    (name, panel, part)
    for name, panel in ((n, 32 if n == "hrpb" else None) for n in EXCLUSIVE)
    for part in operand(name, panel).kernels.require_blocked().arrays
]


@pytest.mark.parametrize(("name", "panel", "part"), ARRAYS)
def test_every_stored_array_changes_the_product(name: str, panel: int | None, part: str) -> None:
    a, x = operand(name, panel), torch.randn(80, 5) + 3
    if part.startswith("zero"):  # times infinity, a zero that counts as a nonzero is NaN
        x.fill_(torch.inf)
    blocked = a.kernels.require_blocked()
    array = blocked.arrays[part].clone()
    change(part, array, blocked)
    assert not torch.equal(array, blocked.arrays[part])
    changed = with_blocked(a, replace(blocked, **{part: array}))
    assert torch.equal(with_blocked(a, blocked) @ x, a @ x)
    assert not torch.equal(changed @ x, a @ x)


def test_the_arrays_of_csr_do_not_take_part() -> None:
    """With the values of a format gone to 0, the product of every published format is 0."""
    for name in EXCLUSIVE:
        a, x = operand(name), torch.randn(80, 5)
        blocked = a.kernels.require_blocked()
        gone = {
            part: torch.zeros_like(array) for part, array in blocked.arrays.items() if part.endswith("values")
        }
        if blocked.spec.records:  # the records of a matrix whose nonzeros are all zero
            gone["packed_blocks"] = convert(a.kernels.csr, blocked.spec, torch.zeros(a.nnz)).packed_blocks
        assert not (with_blocked(a, replace(blocked, **gone)) @ x).any(), name


@pytest.mark.parametrize(("name", "precision"), CASES)
@pytest.mark.parametrize("weights", [None, "gcn", "mean"])
@pytest.mark.parametrize("reorder", ["none", "degree"])
def test_products_are_those_of_csr(name: str, precision: str, weights: str | None, reorder: str) -> None:
    """Nonzeros of a row come in the same order: where both store the same values, sums have the same bits."""
    graph = random_graph(97, 97, 0.06, weighted=weights is None, hubs=2, empty_rows=0.2)
    options: dict[str, Any] = {"precision": precision, "values": weights, "reorder": reorder}
    a, csr = make(graph, "cpu", format=name, **options), make(graph, "cpu", format="csr", **options)
    assert a.plan(8).kernel == "blocked"
    for width in (1, 16, 37):
        x = torch.randn(97, width)
        check(a, dense_matrix(graph, weights), x)
        check(a.T, dense_matrix(graph, weights).T, x)
        if weights is None:
            for reduce in ("sum", "mean"):
                assert torch.equal(gnnsparse.spmm(a, x, reduce=reduce), gnnsparse.spmm(csr, x, reduce=reduce))


@given(graph=graphs(60, 90, (0.0, 0.03, 0.3, 1.0), empty_rows=0.2), case=st.sampled_from(CASES),
       width=st.integers(1, 40), strided=st.booleans())  # fmt: skip
def test_property(graph: SparseGraph, case: tuple[str, str], width: int, strided: bool) -> None:
    a = make(graph, "cpu", format=case[0], precision=case[1])
    csr = make(graph, "cpu", format="csr", precision=case[1])
    x = torch.randn(graph.num_cols, 2 * width)
    x = x[:, ::2] if strided else x[:, :width].contiguous()
    assert torch.equal(a @ x, csr @ x)
    if case in EDGES:
        q, values = torch.randn(graph.num_rows, width), torch.randn(a.nnz)
        assert torch.equal(gnnsparse.sddmm(a, q, x), gnnsparse.sddmm(csr, q, x))
        assert torch.equal(gnnsparse.spmm(a, x, values), gnnsparse.spmm(csr, x, values))


@pytest.mark.parametrize("name", EXCLUSIVE)
def test_infinity_stays_with_the_nonzeros_of_its_column(name: str) -> None:
    """What fills a block is no nonzero: it is not multiplied. A stored zero is, as in CSR."""
    graph = random_graph(60, 60, 0.1, hubs=1)
    values = graph.values.clone()
    values[::5] = 0
    graph = replace(graph, values=values)
    a = make(graph, "cpu", format=name, precision=precision_for(name))
    csr = make(graph, "cpu", format="csr", precision=precision_for(name))
    x = torch.randn(60, 8)
    x[7], x[11] = torch.inf, torch.nan
    got, want = a @ x, csr @ x
    assert 0 < int(want.isfinite().all(1).sum()) < 60
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


# Edge values, SDDMM and attention


@pytest.mark.parametrize(("name", "precision"), EDGES)
@pytest.mark.parametrize("heads", [None, 3])
def test_gradients_of_edge_values(name: str, precision: str, heads: int | None) -> None:
    graph = random_graph(50, 70, 0.1, hubs=1, empty_rows=0.1)
    a, csr = (make(graph, "cpu", format=f, precision=precision) for f in (name, "csr"))
    shape = () if heads is None else (heads,)
    x, values = torch.randn(70, *shape, 12), torch.randn(a.nnz, *shape)
    q, grad = torch.randn(50, *shape, 12), torch.randn(50, *shape, 12)

    def run(operand: SparseOperand) -> list[torch.Tensor]:
        leaves = [t.clone().requires_grad_() for t in (x, values, q)]
        scores = gnnsparse.sddmm(operand, leaves[2], leaves[0])
        y = gnnsparse.spmm(operand, leaves[0], leaves[1] + scores)
        return [y, scores, *torch.autograd.grad(y, leaves, grad)]

    for got, want in zip(run(a), run(csr), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize(("name", "precision"), EDGES)
def test_attention_is_the_chain_over_the_format(name: str, precision: str) -> None:
    """AGNN's products (FlashSparse, section 4.4): SDDMM, softmax and SpMM, all over ME-BCRS."""
    graph = random_graph(60, 60, 0.1, weighted=False)
    a, csr = (make(graph, "cpu", format=f, precision=precision) for f in (name, "csr"))
    assert isinstance(a.plan(16, "attention"), UnfusedPlan)
    assert isinstance(a.plan(16, "attention_grad"), UnfusedPlan)
    q, k, v = (torch.randn(2, 60, 16, requires_grad=True) for _ in range(3))
    grad = torch.randn(2, 60, 16)

    def run(operand: SparseOperand, **options: Any) -> list[torch.Tensor]:
        y = gnnsparse.attention(operand, q, k, v, **options)
        return [y, *torch.autograd.grad(y, (q, k, v), grad)]

    for got, want in zip(run(a), run(csr, plan=Plan("unfused")), strict=True):
        assert torch.equal(got, want)
    with pytest.raises(ValueError, match="fused: got True, but there is no fused kernel"):
        gnnsparse.attention(a, q, k, v, fused=True)
    with pytest.raises(ValueError, match=f"plan: rows can't run here: the format {name} was asked for"):
        gnnsparse.attention(a, q, k, v, plan=Plan("rows"))
    layer, x = AGNNConv(add_self_loops=False), torch.randn(60, 16)
    assert_accurate(layer(x, a), layer(x, csr), layer(x, make(graph, "cpu")).double())


def test_a_batch_of_operations_composes() -> None:
    a = make(random_graph(30, 30, 0.2), "cpu", format="me-bcrs", precision="fp16")
    csr = make(random_graph(30, 30, 0.2), "cpu", format="csr", precision="fp16")
    x, values = torch.randn(4, 30, 6), torch.randn(4, a.nnz)
    for batch in ((x, values[0]), (x, values)):
        dims = (0, None if batch[1].dim() == 1 else 0)
        got, want = (
            torch.func.vmap(lambda x, v, o=o: gnnsparse.spmm(o, x, v), dims)(*batch) for o in (a, csr)
        )
        assert torch.equal(got, want)


# What a paper does not have


def calls(a: SparseOperand) -> dict[str, Callable[[], Any]]:
    x, scores, heads = torch.randn(30, 4), torch.randn(a.nnz), torch.randn(30, 2, 4)
    flat = torch.randn(30, 2)
    return {
        "sddmm": lambda: gnnsparse.sddmm(a, x, x),
        "edge values": lambda: gnnsparse.spmm(a, x, scores),
        "heads": lambda: gnnsparse.spmm(a, heads, torch.randn(a.nnz, 2)),
        "softmax": lambda: gnnsparse.edge_softmax(a, scores),
        "attention": lambda: gnnsparse.attention(a, x, x, x),
        "dot": lambda: gnnsparse.graph_attention(a, heads, heads, heads),
        "operator": lambda: torch.ops.gnnsparse.sddmm(x, x, a.handle),
        "values operator": lambda: torch.ops.gnnsparse.spmm(x, scores, a.handle),
        "softmax operator": lambda: torch.ops.gnnsparse.edge_softmax(scores, a.handle),
        "vmap": lambda: torch.func.vmap(lambda x: gnnsparse.spmm(a, x, scores))(x[None]),
        "max": lambda: gnnsparse.spmm(a, x, reduce="max"),
        "max operator": lambda: torch.ops.gnnsparse.spmm_max(x, None, a.handle, True),
        "additive": lambda: gnnsparse.graph_attention(a, flat, flat, heads, score="additive"),
        "weights": lambda: gnnsparse.graph_attention(a, heads, heads, heads, return_weights=True),
    }


#: Operations that no published format has.
NOBODYS = ("max", "max operator", "additive", "weights")


@pytest.mark.parametrize("name", EXCLUSIVE)
def test_an_operation_that_a_format_does_not_have_is_an_error(name: str) -> None:
    a = make(random_graph(30, 30, 0.2), "cpu", format=name, precision=precision_for(name))
    for what, call in calls(a).items():
        if "sddmm" in PRESETS[name].ops and what not in NOBODYS:
            call()
            continue
        with pytest.raises(ValueError, match=rf"the format {name} \(.*'auto' or 'csr' or 'window'") as caught:
            call()
        assert ("'me-bcrs'" in str(caught.value)) == (what not in NOBODYS), what
    if "sddmm" not in PRESETS[name].ops:
        with pytest.raises(ValueError, match=f"format: {name} can't run sddmm on a CPU"):
            a.plan(8, "sddmm")
        with pytest.raises(ValueError, match=f"format: {name} can't run spmm with edge values on a CPU"):
            a.plan(8, edge_values=True)


@pytest.mark.parametrize("name", EXCLUSIVE)
@pytest.mark.parametrize("precision", list(ROUNDED_PRECISIONS))
def test_a_precision_that_a_format_does_not_have_is_an_error(name: str, precision: Precision) -> None:
    """The default precision is no exception."""
    graph, preset = random_graph(20, 20, 0.2), PRESETS[name]
    given = {} if precision is Precision.FP32 else {"precision": precision}
    if precision in preset.precisions:
        assert gnnsparse.prepare(graph, format=name, **given, cache=False).precision is precision
        return
    accepted = ", ".join(p.value for p in preset.precisions)
    message = rf"^precision: got '{precision.value}' .*{name}.*, whose paper has .*accepted: {accepted}"
    with pytest.raises(ValueError, match=message):
        gnnsparse.prepare(graph, format=name, **given, cache=False)


def test_the_reference_takes_every_format_and_tuning_finds_it_alone() -> None:
    x, options = torch.randn(30, 4), {"precision": "fp16", "autotune": True}
    a = make(random_graph(30, 30, 0.2), "cpu", format="cvse", **options)
    assert gnnsparse.sddmm(a, x, x, impl="reference").shape == (a.nnz,)
    a = make(random_graph(30, 30, 0.2), "cpu", format="me-bcrs", **options)
    assert isinstance(a.plan(8), BlockedPlan)
    assert isinstance(a.tune(8, "sddmm"), BlockedPlan)


# A format of one's own


@pytest.mark.parametrize(
    "parameters",
    [
        {"window": 16, "panel": 16, "block": 8, "brick": 8, "encoding": "dense", "pad": 8},  # TC-GNN's blocks
        {"window": 16, "panel": 16, "block": 8, "brick": 4, "encoding": "bitmap", "packed": True, "pad": 8},
        {"window": 16, "panel": 16, "block": 16, "brick": 16, "encoding": "bitmap", "pad": 16},
        {"window": 4, "panel": 4, "block": 2, "brick": 2, "encoding": "dense", "split_short_rows": True},
        {"window": 16, "panel": 64, "block": 32, "brick": 32, "encoding": "bitmap", "pad": 32,
         "lane_order": True},
        {"window": 32, "panel": 32, "block": 32, "brick": 32, "encoding": "dense", "pad": 32,
         "lane_order": True},
        {"window": 32, "panel": 32, "block": 32, "brick": 32, "encoding": "entries", "pad": 32,
         "lane_order": True},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("weights", [None, "gcn"])
def test_every_encoding(parameters: dict[str, Any], weights: str | None) -> None:
    graph = random_graph(70, 70, 0.1, weighted=weights is None, hubs=1, empty_rows=0.2)
    with temporary_registrations():
        register_preset(FormatSpec("mine", **parameters), source="a test")
        options = {"format": "mine", "precision": "fp16", "values": weights}
        a = gnnsparse.prepare(graph, reorder="degree", cache=False, **options)
        assert a.plan(8).kernel == "blocked"
        x = torch.randn(70, 20)
        check(a, dense_matrix(graph, weights), x)
        check(a.T, dense_matrix(graph, weights).T, x)
        a.stats()
