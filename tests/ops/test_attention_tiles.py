"""The tiles of a pattern beside its dense matrix, and attention over them by the emulated kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest
import torch

import gnnsparse
from gnnsparse import masks
from gnnsparse.ops.attention.tiles import TILE, tile_lists
from gnnsparse.plan import BlockAttentionPlan
from gnnsparse.runtime.device import Device
from gnnsparse.testing import assert_all_accurate, random_graph
from tests import emulated
from tests.gpu_paths import H200
from tests.helpers import make
from tests.ops.attention_oracle import exact, make_case, plain, run

A100 = replace(H200, capability=(8, 0))
PATTERNS: dict[str, Callable[[], gnnsparse.SparseGraph]] = {
    "graph": lambda: random_graph(300, 270, 0.1, hubs=2, empty_rows=0.2),
    "window": lambda: masks.window(520, 140),
    "blocks": lambda: masks.block(
        torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 1]]) != 0, 128, 384, 500
    ),
    "cut rows": lambda: masks.block(torch.tensor([[1, 0], [0, 1]]) != 0, 128, 200, 256),
    "causal": lambda: masks.causal(300),
}


def from_lists(a: gnnsparse.SparseOperand) -> torch.Tensor:
    """The dense pattern of stored rows, as the lists have it."""
    csr, lists = a.kernels.csr, tile_lists(a.kernels)
    panels, across = lists.starts.numel() - 1, -(-csr.cols // TILE)
    dense = torch.zeros(panels * TILE, across * TILE, dtype=torch.bool)
    for panel in range(panels):
        for column, bits in lists.tiles[lists.starts[panel] : lists.starts[panel + 1]].tolist():
            words = lists.bits[bits] if bits >= 0 else torch.full((TILE, 4), -1)
            tile = words.unsqueeze(2) >> torch.arange(32) & 1
            at = dense[TILE * panel : TILE * (panel + 1), TILE * column : TILE * (column + 1)]
            assert not at.any()
            at.copy_(tile.view(TILE, TILE))
    assert not dense[:, csr.cols :].any()
    return dense[: csr.rows, : csr.cols]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("reorder", ["none", "degree"])
def test_tiles_are_those_of_the_dense_pattern(pattern: str, reorder: str) -> None:
    a = make(PATTERNS[pattern](), "cpu", reorder=reorder)
    csr = a.kernels.csr
    dense = torch.zeros(csr.rows, csr.cols, dtype=torch.bool)
    dense[csr.row_index(), csr.indices.long()] = True
    assert torch.equal(from_lists(a), dense)
    parts = [tile for rows in dense.split(TILE) for tile in rows.split(TILE, dim=1) if tile.any()]
    full = sum(bool(tile.all()) and tile.shape[1] == TILE for tile in parts)
    counts = a.kernels.tiles
    assert (counts.full, counts.partial, counts.nnz) == (full, len(parts) - full, csr.nnz)
    assert counts.fill == csr.nnz / (TILE * TILE * len(parts))
    assert tile_lists(a.kernels).bits.shape[0] == counts.partial


def test_patterns_without_edges_have_no_tiles() -> None:
    for rows, cols in [(0, 0), (5, 0), (0, 5), (300, 5)]:
        empty = torch.empty(2, 0, dtype=torch.int64)
        a = make(gnnsparse.SparseGraph.from_edge_index(empty, (rows, cols)), "cpu")
        assert a.kernels.tiles == (0, 0, 0)
        assert a.kernels.tiles.fill == 0
        assert tile_lists(a.kernels).starts.tolist() == [0] * (-(-a.kernels.csr.rows // TILE) + 1)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(
    ("d", "dv", "precision", "scale"),
    [(64, 64, "fp16", None), (40, 64, "bf16", -0.2), (128, 72, "fp16", 0.0), (5, 8, "bf16", 2.0)],
)
@pytest.mark.parametrize("device", [H200, A100], ids=["Hopper", "Ampere"])
def test_attention_over_tiles(
    module: ModuleType, device: Device, pattern: str, d: int, dv: int, precision: str, scale: float | None
) -> None:
    """Results and gradients, which are over tiles on Hopper; of reordered rows too."""
    a = make(PATTERNS[pattern](), "cpu", precision=precision, reorder="degree" if d == 40 else "none")
    with emulated.running(module, device) as native:
        case = make_case(a, d, dv, lead=(1, 2), scale=scale)
        results = run(a, case, plan=BlockAttentionPlan())
        again = run(a, case, plan=BlockAttentionPlan())
        floor = 1.5 * torch.finfo(a.precision.storage).eps
        assert_all_accurate(results, plain(a, case), lambda: exact(a, case), floor=floor)
    assert all(torch.equal(*both) for both in zip(results, again, strict=True))
    assert "cuda_attention_blocks" in native.called
    assert ("cuda_attention_blocks_backward" in native.called) == (device is H200)
    assert "cuda_attention_panel_rows" not in native.called or device is A100


def test_gradients_over_tiles_that_are_wanted(module: ModuleType) -> None:
    """One argument's gradient alone has the bits that it has beside the others."""
    a = make(PATTERNS["graph"](), "cpu", precision="fp16")
    case, found = make_case(a, 24, 16, lead=(2, 1)), list[torch.Tensor]()
    with emulated.running(module):
        _, *expected = run(a, case, plan=BlockAttentionPlan())
        for i, x in enumerate(case.leaves):
            leaves = [*case.leaves]
            leaves[i] = x.clone().requires_grad_()
            out = gnnsparse.attention(a, *leaves, plan=BlockAttentionPlan())
            found += torch.autograd.grad(out, leaves[i], case.grad)
    assert all(torch.equal(*both) for both in zip(found, expected, strict=True))


def test_what_tiles_do_not_take(module: ModuleType) -> None:
    sparse = make(random_graph(3000, 3000, 0.001), "cpu", precision="fp16")
    dense = make(masks.window(200, 70), "cpu", precision="fp16")
    plan, x, odd = BlockAttentionPlan(), torch.randn(3000, 16), torch.randn(200, 12)
    with emulated.running(module):
        with pytest.raises(ValueError, match=r"tiles are 0\.10% full; accepted: 1\.56% or more"):
            gnnsparse.attention(sparse, x, x, x, plan=plan)
        x = x[:200]
        with pytest.raises(ValueError, match="multiple of 8"):
            gnnsparse.attention(dense, x, x, odd, plan=plan)
        with pytest.raises(ValueError, match="no bias, dropout or causal mask over tiles"):
            gnnsparse.attention(dense, x, x, x, is_causal=True, plan=plan)
        with pytest.raises(ValueError, match="no tf32 over tiles"):
            gnnsparse.attention(make(masks.window(200, 70), "cpu", precision="tf32"), x, x, x, plan=plan)
