"""The reordering "auto": the best of several orders by counts, or none.

It stands alone, as every file of reorderings does: registering is all that ties it to the others.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from gnnsparse.formats.csr import Csr
from gnnsparse.preprocess.reorder.registry import METHODS, Found, Method, register_reordering
from gnnsparse.registry import Option

__all__ = ["order_by_counts"]

#: The orders that are tried. "metis" needs a package, and takes minutes where these take seconds.
_TRIED = ("degree", "rcm", "community", "row-shuffle", "jaccard", "tca")
#: Heights of the groups of rows of the kernels that a matrix without a format may run by.
_HEIGHTS = (8, 16, 32)
_WIDTH = 16


def _count(csr: Csr, order: torch.Tensor | None, heights: tuple[int, ...], width: int) -> torch.Tensor:
    """Count by height the distinct columns of all groups of rows, and their blocks, int64 [2, heights]."""
    counts = [csr.count_columns(height, order) for height in heights]
    return torch.tensor(
        [[int(of.sum()) for of in counts], [int(((of + width - 1) // width).sum()) for of in counts]],
        dtype=torch.int64, device="cpu",
    )  # fmt: skip


def _report(seconds: float, counts: torch.Tensor, heights: tuple[int, ...]) -> dict[str, Any]:
    columns, blocks = (dict(zip(map(str, heights), row, strict=True)) for row in counts.tolist())
    return {"seconds": seconds, "columns": columns, "blocks": blocks}


def _problem(method: Method, csr: Csr) -> str:
    """Return why a reordering does not take a matrix; "" if it does."""
    if method.square and csr.rows != csr.cols:
        return "needs a square matrix"
    most = csr.nnz * (2 if method.undirected else 1)
    return "" if method.most_nnz is None or most <= method.most_nnz else "takes fewer nonzeros"


@register_reordering(
    "auto",
    options={
        "least_gain": Option(float, 0.02, least=0, most=1),
        "height": Option(int, 0, least=0, most=2**20),
        "width": Option(int, 0, least=0, most=2**20),
    },
)
def order_by_counts(csr: Csr, least_gain: float, height: int, width: int) -> Found:
    """Try "degree", "rcm", "community", "row-shuffle", "jaccard" and "tca", and take the best by counts.

    Counted are the distinct columns of each panel, which are the rows of X that a kernel gathers, and the
    blocks that the columns fill. An order is taken if neither count is above that of the matrix's own order,
    so that it is never worse than "none"; of several the one with the fewest columns, the first of equals.

    Args:
        csr: a matrix of any shape.
        least_gain: an order has to save more than this share of the columns; a smaller gain does not pay for
            results that are written in another order.
        height: rows of a panel; 0: those of the format. Without one, panels of 8, 16 and 32 rows are counted,
            and no count may be above that of "none".
        width: columns of a block; 0: those of the format, 16 without one.

    Returns:
        The order, with the name of the chosen one, and for each order that was tried its seconds and counts
        by height, or why it was not tried.
    """
    heights, width = (height,) if height else _HEIGHTS, width or _WIDTH
    own = _count(csr, None, heights, width)
    tried: dict[str, Any] = {"none": _report(0.0, own, heights)}
    chosen, best, least = "none", torch.arange(csr.rows, device="cpu"), 1 - least_gain
    for name in _TRIED:
        method = METHODS[name]
        if problem := _problem(method, csr):
            tried[name] = {"not_tried": problem}
            continue
        sizes = {"height": height, "width": width}
        start = time.perf_counter()
        try:
            order = method.order(csr, **{key: sizes[key] for key in sizes if key in method.options})
        except MemoryError as error:
            tried[name] = {"not_tried": str(error)}
            continue
        seconds = time.perf_counter() - start
        counts = _count(csr, order, heights, width)
        tried[name] = _report(seconds, counts, heights)
        fraction = float((counts[0].double() / own[0].clamp(min=1)).mean())
        if fraction < least and bool((counts <= own).all()):
            chosen, best, least = name, order, fraction
    return Found(best, {"chosen": chosen, "tried": tried})
