"""The catalog of data sets: what loads each one, which task it is for, and its options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gnnsparse.registry import Names, Registry

__all__ = ["CATALOG", "REQUIRED", "DatasetEntry", "Loaders", "load_entry", "names_for", "register_dataset"]

Loader = TypeVar("Loader", bound=Callable[..., Any])

#: The default of an option that has to be given.
REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class DatasetEntry:
    """A data set that can be loaded by name.

    Attributes:
        name: what users call it.
        load: called with options by keyword; returns the kind of data set that the task takes.
        task: the training task it is for, a name in gnnsparse.tasks.
        splits: how many splits there are where `load` has an option `split`; None: any number, as they are
            drawn.
    """

    name: str
    load: Callable[..., Any]
    task: str
    splits: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options of `load` with their defaults, REQUIRED where there is none."""
        return {name: option.default for name, option in inspect.signature(self.load).parameters.items()}

    @property
    def split_count(self) -> int | None:
        """How many splits can be asked for; None: any number."""
        return self.splits if "split" in self.options else 1


#: The data sets by name.
CATALOG: Registry[DatasetEntry] = Registry("name")


def register_dataset(name: str, *, task: str, splits: int | None = None) -> Callable[[Loader], Loader]:
    """Registers the decorated function as the loader of a data set.

    A data set without a file in configs/dataset is offered there with the defaults of the function's
    parameters.

    Args:
        name: what users call the data set.
        task: the training task it is for, a name in gnnsparse.tasks.
        splits: how many splits there are where the function has a parameter `split`; None: any number.

    Raises:
        ValueError: the name is taken.
    """

    def keep(load: Loader) -> Loader:
        CATALOG.register(name, DatasetEntry(name, load, task, splits))
        return load

    return keep


def names_for(task: str) -> Names:
    """The names of the data sets for a task, those included that are registered later."""
    return Names(CATALOG, where=lambda entry: entry.task == task)


def load_entry(name: str, options: Mapping[str, Any]) -> Any:
    """The data set of a name in the catalog, loaded with options.

    Raises:
        TypeError: the data set has no such option; and whatever its loader raises.
    """
    entry = CATALOG[name]
    check_options(entry, options)
    return entry.load(**options)


def check_options(entry: DatasetEntry, options: Mapping[str, Any]) -> None:
    """Raise a TypeError if an option is given that the data set does not have."""
    accepted = entry.options
    for option in options:
        if option not in accepted:
            raise TypeError(f"{option}: no such option of {entry.name}; accepted: {', '.join(accepted)}")


class Loaders(Mapping[str, Callable[..., Any]]):
    """The loaders of the data sets for a task by name, those included that are registered later."""

    def __init__(self, task: str) -> None:
        self._names = names_for(task)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        if name not in self._names:
            raise KeyError(name)
        return CATALOG[name].load

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
