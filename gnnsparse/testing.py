"""Helpers for tests of sparse products, in this project and in yours: random matrices, and the accuracy rule.

The rule: measured against a float64 result, the error of a kernel is at most twice the error of plain
PyTorch operations in the same precision. No tolerance is picked by hand.

A plain run of a few sums can be exact by luck. For this case the rule has a floor: an error of a few
roundings is always allowed. A rounding error is in proportion to the terms of a sum and not to its
result, though: where the terms cancel, an ordinary error is large beside the result. A dot product of 80
terms whose result is a sixtieth of the sum of their absolute values has an error of ten roundings of the
result, computed in any order. Over many elements this evens out. A test with a handful of elements says
with `scale` how large the terms are, and the floor is then in proportion to that.

What consists of more than one product (a layer, a model, a training run) is compared in this way too:
`with_gradients` runs a function with all its gradients, once as it is in question, once by plain operations
and once by those in float64 (`in_float64` for a module), and `assert_all_accurate` compares the lists.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from gnnsparse.graph import SparseGraph

__all__ = [
    "Errors",
    "assert_accurate",
    "assert_all_accurate",
    "in_float64",
    "measure_errors",
    "random_graph",
    "with_gradients",
]

_Module = TypeVar("_Module", bound=torch.nn.Module)


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


def _sizes(x: torch.Tensor) -> tuple[float, float]:
    """The Frobenius norm and the largest absolute value."""
    return float(x.norm()), float(x.abs().max())


def _relative(result: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    errors = _sizes(result.detach().double() - exact)
    frobenius, largest = (error / (size or 1.0) for error, size in zip(errors, _sizes(exact), strict=True))
    return frobenius, largest


def measure_errors(
    actual: torch.Tensor,
    plain: torch.Tensor,
    exact: torch.Tensor,
    factor: float = 2.0,
    floor: float | None = None,
    *,
    scale: torch.Tensor | None = None,
) -> Errors:
    """Measures the errors of a result and of a plain run against the exact result.

    Args:
        actual: the result in question.
        plain: the result of plain PyTorch operations in the precision of `actual`, of its shape.
        exact: the result in float64, of the shape of `actual`.
        factor: how many times the error of `plain` is allowed.
        floor: a relative error that is always allowed, because a plain run of few sums can be exact by
            luck; None: four roundings of `actual`'s dtype, at least 1e-6.
        scale: for sums that may cancel: the root of the sum of the squares of each element's terms, which
            is how large the element is when the signs of its terms are random. The floor is relative to
            this size where it exceeds that of `exact`; a sum that does not cancel is judged as without it.

    Raises:
        ValueError: the shapes differ.
    """
    if not actual.shape == plain.shape == exact.shape:
        raise ValueError(f"actual: shapes differ: {actual.shape}, {plain.shape}, {exact.shape}")
    if scale is not None and scale.shape != exact.shape:
        raise ValueError(f"scale: has shape {tuple(scale.shape)}; accepted: {tuple(exact.shape)}, as exact")
    if exact.numel() == 0:
        return Errors((0.0, 0.0), (0.0, 0.0), (0.0, 0.0))
    if floor is None:
        floor = max(4 * torch.finfo(actual.dtype).eps, 1e-6)
    exact = exact.detach().double()
    floors = [floor, floor]
    if scale is not None:
        sizes = zip(_sizes(scale.detach().double()), _sizes(exact), strict=True)
        floors = [floor * (max(terms / size, 1.0) if size else terms) for terms, size in sizes]
    plain_errors = _relative(plain, exact)
    first, second = (max(factor * error, least) for error, least in zip(plain_errors, floors, strict=True))
    return Errors(_relative(actual, exact), plain_errors, (first, second))


def assert_accurate(
    actual: torch.Tensor,
    plain: torch.Tensor,
    exact: torch.Tensor,
    factor: float = 2.0,
    floor: float | None = None,
    *,
    scale: torch.Tensor | None = None,
) -> None:
    """Raises AssertionError unless the accuracy rule holds; the arguments are those of `measure_errors`.

    The tensors may be on different devices.

    Raises:
        AssertionError: an error of `actual` is larger than allowed.
        ValueError: the shapes differ.
    """
    on_cpu = (actual.detach().cpu(), plain.detach().cpu(), exact.detach().cpu())
    sizes = None if scale is None else scale.cpu()
    errors = measure_errors(*on_cpu, factor=factor, floor=floor, scale=sizes)
    if not errors.ok:
        raise AssertionError(
            f"relative error (Frobenius, largest) {errors.actual} exceeds {errors.allowed}; "
            f"a plain run has {errors.plain}"
        )


def assert_all_accurate(
    actual: Iterable[torch.Tensor],
    plain: Iterable[torch.Tensor],
    exact: Iterable[torch.Tensor],
    factor: float = 2.0,
    floor: float | None = None,
    *,
    scales: Iterable[torch.Tensor | None] | None = None,
) -> None:
    """`assert_accurate` for each of several results, such as an output and its gradients.

    Args:
        actual: the results in question.
        plain: the results of plain PyTorch operations, as many.
        exact: the results in float64, as many.
        factor: how many times the errors of `plain` are allowed.
        floor: a relative error that is always allowed; None: as in `measure_errors`.
        scales: for each result its `scale`, or None.

    Raises:
        AssertionError: the rule does not hold for one of them; the message has its number, from 0.
        ValueError: they are not equally many, or shapes differ.
    """
    results = list(zip(actual, plain, exact, strict=True))
    sizes = [None] * len(results) if scales is None else list(scales)
    for number, ((result, simple, right), scale) in enumerate(zip(results, sizes, strict=True)):
        try:
            assert_accurate(result, simple, right, factor, floor, scale=scale)
        except AssertionError as error:
            raise AssertionError(f"result {number}: {error}") from None


def with_gradients(
    function: Callable[..., torch.Tensor],
    inputs: Sequence[torch.Tensor],
    parameters: Iterable[torch.Tensor] = (),
) -> list[torch.Tensor]:
    """A function's result, and its gradients for one random gradient of the result.

    The gradient of the result is the same in every call for a shape, whatever the dtype and the device, so
    that two calls of functions that compute the same thing can be compared element by element.

    Args:
        function: of `inputs`, gives one floating-point tensor.
        inputs: floating-point; copies of them get gradients.
        parameters: what else to differentiate by, such as `module.parameters()`.

    Returns:
        The result, then the gradient of each input and of each parameter.
    """
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    result = function(*leaves)
    probe = torch.randn(
        result.shape, dtype=torch.float32, device="cpu", generator=torch.Generator("cpu").manual_seed(0)
    )
    grads = torch.autograd.grad(result, [*leaves, *parameters], probe.to(result))
    return [result.detach(), *grads]


@contextlib.contextmanager
def in_float64(module: _Module) -> Iterator[_Module]:
    """Makes a module of float32 parameters and buffers a float64 one for a while; no value changes by it."""
    try:
        yield module.double()
    finally:
        module.float()


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
        rows: number of rows.
        cols: number of columns.
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
    generator = torch.Generator("cpu").manual_seed(seed)
    on_cpu: Any = {"generator": generator, "dtype": torch.float32, "device": "cpu"}
    mask = torch.rand(rows, cols, **on_cpu) < density
    if rows and hubs:
        chosen = torch.randperm(rows, generator=generator, device="cpu")[:hubs]
        mask[chosen] |= torch.rand(chosen.numel(), cols, **on_cpu) < 0.75
    mask[torch.rand(rows, **on_cpu) < empty_rows] = False
    if symmetric:
        mask |= mask.T.clone()
    row, col = mask.nonzero(as_tuple=True)
    values = torch.randn(row.numel(), **on_cpu) if weighted else None
    return SparseGraph.from_edge_index(torch.stack([col, row]), (cols, rows), values)
