"""The CUDA sources of SpMM, run on the CPU, against float64."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseOperand, _native
from gnnsparse.formats import BlockedMatrix, format_spec
from gnnsparse.formats.convert import convert
from gnnsparse.ops import spmm_cuda
from gnnsparse.plan import Plan, Problem
from gnnsparse.plan.gpu_records import record_for
from gnnsparse.precision import Precision, dense_view, round_operand
from gnnsparse.runtime.device import HALF_VECTOR_BYTES, SECTOR_BYTES, SLICE_BYTES, VECTOR_BYTES
from gnnsparse.testing import assert_accurate, random_graph
from tests import emulated
from tests.gpu_paths import H200, RunningPath
from tests.helpers import PRECISIONS, dense_matrix, make, plain_product
from tests.ops.test_spmm import check, check_infinity

#: The panels that SpMM has kernels for, and those of them that can hold values.
HEIGHTS = tuple(_native.SPMM_PANEL_BLOCKS)
VALUE_HEIGHTS = tuple(height for height in HEIGHTS if _native.PANEL_BRICK_ROWS[height] == height)


def check_dtypes(a: SparseOperand, dense: torch.Tensor, widths: tuple[int, ...], plan: Plan) -> None:
    """Results in whole 16 bytes, and those that are not; X packed before, and with NaN behind its rows."""
    for width in widths:
        check(a, dense, emulated.padded(torch.randn(dense.shape[1], width), a.precision), plan=plan)
        for dtype in dict.fromkeys((torch.float32, a.precision.storage)):
            check(a, dense, torch.randn(dense.shape[1], width).to(dtype), plan=plan)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("height", "weights"),
    [*itertools.product(HEIGHTS, (None, "gcn")), *((height, "random") for height in VALUE_HEIGHTS)],
)
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
    for concurrent in (0, 3):
        of_both = replace(plan, concurrent_panels=concurrent)
        check_dtypes(a, dense_matrix(graph, weights), (7, 64, 136), of_both)
    assert "cuda_spmm_panel" in native.called


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("height", "weighted"),
    [*((height, False) for height in HEIGHTS), *((height, True) for height in VALUE_HEIGHTS)],
)
def test_panels_of_narrow_and_odd_features(
    native: RunningPath, precision: str, height: int, weighted: bool
) -> None:
    graph = random_graph(75, 130, 0.2, weighted=weighted, hubs=2, empty_rows=0.2)
    a = make(graph, "cpu", precision=precision)
    for limit in (1, 2, 3):
        plan = Plan("panel", height=height, tile_limit=limit, longest_first=limit == 2)
        check_dtypes(a, dense_matrix(graph, None), (1, 24, 70, 72), plan)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("whole", [VECTOR_BYTES, SECTOR_BYTES, SLICE_BYTES])
def test_rows_are_copied_to_whole_units(
    native: RunningPath, precision: str, whole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X of several slices, or nearly a line, is copied where rows are no multiples of what is wanted."""
    monkeypatch.setattr(spmm_cuda, "_whole_rows", lambda *_: whole)
    graph = random_graph(60, 70, 0.2, weighted=False, empty_rows=0.2)
    for height in HEIGHTS:
        a, plan = make(graph, "cpu", precision=precision), Plan("panel", height=height)
        for width in (24, 28, 48, 52, 56, 70, 72, 80, 128, 136, 192):
            native.called.clear()
            row = width * a.precision.storage.itemsize
            memory = torch.empty(70 * row + SLICE_BYTES, dtype=torch.uint8)
            first = -memory.data_ptr() % SLICE_BYTES  # as memory of a GPU begins
            x = memory[first : first + 70 * row].view(a.precision.storage).view(70, width).normal_()
            check(a, dense_matrix(graph, None), x, plan=plan)
            units = row > SLICE_BYTES or (whole == SLICE_BYTES and row > 96)
            copied = row % (whole if units else VECTOR_BYTES) > 0
            assert ("cuda_pack" in native.called) is copied


@pytest.mark.parametrize(
    ("reads", "resident", "whole"),
    [
        (69, True, VECTOR_BYTES), (70, True, SECTOR_BYTES), (15, False, VECTOR_BYTES),
        (16, False, SLICE_BYTES), (70, False, SLICE_BYTES),
    ],
)  # fmt: skip
def test_rows_that_are_read_often_begin_at_lines(reads: float, resident: bool, whole: int) -> None:
    problem = SimpleNamespace(slice_is_resident=resident, record=record_for(H200))
    assert spmm_cuda._whole_rows(cast("Any", problem), reads) == whole


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("density", "hubs"), [(1.0, 0), (0.9, 0), (0.3, 5), (0.15, 0), (0.02, 0), (0.02, 20)]
)
@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_entries(native: RunningPath, precision: str, density: float, hubs: int, limit: int) -> None:
    """Full tiles, tiles with hardly anything, rows that are in every tile; panels cut anywhere."""
    graph = random_graph(90, 200, density, hubs=hubs, empty_rows=0.0 if density == 1.0 else 0.2)
    a = make(graph, "cpu", precision=precision, reorder="degree")
    plan = Plan("panel", height=32, tile_limit=limit)
    check(a, dense_matrix(graph, None), emulated.padded(torch.randn(200, 72), precision), plan=plan)
    assert a.kernels.panel(32).spec.entry_layout is not None


@pytest.mark.parametrize(
    ("height", "weights", "factor"),
    [
        *((height, weights, 2) for height in HEIGHTS for weights in ("ones", "columns")),
        *((height, "values", 5) for height in VALUE_HEIGHTS),
    ],
)
def test_fp32_is_right_to_float32(native: RunningPath, height: int, weights: str, factor: float) -> None:
    """Two tf32 parts of each operand: a plain tf32 product would be 1000 times further off.

    No roundings are allowed beyond the rule's factor. Values are more than twice as far off as a plain run:
    three products an element cut off what their sums have no room for, where float32 would round.
    """
    graph = random_graph(60, 60, 0.3, weighted=weights == "values")
    values = "gcn" if weights == "columns" else None
    a, dense = make(graph, "cpu", precision="fp32", values=values), dense_matrix(graph, values)
    x = torch.randn(60, 33)
    plain, exact = plain_product(dense, x, "fp32"), dense @ x.double()
    for prescale in (False, True):
        y = gnnsparse.spmm(a, x, plan=Plan("panel", height=height, prescale=prescale))
        assert_accurate(y, plain, exact, factor, floor=0.0)


@pytest.mark.parametrize("height", HEIGHTS)
def test_fp32_keeps_its_range(native: RunningPath, height: int) -> None:
    a = make(random_graph(16, 16, 1.0, weighted=False), "cpu", precision="fp32")
    x = torch.ones(16, 4)
    large = 1.5 * 2.0**127  # nothing is left for the doubling that the other precisions do
    x[5, 2] = large
    y = gnnsparse.spmm(a, x, plan=Plan("panel", height=height))
    assert torch.equal(y[:, 2], torch.full((16,), large))


@given(
    rows=st.integers(1, 70),
    cols=st.integers(1, 100),
    density=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    empty_rows=st.sampled_from([0.0, 0.5]),
    weighted=st.booleans(),
    height=st.sampled_from(HEIGHTS),
    width=st.integers(1, 80),
    limit=st.integers(1, 4),
    precision=st.sampled_from(PRECISIONS),
    seed=st.integers(0, 2**20),
)
def test_any_panels(
    native: RunningPath, rows: int, cols: int, density: float, empty_rows: float, weighted: bool,
    height: int, width: int, limit: int, precision: str, seed: int,
) -> None:  # fmt: skip
    weighted = weighted and height in VALUE_HEIGHTS
    graph = random_graph(rows, cols, density, seed=seed, empty_rows=empty_rows, weighted=weighted)
    a = make(graph, "cpu", precision=precision)
    x = torch.randn(cols, width, generator=torch.Generator().manual_seed(seed))
    plan = Plan("panel", height=height, tile_limit=limit, prescale=limit % 2 == 0, longest_first=limit > 2)
    check(a, dense_matrix(graph, None), emulated.padded(x, precision), plan=plan)


def test_what_the_panel_kernel_does_not_take_is_refused(built: ModuleType) -> None:
    graph = random_graph(20, 20, 0.2)
    x, y = torch.zeros(20, 8), torch.zeros(20, 8)

    def spmm(blocked: BlockedMatrix, precision: str, slices: int = 1) -> None:
        storage = Precision.parse(precision).storage
        built.cuda_spmm_panel(
            blocked.view(), _native.StoredRows(), _native.WorkList(None, None, 0),
            dense_view(x.to(storage)), dense_view(y), 8, slices, None, Precision.parse(precision).code, 0,
        )  # fmt: skip

    def converted(name: str, precision: str, panel: int | None = None) -> BlockedMatrix:
        spec = format_spec(name, precision, panel=panel)
        values = round_operand(graph.values, Precision.parse(precision)) if spec.stores_values else None
        return convert(graph.csr, spec, values)

    spmm(converted("panel", "fp16", 32), "fp16")
    with pytest.raises(ValueError, match="takes panels in lane order"):
        spmm(converted("window", "fp16"), "fp16")
    with pytest.raises(ValueError, match="entries hold values of 16 bits"):
        spmm(converted("panel-values", "fp16", 32), "fp32")
    with pytest.raises(ValueError, match="entries hold values of 32 bits"):
        spmm(converted("panel-values", "fp32", 32), "fp16")
    for precision in ("fp16", "fp32"):
        dense = replace(format_spec("panel-values", precision, panel=32), encoding="dense")
        values = round_operand(graph.values, Precision.parse(precision))
        with pytest.raises(ValueError, match="values of panels of 32 rows are entries"):
            spmm(convert(graph.csr, dense, values), precision)
    with pytest.raises(ValueError, match="slices: must be at least 1"):
        spmm(converted("panel", "fp16", 32), "fp16", slices=0)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("weights", [None, "random"])
@pytest.mark.parametrize(("lanes", "group"), [(1, 0), (8, 0), (8, 20), (32, 1), (32, 10_000)])
def test_csr(copyless: RunningPath, precision: str, weights: str | None, lanes: int, group: int) -> None:
    """Rows by themselves and in groups, long ones cut."""
    graph = random_graph(70, 70, 0.06, weighted=weights is not None, hubs=2, empty_rows=0.2)
    a = make(graph, "cpu", precision=precision, reorder="degree")
    for limit in (8, 10_000):
        plan = Plan("csr", lanes, 32 if group == 0 else lanes, row_limit=limit, group=group)
        check_dtypes(a, dense_matrix(graph, None), (7, 64), plan)
    assert "cuda_spmm_csr" in copyless.called


#: Plans by which results leave in every way: panels cut and whole, slices, rows and groups of rows.
ODD_PLANS = (
    Plan("panel", height=16, tile_limit=1000, slices=3),
    Plan("panel", height=32, tile_limit=1),
    Plan("csr", 32, 32, row_limit=1000, group=20),
    Plan("csr", 8, 32, row_limit=1000),
    Plan("csr", 1, 1, row_limit=8, group=20),
    Plan("csr", 1, 2, row_limit=12),
)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("plan", ODD_PLANS, ids=lambda plan: plan.label)
def test_odd_widths_strides_and_offsets(
    late: ModuleType, monkeypatch: pytest.MonkeyPatch, precision: str, plan: Plan
) -> None:
    """Rows of results that begin anywhere; nothing beside them is written."""
    graph = random_graph(37, 40, 0.1, weighted=False, hubs=1, empty_rows=0.2)
    a, dense = make(graph, "cpu", precision=precision, reorder="degree"), dense_matrix(graph, None)
    around, kept = 1234.0, []

    def new_empty(x: torch.Tensor, rows: int, width: int) -> torch.Tensor:
        memory = x.new_full((offset + rows * (width + gap),), around)
        y = memory.as_strided((rows, width), (width + gap, 1), offset)
        kept.append((memory, y))
        return y

    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)
    strides = itertools.cycle([(0, 0), (0, 1), (1, 0), (3, 5), (6, 2), (0, 7), (8, 8), (2, 3)])
    with emulated.running(late):
        for width in (1, 7, 41, 47, 100, 130, 300, 500, 600, 602):
            for dtype in dict.fromkeys((a.precision.storage, torch.float32)):
                gap, offset = next(strides)
                check(a, dense, torch.randn(40, width).to(dtype), plan=plan)
                memory, y = kept.pop()
                y.fill_(around)
                assert bool((memory == around).all())


def _between_vectors(rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """A matrix whose rows begin at odd multiples of half a vector, with NaN beside them."""
    half = HALF_VECTOR_BYTES // dtype.itemsize
    stride = width + 2 * half
    memory = torch.full((half + rows * stride,), torch.nan, dtype=dtype)
    x = memory.as_strided((rows, width), (stride, 1), half)
    return x.copy_(torch.randn(rows, width))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("weights", [None, "gcn"])
@pytest.mark.parametrize("height", HEIGHTS)
def test_rows_of_half_vectors_are_read_as_they_are(
    native: RunningPath, monkeypatch: pytest.MonkeyPatch, precision: str, weights: str | None, height: int
) -> None:
    """With the bits of an X whose rows begin at vectors, and without a copy of it, where slices leave L2."""
    monkeypatch.setattr(Problem, "slice_is_resident", False)
    graph = random_graph(90, 90, 0.06, weighted=False, hubs=2, empty_rows=0.2)
    a = make(graph, "cpu", precision=precision, values=weights, reorder="degree", format="window")
    dtype, plan = a.precision.storage, Plan("panel", height=height, tile_limit=2, slices=2)
    half = HALF_VECTOR_BYTES // dtype.itemsize
    for width in (half, 7 * half, 37 * half):
        x = _between_vectors(90, width, dtype)
        native.called.clear()
        y = gnnsparse.spmm(a, x, plan=plan)
        assert "cuda_spmm_panel" in native.called
        assert "cuda_pack" not in native.called
        whole = torch.zeros(90, width + half, dtype=dtype)
        whole[:, :width] = x
        assert torch.equal(y, gnnsparse.spmm(a, whole[:, :width], plan=plan))


@pytest.mark.parametrize(
    ("rows", "width", "resident", "copied"),
    [(40, 20, False, False), (400, 20, False, True), (40, 548, False, True), (40, 20, True, True)],
)
def test_which_rows_of_half_vectors_are_copied(
    native: RunningPath, monkeypatch: pytest.MonkeyPatch, rows: int, width: int, resident: bool, copied: bool
) -> None:
    """Those that are read often, long ones, and those of slices that stay in L2."""
    monkeypatch.setattr(Problem, "slice_is_resident", resident)
    a = make(random_graph(rows, 60, 0.5, weighted=False), "cpu", precision="fp16", format="window")
    gnnsparse.spmm(a, _between_vectors(60, width, torch.float16), plan=Plan("panel", height=16))
    assert ("cuda_pack" in native.called) == copied


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("stored", ["fp16", "bf16", "fp32", "tf32"])
def test_packing(late: ModuleType, dtype: torch.dtype, stored: str) -> None:
    """Rows of X that begin anywhere, rounded, scaled and padded with zeros."""
    precision = Precision.parse(stored)
    memory = torch.randn(4000).to(dtype)
    for width, gap, offset in itertools.product((1, 7, 8, 41, 50, 100), (0, 1, 2, 4), (0, 1, 2, 4)):
        x = memory.as_strided((5, width), (width + gap, 1), offset)
        for scale in (None, torch.randn(5)):
            packed = torch.full((5, -(-width // 8) * 8 + 8), torch.nan, dtype=precision.storage)
            late.cuda_pack(x, scale, _native.Dense(packed, stored == "tf32"), 0)
            wanted = round_operand(x.float() if scale is None else x.float() * scale[:, None], precision)
            assert torch.equal(packed[:, :width], wanted)
            assert not packed[:, width:].any()


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", ["fp16", "bf16", "tf32"])
@pytest.mark.parametrize("limit", [1, 1000])
def test_windows(copyless: RunningPath, precision: str, limit: int) -> None:
    graph = random_graph(50, 90, 0.08, hubs=1, empty_rows=0.2)
    a = make(graph, "cpu", precision=precision, format="window")
    plan = Plan("window", tile_limit=limit)
    check_dtypes(a, dense_matrix(graph, None), (7, 64), plan)
    assert "cuda_spmm_window" in copyless.called


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("group", [0, 1, 20])
def test_infinity_stays_in_its_rows(copyless: RunningPath, precision: str, group: int) -> None:
    check_infinity("cpu", precision, group)
    assert "cuda_spmm_csr" in copyless.called
