"""The published data sets: which class of PyG or OGB reads each, and which raw files it needs."""

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
    """Where a data set comes from.

    Attributes:
        name: ours.
        reader: a class of torch_geometric.datasets, or "ogb".
        args: what the class takes after its root.
        place: the folder of the raw files, below the root of the class.
        files: the raw files, below `place`.
        site: what a download needs to reach.
        splits: number of splits the files hold; None: they hold none.
        metric: what the data set is scored by.
        directed: the graph has one direction of its edges only; they are made undirected.
        normalize: the features are usually divided by the sum of their row.
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


#: Those that are registered (gnnsparse.data.published), by name.
SOURCES: dict[str, Source] = {}


def import_reader(source: Source) -> Any:
    """The class that reads a data set: called with a root, it reads the raw files below it.

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
            # OGB's own asks on the terminal before a download above 1 GB.
            archive = url.download_url(self.meta_info["url"], self.original_root)
            url.extract_zip(archive, self.original_root)
            os.unlink(archive)
            shutil.rmtree(self.root)
            shutil.move(os.path.join(self.original_root, self.download_name), self.root)

    return OgbReader


@contextlib.contextmanager
def _no_update_check() -> Iterator[None]:
    """Hides a package with which ogb asks the network for a newer release of itself, at import.

    It does so in threads without a time limit: a process behind a firewall could not end before
    they give up.
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
    """Reads a data set below `root`, writing processed files there unless they are there already.

    Returns:
        PyG's Data object, and OGB's lists of node ids ("train", "valid", "test"), None elsewhere.
    """
    reader = import_reader(source)
    if source.reader == "ogb":
        # OGB asks on the terminal whether to update the data where this is missing.
        release = root / source.place / "RELEASE_v1.txt"
        if not release.exists():
            release.touch()
    with _contained():
        dataset = reader(str(root), *source.args)
        splits = dataset.get_idx_split() if source.reader == "ogb" else None
        return dataset[0], splits


class _DownloadedError(Exception):
    """Ends a reader's constructor between downloading and processing."""


def download_source(source: Source, root: Path) -> Path:
    """Downloads the raw files of a data set below `root`; returns the folder they are in.

    Raises whatever the readers do: they tell failures apart by many kinds of exceptions.
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
    """Lets OGB load its files, and keeps what the readers do to the whole process in bounds."""
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    # OGB stores these with torch.save, and torch >= 2.6 loads no class it was not told of.
    known = [Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]
    with (
        torch.serialization.safe_globals(known),
        contextlib.redirect_stdout(sys.stderr),  # OGB reports its progress by print
        warnings.catch_warnings(),  # Planetoid adds filters
    ):
        # OGB makes tensors of pandas' read-only arrays, only to store them.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        yield
