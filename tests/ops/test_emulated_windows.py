"""The CUDA sources of SpMM over windows of every stored format, run on the CPU, against float64."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseGraph
from gnnsparse.formats import PRESETS, FormatSpec, register_preset
from gnnsparse.formats.policy import RECORD_POLICY, TILE_POLICY, WindowPolicy
from gnnsparse.plan import Plan
from gnnsparse.plan.work import WorkList
from gnnsparse.precision import Precision
from gnnsparse.registry import temporary_registrations
from gnnsparse.testing import random_graph
from tests import emulated
from tests.gpu_paths import RunningPath
from tests.helpers import dense_matrix, has_precision, make, precision_for
from tests.ops.conftest import Place, graphs
from tests.ops.test_spmm import check, check_dtypes

pytestmark = pytest.mark.usefixtures("poisoned")
LOW = ("fp16", "bf16", "tf32")
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
#: The formats that have kernels of their own (test_packed_spmm.py).
PACKED = [("hrpb", 16, "tf32"), ("hrpb", 32, "tf32"), *(("rs-tile", None, p) for p in LOW)]
#: Shapes and densities: of cvse both window heights, of packed-8x8 rows that are kept out of the windows.
SHAPES = [(100, 70, 0.1), (61, 200, 0.05), (16, 16, 0.9), (300, 300, 0.004), (1, 1, 1.0)]


@pytest.fixture(autouse=True, scope="module")
def packed_presets() -> Iterator[None]:
    """Packed formats of a user's own: hrpb and rs-tile have kernels of theirs (test_packed_spmm.py)."""
    common = {"encoding": "bitmap", "packed": True, "pad": 16, "block": 16}
    with temporary_registrations():
        tall = FormatSpec("packed-16x4", window=16, panel=16, brick=4, active_bricks=True, **common)
        register_preset(tall, "a test", panels={16: 16, 32: 16})
        low = FormatSpec("packed-8x8", window=8, panel=8, brick=8, split_short_rows=True, **common)
        register_preset(low, "a test")
        yield


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


@pytest.mark.parametrize("precision", LOW)
@pytest.mark.parametrize("weights", [None, "gcn", "mean"])
@pytest.mark.parametrize("limit", [1, 5, 1000])
def test_weights_of_column_slots_and_of_rows(
    cuda_place: Place, precision: str, weights: str | None, limit: int
) -> None:
    graph = random_graph(90, 90, 0.08, weighted=False, hubs=2, empty_rows=0.2)
    options = {"precision": precision, "format": "window", "values": weights, "reorder": "degree"}
    a = make(graph, cuda_place.device, **options)
    for width in (7, 64, 71):
        x = emulated.padded(torch.randn(90, width), precision)
        check(a, dense_matrix(graph, weights), x, plan=Plan("window", tile_limit=limit))


@given(
    graph=graphs(70, 100), case=st.sampled_from([*CASES, *PACKED]), width=st.integers(1, 80),
    limit=st.integers(1, 4), threshold=st.integers(0, 8),
)  # fmt: skip
def test_property(
    native: RunningPath, graph: SparseGraph, case: tuple[str, int | None, str], width: int, limit: int,
    threshold: int,
) -> None:  # fmt: skip
    name, panel, precision = case
    options = {"threshold": threshold} if name == "rs-tile" else None
    a = make(graph, "cpu", precision=precision, format=name, panel=panel, format_options=options)
    policy = {"hrpb": RECORD_POLICY, "rs-tile": TILE_POLICY}.get(name, WindowPolicy())
    x, plan = torch.randn(graph.num_cols, width), Plan("window", tile_limit=limit, policy=policy)
    check(a, dense_matrix(graph, None), emulated.padded(x, precision), plan=plan)
