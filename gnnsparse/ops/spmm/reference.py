"""The readable specification of SpMM, in plain torch: slow, differentiable by autograd, on any device."""

from __future__ import annotations

import torch

__all__ = ["spmm"]


def spmm(
    index: torch.Tensor, values: torch.Tensor | None, x: torch.Tensor, rows: int, reduce: str = "sum"
) -> torch.Tensor:
    """Computes y[i] = sum of value * x[j] over the nonzeros (i, j). Sums are in the dtype of the arguments.

    Args:
        index: (row, column) of each nonzero, int64 [2, nnz].
        values: [nnz], or [nnz, heads] with x [cols, heads, d]; None: 1 each.
        x: [cols, n] or [cols, heads, d].
        rows: rows of the matrix.
        reduce: "sum"; "mean", which divides by the number of nonzeros of a row; "max" or "min", among whose
            equal terms the first is taken. Rows without nonzeros give 0.

    Returns:
        [rows, ...] in the dtype of x.
    """
    terms = x.index_select(0, index[1])
    if values is not None:
        terms = terms * values.reshape(*values.shape, *[1] * (x.dim() - values.dim()))
    if reduce in ("max", "min"):
        return _first_extreme(index[0], terms, rows, largest=reduce == "max")
    total = x.new_zeros(rows, *x.shape[1:]).index_add(0, index[0], terms)
    if reduce == "sum":
        return total
    counts = index[0].bincount(minlength=rows).clamp(min=1)
    return total / counts.to(x.dtype).reshape(-1, *[1] * (x.dim() - 1))


def _first_extreme(row: torch.Tensor, terms: torch.Tensor, rows: int, largest: bool) -> torch.Tensor:
    """Takes for each row and feature the first of the largest or smallest terms; NaN is both."""
    count, shape = terms.shape[0], terms.shape[1:]
    at = row.reshape(-1, *[1] * len(shape)).expand(terms.shape)
    fixed = terms.detach()
    best = fixed.new_full((rows, *shape), float("-inf") if largest else float("inf"))
    best = best.scatter_reduce(0, at, fixed, "amax" if largest else "amin").gather(0, at)
    is_best = (fixed == best) | (fixed.isnan() & best.isnan())
    number = torch.arange(count, dtype=torch.int64, device=row.device).reshape(-1, *[1] * len(shape))
    first = torch.full((rows, *shape), count, dtype=torch.int64, device=row.device)
    first = first.scatter_reduce(0, at, torch.where(is_best, number, count), "amin")
    # Rows without nonzeros take a term of zeros, which comes after all.
    return torch.cat([terms, terms.new_zeros(1, *shape)]).gather(0, first)
