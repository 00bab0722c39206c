"""The sources of published data sets: their raw files, downloads, and what they hold as stored arrays.

Nothing is written to the user's own folders. Files are written to the data folder: downloads to `raw/NAME`,
and what they hold to `processed/NAME-KEY.safetensors`, where the key is a hash of the raw files' identity.
Each is made under another name and renamed when it is complete, under a lock, so that other processes and
later calls see all of it or nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import ssl
import sys
import urllib.error
import urllib.request
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from gnnsparse.data.optional import import_optional
from gnnsparse.errors import bad_value, path_of
from gnnsparse.runtime.cache_files import DamagedError, NotOursError, open_file, write_file

Made = TypeVar("Made")

#: A number to be raised when what a file of processed arrays holds changes.
_LAYOUT = 2
#: Seconds that a site may take to answer, and that a connection may stall.
_PROBE_SECONDS, _STALL_SECONDS = 10.0, 60.0
#: The first bytes of files, by the ending of their names.
_MAGIC = {".npy": b"\x93NUMPY", ".gz": b"\x1f\x8b", ".json": b"{"}


class DatasetUnavailableError(RuntimeError):
    """A data set can't be loaded: the download failed, or the given folder lacks its files."""


@dataclass(frozen=True, eq=False)
class RawNodes:
    """N nodes and their edges, int32 [2, edges], sources over targets, in any order and with repeats.

    x is float32 [N, F], finite; y int64 [N], classes below N, or float32 [N, labels] of 0 and 1; masks of the
    training, validation and test nodes are bool [3, splits, N], or None if the files have no split.
    """

    edges: torch.Tensor
    x: torch.Tensor
    y: torch.Tensor
    masks: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.x.shape[0] == 0:
            bad_value("x", "has no rows; accepted: one node or more")
        if self.masks is not None and bool((self.masks.sum(dim=0) > 1).any()):
            bad_value("masks", "a node is in two of them; accepted: masks without overlap")


def stored_arrays(file: Path, make: Callable[[], dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return the arrays of a file in the data folder, which is written if it is missing or damaged."""
    if (found := _load(file)) is not None:
        return found
    with locked(file):
        if (found := _load(file)) is not None:
            return found  # another process made it while this one waited for the lock
        part = file.with_name(file.name + ".part")
        part.unlink(missing_ok=True)  # left behind by a process that was killed
        try:
            found = make()
            write_file(part, found, {})
            os.replace(part, file)
        finally:
            part.unlink(missing_ok=True)
    return found


def _load(file: Path) -> dict[str, torch.Tensor] | None:
    try:
        with open_file(file) as opened:
            return opened.read()[0]
    except (OSError, DamagedError, NotOursError):
        return None


@dataclass(frozen=True)
class Source:
    """The source of a published data set."""

    name: str
    downloader: str  # the class in torch_geometric.datasets that downloads the raw files, or "ogb"
    args: tuple[str, ...]  # of the class after its root
    #: Takes the folder of the raw files and their names, and returns what they hold; None: they are not of
    #: nodes.
    read: Callable[[Path, tuple[str, ...]], RawNodes] | None
    place: str  # folder of the raw files, relative to the root
    files: tuple[str, ...]  # the raw files, relative to `place`
    site: str  # the site that a download must reach
    splits: int | None = 1  # their number; None: there is no end of them, since they are random
    metric: str = "accuracy"
    directed: bool = False  # whether the files lack the reverse edges, which are then added
    normalize: bool = False  # whether features are usually divided by the sum of their row


#: The registered sources (gnnsparse.data.published) by name.
SOURCES: dict[str, Source] = {}


def import_downloader(source: Source) -> Any:
    """Import the class that downloads the raw files of a data set below a root, its first argument."""
    datasets = import_optional("torch_geometric.datasets", source.name)
    if source.downloader != "ogb":
        return getattr(datasets, source.downloader)
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
    """Hide `outdated`, by which ogb asks the network for a newer release, without a time limit."""
    hides = "outdated" not in sys.modules
    sys.modules.setdefault("outdated", None)  # type: ignore[arg-type]
    try:
        yield
    finally:
        if hides:
            del sys.modules["outdated"]


class _DownloadedError(Exception):
    """Raised to end a class's constructor after downloading, before it reads the files."""


def _download(source: Source, root: Path) -> Path:
    """Download the raw files below `root`, and return their folder; errors are the downloader's."""
    base = import_downloader(source)

    def stop(dataset: Any) -> None:
        raise _DownloadedError

    downloader = type(base.__name__, (base,), {"process": stop})
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_STALL_SECONDS)  # since the classes set none
    try:
        with (
            contextlib.redirect_stdout(sys.stderr),  # to which OGB prints its progress
            warnings.catch_warnings(),  # the classes change its filters
            contextlib.suppress(_DownloadedError),
        ):
            downloader(str(root), *source.args)
    finally:
        socket.setdefaulttimeout(before)
    return root / source.place


def data_folder() -> Path:
    """Return the folder of downloaded and processed data sets.

    It is $GNNSPARSE_DATA_DIR, or `datasets` in the user's cache folder.
    """
    if folder := os.environ.get("GNNSPARSE_DATA_DIR"):
        return Path(folder).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("gnnsparse")) / "datasets"


def read_source(source: Source, root: str | os.PathLike[str] | None, download: bool) -> RawNodes:
    """Read a published data set from its raw files in `root`; None: from those that are downloaded."""

    def make(raw: Path) -> dict[str, torch.Tensor]:
        assert source.read is not None
        nodes = source.read(raw, source.files)
        return {name: array for name, array in vars(nodes).items() if array is not None}

    return stored_source(source, root, download, lambda arrays: RawNodes(**arrays), make)


def stored_source(
    source: Source,
    root: str | os.PathLike[str] | None,
    download: bool,
    use: Callable[[dict[str, torch.Tensor]], Made],
    make: Callable[[Path], dict[str, torch.Tensor]],
) -> Made:
    """Return what `use` makes of the arrays that `make` reads in the folder of raw files; they are stored."""
    raw = raw_folder(source, root, download)
    try:
        parts: list[Any] = [_LAYOUT]
        for path in [(raw / file).resolve() for file in source.files]:
            parts.append([str(path), path.stat().st_size, path.stat().st_mtime_ns])
        key = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()
        file = data_folder() / "processed" / f"{source.name}-{key}.safetensors"
        return use(stored_arrays(file, lambda: make(raw)))
    except (ValueError, OSError) as error:
        # An error of the system, such as a full disk, does not mean that the download is broken.
        if root is None and not getattr(error, "errno", None):
            with locked(raw):
                shutil.rmtree(raw, ignore_errors=True)  # the next call downloads again
        raise DatasetUnavailableError(
            f"{source.name}: the raw files in {raw} can't be read ({_reason(error)})"
        ) from error


def raw_folder(source: Source, root: str | os.PathLike[str] | None, download: bool) -> Path:
    """Return the folder of the raw files of a data set; `read_source` documents the arguments and errors."""
    if root is None:
        return _downloaded(source, download)
    base = path_of("root", root, "a folder, or None to download").expanduser().absolute()
    if source.downloader == "ogb":
        places = [".", source.place, source.place.partition("_")[2]]  # last: as in OGB's archive
    else:
        places = [".", "raw", source.place, source.place.lower(), f"{source.downloader}/{source.place}"]
        places.append(f"{source.name}/raw")
    folders = list(dict.fromkeys(base / place for place in places))
    best = min(folders, key=lambda folder: len(_missing(source, folder)))
    missing = _missing(source, best)
    if not missing:
        return best
    if len(missing) < len(source.files):
        where = f"{best} lacks {', '.join(missing)}"
    else:
        where = f"looked for {', '.join(missing)} in {', '.join(map(str, folders))}"
    raise DatasetUnavailableError(f"root: no complete raw files of {source.name} in {base}: {where}")


def _missing(source: Source, folder: Path) -> list[str]:
    return [file for file in source.files if not (folder / file).is_file()]


def _downloaded(source: Source, download: bool) -> Path:
    raw = data_folder() / "raw" / source.name
    if not _missing(source, raw):
        return raw
    if not download:
        _raise_unavailable(source, "is not downloaded, and download=False")
    import_downloader(source)  # so that a missing package is not reported as a failed download
    with locked(raw):
        if not _missing(source, raw):
            return raw  # another process has downloaded them since
        staging = raw.with_name(raw.name + ".part")
        shutil.rmtree(staging, ignore_errors=True)  # left behind by a process that was killed
        staging.mkdir(parents=True)
        try:
            try:
                _probe(source.site)
                found = _download(source, staging)
            except Exception as error:
                _raise_unavailable(source, f"can't be downloaded ({_reason(error)})", error)
            if wrong := _missing(source, found) or [f for f in source.files if not _looks_whole(found / f)]:
                _raise_unavailable(source, f"came without, or with something else as, {', '.join(wrong)}")
            shutil.rmtree(raw, ignore_errors=True)
            os.replace(found, raw)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return raw


def _raise_unavailable(source: Source, problem: str, cause: Exception | None = None) -> None:
    raise DatasetUnavailableError(
        f"{source.name}: the data set {problem}. Either connect to the network ({source.site} is asked), "
        f"or put its raw files in a folder DIR and pass root=DIR (dataset.root=DIR on the command line). "
        f"The files: {', '.join(source.files)}"
    ) from cause


def _reason(error: BaseException) -> str:
    if isinstance(error, urllib.error.URLError) and not isinstance(error, urllib.error.HTTPError):
        return f"no connection: {error.reason}"
    return f"{type(error).__name__}: {error}"


def _looks_whole(path: Path) -> bool:
    """Return whether a file begins as its ending demands: sites over their quota send web pages instead."""
    if path.suffix == ".npz":
        return zipfile.is_zipfile(path)  # looks for the archive's end, so truncated files are found
    with open(path, "rb") as file:
        start = file.read(8)
    return len(start) > 0 and start.startswith(_MAGIC.get(path.suffix, b""))


def _probe(site: str) -> None:
    """Raise URLError within seconds if a site can't be reached; readers might wait for minutes."""
    try:
        request = urllib.request.Request(site, method="HEAD")
        urllib.request.urlopen(request, timeout=_PROBE_SECONDS).close()
    except urllib.error.HTTPError as error:
        error.close()  # the site answers; the download finds out whether it has the files
    except urllib.error.URLError as error:
        if not isinstance(error.reason, ssl.SSLError):  # PyG's downloads accept any certificate
            raise


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the file lock of a folder in the data folder inside a `with` block; creates the parent folder."""
    import filelock

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder.with_name(folder.name + ".lock"))
        held = lock.acquire()
    except (OSError, NotImplementedError) as error:
        raise DatasetUnavailableError(
            f"the data folder {data_folder()} can't be written ({error}): "
            "set GNNSPARSE_DATA_DIR to one that can"
        ) from error
    with held:
        yield
