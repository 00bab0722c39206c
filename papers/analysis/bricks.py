"""cuTeSpMM's bricks: their density, the synergy of a matrix with Tensor Cores, and the modelled intensity."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse.errors import bad_value, check_integer, check_share
from papers.analysis.structure import Matrix, count_vectors, structure_of

__all__ = ["BRICK", "SYNERGY", "Bricks", "count_bricks", "grid_bricks", "synergy_class"]

#: Rows and columns of a brick (section 3.2).
BRICK = (16, 4)
#: Least density of a brick of each synergy class (table 1), from the lowest class.
SYNERGY = {"low": 0.0, "medium": 0.125, "high": 0.25}


def synergy_class(density: float) -> str:
    """Returns the synergy class of a density of bricks: "low", "medium" or "high" (cuTeSpMM, table 1).

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
    """Counts the bricks of 16 x 4 of a matrix in the HRPB format (cuTeSpMM, section 3.2).

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
    """Counts the bricks of a regular grid of 16 x 4, with no column left out (cuTeSpMM, section 1)."""
    csr = structure_of(matrix)
    key = csr.row_index() // BRICK[0] * (csr.cols // BRICK[1] + 1) + csr.indices // BRICK[1]
    active = torch.unique(key).numel()
    return Bricks(csr.nnz, BRICK[0], active, active)
