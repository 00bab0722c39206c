"""Lists of the 128 x 128 tiles of a pattern that have edges, as kernels of attention read them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from gnnsparse.formats.tiles import TILE, find_tiles, tiles_across
from gnnsparse.runtime.memo import made_once
from gnnsparse.sparse.kernel_cache import KernelCache

_WORD = 32


class TileLists(NamedTuple):
    """The tiles that have edges, those of 128 stored rows one after another by rising columns.

    `starts` int32 [rows / 128 + 1]: first tile of each 128 rows. `tiles` int32 [tiles, 2]: first column
    divided by 128, and the index in `bits`, -1 for full tiles. `bits` int32 [partial tiles, 128, 4]: bit j of
    word i of a row is the edge in column 32 i + j of the tile.
    """

    starts: torch.Tensor
    tiles: torch.Tensor
    bits: torch.Tensor


@made_once
def tile_lists(kernels: KernelCache) -> TileLists:
    """List the tiles of a pattern; each partial one takes 2 KB."""
    csr, across, found = kernels.csr, tiles_across(kernels.csr), find_tiles(kernels.csr)
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


@made_once
def column_lists(kernels: KernelCache) -> tuple[torch.Tensor, torch.Tensor]:
    """List the same tiles by columns: `starts` and `tiles` of the transpose; bits stay those of rows."""
    starts, tiles, _ = tile_lists(kernels)
    panels = torch.arange(starts.numel() - 1, dtype=torch.int32, device=starts.device)
    rows = torch.repeat_interleave(panels, starts.diff(), output_size=len(tiles))
    columns, order = torch.sort(tiles[:, 0], stable=True)
    firsts = torch.arange(-(-kernels.csr.cols // TILE) + 1, dtype=torch.int32, device=starts.device)
    of_columns = torch.stack((rows, tiles[:, 1]), 1)[order]
    return torch.searchsorted(columns, firsts).int(), of_columns
