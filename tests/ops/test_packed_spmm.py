"""cuTeSpMM's and RSH-SpMM's kernels, on a GPU and as emulated CUDA sources, against float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

import gnnsparse
from gnnsparse.formats import WindowPolicy, format_spec
from gnnsparse.formats.policy import RECORD_POLICY, TILE_POLICY, why_not_packed
from gnnsparse.plan import WindowPlan
from gnnsparse.plan.window import RESIDUAL_MODES
from gnnsparse.precision import ROUNDED_PRECISIONS, Precision
from gnnsparse.testing import random_graph
from tests import emulated
from tests.gpu_paths import RunningPath
from tests.helpers import dense_matrix, make
from tests.ops.conftest import Place
from tests.ops.test_spmm import check

pytestmark = pytest.mark.usefixtures("poisoned")
#: Shapes and densities: with rows for CUDA cores, full blocks, and a single nonzero.
SHAPES = [(100, 70, 0.1), (61, 200, 0.05), (16, 16, 0.9), (300, 300, 0.004), (1, 1, 1.0)]
STAGES = ("none", "single", "double")
RECORD_POLICIES = [
    *(replace(RECORD_POLICY, stage_a=stage) for stage in STAGES),
    *(replace(RECORD_POLICY, stage_a=stage, stage_x=False, x_load="plain") for stage in STAGES),
    *(replace(RECORD_POLICY, coarsening=tiles) for tiles in (1, 2)),
]
TILE_POLICIES = [
    replace(TILE_POLICY, stage_a=stage, coarsening=tiles) for stage, tiles in product(STAGES, (1, 2, 4))
]
TILE_PRECISIONS = ("fp16", "bf16", "tf32")


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


@pytest.mark.parametrize("panel", [16, 32])
@pytest.mark.parametrize("policy", RECORD_POLICIES, ids=str)
@pytest.mark.parametrize("limit", [1, 1000])
def test_hrpb(late_place: Place, panel: int, policy: WindowPolicy, limit: int) -> None:
    """Panels whole and cut; parts of a tile of features, and several tiles."""
    plan = WindowPlan(tile_limit=limit, policy=policy)
    for shape in SHAPES[:2]:
        close(late_place, shape, plan, "tf32", (40, 71, 200), format="hrpb", panel=panel)


@pytest.mark.parametrize("panel", [16, 32])
@pytest.mark.parametrize("shape", SHAPES)
def test_hrpb_shapes(late_place: Place, panel: int, shape: tuple[int, int, float]) -> None:
    plan = WindowPlan(tile_limit=2, policy=RECORD_POLICY)
    close(late_place, shape, plan, "tf32", (1, 7, 64, 136), format="hrpb", panel=panel)


@pytest.mark.parametrize("precision", TILE_PRECISIONS)
@pytest.mark.parametrize("policy", TILE_POLICIES, ids=str)
@pytest.mark.parametrize("limit", [1, 1000])
def test_rs_tile(late_place: Place, precision: str, policy: WindowPolicy, limit: int) -> None:
    """Windows whole and cut, an odd number of blocks among them; rows of CUDA cores in the same launch."""
    plan = WindowPlan(tile_limit=limit, policy=policy)
    for shape in SHAPES[:2]:
        close(late_place, shape, plan, precision, (71, 200), format="rs-tile")


@pytest.mark.parametrize("precision", TILE_PRECISIONS)
@pytest.mark.parametrize("mode", RESIDUAL_MODES)
@pytest.mark.parametrize("options", [{"threshold": 0}, None, {"threshold": 64, "new_columns": 65}], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_rs_tile_thresholds(
    late_place: Place,
    precision: str,
    mode: str,
    options: dict[str, int] | None,
    shape: tuple[int, int, float],
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


@pytest.mark.parametrize(("name", "precision"), [("hrpb", "tf32"), ("rs-tile", "tf32"), ("rs-tile", "fp16")])
@pytest.mark.parametrize("weights", ["gcn", "mean"])
@pytest.mark.parametrize("limit", [1, 1000])
def test_weights_and_orders(late_place: Place, name: str, precision: str, weights: str, limit: int) -> None:
    """Rows in another order, weights of a normalisation, and a mean in the call."""
    graph = random_graph(90, 90, 0.08, weighted=False, hubs=2, empty_rows=0.2)
    a = make(graph, late_place.device, precision=precision, format=name, values=weights, reorder="degree")
    x = torch.randn(90, 40)
    plan = replace(a.plan(40), tile_limit=limit, reasons=())
    check(a, dense_matrix(graph, weights), x, plan=plan)
    x = x.to(late_place.device)
    assert torch.equal(gnnsparse.spmm(a, x, plan=plan), gnnsparse.spmm(a, x, plan=plan))
    ones = make(graph, late_place.device, precision=precision, format=name, reorder="degree")
    check(ones, dense_matrix(graph, "mean"), x, plan=plan, reduce="mean")


@pytest.mark.parametrize(("name", "precision"), [("hrpb", "tf32"), ("rs-tile", "fp16")])
def test_the_format_brings_its_kernel_and_its_policy(native: RunningPath, name: str, precision: str) -> None:
    graph = random_graph(64, 64, 0.1)
    a = make(graph, "cpu", precision=precision, format=name)
    plan = a.plan(32)
    assert plan.policy == (RECORD_POLICY if name == "hrpb" else TILE_POLICY)
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
