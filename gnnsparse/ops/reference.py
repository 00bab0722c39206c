"""The readable specifications of SpMM, SDDMM and the softmax over edges, in plain torch.

They are slow, run on any device, are differentiable by autograd, and import nothing else. Sums are in the
dtype of the arguments. `index` is (row, column) of each nonzero, int64 [2, nnz].
"""

from __future__ import annotations

import torch


def spmm(
    index: torch.Tensor, values: torch.Tensor | None, x: torch.Tensor, rows: int, reduce: str = "sum"
) -> torch.Tensor:
    """Compute y[i] = sum of value * x[j] over the nonzeros (i, j).

    x is [cols, n], or [cols, heads, d] with values [nnz, heads]; values None are 1 each. A "mean" is over the
    nonzeros of a row; of a "max" or "min" the first of equal terms is taken. Rows without nonzeros give 0.
    """
    terms = x.index_select(0, index[1])
    if values is not None:
        terms = terms * values.reshape(*values.shape, *[1] * (x.dim() - values.dim()))
    if reduce in ("max", "min"):
        return _first_of_the_largest(index[0], terms, rows, smallest=reduce == "min")
    total = x.new_zeros(rows, *x.shape[1:]).index_add(0, index[0], terms)
    if reduce == "sum":
        return total
    counts = index[0].bincount(minlength=rows).clamp(min=1)
    return total / counts.to(x.dtype).reshape(-1, *[1] * (x.dim() - 1))


def _first_of_the_largest(row: torch.Tensor, terms: torch.Tensor, rows: int, smallest: bool) -> torch.Tensor:
    """Take for each row and feature the first of the largest or smallest terms; NaN is both."""
    count, shape = terms.shape[0], terms.shape[1:]
    at = row.reshape(-1, *[1] * len(shape)).expand(terms.shape)
    fixed = terms.detach()
    best = fixed.new_full((rows, *shape), float("inf") if smallest else float("-inf"))
    best = best.scatter_reduce(0, at, fixed, "amin" if smallest else "amax").gather(0, at)
    is_best = (fixed == best) | (fixed.isnan() & best.isnan())
    number = torch.arange(count, dtype=torch.int64, device=row.device).reshape(-1, *[1] * len(shape))
    first = torch.full((rows, *shape), count, dtype=torch.int64, device=row.device)
    first = first.scatter_reduce(0, at, torch.where(is_best, number, count), "amin")
    # Rows without nonzeros take a term of zeros, which comes after all.
    return torch.cat([terms, terms.new_zeros(1, *shape)]).gather(0, first)


def sddmm(index: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Compute out[e] = dot(q[i], k[j]) for nonzero e = (i, j), of rows [..., d] or [..., heads, d]."""
    return (q.index_select(0, index[0]) * k.index_select(0, index[1])).sum(-1)


def edge_softmax(index: torch.Tensor, scores: torch.Tensor, rows: int) -> torch.Tensor:
    """Compute the softmax over each row of scores [nnz] or [nnz, heads]; 0 in a row that is all -inf."""
    shape = (rows, *scores.shape[1:])
    row = index[0].reshape(-1, *[1] * (scores.dim() - 1)).expand(scores.shape)
    top = scores.new_full(shape, float("-inf"))
    top = top.scatter_reduce(0, row, scores.detach(), "amax")
    top = torch.where(top == float("-inf"), torch.zeros_like(top), top)
    weights = (scores - top[index[0]]).exp()
    total = scores.new_zeros(shape).index_add(0, index[0], weights)
    total = torch.where(total == 0, torch.ones_like(total), total)
    return weights / total[index[0]]
