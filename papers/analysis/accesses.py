"""Tensor Core instructions and memory accesses of a product, counted from the structure of the matrix.

FlashSparse counts both (figures 1 and 12), by nonzero vectors of 16 rows, which the sparse matrix has as the
left operand of `mma`, and of 8 rows, which it has as the right operand (section 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse.errors import bad_value, check_choice, check_integer
from papers.analysis.structure import Matrix, check_height, count_vectors

__all__ = ["INSTRUCTION_K", "Accesses", "count_accesses"]

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
    """Counts the instructions and accesses of one SpMM or SDDMM.

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
