"""Raw and processed files of the published data sets.

The user's own folders are only read. Everything written goes to the data folder: downloads to
`raw/NAME`, and what a reader makes of raw files to `processed/NAME-KEY`, where the key stands for
those very files. Each folder is built under another name and renamed once it is whole, under a
lock, so that another process, or the next try, sees all of it or nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import ssl
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gnnsparse.data.sources import Source, download_source, import_reader, open_source
from gnnsparse.errors import bad_type

__all__ = ["DatasetUnavailableError", "data_folder", "locked", "read_source", "staged"]

_PROBE_SECONDS = 10.0
_STALL_SECONDS = 60.0
#: How files of a kind begin.
_MAGIC = {".npy": b"\x93NUMPY", ".gz": b"\x1f\x8b", ".json": b"{"}


class DatasetUnavailableError(RuntimeError):
    """A data set can't be had: no download, or no such files in the folder given."""


def data_folder() -> Path:
    """Where downloaded and processed data sets are kept: $GNNSPARSE_DATA_DIR or the user's cache folder."""
    if folder := os.environ.get("GNNSPARSE_DATA_DIR"):
        return Path(folder).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("gnnsparse")) / "datasets"


def read_source(source: Source, root: str | os.PathLike[str] | None, download: bool) -> tuple[Any, Any]:
    """Reads a data set from the raw files in `root`, or from downloaded ones if that is None.

    Returns:
        What `open_source` does.

    Raises:
        DatasetUnavailableError: the files are not there, or can't be downloaded or read.
        ImportError: the package that reads them is not installed.
    """
    import_reader(source)  # a missing package is no missing file
    raw = _downloaded(source, download) if root is None else _locate(source, root)
    folder = data_folder() / "processed" / f"{source.name}-{_identity(source, raw)}"
    try:
        _process(source, raw, folder)
    except DatasetUnavailableError as error:
        if root is None and not getattr(error.__cause__, "errno", None):  # no full disk or the like
            with locked(raw):
                shutil.rmtree(raw, ignore_errors=True)  # a broken download: the next try starts afresh
        raise
    try:
        return open_source(source, folder)
    except Exception:
        # Damaged since, or of another release of torch: the raw files are what counts.
        with locked(folder):
            shutil.rmtree(folder, ignore_errors=True)
        _process(source, raw, folder)
        return open_source(source, folder)


def _process(source: Source, raw: Path, folder: Path) -> None:
    """Lets the reader process links to the raw files in `folder`, unless that was done before."""
    if folder.is_dir():
        return
    with locked(folder):
        if folder.is_dir():  # another process was faster
            return
        with staged(folder) as staging:
            for file in source.files:
                link = staging / source.place / file
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to((raw / file).resolve())
            try:
                open_source(source, staging)
            except Exception as error:
                raise DatasetUnavailableError(
                    f"{source.name}: the raw files in {raw} can't be read ({_reason(error)})"
                ) from error
            os.replace(staging, folder)


def _locate(source: Source, root: str | os.PathLike[str]) -> Path:
    """The folder in `root` that holds the raw files."""
    if not isinstance(root, (str, os.PathLike)):
        bad_type("root", root, "a folder, or None to download")
    base = Path(root).expanduser().absolute()
    if source.reader == "ogb":
        places = [".", source.place, source.place.partition("_")[2]]  # the last: as in OGB's archive
    else:
        places = [".", "raw", source.place, source.place.lower(), f"{source.reader}/{source.place}"]
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


def _identity(source: Source, raw: Path) -> str:
    """A short name for these very files, read by this very release of PyG."""
    import torch_geometric

    parts: list[Any] = [torch_geometric.__version__]
    for file in source.files:
        path = (raw / file).resolve()
        status = path.stat()
        parts.append([str(path), status.st_size, status.st_mtime_ns])
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()


def _downloaded(source: Source, download: bool) -> Path:
    """The folder of the downloaded raw files, after a download if it is not there."""
    raw = data_folder() / "raw" / source.name
    if not _missing(source, raw):
        return raw
    if not download:
        _raise_unavailable(source, "is not downloaded, and download=False")
    with locked(raw):
        if _missing(source, raw):  # another process may have been faster
            with staged(raw) as staging:
                found = _fetch(source, staging)
                shutil.rmtree(raw, ignore_errors=True)
                os.replace(found, raw)
    return raw


def _fetch(source: Source, staging: Path) -> Path:
    """Downloads into `staging`; returns the folder of the raw files."""
    try:
        _probe(source.site)
        with _no_endless_waits():
            found = download_source(source, staging)
    except Exception as error:
        _raise_unavailable(source, f"can't be downloaded ({_reason(error)})", error)
    if wrong := _missing(source, found) or [f for f in source.files if not _looks_whole(found / f)]:
        _raise_unavailable(source, f"came without, or with something else as, {', '.join(wrong)}")
    return found


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
    """Whether a file is of the kind its name says. A site over its quota may send a page instead."""
    if path.suffix == ".npz":
        return zipfile.is_zipfile(path)  # finds the end of the archive: it was not cut off
    with open(path, "rb") as file:
        start = file.read(8)
    return len(start) > 0 and start.startswith(_MAGIC.get(path.suffix, b""))


def _probe(site: str) -> None:
    """Raises URLError soon where the site can't be reached: the readers themselves may wait for minutes."""
    try:
        request = urllib.request.Request(site, method="HEAD")
        urllib.request.urlopen(request, timeout=_PROBE_SECONDS).close()
    except urllib.error.HTTPError as error:
        error.close()  # it answers; whether the files are there the download will tell
    except urllib.error.URLError as error:
        if not isinstance(error.reason, ssl.SSLError):  # PyG's downloads accept any certificate
            raise


@contextlib.contextmanager
def _no_endless_waits() -> Iterator[None]:
    """Lets a stalled connection fail: the readers set no time limit of their own."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_STALL_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder in the data folder, and makes its parent."""
    import filelock

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder.with_name(folder.name + ".lock"))
        lock.acquire()
    except (OSError, NotImplementedError) as error:
        raise DatasetUnavailableError(
            f"the data folder {data_folder()} can't be written ({error}): "
            "set GNNSPARSE_DATA_DIR to one that can"
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """An empty folder beside `folder`, whose lock is held; gone afterwards unless renamed."""
    staging = folder.with_name(folder.name + ".part")
    shutil.rmtree(staging, ignore_errors=True)  # left behind by a process that was killed
    staging.mkdir(parents=True)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
