"""The choice of the device of a run, and of the arithmetic of dense layers on it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_value, check_choice
from gnnsparse.precision import Precision
from gnnsparse.runtime.environment import DEVICES


@contextlib.contextmanager
def matmul_precision(precision: Precision, device: torch.device) -> Iterator[None]:
    """Set the precision of float32 products on a GPU inside a `with` block: TF32 except in fp32."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if precision is Precision.FP32 else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def numerics(precision: Precision, device: torch.device) -> Iterator[None]:
    """Make dense layers compute inside a `with` block as they do in training in this precision."""
    # On a GPU fp16, bf16 and, as fp16, int8 and fp8 run under autocast, and tf32 allows TF32.
    half = device.type == "cuda" and precision.rounded in (Precision.FP16, Precision.BF16)
    cast = (
        torch.autocast("cuda", precision.storage, cache_enabled=False) if half else contextlib.nullcontext()
    )
    with matmul_precision(precision, device), cast:
        yield


def resolve_device(name: str) -> torch.device:
    """Return the device of an option "cpu", "cuda", or "auto": CUDA if it can be used, else the CPU.

    Raises:
        TypeError: `name` is no string.
        ValueError: the name is unknown, or it is "cuda" and CUDA can't be used.
    """
    check_choice("device", name, DEVICES)
    problem = None
    if not torch.cuda.is_available():
        problem = "torch finds no CUDA GPU here"
    elif not _native.has_cuda:
        problem = "gnnsparse was built without its CUDA kernels"
    if name == "cuda" and problem is not None:
        bad_value("device", f"got 'cuda', but {problem}; accepted: auto, cpu")
    return torch.device("cpu" if name == "cpu" or problem is not None else "cuda")
