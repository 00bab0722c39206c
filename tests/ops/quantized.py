"""Numbers of 8 bits by torch's own conversions, and what an operand stores, in float64."""

from __future__ import annotations

import torch

from gnnsparse import SparseOperand

#: The precisions that store X in 8 bits, with their largest numbers.
EIGHT_BITS = {"int8": 127.0, "fp8": 448.0}
#: The largest error of one rounding: relative to the feature's largest magnitude, and to the element.
STEPS = {"int8": (0.5 / 127, 0.0), "fp8": (2.0**-10 / 448, 2.0**-4)}


def stored(x: torch.Tensor, precision: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers, float32 [k, n], and the scales, float32 [n], that a float32 matrix is stored as."""
    peak = torch.cat([x.abs(), torch.zeros(1, x.shape[1])]).amax(0).clamp(min=2.0**-100)
    largest = torch.tensor(EIGHT_BITS[precision])
    v = x * (largest / peak)
    numbers = v.round() if precision == "int8" else v.to(torch.float8_e4m3fn).float()
    return numbers, peak / largest


def rounding_bound(x: torch.Tensor, precision: str) -> torch.Tensor:
    """The largest distance of elements of x [k, n] from what is stored, with room for float32 scales."""
    absolute, relative = STEPS[precision]
    wide = x.double().abs()
    return torch.maximum(wide.amax(0) * absolute, wide * relative) * (1 + 1e-5) + wide * 1e-6


def stored_matrix(a: SparseOperand) -> tuple[torch.Tensor, torch.Tensor]:
    """The matrix that an operand stores, without the weights of its columns, and those of its rows."""
    rows, side = a.shape[0], a.kernels
    values = torch.ones(a.nnz) if side.values is None else side.values.cpu()
    matrix = torch.zeros(a.shape, dtype=torch.float64).index_put(tuple(a.indices().cpu()), values.double())
    by_row = torch.ones(rows) if side.row_scale is None else side.row_scale.cpu()
    if side.row_ids is not None and side.row_scale is not None:
        by_row = torch.empty(rows).index_copy(0, side.row_ids.long().cpu(), by_row)
    return matrix, by_row.double()
