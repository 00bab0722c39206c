"""What the modules that put other packages' models on our kernels have in common."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch

from gnnsparse.errors import bad_type
from gnnsparse.precision import PRECISIONS, Precision
from gnnsparse.runtime.memo import ForkLock

Model = TypeVar("Model", bound=torch.nn.Module)
_Value = TypeVar("_Value")

#: Where reports are logged.
log = logging.getLogger("gnnsparse.interop")


class FallbackError(Exception):
    """A call is left to the package that the layer is of, before anything is computed; says why."""


class IdentityMemo(Generic[_Value]):
    """At most `most` values by the identity of objects; `gone` is called with one whose object is freed."""

    def __init__(self, most: int = 4096, gone: Callable[[_Value], None] | None = None) -> None:
        self._lock, self._most, self._gone = ForkLock(), most, gone
        self._values: dict[int, tuple[weakref.ref[Any], _Value]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def get(self, of: Any) -> _Value | None:
        """Return the value of this object, and not of one that had its address before; None: it has none."""
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
    """Return the precision of a product (given, autocast's, or by x), and what x is cast to, or None."""
    cast, kind = None, x.device.type
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


@dataclass(frozen=True)
class ReportRow:
    """What one layer of a model runs on.

    Attributes:
        name: the layer's name in the model, "" for the model itself.
        kind: the layer's class.
        uses: the operation of gnnsparse that it runs on, or the pattern that it attends by; None: it is as it
            was made.
        reason: why it is as it was made, or was so in its last call; empty if there is no reason.
    """

    name: str
    kind: str
    uses: str | None
    reason: str


@dataclass(frozen=True)
class Table:
    """Layers of a model, as a table when it is printed."""

    title: ClassVar[str] = "runs on"
    rows: tuple[ReportRow, ...]

    @property
    def replaced(self) -> tuple[ReportRow, ...]:
        """The layers that run on an operation of gnnsparse, or attend by a pattern."""
        return tuple(row for row in self.rows if row.uses is not None)

    def _last_cell(self, row: ReportRow) -> str:
        raise NotImplementedError

    def __str__(self) -> str:
        cells = [(row.name or "(the model)", row.kind, self._last_cell(row)) for row in self.rows]
        lines = [("layer", "class", self.title), *cells]
        widths = [max(len(line[i]) for line in lines) for i in range(2)]
        return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in lines)
