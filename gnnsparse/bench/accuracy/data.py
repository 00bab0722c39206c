"""Operands whose numbers are easy or hard for a precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.testing import random_graph

__all__ = ["RANGES", "SUMS_OF_VALUES", "Operands", "make_operands"]

#: Operations whose sums run over the nonzeros of a row; those of sddmm run over features.
SUMS_OF_VALUES = ("spmm", "attention", "graph_attention")
#: Rows, columns and features of the operands, but where a range says otherwise.
_SIZE, _WIDTH, _DENSITY = 256, 64, 0.1
#: Heads of graph attention.
HEADS = 4
#: Terms of a sum in the range "degree".
_TERMS = 4096
#: Pairs of terms cancel but for about this part of them.
_LEFT = 2.0**-7


@dataclass(frozen=True, eq=False)
class Operands:
    """The operands of all operations, float32 on one device.

    Attributes:
        graph: [m, n], with a value for each nonzero.
        q: [m, D], queries; the operand of rows of sddmm.
        k: [n, D], keys; the operand of columns of sddmm.
        v: [n, F], what is summed over the nonzeros of a row; X of spmm.
    """

    graph: SparseGraph
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    def to(self, device: torch.device | str) -> Operands:
        """Returns the operands on another device."""
        return Operands(self.graph.to(device), self.q.to(device), self.k.to(device), self.v.to(device))


class _Draw:
    """Random numbers of one seed."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator("cpu").manual_seed(seed)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator, dtype=torch.float32, device="cpu")

    def uniform(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=self._generator, dtype=torch.float32, device="cpu")


def _normal(op: str, seed: int) -> Operands:
    draw, graph = _Draw(seed), random_graph(_SIZE, _SIZE, _DENSITY, seed=seed)
    return Operands(graph, *(draw.normal(_SIZE, _WIDTH) for _ in range(3)))


def _wide(op: str, seed: int) -> Operands:
    """Features of V, and rows of Q, from 2^-24 to 2^8 in size; float16 has normal numbers from 2^-14."""
    made = _normal(op, seed)
    sizes = torch.logspace(-24, 8, _WIDTH, base=2.0, dtype=torch.float32, device="cpu")
    rows = torch.logspace(-24, 8, _SIZE, base=2.0, dtype=torch.float32, device="cpu")
    q = made.q * rows[:, None] if op == "sddmm" else made.q
    return Operands(made.graph, q, made.k, made.v * sizes)


def _degree(op: str, seed: int) -> Operands:
    """Sums of 4,096 terms that do not cancel: values and features in [0, 1)."""
    draw = _Draw(seed)
    if op == "sddmm":
        graph = random_graph(64, 64, 0.25, seed=seed)
        return Operands(graph, draw.uniform(64, _TERMS), draw.uniform(64, _TERMS), draw.uniform(64, 1))
    columns, rows = 2 * _TERMS, 16
    chosen = torch.stack([draw.uniform(columns).topk(_TERMS).indices for _ in range(rows)])
    targets = torch.arange(rows, dtype=torch.int64, device="cpu").repeat_interleave(_TERMS)
    graph = SparseGraph.from_edge_index(
        torch.stack([chosen.flatten(), targets]), (columns, rows), draw.uniform(rows * _TERMS)
    )
    return Operands(graph, draw.normal(rows, 16), draw.normal(columns, 16), draw.uniform(columns, 16))


def _cancellation(op: str, seed: int) -> Operands:
    """Sums whose terms come in pairs that cancel to about a hundredth."""
    draw, half = _Draw(seed), _SIZE // 2
    left = 1.0 + _LEFT * draw.normal(half, _WIDTH)
    if op == "sddmm":
        graph, a = random_graph(_SIZE, half, _DENSITY, seed=seed), draw.normal(_SIZE, _WIDTH)
        b = draw.normal(half, _WIDTH)
        return Operands(graph, torch.cat([a, a], 1), torch.cat([b, -b * left], 1), b)
    # Columns 2j and 2j + 1 stand beside each other in every row that has one of them.
    pairs = random_graph(_SIZE, half, _DENSITY, seed=seed)
    rows, columns = pairs.csr.row_index(), pairs.csr.indices.long()
    ends = torch.stack([torch.cat([2 * columns, 2 * columns + 1]), torch.cat([rows, rows])])
    assert pairs.values is not None
    graph = SparseGraph.from_edge_index(ends, (_SIZE, _SIZE), torch.cat([pairs.values, pairs.values]))
    v = draw.normal(half, _WIDTH)
    v = torch.stack([v, -v * left], 1).flatten(0, 1)
    k = draw.normal(half, _WIDTH).repeat_interleave(2, 0)  # both of a pair have the same weight
    return Operands(graph, 0.1 * draw.normal(_SIZE, _WIDTH), k, v)


#: What makes the operands of an operation from a seed, by the name of the range.
RANGES: dict[str, Callable[[str, int], Operands]] = {
    "normal": _normal,
    "wide": _wide,
    "degree": _degree,
    "cancellation": _cancellation,
}


def make_operands(op: str, name: str, seed: int, device: torch.device | str) -> Operands:
    """Makes the operands of an operation.

    Args:
        op: name of the operation.
        name: one of RANGES: "normal": standard normal numbers; "wide": features from 2^-24 to 2^8; "degree":
            sums of 4,096 terms of one sign; "cancellation": terms that cancel to about a hundredth.
        seed: seed of structure and numbers.
        device: where they are put.
    """
    return RANGES[name](op, seed).to(device)
