"""The sources of published data sets: their raw files, what reads these, and what downloads them."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnsparse.data.optional import import_optional
from gnnsparse.data.raw import RawNodes

__all__ = ["SOURCES", "Source", "download_source", "import_downloader", "no_update_check"]


@dataclass(frozen=True)
class Source:
    """The source of a published data set.

    Attributes:
        name: name of the data set in this package.
        downloader: name of the class in torch_geometric.datasets that downloads the raw files, or "ogb".
        args: arguments of the class after its root.
        read: takes the folder of the raw files and their names, and returns what they hold.
        place: folder of the raw files, relative to the root.
        files: the raw files, relative to `place`.
        site: the site that a download must reach.
        splits: number of splits in the files; None: they have none.
        metric: the metric that the data set is scored by.
        directed: whether the files have each edge in one direction only; reverse edges are then added.
        normalize: whether features are usually divided by the sum of their row.
    """

    name: str
    downloader: str
    args: tuple[str, ...]
    read: Callable[[Path, tuple[str, ...]], RawNodes]
    place: str
    files: tuple[str, ...]
    site: str
    splits: int | None = 1
    metric: str = "accuracy"
    directed: bool = False
    normalize: bool = False


#: The registered sources (gnnsparse.data.published) by name.
SOURCES: dict[str, Source] = {}


def import_downloader(source: Source) -> Any:
    """Imports the class that downloads the raw files of a data set below a root, its first argument.

    Raises:
        ImportError: PyG or OGB is not installed.
    """
    datasets = import_optional("torch_geometric.datasets", source.name)
    return _ogb_downloader(source) if source.downloader == "ogb" else getattr(datasets, source.downloader)


def _ogb_downloader(source: Source) -> Any:
    with no_update_check():
        ogb = import_optional("ogb.nodeproppred", source.name)
    url = import_optional("ogb.utils.url", source.name)

    class OgbDownloader(ogb.PygNodePropPredDataset):  # type: ignore[name-defined]
        def __init__(self, root: str, name: str) -> None:
            super().__init__(name, root)

        def download(self) -> None:
            # OGB's own method asks on the terminal before it downloads more than 1 GB.
            archive = url.download_url(self.meta_info["url"], self.original_root)
            url.extract_zip(archive, self.original_root)
            os.unlink(archive)
            shutil.rmtree(self.root)
            shutil.move(os.path.join(self.original_root, self.download_name), self.root)

    return OgbDownloader


@contextlib.contextmanager
def no_update_check() -> Iterator[None]:
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


class _DownloadedError(Exception):
    """Raised to end a class's constructor after downloading, before it reads the files."""


def download_source(source: Source, root: Path) -> Path:
    """Downloads the raw files of a data set below `root`, and returns their folder.

    Errors of the class that downloads are passed on; they are of many types.
    """
    base = import_downloader(source)

    def stop(dataset: Any) -> None:
        raise _DownloadedError

    downloader = type(base.__name__, (base,), {"process": stop})
    with _contained(), contextlib.suppress(_DownloadedError):
        downloader(str(root), *source.args)
    return root / source.place


@contextlib.contextmanager
def _contained() -> Iterator[None]:
    """Undoes changes that classes of PyG and OGB make to the state of the process."""
    with (
        contextlib.redirect_stdout(sys.stderr),  # OGB prints its progress to stdout
        warnings.catch_warnings(),
    ):
        yield
