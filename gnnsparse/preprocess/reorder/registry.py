"""The registry of reorderings: what each method is called, accepts and needs."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from gnnsparse.errors import bad_type, bad_value, check_choice, check_flag
from gnnsparse.registry import Names, Registry

__all__ = ["METHODS", "REORDERINGS", "Method", "Option", "register_reordering"]

OrderFunction = TypeVar("OrderFunction", bound=Callable[..., torch.Tensor])


@dataclass(frozen=True)
class Option:
    """What an option of a method accepts.

    Attributes:
        kind: int, float (integers are accepted, too), bool or str.
        default: the value where none is given.
        least, most: bounds that are accepted themselves; None: no bound.
        above: a bound that is not accepted itself; None: no bound.
        choices: of a str: what it may be.
    """

    kind: type
    default: Any
    least: float | None = None
    most: float | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()

    def check(self, name: str, value: Any) -> Any:
        """Return the value if it is accepted, as `kind`; else raise a TypeError or a ValueError."""
        if self.kind is bool:
            return check_flag(name, value)
        if self.kind is str:
            return check_choice(name, value, self.choices)
        accepted = int if self.kind is int else (int, float)
        if isinstance(value, bool) or not isinstance(value, accepted):
            bad_type(name, value, "an integer" if self.kind is int else "a number")
        low = -math.inf if self.least is None else self.least
        high = math.inf if self.most is None else self.most
        above = -math.inf if self.above is None else self.above
        if not (low <= value <= high and above < value < math.inf):
            bad_value(name, f"got {value if self.kind is int else f'{value:g}'}; accepted: {self._range()}")
        return self.kind(value)

    def _range(self) -> str:
        if self.least is not None and self.most is not None:
            return f"{self.least} to {self.most}"
        bounds = [
            f"{word} {bound}"
            for word, bound in (("at least", self.least), ("at most", self.most), ("above", self.above))
            if bound is not None
        ]
        kind = "a finite number " if self.kind is float else ""
        return kind + " and ".join(bounds)


@dataclass(frozen=True)
class Method:
    """A reordering.

    Attributes:
        name: what users call it.
        order: called with a matrix on the CPU and every option by keyword; returns a permutation of the
            rows, integers [rows]: row i of the reordered matrix is row order[i] of the given one.
        options: what it accepts, by name.
        square: whether the matrix has to be square.
        symmetric: whether its order serves A and A^T alike, so that the transpose takes it over. False: the
            transpose gets an order of its own.
        package: an optional package that it imports; None: none.
        empty: whether it is called for a matrix without nonzeros. False: such a matrix stays as given.
    """

    name: str
    order: Callable[..., torch.Tensor]
    options: Mapping[str, Option] = field(default_factory=dict)
    square: bool = False
    symmetric: bool = False
    package: str | None = None
    empty: bool = False

    def __post_init__(self) -> None:
        takes = list(inspect.signature(self.order).parameters)[1:]
        if takes != list(self.options):
            bad_value("options", f"got {list(self.options)} for {self.name}; accepted: {takes}")
        if self.symmetric and not self.square:
            bad_value("symmetric", "got True; accepted: False where the matrix need not be square")
        for name, option in self.options.items():
            option.check(name, option.default)

    def check_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Every option of the method, checked, with the defaults of those that are not given.

        Raises:
            TypeError, ValueError: an option is unknown, of another type or out of range.
        """
        check_known(self.name, given, self.options)
        return {
            name: option.check(name, given.get(name, option.default)) for name, option in self.options.items()
        }

    def check_shape(self, rows: int, cols: int) -> None:
        """Raise a ValueError if the method does not suit matrices of this shape."""
        if self.square and rows != cols:
            bad_value("reorder", f"{self.name!r} needs a square matrix, got {rows} x {cols}")

    @property
    def missing_package(self) -> str | None:
        """What the method needs and is not installed; nothing is imported."""
        if self.package is None or importlib.util.find_spec(self.package) is not None:
            return None
        return self.package

    def check_package(self) -> None:
        """Raise an ImportError if the package that the method needs can't be imported."""
        if self.package is None:
            return
        try:
            importlib.import_module(self.package)
        except ImportError as error:
            needs = f"reorder={self.name!r} needs the package {self.package}"
            raise ImportError(f"{needs}: pip install {self.package}") from error


def check_known(method: str, given: Mapping[str, Any], options: Mapping[str, Option]) -> None:
    """Raise a ValueError if an option is given that the method does not have."""
    if unknown := [name for name in given if name not in options]:
        accepted = ", ".join(options) or "none"
        bad_value("reorder", f"unknown options for {method!r}: {', '.join(unknown)}; accepted: {accepted}")


#: The methods by name.
METHODS: Registry[Method] = Registry("reorder")

#: The names that `reorder` accepts: "none" and those of the registered methods.
REORDERINGS = Names(METHODS, "none")


def register_reordering(
    name: str,
    *,
    options: Mapping[str, Option] | None = None,
    square: bool = False,
    symmetric: bool = False,
    package: str | None = None,
    empty: bool = False,
) -> Callable[[OrderFunction], OrderFunction]:
    """Registers the decorated function as a reordering; the arguments are the attributes of Method.

    Raises:
        ValueError: the name is taken, or the options are not the function's parameters behind the matrix.
    """

    def keep(order: OrderFunction) -> OrderFunction:
        METHODS.register(name, Method(name, order, options or {}, square, symmetric, package, empty))
        return order

    return keep
