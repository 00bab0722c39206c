"""Conversion of dense operands to the dtype and layout that the kernels read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from gnnsparse import _native
from gnnsparse.precision import Precision, round_operand
from gnnsparse.runtime.device import (
    SECTOR_BYTES,
    SLICE_BYTES,
    VECTOR_BYTES,
    partial_width,
    path,
)

#: Converts a dense operand to what the kernels of a GPU read, and returns its native handle.
Loader = Callable[[torch.Tensor], _native.Dense]


def padded_width(width: int, dtype: torch.dtype) -> int:
    """Return the stride at which rows begin at 32-byte sectors, or shorter ones at 16-byte vectors."""
    unit = SECTOR_BYTES if width * dtype.itemsize >= SECTOR_BYTES else VECTOR_BYTES
    per_unit = unit // dtype.itemsize
    return -(-width // per_unit) * per_unit


def has_padded_rows(x: torch.Tensor) -> bool:
    """Return whether the rows of a matrix have the stride `padded_width`, and are not contiguous."""
    width = x.shape[1]
    return x.stride() == (padded_width(width, x.dtype), 1) and not x.is_contiguous()


def empty_padded(like: torch.Tensor, rows: int, width: int) -> torch.Tensor:
    """Allocate a matrix of the dtype and on the device of `like` whose rows have the stride `padded_width`.

    It is no view to autograd, so that what a step of it returns may be changed in place.
    """
    return like.new_empty(rows, padded_width(width, like.dtype))[:, :width].detach()


def padded_rows(x: torch.Tensor) -> torch.Tensor:
    """Return x [rows, width] if its rows have the stride `padded_width`, else a copy whose rows have it."""
    if has_padded_rows(x) or (x.is_contiguous() and padded_width(x.shape[1], x.dtype) == x.shape[1]):
        return x
    return empty_padded(x, *x.shape).copy_(x)


def new_result(x: torch.Tensor, rows: int) -> torch.Tensor:
    """Allocate A x [rows, width], with padded rows if x has them."""
    return empty_padded(x, rows, x.shape[1]) if has_padded_rows(x) else x.new_empty(rows, x.shape[1])


def cpu_loader(precision: Precision) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a loader for the CPU: it rounds a matrix to the precision and makes its rows contiguous."""
    dtype, rounds = precision.storage, precision is Precision.TF32

    def load(x: torch.Tensor) -> torch.Tensor:
        if rounds or x.dtype is not dtype:
            x = round_operand(x, precision)
        if x.is_contiguous():
            return x
        row_stride, column_stride = x.stride()
        return x if column_stride == 1 and row_stride >= x.shape[1] else x.contiguous()

    return load


class CudaLoader:
    """A loader for GPUs: it converts X to the storage dtype and pads rows to whole vectors.

    X itself is returned if it already has the dtype, the alignment and no scale. Rows of several slices are
    padded to whole sectors at least: otherwise each slice of every other row would touch one sector more.
    They become multiples of `whole` bytes, which pays where each is read often; rows of up to `unpacked`
    bytes count as one slice there. `scale`, float32 [rows], are factors of X's rows; with `rounds` it rounds
    to TF32. `as_is`, if not 0: the kernel reads rows of multiples of so many bytes as they are.
    """

    def __init__(
        self, precision: Precision, width: int, scale: torch.Tensor | None = None, *, rounds: bool = False,
        whole: int = VECTOR_BYTES, unpacked: int = SLICE_BYTES, as_is: int = 0,
    ) -> None:  # fmt: skip
        self.dtype = dtype = precision.storage
        self.scale, self.rounds = scale, rounds
        per_vector, per_unit = VECTOR_BYTES // dtype.itemsize, max(whole, SECTOR_BYTES) // dtype.itemsize
        in_units = width * dtype.itemsize > unpacked
        self.padded = -(-width // per_vector) * per_vector
        self.packed = -(-width // per_unit) * per_unit if in_units else self.padded
        self.aligned = whole if in_units else VECTOR_BYTES
        if as_is and width * dtype.itemsize % as_is == 0:
            self.padded, self.aligned = width, as_is

    def __call__(self, x: torch.Tensor) -> _native.Dense:
        """Return the native handle of X, or of a copy."""
        dtype, aligned, gpu = self.dtype, self.aligned, path()
        row_stride, column_stride = x.stride()
        ready = (
            self.scale is None
            and not self.rounds
            and x.dtype == dtype
            and column_stride == 1
            and row_stride * dtype.itemsize % aligned == 0
            and row_stride >= self.padded
            and x.data_ptr() % aligned == 0
        )
        if ready:
            return gpu.native.Dense(x)
        empty = torch.empty(x.shape[0], self.packed, dtype=dtype, device=x.device)
        view = gpu.native.Dense(empty, self.rounds)
        gpu.native.cuda_pack(x, self.scale, view, gpu.stream(x.device))
        return view

    def layout(self) -> Any:
        """Return what native code needs to do the same by itself."""
        return path().native.XLayout(self.padded, self.packed, self.aligned, self.scale, self.rounds)


def aligned_values(values: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Return edge values rounded to the storage dtype, contiguous and aligned to VECTOR_BYTES."""
    values = round_operand(values, precision).contiguous()
    return values if values.data_ptr() % VECTOR_BYTES == 0 else values.clone()


def partial_sums(count: int, rows: int, width: int, device: torch.device) -> torch.Tensor | None:
    """Allocate float32 memory for `count` partial results of `rows` padded rows; None if `count` is 0."""
    if count == 0:
        return None
    return torch.empty(count * rows * partial_width(width), dtype=torch.float32, device=device)


def current(device: torch.device) -> AbstractContextManager[Any]:
    """Make `device` the current GPU inside a `with` block, if it is a GPU."""
    return path().current(device) if path().takes(device) else nullcontext()


def on_its_device(device: torch.device, run: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a function that calls `run` with `device` as the current GPU."""

    def call(*tensors: torch.Tensor | None) -> torch.Tensor:
        with path().current(device):
            return run(*tensors)

    return call
