"""The reordering "jaccard": RSH-SpMM's, which makes neighbouring rows similar."""

from __future__ import annotations

from gnnsparse.preprocess.reorder.registry import Found, Option, register_reordering
from gnnsparse.sparse.csr import Csr

__all__ = ["order_by_similarity"]


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
    """Orders rows so that the sum of the distances of neighbouring rows is small.

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
    order, details = csr.similar_rows_order(neighbors, alpha, tree, two_opt, window, isolation, isolated)
    return Found(order, details)
