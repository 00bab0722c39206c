"""The CUDA sources of SpMM over windows of every stored format and policy, on the CPU, against float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseGraph, _native
from gnnsparse.formats import PRESETS, BlockedMatrix, FormatSpec, WindowPolicy, format_spec, register_preset
from gnnsparse.formats.policy import (
    RECORD_POLICY,
    STAGINGS,
    TILE_POLICY,
    X_LOADS,
    policy_changes,
    why_not_packed,
)
from gnnsparse.plan import Plan, WindowPlan
from gnnsparse.plan.window import RESIDUAL_MODES
from gnnsparse.plan.work import WorkList
from gnnsparse.precision import ROUNDED_PRECISIONS, Precision, dense_view
from gnnsparse.registry import temporary_registrations
from gnnsparse.testing import assert_all_accurate, random_graph, with_gradients
from tests import emulated
from tests.gpu_paths import RunningPath
from tests.helpers import ROUNDING, dense_matrix, has_precision, make, precision_for
from tests.ops.conftest import Place, graphs
from tests.ops.test_spmm import check, check_dtypes

pytestmark = pytest.mark.usefixtures("poisoned")
LOW = ("fp16", "bf16", "tf32")
#: The precisions of policies with switches.
PRECISIONS = ("fp16", "tf32")
FORMATS = [
    ("window", None), ("me-bcrs", None), ("cvse", None), ("tiled-csr", None), ("packed-16x4", 16),
    ("packed-16x4", 32), ("packed-8x8", None), ("sr-bcrs", None),
]  # fmt: skip
CASES = [
    (name, panel, p)
    for name, panel in FORMATS
    for p in LOW
    if name.startswith("packed") or has_precision(name, p)
]
#: The formats that have kernels of their own, with their policies: cuTeSpMM's and RSH-SpMM's.
PACKED = [("hrpb", 16, "tf32"), ("hrpb", 32, "tf32"), *(("rs-tile", None, p) for p in LOW)]
OWN = {"hrpb": RECORD_POLICY, "rs-tile": TILE_POLICY}
#: Shapes and densities: of cvse both window heights, of packed-8x8 rows that are kept out of the windows.
SHAPES = [(100, 70, 0.1), (61, 200, 0.05), (16, 16, 0.9), (300, 300, 0.004), (1, 1, 1.0)]
#: The formats of papers whose policies have switches, with the precisions that the papers multiply in.
OF_PAPERS = [
    ("me-bcrs", "fp16"), ("me-bcrs", "tf32"), ("cvse", "fp16"), ("tiled-csr", "fp16"), ("sr-bcrs", "fp16"),
]  # fmt: skip
#: Formats with windows of 8 and of 16 rows; blocks of 4, 8, 1 and 16 columns; padded and not.
WINDOWS = {8: ("me-bcrs", 8, 0.06), 16: ("me-bcrs", 16, 0.06)}


@pytest.fixture(params=PRECISIONS)
def precision(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(autouse=True, scope="module")
def packed_presets() -> Iterator[None]:
    """Packed formats of a user's own: hrpb and rs-tile have kernels of theirs."""
    common = {"encoding": "bitmap", "packed": True, "pad": 16, "block": 16}
    with temporary_registrations():
        tall = FormatSpec("packed-16x4", window=16, panel=16, brick=4, active_bricks=True, **common)
        register_preset(tall, "a test", panels={16: 16, 32: 16})
        low = FormatSpec("packed-8x8", window=8, panel=8, brick=8, split_short_rows=True, **common)
        register_preset(low, "a test")
        yield


def policies(precision: str, window: int) -> list[WindowPolicy]:
    """Every combination of switches that is compiled apart, in both orders of blocks and both coarsenings."""
    found = []
    depths = {"fp16": (8, 16), "tf32": (4, 8)}[precision]
    switches = itertools.product((True, False), depths, X_LOADS, (True, False), STAGINGS, (True, False))
    for swapped, k, x_load, shuffle, stage_a, stage_x in switches:
        policy = WindowPolicy(swapped, k, x_load, shuffle, stage_a, stage_x)
        if not policy.why_not(Precision.parse(precision), "dense", window):
            found += [policy, replace(policy, coarsening=2, grid="3d")]
    return found


@pytest.mark.parametrize(("name", "panel", "precision"), CASES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_every_format(
    cuda_place: Place, name: str, panel: int | None, precision: str,
    shape: tuple[int, int, float], limit: int,
) -> None:  # fmt: skip
    """Windows whole and cut; X in a part of a tile of features and in several, with NaN behind its rows."""
    graph = random_graph(*shape, hubs=1, empty_rows=0.1 if shape[0] > 1 else 0.0)
    a = make(graph, cuda_place.device, precision=precision, format=name, panel=panel)
    dense, plan = dense_matrix(graph, None), Plan("window", tile_limit=limit)
    check_dtypes(a, dense, (64, 71), plan)
    for width in (1, 40, 136):
        check(a, dense, torch.randn(shape[1], width), plan=plan)
    assert cuda_place.ran("cuda_spmm_window")


@pytest.mark.parametrize(
    ("name", "panel", "balance", "reorder"),
    [
        *((*of, balance, "none") for of in FORMATS for balance in ("none", "wave", "adaptive")),
        *(
            (*of, "wave", reorder)
            for of in (("me-bcrs", None), ("hrpb", 32), ("rs-tile", None))
            for reorder in ("row-shuffle", "jaccard", "tca", "auto")
        ),
    ],
)
def test_every_balance(gpu_place: Place, name: str, panel: int | None, balance: str, reorder: str) -> None:
    """The plan's own cuts and more of them, in every order of the rows; a second run gives the same bits."""
    graph, precision = random_graph(300, 1000, 0.002, hubs=1, empty_rows=0.1), precision_for(name)
    options = {"precision": precision, "format": name, "panel": panel, "reorder": reorder}
    a = make(graph, gpu_place.device, balance=balance, **options)
    x = emulated.padded(torch.randn(1000, 40), precision)
    check(a, dense_matrix(graph, None), x)
    check(a.T, dense_matrix(graph, None).T, torch.randn(300, 40))
    policy = PRESETS[name].policy_for(Precision(precision))
    plan = Plan("window", balance=balance, concurrent_windows=30, policy=policy)
    check(a, dense_matrix(graph, None), x, plan=plan)
    made = a.kernels.memo.values_of(WorkList)
    work = a.kernels.window_work(0, balance=balance, concurrent=30)
    assert any(work is other for other in made)
    assert (work.partials > 0) is (balance != "none")
    x = x.to(a.device)
    assert torch.equal(gnnsparse.spmm(a, x, plan=plan), gnnsparse.spmm(a, x, plan=plan))


def test_shapes_have_both_heights_and_rows_that_are_kept_out() -> None:
    heights, kept_out = set(), 0
    for shape in SHAPES:
        graph = random_graph(*shape, hubs=1, empty_rows=0.1)
        cvse, packed = (
            make(graph, "cpu", precision="fp16", format=name).kernels.blocked
            for name in ("cvse", "packed-8x8")
        )
        heights.add(cvse.spec.window)
        kept_out += packed.residual_rows.numel()
    assert heights == {8, 16}
    assert kept_out > 0


@pytest.mark.parametrize(
    ("name", "precision"),
    [*(("window", p) for p in LOW), ("hrpb", "tf32"), ("rs-tile", "tf32"), ("rs-tile", "fp16")],
)
@pytest.mark.parametrize("weights", [None, "gcn", "mean"])
@pytest.mark.parametrize("limit", [1, 5, 1000])
def test_weights_and_orders(
    late_place: Place, name: str, precision: str, weights: str | None, limit: int
) -> None:
    """Weights of column slots and of rows, rows in another order, and a mean in the call."""
    graph = random_graph(90, 90, 0.08, weighted=False, hubs=2, empty_rows=0.2)
    options = {"precision": precision, "format": name, "reorder": "degree"}
    a, ones = (make(graph, late_place.device, values=values, **options) for values in (weights, None))
    plan = Plan("window", tile_limit=limit, policy=OWN.get(name, WindowPolicy()))
    for width in (7, 40, 64, 71):
        x = emulated.padded(torch.randn(90, width), precision)
        check(a, dense_matrix(graph, weights), x, plan=plan)
        check(ones, dense_matrix(graph, "mean"), x, plan=plan, reduce="mean")
    x = x.to(late_place.device)
    assert torch.equal(gnnsparse.spmm(a, x, plan=plan), gnnsparse.spmm(a, x, plan=plan))


@given(
    graph=graphs(70, 100), case=st.sampled_from([*CASES, *PACKED]), width=st.integers(1, 140),
    limit=st.integers(1, 4), threshold=st.integers(0, 8), number=st.integers(0, 2**20),
)  # fmt: skip
@settings(max_examples=80)
def test_property(
    native: RunningPath, graph: SparseGraph, case: tuple[str, int | None, str], width: int, limit: int,
    threshold: int, number: int,
) -> None:  # fmt: skip
    """With any policy of a format whose policy has switches."""
    name, panel, precision = case
    options = {"threshold": threshold} if name == "rs-tile" else None
    a = make(graph, "cpu", precision=precision, format=name, panel=panel, format_options=options)
    policy = OWN.get(name, WindowPolicy())
    if (name, precision) in OF_PAPERS:
        able = policies(precision, a.kernels.blocked.spec.window)
        policy = able[number % len(able)]
    x, plan = torch.randn(graph.num_cols, width), Plan("window", tile_limit=limit, policy=policy)
    check(a, dense_matrix(graph, None), emulated.padded(x, precision), plan=plan)


# Kernels that packed formats bring.

RECORD_POLICIES = [
    *(replace(RECORD_POLICY, stage_a=stage) for stage in STAGINGS),
    *(replace(RECORD_POLICY, stage_a=stage, stage_x=False, x_load="plain") for stage in STAGINGS),
    *(replace(RECORD_POLICY, coarsening=tiles) for tiles in (1, 2)),
]
TILE_POLICIES = [
    replace(TILE_POLICY, stage_a=stage, coarsening=tiles) for stage in STAGINGS for tiles in (1, 2, 4)
]


def close(
    place: Place, shape: tuple[int, int, float], plan: WindowPlan, precision: str, widths: tuple[int, ...],
    **options: object,
) -> None:  # fmt: skip
    graph = random_graph(*shape, hubs=1, empty_rows=0.1 if shape[0] > 1 else 0.0)
    a = make(graph, place.device, precision=precision, **options)
    for width in widths:
        x = torch.randn(shape[1], width)
        x = emulated.padded(x, precision) if width == 71 else x
        check(a, dense_matrix(graph, None), x, plan=plan)


@pytest.mark.parametrize(
    ("name", "precision", "policy"),
    [
        *(("hrpb", "tf32", policy) for policy in RECORD_POLICIES),
        *(("rs-tile", precision, policy) for precision in LOW for policy in TILE_POLICIES),
    ],
    ids=str,
)
@pytest.mark.parametrize("limit", [1, 1000])
def test_policies_of_packed_formats(
    late_place: Place, name: str, precision: str, policy: WindowPolicy, limit: int
) -> None:
    """Panels and windows whole and cut, an odd number of blocks among them; parts of tiles of features."""
    plan, widths = WindowPlan(tile_limit=limit, policy=policy), (71, 200)
    for shape in SHAPES[:2]:
        if name == "rs-tile":  # with rows of CUDA cores in the same launch
            close(late_place, shape, plan, precision, widths, format=name)
        else:
            for panel in (16, 32):
                close(late_place, shape, plan, precision, (40, *widths), format=name, panel=panel)


@pytest.mark.parametrize("panel", [16, 32])
@pytest.mark.parametrize("shape", SHAPES)
def test_hrpb_shapes(late_place: Place, panel: int, shape: tuple[int, int, float]) -> None:
    plan = WindowPlan(tile_limit=2, policy=RECORD_POLICY)
    close(late_place, shape, plan, "tf32", (1, 7, 64, 136), format="hrpb", panel=panel)


@pytest.mark.parametrize("precision", LOW)
@pytest.mark.parametrize("mode", RESIDUAL_MODES)
@pytest.mark.parametrize("options", [{"threshold": 0}, None, {"threshold": 64, "new_columns": 65}], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_rs_tile_thresholds(
    late_place: Place, precision: str, mode: str, options: Any, shape: tuple[int, int, float]
) -> None:
    """No row, some rows and all rows but long ones on CUDA cores."""
    plan = WindowPlan(tile_limit=2, policy=TILE_POLICY, residual_mode=mode)
    close(late_place, shape, plan, precision, (1, 40, 136), format="rs-tile", format_options=options)


def test_thresholds_decide_which_rows_cuda_cores_compute() -> None:
    graph = random_graph(300, 300, 0.02)
    none, some, every = (
        make(graph, "cpu", precision="fp16", format="rs-tile", format_options=options).kernels.blocked
        for options in ({"threshold": 0}, {"threshold": 4}, {"threshold": 64, "new_columns": 65})
    )
    assert none.residual_rows.numel() == none.residual_cols.numel() == 0
    assert 0 < some.residual_rows.numel() < every.residual_rows.numel()
    assert every.panels == 0
    assert every.residual_rows.numel() == int((graph.csr.degrees > 0).sum())


@pytest.mark.parametrize(("name", "precision"), [("hrpb", "tf32"), ("rs-tile", "fp16")])
def test_the_format_brings_its_kernel_and_its_policy(native: RunningPath, name: str, precision: str) -> None:
    graph = random_graph(64, 64, 0.1)
    a = make(graph, "cpu", precision=precision, format=name)
    plan = a.plan(32)
    assert plan.policy == OWN[name]
    gnnsparse.spmm(a, torch.randn(64, 32))
    assert {"hrpb": "cuda_spmm_records", "rs-tile": "cuda_spmm_tiles"}[name] in native.called
    assert "cuda_spmm_csr" not in native.called


@pytest.mark.parametrize(
    ("name", "precision", "policy", "message"),
    [
        ("hrpb", "tf32", TILE_POLICY, "bricks of 16 x 4"),
        ("hrpb", "tf32", replace(RECORD_POLICY, grid="3d"), "flat grids"),
        ("hrpb", "tf32", replace(RECORD_POLICY, stage_x=False), "copies X by 16 bytes"),
        ("hrpb", "tf32", replace(RECORD_POLICY, coarsening=2, stage_a="double"), "coarsening 1 and 2"),
        ("rs-tile", "tf32", RECORD_POLICY, "swapped operands, k=8"),
        ("rs-tile", "fp16", replace(TILE_POLICY, coarsening=8), "coarsening 1, 2, 4"),
        ("me-bcrs", "fp16", WindowPolicy(swapped=False), "windows have 8 rows; as the left operand"),
        ("window", "fp16", WindowPolicy(stage_a="double"), "encoding bitmap has the default policy alone"),
        ("me-bcrs", "bf16", WindowPolicy(stage_a="double"), "bf16 has the default policy alone"),
    ],
)  # fmt: skip
def test_policies_that_a_kernel_does_not_have_are_refused(
    late_place: Place, name: str, precision: str, policy: WindowPolicy, message: str
) -> None:
    a = make(random_graph(20, 20, 0.2), late_place.device, precision=precision, format=name)
    with pytest.raises(ValueError, match=message):
        gnnsparse.spmm(a, torch.randn(20, 8, device=a.device), plan=WindowPlan(policy=policy))


@pytest.mark.parametrize("precision", list(ROUNDED_PRECISIONS))
def test_the_kernels_say_which_precisions_they_have(precision: Precision) -> None:
    hrpb, rs_tile = format_spec("hrpb", precision), format_spec("rs-tile", precision)
    assert ("tf32 kernel" in why_not_packed(RECORD_POLICY, precision, hrpb)) == (
        precision in (Precision.FP16, Precision.BF16)
    )
    assert (why_not_packed(TILE_POLICY, precision, rs_tile) == "") == (precision is not Precision.FP32)


def test_residual_modes_are_checked() -> None:
    with pytest.raises(ValueError, match="residual_mode"):
        WindowPlan(residual_mode="later")


# Policies of the window kernel.


POLICIES = [
    (precision, window, policy)
    for precision in PRECISIONS
    for window in WINDOWS
    for policy in policies(precision, window)
]


def name_of(case: Any) -> str:
    """The switches of a policy that differ from the default."""
    if not isinstance(case, WindowPolicy):
        return str(case)
    plain = WindowPolicy()
    changed = {name: value for name, value in vars(case).items() if value != getattr(plain, name)}
    return ",".join(f"{name}={value}" for name, value in changed.items())


@pytest.mark.parametrize(("precision", "window", "policy"), POLICIES, ids=name_of)
def test_every_combination(gpu_place: Place, precision: str, window: int, policy: WindowPolicy) -> None:
    """Windows whole and cut, X in several feature tiles of which the last is not full, with NaN behind it."""
    name, panel, density = WINDOWS[window]
    graph = random_graph(45, 90, density, hubs=1, empty_rows=0.1)
    a = make(graph, gpu_place.device, precision=precision, format=name, panel=panel)
    dense = dense_matrix(graph, None)
    for limit, width in ((1, 71), (1000, 150 if precision == "fp16" else 75)):
        plan = Plan("window", tile_limit=limit, policy=policy)
        check(a, dense, emulated.padded(torch.randn(90, width), precision), plan=plan)
    default = policy.is_default(Precision.parse(precision))
    assert gpu_place.ran("cuda_spmm_window" if default else "cuda_spmm_policy")


@pytest.mark.parametrize(("name", "precision"), OF_PAPERS)
@pytest.mark.parametrize("shape", SHAPES[:4])
def test_every_switch_of_every_preset(
    gpu_place: Place, name: str, precision: str, shape: tuple[int, int, float]
) -> None:
    """The preset's own plan, and each switch of its policy changed; a second run gives the same bits."""
    graph = random_graph(*shape, hubs=1, empty_rows=0.1)
    a = make(graph, gpu_place.device, precision=precision, format=name)
    dense, x = dense_matrix(graph, None), emulated.padded(torch.randn(shape[1], 136), precision)
    plan = a.plan(136)
    assert plan.kernel == "window"
    check(a, dense, x)
    for policy in policy_changes(
        plan.policy, Precision.parse(precision), a.kernels.blocked.spec.window
    ).values():
        check(a, dense, x, plan=replace(plan, tile_limit=2, policy=policy))
    x = x.to(a.device)
    assert torch.equal(a @ x, a @ x)
    assert gpu_place.ran("cuda_spmm_policy")


#: For each precision the fragments of the deep and the shallow mma, the slots that an mma of each takes, and
#: the features of a lane.
FRAGMENTS = {
    "fp16": (("m16n8k16", 16), ("m16n8k8 halves", 8), 8),
    "tf32": (("m16n8k8", 8), ("m16n8k4", 4), 4),
}


def test_slots_are_where_the_fragments_have_k(built: ModuleType, precision: str) -> None:
    """Register by register, an mma of either depth has the K of its operands at the lane's next slots."""
    *shapes, _ = FRAGMENTS[precision]
    slots = built.policy_maps(precision)["slots"]
    for shape, depth in shapes:
        right = built.fragment_map(shape, "b")
        per_lane = len(right) // 32
        for lane in range(32):
            k_of_lane = [row for row, _ in right[lane * per_lane : (lane + 1) * per_lane]]
            taken = [depth * s + k for s in range(16 // depth) for k in k_of_lane]
            assert taken == slots[4 * lane : 4 * lane + 4]


@pytest.mark.parametrize("order", ["vector", "pairs", "natural"])
def test_results_are_where_the_fragments_have_them(built: ModuleType, precision: str, order: str) -> None:
    """Every accumulator register of every lane: the row and the feature that its mma computes there."""
    *_, count = FRAGMENTS[precision]
    features, results = built.policy_maps(precision)[order]
    assert sorted(features) == list(range(8 * count))
    place = built.fragment_map("m16n8k16", "c")
    for layout, elements in results.items():
        height = int(layout.split()[1])
        assert len({(row, feature) for *_, row, feature in elements}) == height * 8 * count
        for lane, register, row, feature in elements:
            m, n = place[4 * lane + register % 4]
            if layout.startswith("right"):  # M: features of groups 0 to 7 and again; N: rows of the window
                tile, pair = divmod(register // 4, count // 2)
                expected = 8 * tile + n, features[count * (m % 8) + 2 * pair + m // 8]
            else:
                expected = m, features[count * n + register // 4]
            assert (row, feature) == expected


@pytest.mark.parametrize("limit", [1, 1000])
def test_blocks_hold_the_scores_where_spmm_reads_them(
    built: ModuleType, copyless: RunningPath, precision: str, limit: int
) -> None:
    """Algorithm 1: the blocks of the format, +0.0 where there is no nonzero; the same scores in row order."""
    exact = Precision.parse(precision)
    graph = random_graph(45, 60, 0.1, hubs=1, empty_rows=0.2)
    a = make(graph, "cpu", precision=precision, format="me-bcrs")
    kernels, q, k = a.kernels, torch.randn(45, 24).to(exact.storage), torch.randn(60, 24).to(exact.storage)
    blocks = torch.full((kernels.blocked.values.numel(),), float("nan"))
    scores = torch.full((a.nnz,), float("nan"))
    rows, work = _native.StoredRows(kernels.csr.indptr), kernels.window_work(limit, for_scores=True)
    built.cuda_sddmm_blocks(
        kernels.view(0, True), rows, work.view, dense_view(q), dense_view(k), blocks,
        _native.EdgeValues(scores), 24, exact.code, 0,
    )  # fmt: skip
    assert torch.equal(scores, gnnsparse.sddmm(a, q.float(), k.float(), plan=Plan("window")))
    expected = torch.zeros_like(blocks)
    expected[kernels.value_places] = scores
    assert torch.equal(blocks, expected)


def test_agnn_runs_on_its_own_kernels(gpu_place: Place, precision: str) -> None:
    """AGNN's attention and its gradient as SDDMM, softmax and SpMM in the blocks of me-bcrs."""
    graph = random_graph(60, 60, 0.1, weighted=False, hubs=1)
    a = make(graph, gpu_place.device, precision=precision, format="me-bcrs", values="gcn")

    def layer(x: torch.Tensor, **options: Any) -> torch.Tensor:
        unit = torch.nn.functional.normalize(x)
        return gnnsparse.attention(a, unit, unit, x, scale=1.0, **options)

    x, unfused = torch.randn(60, 32, device=a.device), partial(layer, plan=Plan("unfused"))
    unfused(x)
    assert gpu_place.ran("cuda_sddmm_blocks", "cuda_softmax", "cuda_spmm_policy")
    others = {"cuda_sddmm_csr", "cuda_spmm_csr", "cuda_graph_attention"}
    assert gpu_place.path is None or not gpu_place.path.called & others
    got, plain = with_gradients(unfused, [x]), with_gradients(partial(layer, impl="reference"), [x])
    exact = with_gradients(partial(layer, impl="reference"), [x.double()])
    assert_all_accurate(got, plain, exact, floor=2 * ROUNDING[precision])


def test_stored_zeros_that_the_index_lists_are_not_read(native: RunningPath) -> None:
    """Tiled-CSR: a column that zero_cols lists counts as zero, whatever value is stored there."""
    graph = random_graph(40, 50, 0.15)
    a = make(graph, "cpu", precision="fp16", format="tiled-csr")
    blocked, x = a.kernels.blocked, torch.randn(50, 40)
    assert blocked.zero_cols.numel() > 0
    spoiled = blocked.values.clone()
    spoiled[spoiled.view(torch.int16) == 0] = 3.0  # the listed zeros, and padded slots
    real = torch.zeros_like(spoiled, dtype=torch.bool)
    real[a.kernels.value_places] = True
    padded = _padded_elements(blocked)
    spoiled[padded & ~real] = 0.0
    dense = dense_matrix(graph, None)
    for limit in (1, 2, 1000):
        fresh = make(graph, "cpu", precision="fp16", format="tiled-csr")
        object.__setattr__(fresh.kernels.blocked, "values", spoiled)
        check(fresh, dense, x, plan=replace(a.plan(40), tile_limit=limit))


def _padded_elements(blocked: BlockedMatrix) -> torch.Tensor:
    """Which values are those of padded column slots, which repeat the column before them."""
    again = torch.zeros(blocked.slots, dtype=torch.bool)
    again[1:] = blocked.columns[1:] == blocked.columns[:-1]
    again[blocked.panel_ptr[:-1][blocked.panel_ptr[:-1] < blocked.slots]] = False
    spec = blocked.spec
    return again.view(-1, 1, spec.block).expand(-1, spec.window, -1).flatten()
