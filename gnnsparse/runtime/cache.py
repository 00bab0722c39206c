"""The cache of prepared graphs, plans and generated data: one safetensors file per graph and parameters.

A file is written under another name, synced and renamed, so that readers see a whole file or none. It
carries the mark of the cache, and every array and the metadata have a checksum. A damaged file is reported,
set aside under another name, and rebuilt. When the folder exceeds its size cap, the least recently used files
are removed. The cache removes only files that carry its mark, and whatever goes wrong with the folder is a
warning.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
import uuid
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import platformdirs
import torch

from gnnsparse.errors import bad_type, bad_value
from gnnsparse.runtime.cache_files import (
    DamagedError,
    NotOursError,
    OpenFile,
    file_kind,
    may_remove,
    open_file,
    write_file,
)

#: A part of every key, to be raised when the meaning of the stored arrays changes.
CACHE_VERSION = 3
_DEFAULT_CAP = 20 * 2**30
_SUFFIX = ".safetensors"
#: Damaged files that are kept for inspection.
_MOST_DAMAGED = 4
#: How long to wait for another process that prepares the same graph.
_LOCK_SECONDS = 600

Found = TypeVar("Found")
Check = Callable[[dict[str, torch.Tensor], dict[str, Any]], object]


class CacheWarning(UserWarning):
    """A warning that the cache could not be read or written, and the work was done without it."""


@dataclass(frozen=True)
class CacheEntry:
    """A file of the cache, its last use in seconds since the epoch, and its plain values if readable."""

    key: str
    path: Path
    nbytes: int
    used: float
    metadata: dict[str, Any] | None

    def about(self) -> tuple[str, str, str] | None:
        """Return the matrix's shape, its number of edges, and its row order or plan; None: it is damaged."""
        found = self.metadata or {}
        numbers = [found.get(name) for name in ("rows", "cols", "edges")]
        kind, order = found.get("kind"), found.get("reorder")
        if kind is None and isinstance(order, dict):
            kind = order.get("method")
        if not all(isinstance(n, int) and 0 <= n < 2**63 for n in numbers) or not isinstance(kind, str):
            return None
        return f"{numbers[0]} x {numbers[1]}", str(numbers[2]), kind if kind.isprintable() else repr(kind)


def _default_folder() -> Path:
    own = os.environ.get("GNNSPARSE_CACHE_DIR")
    return Path(own or platformdirs.user_cache_path("gnnsparse") / "graphs")


def _size_cap() -> int:
    text = os.environ.get("GNNSPARSE_CACHE_MAX_BYTES") or str(_DEFAULT_CAP)
    with contextlib.suppress(ValueError):
        if (cap := int(text)) >= 0:
            return cap
    warnings.warn(
        f"GNNSPARSE_CACHE_MAX_BYTES is {text!r}; accepted: a number of bytes; using {_DEFAULT_CAP}",
        CacheWarning,
        stacklevel=2,
    )
    return _DEFAULT_CAP


def _name(find: Callable[[int], Any], number: int) -> str:
    """Return the name of a user or a group, or its number in a container or on another machine's disk."""
    try:
        return find(number)[0]
    except KeyError:
        return str(number)


class GraphCache:
    """A folder of prepared graphs (None: $GNNSPARSE_CACHE_DIR or the user's); `what` is for warnings."""

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, what: str = "the prepared graph"
    ) -> None:
        if folder is None:
            self.folder = _default_folder()
        elif isinstance(folder, (str, os.PathLike)):
            path = os.fsdecode(folder)
            if not path or "\0" in path:
                bad_value("cache", f"got {path!r}; accepted: True, False or a folder")
            self.folder = Path(path)
        else:
            bad_type("cache", folder, "True, False or a folder")
        self.max_bytes = _size_cap()
        self._what = what
        self._told: set[str | Path] = set()

    def path(self, key: str) -> Path:
        """Return the file of a key, whether or not it exists."""
        return self.folder / (key + _SUFFIX)

    def _warn(self, text: str, about: Path | None = None) -> None:
        """Warn of a problem, once for each cache object, or once `about` a path whatever the text."""
        if (about or text) not in self._told:
            self._told.add(about or text)
            warnings.warn(text, CacheWarning, stacklevel=4)

    def check_folder(self) -> None:
        """Warn if other users than this one and root can write to the folder: checksums prove no values."""
        with contextlib.suppress(OSError):
            status = os.stat(self.folder)
            mode = status.st_mode
            if not stat.S_ISDIR(mode):
                return
            if status.st_uid not in (0, os.geteuid()):
                who, remedy = f"user {_name(pwd.getpwuid, status.st_uid)} owns", "chown it"
            elif mode & stat.S_IWOTH:
                who, remedy = "every user can write to", "chmod o-w it"
            elif mode & stat.S_IWGRP:
                who, remedy = f"group {_name(grp.getgrgid, status.st_gid)} can write to", "chmod g-w it"
            else:
                return
            self._warn(
                f"{who} the cache folder {self.folder} (mode {stat.S_IMODE(mode):o}); {remedy}, or set "
                "GNNSPARSE_CACHE_DIR to a folder of your own"
            )

    @contextlib.contextmanager
    def lock(self, key: str, seconds: float | None = None) -> Iterator[bool]:
        """Hold a key's file lock for `seconds` at most (None: ten minutes), and yield whether it is held."""
        held = None
        try:
            # Not for other users to write, whatever the umask is.
            self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            held = self._acquire(key, _LOCK_SECONDS if seconds is None else seconds)
        except (OSError, NotImplementedError, NotOursError) as error:
            if seconds is None:
                self._warn(
                    f"the cache folder {self.folder} can't be written ({error}); {self._what} is "
                    "not kept. Set GNNSPARSE_CACHE_DIR, or cache=False to silence this"
                )
        try:
            yield held is not None
        finally:
            if held is not None:
                with contextlib.suppress(OSError):
                    held.release()

    def _acquire(self, key: str, seconds: float) -> Any:
        """Return the acquired lock of a key; raise OSError if it is held or its file can't be written."""
        import filelock

        path = self.folder / (key + ".lock")
        with contextlib.suppress(FileNotFoundError):
            status = os.lstat(path)
            # Some versions of filelock empty the file that they open, also one that a link points to.
            if not stat.S_ISREG(status.st_mode) or status.st_size:
                raise NotOursError(f"{path} is no lock of the cache")
        lock = filelock.FileLock(path)
        lock.acquire(timeout=seconds)
        return lock

    def load(
        self,
        key: str,
        unpack: Callable[[dict[str, torch.Tensor], dict[str, Any]], Found],
        mapped: bool = False,
        unpack_checked: Callable[[dict[str, torch.Tensor], dict[str, Any]], Found] | None = None,
    ) -> Found | None:
        """Read a file, verify its checksums, and return what `unpack` makes of tensors and metadata, or None.

        With `mapped` tensors are pages of the file, see `cache_files`. `unpack_checked` takes the place of
        `unpack` if the content was checked when it was stored. A file that is damaged, or for which they
        raise ValueError, is set aside with a CacheWarning.
        """
        path = self.path(key)
        try:
            with open_file(path) as file:
                try:
                    content = _read(file, key, mapped)
                    found = (unpack_checked if unpack_checked and file.is_checked else unpack)(*content)
                except (DamagedError, ValueError) as problem:
                    self._set_aside(path, file, str(problem))
                    return None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except NotOursError as problem:
            self._leave_alone(path, str(problem))
            return None
        except (OSError, MemoryError) as error:
            self._warn(f"the cache file {path} can't be read: {error}")
            return None
        with contextlib.suppress(OSError):
            os.utime(path, follow_symlinks=False)  # last use, for the size cap
        return found

    def _set_aside(self, path: Path, file: OpenFile, problem: str) -> None:
        """Rename a damaged file, unless it was replaced since it was opened, and say so."""
        kept = self.folder / f"{path.stem}-{uuid.uuid4().hex}.damaged"
        where = ""
        with contextlib.suppress(OSError, NotOursError):
            # Files without the mark are never removed: only a few of them are set aside.
            damaged = [old for old, _ in self._files("damaged")]
            if not may_remove(path) and sum(not may_remove(old) for old in damaged) >= _MOST_DAMAGED:
                self._leave_alone(
                    path, f"the cache file {path} is damaged ({problem}) and carries no mark of it"
                )
                return
            with open_file(path) as now:
                same = now.identity == file.identity
            if same:
                os.rename(path, kept)
                where = f" and kept as {kept.name}"
        self._warn(f"the cache file {path} is damaged ({problem}); it is rebuilt{where}")
        for old, _ in self._files("damaged")[_MOST_DAMAGED:]:
            self._remove(old)

    def _leave_alone(self, path: Path, problem: str) -> None:
        """Warn once that something is in the place of a file and stays there; `store` keeps away from it."""
        self._warn(f"{problem}; it is left alone, and {self._what} is not kept", path)

    def store(
        self, key: str, tensors: dict[str, torch.Tensor], metadata: dict[str, Any], checked: bool = False,
        synced: bool = True,
    ) -> None:  # fmt: skip
        """Write tensors on the CPU and plain values of JSON atomically; what goes wrong is a CacheWarning.

        `checked`: what `load` is given to unpack them accepts them, and need not check them again. Unless
        `synced`, nobody waits for the disk: a file that a power failure cuts short is found damaged.
        """
        path = self.path(key)
        temporary = self.folder / f"{key}-{uuid.uuid4().hex}.part"
        try:
            if os.path.lexists(path) and not may_remove(path):
                self._leave_alone(path, f"{path} was not made by the cache")
                return
            self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_file(temporary, tensors, {**metadata, "key": key}, checked, synced)
            os.replace(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            self._warn(f"the cache file {path} can't be written: {error}")
            return
        self._evict(keep=key)

    def _files(self, kind: str) -> list[tuple[Path, os.stat_result]]:
        """List the regular files with names of a kind (see `file_kind`), the most recently used first."""
        found = []
        with contextlib.suppress(OSError), os.scandir(self.folder) as listing:
            for item in listing:
                if file_kind(item.name) != kind:
                    continue
                with contextlib.suppress(OSError):  # another process removed it
                    if stat.S_ISREG((status := item.stat(follow_symlinks=False)).st_mode):
                        found.append((self.folder / item.name, status))
        return sorted(found, key=lambda item: item[1].st_mtime, reverse=True)

    def entries(self) -> list[CacheEntry]:
        """List all files of prepared graphs, plans and data, the most recently used first."""
        found = []
        for path, status in self._files("entry"):
            metadata = None
            with contextlib.suppress(DamagedError, NotOursError, OSError), open_file(path) as file:
                metadata = file.metadata()
            found.append(CacheEntry(path.stem, path, status.st_size, status.st_mtime, metadata))
        return found

    def problem_of(self, entry: CacheEntry, check: Check) -> str | None:
        """Return what a file's checksums, or `check` by a ValueError, find wrong; None: nothing."""
        try:
            with open_file(entry.path) as file:
                check(*_read(file, entry.key))
        except (DamagedError, NotOursError, ValueError, OSError, MemoryError) as error:
            return str(error)
        return None

    def clear(self) -> int:
        """Remove the cache's own files that nobody is writing, and return the number of prepared graphs."""
        removed = sum(self._remove(path) for path, _ in self._files("entry"))
        for path, _ in self._files("damaged"):
            self._remove(path)
        self._remove_leftovers(locks=True)
        return removed

    def _remove_leftovers(self, locks: bool = False, held: str = "") -> None:
        """Remove unfinished files that nobody writes, with `locks` free locks too; the caller has `held`."""
        keys: dict[str, list[Path]] = {}
        for kind in ("part", "lock") if locks else ("part",):
            for path, _ in self._files(kind):
                keys.setdefault(path.name[:32], []).append(path)
        for key, paths in keys.items():
            with contextlib.nullcontext(True) if key == held else self.lock(key, 0) as free:
                for path in (*paths, self.folder / f"{key}.lock") if locks else paths:
                    if free:
                        self._remove(path)

    @staticmethod
    def _remove(path: Path) -> bool:
        """Remove a file if the cache made it, and return whether it did."""
        with contextlib.suppress(OSError):
            if may_remove(path):
                path.unlink()
                return True
        return False

    def _evict(self, keep: str) -> None:
        total = 0
        for path, status in [*self._files("entry"), *self._files("damaged")]:
            total += status.st_size
            if total > self.max_bytes and path.stem != keep:
                self._remove(path)
        self._remove_leftovers(held=keep)


def _read(file: OpenFile, key: str, mapped: bool = False) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    tensors, metadata = file.read(mapped)
    if metadata.pop("key", None) != key:
        raise DamagedError("it was stored under another name")
    return tensors, metadata
