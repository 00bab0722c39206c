"""What the modules that put other packages' models on our kernels have in common."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch

from gnnsparse.errors import bad_type
from gnnsparse.precision import PRECISIONS, Precision
from gnnsparse.runtime.memo import ForkLock

__all__ = ["IdentityMemo", "Model", "aligned", "check_model", "give_class_back", "log", "precision_of"]

Model = TypeVar("Model", bound=torch.nn.Module)
_Value = TypeVar("_Value")

#: Where reports are logged.
log = logging.getLogger("gnnsparse.interop")


class IdentityMemo(Generic[_Value]):
    """Values by the identity of objects, which are not kept alive: a value goes with its object.

    Args:
        most: values beyond which the oldest ones are dropped.
        gone: called with a value whose object is gone.
    """

    def __init__(self, most: int = 4096, gone: Callable[[_Value], None] | None = None) -> None:
        self._lock, self._most, self._gone = ForkLock(), most, gone
        self._values: dict[int, tuple[weakref.ref[Any], _Value]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def get(self, of: Any) -> _Value | None:
        """Return the value of an object, or None."""
        entry = self._values.get(id(of))
        return entry[1] if entry is not None and entry[0]() is of else None

    def put(self, of: Any, value: _Value) -> _Value:
        """Set the value of an object, and return it."""
        key = id(of)

        def forget(ref: Any) -> None:
            entry = self._values.get(key)
            if entry is not None and entry[0] is ref:  # another object may have the address by now
                del self._values[key]
                if self._gone is not None:
                    self._gone(entry[1])

        with self._lock:
            while len(self._values) >= self._most:
                self._values.pop(next(iter(self._values)), None)
            self._values[key] = weakref.ref(of, forget), value
        return value

    def clear(self) -> None:
        """Drop all values."""
        self._values.clear()


def precision_of(given: Precision | str | None, x: torch.Tensor) -> tuple[Precision, torch.dtype | None]:
    """Return the precision of a product with features x, and the dtype that x is cast to, or None.

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
    """Give a module the class again from which an accelerated class, told by `is_ours`, was derived."""
    kind = type(module)
    if is_ours(kind):
        module.__class__ = kind.__bases__[0]
    else:  # parametrised since then: torch has made it a class of its own, derived from the accelerated one
        kind.__bases__ = tuple(base.__bases__[0] if is_ours(base) else base for base in kind.__bases__)


def check_model(model: Any) -> None:
    """Raise a TypeError unless the argument `model` is a torch.nn.Module."""
    if not isinstance(model, torch.nn.Module):
        bad_type("model", model, "a torch.nn.Module")


def aligned(lines: Sequence[tuple[str, str, str]]) -> str:
    """Return lines of three cells, the first of which is the header, as text whose columns are aligned."""
    widths = [max(len(line[i]) for line in lines) for i in range(2)]
    return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in lines)
