"""build_graph: edges of any number become a folder of a graph, by an external sort in bounded memory."""

from __future__ import annotations

import contextlib
import datetime
import io
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from gnnsparse.data.array_files import bytes_of, map_npy
from gnnsparse.data.datasets import check_seed
from gnnsparse.data.generators import BLOCK_MODELS, Sampler, check_scale_of
from gnnsparse.data.large.folder import (
    FILES,
    HEADER,
    IDS,
    VALUES,
    Header,
    StoredFile,
    StoredGraph,
    check_space,
    folder_of,
    write_all,
    write_header,
    write_ids,
    writing,
)
from gnnsparse.errors import bad_type, bad_value, check_device, check_flag, check_integer, check_memory
from gnnsparse.runtime.hashing import fingerprint
from gnnsparse.sparse.graph import node_count

_ACCEPTED = "integers (2, edges), int32 or int64"
_FORMS = f"{_ACCEPTED}: a tensor, an array, the path of a .npy file, or an iterable of tensors and arrays"

_END = object()
#: Bytes of a key, of an offset, and of a column.
_KEY, _OFFSET, _COLUMN = 8, 8, 4


class Edges:
    """Edges that are read part by part, in any form that `build_graph` takes.

    Attributes:
        count: the number of edges; None: it is not known before all of them were read.
        repeatable: whether `parts` can be called more than once.
    """

    def __init__(self, edges: Any, num_nodes: int, weights: Any = None) -> None:
        if isinstance(edges, (str, os.PathLike)):
            edges = map_npy(Path(edges), (np.int32, np.int64), (None, None))
        self._whole, self._nodes = isinstance(edges, (torch.Tensor, np.ndarray)), num_nodes
        if not isinstance(edges, Iterable) or isinstance(edges, (bytes, bytearray, dict)):
            bad_type("edges", edges, _FORMS)
        self._chunks = [edges] if self._whole else edges
        self.repeatable = isinstance(self._chunks, (list, tuple))
        self.count = sum(chunk.shape[1] for _, chunk in self._named()) if self.repeatable else None
        self._weights = None if weights is None else self._check_weights(weights)

    def _check_weights(self, weights: Any) -> np.ndarray[Any, Any]:
        if not self._whole:
            bad_value("weights", "are given for edges in chunks; accepted: for edges in one array or file")
        if isinstance(weights, (str, os.PathLike)):
            weights = map_npy(Path(weights), (np.float32, np.float64), (None,))
        if isinstance(weights, torch.Tensor):
            weights = check_device("weights", weights.detach()).cpu().numpy()
        accepted = f"real numbers [{self.count}], one for each edge"
        if not isinstance(weights, np.ndarray) or weights.dtype.kind not in "fiu":
            bad_type("weights", weights, accepted)
        if weights.shape != (self.count,):
            bad_value("weights", f"has shape {weights.shape}; accepted: {accepted}")
        return weights

    def _named(self) -> Iterator[tuple[str, Any]]:
        """Yield the chunks with their names, none of which is held while the next one is made."""
        number, chunks = 0, iter(self._chunks)
        chunk: Any
        while (chunk := next(chunks, _END)) is not _END:
            name = "edges" if self._whole else f"edges[{number}]"
            if isinstance(chunk, torch.Tensor):
                if chunk.layout != torch.strided or chunk.dtype not in (torch.int32, torch.int64):
                    bad_type(name, chunk, _ACCEPTED)
                chunk = check_device(name, chunk.detach())
            elif not isinstance(chunk, np.ndarray):
                bad_type(name, chunk, _ACCEPTED)
            elif chunk.dtype not in (np.dtype(np.int32), np.dtype(np.int64)):
                raise TypeError(f"{name}: got dtype {chunk.dtype}; accepted: {_ACCEPTED}")
            if chunk.ndim != 2 or chunk.shape[0] != 2:
                bad_value(name, f"has shape {tuple(chunk.shape)}; accepted: {_ACCEPTED}")
            yield name, chunk
            del chunk
            number += 1

    def parts(self, size: int) -> Iterator[tuple[np.ndarray[Any, Any], ...]]:
        """Yield sources, targets and, if there are such, weights in parts of at most `size` edges."""
        for name, chunk in self._named():
            for first in range(0, chunk.shape[1], size):
                part = chunk[:, first : first + size]
                part = part.cpu().numpy() if isinstance(part, torch.Tensor) else part
                if part.min() < 0 or part.max() >= self._nodes:
                    row, at = np.argwhere((part < 0) | (part >= self._nodes))[0].tolist()
                    got = f"element [{row}, {first + at}] is {part[row, at]}"
                    accepted = f"0 to {self._nodes - 1}" if self._nodes else "nothing"
                    bad_value(name, f"{got}; accepted: {accepted}, as num_nodes is {self._nodes}")
                weights = () if self._weights is None else (self._weight_part(first, part.shape[1]),)
                yield (part[0], part[1], *weights)
                del part
            del chunk

    def _weight_part(self, first: int, count: int) -> np.ndarray[Any, Any]:
        assert self._weights is not None
        with np.errstate(over="ignore"):
            part: np.ndarray[Any, Any] = self._weights[first : first + count].astype(np.float32)
        if not (finite := np.isfinite(part)).all():
            at = first + int(finite.argmin())
            bad_value("weights", f"element [{at}] is {self._weights[at]}; accepted: finite float32 numbers")
        return part


#: Offsets that are computed at a time.
_OFFSETS = 1 << 20


class NpyWriter:
    """Writes a new one-dimensional .npy file whose length is known at the end; `count`: elements written."""

    def __init__(self, path: Path, dtype: Any) -> None:
        self._path, self._dtype, self._sum = path, np.dtype(dtype), xxhash.xxh3_128()
        self.count = 0
        with writing(path):
            self._file = open(path, "xb", buffering=0)  # noqa: SIM115, as `close` closes it
            self._write_head()

    def _write_head(self) -> None:
        """Write the header, whose length does not depend on the number of elements."""
        head = io.BytesIO()
        about = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.count,)}
        np.lib.format.write_array_header_1_0(head, about)
        write_all(self._file, head.getvalue())

    def append(self, values: np.ndarray[Any, Any]) -> None:
        """Write elements, which are converted to the file's type."""
        content = bytes_of(np.ascontiguousarray(values, self._dtype))
        self._sum.update(content)
        with writing(self._path):
            write_all(self._file, content)
        self.count += len(values)

    def finish(self) -> StoredFile:
        """Complete the file, and wait until it is on the disk; return its size and checksum."""
        with writing(self._path):
            self._file.seek(0)
            self._write_head()
            os.fsync(self._file.fileno())
        return StoredFile(os.fstat(self._file.fileno()).st_size, self._sum.hexdigest())

    def close(self) -> None:
        """Close the file, complete or not."""
        self._file.close()


class CsrWriter:
    """Writes offsets, columns and weights of a matrix from its nonzeros in the order of rows and columns."""

    def __init__(self, folder: Path, rows: int, cols: int, *, weighted: bool = False) -> None:
        self._rows, self._cols, self._row = rows, cols, 0
        self._values = NpyWriter(folder / VALUES, np.float32) if weighted else None
        self._indptr = NpyWriter(folder / FILES[0], np.int64)
        self.indices = NpyWriter(folder / FILES[1], np.int32)
        self._indptr.append(np.zeros(1))

    def close(self) -> None:
        """Close the files, complete or not."""
        self._indptr.close()
        self.indices.close()
        if self._values is not None:
            self._values.close()

    def append(self, records: np.ndarray[Any, Any]) -> None:
        """Write nonzeros: row * columns + column, ascending and above those that were written before."""
        keys = keys_of(records)
        if len(keys):
            if self._values is not None:
                with np.errstate(over="ignore"):
                    sums = records["weight"].astype(np.float32)
                if not np.isfinite(sums).all():
                    bad_value(
                        "weights", "those of a repeated edge have no finite sum; accepted: smaller ones"
                    )
                self._values.append(sums)
            rows = keys // self._cols
            self._end_rows(rows, int(rows[-1]))
            self.indices.append(keys - rows * self._cols)

    def _end_rows(self, rows: np.ndarray[Any, Any], last: int) -> None:
        """Write where rows below `last` end, `rows` being those of the nonzeros that are written next."""
        while self._row < last:
            end = min(self._row + _OFFSETS, last)
            inside = np.searchsorted(rows, np.arange(self._row, end), "right")
            self._indptr.append(self.indices.count + inside)
            self._row = end

    def finish(self) -> dict[str, StoredFile]:
        """Complete the files; return the size and the checksum of each by its name."""
        self._end_rows(np.empty(0, np.int64), self._rows)
        files = dict(zip(FILES, (self._indptr.finish(), self.indices.finish()), strict=True))
        return files if self._values is None else {**files, VALUES: self._values.finish()}


#: Keys of edges, int64; or keys with weights, of the type _WEIGHTED while they are distributed.
Keys = np.ndarray[Any, Any]
_WEIGHTED = np.dtype([("key", np.int64), ("weight", np.float32)])
#: The same with sums of weights, and bytes of memory that one takes while it is sorted.
_SUMMED = np.dtype([("key", np.int64), ("weight", np.float64)])
_SORTING = 64


def keys_of(records: Keys) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the keys of records, which have weights beside them or not."""
    return records["key"] if records.dtype.names else records


#: Equal ranges whose keys are counted, to choose the ranges of buckets.
_CELLS = 1 << 16
#: Most buckets that keys are distributed to at a time: their files are open, and their numbers have 8 bits.
_FAN_OUT = 256


@dataclass(frozen=True)
class Bucket:
    """A file of `count` int64 keys from `low` on and below `high`; there is no file if there are no keys.

    The key of an edge is row * columns + column: sorted keys are a matrix in canonical CSR form. No key is in
    two buckets, whose ranges ascend and may end within a row, so that a row of any length can be sorted.
    """

    file: Path
    low: int
    high: int
    count: int
    dtype: np.dtype[Any]

    def parts(self, size: int) -> Iterator[Keys]:
        """Yield the keys as they are in the file, at most `size` at a time."""
        if self.count:
            with open(self.file, "rb") as file:
                while len(keys := np.fromfile(file, self.dtype, size)):
                    yield keys


class Spiller:
    """Distributes keys to buckets, whose files it makes in a folder, and splits those that are too large."""

    def __init__(self, folder: Path, memory: int, dtype: Any = np.int64) -> None:
        self._folder, self._files, self._dtype = folder, 0, np.dtype(dtype)
        #: Edges that are read at a time, of which each takes up to 96 bytes of keys and sorting.
        self.part = min(memory // 288, 1 << 20)
        # A bucket that is sorted takes two thirds, and what is computed of a part of it the rest.
        self._most = memory * 2 // 3 // (_SORTING if self._dtype.names else _KEY)

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
                counts += np.bincount((keys_of(keys) - low) // width, minlength=cells)
            used, bucket_of_cell = np.flatnonzero(counts), _group(counts, self._most)
        if not len(used):
            return []
        # Ranges begin and end with cells that have keys, so that the range of a bucket that is split shrinks.
        begins = np.flatnonzero(np.diff(bucket_of_cell[used].astype(np.int16), prepend=-1) != 0)
        firsts, lasts = used[begins], used[[*(begins[1:] - 1), len(used) - 1]]
        found = self._write(parts(), low, width, bucket_of_cell, len(firsts))
        return [
            Bucket(file, low + width * first, min(low + width * (last + 1), high), count, self._dtype)
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
                bucket = bucket_of_cell[(keys_of(keys) - low) // width]
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
                yield _merged(bucket, self.part), bucket.count
            elif bucket.count and self._dtype.names:
                yield _summed(np.fromfile(bucket.file, self._dtype, bucket.count)), bucket.count
            elif bucket.count:
                keys = np.fromfile(bucket.file, np.int64, bucket.count)
                keys.sort()
                yield from _distinct(keys, self.part)
                del keys  # before those of the next bucket are read
            bucket.file.unlink(missing_ok=True)

    def _split(self, bucket: Bucket) -> list[Bucket]:
        check_space(self._folder, self._dtype.itemsize * bucket.count, "splitting a bucket of edges")
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


def _summed(records: Keys) -> Keys:
    """Return the distinct keys of records in ascending order, with the sums of their weights."""
    order = np.argsort(records["key"], kind="stable")
    keys = records["key"][order]
    begins = np.flatnonzero(np.diff(keys, prepend=-1) != 0)
    found = np.empty(len(begins), _SUMMED)
    found["key"] = keys[begins]
    found["weight"] = np.add.reduceat(records["weight"][order], begins, dtype=np.float64)
    return found


def _merged(bucket: Bucket, size: int) -> Keys:
    """Return the one edge of a bucket, whose repeats are read some at a time."""
    if not bucket.dtype.names:
        return np.array([bucket.low])
    total = sum(float(part["weight"].sum(dtype=np.float64)) for part in bucket.parts(size))
    return np.array([(bucket.low, total)], _SUMMED)


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


#: Is called with what is done, how many edges that was done with, and of how many; None: that is not known.
Progress = Callable[[str, int, int | None], object]

LEAST_MEMORY = 1 << 16
#: What a folder that is being built has in it.
_LOCK, _BUCKETS, _MADE, _REPLACED = "build.lock", "buckets", "graph", "replaced"


def build_graph(
    edges: Any,
    folder: str | os.PathLike[str],
    num_nodes: int,
    *,
    weights: Any = None,
    ids: Sequence[str] | None = None,
    symmetric: bool = False,
    memory: int = 2**30,
    overwrite: bool = False,
    about: str = "",
    progress: Progress | None = None,
) -> StoredGraph:
    """Build a graph of edges that need not fit into memory, and write it to a folder.

    The graph is that of `SparseGraph.from_edge_index(edges, num_nodes, weights)`: edge e goes from node
    [0, e] to node [1, e], columns ascend in each row, repeated edges are merged and their weights summed, and
    self-loops are kept. `open_graph` opens it, and `build_graph_of_tables` builds one of tables.

    Edges are distributed to files by ranges of (row, column), so that each file fits into `memory`; then the
    files are sorted one after another. Arrays, files and lists are read twice, to choose the ranges by the
    degrees; other iterables once, and files that become too large are distributed again.

    While it is built, a graph takes 8 bytes of disk for each edge (12 with a weight), twice that with
    `symmetric`, 8 for each node and half of `memory`, in the folder FOLDER.part beside its own, and more
    where a file has to be distributed again. In the end it takes 4 bytes for each nonzero, 8 with weights,
    and 8 for each node. It appears when it is complete:
    after an error or an interrupt nothing is left, and what a process that was killed has left is removed by
    the next one that builds the same folder.

    Args:
        edges: int32 or int64 [2, edges], in any order: a tensor, an array, which may be memory-mapped, or the
            path of a .npy file; or an iterable of such tensors and arrays, of any lengths.
        folder: the folder to make. The one above it must exist.
        num_nodes: the number of nodes.
        weights: real numbers [edges], if `edges` are one array or file: a tensor, an array, or the path of a
            .npy file of floats; None: edges have no weights.
        ids: the names of the nodes, `num_nodes` different texts, which are stored as ids.txt; None: they have
            none.
        symmetric: whether the reverse of each edge is added, with its weight; a self-loop has none.
        memory: bytes that are used at a time, 65,536 or more, beside the chunk that an iterable has made and
            some MB whatever the number of edges and nodes.
        overwrite: whether a graph that is in the folder is replaced. Who has it open keeps the old one.
        about: what the graph is, in a few words, for `graph_info`.
        progress: is called after each part with what is done, the number of edges that it was done with, and
            how many there are, or None.

    Returns:
        What the folder says of the graph.

    Raises:
        TypeError: an argument is of another type or dtype.
        ValueError: an argument is out of range or an array of another shape, the folder is in use, or
            something is in its place.
        NoSpaceError: the disk is too full, an OSError.
        OSError: a file can't be read or written.
    """
    nodes = node_count("num_nodes", num_nodes)
    check_flag("symmetric", symmetric)
    given, path = Edges(edges, nodes, weights), folder_of(folder)
    if ids is not None and (len(ids) != nodes or len(set(ids)) != nodes):
        bad_value("ids", f"has {len(set(ids))} different names; accepted: one for each of {nodes} nodes")
    check_flag("overwrite", overwrite)
    if not isinstance(about, str):
        bad_type("about", about, "a text")
    check_integer("memory", memory, LEAST_MEMORY, f"a number of bytes, at least {LEAST_MEMORY}")
    expected = edges.num_edges if isinstance(edges, EdgeStream) else given.count
    tell = progress or (lambda *_: None)
    read, passes = 0, itertools.count()
    dtype = np.dtype(np.int64) if weights is None else _WEIGHTED

    def keys() -> Iterator[Keys]:
        nonlocal read
        read, what = 0, "count" if given.repeatable and next(passes) == 0 else "distribute"
        for sources, targets, *more in given.parts(spiller.part):
            yield _records(targets, sources, nodes, *more)
            if symmetric:
                beside = sources != targets if more else slice(None)
                yield _records(sources[beside], targets[beside], nodes, *(part[beside] for part in more))
            read += len(sources)
            del sources, targets, more  # views of a chunk that the caller may have made, or a part of a file
            tell(what, read, expected)

    with _building(path, overwrite=overwrite) as part:
        needed = _OFFSET * (nodes + 1) + dtype.itemsize * (1 + symmetric) * (expected or 0)
        check_space(part, needed, f"building a graph of {nodes} nodes")
        made, spilled = part / _MADE, part / _BUCKETS
        made.mkdir()
        spilled.mkdir()
        spiller, buckets = Spiller(spilled, memory, dtype), []
        if nodes:
            buckets = spiller.distribute(keys, 0, nodes**2, count_first=given.repeatable, step=nodes)
        else:
            read = sum(1 for _ in given.parts(1))  # there can't be any, which `parts` checks
        # A bucket is removed when it was written, in half of its bytes or less.
        largest = max((bucket.count for bucket in buckets), default=0)
        wide = _COLUMN if weights is None else 2 * _COLUMN
        check_space(made, _OFFSET * (nodes + 1) + wide * largest, "writing the graph")
        total, done = sum(bucket.count for bucket in buckets), 0
        weighted = weights is not None
        with contextlib.closing(CsrWriter(made, nodes, nodes, weighted=weighted)) as writer:
            for found, count in spiller.sorted(buckets):
                writer.append(found)
                done += count
                tell("sort", done, total)
            files = writer.finish()
        if ids is not None:
            files[IDS] = write_ids(made, ids)
        date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        header = Header(nodes, writer.indices.count, read, symmetric, about, date, files)
        write_header(made, header)
        _sync(made)
        if path.is_dir() and os.listdir(path):
            os.rename(path, part / _REPLACED)  # an interrupt from here on puts it back
        os.rename(part / _MADE, path)
        _sync(path.parent)
    return StoredGraph(**vars(header), folder=path)


def _records(rows: Any, cols: Any, nodes: int, weights: Any = None) -> Keys:
    """Return the keys of nonzeros, with their weights if they have some."""
    keys: Keys = rows.astype(np.int64) * nodes + cols
    if weights is None:
        return keys
    found = np.empty(len(keys), _WEIGHTED)
    found["key"], found["weight"] = keys, weights
    return found


def check_target(path: Path, *, overwrite: bool) -> None:
    """Raise ValueError if a graph can't be built in a folder: something is there, or nothing above it."""
    if path.name in ("", ".."):
        bad_value("folder", f"got {str(path)!r}; accepted: a folder with a name of its own")
    if not path.parent.is_dir():
        bad_value("folder", f"there is no folder {path.parent} for {path.name}; accepted: one that exists")
    names = set(os.listdir(path)) if path.is_dir() and not path.is_symlink() else None
    if not names and (names is not None or not os.path.lexists(path)):
        return
    if names is not None and HEADER in names and (more := names - {HEADER, *FILES, VALUES, IDS}):
        problem = f"{path} has a graph and beside it {', '.join(sorted(more))[:200]}, which would be lost"
        bad_value("folder", f"{problem}; accepted: a new folder")
    if names is None or HEADER not in names:
        bad_value("folder", f"{path} is there and is no folder of a graph; accepted: a new folder")
    if not overwrite:
        bad_value(
            "folder",
            f"{path} has a graph; accepted: a new folder, or to replace it (overwrite=True, on the command "
            "line --overwrite)",
        )


@contextlib.contextmanager
def _building(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield an empty folder beside `path`, which this process alone uses, and remove it in the end."""
    check_target(path, overwrite=overwrite)
    part = path.with_name(path.name + ".part")
    lock = _locked(path, part)
    try:
        _clear(part, path)
        check_target(path, overwrite=overwrite)  # another process may have built it since
        yield part
    finally:
        _clear(part, path)
        # The lock goes last: as soon as it is gone, another process may have the folder.
        with contextlib.suppress(OSError):
            (part / _LOCK).unlink()
            part.rmdir()
        lock.release()


def _locked(path: Path, part: Path) -> Any:
    """Return the acquired lock of an unfinished folder, which is made if it is missing."""
    import filelock

    for _ in range(100):
        part.mkdir(exist_ok=True)
        lock = filelock.FileLock(part / _LOCK)
        try:
            if not set(os.listdir(part)) <= {_LOCK, _BUCKETS, _MADE, _REPLACED}:
                bad_value("folder", f"{part} is there and was not left by a build; accepted: to move it")
            lock.acquire(timeout=0)
        except FileNotFoundError:  # the folder was removed by the process that had it
            continue
        except NotImplementedError as error:
            raise OSError(f"folder: {part} can't be locked ({error}); accepted: another disk") from error
        except filelock.Timeout:
            accepted = "another folder, or to wait until it has ended"
            bad_value("folder", f"another process builds {path}; accepted: {accepted}")
        if (part / _LOCK).exists():
            return lock
        lock.release()
    raise OSError(f"folder: {part} can't be locked, as it is removed again and again")


def _clear(part: Path, path: Path) -> None:
    """Put a graph back that was about to be replaced when its process was interrupted; remove the others."""
    if (part / _REPLACED).exists() and not os.path.lexists(path):
        os.rename(part / _REPLACED, path)
    for name in (_BUCKETS, _MADE, _REPLACED):
        shutil.rmtree(part / name, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


#: Edges of a part. Another number makes other graphs.
_GENERATED_PART = 1 << 20
#: Bytes of memory that each node takes at the least.
_GENERATED_NODE_BYTES = 24


class EdgeStream:
    """The edges of a generated graph, as an iterable of tensors. Made by `edges_like`.

    Each iteration yields the same int32 tensors [2, n], n up to about a million. Every edge is in one
    direction, from a smaller to a larger node; an edge may be there a few times.

    Attributes:
        name: the name of the graph.
        scale: factor of the numbers of nodes and of edges.
        seed: seed of the graph.
        num_nodes: number of nodes.
        num_edges: about how many edges there are.
    """

    def __init__(self, name: str, scale: float, seed: int) -> None:
        self.name, self.scale, self.seed = name, scale, seed
        self._model = BLOCK_MODELS[name]
        self.num_nodes, self.num_edges = self._model.scaled(scale)

    def __iter__(self) -> Iterator[torch.Tensor]:
        what = f"generating edges of {self.num_nodes} nodes"
        check_memory("scale", _GENERATED_NODE_BYTES * self.num_nodes, what)
        model, host = self._model, torch.Generator().manual_seed(self.seed)
        sampler = Sampler(model, self.num_nodes, host, host)
        inside, near = round(self.num_edges * model.inside), partial(sampler.span_within, model.reach)
        for kind, parts, span in (
            ("inside", sampler.inside_parts(inside, _GENERATED_PART), sampler.own_community),
            ("outside", sampler.even_parts(self.num_edges - inside, _GENERATED_PART), near),
        ):
            for number, (count, nodes) in enumerate(parts):
                mixed = fingerprint([], "edges", self.seed, kind, number)
                sampler.generator = torch.Generator().manual_seed(int(mixed[:15], 16))
                keys = sampler.fill(count, nodes, span, between=kind == "outside")
                yield torch.stack([keys // self.num_nodes, keys % self.num_nodes]).to(torch.int32)


def edges_like(name: str, scale: float = 1.0, seed: int = 0) -> EdgeStream:
    """Return the edges of a random graph like a well-known one, which are generated part by part.

    The model and its parameters are those of `graph_like`, but the graph is another one, for other random
    numbers are drawn. Memory is used for the nodes, and for about a million edges at a time.

    "papers100m_like" has the numbers of nodes and edges of ogbn-papers100M (Hu et al. 2020), which counts
    as symmetric. Its communities and the tail of its degrees are those that were fitted to ogbn-arxiv,
    another graph of citations, with hubs of about a hundred thousand neighbours. It was not compared with
    ogbn-papers100M, and has nothing of its features, labels or topics.

    Args:
        name: a name of a block model, such as "papers100m_like" or one of GENERATED_GRAPHS.
        scale: see `graph_like`.
        seed: seed of the graph. Equal seeds make equal edges, in the same order and parts, on one release of
            torch.

    Returns:
        The edges, an iterable that `build_graph` takes.

    Raises:
        TypeError, ValueError: as `graph_like`.
    """
    return EdgeStream(BLOCK_MODELS.check(name), check_scale_of(name, scale), check_seed(seed))


def generate_graph(
    name: str,
    folder: str | os.PathLike[str],
    scale: float = 1.0,
    seed: int = 0,
    *,
    memory: int = 2**30,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> StoredGraph:
    """Generate a graph that need not fit into memory, and writes it to a folder.

    It is the symmetric graph of the edges of `edges_like`, without self-loops. The number of nonzeros is
    lower than the model's by the repeats among the edges. `open_graph` opens it. The arguments that are not
    named here are those of `edges_like` and of `build_graph`.

    Args:
        folder: the folder to make. The one above it must exist.
        memory: bytes to sort in at a time, see `build_graph`. Besides, the generator takes up to 24 bytes for
            each node, and 200 MB.

    Returns:
        What the folder says of the graph.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range, the folder is in use, or something is in its place.
        MemoryError: the nodes need more memory than this process can get.
        NoSpaceError: the disk is too full, an OSError.
        OSError: a file can't be written.
    """
    stream = edges_like(name, scale, seed)
    return build_graph(
        stream, folder, stream.num_nodes, symmetric=True, memory=memory, overwrite=overwrite,
        about=f"{name}, scale {stream.scale:g}, seed {stream.seed}", progress=progress,
    )  # fmt: skip
