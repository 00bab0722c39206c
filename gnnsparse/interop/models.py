"""What the modules that put other packages' models on our kernels have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gnnsparse.errors import bad_type
from gnnsparse.precision import PRECISIONS, Precision

__all__ = ["aligned", "check_model", "give_class_back", "precision_of"]


def precision_of(given: str | None, x: torch.Tensor) -> tuple[Precision, torch.dtype | None]:
    """Returns the precision of a product with features x, and the dtype that x is cast to, or None.

    Args:
        given: the precision that was asked for; None: autocast says it, or without it the dtype of x.
        x: the features.
    """
    cast = None
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        cast = dtype if x.dtype == torch.float32 and dtype in PRECISIONS else None
    return PRECISIONS[cast or x.dtype] if given is None else Precision.parse(given), cast


def give_class_back(module: torch.nn.Module, is_ours: Callable[[type], bool]) -> None:
    """Make a module one of the class again from which an accelerated class was derived.

    Args:
        module: the module.
        is_ours: tells accelerated classes.
    """
    kind = type(module)
    if is_ours(kind):
        module.__class__ = kind.__bases__[0]
    else:  # parametrised since then: torch has made it a class of its own, derived from the accelerated one
        kind.__bases__ = tuple(base.__bases__[0] if is_ours(base) else base for base in kind.__bases__)


def check_model(model: Any) -> None:
    """Raises a TypeError unless the argument `model` is a torch.nn.Module."""
    if not isinstance(model, torch.nn.Module):
        bad_type("model", model, "a torch.nn.Module")


def aligned(lines: Sequence[tuple[str, str, str]]) -> str:
    """Returns lines of three cells as text whose columns are aligned.

    Args:
        lines: the lines, the first of which is the header.
    """
    widths = [max(len(line[i]) for line in lines) for i in range(2)]
    return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in lines)
