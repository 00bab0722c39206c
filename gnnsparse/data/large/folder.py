"""Folders of graphs: a matrix in CSR form in .npy files, which are memory-mapped, and a header.

graph.json    numbers, and the size and checksum of each array; with a checksum of its own
indptr.npy    int64 [nodes + 1]
indices.npy   int32 [nonzeros], ascending in each row, without repeats
values.npy    float32 [nonzeros], if edges have weights
ids.txt       names of nodes, if they have some: one in each line, in UTF-8
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import xxhash

from gnnsparse import _native
from gnnsparse.data.array_files import bytes_of, map_npy
from gnnsparse.errors import bad_value, path_of
from gnnsparse.formats.csr import Csr, check_offsets
from gnnsparse.runtime.hashing import fingerprint
from gnnsparse.runtime.safe_io import read_json
from gnnsparse.runtime.serialization import PlainError, from_plain, to_plain
from gnnsparse.sparse.graph import SparseGraph

#: Errors of the operating system that mean that there is no more room: on the disk, for this user, in a file.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class NoSpaceError(OSError):
    """A file system has no room for what has to be written; the message says how much is free and needed."""

    errno = errno.ENOSPC


def check_space(folder: Path, nbytes: int, what: str) -> None:
    """Raise NoSpaceError if the file system of a folder has fewer free bytes than `what` takes."""
    free = shutil.disk_usage(folder).free
    if free < nbytes:
        raise NoSpaceError(
            f"folder: {folder} has {_size(free)} free, and {what} takes {_size(nbytes)}; "
            "accepted: a folder with more space"
        )


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make errors of a full disk inside a `with` block, in which a file is written, NoSpaceErrors."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL or isinstance(error, NoSpaceError):
            raise
        free = shutil.disk_usage(path.parent).free
        raise NoSpaceError(
            f"folder: {path} can't be written ({error.strerror}), {_size(free)} are free; accepted: a folder "
            "with more space"
        ) from error


def write_all(file: Any, content: memoryview | bytes) -> None:
    """Write bytes to an unbuffered file, which may take a part of them at a time."""
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"


HEADER, FILES = "graph.json", ("indptr.npy", "indices.npy")
#: Files that only some graphs have.
VALUES, IDS = "values.npy", "ids.txt"
_MARK, _VERSION = "gnnsparse-graph", 1
#: Rows and nonzeros that are looked at at a time.
_ROWS, _NONZEROS = 1 << 20, 1 << 22
#: Nonzeros whose reverse is looked for in a graph that is said to be symmetric.
_SAMPLES = 1024
_MOST_NODES = 2**31 - 1


@dataclass(frozen=True)
class StoredFile:
    """A file of a folder: its size in bytes, and the XXH3 checksum (128 bits) of its elements' bytes."""

    nbytes: int
    checksum: str


@dataclass(frozen=True)
class Header:
    """What graph.json says of a graph, beside a mark and a version."""

    num_nodes: int
    nnz: int
    num_edges: int
    symmetric: bool
    about: str
    date: str
    files: Mapping[str, StoredFile] = field(hash=False, repr=False)


@dataclass(frozen=True)
class StoredGraph(Header):
    """What the folder of a graph says of it. Its arrays were not looked at.

    Attributes:
        folder: the folder.
        num_nodes: number of nodes.
        nnz: number of nonzeros.
        num_edges: number of edges that it was built of, repeats included.
        symmetric: whether the reverse of each edge was added.
        about: what it is, as given when it was built.
        date: when it was built (UTC, ISO 8601).
        files: sizes and checksums of the files of its arrays, by their names.
    """

    folder: Path

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(file.nbytes for file in self.files.values())


def folder_of(folder: Any) -> Path:
    """Return the argument `folder` as a path; raise TypeError or ValueError if it is none."""
    path = path_of("folder", folder, "the path of a folder")
    if not os.fsdecode(folder) or "\0" in str(path):
        bad_value("folder", f"got {os.fsdecode(folder)!r}; accepted: the path of a folder")
    return path


def write_header(folder: Path, header: Header) -> None:
    """Write graph.json, and wait until it is on the disk."""
    content = {"made_by": _MARK, "version": _VERSION, **to_plain(header)}
    path = folder / HEADER
    with writing(path), open(path, "x", encoding="utf-8") as file:
        json.dump({"graph": content, "checksum": _sum_of(content)}, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def _sum_of(content: Any) -> str:
    return fingerprint([], json.dumps(content, sort_keys=True))


class DamagedGraphError(ValueError):
    """A file of a graph is not what was written; the message names it."""


def _damaged(path: Path, problem: str) -> NoReturn:
    raise DamagedGraphError(f"{path}: is damaged ({problem})")


def _read_header(folder: Path) -> Header:
    path = folder / HEADER
    try:
        content = read_json(path, 1 << 20)
    except ValueError as error:
        raise DamagedGraphError(str(error)) from error
    except (FileNotFoundError, NotADirectoryError):
        bad_value("folder", f"{folder} is no folder of a graph; accepted: one that `build_graph` made")
    graph = content.get("graph") if isinstance(content, dict) else None
    if not isinstance(graph, dict) or graph.get("made_by") != _MARK:
        _damaged(path, "it has not the mark of a graph")
    if content.get("checksum") != _sum_of(graph):
        _damaged(path, "it does not match its checksum")
    if graph.get("version") != _VERSION:
        bad_value("folder", f"{path} is of version {graph.get('version')}; accepted: {_VERSION}")
    try:
        facts = {name: value for name, value in graph.items() if name not in ("made_by", "version")}
        header: Header = from_plain(Header, facts, "graph")
    except PlainError as error:
        _damaged(path, str(error))
    if set(header.files) - {VALUES, IDS} != set(FILES):
        _damaged(path, f"it names the files {', '.join(header.files)}; accepted: {', '.join(FILES)}")
    if header.num_nodes > _MOST_NODES or header.nnz > header.num_nodes**2:
        _damaged(path, f"it says {header.num_nodes} nodes and {header.nnz} nonzeros")
    return header


def graph_info(folder: str | os.PathLike[str]) -> StoredGraph:
    """Read what a folder says of its graph, and compare the sizes of its files.

    Args:
        folder: a folder that `build_graph` or `generate_graph` made.

    Raises:
        TypeError: `folder` is no path.
        DamagedGraphError: a file is missing or damaged, a ValueError that names the file.
        ValueError: it is no folder of a graph, or one of another version.
        OSError: a file can't be read.
    """
    path = folder_of(folder)
    header = _read_header(path)
    map_arrays(path, header)
    return StoredGraph(**vars(header), folder=path)


def open_graph(folder: str | os.PathLike[str]) -> SparseGraph:
    """Open a graph that lies in a folder, without reading it into memory.

    Its arrays are memory-mapped: the operating system reads their pages when they are used, and drops them
    when it needs the memory. Both files are read once, a part at a time, and checked: their checksums, that
    offsets never decrease, and that columns are in range and ascend in each row. The graph stays readable
    when its folder is replaced or removed. Whoever writes to the files of an open graph changes it, and
    cutting one short ends the process.

    Args:
        folder: a folder that `build_graph` or `generate_graph` made.

    Returns:
        The graph on the CPU: int64 offsets [nodes + 1], int32 columns [nnz], float32 values [nnz] if edges
        have weights. Its arrays are for reading: the operating system ends a process that writes to them.

    Raises:
        TypeError, DamagedGraphError, ValueError, OSError: as `graph_info`.
    """
    path = folder_of(folder)
    header = _read_header(path)
    indptr, indices, values = map_arrays(path, header)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*not writable", UserWarning)  # nothing writes to them
        csr = Csr(torch.from_numpy(indptr), torch.from_numpy(indices), header.num_nodes)
        weights = None if values is None else torch.from_numpy(values)
    _check_offsets(path, csr, header)
    _check_indices(path, csr, header)
    if values is not None:
        _check_values(path / VALUES, values, header)
    graph = SparseGraph(csr, weights)
    if header.symmetric:
        _check_symmetric(path / FILES[1], csr)
        # Known, so that nobody transposes the whole matrix to find out.
        graph.__dict__["is_symmetric"] = True
    return graph


def map_arrays(folder: Path, header: Header) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Map offsets, int64 [nodes + 1], columns, int32 [nnz], and weights, float32 [nnz], unchecked."""
    for name in header.files:
        path, expected = folder / name, header.files[name].nbytes
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise DamagedGraphError(f"{path}: is missing; accepted: all files of a graph") from None
        if size != expected:
            _damaged(path, f"it has {size} bytes of {expected}")

    def mapped(name: str, dtype: Any, count: int) -> np.ndarray:
        try:
            return map_npy(folder / name, (dtype,), (count,))
        except ValueError as error:
            raise DamagedGraphError(str(error)) from error

    has_values = VALUES in header.files
    return (
        mapped(FILES[0], np.int64, header.num_nodes + 1),
        mapped(FILES[1], np.int32, header.nnz),
        mapped(VALUES, np.float32, header.nnz) if has_values else None,
    )


def graph_ids(folder: str | os.PathLike[str]) -> tuple[str, ...] | None:
    """Read the names of the nodes of a graph in a folder, in the order of their numbers; None: it has none.

    Raises:
        TypeError, DamagedGraphError, ValueError, OSError: as `graph_info`.
    """
    made = graph_info(folder)
    if IDS not in made.files:
        return None
    path = made.folder / IDS
    content = path.read_bytes()
    if xxhash.xxh3_128(content).hexdigest() != made.files[IDS].checksum:
        _damaged(path, "it does not match its checksum")
    names = tuple(content.decode().split("\n")[:-1])
    if len(names) != made.num_nodes:
        _damaged(path, f"it has {len(names)} names of {made.num_nodes} nodes")
    return names


def write_ids(folder: Path, ids: Sequence[str]) -> StoredFile:
    """Write the names of nodes; raise ValueError for one with a line break, which the file can't hold."""
    path, found, nbytes = folder / IDS, xxhash.xxh3_128(), 0
    with writing(path), open(path, "xb") as file:
        for first in range(0, len(ids), _ROWS):
            part = ids[first : first + _ROWS]
            if wrong := next((name for name in part if "\n" in name), None):
                bad_value("ids", f"has {wrong[:80]!r}; accepted: names without a line break")
            content = "".join(f"{name}\n" for name in part).encode()
            found.update(content)
            nbytes += file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return StoredFile(nbytes, found.hexdigest())


def row_parts(csr: Csr, first: int = 0, stop: int | None = None) -> Iterator[tuple[int, int, int, int]]:
    """Divide rows of a matrix: yield the first row, the one behind the last, and the same of nonzeros.

    A part has at most a million rows, and more than four million nonzeros only if it is one row.
    """
    offsets, stop = csr.indptr.numpy(), csr.rows if stop is None else stop
    begin = int(offsets[first])
    while first < stop:
        fits = int(np.searchsorted(offsets, begin + _NONZEROS, "right")) - 1
        last = min(max(fits, first + 1), first + _ROWS, stop)
        end = int(offsets[last])
        yield first, last, begin, end
        first, begin = last, end


def _check_offsets(folder: Path, csr: Csr, header: Header) -> None:
    path, found, offsets = folder / FILES[0], xxhash.xxh3_128(), csr.indptr.numpy()
    for first in range(0, len(offsets), _ROWS):
        found.update(bytes_of(offsets[first : first + _ROWS]))
    if found.hexdigest() != header.files[FILES[0]].checksum:
        _damaged(path, "its elements do not match their checksum")
    try:
        check_offsets(str(path), csr.indptr, csr.nnz)
    except ValueError as error:
        raise DamagedGraphError(str(error)) from error


def _check_indices(folder: Path, csr: Csr, header: Header) -> None:
    path, found, threads = folder / FILES[1], xxhash.xxh3_128(), torch.get_num_threads()
    for first, last, begin, end in row_parts(csr):
        columns = csr.indices[begin:end]
        found.update(bytes_of(columns.numpy()))
        at = _native.first_out_of_range(columns, csr.cols, threads)
        if at >= 0:
            _damaged(path, f"element {begin + at} is {int(columns[at])}; accepted: 0 to {csr.cols - 1}")
        if not _native.is_canonical(csr.indptr[first : last + 1] - begin, columns, threads):
            _damaged(path, f"columns do not ascend in a row from {first} to {last - 1}")
    if found.hexdigest() != header.files[FILES[1]].checksum:
        _damaged(path, "its elements do not match their checksum")


def _check_values(path: Path, values: np.ndarray, header: Header) -> None:
    found = xxhash.xxh3_128()
    for first in range(0, len(values), _NONZEROS):
        part = values[first : first + _NONZEROS]
        found.update(bytes_of(part))
        if not np.isfinite(part).all():
            _damaged(path, "a weight is not finite")
    if found.hexdigest() != header.files[VALUES].checksum:
        _damaged(path, "its elements do not match their checksum")


def _check_symmetric(path: Path, csr: Csr) -> None:
    """Look for the reverse of some nonzeros, since what takes the graph for symmetric has no transpose."""
    offsets, indices = csr.indptr.numpy(), csr.indices.numpy()
    for at in range(0, csr.nnz, max(1, csr.nnz // _SAMPLES)):
        row, column = int(np.searchsorted(offsets, at, "right")) - 1, int(indices[at])
        reverse = indices[offsets[column] : offsets[column + 1]]
        place = int(np.searchsorted(reverse, row))
        if place == len(reverse) or reverse[place] != row:
            _damaged(path, f"it lacks the reverse of the edge between {row} and {column}")
