"""The CUDA sources of SpMM, run on the CPU, against float64."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseGraph, _native
from gnnsparse.ops import spmm_cuda
from gnnsparse.plan import Plan, Problem
from gnnsparse.plan.gpu_records import record_for
from gnnsparse.precision import Precision, round_operand
from gnnsparse.runtime.device import (
    HALF_VECTOR_BYTES,
    NARROW_WIDTH,
    SECTOR_BYTES,
    SLICE_BYTES,
    VECTOR_BYTES,
)
from gnnsparse.testing import assert_accurate, random_graph
from tests import emulated
from tests.gpu_paths import H200, RunningPath
from tests.helpers import PRECISIONS, dense_matrix, make, plain_product
from tests.ops.conftest import Place, graphs
from tests.ops.test_spmm import check, check_dtypes, weighted_operand

pytestmark = pytest.mark.usefixtures("poisoned")
#: The panels that SpMM has kernels for, and those of them that can hold values.
HEIGHTS = tuple(_native.SPMM_PANEL_BLOCKS)
VALUE_HEIGHTS = tuple(height for height in HEIGHTS if _native.PANEL_BRICK_ROWS[height] == height)


@pytest.mark.parametrize(
    ("height", "weights"),
    [*itertools.product(HEIGHTS, (None, "gcn", "mean")), *((height, "random") for height in VALUE_HEIGHTS)],
)
@pytest.mark.parametrize(
    ("limit", "slices", "widths"),
    [(1, 1, (7, 64, 136)), (1000, 2, (7, 64, 136)), (2, 1, (1, 24)), (3, 2, (70, 72))],
)
def test_panels(
    gpu_place: Place, precision: str, height: int, weights: str | None, limit: int, slices: int,
    widths: tuple[int, ...],
) -> None:  # fmt: skip
    """Panels in one piece and cut, one slice of X a warp and two; whole ones start anywhere."""
    a, dense = weighted_operand(gpu_place.device, 90, 0.06, weights, precision=precision, format="window")
    once = slices == 1
    plan = Plan("panel", height=height, tile_limit=limit, slices=slices, longest_first=once, prescale=once)
    check_dtypes(a, dense, widths, plan)
    together, x = replace(plan, concurrent_panels=3), torch.randn(90, 200)
    check(a, dense, x, plan=together)
    check(a.T, dense.T, x[:, :40], plan=together)
    x = x.to(gpu_place.device)
    assert torch.equal(gnnsparse.spmm(a, x, plan=together), gnnsparse.spmm(a, x, plan=together))
    assert gpu_place.ran("cuda_spmm_panel")


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


@pytest.mark.parametrize(
    ("density", "hubs"), [(1.0, 0), (0.9, 0), (0.3, 5), (0.15, 0), (0.02, 0), (0.02, 20)]
)
@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_entries(gpu_place: Place, precision: str, density: float, hubs: int, limit: int) -> None:
    """Full tiles, tiles with hardly anything, rows that are in every tile; panels cut anywhere."""
    graph = random_graph(90, 200, density, hubs=hubs, empty_rows=0.0 if density == 1.0 else 0.2)
    a = make(graph, gpu_place.device, precision=precision, reorder="degree")
    plan = Plan("panel", height=32, tile_limit=limit, slices=limit % 3 + 1, concurrent_panels=limit % 2)
    dense = dense_matrix(graph, None)
    check(a, dense, emulated.padded(torch.randn(200, 72), precision), plan=plan)
    check(a.T, dense.T, torch.randn(90, 200), plan=plan)
    assert a.kernels.panel(32).spec.entry_layout is not None


@pytest.mark.parametrize(
    ("height", "weights", "factor"),
    [
        *((height, weights, 2) for height in HEIGHTS for weights in ("ones", "columns")),
        *((height, "values", 5) for height in VALUE_HEIGHTS),
    ],
)
def test_fp32_is_right_to_float32(native: RunningPath, height: int, weights: str, factor: float) -> None:
    """Two tf32 parts of each operand: one would be 1000 times further off. Sums of values are cut off."""
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
    graph=graphs(80, 200, weighted=st.booleans(), empty_rows=st.sampled_from([0.0, 0.5])),
    height=st.sampled_from([0, *HEIGHTS]), width=st.integers(1, 80), limit=st.integers(1, 4),
    group=st.sampled_from([1, 30, 200, 3000]), precision=st.sampled_from(PRECISIONS),
)  # fmt: skip
@settings(max_examples=60)
def test_property(
    native: RunningPath, graph: SparseGraph, height: int, width: int, limit: int, group: int, precision: str
) -> None:
    """Panels, and without a height few columns in groups of rows."""
    plan = Plan("csr", row_limit=(1, 9, 40, 300)[limit - 1], group=group, narrow=True)
    if height:
        options = {"prescale": limit % 2 == 0, "longest_first": limit > 2}
        plan = Plan("panel", height=height, tile_limit=limit, **options)
        graph = graph if height in VALUE_HEIGHTS else replace(graph, values=None)
    x = torch.randn(graph.num_cols, width if height else min(width, NARROW_WIDTH))
    a = make(graph, "cpu", precision=precision)
    check(a, dense_matrix(graph, None), emulated.padded(x, precision) if height else x, plan=plan)


@pytest.mark.parametrize("weights", [None, "gcn", "random"])
@pytest.mark.parametrize(
    ("lanes", "row_lanes", "group"),
    [
        (1, 1, 0), (1, 2, 0), (2, 4, 0), (4, 32, 0), (8, 8, 0), (16, 32, 0), (32, 32, 0), (1, 1, 20),
        (8, 8, 20), (32, 32, 1), (32, 32, 10_000),
    ],
)  # fmt: skip
def test_csr(
    cuda_place: Place, precision: str, weights: str | None, lanes: int, row_lanes: int, group: int
) -> None:
    """Rows by themselves and in groups, long ones cut; rank-one weights in X and in the kernel."""
    a, dense = weighted_operand(cuda_place.device, 70, 0.06, weights, precision=precision)
    for limit, widths in ((8, (7, 64)), (10_000, (24, 130))):
        plan = Plan("csr", lanes, row_lanes, row_limit=limit, group=group, prescale=limit == 8)
        check_dtypes(a, dense, widths, plan)
    assert cuda_place.ran("cuda_spmm_csr")


#: Plans by which results leave in every way: panels cut and whole, slices, rows and groups of rows.
ODD_PLANS = (
    Plan("panel", height=16, tile_limit=1000, slices=3),
    Plan("panel", height=32, tile_limit=1),
    Plan("csr", 32, 32, row_limit=1000, group=20),
    Plan("csr", 8, 32, row_limit=1000),
    Plan("csr", 1, 1, row_limit=8, group=20),
    Plan("csr", 1, 2, row_limit=12),
)


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


@pytest.mark.parametrize("weights", [None, "gcn", "random"])
@pytest.mark.parametrize("group", [1, 20, 10_000])
def test_rows_are_read_by_units(late: ModuleType, precision: str, weights: str | None, group: int) -> None:
    """Rows that begin at any unit give the bits of a padded X and of rows by themselves, without a copy."""
    with emulated.running(late) as native:
        a, dense = weighted_operand("cpu", 70, 0.06, weights, precision=precision)
        dtype = a.precision.storage
        for width, limit in itertools.product((33, 34, 66, 67, 130, 301, 602), (8, 1000)):
            row = width * dtype.itemsize
            if row % VECTOR_BYTES == 0:
                continue
            unit = next(n for n in (8, 4, 2) if row % n == 0) // dtype.itemsize
            plan = Plan("csr", 32, 32, row_limit=limit, group=group, prescale=False)
            memory = torch.full((a.shape[1] * (width + unit) + unit,), torch.nan, dtype=dtype)
            x = memory.as_strided((a.shape[1], width), (width + unit, 1), unit)
            x.copy_(torch.randn(x.shape))
            native.called.clear()
            check(a, dense, x, plan=plan)
            assert "cuda_pack" not in native.called
            y = gnnsparse.spmm(a, x, plan=plan)
            padded = torch.zeros(a.shape[1], width + 8 - width % 8, dtype=dtype)[:, :width].copy_(x)
            assert torch.equal(y, gnnsparse.spmm(a, padded, plan=plan))
            assert torch.equal(y, gnnsparse.spmm(a, x, plan=replace(plan, group=0)))


def test_blocks_of_the_same_rows_follow_each_other_where_x_leaves_l2(native: RunningPath) -> None:
    """Two blocks for each group of rows, of which there are several, and one that is cut."""
    graph = random_graph(20, 70_000, 0.0003, weighted=False, hubs=1, empty_rows=0.2)
    a = make(graph, "cpu", precision="fp32")
    check(a, dense_matrix(graph, None), torch.randn(70_000, 130), plan=Plan("csr", row_limit=50, group=20))


@pytest.mark.parametrize("weights", [None, "gcn"])
@pytest.mark.parametrize("height", HEIGHTS)
def test_rows_of_half_vectors_are_read_as_they_are(
    native: RunningPath, monkeypatch: pytest.MonkeyPatch, precision: str, weights: str | None, height: int
) -> None:
    """With the bits of an X whose rows begin at vectors, and without a copy of it, where slices leave L2."""
    monkeypatch.setattr(Problem, "slice_is_resident", False)
    a, _ = weighted_operand("cpu", 90, 0.06, weights, precision=precision, format="window")
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


# Few columns, whose nonzeros a warp takes side by side.


@pytest.mark.parametrize("weights", [None, "gcn", "random"])
@pytest.mark.parametrize("group", [1, 60, 10_000])
def test_groups_of_a_warp(cuda_place: Place, precision: str, weights: str | None, group: int) -> None:
    """Rows that fit into the warp's memory together, longer ones, those that are cut, and empty ones."""
    a, dense = weighted_operand(cuda_place.device, 140, 0.08, weights, precision=precision)
    prescale = weights != "gcn" or group == 60
    for limit, widths in ((3, (1, 5)), (50, (2, 31)), (10_000, (3, 7, NARROW_WIDTH))):
        plan = Plan("csr", row_limit=limit, group=group, narrow=True, prescale=prescale)
        check_dtypes(a, dense, widths, plan)
    assert cuda_place.ran("cuda_spmm_csr")


def test_rows_longer_than_a_warp_has_room_for(native: RunningPath, precision: str) -> None:
    """One column leaves a warp room for 256 nonzeros: shorter and longer rows, cut and whole."""
    graph = random_graph(9, 700, 0.45, hubs=2, empty_rows=0.3)
    a, dense = make(graph, "cpu", precision=precision), dense_matrix(graph, None)
    for limit in (100, 257, 10_000):
        for group in (1, 1000):
            plan = Plan("csr", row_limit=limit, group=group, narrow=True)
            check(a, dense, torch.randn(700, 1), plan=plan)


def test_features_are_read_where_they_are(native: RunningPath, precision: str) -> None:
    """A column of a matrix, and rows that begin at any element, need no copy."""
    graph = random_graph(60, 60, 0.1, weighted=False)
    a, dense = make(graph, "cpu", precision=precision), dense_matrix(graph, None)
    whole = torch.randn(60, 11).to(a.precision.storage)
    for width in (1, 2, 7):
        native.called.clear()
        check(a, dense, whole[:, 3 : 3 + width], plan=Plan("csr", row_limit=1000, group=40, narrow=True))
        assert "cuda_pack" not in native.called


def test_what_narrow_plans_do_not_take_is_refused(native: RunningPath) -> None:
    a, wide = make(random_graph(20, 20, 0.2), "cpu"), NARROW_WIDTH + 1
    for group, width in ((10, wide), (0, 1)):
        with pytest.raises(ValueError, match="plan: narrow takes group > 0 and at most 32 columns"):
            gnnsparse.spmm(a, torch.zeros(20, width), plan=Plan("csr", group=group, narrow=True))


# Panels of 32 rows whose stored values are entries.

#: Entries of a K tile: fewer and more than a lane's vectors, than it loads ahead, and than are cleared one
#: by one.
COUNTS = (32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300, 512, 1024)


def made(row: torch.Tensor, col: torch.Tensor, shape: tuple[int, int], values: torch.Tensor) -> SparseGraph:
    return SparseGraph.from_edge_index(torch.stack([col, row]), (shape[1], shape[0]), values)


def spread(counts: list[int], seed: int) -> SparseGraph:
    """A graph of one panel whose K tile i, of 32 columns of its own, has counts[i] nonzeros, at least 32."""
    generator, rows, cols = torch.Generator().manual_seed(seed), [], []
    for tile, count in enumerate(counts):
        # The first row has all 32 columns, so that no other K tile gets one of them; the others are drawn.
        rest = torch.randperm(31 * 32, generator=generator)[: count - 32] + 32
        place = torch.cat([torch.arange(32), rest])
        rows.append(place // 32)
        cols.append(32 * tile + place % 32)
    values = torch.randn(sum(counts), generator=generator)
    return made(torch.cat(rows), torch.cat(cols), (32, 32 * len(counts)), values)


@given(
    counts=st.lists(st.sampled_from(COUNTS), min_size=1, max_size=6),
    width=st.sampled_from([1, 31, 32, 72]),
    limit=st.sampled_from([1, 2, 100]),
    slices=st.integers(1, 3),
    precision=st.sampled_from(PRECISIONS),
    seed=st.integers(0, 2**20),
)
def test_k_tiles_of_any_number_of_entries(
    native: RunningPath, counts: list[int], width: int, limit: int, slices: int, precision: str, seed: int
) -> None:
    """What a K tile left in shared memory would be in the sums of the next: few entries follow many."""
    graph = spread(counts, seed)
    a = make(graph, "cpu", precision=precision)
    panel = a.kernels.panel(32)
    assert panel.value_ptr is not None
    assert panel.spec.entry_layout is not None
    group = panel.spec.entry_layout["group"]
    assert panel.value_ptr.diff().tolist() == [-(-count // group) * group for count in counts]
    x = torch.randn(graph.num_cols, width, generator=torch.Generator().manual_seed(seed))
    plan = Plan("panel", height=32, tile_limit=limit, slices=slices)
    check(a, dense_matrix(graph, None), emulated.padded(x, precision), plan=plan)
    assert "cuda_spmm_panel" in native.called


def test_one_entry(native: RunningPath, precision: str) -> None:
    x = torch.randn(40, 33)
    for row, col in itertools.product((0, 7, 8, 15, 16, 31, 32, 39), (0, 1, 6, 31, 39)):
        graph = made(torch.tensor([row]), torch.tensor([col]), (40, 40), torch.tensor([1.5]))
        y = gnnsparse.spmm(make(graph, "cpu", precision=precision), x, plan=Plan("panel", height=32))
        wanted = torch.zeros(40, 33)
        wanted[row] = 1.5 * round_operand(x[col], Precision.parse(precision)).float()
        assert_accurate(y, wanted, wanted.double())
        assert not y[torch.arange(40) != row].any()


@pytest.mark.parametrize("empty", [0, 16])
@pytest.mark.parametrize(("limit", "slices"), [(2, 1), (100, 3)])
def test_both_heights_give_equal_bits_of_equal_k_tiles(
    native: RunningPath, precision: str, empty: int, limit: int, slices: int
) -> None:
    """Where every other 16 rows are empty, panels of 32 rows have the columns of those of 16."""
    graph = random_graph(100, 300, 0.3, hubs=2)
    assert graph.values is not None
    row, col = graph.csr.row_index(), graph.csr.indices.long()
    kept = row // 16 % 2 != empty // 16
    a = make(made(row[kept], col[kept], (100, 300), graph.values[kept]), "cpu", precision=precision)
    x = torch.randn(300, 72)
    low, tall = (
        gnnsparse.spmm(a, x, plan=Plan("panel", height=height, tile_limit=limit, slices=slices))
        for height in (16, 32)
    )
    assert torch.equal(low, tall)
    rows = torch.arange(100)
    assert not tall[rows // 16 % 2 == empty // 16].any()
    assert tall[rows // 16 % 2 != empty // 16].any(1).all()
