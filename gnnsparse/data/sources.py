"""The sources of published data sets: the class of PyG or OGB that reads each, and its raw files."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gnnsparse.data.optional import import_optional

__all__ = ["SOURCES", "Source", "download_source", "import_reader", "open_source"]


@dataclass(frozen=True)
class Source:
    """The source of a published data set.

    Attributes:
        name: name of the data set in this package.
        reader: name of a class in torch_geometric.datasets, or "ogb".
        args: arguments of the class after its root.
        place: folder of the raw files, relative to the root.
        files: the raw files, relative to `place`.
        site: the site that a download must reach.
        splits: number of splits in the files; None: they have none.
        metric: the metric that the data set is scored by.
        directed: whether the files have each edge in one direction only; reverse edges are then added.
        normalize: whether features are usually divided by the sum of their row.
    """

    name: str
    reader: str
    args: tuple[str, ...]
    place: str
    files: tuple[str, ...]
    site: str
    splits: int | None = 1
    metric: str = "accuracy"
    directed: bool = False
    normalize: bool = False


#: The registered sources (gnnsparse.data.published) by name.
SOURCES: dict[str, Source] = {}


def import_reader(source: Source) -> Any:
    """Imports the class that reads a data set from the raw files below a root, its first argument.

    Raises:
        ImportError: PyG or OGB is not installed.
    """
    datasets = import_optional("torch_geometric.datasets", source.name)
    return _ogb_reader(source) if source.reader == "ogb" else getattr(datasets, source.reader)


def _ogb_reader(source: Source) -> Any:
    with _no_update_check():
        ogb = import_optional("ogb.nodeproppred", source.name)
    url = import_optional("ogb.utils.url", source.name)

    class OgbReader(ogb.PygNodePropPredDataset):  # type: ignore[name-defined]
        def __init__(self, root: str, name: str) -> None:
            super().__init__(name, root)

        def download(self) -> None:
            # OGB's own method asks on the terminal before it downloads more than 1 GB.
            archive = url.download_url(self.meta_info["url"], self.original_root)
            url.extract_zip(archive, self.original_root)
            os.unlink(archive)
            shutil.rmtree(self.root)
            shutil.move(os.path.join(self.original_root, self.download_name), self.root)

    return OgbReader


@contextlib.contextmanager
def _no_update_check() -> Iterator[None]:
    """Hides the package `outdated`, by which ogb looks for a newer release of itself when it is imported.

    It asks the network in threads without a time limit, for which a process behind a firewall would wait.
    """
    if "outdated" in sys.modules:
        yield
        return
    sys.modules["outdated"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["outdated"]


def open_source(source: Source, root: Path) -> tuple[Any, dict[str, torch.Tensor] | None]:
    """Reads a data set below `root`, and writes processed files there if there are none.

    Returns:
        PyG's Data object; and for OGB the node ids of the parts "train", "valid" and "test", else None.
    """
    reader = import_reader(source)
    if source.reader == "ogb":
        # If this file is missing, OGB asks on the terminal whether to update the data.
        release = root / source.place / "RELEASE_v1.txt"
        if not release.exists():
            release.touch()
    with _contained():
        dataset = reader(str(root), *source.args)
        splits = dataset.get_idx_split() if source.reader == "ogb" else None
        return dataset[0], splits


class _DownloadedError(Exception):
    """Raised to end a reader's constructor after downloading, before processing."""


def download_source(source: Source, root: Path) -> Path:
    """Downloads the raw files of a data set below `root`, and returns their folder.

    Errors of the reader are passed on; they are of many types.
    """
    reader = import_reader(source)

    def stop(dataset: Any) -> None:
        raise _DownloadedError

    downloader = type(reader.__name__, (reader,), {"process": stop})
    with _contained(), contextlib.suppress(_DownloadedError):
        downloader(str(root), *source.args)
    return root / source.place


@contextlib.contextmanager
def _contained() -> Iterator[None]:
    """Lets OGB load its files, and undoes changes that readers make to the state of the process."""
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    # OGB stores these classes by torch.save, and torch >= 2.6 loads only classes that are registered.
    known = [Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]
    with (
        torch.serialization.safe_globals(known),
        contextlib.redirect_stdout(sys.stderr),  # OGB prints its progress to stdout
        warnings.catch_warnings(),  # Planetoid adds filters of warnings
    ):
        # OGB makes tensors of pandas' read-only arrays, which is safe: it only stores them.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        yield
