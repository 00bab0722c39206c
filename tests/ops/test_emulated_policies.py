"""The window kernel's policies, as emulated CUDA sources and on a GPU, against float64."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseGraph, _native
from gnnsparse.formats import BlockedMatrix, WindowPolicy
from gnnsparse.formats.policy import STAGINGS, X_LOADS, policy_changes
from gnnsparse.nn import AGNNConv
from gnnsparse.plan import Plan
from gnnsparse.precision import Precision, dense_view
from gnnsparse.testing import assert_accurate, random_graph
from tests import emulated
from tests.gpu_paths import RunningPath
from tests.helpers import dense_matrix, make, plain_product
from tests.ops.conftest import Place, graphs
from tests.ops.test_spmm import check

PRECISIONS = ("fp16", "tf32")
#: The formats, with the precisions that their papers multiply in.
PRESETS = [
    ("me-bcrs", "fp16"), ("me-bcrs", "tf32"), ("cvse", "fp16"), ("tiled-csr", "fp16"), ("sr-bcrs", "fp16"),
]  # fmt: skip
#: Formats with windows of 8 and of 16 rows; blocks of 4, 8, 1 and 16 columns; padded and not.
FORMATS = {8: ("me-bcrs", 8, 0.06), 16: ("me-bcrs", 16, 0.06)}


@pytest.fixture(params=PRECISIONS)
def precision(request: pytest.FixtureRequest) -> str:
    return request.param


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


CASES = [
    (precision, window, policy)
    for precision in PRECISIONS
    for window in FORMATS
    for policy in policies(precision, window)
]


def name_of(case: Any) -> str:
    """The switches of a policy that differ from the default."""
    if not isinstance(case, WindowPolicy):
        return str(case)
    plain = WindowPolicy()
    changed = {name: value for name, value in vars(case).items() if value != getattr(plain, name)}
    return ",".join(f"{name}={value}" for name, value in changed.items())


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("precision", "window", "policy"), CASES, ids=name_of)
def test_every_combination(gpu_place: Place, precision: str, window: int, policy: WindowPolicy) -> None:
    """Windows whole and cut, X in several feature tiles of which the last is not full, with NaN behind it."""
    name, panel, density = FORMATS[window]
    graph = random_graph(45, 90, density, hubs=1, empty_rows=0.1)
    a = make(graph, gpu_place.device, precision=precision, format=name, panel=panel)
    dense = dense_matrix(graph, None)
    for limit, width in ((1, 71), (1000, 150 if precision == "fp16" else 75)):
        plan = Plan("window", tile_limit=limit, policy=policy)
        check(a, dense, emulated.padded(torch.randn(90, width), precision), plan=plan)
    default = policy.is_default(Precision.parse(precision))
    assert gpu_place.ran("cuda_spmm_window" if default else "cuda_spmm_policy")


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("name", "precision"), PRESETS)
@pytest.mark.parametrize("shape", [(100, 70, 0.1), (61, 200, 0.05), (16, 16, 0.9), (300, 300, 0.004)])
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


@given(
    graph=graphs(70, 100), case=st.sampled_from(PRESETS), width=st.integers(1, 140), limit=st.integers(1, 4),
    number=st.integers(0, 2**20),
)  # fmt: skip
def test_property(
    native: RunningPath, graph: SparseGraph, case: tuple[str, str], width: int, limit: int, number: int
) -> None:
    name, precision = case
    a = make(graph, "cpu", precision=precision, format=name)
    able = policies(precision, a.kernels.blocked.spec.window)
    plan = Plan("window", tile_limit=limit, policy=able[number % len(able)])
    x = emulated.padded(torch.randn(graph.num_cols, width), precision)
    check(a, dense_matrix(graph, None), x, plan=plan)


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


@pytest.mark.gpu
def test_agnn_and_its_gradients(precision: str) -> None:
    """The layer in the blocks of me-bcrs beside the layer over CSR rows."""
    graph = random_graph(300, 300, 0.04, weighted=False, hubs=1)
    found = []
    for name in ("me-bcrs", "auto"):
        layer = AGNNConv(precision=precision).cuda()
        x = torch.randn(300, 48, generator=torch.Generator().manual_seed(3)).cuda().requires_grad_()
        y = layer(x, make(graph, "cuda", precision=precision, format=name, values="gcn"))
        y.square().sum().backward()
        found.append((y.detach(), x.grad, layer.beta.grad))
    for ours, rows in zip(*found, strict=True):
        torch.testing.assert_close(ours, rows, rtol=2e-2, atol=2e-2 * float(rows.abs().max()))


def test_agnn_runs_on_its_own_kernels(native: RunningPath) -> None:
    """AGNN's attention as SDDMM, softmax and SpMM in the blocks of me-bcrs, against float64."""
    graph = random_graph(60, 60, 0.1, weighted=False)
    a, x = make(graph, "cpu", precision="fp16", format="me-bcrs", values="gcn"), torch.randn(60, 32)
    unit = torch.nn.functional.normalize(x)
    y = gnnsparse.attention(a, unit, unit, x, scale=1.0, plan=Plan("unfused"))
    assert native.called >= {"cuda_sddmm_blocks", "cuda_softmax", "cuda_spmm_policy"}
    assert not native.called & {"cuda_sddmm_csr", "cuda_spmm_csr", "cuda_graph_attention"}
    dense = torch.from_numpy(graph.to_scipy().toarray()) + torch.eye(60)
    scores = (unit.double() @ unit.double().T).masked_fill(dense == 0, -torch.inf)
    weights = scores.softmax(1)
    assert_accurate(y, plain_product(weights, x, "fp16"), weights @ x.double())


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
