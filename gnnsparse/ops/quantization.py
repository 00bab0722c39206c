"""Numbers of 8 bits with a scale for each feature: how the precisions int8 and fp8 store X.

Feature f of a matrix is stored as x[j, f] = scale[f] * number[j, f], where its largest magnitude becomes the
largest number. The scale leaves a product's sums, so that those of integers are exact. What this module
computes in torch, on any device, the native code computes bit for bit (native/include/gnnsparse/quantize.h).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse import _native
from gnnsparse.ops.attention.philox import philox4x32
from gnnsparse.ops.dispatch import straight_through
from gnnsparse.precision import Precision, round_operand
from gnnsparse.runtime.device import describe_device, path

#: Features whose largest magnitude is below this have steps as if it were this large, so that neither the
#: scale nor its inverse leaves the range of float32.
LEAST_PEAK = 2.0**-100
_LARGEST = {Precision.INT8: 127.0, Precision.FP8: 448.0}
#: Their numbers in the native module.
NUMBER_TYPES = {Precision.INT8: 0, Precision.FP8: 1}
_NUMBER_DTYPES = (torch.int8, torch.float8_e4m3fn)  # by number type
#: Exponent of the least number of e4m3 with all bits; below it steps are equal.
_LEAST_EXPONENT = -6
#: Threads of a multiprocessor that round X: as many as fit with several rows of each on their way.
_THREADS = 768
#: What counters of Philox have in their third word here; those of dropout have a head.
_COUNTER = 0x51


@dataclass(frozen=True, eq=False)
class StoredX:
    """X in 8 bits: bytes [k, n padded to 16], zeros behind n, and the float32 scales of the features."""

    numbers: torch.Tensor
    scale: torch.Tensor
    number_type: int


def store(
    x: torch.Tensor, precision: Precision, weights: torch.Tensor | None = None, seed: int | None = None
) -> StoredX:
    """Round a matrix [k, n] of any strides to 8 bits, in one native call.

    The rows are multiplied by `weights`, float32 [k], before. With a seed numbers are rounded up or down at
    random, so that their mean is x; without, to nearest, ties to even.
    """
    rows, columns = x.shape
    padded = -(-columns // _native.EIGHT_BIT_PADDING) * _native.EIGHT_BIT_PADDING
    numbers = torch.empty(rows, padded, dtype=torch.uint8, device=x.device)
    scale = torch.empty(padded, dtype=torch.float32, device=x.device)
    number_type = NUMBER_TYPES[precision]
    if path().takes(x.device):
        peaks = torch.zeros(padded, dtype=torch.int32, device=x.device)
        gpu, parts = path(), _parts(rows, padded, x.device)
        gpu.native.cuda_quantize(
            x, weights, numbers, scale, peaks, parts, number_type, seed, gpu.stream(x.device)
        )
    else:
        row_stride, column_stride = x.stride()
        x = x if column_stride == 1 and row_stride >= columns else x.contiguous()
        _native.cpu_quantize(x, weights, numbers, scale, number_type, seed, torch.get_num_threads())
    return StoredX(numbers, scale, number_type)


def store_heads(x: torch.Tensor, precision: Precision, numbers: torch.Tensor) -> torch.Tensor:
    """Round each of the heads [batches, heads, n, d] to 8 bits on the current GPU, for its attention.

    `numbers`, uint8 [batches, heads, n, d padded to 16], rows contiguous and aligned to 16 bytes, get zeros
    behind d; of int8 each byte is the integer plus 128. Returns scales of features, [batches, heads, padded].
    """
    gpu, device = path(), x.device
    shape = *x.shape[:2], numbers.shape[3]
    scale = torch.empty(shape, dtype=torch.float32, device=device)
    peaks = torch.zeros(shape, dtype=torch.int32, device=device)
    parts = _parts(x.shape[2], scale.numel(), device)
    gpu.native.cuda_quantize_heads(
        x, numbers, scale, peaks, parts, NUMBER_TYPES[precision], gpu.stream(device)
    )
    return scale


def as_numbers(stored: StoredX, columns: int) -> torch.Tensor:
    """Return the numbers of the first columns of a stored matrix as float32, [k, columns]."""
    numbers = stored.numbers.view(_NUMBER_DTYPES[stored.number_type])[:, :columns]
    return numbers.to(torch.float32, memory_format=torch.contiguous_format)


def _parts(rows: int, padded: int, device: torch.device) -> int:
    """Return how many rows a GPU reads at a time, with eight features a thread."""
    threads = describe_device(device).multiprocessors * _THREADS
    return min(max(1, threads * 8 // max(padded, 8)), max(1, rows))


def quantize(
    x: torch.Tensor, precision: Precision, weights: torch.Tensor | None = None, seed: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute in torch what `store` stores: numbers [k, n], and scales [n], NaN if not finite."""
    scaled = x.float() if weights is None else x.float() * weights[:, None]
    peak = torch.cat([scaled.abs(), scaled.new_zeros(1, x.shape[1])]).amax(0)
    used, largest = peak.clamp(min=LEAST_PEAK), _LARGEST[precision]
    finite = peak.isfinite()
    # `largest / used` would be the product with a reciprocal that is rounded already.
    inverse = torch.where(finite, torch.full_like(used, largest) / used, 0.0)
    scale = torch.where(finite, used / largest, torch.nan)
    v = scaled * inverse
    step = _steps(v) if precision is Precision.FP8 else torch.ones_like(v)
    count = v.abs() / step  # exact: steps are powers of two
    whole = count.round() if seed is None else (count + _uniform(x, seed)).floor()
    return (whole * step).clamp(max=largest).copysign(v), scale


def _steps(v: torch.Tensor) -> torch.Tensor:
    """Return the distance of the e4m3 numbers around each element, a power of two."""
    exponent = ((v.contiguous().view(torch.int32) >> 23) & 0xFF) - 127
    return torch.exp2((exponent.clamp(min=_LEAST_EXPONENT) - 3).float())


def _uniform(x: torch.Tensor, seed: int) -> torch.Tensor:
    """Return a number in [0, 1) for each element of a matrix, of 24 bits."""
    rows, columns = (torch.arange(size, dtype=torch.int64, device=x.device) for size in x.shape)
    fixed = torch.zeros(1, 1, dtype=torch.int64, device=x.device)
    words = philox4x32(
        (rows[:, None], columns[None] >> 2, fixed + _COUNTER, fixed),
        (fixed + (seed & 0xFFFFFFFF), fixed + ((seed >> 32) & 0xFFFFFFFF)),
    )
    chosen = torch.stack(words).gather(0, (columns & 3).expand(1, *x.shape))[0]
    return (chosen >> 8).float() * 2.0**-24


def fake_quantized(x: torch.Tensor, precision: Precision, seed: int | None = None) -> torch.Tensor:
    """Return x [k, n] rounded to what the precision stores, in its dtype; gradients pass unchanged."""

    def rounded(x: torch.Tensor) -> torch.Tensor:
        numbers, scale = quantize(x, precision, None, seed)
        return numbers.to(x.dtype) * scale.to(x.dtype)

    return straight_through(x, rounded)


def exact_rounded(x: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Round an operand of the reference in float32, float64 as it is; the gradient passes unchanged."""
    if x.dtype == torch.float64 or precision is Precision.FP32:
        return x if x.dtype == torch.float64 else x.float()
    return straight_through(x.float(), lambda x: round_operand(x, precision).float())
