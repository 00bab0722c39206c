"""What the modules that put other packages' models on our kernels have in common."""

from __future__ import annotations

from typing import Any

import torch

from gnnsparse.errors import bad_type
from gnnsparse.precision import Precision

__all__ = ["PRECISIONS", "check_model"]

#: The precision of products with features of a dtype, for the dtypes that kernels have.
PRECISIONS = {
    torch.float32: Precision.FP32,
    torch.float16: Precision.FP16,
    torch.bfloat16: Precision.BF16,
}


def check_model(model: Any) -> None:
    """Raises a TypeError unless the argument `model` is a torch.nn.Module."""
    if not isinstance(model, torch.nn.Module):
        bad_type("model", model, "a torch.nn.Module")
