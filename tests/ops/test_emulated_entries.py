"""Panels of 32 rows whose stored values are entries: the CUDA sources, run on the CPU."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseGraph
from gnnsparse.plan import Plan
from gnnsparse.precision import Precision, round_operand
from gnnsparse.testing import assert_accurate, random_graph
from tests import emulated
from tests.gpu_paths import RunningPath
from tests.helpers import PRECISIONS, dense_matrix, make
from tests.ops.test_spmm import check

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


@pytest.mark.usefixtures("poisoned")
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


@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_entry(native: RunningPath, precision: str) -> None:
    x = torch.randn(40, 33)
    for row, col in itertools.product((0, 7, 8, 15, 16, 31, 32, 39), (0, 1, 6, 31, 39)):
        graph = made(torch.tensor([row]), torch.tensor([col]), (40, 40), torch.tensor([1.5]))
        y = gnnsparse.spmm(make(graph, "cpu", precision=precision), x, plan=Plan("panel", height=32))
        wanted = torch.zeros(40, 33)
        wanted[row] = 1.5 * round_operand(x[col], Precision.parse(precision)).float()
        assert_accurate(y, wanted, wanted.double())
        assert not y[torch.arange(40) != row].any()


@pytest.mark.parametrize("precision", PRECISIONS)
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
