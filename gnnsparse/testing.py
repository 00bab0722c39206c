"""For tests of sparse products, ours and yours: random matrices, and the accuracy rule.

The rule: against a float64 result, the error of a kernel is at most twice that of a plain run in the
same precision. There is no hand-picked tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse.graph import SparseGraph

__all__ = ["Errors", "assert_accurate", "measure_errors", "random_graph"]


@dataclass(frozen=True)
class Errors:
    """Relative errors against the exact result, in the Frobenius norm and in the largest element.

    Attributes:
        actual, plain: of the result and of the plain run: (Frobenius, largest).
        allowed: what `actual` may be at most.
    """

    actual: tuple[float, float]
    plain: tuple[float, float]
    allowed: tuple[float, float]

    @property
    def ok(self) -> bool:
        """Whether the rule holds. NaN never does."""
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
    """Errors of two results against an exact one.

    Args:
        actual: the result in question.
        plain: the same product by plain operations in the same precision.
        exact: float64.
        factor: how many times the error of `plain` is allowed.
        floor: an error that is allowed in any case, for a plain run of few sums can be exact by luck;
            None: four roundings of `actual`'s dtype, at least 1e-6.

    Raises:
        ValueError: shapes differ.
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
    """Raises AssertionError unless the rule holds; arguments as in `measure_errors`."""
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
    """A random matrix for tests, on the CPU.

    Args:
        rows, cols: shape.
        density: expected fraction of nonzeros in an ordinary row.
        weighted: standard normal values; False: none.
        hubs: this many rows with three quarters of all columns.
        empty_rows: fraction of the rows that is emptied.
        symmetric: symmetric structure (rows must equal cols).

    Raises:
        ValueError: a symmetric matrix that is not square.
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
