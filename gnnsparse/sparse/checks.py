"""Checks of index arrays on the CPU, which native code reads memory by.

They are for arrays that come from outside: from a cache file, or from code that a user registered. Each check
is one pass over its array. What fails is a ValueError that names the array.
"""

from __future__ import annotations

from typing import Any

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_value
from gnnsparse.sparse.csr import Csr

__all__ = [
    "check_ascending",
    "check_csr",
    "check_host_array",
    "check_indices",
    "check_offsets",
    "check_permutation",
]

_INDEX_DTYPES = (torch.int32, torch.int64)


def _dtype_names(dtypes: tuple[torch.dtype, ...]) -> str:
    return " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def check_host_array(
    name: str, array: Any, dtypes: tuple[torch.dtype, ...], count: int | None = None
) -> torch.Tensor:
    """Returns `array` if it is a contiguous tensor [count] on the CPU, of one of the dtypes; else raises.

    Raises:
        ValueError: it is something else. `count` None accepts any length.
    """
    accepted = f"{_dtype_names(dtypes)} [{'any' if count is None else count}], contiguous, on the CPU"
    if not isinstance(array, torch.Tensor) or array.layout != torch.strided:
        bad_value(name, f"got {type(array).__name__}; accepted: {accepted}")
    right = array.dtype in dtypes and array.dim() == 1 and (count is None or array.numel() == count)
    if not right or not array.is_contiguous() or array.device.type != "cpu":
        got = f"{_dtype_names((array.dtype,))} {list(array.shape)} on {array.device}"
        bad_value(name, f"got {got}; accepted: {accepted}")
    return array


def check_indices(name: str, indices: torch.Tensor, limit: int) -> None:
    """Raises ValueError if an element of an int32 or int64 array is outside [0, limit)."""
    check_host_array(name, indices, _INDEX_DTYPES)
    at = _native.first_out_of_range(indices, limit, torch.get_num_threads())
    if at >= 0:
        accepted = f"0 to {limit - 1}" if limit > 0 else "nothing"
        bad_value(name, f"element {at} is {int(indices[at])}; accepted: {accepted}")


def check_offsets(name: str, offsets: torch.Tensor, last: int) -> None:
    """Raises ValueError unless an int64 array begins with 0, never decreases and ends with `last`."""
    check_host_array(name, offsets, (torch.int64,))
    if offsets.numel() == 0:
        bad_value(name, "is empty; accepted: at least one offset")
    first, end = int(offsets[0]), int(offsets[-1])
    if first != 0 or end != last:
        bad_value(name, f"runs from {first} to {end}; accepted: 0 to {last}")
    at = _native.first_decreasing(offsets, torch.get_num_threads())
    if at >= 0:
        bad_value(name, f"decreases after element {at}; accepted: offsets that never decrease")


def check_ascending(name: str, indices: torch.Tensor, limit: int, step: int = 1) -> None:
    """Raises ValueError unless each index is in [0, limit) and at least `step` above the one before it."""
    check_indices(name, indices, limit)
    close = (indices.diff() < step).nonzero()
    if close.numel():
        bad_value(
            name, f"element {int(close[0])} is too close to the next; accepted: steps of {step} or more"
        )


def check_permutation(name: str, indices: torch.Tensor, count: int) -> None:
    """Raises ValueError unless an int32 or int64 array holds each number below `count` once."""
    check_host_array(name, indices, _INDEX_DTYPES, count)
    if not _native.is_permutation(indices, torch.get_num_threads()):
        check_indices(name, indices, count)
        bad_value(name, f"repeats an element; accepted: each number below {count} once")


def check_csr(name: str, csr: Csr) -> None:
    """Raises ValueError unless a matrix is in canonical CSR form: valid offsets, ascending columns in range.

    Args:
        name: the name of the matrix in errors.
        csr: the matrix.
    """
    indptr, indices = f"{name}.indptr", f"{name}.indices"
    check_host_array(indptr, csr.indptr, (torch.int64,))
    check_host_array(indices, csr.indices, (torch.int32,))
    check_offsets(indptr, csr.indptr, csr.nnz)
    check_indices(indices, csr.indices, csr.cols)
    if not _native.is_canonical(csr.indptr, csr.indices, torch.get_num_threads()):
        bad_value(indices, "do not ascend in a row; accepted: ascending columns without repeats")
