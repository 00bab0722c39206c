"""The locality of a row order: how many columns neighbouring rows have in common."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse.sparse.csr import Csr

__all__ = ["Locality", "measure_locality"]

#: Heights of the row groups whose distinct columns are counted.
_HEIGHTS = (8, 32)


@dataclass(frozen=True)
class Locality:
    """Counts of the columns in groups of rows, which are the rows of X that a kernel has to gather.

    Attributes:
        columns_8, columns_32: sums of the distinct columns of each group of 8, and of 32, consecutive rows.
        blocks: number of 8 x 16 blocks of the window format.
        density: nonzeros per element of the columns of 8-row groups.
    """

    columns_8: int
    columns_32: int
    blocks: int
    density: float


def measure_locality(csr: Csr, order: torch.Tensor | None) -> Locality:
    """Measures the locality of a matrix on the CPU in a row order; None: in its own order."""
    of_height = {h: csr.count_columns(h, order) for h in _HEIGHTS}
    columns_8 = int(of_height[8].sum())
    return Locality(
        columns_8=columns_8,
        columns_32=int(of_height[32].sum()),
        blocks=int(((of_height[8] + 15) // 16).sum()),
        density=csr.nnz / max(8 * columns_8, 1),
    )
