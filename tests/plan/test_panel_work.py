"""How panels are cut and ordered, and what the model makes of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseGraph, _native
from gnnsparse.bench.candidates import swept
from gnnsparse.formats import BlockedMatrix, format_spec
from gnnsparse.formats.convert import convert
from gnnsparse.formats.csr import Csr
from gnnsparse.plan import CsrPlan, PanelPlan, Problem, choose_plan
from gnnsparse.plan.csr import CSR
from gnnsparse.plan.gpu_records import record_for
from gnnsparse.plan.gpu_records.model import PanelLoad, PanelWork, gather_us, panel_us, pass_us
from gnnsparse.plan.gpu_records.record import PanelVariant
from gnnsparse.plan.panel import HEIGHTS, PANELS
from gnnsparse.plan.work import cut_panels
from gnnsparse.precision import Precision
from gnnsparse.runtime.device import PANEL_K_TILE, SLICE_BYTES, Device
from gnnsparse.testing import random_graph
from tests.gpu_paths import H200
from tests.helpers import panel_counts


def panels_of(csr: Csr, height: int = 16) -> BlockedMatrix:
    return convert(csr, format_spec("panel", Precision.FP16, panel=height), None)


@given(
    rows=st.integers(1, 200), cols=st.integers(1, 300), density=st.floats(0, 1), limit=st.integers(1, 12),
    together=st.integers(1, 50), seed=st.integers(0, 10),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_a_sweep_changes_nothing_but_where_whole_panels_start(
    rows: int, cols: int, density: float, limit: int, together: int, seed: int
) -> None:
    panel = panels_of(random_graph(rows, cols, density, hubs=1, seed=seed).csr)
    plain, swept = cut_panels(panel, limit), cut_panels(panel, limit, concurrent_panels=together)
    assert torch.equal(plain.items[:, :3], swept.items[:, :3])
    assert torch.equal(plain.cuts, swept.cuts)
    cut = plain.items[:, 3] >= 0
    assert torch.equal(plain.items[cut], swept.items[cut])
    first, stages = -1 - swept.items[~cut, 3], swept.items[~cut, 2]
    assert bool((first >= 0).all())
    assert bool((first < stages.clamp(min=1)).all())


def test_panels_that_run_together_read_the_same_columns() -> None:
    """Panels of 10 stages, 8 at a time: each starts 10 / 8 stages after the one before."""
    rows, length, together = 16 * 40, 10, 8
    indices = torch.arange(length * PANEL_K_TILE, dtype=torch.int32).repeat(rows)
    panel = panels_of(Csr(torch.arange(rows + 1) * length * PANEL_K_TILE, indices, length * PANEL_K_TILE))
    first = (-1 - cut_panels(panel, 1000, concurrent_panels=together).items[:, 3]).tolist()
    begin = [number * length / together for number in range(len(first))]
    for now in range(length, int(begin[-1])):
        running = [i for i, start in enumerate(begin) if start <= now < start + length]
        places = [(first[i] + int(now - begin[i])) % length for i in running]
        assert len(running) == together
        assert any(all((place - low) % length <= 1 for place in places) for low in places)


def test_the_floor_gathers_in_the_order_of_the_sweep() -> None:
    """Every slot once, and neighbours in the list near to each other in X."""
    panel = panels_of(random_graph(16 * 60, 3000, 0.1, weighted=False).csr)
    items = cut_panels(panel, 1000, concurrent_panels=20).items
    order = swept(panel.columns, items, 20)
    assert torch.equal(order.sort().values, panel.columns.sort().values)
    stages = order.view(-1, PANEL_K_TILE)
    inner = stages[len(stages) // 4 : -len(stages) // 4].clamp(min=0).double().mean(1)
    away = (inner[1:] - inner[:-1]).abs()
    assert float(torch.minimum(away, 3000 - away).median()) < 300
    plain = panel.columns.view(-1, PANEL_K_TILE).clamp(min=0).double().mean(1)
    assert float((inner - inner.median()).abs().median()) > 300  # it does go round
    assert stages.shape[0] == plain.shape[0]


def test_more_k_tiles_than_a_kernel_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = panels_of(random_graph(40, 300, 0.3).csr)
    monkeypatch.setattr("gnnsparse.plan.work._MOST_TILES", panel.slots // PANEL_K_TILE)
    with pytest.raises(
        ValueError, match=rf"graph: has {panel.slots} column slots in panels; accepted: below"
    ):
        cut_panels(panel, 10)


@pytest.mark.parametrize("height", [16, 32])
def test_lengths_of_panels(height: int) -> None:
    """Short ones as they are, long ones rounded up by a sixteenth at most; never without a panel."""
    graph = random_graph(300, 4000, 0.04, weighted=False, hubs=3, empty_rows=0.3)
    kernels = gnnsparse.prepare(graph, precision="fp16", cache=False).kernels
    exact = Counter((panels_of(graph.csr, height).panel_ptr.diff() // PANEL_K_TILE).tolist())
    counts = kernels.panel_counts(height)
    given_lengths = dict(counts.tiles)
    assert sum(given_lengths.values()) == sum(exact.values())
    assert counts.slots == PANEL_K_TILE * sum(tiles * count for tiles, count in exact.items())
    empty = SparseGraph(Csr(torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), 5))
    assert gnnsparse.prepare(empty, cache=False).kernels.panel_counts(height).tiles == ()
    for tiles in exact:
        assert any(tiles <= length <= tiles * 17 / 16 for length in given_lengths)
        assert tiles > 32 or tiles in given_lengths


WORK = PanelWork(16, 32 * 5000, ((5, 1000),), 2, 256, 0.0, 100_000, 3168)
RECORD = record_for(H200)


def modelled(work: PanelWork, tile_limit: int) -> float:
    row = replace(
        RECORD.panel.heights[16], warp_us=3e-4, slice_us=4e-4, tile_us=2e-4, wait_us=1.0, slice_wait_us=0.3,
        tile_wait_us=0.3, round=0.8,
    )  # fmt: skip
    load = PanelLoad.of(work, 1, tile_limit)
    return float(panel_us(load, RECORD.memory, RECORD.panel, row, PanelVariant(0.8, 1.0)))


def test_what_costs_time() -> None:
    base = modelled(WORK, 100)
    assert modelled(replace(WORK, slots=32 * 10_000, panels=((10, 1000),)), 100) > base
    assert modelled(replace(WORK, panels=((4, 999), (1004, 1))), 2000) > 10 * base  # one waits
    assert modelled(WORK, 3) > base  # cut, and put together
    assert modelled(replace(WORK, concurrent_panels=100), 100) > base  # in rounds
    assert modelled(replace(WORK, value_bytes=32.0), 100) > base
    assert modelled(replace(WORK, panels=()), 100) < base


def test_gathers_are_slower_where_more_is_in_use() -> None:
    times = [gather_us(RECORD.memory, 1e9, in_use) for in_use in (0, 20e6, 50e6, 100e6, 1e9, 1e12)]
    assert times == sorted(times)
    assert times[0] == pytest.approx(1e3 / RECORD.memory.l2[0][1])  # from TB/s


def problem(tiles: tuple[tuple[int, int], ...]) -> Problem:
    rows, slots = 16 * sum(n for _, n in tiles), 32 * sum(s * n for s, n in tiles)
    tall = tuple((2 * length, -(-count // 2)) for length, count in tiles)
    panels = panel_counts(slots, 2 * slots, tiles=(tiles, tall))
    return Problem("spmm", H200, Precision.FP16, rows, rows, 2 * slots, 64, panels=panels)


def test_what_panels_are_cut_and_how_they_start() -> None:
    """A second kernel takes longer than a part of a small matrix saves; rows in L2 need no sweep."""
    assert PANELS[16].default(problem(((14, 205), (16, 205)))).tile_limit >= 16
    assert PANELS[16].default(problem(((2, 3000), (900, 2)))).tile_limit <= 100
    small, large = problem(((30, 3000),)), problem(((30, 150_000),))
    plan = PANELS[16].default(small)
    assert (plan.concurrent_panels, plan.longest_first) == (0, True)
    plan = PANELS[32].default(large)
    assert (plan.concurrent_panels, plan.longest_first) == (16 * 132, False)
    assert choose_plan(large).concurrent_panels in (16 * 132, 24 * 132)


def test_the_plan_and_the_kernels_know_the_same_heights() -> None:
    """plan/panel.py and native/include/gnnsparse/panel_heights.h have a row each for every height."""
    assert set(HEIGHTS) == set(_native.PANEL_BRICK_ROWS)
    assert {height for height, row in HEIGHTS.items() if "spmm" in row.ops} == set(_native.SPMM_PANEL_BLOCKS)
    for height, row in HEIGHTS.items():
        assert not row.stored or _native.PANEL_BRICK_ROWS[height] == height


def test_an_x_of_8_bits_has_short_panels_but_for_sums_of_integers() -> None:
    of = problem(((30, 150_000),))
    slots, wide = of.panels[0].slots, replace(of, width=300)
    assert (wide.slices, replace(wide, quantization=Precision.INT8).slices) == (5, 3)
    chosen = set()
    for tenths in range(4, 16):  # column slots of tall panels, by those of short ones
        mixed = replace(of, panels=panel_counts(slots, slots * tenths // 10))
        as_many_bytes = replace(mixed, width=2 * mixed.width)
        integers, floats = (replace(as_many_bytes, quantization=p) for p in (Precision.INT8, Precision.FP8))
        assert PANELS[32].can_run(mixed)
        assert PANELS[32].can_run(integers)
        for other in (floats, replace(integers, weighted=True)):
            assert "needs panels of 16 rows" in str(PANELS[32].can_run(other).problem)
        plans = [choose_plan(of) for of in (mixed, integers, floats)]
        chosen.add(tuple(plan.height for plan in plans if isinstance(plan, PanelPlan)))
    # Sums of integers take a little longer by tall panels.
    assert chosen == {(32, 32, 16), (32, 16, 16), (16, 16, 16)}


@pytest.mark.parametrize(("width", "height"), [(32, 16), (64, 16), (72, 32), (128, 32), (130, 16), (132, 32)])
def test_two_warps_share_a_panel_where_both_have_features(width: int, height: int) -> None:
    """Panels of integers of 32 rows, and not where a row of results begins between four elements."""
    of = replace(problem(((30, 150_000),)), width=width, quantization=Precision.INT8)
    slots = of.panels[0].slots
    plan = choose_plan(replace(of, panels=panel_counts(slots, slots * 7 // 10)))
    assert isinstance(plan, PanelPlan)
    assert plan.height == height
    assert plan.reasons[0] == "X has 8 bits"


def test_the_csr_kernel_pays_for_halves_and_for_short_rows_of_units() -> None:
    def time_us(width: int, precision: Precision = Precision.FP16) -> float:
        of = replace(problem(((3, 20_000),)), width=width, precision=precision)
        return float(CSR.time_us(of, CSR.default(of)))

    assert time_us(41) > 1.5 * time_us(64)
    assert time_us(601) > 1.2 * time_us(608)
    assert time_us(602) < time_us(608)


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("width", [1, 2])
def test_one_and_two_columns_are_multiplied_nonzero_by_nonzero(precision: Precision, width: int) -> None:
    of = replace(problem(((3, 20_000),)), width=width, precision=precision)
    plan = CSR.default(of)
    assert plan.narrow
    assert 64 <= plan.group <= plan.row_limit
    assert CSR.time_us(of, plan) < CSR.time_us(of, CSR.by_vectors(of))
    assert {variant.narrow for variant in CSR.variants(of)} == {True, False}  # type: ignore[attr-defined]
    for change in ({"width": 3}, {"op": "sddmm"}, {"nnz": _native.MOST_NARROW_NNZ + 1}):
        assert not CSR.default(replace(of, **change)).narrow
    # The model would leave them to panels.
    of = replace(problem(((30, 150_000),)), width=width)
    chosen = choose_plan(of)
    assert isinstance(chosen, CsrPlan)
    assert chosen.narrow
    assert chosen.reasons[0] == "X has at most 2 columns"
    assert width == 1 or PANELS[16].time_us(of, PANELS[16].default(of)) < CSR.time_us(of, CSR.default(of))
    assert isinstance(choose_plan(replace(of, quantization=Precision.INT8)), PanelPlan)
    # Rows that are long enough for all lanes take vectors from two columns on.
    assert CSR.default(like_reddit(width)).narrow is (width == 1)


def like_reddit(width: int, precision: Precision = Precision.FP32) -> Problem:
    """Rows of 491 nonzeros with stored weights; a column slot of a 16-row panel has 2.1 of them."""
    return replace(
        problem(((30, 100),)), rows=232_965, cols=232_965, nnz=114_390_270, width=width, precision=precision,
        weighted=True, panels=panel_counts(54_372_960, 45_302_784),
    )  # fmt: skip


@pytest.mark.parametrize(("width", "precision"), [(2, "fp32"), (7, "fp32"), (8, "tf32"), (16, "fp16")])
def test_few_columns_are_left_to_no_panels_where_x_stays_in_l2(width: int, precision: str) -> None:
    of = like_reddit(width, Precision.parse(precision))
    plan = choose_plan(of)
    assert isinstance(plan, CsrPlan)
    assert not plan.narrow
    assert plan.reasons[0] == "rows of X have at most 32 bytes, and stay in L2"
    # Longer rows, an X that does not stay in L2, and columns that many nonzeros share: by the models.
    for other in (
        replace(of, width=33), replace(of, cols=10**7), replace(of, panels=panel_counts(45_000_000, 1)),
        replace(of, quantization=Precision.INT8), replace(of, op="sddmm"),
    ):  # fmt: skip
        assert CSR.is_asked_for(other) == ""


@pytest.mark.parametrize("weighted", [True, False])
def test_panels_of_bits_multiply_two_vectors_at_the_cost_of_one(weighted: bool) -> None:
    """Rows of up to 16 and of up to 32 bytes; 2.1 nonzeros share a row of X."""
    for precision, few, more in (("fp16", 8, 9), ("tf32", 4, 5), ("fp32", 4, 5)):
        asked = [
            bool(CSR.is_asked_for(replace(like_reddit(width, Precision.parse(precision)), weighted=weighted)))
            for width in (few, more)
        ]
        assert asked == [True, weighted or precision == "fp32"]


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_of_few_columns_are_by_themselves_and_short(weighted: bool) -> None:
    """Two lanes at least compute a row of A, of at most 128 nonzeros unless most rows are as long."""
    for width in (3, 4, 7, 8):
        of = replace(problem(((3, 20_000),)), width=width, precision=Precision.FP32, weighted=weighted)
        assert of.nnz / of.rows < of.record.csr.group_degree
        plan = CSR.default(of)
        assert (plan.row_lanes, plan.group, plan.prescale) == (2, 0, True)
        assert 64 <= plan.row_limit <= 128
    assert CSR.default(like_reddit(7)).row_limit == int(2 * 114_390_270 / 232_965)
    longer = CSR.default(replace(of, width=9))
    assert longer.group > 0
    assert not longer.prescale


def test_groups_of_few_columns_fill_the_gpu_and_no_more() -> None:
    of = replace(problem(((3, 20_000),)), width=1)
    groups = [CSR.default(replace(of, nnz=nnz)).group for nnz in (100, 10**6, 2 * 10**6, 10**8)]
    assert groups == [64, 256, 512, 1024]


@pytest.mark.parametrize(
    ("width", "moved"), [(20, 64), (32, 64), (47, 128), (64, 128), (100, 256), (300, 640)]
)
def test_rows_that_are_read_often_from_memory_are_moved_in_whole_parts(width: int, moved: int) -> None:
    """So that the plan of a width is that of the next multiple of 32 columns."""
    large = replace(problem(((30, 150_000),)), width=width)
    few = replace(large, panels=panel_counts(15 * large.cols, 14 * large.cols))
    often = replace(large, panels=panel_counts(30 * large.cols, 28 * large.cols))
    resident = replace(often, cols=large.cols // 10)
    row = 2 * width
    for of, wanted in ((few, row), (often, moved), (replace(often, weighted=True), row), (resident, row)):
        load = PANELS[16].load(of, PANELS[16].default(of))
        assert load.gathered == min(wanted, of.slices * SLICE_BYTES)


# Widths whose rows are no whole sectors or vectors.

H100 = Device("cuda", (9, 0), 132, 80 * 2**30, "NVIDIA H100 80GB HBM3", 50 * 2**20)


def like_arxiv(width: int, precision: Precision, device: Device = H100) -> Problem:
    """15 nonzeros a row, 38 % of them near the diagonal; a column slot of a panel has about one."""
    return Problem(
        "spmm", device, precision, 169_343, 169_343, 2_500_307, width, near=957_181,
        panels=panel_counts(2_492_416, 2_305_344),
    )  # fmt: skip


@pytest.mark.parametrize("device", [H100, H200], ids=lambda device: device.name)
@pytest.mark.parametrize("degree", [15, 500])
@pytest.mark.parametrize(
    ("precision", "width", "passes"),
    [
        (Precision.FP16, 16, (0, 0)), (Precision.FP16, 41, (2, 2)), (Precision.FP16, 64, (0, 0)),
        (Precision.FP16, 600, (0, 2)), (Precision.FP16, 602, (2, 2)), (Precision.FP16, 608, (0, 0)),
        (Precision.FP32, 100, (0, 2)), (Precision.FP32, 130, (2, 2)), (Precision.TF32, 600, (0, 0)),
    ],
)  # fmt: skip
def test_the_model_adds_two_passes_where_a_kernel_cannot_take_rows_as_they_are(
    device: Device, degree: int, precision: Precision, width: int, passes: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Panels take rows of multiples of 32 bytes, the csr kernel those of 16, or any by groups of rows."""
    of = replace(like_arxiv(width, precision, device), nnz=169_343 * degree)
    each = pass_us(of.record.memory, of.cols * of.row_bytes)
    plans = {kernel: kernel.default(of) for kernel in (CSR, PANELS[16])}
    extra = [of.odd_rows_us(unit) for unit in (plans[CSR].row_unit(of.row_bytes), 32)]
    assert extra == pytest.approx([passes[0] * each * (degree > 15), passes[1] * each])
    assert not any(replace(of, rows_of_x="padded").odd_rows_us(unit) for unit in (16, 32))
    times = [kernel.time_us(of, plan) for kernel, plan in plans.items()]
    monkeypatch.setattr(Problem, "odd_rows_us", lambda self, unit: 0.0)
    regular = [kernel.time_us(of, plan) for kernel, plan in plans.items()]
    assert times == pytest.approx([us + more for us, more in zip(regular, extra, strict=True)])


@pytest.mark.parametrize("change", [{"op": "sddmm"}, {"quantization": Precision.INT8}, {"width": 7}])
def test_it_adds_nothing_for_sddmm_an_x_of_eight_bits_and_short_rows(change: dict[str, object]) -> None:
    assert replace(like_arxiv(41, Precision.FP32), **change).odd_rows_us(32) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", [Precision.TF32, Precision.FP32])
def test_the_csr_kernel_is_chosen_where_panels_would_shift_their_results(precision: Precision) -> None:
    """100 and 500 columns are whole vectors; on an H100 the csr kernel takes .70 and .76 of panels' time."""
    for width in (100, 500):
        assert isinstance(choose_plan(like_arxiv(width, precision)), CsrPlan)
        assert isinstance(choose_plan(like_arxiv(width // 32 * 32, Precision.FP16)), PanelPlan)
