"""The files of the cache: safetensors with a mark, mapped, or read into memory of their own.

This stands alone: a form of files, which knows nothing of graphs, keys or the size of a folder. A file that
is mapped is not copied, so that new memory, which is most of the time of reading, is not asked for. It may be
replaced and removed; if it were cut short, the next access would end the process. So files are written for
nobody to write to, and mapped, as a program's libraries are, where that still holds and they lie on a disk of
this machine, on which what was removed is there as long as it is mapped. Others are read.
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

_MARK = "gnnsparse-cache"
_HEAD_BYTES = 1 << 16
_MOST_HEADER_BYTES = 1 << 24
_ALIGNMENT = 64
#: Bytes from which on files are mapped: of mappings, unlike memory, a process has no more than some 65,000.
_LEAST_MAPPED = 1 << 20

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
    "BF16": torch.bfloat16, "I16": torch.int16, "I8": torch.int8, "BOOL": torch.bool,
}  # fmt: skip
_NAME_OF = {dtype: name for name, dtype in _DTYPES.items()}


class DamagedError(Exception):
    """The content of a cache file is not what was written."""


class NotOursError(Exception):
    """Something that the cache did not make has the name of one of its files."""


def file_kind(name: str) -> str | None:
    """Return "entry", "damaged", "part" or "lock" for the name of a file of the cache, None for others."""
    return next((kind for kind, pattern in _NAMES.items() if pattern.fullmatch(name)), None)


def may_remove(path: Path) -> bool:
    """Return whether a cache made a file: a regular one with one of its names, empty or marked."""
    if file_kind(path.name) is None:
        return False
    try:
        with open_file(path) as file:
            return file.size == 0 or file.is_marked()
    except (OSError, NotOursError, DamagedError):
        return False


def _require_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise NotOursError(f"{path} is a folder, a link, a pipe or a device, not a file")


@contextlib.contextmanager
def open_file(path: Path) -> Iterator[OpenFile]:
    """Open a file for reading, without waiting, as opening a pipe would; raise NotOursError or OSError."""
    _require_regular(path, os.lstat(path).st_mode)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        _require_regular(path, status.st_mode)
        # Networks, containers' layers and memory have devices without a major number.
        stays = not status.st_mode & 0o222 and os.major(status.st_dev) != 0
        own = stays and status.st_uid in (0, os.geteuid())
        yield OpenFile(descriptor, status.st_size, (status.st_dev, status.st_ino), stays, own)
    finally:
        os.close(descriptor)


@dataclass
class OpenFile:
    """An open file: its descriptor, its size, its device and inode, which a replacement does not have.

    `stays` says that what is mapped will not change, see above, and `own` that besides this user or root
    wrote it. `read` sets `is_checked`: the writer had checked what this very file, no copy of it, holds.
    """

    descriptor: int
    size: int
    identity: tuple[int, int]
    stays: bool
    own: bool
    is_checked: bool = False

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
        """Return whether the first bytes carry the mark of a cache, even if the file is damaged."""
        return f'"{_MARK}"'.encode() in self._bytes(min(self.size, _HEAD_BYTES), 0)

    def _header(self) -> tuple[dict[str, Any], dict[str, Any], Any, int]:
        """Read the plain values, the arrays as they are described, their checksums, and where they begin."""
        if self.size < 8:
            raise DamagedError("it is too short")
        length = int.from_bytes(self._bytes(8, 0), "little")
        if length > min(self.size - 8, _MOST_HEADER_BYTES):
            raise DamagedError("its header is longer than the file")
        described = _json(self._bytes(length, 8), "its header is")
        strings = described.pop("__metadata__", None)
        if not isinstance(strings, dict) or strings.get("made_by") != _MARK:
            raise DamagedError("its header has not the mark of the cache")
        if not all(isinstance(strings.get(name), str) for name in ("facts", "facts_sum", "sums")):
            raise DamagedError("its header is incomplete")
        if fingerprint([], strings["facts"], strings["sums"]) != strings["facts_sum"]:
            raise DamagedError("its metadata do not match their checksum")
        self.is_checked = self.own and strings.get("checked") == _place(self.identity)
        facts, sums = _json(strings["facts"], "its metadata are"), _json(strings["sums"], "its checksums are")
        return facts, described, sums, 8 + length

    def metadata(self) -> dict[str, Any]:
        """Return the plain values stored with the arrays; raise DamagedError if they were changed."""
        return self._header()[0]

    def read(self, mapped: bool = False) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return arrays and metadata; raise DamagedError unless checksums fit, or OSError, or MemoryError.

        Arrays are mapped, also if the file may change, with `mapped`; they can be written to in any case.
        """
        facts, described, sums, start = self._header()
        mapped = mapped or (self.stays and self.size >= _LEAST_MAPPED)
        try:
            tensors = self._arrays(described, start, mapped)
        except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise DamagedError(f"its header describes no arrays of the cache: {error}") from error
        if set(sums) != set(tensors):
            raise DamagedError("its arrays are not those that were written")
        for name, tensor in tensors.items():
            if checksum(name, tensor) != sums[name]:
                raise DamagedError(f"array {name!r} does not match its checksum")
        return tensors, facts

    def _mapped(self) -> Any:
        """Map the file, privately: what is written to an array is not written to the file.

        None: there is no /proc, or too much is mapped, or the file system maps nothing.
        """
        with contextlib.suppress(RuntimeError, OSError):
            os.posix_fadvise(self.descriptor, 0, self.size, os.POSIX_FADV_WILLNEED)
            # Not by the module mmap, whose objects each keep a descriptor of the few that a process has.
            return torch.UntypedStorage.from_file(f"/proc/self/fd/{self.descriptor}", False, self.size)
        return None

    def _arrays(self, described: dict[str, Any], start: int, mapped: bool) -> dict[str, torch.Tensor]:
        """Take all arrays, which lie one behind the other, from the mapped file, or read them."""
        at, total, layout = start, 0, []
        storage = self._mapped() if mapped else None
        ordered = sorted(described.items(), key=lambda item: [*map(int, item[1]["data_offsets"])])
        for name, entry in ordered:
            dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
            (begin, end), count = entry["data_offsets"], math.prod(shape)
            if begin != at - start or end - begin != count * dtype.itemsize or count < 0:
                raise ValueError(f"array {name!r} is not where the one before it ends")
            if at % dtype.itemsize:
                raise ValueError(f"array {name!r} is not aligned")
            layout.append((name, dtype, shape, at, total if storage is None else at))
            # What is read is aligned to more than the size of an element.
            at, total = start + end, total - (begin - end) // _ALIGNMENT * _ALIGNMENT
        if at != self.size:
            raise ValueError(f"they take {at - start} bytes, and the file has {self.size - start} for them")
        if storage is None:
            check_memory("cache", total, "a file of the cache")
            memory = mmap.mmap(-1, max(total, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with contextlib.suppress(AttributeError, OSError):
                # Large pages: filling them takes a quarter of the time that pages of 4 KB take.
                memory.madvise(mmap.MADV_HUGEPAGE)
            for _, dtype, shape, at, place in layout:
                self._fill(memoryview(memory)[place : place + math.prod(shape) * dtype.itemsize], at)
            storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
        tensors = {}
        for name, dtype, shape, _, place in layout:
            array: Any = torch.empty(0, dtype=dtype, device="cpu")
            tensors[name] = array.set_(storage, place // dtype.itemsize, shape)
        return tensors


def _json(text: str | bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{what} no JSON: {error}") from error
    if not isinstance(found, dict):
        raise DamagedError(f"{what} no JSON object")
    return found


def checksum(name: str, tensor: torch.Tensor) -> str:
    """Return the checksum of an array: its name, dtype, shape and a hash of its bytes."""
    return f"{name}:{tensor.dtype}:{tuple(tensor.shape)}:{digest(tensor)}"


def _place(identity: tuple[int, int]) -> str:
    return ":".join(map(str, identity))


def write_file(
    path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, Any], checked: bool = False,
    synced: bool = True,
) -> None:  # fmt: skip
    """Write a new file of tensors on the CPU and plain values of JSON; wait for the disk if `synced`.

    Nobody may write to it, see above; who wants to change it replaces it. With `checked` it carries its
    device and inode as a sign that its content has passed the check of its readers, which they then can
    leave out: neither a copy nor a file from another machine has the same place.
    """
    facts = json.dumps(metadata)
    sums = json.dumps({name: checksum(name, tensor) for name, tensor in tensors.items()})
    strings = {"made_by": _MARK, "facts": facts, "sums": sums, "facts_sum": fingerprint([], facts, sums)}
    header: dict[str, Any] = {"__metadata__": strings}
    ordered = sorted(tensors.items(), key=lambda item: -item[1].itemsize)  # so that each is aligned
    at = 0
    for name, tensor in ordered:
        place = [at, at + tensor.nbytes]
        header[name] = {"dtype": _NAME_OF[tensor.dtype], "shape": [*tensor.shape], "data_offsets": place}
        at = place[1]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o400)
    with open(descriptor, "wb") as file:
        if checked:
            status = os.fstat(descriptor)
            strings["checked"] = _place((status.st_dev, status.st_ino))
        text = json.dumps(header).encode()
        text += b" " * (-(8 + len(text)) % _ALIGNMENT)
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            file.write(raw_bytes(tensor))
        if synced:
            file.flush()
            os.fsync(descriptor)
