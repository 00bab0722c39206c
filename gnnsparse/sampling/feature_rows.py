"""Features as they are read and stored: sources in memory or in files, and rows as bytes."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnnsparse.errors import bad_type, bad_value

__all__ = ["FEATURE_DTYPES", "RowFormat", "Source", "read_features"]

#: Values of the argument `dtype`, and the dtypes that rows come out in.
FEATURE_DTYPES = {
    "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.float16,
}  # fmt: skip
_NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
#: The largest number of e4m3, and of float16, which rows stored in 8 bits come out in.
_LARGEST, _LARGEST_HALF = 448.0, 65504.0
#: Rows whose largest magnitude is below this have steps as if it were this large.
_LEAST_PEAK = 2.0**-100
#: Bytes of the vectors that a GPU loads.
_VECTOR = 16
#: Bytes of features that are converted at a time, which bounds the scratch memory.
_PART_BYTES = 2**26


@dataclass(frozen=True, eq=False)
class Source:
    """Features that were given.

    Attributes:
        x: [rows, features], float32, float16 or bfloat16.
        in_file: whether it lies over a memory-mapped file.
    """

    x: torch.Tensor
    in_file: bool

    @property
    def dtype_name(self) -> str:
        """The name of its dtype."""
        return _NAMES[self.x.dtype]


def read_features(x: Any) -> Source:
    """Returns features as a tensor, those of a file without reading it.

    Args:
        x: [rows, features], a floating-point tensor or array; or the path of a .npy file.

    Raises:
        TypeError: `x` is of another type or dtype.
        ValueError: the file can't be mapped, or the shape is another one.
    """
    accepted = "[rows, features], float32, float16 or bfloat16, or the path of a .npy file"
    in_file = False
    if isinstance(x, (str, os.PathLike)):
        x = _mapped(Path(x))
    if isinstance(x, np.ndarray):
        in_file = isinstance(x, np.memmap)
        if x.dtype not in (np.float32, np.float16):
            raise TypeError(f"x: got an array of dtype {x.dtype}; accepted: {accepted}")
        if any(stride < 0 for stride in x.strides):  # torch has none
            bad_value("x", "is an array with a reversed axis; accepted: one without, as of numpy's copy()")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*not writable", UserWarning)  # nothing writes to it
            x = torch.from_numpy(x)
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided or x.dtype not in _NAMES:
        bad_type("x", x, accepted)
    if x.dim() != 2 or x.shape[1] == 0:
        bad_value("x", f"has shape {tuple(x.shape)}; accepted: (rows, features), with features")
    return Source(x.detach(), in_file)


def _mapped(file: Path) -> np.ndarray[Any, Any]:
    try:
        return np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = " ".join(str(error).split())[:200]
        bad_value("x", f"{file} can't be mapped ({reason}); accepted: a .npy file of one array")


@dataclass(frozen=True)
class RowFormat:
    """How a row is stored as bytes.

    In "fp8" it is e4m3 numbers with a float32 scale behind them, the row's largest magnitude over 448, padded
    to whole vectors of a GPU; in the others it is its numbers.

    Attributes:
        name: one of FEATURE_DTYPES.
        features: numbers in a row.
    """

    name: str
    features: int

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that rows come out in."""
        return FEATURE_DTYPES[self.name]

    @property
    def _scale_at(self) -> int:
        return -(-self.features // 4) * 4

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        if self.name != "fp8":
            return self.features * self.dtype.itemsize
        return -(-(self._scale_at + 4) // _VECTOR) * _VECTOR

    @property
    def rows_at_a_time(self) -> int:
        """How many rows should be converted at a time."""
        return max(1, _PART_BYTES // (4 * self.features))

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """Returns rows as bytes, uint8 [rows, row_bytes]; those of `x` itself if it has the dtype.

        Raises:
            ValueError: a number has no place in "fp8".
        """
        if self.name != "fp8":
            return x.to(self.dtype).contiguous().view(torch.uint8)
        wide = x.float()
        peak = wide.abs().amax(1, keepdim=True)
        if peak.numel() and not float(peak.max()) <= _LARGEST_HALF:
            bad_value("x", f"has {float(peak.max())}; accepted with dtype='fp8': finite, at most 65504")
        scale = peak.clamp(min=_LEAST_PEAK) / _LARGEST
        codes = (wide / scale).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn)
        out = torch.zeros(x.shape[0], self.row_bytes, dtype=torch.uint8, device=x.device)
        out[:, : self.features] = codes.view(torch.uint8)
        out[:, self._scale_at : self._scale_at + 4] = scale.view(torch.uint8)
        return out

    def decode(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns what bytes stand for, [rows, features]; the inverse of `encode` but for its rounding."""
        if self.name != "fp8":
            return rows.view(self.dtype)
        codes = rows[:, : self.features].view(torch.float8_e4m3fn).float()
        scale = rows[:, self._scale_at : self._scale_at + 4].contiguous().view(torch.float32)
        return (codes * scale).to(self.dtype)
