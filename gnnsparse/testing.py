"""Helpers for tests of sparse products, in this project and in yours: random matrices, and the accuracy rule.

The rule: measured against a float64 result, the error of a kernel is at most twice the error of plain
PyTorch operations in the same precision. No tolerance is picked by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse.graph import SparseGraph

__all__ = ["Errors", "assert_accurate", "measure_errors", "random_graph"]


@dataclass(frozen=True)
class Errors:
    """Relative errors against the exact result, each as a pair (Frobenius norm, largest element).

    Attributes:
        actual: errors of the result in question.
        plain: errors of the plain operations.
        allowed: the largest errors that `actual` may have.
    """

    actual: tuple[float, float]
    plain: tuple[float, float]
    allowed: tuple[float, float]

    @property
    def ok(self) -> bool:
        """Whether the rule holds; False if an error is NaN."""
        return all(a <= limit for a, limit in zip(self.actual, self.allowed, strict=True))


def _relative(result: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    difference = result.double() - exact
    norm, top = float(exact.norm()), float(exact.abs().max())
    frobenius = float(difference.norm()) / norm if norm else float(difference.norm())
    largest = float(difference.abs().max()) / top if top else float(difference.abs().max())
    return frobenius, largest


def measure_errors(
    actual: torch.Tensor,
    plain: torch.Tensor,
    exact: torch.Tensor,
    factor: float = 2.0,
    floor: float | None = None,
) -> Errors:
    """Measures the errors of a result and of a plain run against the exact result.

    Args:
        actual: the result in question.
        plain: the result of plain PyTorch operations in the precision of `actual`, of its shape.
        exact: the result in float64, of the shape of `actual`.
        factor: how many times the error of `plain` is allowed.
        floor: a relative error that is always allowed, because a plain run of few sums can be exact by
            luck; None: 4 eps of `actual`'s dtype, at least 1e-6.

    Raises:
        ValueError: the shapes differ.
    """
    if not actual.shape == plain.shape == exact.shape:
        raise ValueError(f"actual: shapes differ: {actual.shape}, {plain.shape}, {exact.shape}")
    if exact.numel() == 0:
        return Errors((0.0, 0.0), (0.0, 0.0), (0.0, 0.0))
    if floor is None:
        floor = max(4 * torch.finfo(actual.dtype).eps, 1e-6)
    plain_errors = _relative(plain, exact.double())
    first, second = (max(factor * error, floor) for error in plain_errors)
    return Errors(_relative(actual, exact.double()), plain_errors, (first, second))


def assert_accurate(
    actual: torch.Tensor,
    plain: torch.Tensor,
    exact: torch.Tensor,
    factor: float = 2.0,
    floor: float | None = None,
) -> None:
    """Raises AssertionError unless the accuracy rule holds; the arguments are those of `measure_errors`.

    Raises:
        AssertionError: an error of `actual` is larger than allowed.
        ValueError: the shapes differ.
    """
    errors = measure_errors(actual.detach(), plain.detach(), exact.detach(), factor, floor)
    if not errors.ok:
        raise AssertionError(
            f"relative error (Frobenius, largest) {errors.actual} exceeds {errors.allowed}; "
            f"a plain run has {errors.plain}"
        )


def random_graph(
    rows: int,
    cols: int,
    density: float,
    *,
    seed: int = 0,
    weighted: bool = True,
    hubs: int = 0,
    empty_rows: float = 0.0,
    symmetric: bool = False,
) -> SparseGraph:
    """Makes a random matrix for tests, on the CPU.

    Args:
        rows, cols: shape.
        density: expected fraction of nonzeros in an ordinary row.
        seed: seed of the structure and the values.
        weighted: True: standard normal values; False: no values.
        hubs: number of rows that get about three quarters of all columns.
        empty_rows: fraction of the rows that is emptied.
        symmetric: whether the structure is symmetric (rows must equal cols).

    Raises:
        ValueError: a symmetric matrix is not square.
    """
    if symmetric and rows != cols:
        raise ValueError(f"symmetric: needs rows = cols, got {rows} and {cols}")
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, cols, generator=generator) < density
    if rows and hubs:
        chosen = torch.randperm(rows, generator=generator)[:hubs]
        mask[chosen] |= torch.rand(chosen.numel(), cols, generator=generator) < 0.75
    mask[torch.rand(rows, generator=generator) < empty_rows] = False
    if symmetric:
        mask |= mask.T.clone()
    row, col = mask.nonzero(as_tuple=True)
    values = torch.randn(row.numel(), generator=generator) if weighted else None
    return SparseGraph.from_edge_index(torch.stack([col, row]), (cols, rows), values)
