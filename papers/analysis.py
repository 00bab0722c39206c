"""Counts that the five papers give, computed from the structure of a matrix.

Instructions and memory accesses (FlashSparse), footprints of all formats, utilisation (Tiled-CSR, SSpMM),
bricks, synergy and modelled intensity (cuTeSpMM), and the division of rows, load balance and order of rows
(RSH-SpMM, cuTeSpMM). Functions take a graph, a CSR matrix or a blocked matrix, and need no GPU.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from scipy.stats import spearmanr

from gnnsparse.errors import bad_type, bad_value, check_choice, check_integer, check_number, check_share
from gnnsparse.formats import BlockedMatrix
from gnnsparse.formats.csr import Csr, coo_to_csr
from gnnsparse.sparse.graph import SparseGraph
from papers.decode import decode

__all__ = [
    "BRICK", "DEFAULT_THRESHOLD", "FOOTPRINTS", "HEIGHTS", "INSTRUCTION_K", "READINGS", "SYNERGY",
    "Accesses", "Bricks", "Matrix", "RowPartition", "adjacent_dissimilarity", "check_height",
    "count_accesses", "count_bricks", "count_vectors", "default_limits", "footprint", "grid_bricks",
    "imbalance", "new_columns", "partition_rows", "rank_correlation", "row_utilisation", "structure_of",
    "synergy_class", "tile_utilisation", "vector_density", "vector_slots", "wave_segments",
]  # fmt: skip

#: What analyses accept. Values play no part, and a stored zero counts as a nonzero.
Matrix: TypeAlias = SparseGraph | Csr | BlockedMatrix

#: Rows of a nonzero vector that Tensor Core instructions can take: 8 swapped, 16 not.
HEIGHTS = (8, 16)


def structure_of(matrix: Matrix) -> Csr:
    """Return the structure of a matrix in CSR form, on the CPU.

    Args:
        matrix: a graph, a CSR matrix, or a blocked matrix, whose arrays are decoded.

    Raises:
        TypeError: `matrix` is none of these.
    """
    if isinstance(matrix, SparseGraph):
        matrix = matrix.csr
    if isinstance(matrix, BlockedMatrix):
        row, col, _ = decode(matrix)
        return coo_to_csr(row.contiguous(), col.contiguous(), matrix.rows, matrix.cols)[0]
    if not isinstance(matrix, Csr):
        bad_type("matrix", matrix, "a SparseGraph, a Csr or a BlockedMatrix")
    return matrix.to(torch.device("cpu"))


def check_height(name: str, height: int) -> int:
    """Return `height` if a nonzero vector can have as many rows, else raise."""
    if check_integer(name, height) not in HEIGHTS:
        bad_value(name, f"got {height}; accepted: {' or '.join(map(str, HEIGHTS))}")
    return height


def count_vectors(matrix: Matrix, height: int, order: torch.Tensor | None = None) -> torch.Tensor:
    """Count the nonzero vectors of each window: its columns with at least one nonzero.

    FlashSparse, section 2.2, calls `height` consecutive rows a window, and a column of it that is not empty a
    nonzero vector.

    Args:
        matrix: the matrix.
        height: rows of a window.
        order: int [rows], a row order to count in; None: the stored order.

    Returns:
        int64 [ceil(rows / height)].

    Raises:
        TypeError: an argument is of another type.
        ValueError: `height` is below 1.
    """
    return structure_of(matrix).count_columns(check_integer("height", height), order)


def vector_slots(vectors: torch.Tensor, multiple: int) -> int:
    """Return the vectors of all windows when each window is padded to a multiple of `multiple` vectors."""
    return int((-(-vectors // multiple) * multiple).sum())


# Tensor Core instructions and memory accesses of a product, counted from the structure of the matrix.
#
# FlashSparse counts both (figures 1 and 12), by nonzero vectors of 16 rows, which the sparse matrix has as
# the left operand of `mma`, and of 8 rows, which it has as the right operand (section 3.2).

#: K of the instructions mma.m16n8kK, by the bytes of an element of their operands.
INSTRUCTION_K: dict[int, tuple[int, ...]] = {2: (8, 16), 4: (4, 8)}
_M, _N = 16, 8


@dataclass(frozen=True)
class Accesses:
    """What one product costs in instructions and in memory accesses, wherever the data is cached.

    Attributes:
        vectors: nonzero vectors of the sparse matrix.
        mma: instructions `mma.m16n8k*`.
        operand_bytes: bytes of the operands of all instructions, two fragments each. FlashSparse's figure 12
            has this reading in its text: the cost is "reduced proportionally" to the instructions.
        result_bytes: bytes of the results that are written once, in fp32 for SpMM's rows, and for the blocks
            of SDDMM.
        gathered_bytes: bytes of the rows of dense operands that are fetched by column index, one for each
            nonzero vector and no padding. This is what binds kernels on an H200.
    """

    vectors: int
    mma: int
    operand_bytes: int
    result_bytes: int
    gathered_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes of the operands of all instructions and of the results."""
        return self.operand_bytes + self.result_bytes


def count_accesses(
    matrix: Matrix, height: int = 8, *, op: str = "spmm", width: int = 128, k: int = 8, element: int = 2,
    order: torch.Tensor | None = None,
) -> Accesses:  # fmt: skip
    """Count the instructions and accesses of one SpMM or SDDMM.

    A window of 16 rows is the operand A of the instruction, m16n8kK, of which one multiplies K vectors with 8
    columns of the dense matrix. A window of 8 rows is the operand B of the transposed product, and the
    instruction multiplies K vectors with 16 columns. In SDDMM a window's block of results has 8 vectors
    (16 rows) or 16 vectors (8 rows), and each instruction takes K features (FlashSparse, section 3.4).

    Args:
        matrix: the sparse matrix.
        height: rows of a nonzero vector, 8 (swapped operands) or 16.
        op: "spmm" or "sddmm".
        width: columns of the dense matrix, or features of SDDMM.
        k: K of the instruction: 8 or 16 with elements of 2 bytes, 4 or 8 with elements of 4.
        element: bytes of an element of the operands: 2 for fp16 and bf16, 4 for tf32.
        order: int [rows], a row order to count in; None: the stored order.

    Raises:
        TypeError: an argument is of another type.
        ValueError: there is no such instruction or operation, or `width` is below 1.
    """
    check_height("height", height)
    check_choice("op", op, ("spmm", "sddmm"))
    check_integer("width", width)
    if element not in INSTRUCTION_K:
        bad_value("element", f"got {element}; accepted: {' or '.join(map(str, INSTRUCTION_K))} bytes")
    if k not in INSTRUCTION_K[element]:
        accepted = " or ".join(map(str, INSTRUCTION_K[element]))
        bad_value("k", f"got {k}; accepted: {accepted} with elements of {element} bytes")
    windows = count_vectors(matrix, height, order)
    rows = windows.numel() * height
    vectors = int(windows.sum())
    if op == "spmm":
        columns = _N if height == _M else _M
        mma = int((-(-windows // k)).sum()) * -(-width // columns)
        results = 4 * rows * width
    else:
        block = _N if height == _M else _M
        blocks = int((-(-windows // block)).sum())
        mma = blocks * -(-width // k)
        results = element * vectors * height
    operands = mma * (_M * k + k * _N) * element
    return Accesses(vectors, mma, operands, results, vectors * width * element)


# The fraction of Tensor Core work that is spent on nonzeros, by format.


def tile_utilisation(
    matrix: Matrix, height: int = 8, width: int = 16, order: torch.Tensor | None = None
) -> float:
    """Compute the nonzeros per element of the tiles of Tiled-CSR (figure 8); 0 without a nonzero.

    Args:
        matrix: the matrix.
        height: rows of a tile.
        width: columns of a tile.
        order: int [rows], a row order, such as that of the row shuffle; None: the stored order.
    """
    csr = structure_of(matrix)
    slots = vector_slots(count_vectors(csr, height, order), check_integer("width", width))
    return csr.nnz / max(height * slots, 1)


def row_utilisation(matrix: Matrix, height: int = 8, width: int = 16) -> float:
    """Compute the utilisation of SR-BCRS on unstructured matrices, whose vectors have one row.

    A tile of `height` rows then holds one row of the matrix, padded to a multiple of `width` nonzeros, so
    that at most 1 / `height` of it is used (Tiled-CSR, section V-B).
    """
    csr = structure_of(matrix)
    return csr.nnz / max(height * vector_slots(csr.degrees, check_integer("width", width)), 1)


def vector_density(matrix: Matrix, height: int = 8, order: torch.Tensor | None = None) -> float:
    """Compute the nonzeros per element of the nonzero vectors (SSpMM, section VI-E); 0 without a nonzero.

    One minus it is the paper's new sparsity, and it over the density of the matrix its equation 1.
    """
    csr = structure_of(matrix)
    return csr.nnz / max(height * int(count_vectors(csr, height, order).sum()), 1)


# cuTeSpMM's bricks: their density, the synergy of a matrix with Tensor Cores, and the modelled intensity.

#: Rows and columns of a brick (section 3.2).
BRICK = (16, 4)
#: Least density of a brick of each synergy class (table 1), from the lowest class.
SYNERGY = {"low": 0.0, "medium": 0.125, "high": 0.25}


def synergy_class(density: float) -> str:
    """Return the synergy class of a density of bricks: "low", "medium" or "high" (cuTeSpMM, table 1).

    Raises:
        TypeError: `density` is no number.
        ValueError: `density` is not from 0 to 1.
    """
    if density != 1.0:
        check_share("density", density)
    return [name for name, least in SYNERGY.items() if density >= least][-1]


@dataclass(frozen=True)
class Bricks:
    """Bricks of a matrix after the columns of each panel are packed to the left, and what follows from them.

    Attributes:
        nnz: nonzeros of the matrix.
        panel: rows of a panel (TM), 16 or 32.
        active: bricks with a nonzero.
        columns: columns of bricks with an active brick: `active` at TM = 16.
    """

    nnz: int
    panel: int
    active: int
    columns: int

    @property
    def alpha(self) -> float:
        """Nonzeros per element of an active brick (section 4); 0 without a brick."""
        return self.nnz / max(self.active * BRICK[0] * BRICK[1], 1)

    @property
    def beta(self) -> float:
        """Active bricks in a column of bricks, which share the rows of B in registers (section 4)."""
        return self.active / max(self.columns, 1)

    @property
    def synergy(self) -> str:
        """The synergy class of the density."""
        return synergy_class(self.alpha)

    def loads_of_a(self, width: int, tile: int = 32) -> float:
        """Shared-memory transactions for the sparse matrix, equation 1; 0 without a brick.

        Args:
            width: N, the columns of the dense matrix.
            tile: TN, the columns of the dense matrix that a warp multiplies.
        """
        return self._over_alpha(4 * width * self.nnz / (tile * BRICK[0] * BRICK[1]))

    def loads_of_b(self, width: int) -> float:
        """Shared-memory transactions for the dense matrix, equation 5, which is equation 2 at beta = 1."""
        return self._over_alpha(width * self.nnz / (32 * BRICK[0] * max(self.beta, 1.0)))

    def intensity(self, width: int = 128, tile: int = 32) -> float:
        """Operations per shared-memory transaction, equation 4: 512 alpha at TN = 32 and TM = 16."""
        loads = self.loads_of_a(width, tile) + self.loads_of_b(width)
        return 2 * width * self.nnz / loads if loads else 0.0

    def _over_alpha(self, loads: float) -> float:
        return loads / self.alpha if self.active else 0.0


def count_bricks(matrix: Matrix, panel: int = 16, order: torch.Tensor | None = None) -> Bricks:
    """Count the bricks of 16 x 4 of a matrix in the HRPB format (cuTeSpMM, section 3.2).

    Args:
        matrix: the matrix.
        panel: rows of a panel (TM), whose columns without a nonzero are left out: 16 or 32.
        order: int [rows], a row order to count in; None: the stored order.

    Raises:
        TypeError: an argument is of another type.
        ValueError: `panel` is neither 16 nor 32.
    """
    if check_integer("panel", panel) not in (16, 32):
        bad_value("panel", f"got {panel}; accepted: 16 or 32")
    csr = structure_of(matrix)
    if panel == BRICK[0]:
        active = int((-(-count_vectors(csr, panel, order) // BRICK[1])).sum())
        return Bricks(csr.nnz, panel, active, active)
    if order is not None:
        csr = csr.permute_rows(order)[0]
    row = csr.row_index()
    key = row // panel * csr.cols + csr.indices
    vector, place = torch.unique(key, return_inverse=True)
    of_panel = vector // max(csr.cols, 1)
    first = torch.searchsorted(of_panel, torch.arange(-(-csr.rows // panel), device="cpu"))
    rank = place - first[row // panel]
    column = row // panel * (csr.cols // BRICK[1] + 1) + rank // BRICK[1]
    columns = torch.unique(column).numel()
    active = torch.unique(column * (panel // BRICK[0]) + row % panel // BRICK[0]).numel()
    return Bricks(csr.nnz, panel, active, columns)


def grid_bricks(matrix: Matrix) -> Bricks:
    """Count the bricks of a regular grid of 16 x 4, with no column left out (cuTeSpMM, section 1)."""
    csr = structure_of(matrix)
    key = csr.row_index() // BRICK[0] * (csr.cols // BRICK[1] + 1) + csr.indices // BRICK[1]
    active = torch.unique(key).numel()
    return Bricks(csr.nnz, BRICK[0], active, active)


# How alike neighbouring rows are, by the measure that RSH-SpMM's reordering minimises.


def adjacent_dissimilarity(matrix: Matrix, order: torch.Tensor | None = None, exponent: float = 1.0) -> float:
    """Compute the sum over neighbouring rows of 1 - weighted Jaccard similarity (RSH-SpMM, section 3.4).

    Column j has the weight d_j^-exponent, with d_j its nonzeros. Two empty rows are alike.

    Args:
        matrix: the matrix.
        order: int [rows], a row order; None: the stored order.
        exponent: alpha of the paper, which names no value.

    Raises:
        TypeError: an argument is of another type.
        ValueError: `exponent` is not finite.
    """
    check_number("exponent", exponent)
    csr = structure_of(matrix)
    if order is not None:
        csr = csr.permute_rows(order)[0]
    if csr.rows < 2:
        return 0.0
    counts = torch.bincount(csr.indices, minlength=csr.cols).clamp(min=1).double()
    weight = counts[csr.indices.long()] ** -exponent
    row = csr.row_index()
    of_row = torch.zeros(csr.rows, dtype=torch.float64, device="cpu").index_add_(0, row, weight)
    # A nonzero of row r + 1 whose column row r has too: consecutive in column order.
    by_column = torch.argsort(csr.indices, stable=True)
    column, rows = csr.indices[by_column], row[by_column]
    shared = ((column[1:] == column[:-1]) & (rows[1:] == rows[:-1] + 1)).nonzero().flatten()
    common = torch.zeros(csr.rows, dtype=torch.float64, device="cpu")
    common.index_add_(0, rows[shared], weight[by_column[shared]])
    union = of_row[:-1] + of_row[1:] - common[:-1]
    similarity = torch.where(union > 0, common[:-1] / union, torch.ones_like(union))
    return float((1 - similarity).sum())


# The division of rows between Tensor Cores and CUDA cores by RSH-SpMM's algorithm 1, and its threshold.

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
    """Count for each row its columns that none of the next `window` - 1 rows has.

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
    """Return the threshold and the bound on new columns that the format rs-tile chooses for a matrix.

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
    """Divide the rows of a matrix by RSH-SpMM's algorithm 1.

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
    """Scan the rows: windows begin with rows that are neither empty nor low."""
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


# Bytes of a matrix in the published formats, by the formulas of their papers.
#
# They are computed from counts of the CSR structure alone, with offsets and indices of 4 bytes and nothing
# that a paper does not store, and so are a check on the formats' own arrays. Bytes of values are separate
# where papers compare what stands beside the values (metadata).

_INDEX = 4


def _csr(matrix: Matrix, value: int, order: torch.Tensor | None) -> int:
    csr = structure_of(matrix)
    return _INDEX * (csr.rows + 1) + (_INDEX + value) * csr.nnz


def _coo(matrix: Matrix, value: int, order: torch.Tensor | None) -> int:
    return (2 * _INDEX + value) * structure_of(matrix).nnz


def _me_bcrs(matrix: Matrix, value: int, order: torch.Tensor | None) -> int:
    """Count a pointer for each window, and for each nonzero vector a column and 8 values (section 3.5)."""
    vectors = count_vectors(matrix, 8, order)
    return _INDEX * vectors.numel() + (_INDEX + 8 * value) * int(vectors.sum())


def _sr_bcrs(matrix: Matrix, value: int, order: torch.Tensor | None) -> int:
    """Count two pointers for each window, and windows padded to whole blocks (FlashSparse, section 3.5)."""
    vectors = count_vectors(matrix, 8, order)
    block = 8 if value <= 2 else 4
    return 2 * _INDEX * vectors.numel() + (_INDEX + 8 * value) * vector_slots(vectors, block)


def _cvse(height: int) -> Callable[[Matrix, int, torch.Tensor | None], int]:
    def count(matrix: Matrix, value: int, order: torch.Tensor | None) -> int:
        """Count an offset for each window, and a column and V values for each vector (algorithm 1)."""
        vectors = count_vectors(matrix, height, order)
        return _INDEX * (vectors.numel() + 1) + (_INDEX + height * value) * int(vectors.sum())

    return count


def _tiled_csr(matrix: Matrix, value: int, order: torch.Tensor | None) -> int:
    """Count tiles of 8 x 16 with their columns, and the Zero Index: the columns of a row's zeros in them.

    A row has a zero in each nonzero vector of its window that it has no nonzero in; rows behind the last one
    of the matrix have none, and neither do padded columns.
    """
    csr = structure_of(matrix)
    vectors = count_vectors(csr, 8, order)
    slots = vector_slots(vectors, 16)
    stored = 8 * int(vectors.sum())
    if csr.rows % 8:
        stored -= int(vectors[-1]) * (8 - csr.rows % 8)
    zeros = stored - csr.nnz
    offsets = vectors.numel() + 1 + csr.rows + 1
    return _INDEX * (offsets + slots + zeros) + 8 * value * slots


def _hrpb(matrix: Matrix, value: int, order: torch.Tensor | None) -> int:
    """Count cuTeSpMM's structures (figures 4 and 5) with TM = 16, TK = 16 and bricks of 16 x 4.

    A block holds the bits (8 bytes) and the row (4 bytes) of each active brick, 5 offsets of brick columns,
    and its nonzeros; beside it lie 16 columns and an offset in `sizePtr`.
    """
    vectors = count_vectors(matrix, 16, order)
    blocks = int((-(-vectors // 16)).sum())
    bricks = int((-(-vectors // 4)).sum())
    packed = (8 + _INDEX) * bricks + 5 * _INDEX * blocks + value * structure_of(matrix).nnz
    return packed + _INDEX * (vectors.numel() + 1) + 16 * _INDEX * blocks + _INDEX * (blocks + 1)


def _rs_tile(matrix: Matrix, value: int, order: torch.Tensor | None) -> int:
    """Count RS-Tile (RSH-SpMM, section 3.2), with the windows of its algorithm 1 at the default limits.

    Windows have a first row and an offset, blocks 8 columns and 64 bits, nonzeros a value. A residual row
    has its number, and each of its nonzeros a column and a value; there are no row pointers.
    """
    csr = structure_of(matrix)
    if order is not None:
        csr = csr.permute_rows(order)[0]
    parts = partition_rows(csr, *default_limits(csr))
    windows, blocks = parts.window_rows.numel(), parts.blocks
    residual = _INDEX * (parts.residual_rows.numel() + parts.residual_nnz)
    return _INDEX * (2 * windows + 1) + (8 + 8 * _INDEX) * blocks + residual + value * csr.nnz


def _me_tcf(matrix: Matrix, value: int, order: torch.Tensor | None) -> int:
    """Count DTC-SpMM's format: windows of 16 rows, blocks of 8 columns, one byte of place a nonzero."""
    vectors = count_vectors(matrix, 16, order)
    blocks = int((-(-vectors // 8)).sum())
    offsets = vectors.numel() + 1 + blocks + 1
    return _INDEX * (offsets + 8 * blocks) + (1 + value) * structure_of(matrix).nnz


def _bit_tcf(matrix: Matrix, value: int, order: torch.Tensor | None) -> int:
    """Count Acc-SpMM's format: windows of 8 rows, blocks of 8 columns, 64 bits a block."""
    vectors = count_vectors(matrix, 8, order)
    blocks = int((-(-vectors // 8)).sum())
    offsets = vectors.numel() + 1 + blocks + 1
    return _INDEX * (offsets + 8 * blocks) + 8 * blocks + value * structure_of(matrix).nnz


#: The formats whose bytes `footprint` computes: functions of (matrix, bytes of a value, row order).
FOOTPRINTS: dict[str, Callable[[Matrix, int, torch.Tensor | None], int]] = {
    "csr": _csr,
    "coo": _coo,
    "me-bcrs": _me_bcrs,
    "sr-bcrs": _sr_bcrs,
    "cvse-8": _cvse(8),
    "cvse-16": _cvse(16),
    "tiled-csr": _tiled_csr,
    "hrpb": _hrpb,
    "rs-tile": _rs_tile,
    "me-tcf": _me_tcf,
    "bit-tcf": _bit_tcf,
}


def footprint(matrix: Matrix, format: str, value: int = 2, order: torch.Tensor | None = None) -> int:
    """Compute the bytes that a format takes by its paper's formula, with offsets and indices of 4 bytes.

    Args:
        matrix: the matrix.
        format: one of FOOTPRINTS: "csr", "coo"; "me-bcrs" and "sr-bcrs" (FlashSparse); "cvse-8" and "cvse-16"
            (SSpMM, by the rows of a vector); "tiled-csr"; "hrpb" (cuTeSpMM); "rs-tile" (RSH-SpMM); "me-tcf"
            (DTC-SpMM) and "bit-tcf" (Acc-SpMM), which RSH-SpMM compares with.
        value: bytes of a stored value; 0 leaves what stands beside the values.
        order: int [rows], a row order; None: the stored order.

    Raises:
        TypeError: an argument is of another type.
        ValueError: there is no such format, or `value` is negative.
    """
    check_choice("format", format, tuple(FOOTPRINTS))
    check_integer("value", value, 0, "the bytes of a value, from 0 on")
    return FOOTPRINTS[format](matrix, value, order)


# Load balance: cuTeSpMM's wave-aware division by its equations, and how even a division is.


def _check_work(name: str, work: torch.Tensor) -> torch.Tensor:
    if not isinstance(work, torch.Tensor) or work.is_floating_point() or work.dim() != 1:
        bad_type(name, work, "integers [panels]")
    if bool((work < 0).any()):
        bad_value(name, "has negative numbers; accepted: the blocks of each panel, from 0 on")
    return work.to(device="cpu", dtype=torch.int64)


def wave_segments(blocks: torch.Tensor, concurrent: int) -> torch.Tensor:
    """Compute into how many segments the wave-aware rule divides each panel (cuTeSpMM, equations 6 and 7).

    A panel with `num_loads` times the mean blocks is divided by `num_loads / num_waves`, where the waves are
    the panels over those that the GPU runs at a time, rounded up. A ratio of at most 1 divides nothing; other
    ratios are rounded up, which the paper leaves open.

    Args:
        blocks: int [panels], the blocks of each panel.
        concurrent: thread blocks that the GPU runs at a time: SMs times thread blocks of an SM.

    Returns:
        int64 [panels], from 1 on, and at most the blocks of the panel where it has any.

    Raises:
        TypeError: an argument is of another type.
        ValueError: a number of blocks is negative, or `concurrent` is below 1.
    """
    work = _check_work("blocks", blocks)
    check_integer("concurrent", concurrent)
    total, panels = int(work.sum()), work.numel()
    if total == 0:
        return torch.ones_like(work)
    waves = -(-panels // concurrent)
    # blocks / (total / panels) / waves, rounded up, in integers.
    ratio = -(-(work * panels) // (total * waves))
    return ratio.clamp(min=1).minimum(work.clamp(min=1))


def imbalance(work: torch.Tensor, concurrent: int, segments: torch.Tensor | None = None) -> float:
    """Compute how much longer the longest processor works than the mean: 1 is perfectly even.

    Segments are started in the order of their panels, each on the processor that is free first, as thread
    blocks are. Costs are in blocks; what segments cost in addition (partial sums) is not counted.

    Args:
        work: int [panels], the blocks of each panel.
        concurrent: thread blocks that the GPU runs at a time.
        segments: int [panels], the segments of each panel; None: one each.

    Raises:
        TypeError: an argument is of another type.
        ValueError: a number is out of range, or `segments` has another length than `work`.
    """
    work = _check_work("work", work)
    check_integer("concurrent", concurrent)
    if segments is None:
        segments = torch.ones_like(work)
    segments = _check_work("segments", segments).clamp(min=1)
    if segments.shape != work.shape:
        bad_value("segments", f"has {segments.numel()} panels; accepted: {work.numel()}, as many as `work`")
    total = int(work.sum())
    if total == 0:
        return 1.0
    of_panel = torch.repeat_interleave(torch.arange(work.numel(), device="cpu"), segments)
    place = torch.arange(of_panel.numel(), device="cpu") - (segments.cumsum(0) - segments)[of_panel]
    # Segments of one panel differ by a block at most.
    parts = work[of_panel] // segments[of_panel] + (place < work[of_panel] % segments[of_panel])
    free = [0] * min(concurrent, parts.numel())
    for part in parts.tolist():
        heapq.heapreplace(free, free[0] + part)
    return max(free) * len(free) / total


# Rank correlation of a model with measurements.


def rank_correlation(model: Sequence[float], measured: Sequence[float]) -> float:
    """Compute Spearman's rank correlation: 1 if the model orders all cases as the measurements do.

    Raises:
        ValueError: there are fewer than two cases, their numbers differ, or one side has no two numbers that
            differ.
    """
    if len(model) != len(measured) or len(model) < 2:
        bad_value("measured", f"has {len(measured)} cases for {len(model)}; accepted: as many, from 2 on")
    if len(set(model)) < 2 or len(set(measured)) < 2:
        bad_value("measured", "has no two cases that differ, or the model has none")
    return float(spearmanr(model, measured).statistic)
