"""The 128 x 128 tiles of a pattern that have edges: how many there are and how full, and bands of diagonals.

It stands alone because the plan needs the counts and the kernels of attention read lists of the same tiles.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from gnnsparse.formats.csr import Csr

#: Rows and columns of a tile.
TILE = 128


class Tiles(NamedTuple):
    """Counts of the tiles of a pattern that have edges, in the order of its stored rows.

    `full` tiles have an edge at each of their positions, `partial` ones do not, and both hold `nnz` edges.
    """

    full: int
    partial: int
    nnz: int

    @property
    def fill(self) -> float:
        """The edges as a fraction of the positions of the tiles, those past the last row and column too."""
        return self.nnz / max(1, TILE * TILE * (self.full + self.partial))


class FoundTiles(NamedTuple):
    """The tiles that have edges, and the runs of neighbouring edges that a row has in one of them."""

    numbers: torch.Tensor  # int64 [tiles], ascending: number of 128 rows * tiles across + column / 128
    full: torch.Tensor  # bool [tiles]
    runs: torch.Tensor  # int64 [runs], the tile of each run of edges of a row in a tile
    lengths: torch.Tensor  # int64 [runs], edges of each run


def tiles_across(csr: Csr) -> int:
    """Return how many tiles lie side by side; at least 1."""
    return max(1, -(-csr.cols // TILE))


def find_tiles(csr: Csr) -> FoundTiles:
    """Find the tiles that have edges; time and memory are of the order of the edges."""
    across = tiles_across(csr)
    # Rows have ascending columns: the edges that a row has in a tile are neighbours.
    keys = csr.row_index() * across + csr.indices // TILE
    keys, lengths = torch.unique_consecutive(keys, return_counts=True)
    rows, columns = keys // across, keys % across
    numbers, runs = torch.unique(rows // TILE * across + columns, return_inverse=True)
    edges = torch.zeros_like(numbers).index_add_(0, runs, lengths)
    heights = (csr.rows - numbers // across * TILE).clamp(max=TILE)
    return FoundTiles(numbers, edges == heights * TILE, runs, lengths)


def count_tiles(csr: Csr) -> Tiles:
    """Count the tiles of a pattern."""
    found = find_tiles(csr)
    full = int(found.full.sum())
    return Tiles(full, found.full.numel() - full, csr.nnz)


def band_of(csr: Csr) -> tuple[int, int] | None:
    """Return (l, r) if row i of a square pattern has the columns i - l to i + r that there are, else None.

    Windows, causal patterns and full ones are bands.
    """
    rows = csr.rows
    if csr.nnz == 0 or rows != csr.cols or int(csr.degrees.min()) == 0:
        return None
    row = torch.arange(rows, dtype=torch.int64, device=csr.device)
    first, last = csr.indices[csr.indptr[:-1]].long(), csr.indices[csr.indptr[1:] - 1].long()
    left, right = (row - first).max(), (last - row).max()
    fits = (first == (row - left).clamp(min=0)) & (last == (row + right).clamp(max=rows - 1))
    fits &= last - first + 1 == csr.degrees
    # Of a band that lies on one side of the diagonal some rows would be empty.
    return (int(left), int(right)) if bool(fits.all()) and left >= 0 and right >= 0 else None
