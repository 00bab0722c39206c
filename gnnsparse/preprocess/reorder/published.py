"""Row orders of the papers on SpMM: "row-shuffle" (Tiled-CSR), "jaccard" (RSH-SpMM) and "tca" (DTC-SpMM).

It stands alone, as every file of reorderings does: registering is all that ties it to the others.
"""

from __future__ import annotations

import torch

from gnnsparse import _native
from gnnsparse.errors import check_memory
from gnnsparse.formats.csr import Csr
from gnnsparse.preprocess.reorder.registry import Found, register_reordering
from gnnsparse.registry import Option

__all__ = ["order_by_clusters", "order_by_similarity", "shuffle_rows"]

#: Rows and columns of a tile in Tiled-CSR (section III-A), for a matrix that is not prepared in a
#: format. A cluster of "tca" has as many rows then.
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
    """Put rows together that have many columns in common, or so few that they fit one tile.

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
    csr.check_scratch(bytes_per_column=8, bytes_per_row=44)
    order = torch.empty(csr.rows, dtype=torch.int32, device="cpu")
    tile = height or _HEIGHT, width or _WIDTH
    counts = _native.shuffle_rows(csr.view, *tile, threshold, bin, fill, order)
    names = ("similar", "complementary", "filled", "tiles", "short_tiles")
    return Found(order, dict(zip(names, counts, strict=True)))


@register_reordering(
    "jaccard",
    options={
        "neighbors": Option(int, 8, least=1, most=64),
        "alpha": Option(float, 0.5, least=0, most=16),
        "tree": Option(bool, True),
        "two_opt": Option(bool, True),
        "window": Option(int, 32, least=4, most=1024),
        "isolation": Option(bool, True),
        "isolated": Option(float, 0.1, least=0, most=1),
    },
)
def order_by_similarity(
    csr: Csr, neighbors: int, alpha: float, tree: bool, two_opt: bool, window: int, isolation: bool,
    isolated: float,
) -> Found:  # fmt: skip
    """Order rows so that the sum of the distances of neighbouring rows is small.

    RSH-SpMM's locality-aware reordering (section 3.4, algorithm 3), by weighted Jaccard similarity: the
    weight of two rows' common columns over that of all their columns, a column of d nonzeros weighing
    d^-alpha. Each row's most similar rows make a graph; the depth-first order of its spanning forest of least
    distance is improved by 2-opt in windows, and isolated rows are moved beside their most similar rows, or
    to the end if there is none. A stage that would lengthen the path is undone, in whole or move by move, so
    that none raises the objective. The paper leaves open what the options set, and the candidates, which are
    at most 64 rows here, from the 64 nearest ones in the lists of a row's 16 rarest columns.

    Args:
        csr: a matrix of any shape.
        neighbors: neighbours of a row in the graph of similar rows, the paper's k.
        alpha: the exponent of the columns' weights; 0: all weigh the same.
        tree: whether rows are put in the order of the spanning forest.
        two_opt: whether windows are improved by 2-opt, whose moves reverse a part of one.
        window: rows of such a window. A second pass has its borders in the middle of the first one's windows.
        isolation: whether isolated rows are moved.
        isolated: a row is isolated if it is less similar than this to both neighbours.

    Returns:
        The order, with the objective, the sum of 1 - similarity of neighbouring rows, in the given order and
        after each stage.

    Raises:
        MemoryError: the scratch memory does not fit.
    """
    order = _similarity_scratch(csr, neighbors)
    *objective, moved = _native.jaccard_order(
        csr.view, neighbors, alpha, tree, two_opt, window, isolation, isolated, order, torch.get_num_threads()
    )
    stages = dict(zip(("given", "tree", "two_opt", "isolation"), objective, strict=True))
    return Found(order, {**stages, "moved": moved})


@register_reordering(
    "tca",
    options={
        "group": Option(int, 128, least=1, most=2**20),
        "neighbors": Option(int, 8, least=1, most=64),
        "height": Option(int, 0, least=0, most=2**20),
    },
)
def order_by_clusters(csr: Csr, group: int, neighbors: int, height: int) -> torch.Tensor:
    """Put similar rows into one window, and similar windows near each other.

    An order like the TCU-cache-aware reordering of DTC-SpMM (Fan et al., ASPLOS 2024), with which RSH-SpMM
    compares its own. The most similar pairs of rows are joined first, to clusters of at most `height` rows;
    the clusters, as rows of a smaller matrix, are joined to groups in the same way. DTC-SpMM finds similar
    rows by MinHash; here they are those of "jaccard" with equal weights. Full clusters come first, so that
    each is a window.

    Args:
        csr: a matrix of any shape.
        group: clusters of a group at most: windows that run at about the same time and share a cache.
        neighbors: most similar rows that are looked at for a row, and clusters for a cluster.
        height: rows of a cluster at most; 0: the rows of a panel of the format, 8 without one.

    Raises:
        MemoryError: the scratch memory does not fit.
    """
    order = _similarity_scratch(csr, neighbors)
    _native.cluster_order(csr.view, height or _HEIGHT, group, neighbors, order, torch.get_num_threads())
    return order


def _similarity_scratch(csr: Csr, neighbors: int) -> torch.Tensor:
    """Return memory for an order, if lists of the rows of each column and of similar rows fit beside it."""
    csr.check_scratch(40 + 4 * torch.get_num_threads(), 60 + 28 * neighbors)
    check_memory("graph", 4 * csr.nnz, f"lists of {csr.nnz} nonzeros")
    return torch.empty(csr.rows, dtype=torch.int32, device="cpu")
