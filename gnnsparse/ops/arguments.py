"""Checks of arguments that all operations share."""

from __future__ import annotations

import math
from typing import Any

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_type, bad_value, check_choice, check_memory, check_tensor
from gnnsparse.runtime.functorch import materialised
from gnnsparse.sparse.operand import SparseOperand

#: Names that `impl=` accepts.
IMPLS = ("auto", "cuda", "cpu", "reference")
#: Dtypes of dense arguments; impl="reference" accepts float64 as well.
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
#: Bytes of a result from which on they are compared with the machine's memory.
_LARGE = 1 << 28


def require_kernels(kind: str) -> None:
    """Raise RuntimeError if the native module has no kernels for devices of type `kind`."""
    if kind == "cuda" and not _native.has_cuda:
        raise RuntimeError(
            "gnnsparse was built without its CUDA kernels: build it again with GNNSPARSE_CUDA=on, or "
            "use impl='reference'"
        )


def resolve_impl(impl: Any, operand: SparseOperand, kernels: tuple[str, ...] = ()) -> str:
    """Return "reference", or the type of the operand's device, after checking that `impl` can run there.

    `kernels`: names of kernels that `impl` may have too, which the caller checks.
    """
    check_choice("impl", impl, (*IMPLS, *kernels))
    kind = operand.device.type
    if impl == "reference":
        return impl
    if impl not in ("auto", kind, *kernels):
        bad_value("impl", f"{impl!r} can't run: the operand is on {operand.device}")
    require_kernels(kind)
    if kind not in ("cpu", "cuda"):
        bad_value("operand", f"is on {operand.device}; accepted: cpu, cuda, or impl='reference'")
    return kind


def check_operand(operand: Any) -> SparseOperand:
    """Return `operand` if it is a SparseOperand, else raises TypeError."""
    if not isinstance(operand, SparseOperand):
        bad_type("A", operand, "a SparseOperand, from gnnsparse.prepare")
    return operand


def dtypes_of(impl: str) -> tuple[torch.dtype, ...]:
    """Return the dtypes of dense arguments that `impl` accepts."""
    return (*FLOATS, torch.float64) if impl == "reference" else FLOATS


def check_features(
    name: str, x: Any, operand: SparseOperand, rows: int, impl: str, heads: bool = True
) -> torch.Tensor:
    """Return `x` if it is [rows, any] or [rows, heads, any], on A's device and of a dtype of `impl`."""
    by_head = heads and isinstance(x, torch.Tensor) and x.dim() == 3
    shape = (rows, None, None) if by_head else (rows, None)
    check_tensor(name, x, dtypes=dtypes_of(impl), device=operand.device, shape=shape)
    check_fits(name, x.movedim(1, 0) if by_head else x, operand)
    return materialised(x)


def check_fits(name: str, x: torch.Tensor, operand: SparseOperand) -> None:
    """Raise MemoryError if rows as wide as those of `x`, one for each row and column, don't fit the CPU."""
    if torch.compiler.is_compiling() or x.device.type != "cpu":
        return
    # An expanded tensor has that many elements without their memory; a kernel reads a copy.
    nbytes = 4 * math.prod(x.shape[:-2]) * max(operand.shape) * x.shape[-1]
    if nbytes >= _LARGE:
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
    """Return `values` if they are [nnz], or [nnz, heads] where heads may be, and on A's device."""
    by_head = (any_heads or heads is not None) and isinstance(values, torch.Tensor) and values.dim() == 2
    shape = (operand.nnz, heads) if by_head else (operand.nnz,)
    check_tensor(name, values, dtypes=dtypes_of(impl), device=operand.device, shape=shape)
    return materialised(values)
