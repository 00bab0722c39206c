"""Buckets of an external sort: files of keys, of which each is small enough to be sorted in memory.

The key of an edge is row * columns + column, so that sorted keys are a matrix in canonical CSR form. A bucket
holds the keys of one range. Ranges ascend, and no key is in two of them: the sorted buckets, one after
another, are all keys in order. A range may end within a row, so that a row of any length can be sorted.

It stands alone because it knows keys alone, no graphs: tests sort by it what no graph has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gnnsparse.data.array_files import bytes_of
from gnnsparse.data.large.folder import check_space, write_all, writing

Keys = np.ndarray[Any, np.dtype[np.int64]]

#: Bytes of a key.
_KEY = 8
#: Equal ranges whose keys are counted, to choose the ranges of buckets.
_CELLS = 1 << 16
#: Most buckets that keys are distributed to at a time: their files are open, and their numbers have 8 bits.
_FAN_OUT = 256


@dataclass(frozen=True)
class Bucket:
    """A file of `count` int64 keys from `low` on and below `high`; there is no file if there are no keys."""

    file: Path
    low: int
    high: int
    count: int

    def parts(self, size: int) -> Iterator[Keys]:
        """Yield the keys as they are in the file, at most `size` at a time."""
        if self.count:
            with open(self.file, "rb") as file:
                while len(keys := np.fromfile(file, np.int64, size)):
                    yield keys


class Spiller:
    """Distributes keys to buckets, whose files it makes in a folder, and splits those that are too large."""

    def __init__(self, folder: Path, memory: int) -> None:
        self._folder, self._files = folder, 0
        #: Edges that are read at a time, of which each takes up to 96 bytes of keys and sorting.
        self.part = min(memory // 288, 1 << 20)
        # A bucket that is sorted takes two thirds, and what is computed of a part of it the rest.
        self._most = memory * 2 // 3 // _KEY

    def distribute(
        self, parts: Callable[[], Iterable[Keys]], low: int, high: int, *, count_first: bool, step: int = 1
    ) -> list[Bucket]:
        """Distribute keys in [low, high) to ascending ranges, some of which may not fit into memory.

        `parts` returns the keys, a part at a time. With `count_first` it is called twice, and buckets get
        about as many keys as fit into memory; else they have equal ranges. Ranges begin at multiples of
        `step` from `low` on where there are enough of these.
        """
        cells = min(_CELLS if count_first else _FAN_OUT, -(-(high - low) // step))
        width = -(-(high - low) // (cells * step)) * step
        cells = -(-(high - low) // width)
        used, bucket_of_cell = np.arange(cells), np.arange(cells).astype(np.uint8)
        if count_first:
            counts = np.zeros(cells, np.int64)
            for keys in parts():
                counts += np.bincount((keys - low) // width, minlength=cells)
            used, bucket_of_cell = np.flatnonzero(counts), _group(counts, self._most)
        if not len(used):
            return []
        # Ranges begin and end with cells that have keys, so that the range of a bucket that is split shrinks.
        begins = np.flatnonzero(np.diff(bucket_of_cell[used].astype(np.int16), prepend=-1) != 0)
        firsts, lasts = used[begins], used[[*(begins[1:] - 1), len(used) - 1]]
        found = self._write(parts(), low, width, bucket_of_cell, len(firsts))
        return [
            Bucket(file, low + width * first, min(low + width * (last + 1), high), count)
            for (file, count), first, last in zip(found, firsts.tolist(), lasts.tolist(), strict=True)
        ]

    def _write(
        self, parts: Iterable[Keys], low: int, width: int, bucket_of_cell: np.ndarray[Any, Any], buckets: int
    ) -> list[tuple[Path, int]]:
        paths = [self._folder / f"{self._files + number}.keys" for number in range(buckets)]
        self._files += buckets
        totals = np.zeros(buckets, np.int64)
        with contextlib.ExitStack() as stack:
            files: dict[int, Any] = {}
            for keys in parts:
                bucket = bucket_of_cell[(keys - low) // width]
                counts = np.bincount(bucket, minlength=buckets)
                # A stable sort of 8 bits is a counting sort.
                ordered, end = keys[np.argsort(bucket, kind="stable")], 0
                for number in np.flatnonzero(counts).tolist():
                    first, end = end, end + int(counts[number])
                    with writing(paths[number]):
                        if number not in files:
                            files[number] = stack.enter_context(open(paths[number], "xb", buffering=0))
                        write_all(files[number], bytes_of(ordered[first:end]))
                totals += counts
        return list(zip(paths, totals.tolist(), strict=True))

    def sorted(self, buckets: Iterable[Bucket]) -> Iterator[tuple[Keys, int]]:
        """Yield the distinct keys in ascending order, with how many were read, and remove the files."""
        pending = list(buckets)[::-1]
        while pending:
            bucket = pending.pop()
            if bucket.count > self._most and bucket.high - bucket.low > 1:
                pending.extend(self._split(bucket)[::-1])
                continue
            if bucket.count > self._most:  # repeats of one edge
                yield np.array([bucket.low]), bucket.count
            elif bucket.count:
                keys = np.fromfile(bucket.file, np.int64, bucket.count)
                keys.sort()
                yield from _distinct(keys, self.part)
                del keys  # before those of the next bucket are read
            bucket.file.unlink(missing_ok=True)

    def _split(self, bucket: Bucket) -> list[Bucket]:
        check_space(self._folder, _KEY * bucket.count, "splitting a bucket of edges")
        found = self.distribute(lambda: bucket.parts(self.part), bucket.low, bucket.high, count_first=True)
        bucket.file.unlink()
        return found


def _distinct(keys: Keys, size: int) -> Iterator[tuple[Keys, int]]:
    """Yield the distinct ones of ascending keys, and how many were looked at for them, `size` at a time."""
    before = -1
    for first in range(0, len(keys), size):
        part = keys[first : first + size]
        yield part[np.diff(part, prepend=before) != 0], len(part)
        before = int(part[-1])


def _group(counts: np.ndarray[Any, Any], most: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the group of each cell: neighbours with about `most` keys, more if 256 groups are too few."""
    # Two neighbouring groups have more than `most` keys together, or they would be one.
    most = max(most, -(-2 * int(counts.sum()) // (_FAN_OUT - 2)))
    groups, group, held = np.empty(len(counts), np.uint8), 0, 0
    for cell, count in enumerate(counts.tolist()):
        if held and held + count > most:
            group, held = group + 1, 0
        groups[cell], held = group, held + count
    return groups
