"""Reorderings, work lists and plans."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse import SparseGraph
from gnnsparse.plan import Problem, choose_plan
from gnnsparse.plan.window import WINDOW
from gnnsparse.plan.work import cut_rows, group_rows, window_tiles
from gnnsparse.precision import Precision
from gnnsparse.preprocess.reorder import REORDERINGS, reorder
from gnnsparse.runtime import device as device_module
from gnnsparse.runtime.device import Device
from gnnsparse.sparse.kernel_cache import Product
from gnnsparse.testing import random_graph
from tests.gpu_paths import StandInPath
from tests.helpers import panel_counts, precision_for


def communities(count: int, size: int, seed: int = 0) -> SparseGraph:
    """Dense groups of nodes under shuffled ids: what a reordering has to find again."""
    generator = torch.Generator().manual_seed(seed)
    n = count * size
    group = torch.arange(n) // size
    mask = (group[:, None] == group) & (torch.rand(n, n, generator=generator) < 0.5)
    mask |= torch.rand(n, n, generator=generator) < 0.002
    mask |= mask.T.clone()
    shuffle = torch.randperm(n, generator=generator)
    return SparseGraph.from_torch_sparse(mask[shuffle][:, shuffle].float().to_sparse())


@pytest.mark.parametrize("method", REORDERINGS)
def test_orders_are_permutations_with_a_true_report(method: str) -> None:
    graph = communities(8, 32)
    result = reorder(graph, method)
    order = torch.arange(graph.num_rows) if result.order is None else result.order.long()
    assert torch.equal(order.sort().values, torch.arange(graph.num_rows))
    dense = torch.from_numpy(graph.to_scipy().toarray()) != 0
    for locality, rows in ((result.before, dense), (result.after, dense[order])):
        assert locality.columns_8 == int(rows.reshape(-1, 8, 256).any(1).sum())
        assert locality.columns_32 == int(rows.reshape(-1, 32, 256).any(1).sum())
        assert locality.density == graph.nnz / (8 * locality.columns_8)
    report = result.report()
    assert report["method"] == method
    assert report["seconds"] >= 0


@pytest.mark.parametrize(("part_size", "left"), [(32, 0.5), (128, 0.65)])
def test_metis_finds_communities(part_size: int, left: float) -> None:
    result = reorder(communities(8, 32), "metis", part_size=part_size)
    assert result.after.columns_32 < left * result.before.columns_32


def test_rcm_narrows_the_band() -> None:
    line = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    path = torch.stack([line[:-1], line[1:]])
    graph = SparseGraph.from_edge_index(torch.cat([path, path.flip(0)], 1), 200)
    order = reorder(graph, "rcm").order.long()
    place = torch.empty(200, dtype=torch.int64)
    place[order] = torch.arange(200)
    assert int((place[path[0]] - place[path[1]]).abs().max()) == 1


def test_degree_puts_long_rows_first() -> None:
    graph = random_graph(60, 60, 0.1, hubs=3)
    degrees = graph.csr.degrees[reorder(graph, "degree").order.long()]
    assert bool((degrees.diff() <= 0).all())


@pytest.mark.parametrize("method", REORDERINGS)
@pytest.mark.parametrize("n", [0, 1, 3])
def test_tiny_and_empty_graphs(method: str, n: int) -> None:
    empty = SparseGraph.from_edge_index(torch.empty(2, 0, dtype=torch.int64), n)
    assert reorder(empty, method).order is None
    loops = SparseGraph.from_edge_index(torch.arange(n).repeat(2, 1), n)
    gnnsparse.prepare(loops, reorder=method, cache=False)


def test_metis_without_pymetis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(ImportError, match="pip install pymetis"):
        reorder(random_graph(20, 20, 0.2), "metis")


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


H200 = Device("cuda", (9, 0), 132)
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


def test_plans_say_why() -> None:
    plan = choose_plan(REDDIT)
    assert plan.kernel == "window"
    assert "68212192" in str(plan)
    assert hash(plan) == hash(choose_plan(REDDIT))


@pytest.mark.parametrize(
    ("change", "kernel", "why"),
    [
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


# Rows, nonzeros, columns of 16- and of 32-row panels, and their lengths in classes.
REDDIT_LIKE = (
    232_965, 114_623_235, (54_379_008, 45_303_232),
    (
        ((91, 1927), (119, 12489), (227, 145)),
        ((72, 1), (144, 27), (168, 1071), (192, 2896), (216, 2024), (240, 796), (264, 214), (288, 162),
         (312, 33), (336, 34), (360, 7), (384, 10), (408, 4), (432, 2)),
    ),
)  # fmt: skip
AMAZON_LIKE = (
    410_236, 5_284_202, (3_086_176, 2_679_424),
    (
        ((2, 14), (3, 9854), (4, 13213), (5, 1959), (6, 368), (7, 169), (10, 46), (14, 10), (20, 5), (33, 2)),
        ((4, 3), (5, 994), (6, 6417), (7, 4948), (10, 419), (14, 27), (19, 9), (32, 3)),
    ),
)  # fmt: skip
ARXIV_LIKE = (
    169_343, 2_500_329, (2_490_912, 2_305_472),
    (
        ((4, 125), (5, 1926), (6, 3103), (7, 3553), (10, 1443), (14, 236), (22, 185), (76, 13)),
        ((8, 31), (11, 2594), (14, 1965), (19, 561), (31, 124), (66, 14), (106, 3)),
    ),
)  # fmt: skip
DD_LIKE = (
    334_925, 2_020_925, (2_026_624, 1_672_704),
    (((2, 38), (3, 20324), (4, 571)), ((3, 2), (4, 1228), (5, 8068), (6, 1169))),
)  # fmt: skip


@pytest.mark.parametrize(
    ("counts", "precision", "height", "slices"),
    [
        (REDDIT_LIKE, Precision.FP16, 32, 1),
        (REDDIT_LIKE, Precision.TF32, 32, 1),
        (AMAZON_LIKE, Precision.FP16, 16, 2),
        (AMAZON_LIKE, Precision.TF32, 16, 2),
        (ARXIV_LIKE, Precision.FP16, 16, 1),
        (DD_LIKE, Precision.FP16, 16, 2),
    ],
)
def test_the_model_finds_what_was_fastest(
    counts: Any, precision: Precision, height: int, slices: int
) -> None:
    rows, nnz, slots, tiles = counts
    shape = {"rows": rows, "cols": rows, "nnz": nnz, "panels": panel_counts(*slots, tiles=tiles)}
    plan = choose_plan(replace(REDDIT, **shape, precision=precision))
    assert (plan.kernel, plan.height, plan.slices) == ("panel", height, slices)
    # A pass over X first pays where its rows are gathered many times, by warps that would all round them.
    assert plan.prescale == (counts is REDDIT_LIKE and precision is Precision.TF32)


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


@pytest.mark.parametrize(
    ("precision", "nnz", "height"),
    [
        (Precision.FP16, 114_623_235, 32),  # 2.5 nonzeros of 4 bytes a slot against 16 of 2
        (Precision.BF16, 114_623_235, 32),
        (Precision.TF32, 114_623_235, 32),  # 2.5 nonzeros of 6 bytes a slot against 16 of 4
        (Precision.FP32, 114_623_235, 32),
        (Precision.FP16, 30 * 45_303_232, 16),  # nearly full: dense values are smaller than packed ones
        (Precision.FP32, 30 * 45_303_232, 16),
    ],
)
def test_panels_of_weighted_matrices(precision: Precision, nnz: int, height: int) -> None:
    shape = {"panels": PANELS, "nnz": nnz, "precision": precision}
    plan = choose_plan(replace(REDDIT, **shape, weighted=True))
    assert (plan.kernel, plan.height) == ("panel", height)


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
