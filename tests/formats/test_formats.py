"""The presets store what their papers store: counts by brute force, bytes by the papers' formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gnnsparse import SparseGraph
from gnnsparse.formats import BlockedMatrix, FormatSpec, format_spec
from gnnsparse.formats.convert import convert, short_row_limits
from gnnsparse.precision import Precision, round_operand
from gnnsparse.testing import random_graph

POINTER = 8  # bytes of an offset: the papers have 4 and stop at 2^31 elements
INDEX = 4
SHAPES = [(100, 70, 0.1), (64, 64, 0.5), (61, 200, 0.02), (17, 5, 0.0)]


def build(
    shape: tuple[int, int, float], name: str, precision: str = "fp16", panel: int | None = None
) -> tuple[BlockedMatrix, np.ndarray, int]:
    graph = random_graph(*shape, hubs=1 if shape[2] else 0, empty_rows=0.1)
    spec = format_spec(name, precision, shape[2], panel)
    values = round_operand(graph.values, Precision.parse(precision)) if spec.stores_values else None
    mask = graph.to_scipy().toarray() != 0
    return convert(graph.csr, spec, values), mask, graph.nnz


def vectors(mask: np.ndarray, height: int) -> list[int]:
    """Nonzero columns of each group of rows."""
    return [int(mask[r : r + height].any(0).sum()) for r in range(0, mask.shape[0], height)]


def round_up(count: int, to: int) -> int:
    return -(-count // to) * to


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("precision", "block"), [("fp16", 8), ("tf32", 4)])
def test_me_bcrs(shape: tuple[int, int, float], precision: str, block: int) -> None:
    """FlashSparse, section 3.5: RowPointers, ColumnIndices and Values of nonzero vectors alone."""
    got, mask, _ = build(shape, "me-bcrs", precision)
    counts = vectors(mask, 8)
    value = 2 if precision == "fp16" else 4
    assert got.spec.block == block
    assert got.panel_ptr.diff().tolist() == counts
    assert got.nbytes == POINTER * (len(counts) + 1) + INDEX * sum(counts) + value * 8 * sum(counts)


@pytest.mark.parametrize("shape", SHAPES)
def test_cvse(shape: tuple[int, int, float]) -> None:
    """SSpMM, section V: vecPtr, colInd, LHS of NNZV vectors; V by sparsity; padded to the step."""
    got, mask, _ = build(shape, "cvse")
    height = 16 if shape[2] >= 0.1 else 8
    counts = [round_up(c, 16) for c in vectors(mask, height)]
    assert got.spec.window == height
    assert got.nbytes == POINTER * (len(counts) + 1) + INDEX * sum(counts) + 2 * height * sum(counts)


def test_cvse_keeps_each_vector_together() -> None:
    got, mask, _ = build((16, 9, 0.4), "cvse")
    values = got.values.reshape(-1, 16)
    for slot in range(int(mask.any(0).sum())):
        column = int(got.columns[slot])
        assert ((values[slot] != 0).numpy() == mask[:, column]).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_tiled_csr(shape: tuple[int, int, float]) -> None:
    """Tiled-CSR, section III-A: tiles of 8 x 16, and a Zero Index for the zeros they store."""
    got, mask, nnz = build(shape, "tiled-csr")
    real = vectors(mask, 8)
    counts = [round_up(c, 16) for c in real]
    rows = mask.shape[0]
    zeros = sum(c * min(8, rows - 8 * i) for i, c in enumerate(real)) - nnz
    assert got.zero_cols.numel() == zeros
    for row in range(rows):
        listed = got.zero_cols[got.zero_ptr[row] : got.zero_ptr[row + 1]].tolist()
        window = mask[row // 8 * 8 : row // 8 * 8 + 8].any(0)
        assert sorted(listed) == np.flatnonzero(window & ~mask[row]).tolist()
    tiles = sum(counts) // 16
    expected = POINTER * (len(counts) + 1) + INDEX * 16 * tiles + 2 * 128 * tiles
    assert got.nbytes == expected + POINTER * (rows + 1) + INDEX * zeros


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("panel", [16, 32])
def test_hrpb(shape: tuple[int, int, float], panel: int) -> None:
    """cuTeSpMM, section 3.2 and figures 4 and 5: active bricks of 16 x 4 in blocks 16 wide."""
    got, mask, nnz = build(shape, "hrpb", "tf32", panel)
    counts = [round_up(c, 16) for c in vectors(mask, panel)]
    blocks, bricks = sum(counts) // 16, 0
    for r in range(0, mask.shape[0], panel):
        rows = mask[r : r + panel]
        packed = rows[:, rows.any(0)]
        for c in range(0, packed.shape[1], 4):
            bricks += sum(packed[b : b + 16, c : c + 4].any() for b in range(0, panel, 16))
    active_columns, size_ptr, row_ptr = (
        INDEX * 16 * blocks,
        POINTER * (blocks + 1),
        POINTER * (len(counts) + 1),
    )
    col_ptr, patterns, brick_rows = INDEX * 5 * blocks, 8 * bricks, INDEX * bricks
    paper = active_columns + size_ptr + row_ptr + col_ptr + patterns + brick_rows + 4 * nnz
    # Records are aligned: to 8 bytes in front of the patterns, and to 16 at their end.
    assert 0 <= got.nbytes - paper <= (4 + 12) * blocks


@pytest.mark.parametrize("shape", SHAPES)
def test_rs_tile(shape: tuple[int, int, float]) -> None:
    """RSH-SpMM, section 3.2: window ids, offsets, bitmaps and columns; residual rows by their id alone."""
    got, mask, nnz = build(shape, "rs-tile")
    first = got.panel_rows.tolist()
    kept_out = got.residual_rows.tolist()
    inside = {r for f in first for r in range(f, min(f + 8, mask.shape[0]))}
    assert not inside & set(kept_out)
    assert all(mask[r].sum() == 0 for r in range(mask.shape[0]) if r not in inside and r not in kept_out)
    residual_nnz = int(mask[kept_out].sum())
    short, _ = short_row_limits(mask.shape[0], nnz, got.spec)
    assert all(0 < mask[r].sum() <= short for r in kept_out)
    counts = [round_up(int(mask[f : f + 8].any(0).sum()), 8) for f in first]
    blocks = sum(counts) // 8
    windows = POINTER * (len(first) + 1) + INDEX * len(first) + INDEX * 8 * blocks + 8 * blocks
    values = POINTER * (blocks + 1) + 2 * (nnz - residual_nnz)
    width = max((int(mask[r].sum()) for r in kept_out), default=0)
    residual = INDEX * len(kept_out) + (INDEX + 2) * width * len(kept_out)
    assert got.nbytes == windows + values + residual


def test_rs_tile_keeps_out_what_the_paper_keeps_out() -> None:
    """A short row whose columns its window has anyway goes to the list; one that adds many stays."""
    mask = torch.zeros(24, 64, dtype=torch.bool)
    mask[:, :40] = True
    mask[8] = False
    mask[8, 0] = True  # short, adds nothing to rows 9 to 15
    graph = SparseGraph.from_torch_sparse(mask.float().to_sparse())
    got = convert(graph.csr, format_spec("rs-tile"), torch.ones(graph.nnz, dtype=torch.float16))
    assert got.residual_rows.tolist() == [8]
    assert got.panel_rows.tolist() == [0, 9, 17]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("name", "panel", "height", "wide"),
    [("window", None, 8, 16), ("panel", 16, 16, 32), ("panel", 32, 32, 32)],
)
def test_ours_store_bits_alone(
    shape: tuple[int, int, float], name: str, panel: int | None, height: int, wide: int
) -> None:
    got, mask, _ = build(shape, name, panel=panel)
    counts = [round_up(c, wide) for c in vectors(mask, height)]
    assert got.values is None
    assert got.nbytes == POINTER * (len(counts) + 1) + (INDEX + height // 8) * sum(counts)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("precision", "panel"),
    [("fp16", 16), ("fp16", 32), ("bf16", 32), ("tf32", 16), ("tf32", 32), ("fp32", 32)],
)
def test_ours_with_values(shape: tuple[int, int, float], precision: str, panel: int) -> None:
    """16 rows are dense; 32 rows are 2 bytes and the value a nonzero, padded to 4 or 16 in each stage."""
    got, mask, nnz = build(shape, "panel-values", precision, panel)
    counts = [round_up(c, 32) for c in vectors(mask, panel)]
    half = precision in ("fp16", "bf16")
    assert got.spec.encoding == ("dense" if panel == 16 else "entries" if half else "word_entries")
    frame = POINTER * (len(counts) + 1) + INDEX * sum(counts)
    if panel == 16:
        assert got.nbytes == frame + (2 if half else 4) * 16 * sum(counts)
    else:
        stages = sum(counts) // 32
        entries = got.nbytes - frame - POINTER * (stages + 1)
        size, group = (4, 4) if half else (6, 16)
        assert entries % (size * group) == 0
        assert size * nnz <= entries <= size * (nnz + (group - 1) * stages)


def test_padded_slots_repeat_a_column_and_hold_nothing() -> None:
    got, mask, _ = build((40, 50, 0.1), "window")
    for p, count in enumerate(vectors(mask, 8)):
        columns = got.columns[got.panel_ptr[p] : got.panel_ptr[p + 1]].tolist()
        assert columns[:count] == np.flatnonzero(mask[8 * p : 8 * p + 8].any(0)).tolist()
        assert set(columns[count:]) <= {columns[count - 1]} if count else not columns


@pytest.mark.parametrize(
    "parameters",
    [
        {"window": 8, "panel": 12},
        {"block": 16, "brick": 5},
        {"encoding": "sparse"},
        {"encoding": "bitmap", "pad": 4},
        {"encoding": "dense", "panel": 16},
        {"encoding": "entries"},
        {"encoding": "entries", "window": 16, "panel": 16, "block": 32, "brick": 32, "lane_order": True},
        {"encoding": "word_entries"},
        {"encoding": "bitmap", "pad": 16, "packed": True},
    ],
)
def test_impossible_parameters(parameters: dict[str, object]) -> None:
    base = {"window": 8, "panel": 8, "block": 16, "brick": 16, "encoding": "dense"}
    with pytest.raises(ValueError, match="format"):
        FormatSpec("mine", **{**base, **parameters})
