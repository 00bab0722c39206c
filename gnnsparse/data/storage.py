"""Storage of the raw and processed files of published data sets.

Nothing is written to the user's own folders. Files are written to the data folder: downloads to `raw/NAME`,
and what they hold to `processed/NAME-KEY`, where the key is a hash of the raw files' identity.
Each folder is built under another name and renamed when it is complete, under a lock, so that other processes
and later calls see all of it or nothing.
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

from safetensors import SafetensorError

from gnnsparse.data.raw import RawNodes, load_raw, save_raw
from gnnsparse.data.sources import Source, download_source, import_downloader
from gnnsparse.errors import bad_type

__all__ = ["DatasetUnavailableError", "data_folder", "locked", "raw_folder", "read_source", "staged"]

_PROBE_SECONDS = 10.0
_STALL_SECONDS = 60.0
#: The file of processed arrays, and a number to be raised when what it holds changes.
_ARRAYS, _LAYOUT = "arrays.safetensors", 1
#: The first bytes of files, by the ending of their names.
_MAGIC = {".npy": b"\x93NUMPY", ".gz": b"\x1f\x8b", ".json": b"{"}


class DatasetUnavailableError(RuntimeError):
    """A data set can't be loaded: the download failed, or the given folder lacks its files."""


def data_folder() -> Path:
    """Returns the folder of downloaded and processed data sets.

    It is $GNNSPARSE_DATA_DIR, or `datasets` in the user's cache folder.
    """
    if folder := os.environ.get("GNNSPARSE_DATA_DIR"):
        return Path(folder).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("gnnsparse")) / "datasets"


def read_source(source: Source, root: str | os.PathLike[str] | None, download: bool) -> RawNodes:
    """Reads a published data set from its raw files.

    Args:
        source: the data set.
        root: a folder with the raw files; None: they are downloaded the first time.
        download: whether missing files may be downloaded.

    Returns:
        What the files hold, checked. The caller owns it.

    Raises:
        DatasetUnavailableError: the files are not there, or can't be downloaded or read, or are malformed.
        MemoryError: what the files hold does not fit into memory.
        ImportError: the package that downloads them is not installed.
    """
    raw = raw_folder(source, root, download)
    folder = data_folder() / "processed" / f"{source.name}-{_identity(source, raw)}"
    if (nodes := load_raw(folder / _ARRAYS)) is not None:
        return nodes
    try:
        return _process(source, raw, folder)
    except DatasetUnavailableError as error:
        # An error of the system, such as a full disk, does not mean that the download is broken.
        if root is None and not getattr(error.__cause__, "errno", None):
            with locked(raw):
                shutil.rmtree(raw, ignore_errors=True)  # the next call downloads again
        raise


def raw_folder(source: Source, root: str | os.PathLike[str] | None, download: bool) -> Path:
    """Returns the folder of the raw files of a data set; `read_source` documents the arguments and errors."""
    return _downloaded(source, download) if root is None else _locate(source, root)


def _process(source: Source, raw: Path, folder: Path) -> RawNodes:
    """Reads the raw files and stores what they hold in `folder`, in place of what is there and is damaged."""
    with locked(folder):
        if (nodes := load_raw(folder / _ARRAYS)) is not None:
            return nodes  # another process made it while this one waited for the lock
        with staged(folder) as staging:
            try:
                nodes = source.read(raw, source.files)
                save_raw(nodes, staging / _ARRAYS)
            except (ValueError, OSError, SafetensorError) as error:
                raise DatasetUnavailableError(
                    f"{source.name}: the raw files in {raw} can't be read ({_reason(error)})"
                ) from error
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(staging, folder)
        return nodes


def _locate(source: Source, root: str | os.PathLike[str]) -> Path:
    """Returns the folder in `root` that holds the raw files; raises DatasetUnavailableError if none does."""
    if not isinstance(root, (str, os.PathLike)):
        bad_type("root", root, "a folder, or None to download")
    base = Path(root).expanduser().absolute()
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


def _identity(source: Source, raw: Path) -> str:
    """Returns a hash of the paths, sizes and times of the raw files and of the layout, 16 hex digits."""
    parts: list[Any] = [_LAYOUT]
    for file in source.files:
        path = (raw / file).resolve()
        status = path.stat()
        parts.append([str(path), status.st_size, status.st_mtime_ns])
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()


def _downloaded(source: Source, download: bool) -> Path:
    """Returns the folder of the downloaded raw files, and downloads them if they are missing."""
    raw = data_folder() / "raw" / source.name
    if not _missing(source, raw):
        return raw
    if not download:
        _raise_unavailable(source, "is not downloaded, and download=False")
    import_downloader(source)  # so that a missing package is not reported as a failed download
    with locked(raw):
        if _missing(source, raw):  # another process may have downloaded them since
            with staged(raw) as staging:
                found = _fetch(source, staging)
                shutil.rmtree(raw, ignore_errors=True)
                os.replace(found, raw)
    return raw


def _fetch(source: Source, staging: Path) -> Path:
    """Downloads into `staging`, and returns the folder of the raw files there."""
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
    """Returns whether a file begins as its ending demands: sites over their quota send web pages instead."""
    if path.suffix == ".npz":
        return zipfile.is_zipfile(path)  # looks for the archive's end, so truncated files are found
    with open(path, "rb") as file:
        start = file.read(8)
    return len(start) > 0 and start.startswith(_MAGIC.get(path.suffix, b""))


def _probe(site: str) -> None:
    """Raises URLError within seconds if a site can't be reached; readers might wait for minutes."""
    try:
        request = urllib.request.Request(site, method="HEAD")
        urllib.request.urlopen(request, timeout=_PROBE_SECONDS).close()
    except urllib.error.HTTPError as error:
        error.close()  # the site answers; the download finds out whether it has the files
    except urllib.error.URLError as error:
        if not isinstance(error.reason, ssl.SSLError):  # PyG's downloads accept any certificate
            raise


@contextlib.contextmanager
def _no_endless_waits() -> Iterator[None]:
    """Sets a time limit for stalled connections inside a `with` block, since readers set none."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_STALL_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the file lock of a folder in the data folder inside a `with` block; creates the parent folder.

    Raises:
        DatasetUnavailableError: the data folder can't be written.
    """
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
    """Yields an empty folder next to `folder`, which is removed after the `with` block unless it was renamed.

    The caller holds the lock of `folder`.
    """
    staging = folder.with_name(folder.name + ".part")
    shutil.rmtree(staging, ignore_errors=True)  # left behind by a process that was killed
    staging.mkdir(parents=True)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
