"""What the project's own formats store, by brute force; those of papers are written out by hand elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

import gnnsparse
from gnnsparse.formats import BlockedMatrix, FormatSpec, format_spec
from gnnsparse.testing import random_graph
from tests.formats.conftest import converted

POINTER = 8  # bytes of an offset: the papers have 4 and stop at 2^31 elements
INDEX = 4
SHAPES = [(100, 70, 0.1), (64, 64, 0.5), (61, 200, 0.02), (17, 5, 0.0)]


def build(
    shape: tuple[int, int, float], name: str, precision: str = "fp16", panel: int | None = None
) -> tuple[BlockedMatrix, np.ndarray, int]:
    graph = random_graph(*shape, hubs=1 if shape[2] else 0, empty_rows=0.1)
    mask = graph.to_scipy().toarray() != 0
    return converted(graph, name, precision, panel), mask, graph.nnz


def vectors(mask: np.ndarray, height: int) -> list[int]:
    """Nonzero columns of each group of rows."""
    return [int(mask[r : r + height].any(0).sum()) for r in range(0, mask.shape[0], height)]


def round_up(count: int, to: int) -> int:
    return -(-count // to) * to


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("name", "precision", "panel", "wide"),
    [
        ("window", "fp16", None, 16), ("panel", "fp16", 16, 32), ("panel", "fp16", 32, 32),
        *(
            ("panel-values", precision, panel, 32)
            for precision, panel in [
                ("fp16", 16), ("fp16", 32), ("bf16", 32), ("tf32", 16), ("tf32", 32), ("fp32", 32)
            ]
        ),
    ],
)  # fmt: skip
def test_bytes_of_our_formats(
    shape: tuple[int, int, float], name: str, precision: str, panel: int | None, wide: int
) -> None:
    """Bits alone; with values 16 rows are dense, and 32 rows are 2 bytes and the value a nonzero, padded."""
    got, mask, nnz = build(shape, name, precision, panel)
    height = panel or 8
    counts = [round_up(c, wide) for c in vectors(mask, height)]
    half = precision in ("fp16", "bf16")
    frame = POINTER * (len(counts) + 1) + INDEX * sum(counts)
    if name != "panel-values":
        assert got.values is None
        assert got.nbytes == frame + height // 8 * sum(counts)
    elif panel == 16:
        assert got.spec.encoding == "dense"
        assert got.nbytes == frame + (2 if half else 4) * 16 * sum(counts)
    else:
        assert got.spec.encoding == ("entries" if half else "word_entries")
        stages = sum(counts) // 32
        entries = got.nbytes - frame - POINTER * (stages + 1)
        size, group = (4, 4) if half else (6, 16)  # entries of a stage are padded to a multiple of the group
        assert entries % (size * group) == 0
        assert size * nnz <= entries <= size * (nnz + (group - 1) * stages)


@pytest.mark.parametrize("height", [16, 32])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("bits", [True, False])
def test_panels_of_an_operand_store_its_values_unless_bits_are_asked_for(
    height: int, weighted: bool, bits: bool
) -> None:
    a = gnnsparse.prepare(random_graph(40, 30, 0.2, weighted=weighted), precision="fp16", cache=False)
    panel = a.kernels.panel(height, bits)
    name = "panel-values" if weighted and not bits else "panel"
    assert panel.spec == format_spec(name, "fp16", panel=height)
    assert (panel.values is None) == (name == "panel")


def test_padded_slots_repeat_a_column_and_hold_nothing() -> None:
    got, mask, _ = build((40, 50, 0.1), "window")
    for p, count in enumerate(vectors(mask, 8)):
        columns = got.columns[got.panel_ptr[p] : got.panel_ptr[p + 1]].tolist()
        assert columns[:count] == np.flatnonzero(mask[8 * p : 8 * p + 8].any(0)).tolist()
        assert set(columns[count:]) <= {columns[count - 1]} if count else not columns


BRICKS = {"window": 16, "panel": 16, "block": 16, "brick": 4, "encoding": "bitmap", "pad": 16}


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
        {**BRICKS, "records": True},
        {**BRICKS, "records": True, "packed": True, "active_bricks": True, "block": 32, "pad": 32},
        {**BRICKS, "threshold": 4},
        {**BRICKS, "new_columns": 2},
        {**BRICKS, "split_short_rows": True, "panel": 32},
    ],
)
def test_impossible_parameters(parameters: dict[str, object]) -> None:
    base = {"window": 8, "panel": 8, "block": 16, "brick": 16, "encoding": "dense"}
    with pytest.raises(ValueError, match="format"):
        FormatSpec("mine", **{**base, **parameters})
