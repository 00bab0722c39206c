"""Checks of arguments that all operations share, and helpers that pick the path of a call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_type, bad_value, check_choice, check_memory, check_tensor
from gnnsparse.precision import Precision, round_operand
from gnnsparse.runtime.functorch import settled
from gnnsparse.sparse.operand import SparseOperand

__all__ = [
    "FLOATS", "IMPLS", "check_dense", "check_edges", "check_features", "check_fits", "check_operand",
    "direct", "exact_rounded", "form_of", "is_plain", "needs_grad", "require_kernels", "resolve_impl",
]  # fmt: skip

#: Names that `impl=` accepts.
IMPLS = ("auto", "cuda", "cpu", "reference")
#: Dtypes of dense arguments; impl="reference" accepts float64 as well.
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_PLAIN = (torch.Tensor, torch.nn.Parameter)


#: Elements, or columns, from which on a dense argument is compared with the machine's memory.
_WIDE = 1 << 26


def require_kernels(kind: str) -> None:
    """Raises RuntimeError if the native module has no kernels for devices of type `kind`."""
    if kind == "cuda" and not _native.has_cuda:
        raise RuntimeError(
            "gnnsparse was built without its CUDA kernels: build it again with GNNSPARSE_CUDA=on, or "
            "use impl='reference'"
        )


def resolve_impl(impl: Any, operand: SparseOperand) -> str:
    """Returns the implementation to use: "reference", or the type of the operand's device.

    Raises:
        TypeError: `impl` is no string.
        ValueError: `impl` is unknown, or can't run on the operand's device.
        RuntimeError: the native module was built without CUDA.
    """
    check_choice("impl", impl, IMPLS)
    kind = operand.device.type
    if impl == "reference":
        return impl
    if impl != "auto" and impl != kind:
        bad_value("impl", f"{impl!r} can't run: the operand is on {operand.device}")
    require_kernels(kind)
    if kind not in ("cpu", "cuda"):
        bad_value("operand", f"is on {operand.device}; accepted: cpu, cuda, or impl='reference'")
    return kind


def check_operand(operand: Any) -> SparseOperand:
    """Returns `operand` if it is a SparseOperand, else raises TypeError."""
    if not isinstance(operand, SparseOperand):
        bad_type("A", operand, "a SparseOperand, from gnnsparse.prepare")
    return operand


def _dtypes(impl: str) -> tuple[torch.dtype, ...]:
    return (*FLOATS, torch.float64) if impl == "reference" else FLOATS


def check_dense(name: str, x: Any, operand: SparseOperand, rows: int, impl: str) -> torch.Tensor:
    """Returns `x` if it is a matrix [rows, any], on the operand's device and of a dtype that `impl` takes.

    Its numbers are in its memory: negative views are computed.

    Raises:
        TypeError, ValueError: it is something else.
        MemoryError: it is too wide for this machine.
    """
    check_tensor(name, x, dtypes=_dtypes(impl), device=operand.device, shape=(rows, None))
    check_fits(name, x, operand)
    return settled(x)


def check_features(name: str, x: Any, operand: SparseOperand, rows: int, impl: str) -> torch.Tensor:
    """As `check_dense`, of a matrix [rows, any] or of features in heads, [rows, heads, any]."""
    if not isinstance(x, torch.Tensor) or x.dim() != 3:
        return check_dense(name, x, operand, rows, impl)
    check_tensor(name, x, dtypes=_dtypes(impl), device=operand.device, shape=(rows, None, None))
    check_fits(name, x.movedim(1, 0), operand)
    return settled(x)


def check_fits(name: str, x: torch.Tensor, operand: SparseOperand) -> None:
    """Raises MemoryError if rows as wide as those of `x`, one for each row and column, don't fit on the CPU.

    A tensor that was expanded has that many elements without their memory; a kernel reads a copy.
    """
    if torch.compiler.is_compiling():
        return
    width = x.shape[-1]
    if (width < _WIDE and x.numel() < _WIDE) or x.device.type != "cpu":
        return
    nbytes = 4 * math.prod(x.shape[:-2]) * max(operand.shape) * width
    which = f"{name} of shape {tuple(x.shape)} with this A of {operand.shape[0]} x {operand.shape[1]}"
    check_memory(name, nbytes, which)


def check_edges(
    name: str,
    values: Any,
    operand: SparseOperand,
    impl: str,
    *,
    heads: int | None = None,
    any_heads: bool = False,
) -> torch.Tensor:
    """Returns `values` if they are [nnz], on the operand's device and of a dtype that `impl` takes.

    Their numbers are in their memory: negative views are computed.

    Args:
        name: the argument's name.
        values: the argument.
        operand: the operand.
        impl: the implementation.
        heads: [nnz, heads] is accepted too; None: it is not.
        any_heads: [nnz, any] is accepted too.
    """
    by_head = (any_heads or heads is not None) and isinstance(values, torch.Tensor) and values.dim() == 2
    shape = (operand.nnz, heads) if by_head else (operand.nnz,)
    check_tensor(name, values, dtypes=_dtypes(impl), device=operand.device, shape=shape)
    return settled(values)


def is_plain(*tensors: torch.Tensor | None) -> bool:
    """Returns whether a native kernel can read the memory of all tensors now.

    False while torch.compile traces, and for subclasses of Tensor, whose calls go through torch.library.
    """
    if torch.compiler.is_compiling():
        return False
    for t in tensors:  # noqa: SIM110  (`all` takes several times as long)
        if t is not None and type(t) not in _PLAIN:
            return False
    return True


def needs_grad(*tensors: torch.Tensor | None) -> bool:
    """Returns whether autograd records an operation on the tensors."""
    if torch.is_grad_enabled():
        for t in tensors:
            if t is not None and t.requires_grad:
                return True
    return False


def form_of(t: torch.Tensor) -> tuple[torch.dtype, torch.Size, torch.device] | None:
    """Returns what checks of a dense tensor depend on.

    None: `t` has another layout, is of a subclass of Tensor, or its numbers are not in its memory.
    """
    if type(t) not in _PLAIN or t.layout is not torch.strided or t.is_nested:
        return None
    if not (t.is_neg() or t._is_zerotensor()):
        return t.dtype, t.shape, t.device
    return None


def direct(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Returns a faster `function.apply`, which does not inspect the signature of `forward`.

    torch inspects it anew in each call, which takes longer than the rest of `apply`. Only the transforms of
    torch.func need it. Inside them the operations call another function's `apply`, which has their rules.
    """
    quick: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return quick


class _StraightThrough(torch.autograd.Function):
    """Rounds to the precision; the gradient passes unchanged, as through a cast."""

    @staticmethod
    def forward(x: torch.Tensor, precision: Precision) -> torch.Tensor:
        return round_operand(settled(x), precision).float()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, _: Any) -> Any:
        return tangent

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: torch.Tensor, precision: Precision) -> Any:
        return _StraightThrough.apply(x, precision), in_dims[0]


def exact_rounded(x: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Rounds an operand of the reference to the precision, in float32; returns float64 as it is.

    Differentiable; the gradient passes unchanged.
    """
    if x.dtype == torch.float64 or precision is Precision.FP32:
        return x if x.dtype == torch.float64 else x.float()
    return _StraightThrough.apply(x.float(), precision)
