"""Plain torch operations over edges: in float64, which is exact here, and in the precision of a kernel."""

from __future__ import annotations

import torch

from gnnsparse.bench.accuracy.data import HEADS, Operands
from gnnsparse.precision import Precision, round_operand

__all__ = ["SLOPE", "PlainOperations", "by_head"]

#: Slope of graph attention's leaky ReLU below 0.
SLOPE = 0.2


def by_head(x: torch.Tensor) -> torch.Tensor:
    """Divides features [n, F] among the heads of graph attention: [n, heads, F / heads]."""
    return x.unflatten(1, (HEADS, -1))


class PlainOperations:
    """The operations on gathered rows, one after another.

    Args:
        operands: the operands.
        index: row and column of each nonzero, int64 [2, nnz].
        values: the weight of each nonzero, float32 [nnz].
        precision: what operands of products are rounded to, with float32 sums; None: float64, no rounding.
    """

    def __init__(
        self, operands: Operands, index: torch.Tensor, values: torch.Tensor, precision: Precision | None
    ) -> None:
        self._operands, self._values, self._precision = operands, values, precision
        self._row, self._column = index

    def run(self, op: str) -> torch.Tensor:
        """Computes an operation: [m, F], or for sddmm [nnz] in the order of `index`."""
        return self._add(op, self._terms(op)).flatten(1) if op != "sddmm" else self._add(op, self._terms(op))

    def sizes(self, op: str) -> torch.Tensor:
        """Computes the root of the sum of the squares of each element's terms."""
        found = self._add(op, self._terms(op).square()).sqrt()
        return found.flatten(1) if op != "sddmm" else found

    def _terms(self, op: str) -> torch.Tensor:
        """The products whose sums are the result."""
        q, k, v = self._operands.q, self._operands.k, self._operands.v
        if op == "sddmm":
            return self._in(q)[self._row] * self._in(k)[self._column]
        if op == "graph_attention":
            scores = self._wide(q[:, :HEADS])[self._row] + self._wide(k[:, :HEADS])[self._column]
            weights = self._softmax(torch.nn.functional.leaky_relu(scores, SLOPE))
            return self._in(weights)[:, :, None] * self._in(by_head(v))[self._column]
        weights = self._values
        if op == "attention":
            weights = self._softmax(self._terms("sddmm").sum(1) / q.shape[1] ** 0.5)
        return self._in(weights)[:, None] * self._in(v)[self._column]

    def _add(self, op: str, terms: torch.Tensor) -> torch.Tensor:
        if op == "sddmm":
            return terms.sum(1)
        return self._by_row(terms)

    def _by_row(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(self._operands.q.shape[0], *x.shape[1:]).index_add_(0, self._row, x)

    def _wide(self, x: torch.Tensor) -> torch.Tensor:
        return x.double() if self._precision is None else x

    def _in(self, x: torch.Tensor) -> torch.Tensor:
        return x.double() if self._precision is None else round_operand(x, self._precision).float()

    def _softmax(self, scores: torch.Tensor) -> torch.Tensor:
        top = scores.new_full((self._operands.q.shape[0], *scores.shape[1:]), float("-inf"))
        rows = self._row.reshape(-1, *[1] * (scores.dim() - 1)).expand_as(scores)
        powers = (scores - top.scatter_reduce(0, rows, scores, "amax")[self._row]).exp()
        return powers / self._by_row(powers)[self._row]
