"""Dense operands as the kernels read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from gnnsparse import _native
from gnnsparse.csr import address
from gnnsparse.cuda_path import path
from gnnsparse.precision import DTYPE_CODES, Precision, round_operand
from gnnsparse.tiles import VECTOR_BYTES, partial_width

__all__ = [
    "Loader", "aligned_values", "cpu_loader", "cuda_loader", "holding", "on_its_device", "partial_sums",
]  # fmt: skip

#: Gives a dense operand as the kernels read it, and its native view. Hold the tensor while the view is used.
Loader = Callable[[torch.Tensor], tuple[torch.Tensor, _native.Dense]]

_Call = TypeVar("_Call", bound=Callable[..., Any])


def cpu_loader(precision: Precision) -> Loader:
    """Gives a matrix rounded to the precision, each row contiguous, and its native view."""
    code = DTYPE_CODES[precision.storage]
    dtype, rounds = precision.storage, precision is Precision.TF32

    def load(x: torch.Tensor) -> tuple[torch.Tensor, _native.Dense]:
        if rounds or x.dtype is not dtype:
            x = round_operand(x, precision)
        row_stride, column_stride = x.stride()
        if column_stride != 1 or row_stride < x.shape[1]:
            x = x.contiguous()
            row_stride = x.shape[1]
        return x, _native.Dense(x.data_ptr(), row_stride, code)

    return load


def cuda_loader(
    precision: Precision, width: int, scale: torch.Tensor | None = None, *, rounds: bool = False
) -> Loader:
    """Brings X [rows, width], its rows times `scale`, into the storage dtype, every row in whole vectors.

    It is X itself where nothing has to be done. tf32 is rounded here where it `rounds`, otherwise inside the
    kernels.
    """
    dtype, code = precision.storage, DTYPE_CODES[precision.storage]
    per_vector = VECTOR_BYTES // dtype.itemsize
    padded = -(-width // per_vector) * per_vector

    def load(x: torch.Tensor) -> tuple[torch.Tensor, _native.Dense]:
        (row_stride, column_stride), data = x.stride(), x.data_ptr()
        ready = (
            scale is None
            and not rounds
            and x.dtype == dtype
            and column_stride == 1
            and row_stride % per_vector == 0
            and row_stride >= padded
            and data % VECTOR_BYTES == 0
        )
        gpu = path()
        if ready:
            return x, gpu.native.Dense(data, row_stride, code)
        rows, columns = x.shape
        packed = torch.empty(rows, padded, dtype=dtype, device=x.device)
        view = gpu.native.Dense(packed.data_ptr(), padded, code, rounds)
        gpu.native.cuda_pack(
            data, DTYPE_CODES[x.dtype], row_stride, column_stride, address(scale), rows, columns, view,
            gpu.stream(x.device),
        )  # fmt: skip
        return packed, view

    return load


def aligned_values(values: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Edge values in the storage dtype, contiguous from an address that is a multiple of a vector."""
    values = round_operand(values, precision).contiguous()
    return values if values.data_ptr() % VECTOR_BYTES == 0 else values.clone()


def partial_sums(count: int, rows: int, width: int, device: torch.device) -> torch.Tensor | None:
    """Workspace for `count` sums of `rows` cut rows, float32; rows are padded as the kernels do."""
    if count == 0:
        return None
    return torch.empty(count * rows * partial_width(width), dtype=torch.float32, device=device)


def on_its_device(device: torch.device, run: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`run` with `device` as the current one."""

    def call(*tensors: torch.Tensor | None) -> torch.Tensor:
        with path().current(device):
            return run(*tensors)

    return call


def holding(run: _Call, *objects: Any) -> _Call:
    """`run`, which keeps alive what it knows by address alone."""
    run.held = objects  # type: ignore[attr-defined]
    return run
