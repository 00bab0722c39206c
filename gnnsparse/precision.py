"""The precisions of sparse products, and how each rounds its operands."""

from __future__ import annotations

import enum
from typing import Any

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_type, bad_value


class Precision(str, enum.Enum):
    """Arithmetic of a sparse product. Sums are float32, or exact, in every precision.

    `fp32`: float32 operands, as they are.
    `tf32`: float32 operands rounded to 10 mantissa bits, ties to even as by `cvt.rn.tf32.f32` (ties away
    from zero on GPUs before compute capability 9.0, which lack that instruction).
    `fp16`, `bf16`: operands rounded to nearest, ties to even.
    `int8`, `fp8`: SpMM stores X, and `attention` K and V, in 8 bits with a float32 scale for each feature
    (gnnsparse.ops.quantization): integers of -127 to 127, or e4m3. Weights that are given or learned, Q,
    gradients and all other operations have float16 operands.
    """

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    FP8 = "fp8"

    @classmethod
    def parse(cls, value: Any, name: str = "precision") -> Precision:
        """Return the Precision that `value` is or names; `name` is the argument's name in errors.

        Raises:
            TypeError: `value` is neither a Precision nor a string.
            ValueError: there is no precision of that name.
        """
        if not isinstance(value, str):
            bad_type(name, value, ", ".join(cls.names()))
        try:
            return cls(value)
        except ValueError:
            bad_value(name, f"got {value!r}; accepted: {', '.join(cls.names())}")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all precisions."""
        return tuple(p.value for p in cls)

    @property
    def quantizes(self) -> bool:
        """Whether SpMM stores X in 8 bits, and attention K and V."""
        return self in (Precision.INT8, Precision.FP8)

    @property
    def rounded(self) -> Precision:
        """The precision of all that never has 8 bits: fp16 where something has, else this one."""
        return Precision.FP16 if self.quantizes else self

    @property
    def storage(self) -> torch.dtype:
        """The dtype that operands are stored in, but for those of 8 bits."""
        return _STORAGE[self]

    @property
    def operands_are_stored(self) -> bool:
        """Whether stored elements are the operands of a Tensor Core product as they are."""
        return _native.PRECISIONS[self.rounded.value]["operands_are_stored"]

    @property
    def code(self) -> int:
        """The number of this precision, or of the one that `rounded` is, in the native module."""
        return _native.PRECISIONS[self.rounded.value]["code"]


#: The precisions that round every element by itself.
ROUNDED_PRECISIONS = tuple(p for p in Precision if not p.quantizes)


#: The precision of products with features of a dtype, for the dtypes that kernels have.
PRECISIONS = {
    torch.float32: Precision.FP32,
    torch.float16: Precision.FP16,
    torch.bfloat16: Precision.BF16,
}


def dense_view(x: torch.Tensor) -> _native.Dense:
    """Return the native handle of a matrix [rows, columns] whose rows are contiguous."""
    return _native.Dense(x)


_STORAGE: dict[Precision, torch.dtype] = {
    p: getattr(torch, _native.PRECISIONS[p.rounded.value]["storage"]) for p in Precision
}


def _round_tf32(x: torch.Tensor) -> torch.Tensor:
    if x.device.type == "cpu":
        x = x.contiguous()
        out = torch.empty_like(x)
        _native.cpu_round_tf32(x, out, torch.get_num_threads())
        return out
    bits = x.contiguous().view(torch.int32)
    rounded = ((bits + 0xFFF + ((bits >> 13) & 1)) & -0x2000).view(torch.float32)
    return torch.where(torch.isfinite(x), rounded, x)


def round_operand(x: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Round a floating-point tensor to the storage dtype of a precision; return `x` if nothing changes."""
    x = x.to(precision.storage)  # fp16 where X has 8 bits: that is done for a whole X (quantization.py)
    return _round_tf32(x) if precision is Precision.TF32 else x
