"""The registry of reorderings: their names, options and requirements."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import sys
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
    """The values that an option of a reordering accepts.

    Attributes:
        kind: type of the option: int, float (which accepts integers), bool or str.
        default: the value if none is given.
        least, most: inclusive bounds; None: no bound.
        above: an exclusive lower bound; None: no bound.
        choices: for a str: the values accepted.
    """

    kind: type
    default: Any
    least: float | None = None
    most: float | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()

    def check(self, name: str, value: Any) -> Any:
        """Returns the value converted to `kind` if it is accepted; else raises TypeError or ValueError."""
        if self.kind is bool:
            return check_flag(name, value)
        if self.kind is str:
            return check_choice(name, value, self.choices)
        accepted = int if self.kind is int else (int, float)
        if isinstance(value, bool) or not isinstance(value, accepted):
            bad_type(name, value, "an integer" if self.kind is int else "a number")
        low = -math.inf if self.least is None else self.least
        high = sys.float_info.max if self.most is None else self.most
        above = -math.inf if self.above is None else self.above
        if not (low <= value <= high and above < value):
            bad_value(
                name, f"got {value if isinstance(value, int) else f'{value:g}'}; accepted: {self._range()}"
            )
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
        name: the name that users give.
        order: the function. It is called with a matrix on the CPU and every option by keyword, and returns a
            permutation of the rows, integers [rows]: row i of the reordered matrix is row order[i] of the
            given one.
        options: the options by name.
        square: whether the matrix has to be square.
        symmetric: whether the order of A is used for A^T, too. False: an order is computed for A^T.
        package: an optional package that the function imports; None: it imports none.
        empty: whether the function is called for a matrix without nonzeros. False: such a matrix keeps its
            order.
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
        """Checks the given options, and returns all options of the reordering with defaults for the others.

        Raises:
            TypeError: an option is of another type.
            ValueError: an option is unknown or out of range.
        """
        check_known(self.name, given, self.options)
        return {
            name: option.check(name, given.get(name, option.default)) for name, option in self.options.items()
        }

    def check_shape(self, rows: int, cols: int) -> None:
        """Raises a ValueError if the reordering does not accept matrices of this shape."""
        if self.square and rows != cols:
            bad_value("reorder", f"{self.name!r} needs a square matrix, got {rows} x {cols}")

    @property
    def missing_package(self) -> str | None:
        """The package that the reordering needs if it is not installed, else None. Nothing is imported."""
        if self.package is None or importlib.util.find_spec(self.package) is not None:
            return None
        return self.package

    def check_package(self) -> None:
        """Raises an ImportError if the package that the reordering needs can't be imported."""
        if self.package is None:
            return
        try:
            importlib.import_module(self.package)
        except ImportError as error:
            needs = f"reorder={self.name!r} needs the package {self.package}"
            raise ImportError(f"{needs}: pip install {self.package}") from error


def check_known(method: str, given: Mapping[str, Any], options: Mapping[str, Option]) -> None:
    """Raises a ValueError if `given` has an option that is not among `options`."""
    if unknown := [name for name in given if name not in options]:
        accepted = ", ".join(options) or "none"
        bad_value("reorder", f"unknown options for {method!r}: {', '.join(unknown)}; accepted: {accepted}")


#: The reorderings by name.
METHODS: Registry[Method] = Registry("reorder")

#: The names that `reorder` accepts: "none" and those of the registered reorderings.
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
        ValueError: the name is taken, or the options are not the function's parameters after the matrix.
    """

    def keep(order: OrderFunction) -> OrderFunction:
        METHODS.register(name, Method(name, order, options or {}, square, symmetric, package, empty))
        return order

    return keep
