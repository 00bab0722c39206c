"""The division of rows between Tensor Cores and CUDA cores by RSH-SpMM's algorithm 1, and its threshold."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse.errors import check_choice, check_integer
from gnnsparse.formats.csr import Csr
from papers.analysis.structure import Matrix, structure_of

__all__ = ["DEFAULT_THRESHOLD", "READINGS", "RowPartition", "default_limits", "new_columns", "partition_rows"]

#: The two rules that the paper gives for the columns that a row adds to its window.
READINGS = ("algorithm", "text")
#: The largest threshold that section 4.3.2 recommends.
DEFAULT_THRESHOLD = 6


@dataclass(frozen=True, eq=False)
class RowPartition:
    """Rows in windows of Tensor Cores, and residual rows.

    Attributes:
        window_rows: int64 [windows], the first row of each window.
        window_vectors: int64 [windows], the distinct columns of each window.
        residual_rows: int64 [residual rows], ascending. Empty rows are in neither part.
        residual_nnz: nonzeros of the residual rows.
        window_nnz: nonzeros of the windows.
    """

    window_rows: torch.Tensor
    window_vectors: torch.Tensor
    residual_rows: torch.Tensor
    residual_nnz: int
    window_nnz: int

    @property
    def blocks(self) -> int:
        """Blocks of 8 columns in all windows."""
        return int((-(-self.window_vectors // 8)).sum())

    @property
    def nnz_per_block(self) -> float:
        """Mean nonzeros of a block of 8 x 8; 0 without a block."""
        return self.window_nnz / max(self.blocks, 1)

    @property
    def nnz_per_window(self) -> float:
        """Mean nonzeros of a window; 0 without a window."""
        return self.window_nnz / max(self.window_rows.numel(), 1)


def new_columns(matrix: Matrix, window: int = 8) -> torch.Tensor:
    """Counts for each row its columns that none of the next `window` - 1 rows has.

    This is the increment of algorithm 1, line 16: the distinct columns of the rows r .. r + window - 1 less
    those of the rows r + 1 .. r + window - 1. It does not depend on where windows begin.

    Returns:
        int64 [rows].
    """
    csr = structure_of(matrix)
    row = csr.row_index()
    # In column order, the next nonzero of a column is the next row that has it.
    by_column = torch.argsort(csr.indices, stable=True)
    column, rows = csr.indices[by_column], row[by_column]
    follows = torch.zeros(csr.nnz, dtype=torch.bool, device="cpu")
    follows[:-1] = (column[1:] == column[:-1]) & (rows[1:] - rows[:-1] < window)
    return torch.bincount(rows[~follows], minlength=csr.rows)


def default_limits(matrix: Matrix) -> tuple[int, int]:
    """Returns the threshold and the bound on new columns that the format rs-tile chooses for a matrix.

    The paper computes both from the numbers of rows and nonzeros by a function that it does not give
    (algorithm 1, line 5). Here the threshold is a quarter of the mean nonzeros of a row, from 2 to 6, and
    the bound is more than half of the threshold, at least 3.

    Returns:
        The arguments `threshold` and `increment` of `partition_rows`.
    """
    csr = structure_of(matrix)
    threshold = min(max(2, csr.nnz // max(csr.rows, 1) // 4), DEFAULT_THRESHOLD)
    return threshold, max(3, threshold // 2 + 1)


def partition_rows(
    matrix: Matrix, threshold: int = DEFAULT_THRESHOLD, increment: int | None = None, window: int = 8,
    reading: str = "algorithm",
) -> RowPartition:  # fmt: skip
    """Divides the rows of a matrix by RSH-SpMM's algorithm 1.

    The rows are scanned from the first. An empty row is skipped, and a row that is kept out is skipped; any
    other row begins a window of `window` rows. A row is kept out if it has at most `threshold` nonzeros, and
    if the columns that it adds to its window meet a second rule, on which the paper contradicts itself:
    algorithm 1 (line 18) keeps out rows that add fewer columns than a bound, "low-impact rows"; sections 3.2
    and 4.3.2 keep out rows with "weak column-domain overlap", which add the most.

    Args:
        matrix: the matrix, in the row order that is divided.
        threshold: most nonzeros of a row that may be kept out; 0: none is.
        increment: the bound of the second rule. reading "algorithm": rows that add fewer columns are kept
            out; None: any row is. reading "text": rows that add at least as many are kept out; None: all
            columns of the row have to be new.
        window: rows of a window.
        reading: "algorithm" or "text".

    Raises:
        TypeError: an argument is of another type.
        ValueError: a number is negative, or there is no such reading.
    """
    check_integer("threshold", threshold, 0, "an integer from 0 on")
    check_integer("window", window)
    check_choice("reading", reading, READINGS)
    if increment is not None:
        check_integer("increment", increment, 0, "an integer from 0 on")
    csr = structure_of(matrix)
    degrees, added = csr.degrees, new_columns(csr, window)
    low = (degrees > 0) & (degrees <= threshold)
    if reading == "text":
        low &= added >= (degrees if increment is None else increment)
    elif increment is not None:
        low &= added < increment
    return _scan(csr, degrees, low, window)


def _scan(csr: Csr, degrees: torch.Tensor, low: torch.Tensor, window: int) -> RowPartition:
    """Scans the rows: windows begin with rows that are neither empty nor low."""
    opens = (degrees > 0) & ~low
    # For each row the first row from it on that begins a window; `rows` if there is none.
    place = torch.where(opens, torch.arange(csr.rows, device="cpu"), csr.rows)
    following = place.flip(0).cummin(0).values.flip(0).tolist() if csr.rows else []
    starts, row = [], 0
    while row < csr.rows and (row := following[row]) < csr.rows:
        starts.append(row)
        row += window
    first = torch.tensor(starts, dtype=torch.int64, device="cpu")
    inside = torch.zeros(csr.rows + 1, dtype=torch.int64, device="cpu")
    inside[first] += 1
    inside.index_add_(0, (first + window).clamp(max=csr.rows), torch.full_like(first, -1))
    covered = inside.cumsum(0)[:-1] > 0
    residual = (low & ~covered).nonzero().flatten()
    residual_nnz = int(degrees[residual].sum())
    number = torch.zeros(csr.rows + 1, dtype=torch.int64, device="cpu")
    number[first] = 1
    of_row = number.cumsum(0)[:-1] - 1
    rows = csr.row_index()
    kept = covered[rows]
    keys = torch.unique(of_row[rows[kept]] * csr.cols + csr.indices[kept])
    vectors = torch.bincount(keys // max(csr.cols, 1), minlength=first.numel())
    return RowPartition(first, vectors, residual, residual_nnz, csr.nnz - residual_nnz)
