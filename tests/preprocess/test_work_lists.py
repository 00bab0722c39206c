"""Work lists and plans: cuTeSpMM's waves, RSH-SpMM's super-long windows, `prepare(balance=)`, the choice."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import Plan
from gnnsparse.formats import format_spec
from gnnsparse.formats.convert import convert
from gnnsparse.plan import Problem, choose_plan
from gnnsparse.plan.window import BALANCES, WINDOW
from gnnsparse.plan.work import (
    adaptive_parts,
    cut_rows,
    cut_windows,
    group_rows,
    limited_parts,
    wave_parts,
    window_tiles,
)
from gnnsparse.precision import Precision
from gnnsparse.runtime import device as device_module
from gnnsparse.runtime.device import Device
from gnnsparse.sparse.kernel_cache import Product
from gnnsparse.testing import random_graph
from tests.gpu_paths import H200, StandInPath
from tests.helpers import PRECISIONS, panel_counts, precision_for


def parts_of(cut: Any, tiles: list[int], concurrent: int) -> list[int]:
    return cut(torch.tensor(tiles), concurrent).tolist()


# cuTeSpMM's waves.


def test_the_papers_991_panels_need_no_cut() -> None:
    """Section 5: 100 SMs of one block each, the first of 991 panels has 10 blocks, the others have 1 each."""
    assert parts_of(wave_parts, [10, *[1] * 990], 100) == [1] * 991
    # With one block more, the ratio is 11 / (1001 / 991) / 10 = 1.089, and the panel is cut.
    assert parts_of(wave_parts, [11, *[1] * 990], 100) == [2, *[1] * 990]
    # Without the waves the panel would have been cut: its load is 9.91 times the mean.
    assert parts_of(wave_parts, [10, *[1] * 990], 991) == [10, *[1] * 990]


def test_waves_by_hand() -> None:
    """Equations 6 and 7: tiles over their mean and the waves, rounded up, and no part without a tile."""
    for tiles, concurrent, wanted in (
        ([3, 3, 3], 3, [1, 1, 1]), ([4, 1, 1], 3, [2, 1, 1]), ([5, 1, 1], 3, [3, 1, 1]),
        ([5, 1, 1], 2, [2, 1, 1]), ([1, 0, 0, 0], 4, [1, 1, 1, 1]), ([0, 0], 1, [1, 1]),
    ):  # fmt: skip
        assert parts_of(wave_parts, tiles, concurrent) == wanted


# RSH-SpMM's super-long windows.


def test_super_long_windows_by_hand() -> None:
    """9 windows of 2 tiles and one of 42, whose mean is 6: it is super-long above 24."""
    tiles = [42, *[2] * 9]
    assert parts_of(adaptive_parts, tiles, 10) == [4, *[1] * 9]  # parts of at most 12
    assert parts_of(adaptive_parts, tiles, 2) == [2, *[1] * 9]  # of at most 30, the mean of two places
    assert parts_of(adaptive_parts, tiles, 1) == [1] * 10  # one place computes it in any case
    assert parts_of(adaptive_parts, [24, *[4] * 9], 60) == [1] * 10  # exactly 4 times the mean of 6
    assert parts_of(adaptive_parts, [24, *[4] * 9, 0, 0], 60) == [1] * 12  # empty windows do not count
    assert parts_of(adaptive_parts, [25, *[4] * 9, 0, 0], 60) == [2, *[1] * 11]
    assert parts_of(adaptive_parts, [42, *[3] * 9], 10) == [3, *[1] * 9]  # of at most 13.8, which is 14
    assert parts_of(adaptive_parts, [36, *[4] * 6, *[3] * 3], 4) == [2, *[1] * 9]  # of at most 69 / 4
    assert parts_of(adaptive_parts, [40, *[1] * 9], 60) == [4, *[1] * 9]
    assert parts_of(adaptive_parts, [0, 0], 1) == [1, 1]


# Work lists.


@given(
    rows=st.integers(1, 60), cols=st.integers(1, 300), density=st.sampled_from([0.0, 0.05, 0.5]),
    limit=st.integers(1, 9), balance=st.sampled_from(BALANCES), concurrent=st.integers(1, 20),
    seed=st.integers(0, 2**20),
)  # fmt: skip
def test_work_lists_of_any_matrix(
    rows: int, cols: int, density: float, limit: int, balance: str, concurrent: int, seed: int
) -> None:
    """Items cover every window once and in order, partial sums follow one another, no part is empty."""
    graph = random_graph(rows, cols, density, seed=seed, hubs=1)
    blocked = convert(graph.csr, format_spec("window"), None)
    tiles = window_tiles(blocked)
    work = cut_windows(blocked, graph.csr, limit, balance=balance, concurrent=concurrent)
    items, place, at, cuts = work.items.tolist(), 0, 0, []
    for window, count in enumerate(tiles.tolist()):
        parts = [item for item in items if item[0] == window]
        assert items[at : at + len(parts)] == parts
        at += len(parts)
        begin = 0
        for _, first, length, where in parts:
            assert first == begin
            assert where == (place if len(parts) > 1 else -1)
            assert length > 0 or len(parts) == 1
            begin += length
            place += len(parts) > 1
        assert begin == count
        lengths = [item[2] for item in parts]
        if balance == "auto":  # all but the last are equally long
            size = -(-count // int(limited_parts(tiles, limit)[window]))
            assert max(lengths) <= limit
            assert lengths == [min(size, count - item[1]) for item in parts]
        else:
            assert max(lengths) - min(lengths) <= 1
        if len(parts) > 1:
            cuts.append([window, place - len(parts), len(parts), 0])
    assert at == len(items)
    assert (work.cuts.tolist(), work.partials) == (cuts, place)
    # Rows resume after the nonzeros of the parts before.
    dense = torch.from_numpy(graph.to_scipy().toarray()) != 0
    for (window, first, _, _), offsets in zip(items, work.row_offsets.tolist(), strict=True):
        begin = int(blocked.panel_ptr[window])
        before = blocked.columns[begin : begin + 16 * first].long()
        counts = dense[8 * window : 8 * window + 8][:, before].sum(1).tolist()
        assert offsets == counts + [0] * (8 - len(counts))


# The argument of prepare, and plans.


def test_balance_is_checked() -> None:
    graph = random_graph(20, 20, 0.2)
    with pytest.raises(ValueError, match="balance: got 'best'; accepted: auto, none, wave, adaptive"):
        gnnsparse.prepare(graph, format="hrpb", precision="tf32", balance="best")
    with pytest.raises(TypeError, match="balance: got int"):
        gnnsparse.prepare(graph, format="hrpb", precision="tf32", balance=1)  # type: ignore[arg-type]
    for name in ("auto", "csr"):
        with pytest.raises(
            ValueError, match=f"balance: got 'wave' for format='{name}', which has no windows"
        ):
            gnnsparse.prepare(graph, format=name, balance="wave")
    with pytest.raises(ValueError, match="balance: got 'best'"):
        Plan("window", balance="best")
    with pytest.raises(ValueError, match="concurrent_windows: got -1"):
        Plan("window", concurrent_windows=-1)


def test_the_balance_goes_with_the_operand_and_not_into_the_cache() -> None:
    graph = random_graph(60, 60, 0.1)
    for hit, balance in ((False, "wave"), (True, "none"), (True, "auto")):
        a = gnnsparse.prepare(graph, format="hrpb", precision="tf32", balance=balance)
        assert a.cache_hit is hit
        for same in (a, a.T, pickle.loads(pickle.dumps(a)), a.to("cpu")):
            assert same.stats()["balance"] == balance
        assert a.kernels.problem(Product("spmm", 64)).balance == balance


@pytest.mark.parametrize("balance", BALANCES)
def test_plans_take_the_balance_and_what_runs_at_a_time(balance: str) -> None:
    graph = random_graph(640, 4000, 0.12, seed=4)
    with device_module.use(StandInPath(None, device=H200)):
        a = gnnsparse.prepare(graph, precision="fp16", format="me-bcrs", balance=balance, cache=False)
        plans = {width: WINDOW.default(a.kernels.problem(Product("spmm", width))) for width in (64, 256)}
        warps = a.kernels.problem(Product("spmm", 64)).record.csr.warps * H200.multiprocessors
        variants = WINDOW.variants(a.kernels.problem(Product("spmm", 64)))
        limit = plans[64].tile_limit
        given = a.kernels.window_work(limit, balance=balance, concurrent=warps)
        assert a.kernels.window_work(limit, balance=balance) is given or balance in ("auto", "none")
    at_a_time = {"wave": (warps, warps // 4), "adaptive": (warps, warps // 4)}.get(balance, (0, 0))
    assert (plans[64].concurrent_windows, plans[256].concurrent_windows) == at_a_time
    assert {plan.balance for plan in (*plans.values(), *variants)} == {balance}
    assert len(variants) == (2 if balance == "auto" else 1)


# Rows, and what the model chooses.


def test_cut_rows_lists_long_rows_alone() -> None:
    graph = random_graph(40, 500, 0.02, hubs=3)
    segments = cut_rows(graph.csr, 50)
    degrees = graph.csr.degrees
    long = (degrees > 50).nonzero().flatten().tolist()
    assert segments.cuts[:, 0].tolist() == long
    for row in long:
        parts = [item for item in segments.items.tolist() if item[0] == row]
        assert [p[1] for p in parts] == [sum(q[2] for q in parts[:i]) for i in range(len(parts))]
        assert sum(p[2] for p in parts) == int(degrees[row])
        assert max(p[2] for p in parts) <= 50


PANELS = panel_counts(54_379_008, 45_303_232)
SCORE_PANELS = panel_counts(54_379_008)
REDDIT = Problem("spmm", H200, Precision.FP16, 232_965, 232_965, 114_416_026, 128, "window", 68_212_192)


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"format": "window"}, 8), ({"format": "cvse"}, 16), ({"format": "hrpb"}, 16),
        ({"format": "hrpb", "panel": 32}, 32), ({"format": "rs-tile"}, 8),
    ],
)  # fmt: skip
def test_a_window_plan_cuts_at_the_mean_length_of_the_formats_own_windows(
    options: dict[str, Any], rows: int
) -> None:
    """Rows of windows must not be taken to be 8: the windows of 16 or 32 rows would seem to be short."""
    graph = random_graph(640, 4000, 0.12, seed=4)
    with device_module.use(StandInPath(None, device=H200)):
        a = gnnsparse.prepare(graph, precision=precision_for(options["format"]), cache=False, **options)
        problem = a.kernels.problem(Product("spmm", 64))
        plan = WINDOW.default(problem)
    blocked = a.kernels.require_blocked()
    tiles = window_tiles(blocked).double().mean().item()
    assert (problem.slot_rows, problem.groups) == (rows, blocked.panels)
    assert plan.tile_limit == pytest.approx(1.3 * tiles, rel=0.02)


@pytest.mark.parametrize(
    ("change", "kernel", "why"),
    [
        ({}, "window", "68212192"),
        ({"format": ""}, "csr", "no blocked format"),
        ({"precision": Precision.FP32}, "csr", "fp32"),
        ({"device": Device("cuda", (7, 5), 72), "precision": Precision.BF16}, "csr", "sm_75"),
        ({"device": Device("cuda", (7, 5), 72)}, "window", "by the model: csr"),
        ({"device": Device("cuda", (7, 0), 72)}, "csr", "sm_70"),
        ({"slots": 113_000_000}, "csr", "by the model: csr"),
        ({"format": "rs-tile"}, "window", "asked for"),
        ({"format": "hrpb", "precision": Precision.TF32}, "window", "asked for"),
        ({"device": Device("cpu")}, "csr", "CPU"),
        ({"panels": PANELS}, "panel", "45303232 columns"),
        ({"panels": SCORE_PANELS, "op": "sddmm"}, "panel", "by the model"),
        ({"panels": SCORE_PANELS, "op": "sddmm", "width": 32}, "window", "no panel16: rows are shorter"),
        ({"panels": SCORE_PANELS, "op": "sddmm", "width": 4000}, "window", "no panel16: rows are wider"),
        ({"panels": panel_counts(450_000_000, 440_000_000)}, "csr", "by the model"),
        ({"panels": PANELS, "precision": Precision.FP32}, "panel", "by the model"),
    ],
)
def test_choice(change: dict[str, object], kernel: str, why: str) -> None:
    plan = choose_plan(replace(REDDIT, **change))
    assert plan.kernel == kernel
    assert why in str(plan)
    assert hash(plan) == hash(choose_plan(replace(REDDIT, **change)))


def like(rows: int, nnz: int, slots: tuple[int, int], tiles: Any) -> dict[str, Any]:
    """Rows, nonzeros, columns of 16- and of 32-row panels, and their lengths in classes."""
    return {"rows": rows, "cols": rows, "nnz": nnz, "panels": panel_counts(*slots, tiles=tiles)}


REDDIT_LIKE = like(
    232_965, 114_623_235, (54_379_008, 45_303_232),
    (
        ((91, 1927), (119, 12489), (227, 145)),
        ((72, 1), (144, 27), (168, 1071), (192, 2896), (216, 2024), (240, 796), (264, 214), (288, 162),
         (312, 33), (336, 34), (360, 7), (384, 10), (408, 4), (432, 2)),
    ),
)  # fmt: skip
AMAZON_LIKE = like(
    410_236, 5_284_202, (3_086_176, 2_679_424),
    (
        ((2, 14), (3, 9854), (4, 13213), (5, 1959), (6, 368), (7, 169), (10, 46), (14, 10), (20, 5), (33, 2)),
        ((4, 3), (5, 994), (6, 6417), (7, 4948), (10, 419), (14, 27), (19, 9), (32, 3)),
    ),
)  # fmt: skip
ARXIV_LIKE = like(
    169_343, 2_500_329, (2_490_912, 2_305_472),
    (
        ((4, 125), (5, 1926), (6, 3103), (7, 3553), (10, 1443), (14, 236), (22, 185), (76, 13)),
        ((8, 31), (11, 2594), (14, 1965), (19, 561), (31, 124), (66, 14), (106, 3)),
    ),
)  # fmt: skip
DD_LIKE = like(
    334_925, 2_020_925, (2_026_624, 1_672_704),
    (((2, 38), (3, 20324), (4, 571)), ((3, 2), (4, 1228), (5, 8068), (6, 1169))),
)  # fmt: skip
WEIGHTED = {"panels": PANELS, "nnz": 114_623_235, "weighted": True}
#: Nearly full: dense values are smaller than packed ones.
FULL = {**WEIGHTED, "nnz": 30 * 45_303_232}


@pytest.mark.parametrize(
    ("shape", "precision", "height", "slices"),
    [
        (REDDIT_LIKE, Precision.FP16, 32, 1),
        (REDDIT_LIKE, Precision.TF32, 32, 1),
        (AMAZON_LIKE, Precision.FP16, 16, 2),
        (AMAZON_LIKE, Precision.TF32, 16, 2),
        (ARXIV_LIKE, Precision.FP16, 16, 1),
        (DD_LIKE, Precision.FP16, 16, 2),
        *((WEIGHTED, Precision(precision), 32, 1) for precision in PRECISIONS),
        (FULL, Precision.FP16, 16, 1),
        (FULL, Precision.FP32, 16, 2),
    ],
)
def test_the_model_finds_what_was_fastest(
    shape: dict[str, Any], precision: Precision, height: int, slices: int
) -> None:
    plan = choose_plan(replace(REDDIT, **shape, precision=precision))
    assert (plan.kernel, plan.height, plan.slices) == ("panel", height, slices)
    # A pass over X first pays where its rows are gathered many times, by warps that would all round them.
    assert plan.prescale == (shape is REDDIT_LIKE and precision is Precision.TF32)


@pytest.mark.parametrize("size", [1, 10, 1000])
@pytest.mark.parametrize("limit", [4, 100])
def test_groups_of_rows_cover_all_in_order(size: int, limit: int) -> None:
    assert group_rows(random_graph(0, 5, 0.0).csr, size, limit).tolist() == [0]
    csr = random_graph(80, 60, 0.1, hubs=2, empty_rows=0.3).csr
    starts = group_rows(csr, size, limit).tolist()
    assert starts[0] == 0
    assert starts[-1] == csr.rows
    for first, last in pairwise(starts):
        assert first < last
        inside = csr.degrees[first:last]
        assert last - first == 1 or int(inside.max()) <= limit
        assert last - first == 1 or int(inside[:-1].sum()) + 2 * (last - first - 1) < size


@pytest.mark.parametrize("width", [1, 7, 8, 16, 41, 64, 128, 256, 602])
@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("nnz", [0, 10**6, 10**9])
def test_lane_layouts_are_possible(width: int, precision: Precision, nnz: int) -> None:
    plan = choose_plan(replace(REDDIT, width=width, precision=precision, nnz=nnz, format=""))
    assert plan.lanes in (1, 2, 4, 8, 16, 32)
    assert plan.row_lanes in (1, 2, 4, 8, 16, 32)
    assert plan.lanes <= plan.row_lanes <= 32
    assert plan.row_limit >= 64


@pytest.mark.parametrize(("density", "heights"), [(0.9, [16, 64]), (0.002, [16])])
def test_attention_counts_tall_panels_where_they_may_pay(density: float, heights: list[int]) -> None:
    with device_module.use(StandInPath(None, device=H200)):
        a = gnnsparse.prepare(random_graph(256, 256, density, seed=1), precision="fp16", cache=False)
        problem = a.kernels.problem(Product("attention", 64, value_width=64))
    assert [counts.height for counts in problem.panels] == heights
