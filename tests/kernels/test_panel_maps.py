"""The panel kernel's index maps, executed on the CPU lane by lane."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from gnnsparse.ops.heads import attention_problem, heads_view
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseGraph, _native
from gnnsparse.csr import address
from gnnsparse.formats import BlockedMatrix, format_spec
from gnnsparse.precision import DTYPE_CODES, Precision, round_operand
from gnnsparse.preprocess.balance import cut_panels
from gnnsparse.preprocess.convert import convert, count_slots
from gnnsparse.testing import assert_accurate, random_graph
from tests.kernels.test_window_maps import assert_same, dense_of, vectors, view


def emulate(
    graph: SparseGraph, panel: BlockedMatrix, x: torch.Tensor, precision: Precision, limit: int = 1000,
    scale: torch.Tensor | None = None, row_ids: torch.Tensor | None = None,
    row_scale: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    segments = cut_panels(panel, limit, longest_first=limit % 2 == 0)
    y = torch.full((graph.num_rows, x.shape[1]), float("nan"))
    _native.emulate_panel_spmm(
        panel.view(scale), segments.view, address(row_ids), address(row_scale), view(x), view(y),
        x.shape[1], precision.code,
    )  # fmt: skip
    return y


def panels(graph: SparseGraph, precision: Precision, height: int, values: bool) -> BlockedMatrix:
    spec = format_spec("panel-values" if values else "panel", precision, panel=height)
    stored = round_operand(graph.values, precision) if values and graph.values is not None else None
    return convert(graph.csr, spec, stored)


@pytest.mark.parametrize("height", [16, 32])
@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("width", [1, 24, 64, 70])
def test_ones(precision: Precision, height: int, width: int) -> None:
    graph = random_graph(75, 130, 0.2, weighted=False, hubs=2, empty_rows=0.2)
    x = vectors(torch.randn(130, width), precision)
    y = emulate(graph, panels(graph, precision, height, False), x, precision, limit=2)
    assert_same(y, dense_of(graph, torch.ones(graph.nnz)) @ x.double())


@pytest.mark.parametrize("height", [16, 32])
@pytest.mark.parametrize("precision", list(Precision))
def test_column_and_row_weights_and_row_order(precision: Precision, height: int) -> None:
    graph = random_graph(70, 90, 0.15, weighted=False, hubs=1)
    panel = panels(graph, precision, height, False)
    by_column, by_row = torch.rand(90), torch.rand(70)
    scale = round_operand(by_column[panel.columns.clamp(min=0).long()], precision)
    x = vectors(torch.randn(90, 40), precision)
    ids = torch.randperm(70).to(torch.int32)
    y = emulate(graph, panel, x, precision, scale=scale, row_ids=ids, row_scale=by_row)
    exact = dense_of(graph, torch.ones(graph.nnz)) * round_operand(by_column, precision).double()
    assert_same(y[ids.long()], by_row.double()[:, None] * (exact @ x.double()))


@pytest.mark.parametrize("height", [16, 32])
@pytest.mark.parametrize("precision", list(Precision))
def test_values(precision: Precision, height: int) -> None:
    graph = random_graph(75, 130, 0.2, hubs=2, empty_rows=0.2)
    x = vectors(torch.randn(130, 72), precision)
    y = emulate(graph, panels(graph, precision, height, True), x, precision, limit=3)
    assert graph.values is not None
    exact = dense_of(graph, round_operand(graph.values, precision))
    assert_same(y, exact @ x.double())


@pytest.mark.parametrize("weights", ["ones", "columns", "values"])
def test_fp32_is_right_to_float32(weights: str) -> None:
    """Two tf32 parts of each operand: a plain tf32 product would be 1000 times further off."""
    graph = random_graph(40, 60, 0.3, weighted=weights == "values")
    panel = panels(graph, Precision.FP32, 16, weights == "values")
    scale = torch.rand(60) if weights == "columns" else torch.ones(60)
    x = vectors(torch.randn(60, 33), Precision.FP32)
    slots = scale[panel.columns.clamp(min=0).long()] if weights == "columns" else None
    y = emulate(graph, panel, x, Precision.FP32, scale=slots)
    stored = torch.ones(graph.nnz) if graph.values is None else graph.values
    exact = dense_of(graph, stored) * scale.double() @ x.double()
    assert float((y - exact).norm() / exact.norm()) < 3e-7


def test_fp32_keeps_its_range() -> None:
    graph = random_graph(16, 16, 1.0, weighted=False)
    x = vectors(torch.ones(16, 4), Precision.FP32)
    large = 1.5 * 2.0**127  # nothing is left for the doubling that the other precisions do
    x[5, 2] = large
    y = emulate(graph, panels(graph, Precision.FP32, 16, False), x, Precision.FP32)
    assert torch.equal(y[:, 2], torch.full((16,), large))


HALF = [Precision.FP16, Precision.BF16]


@pytest.mark.parametrize("precision", HALF)
@pytest.mark.parametrize(("density", "hubs"), [(1.0, 0), (0.9, 0), (0.3, 5), (0.02, 0), (0.02, 20)])
@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_entries(precision: Precision, density: float, hubs: int, limit: int) -> None:
    """Full tiles, tiles with hardly anything, rows that are in every tile; panels cut anywhere."""
    graph = random_graph(90, 200, density, hubs=hubs, empty_rows=0.0 if density == 1.0 else 0.2)
    panel = panels(graph, precision, 32, True)
    assert panel.spec.encoding == "entries"
    x = vectors(torch.randn(200, 72), precision)
    ids = torch.randperm(90).to(torch.int32)
    y = emulate(graph, panel, x, precision, limit, row_ids=ids)
    assert graph.values is not None
    assert_same(y[ids.long()], dense_of(graph, round_operand(graph.values, precision)) @ x.double())


@given(
    rows=st.integers(0, 70), cols=st.integers(1, 100), density=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    hubs=st.integers(0, 3), precision=st.sampled_from(HALF), seed=st.integers(0, 2**20),
)  # fmt: skip
def test_entries_are_the_nonzeros(
    rows: int, cols: int, density: float, hubs: int, precision: Precision, seed: int
) -> None:
    graph = random_graph(rows, cols, density, seed=seed, hubs=hubs, empty_rows=0.2)
    panel = panels(graph, precision, 32, True)
    assert panel.values is not None
    assert panel.value_ptr is not None
    assert panel.value_ptr.numel() == panel.slots // 32 + 1
    assert not (panel.value_ptr % 4).any()
    real = (panel.values.view(torch.int32) >> 16) < 2048
    assert int(real.sum()) == graph.nnz
    assert not panel.values[::2][~real].any()
    row, col, stored = panel.decode()
    order = torch.argsort(row * cols + col)
    assert torch.equal(row[order], graph.csr.row_index())
    assert torch.equal(col[order], graph.csr.indices.long())
    assert stored is not None
    assert graph.values is not None
    assert torch.equal(stored[order], round_operand(graph.values, precision))


def accesses(words: torch.Tensor) -> int:
    """How often shared memory is accessed when a warp stores entries at these words, four a lane."""
    found = 0
    for vectors_of_warp in words.reshape(-1, 4).split(32):
        for store in vectors_of_warp.T:
            found += int(torch.bincount(store.unique() % 32).max())
    return found


@pytest.mark.parametrize(("density", "share"), [(0.08, 0.75), (0.3, 0.6), (1.0, 0.4)])
def test_stores_of_entries_hardly_meet_in_a_bank(density: float, share: float) -> None:
    panel = panels(random_graph(64, 640, density), Precision.FP16, 32, True)
    assert panel.values is not None
    assert panel.value_ptr is not None
    words = (panel.values.view(torch.int32) >> 16) // 4
    stages = words.split(panel.value_ptr.diff().tolist())
    stored = sum(accesses(stage) for stage in stages)
    assert stored < share * sum(accesses(stage[torch.randperm(stage.numel())]) for stage in stages)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_property(data: Any) -> None:
    draw = data.draw
    rows, cols = draw(st.integers(0, 70)), draw(st.integers(1, 100))
    density, seed = draw(st.sampled_from([0.0, 0.02, 0.3, 1.0])), draw(st.integers(0, 99))
    graph = random_graph(rows, cols, density, seed=seed, empty_rows=draw(st.sampled_from([0.0, 0.5])))
    precision, height = draw(st.sampled_from(list(Precision))), draw(st.sampled_from([16, 32]))
    x = vectors(torch.randn(cols, draw(st.integers(1, 80))), precision)
    values = graph.values is not None and draw(st.booleans())
    y = emulate(graph, panels(graph, precision, height, values), x, precision, draw(st.integers(1, 4)))
    weights = round_operand(graph.values, precision) if values else torch.ones(graph.nnz)  # type: ignore[arg-type]
    assert_same(y, dense_of(graph, weights) @ x.double())


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize(("width", "limit"), [(1, 1), (24, 2), (64, 1000), (70, 1), (136, 3)])
def test_sddmm(precision: Precision, width: int, limit: int) -> None:
    graph = random_graph(75, 130, 0.2, hubs=2, empty_rows=0.2)
    panel = panels(graph, precision, 16, False)
    q, k = (vectors(torch.randn(n, width), precision) for n in (75, 130))
    ids = torch.randperm(75).to(torch.int32)
    items = cut_panels(panel, limit, graph.csr, longest_first=limit % 2 == 0)
    out = torch.full((graph.nnz,), float("nan"))
    _native.emulate_panel_sddmm(
        panel.view(), items.view, address(graph.csr.indptr), address(ids), view(q), view(k),
        address(out), DTYPE_CODES[out.dtype], width, precision.code,
    )  # fmt: skip
    row, col = ids.long()[graph.csr.row_index()], graph.csr.indices.long()
    assert_same(out, (q.double()[row] * k.double()[col]).sum(1))


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
@pytest.mark.parametrize(("d", "dv", "limit"), [(8, 64, 1000), (64, 24, 1), (100, 72, 3), (128, 128, 2)])
@pytest.mark.parametrize("height", [16, 64])
def test_attention(precision: Precision, d: int, dv: int, limit: int, height: int) -> None:
    graph = random_graph(75, 130, 0.2, hubs=2, empty_rows=0.2)
    panel = panels(graph, precision, height, False)
    q, k, v = (vectors(torch.randn(n, w), precision) for n, w in ((75, d), (130, d), (130, dv)))
    ids = torch.randperm(75).to(torch.int32)
    items = cut_panels(panel, limit, longest_first=limit % 2 == 0)
    out, lse = torch.full((75, dv), float("nan")), torch.full((75,), float("nan"))
    operand = gnnsparse.prepare(graph, precision=precision, cache=False)
    problem = attention_problem(
        operand, q[None, None], k[None, None], v[None, None], None, 0.3, 0.0, None, False
    )
    _native.emulate_panel_attention(
        problem, panel.view(), items.view, address(ids), heads_view(out[None, None]), address(lse)
    )
    edges = dense_of(graph, torch.ones(graph.nnz)) != 0
    scores = (0.3 * q[ids.long()].double() @ k.double().T).masked_fill(~edges, float("-inf"))
    exact = scores.softmax(1).nan_to_num(0)
    rounded = round_operand(exact.float(), precision).double()
    assert_accurate(out[ids.long()], (rounded @ v.double()).float(), exact @ v.double())
    assert torch.allclose(lse[ids.long()], scores.logsumexp(1).float(), atol=1e-5)


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
@pytest.mark.parametrize(("d", "dv", "limit"), [(8, 64, 1000), (64, 24, 1), (72, 100, 3)])
@pytest.mark.parametrize("height", [16, 64])
def test_attention_gradients(precision: Precision, d: int, dv: int, limit: int, height: int) -> None:
    """Both passes against autograd in float64, rows stored in another order."""
    graph = random_graph(75, 130, 0.2, hubs=2, empty_rows=0.2)
    q, k, v, grad = (vectors(torch.randn(*s), precision) for s in ((75, d), (130, d), (130, dv), (75, dv)))
    ids, column_ids = torch.randperm(75).to(torch.int32), torch.randperm(130).to(torch.int32)
    edges = torch.zeros(75, 130, dtype=torch.bool)
    edges[ids.long()[graph.csr.row_index()], graph.csr.indices.long()] = True
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    scores = (0.3 * leaves[0] @ leaves[1].T).masked_fill(~edges, float("-inf"))
    log2 = scores.detach().logsumexp(1) * math.log2(math.e)
    out = torch.where(edges.any(1, keepdim=True), scores, 0.0).softmax(1).where(edges, 0.0) @ leaves[2]
    wanted = torch.autograd.grad(out, leaves, grad.double())

    shift = torch.where(edges.any(1), log2.floor(), torch.inf)
    rest = torch.where(edges.any(1), torch.exp2(shift - log2), 0.0)
    facts = torch.stack([shift, rest, (grad.double() * out.detach()).sum(1), shift], dim=1).float()
    results = [torch.full(x.shape, float("nan")) for x in (q, k, v)]
    dq, dk, dv_ = (heads_view(x[None, None]) for x in results)
    problem = attention_problem(
        gnnsparse.prepare(graph, precision=precision, cache=False),
        q[None, None], k[None, None], v[None, None], None, 0.3, 0.0, None, False,
    )  # fmt: skip
    query, key = edges[:, column_ids.long()].nonzero(as_tuple=True)  # keys as they are stored
    transposed = SparseGraph.from_edge_index(torch.stack([query, key]), (75, 130))
    none = heads_view(None)
    for matrix, order, to in ((graph, ids, (dq, none, none)), (transposed, column_ids, (none, dk, dv_))):
        panel = panels(matrix, precision, height, False)
        items = cut_panels(panel, limit, longest_first=limit % 2 == 0)
        gradient = heads_view(grad[None, None])
        _native.emulate_panel_attention_grad(
            problem, panel.view(), items.view, address(order), gradient, address(facts), *to
        )
    for got, want in zip(results, wanted, strict=True):
        assert float((got.double() - want).norm() / want.norm()) < 2 * torch.finfo(precision.storage).eps


@pytest.mark.parametrize(
    ("height", "values"), [(16, False), (16, True), (32, False), (32, True), (64, False)]
)
def test_decode_reads_back_what_was_converted(height: int, values: bool) -> None:
    graph = random_graph(75, 61, 0.2, hubs=1, empty_rows=0.1)
    panel = panels(graph, Precision.FP32, height, values)
    assert torch.equal(panel.panel_ptr.diff(), count_slots(graph.csr, panel.spec))
    row, col, stored = panel.decode()
    order = torch.argsort(row * 61 + col)
    assert torch.equal(row[order], graph.csr.row_index())
    assert torch.equal(col[order], graph.csr.indices.long())
    if values:
        assert stored is not None
        assert graph.values is not None
        assert torch.equal(stored[order], graph.values)


def test_what_the_kernel_does_not_take_is_refused() -> None:
    graph = random_graph(20, 20, 0.2)
    window = convert(graph.csr, format_spec("window"), None)
    x = torch.zeros(20, 8, dtype=torch.float16)
    with pytest.raises(ValueError, match="lane order"):
        emulate(graph, window, x, Precision.FP16)
    with pytest.raises(ValueError, match="lane_order"):
        _native.Blocked(8, 8, 16, 16, True, 1, 20, 20, 3)
    with pytest.raises(ValueError, match="encoding: entries go with panels of 32 rows"):
        _native.Blocked(16, 16, 32, 32, True, 2, 20, 20, 3)
    with pytest.raises(ValueError, match="encoding: must be 0"):
        _native.Blocked(8, 8, 16, 16, False, 3, 20, 20, 3)
    entries = panels(graph, Precision.FP16, 32, True)
    with pytest.raises(ValueError, match="16 bits"):
        emulate(graph, entries, x.float(), Precision.FP32)
    dense = convert(graph.csr, format_spec("panel-values", "fp32", panel=32), torch.ones(graph.nnz))
    with pytest.raises(ValueError, match="are entries"):
        emulate(graph, dense, x, Precision.FP16)
    with pytest.raises(TypeError, match="values"):
        convert(graph.csr, format_spec("panel-values", "fp16", panel=32), None)
    with pytest.raises(ValueError, match="stores no entries"):
        _native.fill_entries(graph.csr.view, dense.view(), 8, 8, 8, 1)
