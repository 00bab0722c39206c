"""Rows of an operand, chosen by a slice, by their numbers or by a mask, as a prepared matrix of their own."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from gnnsparse.errors import bad_type, bad_value, check_array, check_device
from gnnsparse.formats.csr import index_dtype
from gnnsparse.preprocess.prepare import Prepared, inverse, transpose_of, with_format
from gnnsparse.runtime.functorch import unwrapped
from gnnsparse.sparse.graph import check_range, index_tensor
from gnnsparse.sparse.operand_core import OperandCore
from gnnsparse.sparse.oriented import Oriented

__all__ = ["row_numbers", "select_rows"]

_ACCEPTED = (
    "a slice, row numbers (int32 or int64 [k]) or a mask (bool [rows]); one row is A[i : i + 1], and columns "
    "are A.T[columns].T"
)
_MOST_ROWS = 2**31 - 1


def row_numbers(rows: Any, count: int, device: torch.device) -> torch.Tensor:
    """Returns the numbers of chosen rows, int64 [k] on `device`.

    Args:
        rows: a slice; row numbers from -count to count - 1, in any order, with repeats or without; or a bool
            mask [count]. Numbers and masks are tensors, arrays or lists.
        count: number of rows to choose from.
        device: the device of the matrix.

    Raises:
        TypeError: `rows` is of another type or dtype.
        ValueError: a number is out of range, a shape is wrong, or there are more than 2^31 - 1 rows.
    """
    if isinstance(rows, slice):
        try:
            chosen = range(*rows.indices(count))
        except (TypeError, ValueError) as error:
            raise type(error)(f"rows: {error}; accepted: {_ACCEPTED}") from None
        return chosen.start + chosen.step * torch.arange(len(chosen), dtype=torch.int64, device=device)
    if isinstance(rows, (list, np.ndarray)):
        array = check_array("rows", rows, _ACCEPTED)
        rows = torch.from_numpy(array.astype(np.int64) if array.size == 0 and array.ndim == 1 else array)
    if not isinstance(rows, torch.Tensor):
        bad_type("rows", rows, _ACCEPTED)
    if rows.dtype == torch.bool and rows.layout == torch.strided:
        if check_device("rows", rows).shape != (count,):
            bad_value("rows", f"is a mask of shape {tuple(rows.shape)}; accepted: ({count},)")
        return unwrapped("rows", rows).to(device).nonzero().flatten()
    if rows.dtype not in (torch.int32, torch.int64):
        bad_type("rows", rows, _ACCEPTED)
    numbers = index_tensor("rows", rows).to(device, torch.int64)
    if numbers.numel() > _MOST_ROWS:
        bad_value("rows", f"has {numbers.numel()} elements; accepted: at most 2^31 - 1")
    wrapped = torch.where(numbers < 0, numbers + count, numbers)
    check_range("rows", wrapped, count, f"A has {count} rows: with negative numbers counted from its end, it")
    return wrapped


def select_rows(core: OperandCore, which: int, rows: torch.Tensor) -> Prepared:
    """Makes a prepared matrix of some rows of an operand, with its weights, in its format.

    Args:
        core: the operand with its transpose.
        which: 0 for the operand, 1 for its transpose.
        rows: int64 [k] on the operand's device, row numbers in range.

    Returns:
        The matrix [k, columns], whose row i is row `rows[i]`; its edges are its nonzeros.

    Raises:
        MemoryError: on the CPU, the rows need more memory than this process can get.
    """
    start = time.perf_counter()
    whole = core.caches[which].matrix
    stored = rows if whole.row_ids is None else inverse(whole.row_ids)[rows].long()
    csr, source = whole.csr.select_rows(stored)
    values = whole.own_values()
    forward = Oriented(
        csr,
        values=None if values is None else values[source],
        row_scale=None if whole.row_scale is None else whole.row_scale[rows],
        col_scale=whole.col_scale,
    )
    transposed, index = csr.transpose()
    index = index.to(index_dtype(csr.nnz))
    backward = transpose_of(forward, transposed, None, index)
    spec = None if core.auto_format or whole.blocked is None else whole.blocked.spec
    forward, backward = (with_format(matrix, core.precision, spec) for matrix in (forward, backward))
    report = {"symmetric": False, "reorder": {"method": "none"}, "edges": csr.nnz}
    report["seconds"] = time.perf_counter() - start
    made = core.prepared.normalization, core.prepared.added_loops
    return Prepared(forward, backward, index, None, report, *made, is_part=True)
