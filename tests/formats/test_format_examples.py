"""One small matrix in each dense format, with the arrays written out by hand."""

from __future__ import annotations

import pytest
import torch

import gnnsparse
from gnnsparse import SparseGraph
from gnnsparse.formats import PRESETS, BlockedMatrix

#: Rows, columns and values of a matrix of 10 x 8 whose last nonzero is a stored zero. Rows 0 to 7 have
#: nonzeros in columns 0, 1, 4, 6 and 7, rows 8 and 9 in columns 0 and 2.
ROWS = (0, 0, 2, 3, 5, 7, 9, 9)
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


def assert_arrays(got: BlockedMatrix, **wanted: list[float]) -> None:
    """Compares all arrays of a format; those of values bit for bit, by which -0.0 differs from 0.0."""
    assert set(got.arrays) == set(wanted)
    for name, numbers in wanted.items():
        array = got.arrays[name]
        want = torch.tensor(numbers, dtype=array.dtype)
        assert array.tolist() == want.tolist(), name
        assert torch.equal(array.signbit(), want.signbit()), name


def paper_bytes(got: BlockedMatrix) -> int:
    formula = PRESETS[got.spec.name].paper_bytes
    assert formula is not None
    return formula(got)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_me_bcrs_in_16_bits(precision: str) -> None:
    """FlashSparse, figure 10: a block is row-major, and as narrow as it has vectors."""
    got = made("me-bcrs", precision)
    assert_arrays(
        got, panel_ptr=[0, 5, 7], columns=[0, 1, 4, 6, 7, 0, 2], values=[*flat(FIRST), *flat(SECOND)]
    )
    assert got.nbytes == 3 * 8 + 7 * 4 + 7 * 8 * 2
    assert paper_bytes(got) == 2 * 4 + 7 * 4 + 7 * 8 * 2


def test_me_bcrs_in_32_bits() -> None:
    """Blocks of 8 x 4: the fifth vector of the first window is a block of its own."""
    got = made("me-bcrs", "tf32")
    four, one = flat([row[:4] for row in FIRST]), flat([row[4:] for row in FIRST])
    assert_arrays(
        got, panel_ptr=[0, 5, 7], columns=[0, 1, 4, 6, 7, 0, 2], values=[*four, *one, *flat(SECOND)]
    )
    assert paper_bytes(got) == 2 * 4 + 7 * 4 + 7 * 8 * 4


def test_sr_bcrs() -> None:
    """FlashSparse, section 3.5: as ME-BCRS, with vectors of zeros that fill the last block of a window."""
    got = made("sr-bcrs", "fp16")
    columns = [0, 1, 4, 6, 7, 7, 7, 7, 0, 2, 2, 2, 2, 2, 2, 2]
    values = [*flat(wide(FIRST, 8)), *flat(wide(SECOND, 8))]
    assert_arrays(got, panel_ptr=[0, 8, 16], columns=columns, values=values)
    assert paper_bytes(got) == 2 * 2 * 4 + 16 * 4 + 16 * 8 * 2
    narrow = made("sr-bcrs", "tf32")  # blocks of 4: 5 vectors are padded to 8, 2 to 4
    assert narrow.panel_ptr.tolist() == [0, 8, 12]
    assert paper_bytes(narrow) == 2 * 2 * 4 + 12 * 4 + 12 * 8 * 4


def test_cvse_with_vectors_of_8() -> None:
    """SSpMM, algorithm 1: LHS has the V values of one vector after those of another; padded to 16 vectors."""
    got = made("cvse", "fp16", panel=8)
    columns = [0, 1, 4, 6, 7, *[7] * 11, 0, 2, *[2] * 14]
    values = [*flat(turned(wide(FIRST, 16))), *flat(turned(wide(SECOND, 16)))]
    assert_arrays(got, panel_ptr=[0, 16, 32], columns=columns, values=values)
    assert paper_bytes(got) == 3 * 4 + 7 * 4 + 7 * 8 * 2


def test_cvse_with_vectors_of_16() -> None:
    """Vectors of 16 rows, which a density of 0.1 asks for: the 10 rows are one window."""
    got = made("cvse", "fp16")
    assert got.spec.window == 16
    rows = [[*a[:2], 0, *a[2:]] for a in FIRST] + [[a, 0, b, 0, 0, 0] for a, b in SECOND]
    values = flat(turned(wide(rows, 16)))
    assert_arrays(got, panel_ptr=[0, 16], columns=[0, 1, 2, 4, 6, 7, *[7] * 10], values=values)
    assert paper_bytes(got) == 2 * 4 + 6 * 4 + 6 * 16 * 2


def test_tiled_csr() -> None:
    """Tiled-CSR, section III-A: tiles of 8 x 16, row-major, and the zeros among them by row."""
    got = made("tiled-csr", "fp16")
    columns = [0, 1, 4, 6, 7, *[7] * 11, 0, 2, *[2] * 14]
    values = [*flat(wide(FIRST, 16)), *flat(wide(SECOND, 16))]
    starts = [0, 3, 8, 12, 16, 21, 25, 30, 34, 36, 36]
    assert_arrays(
        got, panel_ptr=[0, 16, 32], columns=columns, values=values, zero_ptr=starts,
        zero_cols=[column for row in ZEROS for column in row],
    )  # fmt: skip
    assert paper_bytes(got) == (3 + 11 + 36) * 4 + 32 * 4 + 32 * 8 * 2


@pytest.mark.parametrize("name", ["me-bcrs", "sr-bcrs", "cvse", "tiled-csr"])
def test_the_product_of_the_example(name: str) -> None:
    dense = torch.zeros(10, 8)
    dense[list(ROWS), list(COLUMNS)] = torch.tensor(VALUES)
    x = torch.arange(24, dtype=torch.float32).reshape(8, 3) - 9
    blocked = made(name, "fp16")
    a = gnnsparse.prepare(MATRIX, format=name, precision="fp16", panel=None, cache=False)
    assert a.kernels.require_blocked().nbytes == blocked.nbytes
    assert a.plan(3).kernel == "blocked"
    assert torch.equal(a @ x, dense @ x)
