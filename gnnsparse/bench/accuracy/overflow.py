"""Sums that exceed the largest number of a result's dtype."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from gnnsparse import SparseGraph, prepare, spmm
from gnnsparse.bench.accuracy.operations import outputs_of
from gnnsparse.precision import Precision

__all__ = ["DEGREES", "TERM", "overflow_rows"]

Row = dict[str, Any]

#: Nonzeros of each row.
DEGREES = (1024, 4096, 8192, 16384)
#: Each term of a sum: with it a row of 8,188 nonzeros has the sum 65,504, the largest number of float16.
TERM = 8.0
_ROWS, _WIDTH = 4, 16


def overflow_rows(
    device: torch.device | str, precisions: Sequence[str], degrees: Sequence[int] = DEGREES
) -> Iterator[Row]:
    """Measures sums and means over rows of `degrees` nonzeros whose terms are all TERM.

    Args:
        device: where they are computed.
        precisions: names of precisions; each has results in float32 and in the dtype that it stores.
        degrees: nonzeros of each row.

    Yields:
        A dict with keys "precision", "output", "reduce", "degree", "exact" (the sum or mean), "result" (what
        all elements are; None if they are not finite), "elements", "infinite" (number of elements that are
        not finite) and "ok": whether exactly the elements are infinite whose sum rounds to infinity, and the
        others are off by at most two roundings.
    """
    for degree in degrees:
        columns = torch.arange(degree, dtype=torch.int64, device="cpu").repeat(_ROWS)
        rows = torch.arange(_ROWS, dtype=torch.int64, device="cpu").repeat_interleave(degree)
        graph = SparseGraph.from_edge_index(torch.stack([columns, rows]), (degree, _ROWS)).to(device)
        for precision in map(Precision, precisions):
            a = prepare(graph, precision=precision, cache=False)
            for dtype, reduce in itertools.product(outputs_of(precision), ("sum", "mean")):
                x = torch.full((degree, _WIDTH), TERM, dtype=dtype, device=device)
                yield {
                    "precision": precision.value, "output": str(dtype).removeprefix("torch."),
                    "reduce": reduce, "degree": degree,
                    **_row(spmm(a, x, reduce=reduce), TERM * (degree if reduce == "sum" else 1)),
                }  # fmt: skip


def _row(result: torch.Tensor, exact: float) -> Row:
    infinite = int((~result.isfinite()).sum())
    right = torch.tensor(exact, dtype=torch.float64, device="cpu").to(result.dtype)
    if right.isfinite():
        ok = bool(((result.double() - exact).abs() <= 2 * torch.finfo(result.dtype).eps * exact).all())
    else:
        ok = infinite == result.numel()
    return {
        "exact": exact,
        "result": None if infinite else float(result.flatten()[0]),
        "elements": result.numel(),
        "infinite": infinite,
        "ok": ok,
    }
