"""One small matrix in each dense format, with the arrays written out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse import SparseGraph
from gnnsparse.formats import PRESETS, BlockedMatrix

#: Columns and values of a matrix of 10 x 8 whose last nonzero is a stored zero. Rows 0 to 7 have
#: nonzeros in columns 0, 1, 4, 6 and 7, rows 8 and 9 in columns 0 and 2.
COLUMNS = (1, 4, 7, 1, 0, 6, 0, 2)
VALUES = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 0.0)

MATRIX = SparseGraph.from_csr(
    torch.tensor([0, 2, 2, 3, 4, 4, 5, 5, 6, 6, 8]), torch.tensor(COLUMNS), torch.tensor(VALUES), 8
)

#: The windows of 8 rows, row by row.
FIRST = [
    [0, 1, 2, 0, 0],
    [0, 0, 0, 0, 0],
    [0, 0, 0, 0, 3],
    [0, 4, 0, 0, 0],
    [0, 0, 0, 0, 0],
    [5, 0, 0, 0, 0],
    [0, 0, 0, 0, 0],
    [0, 0, 0, 6, 0],
]
SECOND = [[0, 0], [7, -0.0], *([0, 0] for _ in range(6))]
#: The Zero Index: in each row the columns of its window in which it has no nonzero.
ZEROS = [
    [0, 6, 7], [0, 1, 4, 6, 7], [0, 1, 4, 6], [0, 4, 6, 7], [0, 1, 4, 6, 7], [1, 4, 6, 7], [0, 1, 4, 6, 7],
    [0, 1, 4, 7], [0, 2], [],
]  # fmt: skip


def flat(rows: list[list[float]]) -> list[float]:
    return [value for row in rows for value in row]


def wide(rows: list[list[float]], width: int) -> list[list[float]]:
    return [[*row, *[0] * (width - len(row))] for row in rows]


def turned(rows: list[list[float]]) -> list[list[float]]:
    return [list(column) for column in zip(*rows, strict=True)]


def made(name: str, precision: str, panel: int | None = None) -> BlockedMatrix:
    a = gnnsparse.prepare(MATRIX, format=name, precision=precision, panel=panel, cache=False)
    return a.kernels.require_blocked()


#: Columns of windows that are padded to 16 vectors.
SIXTEEN = [0, 1, 4, 6, 7, *[7] * 11, 0, 2, *[2] * 14]
#: Rows of 16 of the one window of cvse, in whose columns 0, 1, 2, 4, 6 and 7 there are nonzeros.
TALL = [[*a[:2], 0, *a[2:]] for a in FIRST] + [[a, 0, b, 0, 0, 0] for a, b in SECOND]
BCRS: dict[str, list[Any]] = {"panel_ptr": [0, 5, 7], "columns": [0, 1, 4, 6, 7, 0, 2]}
#: By format, precision and rows of a panel: the arrays, and the bytes of the paper's formula.
EXAMPLES: dict[tuple[Any, ...], tuple[dict[str, list[Any]], int]] = {
    # FlashSparse, figure 10: a block is row-major, and as narrow as it has vectors.
    ("me-bcrs", "fp16", None): ({**BCRS, "values": flat(FIRST + SECOND)}, 2 * 4 + 7 * 4 + 7 * 8 * 2),
    # Blocks of 8 x 4: the fifth vector of the first window is a block of its own.
    ("me-bcrs", "tf32", None): (
        {**BCRS, "values": flat([*(row[:4] for row in FIRST), *(row[4:] for row in FIRST), *SECOND])},
        2 * 4 + 7 * 4 + 7 * 8 * 4,
    ),
    # FlashSparse, section 3.5: as ME-BCRS, with vectors of zeros that fill the last block of a window.
    ("sr-bcrs", "fp16", None): (
        {"panel_ptr": [0, 8, 16], "columns": [0, 1, 4, 6, 7, 7, 7, 7, 0, *[2] * 7],
         "values": flat(wide(FIRST, 8) + wide(SECOND, 8))},
        2 * 2 * 4 + 16 * 4 + 16 * 8 * 2,
    ),
    ("sr-bcrs", "tf32", None): (  # blocks of 4: 5 vectors are padded to 8, 2 to 4
        {"panel_ptr": [0, 8, 12], "columns": [0, 1, 4, 6, 7, 7, 7, 7, 0, 2, 2, 2],
         "values": flat([*(a[:4] for a in FIRST), *wide([a[4:] for a in FIRST], 4), *wide(SECOND, 4)])},
        2 * 2 * 4 + 12 * 4 + 12 * 8 * 4,
    ),
    # SSpMM, algorithm 1: LHS has the V values of one vector after those of another; padded to 16 vectors.
    ("cvse", "fp16", 8): (
        {"panel_ptr": [0, 16, 32], "columns": SIXTEEN,
         "values": flat(turned(wide(FIRST, 16)) + turned(wide(SECOND, 16)))},
        3 * 4 + 7 * 4 + 7 * 8 * 2,
    ),
    # Vectors of 16 rows, which a density of 0.1 asks for: the 10 rows are one window.
    ("cvse", "fp16", None): (
        {"panel_ptr": [0, 16], "columns": [0, 1, 2, 4, 6, 7, *[7] * 10],
         "values": flat(turned(wide([*TALL], 16)))},
        2 * 4 + 6 * 4 + 6 * 16 * 2,
    ),
    # Tiled-CSR, section III-A: tiles of 8 x 16, row-major, and the zeros among them by row.
    ("tiled-csr", "fp16", None): (
        {"panel_ptr": [0, 16, 32], "columns": SIXTEEN, "values": flat(wide(FIRST, 16) + wide(SECOND, 16)),
         "zero_ptr": [0, 3, 8, 12, 16, 21, 25, 30, 34, 36, 36], "zero_cols": flat(ZEROS)},
        (3 + 11 + 36) * 4 + 32 * 4 + 32 * 8 * 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_a_format_written_out(example: tuple[Any, ...]) -> None:
    """All arrays, those of values bit for bit, by which -0.0 differs from 0.0."""
    (wanted, paper), got = EXAMPLES[example], made(*example)
    assert set(got.arrays) == set(wanted)
    for name, numbers in wanted.items():
        array = got.arrays[name]
        want = torch.tensor(numbers, dtype=array.dtype)
        assert array.tolist() == want.tolist(), name
        assert torch.equal(array.signbit(), want.signbit()), name
    formula = PRESETS[got.spec.name].paper_bytes
    assert formula is not None
    assert formula(got) == paper
