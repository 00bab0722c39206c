"""Registries: what the library offers by name, each entry registered in the file that defines it.

A registry is a mapping from names to entries that only grows. The names that an option accepts, that an
error lists and that `--help` shows are read from the registry when they are needed, so that no list of
names is written down a second time. The files that register entries are found in their folder (`discover`).
"""

from __future__ import annotations

import contextlib
import importlib
import math
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, TypeVar, overload

from gnnsparse.errors import bad_type, bad_value, check_choice, check_flag

__all__ = [
    "MADE_OF", "Names", "Option", "Registry", "check_options", "discover", "lazy_names",
    "temporary_registrations",
]  # fmt: skip

#: Attribute of a model of a registered class: the registry as "MODULE:NAME", its name there, and the options
#: that it was made with.
MADE_OF = "made_of"

Entry = TypeVar("Entry")

_REGISTRIES: list[Registry[Any]] = []


class Registry(Mapping[str, Entry], Generic[Entry]):
    """A mapping from names to entries, in the order of registration.

    Args:
        argument: the argument or option by which users name an entry, as in "reorder"; errors begin with it.
        package: a package whose modules register one entry each, under the module's own name. A module is
            imported when its entry is first asked for; its name is listed before that. Modules whose names
            begin with an underscore are skipped. None: entries are registered by files that are imported
            anyway.
    """

    def __init__(self, argument: str, package: str | None = None) -> None:
        self._argument, self._package = argument, package
        self._entries: dict[str, Entry] = {}
        _REGISTRIES.append(self)

    def register(self, name: str, entry: Entry) -> None:
        """Add an entry.

        Raises:
            TypeError: the name is not a string.
            ValueError: the name is empty or taken.
        """
        if not isinstance(name, str):
            bad_type(self._argument, name, "a name")
        if not name or name in self._entries:
            bad_value(self._argument, f"got {name!r} to register; accepted: a name that is not taken")
        self._entries[name] = entry

    def check(self, name: Any) -> str:
        """Return `name` if there is such an entry.

        Raises:
            TypeError: the name is not a string.
            ValueError: there is no such entry; the message lists all names.
        """
        return check_choice(self._argument, name, tuple(self))

    def _modules(self) -> list[str]:
        return [] if self._package is None else _module_names(importlib.import_module(self._package))

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries and name in self._modules():
            importlib.import_module(f"{self._package}.{name}")
            if name not in self._entries:
                raise ImportError(f"{self._package}.{name} registers nothing as {name!r}")
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._modules()

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._modules(), *self._entries]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return f"Registry({self._argument}: {', '.join(self)})"


@dataclass(frozen=True)
class Option:
    """The values that an option of a registered entry accepts.

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
        """Return the value converted to `kind` if it is accepted; else raise TypeError or ValueError."""
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


def check_options(
    argument: str, name: str, options: Mapping[str, Option], given: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the options that are given for an entry, each checked; None: there are none.

    Args:
        argument: the argument that they are given by, for errors.
        name: the name of the entry.
        options: the options that it has.
        given: a dict of option names and values.

    Raises:
        TypeError: it is no such dict, or an option is of another type.
        ValueError: an option is unknown or out of range.
    """
    given = {} if given is None else given
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        bad_type(argument, given, "a dict of option names and values")
    if unknown := [key for key in given if key not in options]:
        accepted = ", ".join(options) or "none"
        bad_value(argument, f"unknown options for {name!r}: {', '.join(unknown)}; accepted: {accepted}")
    return {key: options[key].check(key, value) for key, value in given.items()}


class Names(Sequence[str]):
    """The names of a registry as a sequence, which includes names that are registered later.

    Args:
        registry: the registry.
        first: names that come first and stand for something other than an entry, such as "none".
        where: a condition on entries; only the names of those that meet it are listed. None: all names are
            listed, and no entry is looked up.
    """

    def __init__(
        self,
        registry: Mapping[str, Entry],
        *first: str,
        where: Callable[[Entry], bool] | None = None,
    ) -> None:
        self._registry, self._first, self._where = registry, first, where

    def _now(self) -> tuple[str, ...]:
        where = self._where
        if where is None:
            return (*self._first, *self._registry)
        return (*self._first, *(name for name, entry in self._registry.items() if where(entry)))

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[str, ...]: ...
    def __getitem__(self, at: int | slice) -> str | tuple[str, ...]:
        return self._now()[at]

    def __len__(self) -> int:
        return len(self._now())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Names, tuple)) and self._now() == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._now())


def _module_names(package: ModuleType) -> list[str]:
    found = (module.name for module in pkgutil.iter_modules(package.__path__))
    return sorted(name for name in found if not name.startswith("_"))


def discover(package: str) -> list[ModuleType]:
    """Import every module of a package, so that they register what they define.

    Modules whose names begin with an underscore are left out.

    Args:
        package: the full name of an imported package.

    Returns:
        The modules, in the order of their names.
    """
    folder = importlib.import_module(package)
    return [importlib.import_module(f"{package}.{name}") for name in _module_names(folder)]


@contextlib.contextmanager
def temporary_registrations() -> Iterator[None]:
    """Remove what is registered inside the `with` block from every registry afterwards; for tests."""
    before = [(registry, set(registry._entries)) for registry in _REGISTRIES]
    try:
        yield
    finally:
        for registry, names in before:
            # A module that was imported in the block is not imported again: its entry could not come back.
            names |= set(registry._modules())
            registry._entries = {n: entry for n, entry in registry._entries.items() if n in names}


def lazy_names(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, which imports a name when it is first asked for.

    Args:
        package: the name of the package.
        homes: for each module the names that the package has from it.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(home_of[name]), name)
        setattr(sys.modules[package], name, found)  # so that the next look-up finds it without this function
        return found

    return find
