"""The choice of the device of a run."""

from __future__ import annotations

import torch

from gnnsparse import _native
from gnnsparse.environment import DEVICES
from gnnsparse.errors import bad_value, check_choice

__all__ = ["resolve_device"]


def resolve_device(name: str) -> torch.device:
    """Returns the device of an option "cpu", "cuda", or "auto": CUDA if it can be used, else the CPU.

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
