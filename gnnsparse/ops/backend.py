"""Which implementation an operation runs on, and the checks that all operations share."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_type, bad_value, check_choice, check_tensor
from gnnsparse.operand import SparseOperand
from gnnsparse.ops import cpu, cuda

__all__ = [
    "FLOATS",
    "IMPLS",
    "backend_of",
    "check_dense",
    "check_edges",
    "check_operand",
    "require_kernels",
    "resolve_impl",
]

#: Names that `impl=` accepts.
IMPLS = ("auto", "cuda", "cpu", "reference")
#: Dtypes of dense arguments. float64 is for impl="reference" alone.
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def backend_of(device: torch.device) -> ModuleType:
    """The module that runs operations on a device."""
    return cpu if device.type == "cpu" else cuda


def require_kernels(kind: str) -> None:
    """Raises RuntimeError where the native module has no kernels for this type of device."""
    if kind == "cuda" and not _native.has_cuda:
        raise RuntimeError(
            "gnnsparse was built without its CUDA kernels: build it again with GNNSPARSE_CUDA=on, or "
            "use impl='reference'"
        )


def resolve_impl(impl: Any, operand: SparseOperand) -> str:
    """ "reference", or the type of the operand's device.

    Raises:
        ValueError: the implementation can't run where the operand is.
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
    """Return `operand` if it is one, else raise."""
    if not isinstance(operand, SparseOperand):
        bad_type("A", operand, "a SparseOperand, from gnnsparse.prepare")
    return operand


def _dtypes(impl: str) -> tuple[torch.dtype, ...]:
    return (*FLOATS, torch.float64) if impl == "reference" else FLOATS


def check_dense(name: str, x: Any, operand: SparseOperand, rows: int, impl: str) -> torch.Tensor:
    """Return `x` if it is a [rows, any] matrix that goes with the operand, else raise."""
    return check_tensor(name, x, dtypes=_dtypes(impl), device=operand.device, shape=(rows, None))


def check_edges(name: str, values: Any, operand: SparseOperand, impl: str) -> torch.Tensor:
    """Return `values` if there is one for each nonzero of the operand, else raise."""
    return check_tensor(name, values, dtypes=_dtypes(impl), device=operand.device, shape=(operand.nnz,))
