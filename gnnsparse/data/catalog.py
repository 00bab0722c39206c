"""The catalog of data sets, and `load_dataset` and `load_sequences`, which load them by name."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gnnsparse.data.datasets import (
    NodeDataset,
    SequenceDataset,
    check_scale,
    check_seed,
    check_split,
    normalize_rows,
)
from gnnsparse.errors import bad_value, check_choice, check_flag
from gnnsparse.registry import Names, Registry

Loader = TypeVar("Loader", bound=Callable[..., Any])


@dataclass(frozen=True)
class DatasetEntry:
    """A data set that can be loaded by name.

    Attributes:
        name: the name that users give.
        load: the loader; it is called with options by keyword, and returns a data set of the task's type.
        task: the training task that it is for, a name in gnnsparse.train.tasks.
        also: other tasks that it can be for; its option `task` then says which, or the files do with "auto".
        splits: number of splits, if `load` has an option `split`; None: there is no end of them, since they
            are random.
    """

    name: str
    load: Callable[..., Any]
    task: str
    splits: int | None = None
    also: tuple[str, ...] = ()

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks that it can be for."""
        return (self.task, *self.also)

    @property
    def options(self) -> dict[str, Any]:
        """The options of `load` with their defaults, inspect.Parameter.empty for those without one."""
        return {name: option.default for name, option in inspect.signature(self.load).parameters.items()}


#: The data sets by name.
CATALOG: Registry[DatasetEntry] = Registry("name")


def register_dataset(
    name: str, *, task: str, splits: int | None = None, also: Sequence[str] = ()
) -> Callable[[Loader], Loader]:
    """Register the decorated function as the loader of a data set.

    train.py offers a data set without a file in configs/dataset with the defaults of the function's
    parameters.

    Args:
        name: the name that users give.
        task: the training task that it is for, a name in gnnsparse.train.tasks.
        splits: number of splits, if the function has a parameter `split`; None: there is no end of them.
        also: other tasks that it can be for, if the function has a parameter `task` that decides, see
            DatasetEntry.

    Raises:
        ValueError: the name is taken.
    """

    def register(load: Loader) -> Loader:
        CATALOG.register(name, DatasetEntry(name, load, task, splits, tuple(also)))
        return load

    return register


def load_entry(name: str, options: Mapping[str, Any]) -> Any:
    """Load a data set of the catalog by options of its loader, whose errors are passed on."""
    entry = CATALOG[name]
    for option in options:
        if option not in entry.options:
            raise TypeError(f"{option}: no such option of {name}; accepted: {', '.join(entry.options)}")
    return entry.load(**options)


#: The names that `load_dataset` accepts, which include those that are registered later.
DATASETS = Names(CATALOG, where=lambda entry: entry.task == "node")
#: The names that `load_sequences` accepts.
SEQUENCE_DATASETS = Names(CATALOG, where=lambda entry: entry.task == "sequence")


def load_dataset(
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    split: int | str = 0,
    seed: int = 0,
    scale: float = 1.0,
    normalize_features: bool | None = None,
    download: bool = True,
    **options: Any,
) -> NodeDataset:
    """Load a data set of nodes by name.

    `custom` is your own file, which `load_custom` reads with the options that it has: `path` and others.
    `digits` is a part of scikit-learn, `generated_weather` and the names that end in `_like` are generated,
    and all others are published data sets, which classes of PyG or OGB download. Every array is checked
    before it is used, and no file can run code: Planetoid's pickles (cora, citeseer, pubmed) are read
    without the functions that they name.

    Args:
        name: one of DATASETS.
        root: a folder with the raw files of a published data set: in itself, in its folder `raw`, or where
            PyG or OGB would put them. Nothing is written to it. None: the files are downloaded the first
            time, to $GNNSPARSE_DATA_DIR or the user's cache folder.
        split: number of the split: 0 to 9 for minesweeper and tolokers; 0 if one split is published; any
            number from 0 on if splits are random (digits, amazon_*, coauthor_*, *_like); for custom a text.
        seed: seed of generated data sets; the others ignore it.
        scale: factor of the numbers of nodes and edges of generated data sets, at most 1.
        normalize_features: whether features are divided by the sum of the magnitudes in their row; None: as
            is usual for the data set (yes for cora, citeseer and pubmed).
        download: whether missing files may be downloaded.
        options: options that only some data sets have.

    Returns:
        The data set, on the CPU.

    Raises:
        TypeError: an argument is of another type, or the data set has no such option.
        ValueError: an argument is out of range, or does not apply to this data set.
        DatasetUnavailableError: the raw files are not in `root`, can't be downloaded or read, or are
            malformed; the message names the file, the array, and what is wrong.
        MemoryError: the data set needs more memory than this process can get.
        ImportError: scikit-learn (digits) is not installed, or torch-geometric or ogb, which download.
    """
    check_choice("name", name, DATASETS)
    check_seed(seed)
    check_flag("download", download)
    if normalize_features is not None:
        check_flag("normalize_features", normalize_features)
    entry = CATALOG[name]
    known = entry.options
    by_name = isinstance(known.get("split"), str)
    if not by_name:
        check_split(split, entry.splits if "split" in known else 1)
    if check_scale(scale) != 1 and "scale" not in known:
        bad_value("scale", f"got {scale:g} for {name}; accepted: 1, as only generated data sets have a scale")
    if root is not None and "root" not in known:
        bad_value("root", f"got {str(root)!r} for {name}; accepted: None, as it needs no files")
    common: dict[str, Any] = {
        "root": root, "split": split, "seed": seed, "scale": scale,
        "normalize_features": normalize_features, "download": download,
    }  # fmt: skip
    if normalize_features is None and known.get("normalize_features") is not None:
        del common["normalize_features"]  # the loader's default
    if by_name and split == 0:
        del common["split"]
    common = {option: value for option, value in common.items() if option in known}
    dataset: NodeDataset = load_entry(name, {**common, **options})
    if normalize_features and "normalize_features" not in known:
        normalize_rows(dataset.x)
    return dataset


def load_sequences(name: str, **options: Any) -> SequenceDataset:
    """Load a data set of sequences by name.

    `listops` is generated, `lra_text_bytes` reads a folder of text files.

    Args:
        name: one of SEQUENCE_DATASETS.
        options: options of the data set: seed, min_length, max_length, train_size, val_size and test_size
            for listops (see gnnsparse.data.load_listops); root, max_length and split for lra_text_bytes (see
            gnnsparse.data.load_text_bytes).

    Returns:
        The data set, on the CPU.

    Raises:
        TypeError: an argument is of another type, or the data set has no such option.
        ValueError: an argument is out of range.
        DatasetUnavailableError: the files are not in `root`, or the data folder can't be written.
    """
    dataset: SequenceDataset = load_entry(check_choice("name", name, SEQUENCE_DATASETS), options)
    return dataset
