"""Helpers for tests of sparse products, in this project and in yours: random matrices, and the accuracy rule.

The rule: measured against a float64 result, the error of a kernel is at most twice the error of plain
PyTorch operations in the same precision. No tolerance is picked by hand.

A plain run can be exact by luck: its sums are in one order, which depends on the CPU. Therefore two more
errors are allowed, whatever the plain run has. One is a few roundings of the result. The other is what
float32 makes of the computation itself: `exact` is given as a function, and `rounding_errors` runs it in
float64 with random rounding errors in every operation. These depend on how many terms sums have and how
large they are, and they grow on their way to the result as real ones do: in a softmax of large scores, in a
difference that cancels.

A test that has no such function says with `scale` how large the terms of its sums are. A rounding error is
in proportion to them: a dot product of 80 terms whose result is a sixtieth of the sum of their absolute
values has an error of ten roundings of the result, computed in any order.

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
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from gnnsparse.sparse.graph import SparseGraph

__all__ = [
    "Errors", "assert_accurate", "assert_all_accurate", "in_float64", "measure_errors", "random_graph",
    "rounding_errors", "with_gradients",
]  # fmt: skip

_Module = TypeVar("_Module", bound=torch.nn.Module)
#: The size of one float32 rounding, as the root of the mean square: a relative error is at most half of eps.
_ROUNDING = torch.finfo(torch.float32).eps / 4
#: How many standard deviations of rounding errors are allowed.
_DEVIATIONS = 5.0
#: How often `rounding_errors` draws them.
_RUNS = 16
#: Operators of aten that add up products or numbers, and are linear in each of their tensors.
_SUMS = frozenset({"mm", "bmm", "mv", "dot", "sum", "index_add", "scatter_add", "cumsum"})
#: Operators that compute no new number.
_EXACT = frozenset({
    "_to_copy", "abs", "amax", "amin", "cat", "clamp", "clone", "copy", "copy_", "flip", "gather", "index",
    "index_copy", "index_select", "masked_fill", "masked_fill_", "maximum", "minimum", "neg", "relu",
    "repeat", "scatter", "scatter_reduce", "select_backward", "slice_backward", "stack", "tril", "triu",
    "where",
})  # fmt: skip


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


class _Roundings(TorchDispatchMode):
    """Adds random rounding errors of float32 to the results of operations in float64 inside a `with` block.

    A result that float32 holds has none. A sum of n terms has the errors of its partial sums, one term after
    another in any order: with T their total and Q the sum of their squares, the squares of the partial sums
    add up to n (T^2 / 3 + Q / 2) in the mean.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator("cpu").manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        terms = []
        if name.rstrip("_") in _SUMS:
            terms = [func(*tree_map(of, args), **tree_map(of, kwargs)) for of in (_squared, _counted)]
        result = func(*args, **kwargs)
        if not isinstance(result, torch.Tensor) or result.dtype != torch.float64 or result.numel() == 0:
            return result
        if func.is_view or name in _EXACT:
            return result
        size = result.abs()
        if terms:
            squares, counts = terms
            size = (counts * (result.square() / 3 + squares / 2)).sqrt()
        noise = torch.randn(result.shape, generator=self._generator, dtype=torch.float64, device="cpu")
        noise = noise.to(result.device) * torch.where(result == result.float(), 0.0, _ROUNDING * size)
        return result.add_(noise) if name.endswith("_") else result + noise


def _squared(x: Any) -> Any:
    """The squares of a floating-point tensor; anything else as it is."""
    return x.square() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def _counted(x: Any) -> Any:
    """1 for what is not 0 in a floating-point tensor; anything else as it is."""
    return (x != 0).to(x.dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def rounding_errors(compute: Callable[[], Iterable[torch.Tensor]]) -> list[torch.Tensor]:
    """Return the standard deviations of the float32 rounding errors of a computation, for each element.

    They are those of a computation whose every operation rounds, and whose sums are taken one term after
    another in any order. Roundings of operands to 16 bits are not among them. An operator of torch that
    computes in several steps, such as a layer norm, counts as one operation.

    Args:
        compute: a computation in float64 of torch's operations, gradients included. It runs several times,
            and has to compute the same each time.

    Returns:
        float64 tensors on the CPU, in the shapes of the results.
    """
    exact = [x.detach().cpu() for x in compute()]
    squares = [torch.zeros_like(x) for x in exact]
    for seed in range(_RUNS):
        with _Roundings(seed):
            found = [x.detach().cpu() for x in compute()]
        for total, x, right in zip(squares, found, exact, strict=True):
            total += (x - right).square() / _RUNS
    return [x.sqrt() for x in squares]


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
    rounding: torch.Tensor | None = None,
) -> Errors:
    """Measure the errors of a result and of a plain run against the exact result.

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
        rounding: what `rounding_errors` has found for the result; five times as much is always allowed.

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
    if rounding is not None:
        deviations = zip(floors, _sizes(rounding), _sizes(exact), strict=True)
        floors = [max(least, _DEVIATIONS * error / (size or 1.0)) for least, error, size in deviations]
    plain_errors = _relative(plain, exact)
    first, second = (max(factor * error, least) for error, least in zip(plain_errors, floors, strict=True))
    return Errors(_relative(actual, exact), plain_errors, (first, second))


def assert_accurate(
    actual: torch.Tensor,
    plain: torch.Tensor,
    exact: torch.Tensor | Callable[[], torch.Tensor],
    factor: float = 2.0,
    floor: float | None = None,
    *,
    scale: torch.Tensor | None = None,
) -> None:
    """Raise AssertionError unless the accuracy rule holds; the arguments are those of `measure_errors`.

    The tensors may be on different devices. `exact` may be a function that computes the result in float64:
    then its rounding errors in float32, as `rounding_errors` finds them, are allowed.

    Raises:
        AssertionError: an error of `actual` is larger than allowed.
        ValueError: the shapes differ.
    """
    every = (lambda: [exact()]) if callable(exact) else [exact]
    try:
        assert_all_accurate([actual], [plain], every, factor, floor, scales=[scale])
    except AssertionError as error:
        raise AssertionError(str(error).removeprefix("result 0: ")) from None


def assert_all_accurate(
    actual: Iterable[torch.Tensor],
    plain: Iterable[torch.Tensor],
    exact: Iterable[torch.Tensor] | Callable[[], Iterable[torch.Tensor]],
    factor: float = 2.0,
    floor: float | None = None,
    *,
    scales: Iterable[torch.Tensor | None] | None = None,
) -> None:
    """`assert_accurate` for each of several results, such as an output and its gradients.

    Args:
        actual: the results in question.
        plain: the results of plain PyTorch operations, as many.
        exact: the results in float64, as many, or a function that computes them, as in `assert_accurate`.
        factor: how many times the errors of `plain` are allowed.
        floor: a relative error that is always allowed; None: as in `measure_errors`.
        scales: for each result its `scale`, or None.

    Raises:
        AssertionError: the rule does not hold for one of them; the message has its number, from 0.
        ValueError: they are not equally many, or shapes differ.
    """
    right = [x.detach().cpu() for x in (exact() if callable(exact) else exact)]
    results = [(x.detach().cpu(), y.detach().cpu()) for x, y in zip(actual, plain, strict=True)]
    sizes = [None] * len(results) if scales is None else [None if x is None else x.cpu() for x in scales]
    rounding: list[torch.Tensor] | None = None
    for number, (pair, of, scale) in enumerate(zip(results, right, sizes, strict=True)):
        errors = measure_errors(*pair, of, factor, floor, scale=scale)
        if not errors.ok and callable(exact):
            rounding = rounding_errors(exact) if rounding is None else rounding
            errors = measure_errors(*pair, of, factor, floor, scale=scale, rounding=rounding[number])
        if not errors.ok:
            raise AssertionError(
                f"result {number}: relative error (Frobenius, largest) {errors.actual} exceeds "
                f"{errors.allowed}; a plain run has {errors.plain}"
            )


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
    """Make a module of float32 parameters and buffers a float64 one for a while; no value changes by it."""
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
    """Make a random matrix for tests, on the CPU.

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
