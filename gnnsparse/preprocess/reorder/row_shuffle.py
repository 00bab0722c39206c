"""The reordering "row-shuffle": Tiled-CSR's, which puts rows together that fill tiles."""

from __future__ import annotations

from gnnsparse.preprocess.reorder.registry import Found, Option, register_reordering
from gnnsparse.sparse.csr import Csr

__all__ = ["shuffle_rows"]

#: Rows and columns of a tile in the paper (section III-A), for a matrix that is not prepared in a format.
_HEIGHT, _WIDTH = 8, 16


@register_reordering(
    "row-shuffle",
    options={
        "threshold": Option(float, 0.25, least=0, most=1000),
        "bin": Option(int, 256, least=1, most=2**31 - 1),
        "fill": Option(bool, True),
        "height": Option(int, 0, least=0, most=2**20),
        "width": Option(int, 0, least=0, most=2**20),
    },
)
def shuffle_rows(csr: Csr, threshold: float, bin: int, fill: bool, height: int, width: int) -> Found:
    """Puts rows together that have many columns in common, or so few that they fit one tile.

    Tiled-CSR's algorithms 1 to 3 (Xue et al., section III-B and C): rows are sorted by the sum of their
    squared columns; each tile begins with the first row that is left, and takes of the rows behind it those
    that are similar to that row, or that complement the tile, until it is full or as many rows as the bin
    holds were passed over. The paper leaves the threshold and the bin's length open. The defaults were chosen
    on 45 DLMC matrices, of which thresholds from 0.25 to 1 and bins from 64 to 2048 were measured. Full tiles
    come first and empty rows last, so that neither takes room in other tiles. It runs in one thread.

    Args:
        csr: a matrix of any shape.
        threshold: two rows are similar if their union is shorter than 1 + `threshold` times the longer one.
        bin: most rows that are passed over for one tile.
        fill: whether a tile that is short of rows takes those of the bin that add the fewest columns to it,
            which the paper does not do.
        height: rows of a tile; 0: the rows of a panel of the format, 8 without one.
        width: columns of a tile; 0: those of a block of the format, 16 without one. A row complements a tile
            if all columns together are at most `width`.

    Returns:
        The order, with the number of tiles, those that are short of rows, and rows by how they were matched.

    Raises:
        MemoryError: the scratch memory, about 8 bytes a column, does not fit.
    """
    order, counts = csr.shuffled_rows(height or _HEIGHT, width or _WIDTH, threshold, bin, fill)
    return Found(order, counts)
