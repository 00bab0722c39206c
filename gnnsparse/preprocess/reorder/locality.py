"""How many columns neighbouring rows of a matrix share."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse.csr import Csr

__all__ = ["Locality", "measure_locality"]

#: Heights of the row groups whose distinct columns are counted.
_HEIGHTS = (8, 32)


@dataclass(frozen=True)
class Locality:
    """How many columns row groups share: what a kernel has to gather.

    Attributes:
        columns_8, columns_32: distinct columns summed over groups of 8 and of 32 rows.
        blocks: 8 x 16 blocks of the window format.
        density: nonzeros per element of the 8-row groups' columns.
    """

    columns_8: int
    columns_32: int
    blocks: int
    density: float


def measure_locality(csr: Csr, order: torch.Tensor | None) -> Locality:
    """The locality of a matrix on the CPU whose rows are taken in an order; None: as they are."""
    of_height = {h: csr.count_columns(h, order) for h in _HEIGHTS}
    columns_8 = int(of_height[8].sum())
    return Locality(
        columns_8=columns_8,
        columns_32=int(of_height[32].sum()),
        blocks=int(((of_height[8] + 15) // 16).sum()),
        density=csr.nnz / max(8 * columns_8, 1),
    )
