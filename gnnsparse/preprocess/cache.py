"""The cache of prepared graphs: one safetensors file per graph and parameters.

A file is written under another name, synced and renamed, so that readers see a whole file or none. Every
tensor and the metadata have a checksum, which is verified on load. A damaged file is reported and rebuilt.
When the folder exceeds its size cap, the least recently used files are removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gnnsparse.errors import bad_type
from gnnsparse.hashing import digest, fingerprint

__all__ = ["CACHE_VERSION", "CacheEntry", "CacheWarning", "GraphCache"]

#: A part of every key, to be raised when the meaning of the stored arrays changes.
CACHE_VERSION = 1
_DEFAULT_CAP = 20 * 2**30
_SUFFIX = ".safetensors"
#: An unfinished file that is older than this was left behind by a process that ended while writing.
_STALE_SECONDS = 24 * 3600


class CacheWarning(UserWarning):
    """A warning that the cache could not be read or written, and the work was done without it."""


class _DamagedError(Exception):
    """The content of a cache file is not what was written."""


@dataclass(frozen=True)
class CacheEntry:
    """One file of the cache.

    Attributes:
        key: key of the prepared graph, the name of the file without its ending.
        path: the file.
        nbytes: size of the file.
        used: time of the last use, in seconds since the epoch.
        metadata: the plain values stored with the tensors; None if the header can't be read.
    """

    key: str
    path: Path
    nbytes: int
    used: float
    metadata: dict[str, Any] | None


def _default_folder() -> Path:
    if folder := os.environ.get("GNNSPARSE_CACHE_DIR"):
        return Path(folder)
    import platformdirs

    return Path(platformdirs.user_cache_dir("gnnsparse")) / "graphs"


def _size_cap() -> int:
    text = os.environ.get("GNNSPARSE_CACHE_MAX_BYTES", "")
    try:
        return int(text) if text else _DEFAULT_CAP
    except ValueError:
        warnings.warn(
            f"GNNSPARSE_CACHE_MAX_BYTES is {text!r}, not a number; using {_DEFAULT_CAP}",
            CacheWarning,
            stacklevel=2,
        )
        return _DEFAULT_CAP


def _checksum(name: str, tensor: torch.Tensor) -> str:
    return f"{name}:{tensor.dtype}:{tuple(tensor.shape)}:{digest(tensor)}"


class GraphCache:
    """A folder of prepared graphs.

    Args:
        folder: the folder; None: $GNNSPARSE_CACHE_DIR or the user's cache folder.
        max_bytes: size cap of the folder; None: $GNNSPARSE_CACHE_MAX_BYTES or 20 GiB.

    Raises:
        TypeError: `folder` is no path.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, max_bytes: int | None = None) -> None:
        if folder is not None and not isinstance(folder, (str, os.PathLike)):
            bad_type("cache", folder, "True, False or a folder")
        self.folder = _default_folder() if folder is None else Path(folder)
        self.max_bytes = _size_cap() if max_bytes is None else max_bytes

    def path(self, key: str) -> Path:
        """Returns the file of a key, whether or not it exists."""
        return self.folder / (key + _SUFFIX)

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[bool]:
        """Holds the key's file lock inside a `with` block, against other processes that write the file.

        Yields:
            True; or False, after a CacheWarning, if the folder can't be written.
        """
        import filelock

        lock = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self.folder / (key + ".lock"))
            lock.acquire()
        except (OSError, NotImplementedError) as error:
            lock = None
            warnings.warn(
                f"the cache folder {self.folder} can't be written ({error}); the prepared graph is "
                "not kept. Set GNNSPARSE_CACHE_DIR, or cache=False to silence this",
                CacheWarning,
                stacklevel=3,
            )
        try:
            yield lock is not None
        finally:
            if lock is not None:
                lock.release()

    def load(self, key: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        """Reads the file of a key and verifies its checksums.

        A damaged file is removed, and a CacheWarning names it.

        Returns:
            The tensors, which are memory-mapped, and the metadata; None if there is no valid file.
        """
        path = self.path(key)
        if not path.exists():
            return None
        try:
            found = self._read(path)
        except _DamagedError as problem:
            warnings.warn(
                f"the cache file {path} is damaged ({problem}); it is rebuilt", CacheWarning, stacklevel=3
            )
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        except OSError as error:
            warnings.warn(f"the cache file {path} can't be read: {error}", CacheWarning, stacklevel=3)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # last use, for the size cap
        return found

    def store(self, key: str, tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> None:
        """Writes the file of a key atomically. If the disk is full or fails, a CacheWarning says so.

        Args:
            key: the key.
            tensors: tensors on the CPU, contiguous, without shared memory.
            metadata: plain values that JSON can express.
        """
        from safetensors.torch import save_file

        text = json.dumps(metadata)
        sums = {name: _checksum(name, tensor) for name, tensor in tensors.items()}
        # These keys belong to the file format: files with other ones count as damaged.
        header = {"facts": text, "sums": json.dumps(sums), "facts_sum": fingerprint([], text)}
        temporary = self.folder / f"{key}-{uuid.uuid4().hex}.part"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            save_file(tensors, temporary, header)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, self.path(key))
            self._evict(keep=key)
        except (OSError, RuntimeError) as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            warnings.warn(
                f"the cache file {self.path(key)} can't be written: {error}", CacheWarning, stacklevel=3
            )

    def entries(self) -> list[CacheEntry]:
        """Lists all files, the most recently used first."""
        found = []
        for path in self.folder.glob("*" + _SUFFIX) if self.folder.is_dir() else ():
            try:
                status = path.stat()
            except OSError:
                continue  # another process removed it
            try:
                metadata = self._metadata(path)
            except (_DamagedError, OSError):
                metadata = None
            found.append(CacheEntry(path.stem, path, status.st_size, status.st_mtime, metadata))
        return sorted(found, key=lambda entry: entry.used, reverse=True)

    def verify(self) -> Iterator[tuple[CacheEntry, str | None]]:
        """Reads every file and verifies its checksums. Damaged files are not removed.

        Yields:
            Each entry, with what is wrong with it, or None.
        """
        for entry in self.entries():
            try:
                self._read(entry.path)
                yield entry, None
            except (_DamagedError, OSError) as problem:
                yield entry, str(problem)

    def clear(self) -> int:
        """Removes every file of the cache, and returns the number of prepared graphs among them."""
        removed = 0
        for pattern in ("*" + _SUFFIX, "*.part", "*.lock"):
            for path in self.folder.glob(pattern) if self.folder.is_dir() else ():
                path.unlink(missing_ok=True)
                removed += pattern.endswith(_SUFFIX)
        return removed

    def _evict(self, keep: str) -> None:
        total = 0
        for entry in self.entries():
            total += entry.nbytes
            if total > self.max_bytes and entry.key != keep:
                with contextlib.suppress(OSError):
                    entry.path.unlink()
        for left_over in self.folder.glob("*.part"):
            with contextlib.suppress(OSError):
                if time.time() - left_over.stat().st_mtime > _STALE_SECONDS:
                    left_over.unlink()

    @staticmethod
    def _open(path: Path) -> Any:
        from safetensors import SafetensorError, safe_open

        try:
            return safe_open(path, framework="pt")
        except (SafetensorError, UnicodeDecodeError, ValueError) as error:
            raise _DamagedError(str(error)) from error

    @classmethod
    def _metadata(cls, path: Path) -> dict[str, Any]:
        with cls._open(path) as file:
            header = file.metadata() or {}
        try:
            text = header["facts"]
            if fingerprint([], text) != header["facts_sum"]:
                raise _DamagedError("its metadata do not match their checksum")
            return dict(json.loads(text))
        except (KeyError, ValueError, TypeError) as error:
            raise _DamagedError(f"its header is not ours: {error}") from error

    @classmethod
    def _read(cls, path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        from safetensors import SafetensorError

        metadata = cls._metadata(path)
        with cls._open(path) as file:
            try:
                sums = json.loads((file.metadata() or {})["sums"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            except (KeyError, ValueError, SafetensorError) as error:
                raise _DamagedError(str(error)) from error
        if not isinstance(sums, dict) or set(sums) != set(tensors):
            raise _DamagedError("its arrays are not those that were written")
        for name, tensor in tensors.items():
            if _checksum(name, tensor) != sums[name]:
                raise _DamagedError(f"array {name!r} does not match its checksum")
        return tensors, metadata
