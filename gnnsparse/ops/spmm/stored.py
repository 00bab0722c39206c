"""Features that are stored in 8 bits once, for any number of products."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from gnnsparse.errors import bad_type, bad_value, check_choice, check_integer
from gnnsparse.ops.common import check_dense, check_operand, resolve_impl
from gnnsparse.ops.quantization import StoredX, as_numbers, store
from gnnsparse.ops.spmm.quantized import bind_stored
from gnnsparse.plan import Plan
from gnnsparse.plan.choose import kernel_of
from gnnsparse.precision import Precision
from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import is_direct
from gnnsparse.sparse.operand import SparseOperand

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["StoredFeatures", "multiply_stored", "store_features"]


class StoredFeatures:
    """A matrix X in 8 bits, as an operand's SpMM reads it; made by `gnnsparse.store_features`.

    `A @ stored` and `gnnsparse.spmm(A, stored)` are the products with the X that it was made from, bit for
    bit, without the time that rounding X takes. The column weights of a rank-1 A are in it, so that it
    goes with A alone; without such weights it goes with every operand of the precision and of k columns.

    Attributes:
        shape: (k, n).
        dtype: the dtype of X, and of the products.
        precision: int8 or fp8.
    """

    def __init__(
        self, stored: StoredX, shape: tuple[int, int], dtype: torch.dtype, precision: Precision,
        weights: torch.Tensor | None,
    ) -> None:  # fmt: skip
        self.shape, self.dtype, self.precision = torch.Size(shape), dtype, precision
        self._stored, self._weights = stored, weights

    @property
    def device(self) -> torch.device:
        """The device that it is on."""
        return self._stored.numbers.device

    @property
    def nbytes(self) -> int:
        """Bytes of its memory: one for an element, rows padded to 16, and four for the scale of a feature."""
        return self._stored.numbers.nbytes + self._stored.scale.nbytes

    def dequantize(self) -> torch.Tensor:
        """Returns what is stored, [k, n] in its dtype, without the column weights of A.

        A row whose column weight is 0 is NaN: nothing of it is stored.
        """
        wide = as_numbers(self._stored, self.shape[1]) * self._stored.scale[: self.shape[1]]
        return (wide if self._weights is None else wide / self._weights[:, None]).to(self.dtype)

    def __repr__(self) -> str:
        rows, columns = self.shape
        return (
            f"StoredFeatures({rows} x {columns}, {self.precision.value}, dtype={self.dtype}, "
            f"device='{self.device}')"
        )

    def __rmatmul__(self, A: SparseOperand) -> torch.Tensor:  # noqa: N803
        return multiply_stored(A, self, None, "sum", "auto", None, None)

    def __copy__(self) -> Self:
        return self  # nothing changes it

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("StoredFeatures can't be pickled; store X again where it is loaded")


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Returns a context manager inside which a GPU is the current one."""
    return path().current(device) if path().takes(device) else nullcontext()


def _require_quantized(operand: SparseOperand) -> Precision:
    """Returns the precision in which an operand stores X; raises ValueError if that is not one of 8 bits."""
    if not operand.precision.quantizes:
        bad_value("A", f"is in {operand.precision.value}; accepted: an operand in int8 or fp8")
    if operand.operations is not None:
        bad_value("A", "has products of its own; accepted: an operand from gnnsparse.prepare")
    return operand.precision


def store_features(A: SparseOperand, x: torch.Tensor, *, seed: int | None = None) -> StoredFeatures:  # noqa: N803
    """Rounds a matrix X to the 8 bits of an operand's precision once, for products that repeat.

    A product `A @ x` in int8 or fp8 reads X twice to round it, which takes as long as the product itself on a
    graph with few neighbours. Where X does not change between products, as the features of a data set do not,
    that time is saved: `A @ gnnsparse.store_features(A, x)` is `A @ x` bit for bit.

    Args:
        A: operand made by `gnnsparse.prepare` in the precision int8 or fp8, of shape [m, k]. Its column
            weights are multiplied into X first.
        x: [k, n], float32, float16 or bfloat16, any strides, on A's device. It gets no gradient.
        seed: numbers are rounded up or down at random, so that their mean is X; None: to nearest.

    Returns:
        What `A @ ...` and `gnnsparse.spmm` take in place of X, on A's device.

    Raises:
        TypeError: an argument is of another type or dtype.
        ValueError: A is in another precision, x has another shape, is on another device or requires a
            gradient, or a transform of torch.func or torch.compile is active.
        RuntimeError: the native module was built without CUDA and A is on a GPU.
    """
    precision = _require_quantized(check_operand(A))
    if seed is not None:
        check_integer("seed", seed, least=0, accepted="an integer from 0 to 2^63 - 1")
    if not is_direct():
        bad_value("x", "a transform of torch.func or torch.compile is active; accepted: a call outside of it")
    kind = resolve_impl("auto", A)
    x = check_dense("x", x, A, A.shape[1], kind)
    if x.requires_grad and torch.is_grad_enabled():
        bad_value("x", "requires a gradient, which stored features do not pass on; accepted: x.detach()")
    weights = A.kernels.given_col_scale
    with torch.no_grad(), _current(x.device):
        stored = store(x, precision, weights, seed)
    return StoredFeatures(stored, (x.shape[0], x.shape[1]), x.dtype, precision, weights)


def multiply_stored(
    operand: Any, stored: StoredFeatures, values: Any, reduce: Any, impl: Any, plan: Plan | None, seed: Any
) -> torch.Tensor:
    """Computes SpMM of stored features; the arguments are those of `spmm`.

    Raises:
        TypeError: `operand` or an option is of another type.
        ValueError: the features don't go with the operand, or an option has no meaning for them.
    """
    operand = check_operand(operand)
    precision, kernels = _require_quantized(operand), operand.kernels
    check_choice("reduce", reduce, ("sum", "mean", "max", "min"))
    if reduce in ("max", "min"):
        bad_value("reduce", f"got {reduce!r} with stored features; accepted: 'sum', 'mean'")
    for name, value in (("values", values), ("seed", seed)):
        if value is not None:
            bad_value(name, "is given with features that are stored already; accepted: None")
    if resolve_impl(impl, operand) == "reference":
        bad_value("impl", "got 'reference' with stored features; accepted: 'auto' or the operand's device")
    if stored.precision is not precision:
        bad_value("x", f"is stored in {stored.precision.value}; accepted: {precision.value}, as A is in")
    if stored.shape[0] != operand.shape[1]:
        bad_value("x", f"has shape {tuple(stored.shape)}; accepted: ({operand.shape[1]}, any)")
    if stored.device != operand.device:
        bad_value("x", f"is on {stored.device}; accepted: {operand.device}, where the operand is")
    if kernels.given_col_scale is not stored._weights:
        bad_value(
            "x", "was stored with other column weights; accepted: gnnsparse.store_features(A, x) of this A"
        )
    if plan is not None:
        kernel_of("spmm", plan)
    if not is_direct():
        bad_type("x", stored, "a tensor inside transforms of torch.func and torch.compile")
    multiply = bind_stored(kernels, stored.shape[1], stored.dtype, False, plan, reduce == "mean")
    with _current(operand.device):
        return multiply(stored._stored, None)
