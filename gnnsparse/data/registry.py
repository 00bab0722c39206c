"""The catalog of data sets: the loader, the task and the options of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gnnsparse.registry import Names, Registry

__all__ = ["CATALOG", "REQUIRED", "DatasetEntry", "Loaders", "load_entry", "names_for", "register_dataset"]

Loader = TypeVar("Loader", bound=Callable[..., Any])

#: Stands for the default of an option that has none and must be given.
REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class DatasetEntry:
    """A data set that can be loaded by name.

    Attributes:
        name: the name that users give.
        load: the loader; it is called with options by keyword, and returns a data set of the task's type.
        task: the training task that it is for, a name in gnnsparse.train.tasks.
        splits: number of splits, if `load` has an option `split`; None: there is no end of them, since they
            are random.
    """

    name: str
    load: Callable[..., Any]
    task: str
    splits: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options of `load` with their defaults, REQUIRED for those without one."""
        return {name: option.default for name, option in inspect.signature(self.load).parameters.items()}

    @property
    def split_count(self) -> int | None:
        """Number of splits that can be asked for; None: there is no end of them."""
        return self.splits if "split" in self.options else 1


#: The data sets by name.
CATALOG: Registry[DatasetEntry] = Registry("name")


def register_dataset(name: str, *, task: str, splits: int | None = None) -> Callable[[Loader], Loader]:
    """Registers the decorated function as the loader of a data set.

    train.py offers a data set without a file in configs/dataset with the defaults of the function's
    parameters.

    Args:
        name: the name that users give.
        task: the training task that it is for, a name in gnnsparse.train.tasks.
        splits: number of splits, if the function has a parameter `split`; None: there is no end of them.

    Raises:
        ValueError: the name is taken.
    """

    def keep(load: Loader) -> Loader:
        CATALOG.register(name, DatasetEntry(name, load, task, splits))
        return load

    return keep


def names_for(task: str) -> Names:
    """Returns the names of the data sets for a task, which include those that are registered later."""
    return Names(CATALOG, where=lambda entry: entry.task == task)


def load_entry(name: str, options: Mapping[str, Any]) -> Any:
    """Loads a data set of the catalog. Errors of its loader are passed on.

    Args:
        name: name of the data set.
        options: options of its loader.

    Raises:
        TypeError: the data set has no such option.
    """
    entry = CATALOG[name]
    check_options(entry, options)
    return entry.load(**options)


def check_options(entry: DatasetEntry, options: Mapping[str, Any]) -> None:
    """Raises a TypeError if an option is given that the data set does not have."""
    accepted = entry.options
    for option in options:
        if option not in accepted:
            raise TypeError(f"{option}: no such option of {entry.name}; accepted: {', '.join(accepted)}")


class Loaders(Mapping[str, Callable[..., Any]]):
    """The loaders of the data sets for a task by name, which include those that are registered later."""

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
