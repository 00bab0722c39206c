"""The files of the cache: safetensors with a mark, read into memory of their own.

A file is not memory-mapped: what is read and checked stays as it is, whatever happens to the file later. If a
mapped file is cut short, the next access to its pages ends the process.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gnnsparse.errors import check_memory
from gnnsparse.runtime.hashing import digest, fingerprint, raw_bytes

__all__ = ["DamagedError", "NotOursError", "Opened", "file_kind", "may_remove", "opened", "write_file"]

_MARK = "gnnsparse-cache"
#: Marks in the first bytes of a file: of today's, and of those that version 1 of the format wrote.
_MARKS = (f'"{_MARK}"'.encode(), b'"facts_sum"')
_HEAD_BYTES = 1 << 16
_MOST_HEADER_BYTES = 1 << 24
_ALIGNMENT = 64

_HEX = "[0-9a-f]{32}"
#: The names of the cache's files: prepared graphs and plans, damaged ones, unfinished ones, and locks.
_NAMES = {
    "entry": re.compile(f"({_HEX})\\.safetensors"),
    "damaged": re.compile(f"({_HEX})-{_HEX}\\.damaged"),
    "part": re.compile(f"({_HEX})-{_HEX}\\.part"),
    "lock": re.compile(f"({_HEX})\\.lock"),
}

_DTYPES = {
    "I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "F32": torch.float32, "F16": torch.float16,
    "BF16": torch.bfloat16,
}  # fmt: skip
_NAME_OF = {dtype: name for name, dtype in _DTYPES.items()}


class DamagedError(Exception):
    """The content of a cache file is not what was written."""


class NotOursError(Exception):
    """Something that the cache did not make has the name of one of its files."""


def file_kind(name: str) -> tuple[str, str] | None:
    """Returns what a file of this name is to the cache, and the key in the name; None: it is none of its own.

    Returns:
        ("entry", "damaged", "part" or "lock", key), or None.
    """
    for kind, pattern in _NAMES.items():
        if match := pattern.fullmatch(name):
            return kind, match[1]
    return None


def may_remove(path: Path) -> bool:
    """Returns whether a file was made by a cache: its name is one of a cache's, and it is empty or marked.

    Links, folders and other things that are no regular files never are.
    """
    if file_kind(path.name) is None:
        return False
    try:
        with opened(path) as file:
            return file.size == 0 or file.is_marked()
    except (OSError, NotOursError, DamagedError):
        return False


_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFLNK: "a symbolic link", stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}  # fmt: skip


def _require_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise NotOursError(f"{path} is {_KINDS.get(stat.S_IFMT(mode), 'a device')}, not a file")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """Opens a file for reading. It never waits, as opening a pipe would.

    Raises:
        NotOursError: it is no regular file.
        OSError: it can't be opened.
    """
    _require_regular(path, os.lstat(path).st_mode)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        _require_regular(path, status.st_mode)
        yield Opened(descriptor, status.st_size, (status.st_dev, status.st_ino))
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class _Array:
    """An array as the header describes it."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Opened:
    """An open file.

    Attributes:
        descriptor: its file descriptor.
        size: its size in bytes.
        identity: the numbers of its device and inode, which a file that replaces it does not have.
    """

    descriptor: int
    size: int
    identity: tuple[int, int]

    def _bytes(self, count: int, at: int) -> bytes:
        found = bytearray(count)
        self._fill(memoryview(found), at)
        return bytes(found)

    def _fill(self, target: memoryview, at: int) -> None:
        while len(target):
            count = os.preadv(self.descriptor, [target], at)
            if count == 0:
                raise DamagedError("it ends too early")
            target, at = target[count:], at + count

    def is_marked(self) -> bool:
        """Returns whether the first bytes carry the mark of a cache, even if the file is damaged."""
        head = self._bytes(min(self.size, _HEAD_BYTES), 0)
        return any(mark in head for mark in _MARKS)

    def _header(self) -> tuple[dict[str, Any], int]:
        if self.size < 8:
            raise DamagedError("it is too short")
        length = int.from_bytes(self._bytes(8, 0), "little")
        if length > min(self.size - 8, _MOST_HEADER_BYTES):
            raise DamagedError("its header is longer than the file")
        try:
            header = json.loads(self._bytes(length, 8))
        except (ValueError, RecursionError) as error:
            raise DamagedError(f"its header is no JSON: {error}") from error
        if not isinstance(header, dict):
            raise DamagedError("its header is no JSON object")
        return header, 8 + length

    @staticmethod
    def _strings(header: dict[str, Any]) -> dict[str, str]:
        strings = header.get("__metadata__")
        if not isinstance(strings, dict) or strings.get("made_by") != _MARK:
            raise DamagedError("its header has not the mark of the cache")
        if not all(isinstance(strings.get(name), str) for name in ("facts", "facts_sum", "sums")):
            raise DamagedError("its header is incomplete")
        return strings

    @staticmethod
    def _facts(strings: dict[str, str]) -> dict[str, Any]:
        if fingerprint([], strings["facts"], strings["sums"]) != strings["facts_sum"]:
            raise DamagedError("its metadata do not match their checksum")
        try:
            facts = json.loads(strings["facts"])
        except (ValueError, RecursionError) as error:
            raise DamagedError(f"its metadata are no JSON: {error}") from error
        if not isinstance(facts, dict):
            raise DamagedError("its metadata are no JSON object")
        return facts

    def metadata(self) -> dict[str, Any]:
        """Returns the plain values stored with the arrays, by their checksum.

        Raises:
            DamagedError: the header is not what was written.
            OSError: the file can't be read.
        """
        return self._facts(self._strings(self._header()[0]))

    def read(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Reads arrays and metadata, and compares them with their checksums.

        Raises:
            DamagedError: the content is not what was written.
            OSError: the file can't be read.
            MemoryError: the arrays do not fit into this machine's memory.
        """
        header, start = self._header()
        strings = self._strings(header)
        facts = self._facts(strings)
        described = {name: value for name, value in header.items() if name != "__metadata__"}
        layout = _layout(described, self.size - start)
        tensors = self._arrays(layout, start)
        try:
            sums = json.loads(strings["sums"])
        except (ValueError, RecursionError) as error:
            raise DamagedError(f"its checksums are no JSON: {error}") from error
        if not isinstance(sums, dict) or set(sums) != set(tensors):
            raise DamagedError("its arrays are not those that were written")
        for name, tensor in tensors.items():
            if checksum(name, tensor) != sums[name]:
                raise DamagedError(f"array {name!r} does not match its checksum")
        return tensors, facts

    def _arrays(self, layout: list[_Array], start: int) -> dict[str, torch.Tensor]:
        """Reads all arrays into one piece of memory, each aligned."""
        places, total = [], 0
        for array in layout:
            places.append(total)
            total += -(-(array.end - array.begin) // _ALIGNMENT) * _ALIGNMENT
        if total == 0:
            return {array.name: torch.empty(array.shape, dtype=array.dtype, device="cpu") for array in layout}
        check_memory("cache", total, "a file of the cache")
        memory = mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(AttributeError, OSError):
            # Large pages: filling them takes a quarter of the time that pages of 4 KB take.
            memory.madvise(mmap.MADV_HUGEPAGE)
        tensors, target = {}, memoryview(memory)
        for array, place in zip(layout, places, strict=True):
            nbytes = array.end - array.begin
            self._fill(target[place : place + nbytes], start + array.begin)
            flat = torch.empty(0, dtype=array.dtype, device="cpu")
            if nbytes:
                count = nbytes // array.dtype.itemsize
                flat = torch.frombuffer(memory, dtype=array.dtype, count=count, offset=place)
            tensors[array.name] = flat.reshape(array.shape)
        return tensors


def _layout(described: dict[str, Any], nbytes: int) -> list[_Array]:
    """Returns the arrays of a header in the order of their bytes, which are `nbytes` without a gap."""
    try:
        arrays = [
            _Array(name, _DTYPES[entry["dtype"]], tuple(entry["shape"]), *entry["data_offsets"])
            for name, entry in described.items()
        ]
    except (KeyError, TypeError) as error:
        raise DamagedError("its header describes no arrays of the cache") from error
    for array in arrays:
        numbers = (*array.shape, array.begin, array.end)
        if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**63 for n in numbers):
            raise DamagedError(f"array {array.name!r} has no valid shape or place")
    arrays.sort(key=lambda array: (array.begin, array.end))
    at = 0
    for array in arrays:
        size = math.prod(array.shape) * array.dtype.itemsize
        if array.begin != at or array.end - array.begin != size:
            raise DamagedError(f"array {array.name!r} is not where the one before it ends")
        at = array.end
    if at != nbytes:
        raise DamagedError(f"its arrays take {at} bytes, and the file has {nbytes} for them")
    return arrays


def checksum(name: str, tensor: torch.Tensor) -> str:
    """Returns the checksum of an array: its name, dtype, shape and a hash of its bytes."""
    return f"{name}:{tensor.dtype}:{tuple(tensor.shape)}:{digest(tensor)}"


def write_file(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> None:
    """Writes a new file, and waits until it is on the disk.

    Args:
        path: the file, which must not exist.
        tensors: int64, int32, uint8, float32, float16 or bfloat16, on the CPU.
        metadata: plain values that JSON can express.

    Raises:
        OSError: it can't be written; a part of it may be there.
    """
    facts = json.dumps(metadata)
    sums = json.dumps({name: checksum(name, tensor) for name, tensor in tensors.items()})
    strings = {"made_by": _MARK, "facts": facts, "sums": sums, "facts_sum": fingerprint([], facts, sums)}
    header: dict[str, Any] = {"__metadata__": strings}
    ordered = sorted(tensors.items(), key=lambda item: -item[1].itemsize)  # so that each is aligned
    at = 0
    for name, tensor in ordered:
        place = [at, at + tensor.nbytes]
        header[name] = {
            "dtype": _NAME_OF[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": place,
        }
        at = place[1]
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            file.write(raw_bytes(tensor))
        file.flush()
        os.fsync(descriptor)
