"""The 128 x 128 tiles of a pattern that have edges: how many there are and how full, and lists for kernels.

It stands alone because the choice of an implementation needs the counts, and several read the lists.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from gnnsparse.runtime.memo import made_once
from gnnsparse.sparse.kernel_cache import KernelCache
from gnnsparse.sparse.operand import SparseOperand

#: Rows and columns of a tile.
TILE = 128
_WORD = 32


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


class TileLists(NamedTuple):
    """The tiles that have edges, those of 128 stored rows one after another by rising columns.

    `starts` int32 [rows / 128 + 1]: first tile of each 128 rows. `tiles` int32 [tiles, 2]: first column
    divided by 128, and the index in `bits`, -1 for full tiles. `bits` int32 [partial tiles, 128, 4]: bit j of
    word i of a row is the edge in column 32 i + j of the tile.
    """

    starts: torch.Tensor
    tiles: torch.Tensor
    bits: torch.Tensor


class _Found(NamedTuple):
    numbers: torch.Tensor  # int64 [tiles], ascending: number of 128 rows * tiles across + column / 128
    full: torch.Tensor  # bool [tiles]
    runs: torch.Tensor  # int64 [runs], the tile of each run of edges of a row in a tile
    lengths: torch.Tensor  # int64 [runs], edges of each run


def _tiles_across(kernels: KernelCache) -> int:
    return max(1, -(-kernels.csr.cols // TILE))


def _find(kernels: KernelCache) -> _Found:
    csr, across = kernels.csr, _tiles_across(kernels)
    # Rows have ascending columns: the edges that a row has in a tile are neighbours.
    keys = csr.row_index() * across + csr.indices // TILE
    keys, lengths = torch.unique_consecutive(keys, return_counts=True)
    rows, columns = keys // across, keys % across
    numbers, runs = torch.unique(rows // TILE * across + columns, return_inverse=True)
    edges = torch.zeros_like(numbers).index_add_(0, runs, lengths)
    heights = (csr.rows - numbers // across * TILE).clamp(max=TILE)
    return _Found(numbers, edges == heights * TILE, runs, lengths)


@made_once
def _counts(kernels: KernelCache) -> Tiles:
    found = _find(kernels)
    full = int(found.full.sum())
    return Tiles(full, found.full.numel() - full, kernels.csr.nnz)


def tiles_of(operand: SparseOperand) -> Tiles:
    """Count the tiles of an operand's pattern, once; time and memory are of the order of its edges."""
    return _counts(operand.kernels)


@made_once
def tile_lists(kernels: KernelCache) -> TileLists:
    """List the tiles of a pattern; each partial one takes 2 KB."""
    csr, across, found = kernels.csr, _tiles_across(kernels), _find(kernels)
    panels = torch.arange(-(-csr.rows // TILE) + 1, device=csr.device)
    starts = torch.searchsorted(found.numbers, panels * across).int()
    index = (~found.full).cumsum(0) - 1
    index[found.full] = -1
    tiles = torch.stack((found.numbers % across, index), 1).int()
    of_edge = torch.repeat_interleave(index[found.runs], found.lengths, output_size=csr.nnz)
    partial = of_edge >= 0
    column = csr.indices[partial].long()
    words = (of_edge[partial] * TILE + csr.row_index()[partial] % TILE) * (TILE // _WORD)
    words += column % TILE // _WORD
    shape = (found.full.numel() - int(found.full.sum()), TILE, TILE // _WORD)
    bits = torch.zeros(shape, dtype=torch.int64, device=csr.device)
    # No edge is there twice, so that the sum of its bits is all of them.
    bits.view(-1).index_add_(0, words, torch.ones_like(column) << column % _WORD)
    return TileLists(starts, tiles, bits.int())
