"""build_graph: edges of any number become a folder of a graph, by an external sort in bounded memory."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gnnsparse.data.large.buckets import Bucket, Keys, Limits, Spiller
from gnnsparse.data.large.edges import Edges, read_edges
from gnnsparse.data.large.folder import FILES, HEADER, StoredFile, StoredGraph, folder_of, write_header
from gnnsparse.data.large.space import check_space
from gnnsparse.data.large.writer import CsrWriter
from gnnsparse.errors import bad_type, bad_value, check_flag, check_integer
from gnnsparse.sparse.graph import node_count

__all__ = ["LEAST_MEMORY", "Progress", "build_graph", "store"]

#: Is called with what is done, how many edges that was done with, and of how many; None: that is not known.
Progress = Callable[[str, int, int | None], object]

LEAST_MEMORY = 1 << 16
#: What a folder that is being built has in it.
_LOCK, _BUCKETS, _MADE, _REPLACED = "build.lock", "buckets", "graph", "replaced"
#: Bytes of a key, of an offset, and of a column.
_KEY, _OFFSET, _COLUMN = 8, 8, 4


def build_graph(
    edges: Any,
    folder: str | os.PathLike[str],
    num_nodes: int,
    *,
    symmetric: bool = False,
    memory: int = 2**30,
    overwrite: bool = False,
    about: str = "",
    progress: Progress | None = None,
) -> StoredGraph:
    """Builds a graph of edges that need not fit into memory, and writes it to a folder.

    The graph is that of `SparseGraph.from_edge_index(edges, num_nodes)`: edge e goes from node [0, e] to node
    [1, e], columns ascend in each row, repeated edges are merged, and self-loops are kept. Weights of edges
    are not supported. `open_graph` opens it.

    Edges are distributed to files by ranges of (row, column), so that each file fits into `memory`; then the
    files are sorted one after another. Arrays, files and lists are read twice, to choose the ranges by the
    degrees; other iterables once, and files that become too large are distributed again.

    While it is built, a graph takes 8 bytes of disk for each edge, 16 with `symmetric`, 8 for each node and
    half of `memory`, in the folder FOLDER.part beside its own, and more where a file has to be distributed
    again. In the end it takes 4 bytes for each nonzero and 8 for each node. It appears when it is complete:
    after an error or an interrupt nothing is left, and what a process that was killed has left is removed by
    the next one that builds the same folder.

    Args:
        edges: int32 or int64 [2, edges], in any order: a tensor, an array, which may be memory-mapped, or the
            path of a .npy file; or an iterable of such tensors and arrays, of any lengths.
        folder: the folder to make. The one above it must exist.
        num_nodes: the number of nodes.
        symmetric: whether the reverse of each edge is added.
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
    return store(
        read_edges(edges, nodes), folder, nodes, symmetric=symmetric, memory=memory, overwrite=overwrite,
        about=about, progress=progress,
    )  # fmt: skip


def store(
    edges: Edges,
    folder: Any,
    nodes: int,
    *,
    symmetric: bool,
    memory: Any,
    overwrite: Any,
    about: Any,
    progress: Progress | None,
    expected: int | None = None,
) -> StoredGraph:
    """Does what `build_graph` documents, with edges that were recognised.

    Args:
        expected: about how many edges there are, if they are not counted.
    """
    path = folder_of(folder)
    check_flag("overwrite", overwrite)
    if not isinstance(about, str):
        bad_type("about", about, "a text")
    check_integer("memory", memory, LEAST_MEMORY, f"a number of bytes, at least {LEAST_MEMORY}")
    count = expected if edges.count is None else edges.count
    with _building(path, overwrite=overwrite) as part:
        needed = _OFFSET * (nodes + 1) + _KEY * (1 + symmetric) * (count or 0)
        check_space(part, needed, f"building a graph of {nodes} nodes")
        work = _Work(edges, nodes, symmetric, Limits.within(memory), part, progress, count)
        found = work.run(path, about)
        _publish(part, path)
    return found


class _Work:
    """The building of one graph in its unfinished folder."""

    def __init__(
        self, edges: Edges, nodes: int, symmetric: bool, limits: Limits, part: Path,
        progress: Progress | None, expected: int | None,
    ) -> None:  # fmt: skip
        self._edges, self._nodes, self._symmetric = edges, nodes, symmetric
        self._limits, self._part, self._progress = limits, part, progress
        self._expected, self._read = expected, 0

    def run(self, path: Path, about: str) -> StoredGraph:
        made, spilled = self._part / _MADE, self._part / _BUCKETS
        made.mkdir()
        spilled.mkdir()
        spiller, buckets = Spiller(spilled, self._limits), []
        if self._nodes:
            buckets = spiller.distribute(
                self._keys, 0, self._nodes**2, count_first=self._edges.repeatable, step=self._nodes
            )
        else:
            self._read = sum(1 for _ in self._edges.parts(1))  # there can't be any, which `parts` checks
        nnz, files = self._write(spiller, buckets, made)
        date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        nbytes = sum(file.nbytes for file in files.values())
        graph = StoredGraph(path, self._nodes, nnz, self._read, self._symmetric, about, date, nbytes)
        write_header(made, graph, files)
        _sync(made)
        return graph

    def _tell(self, what: str, done: int, total: int | None) -> None:
        if self._progress is not None:
            self._progress(what, done, total)

    def _keys(self) -> Iterator[Keys]:
        """Yields the keys of all edges, a part at a time."""
        what = "count" if self._edges.repeatable and self._read == 0 else "distribute"
        self._read = 0
        for sources, targets in self._edges.parts(self._limits.part):
            yield targets.astype(np.int64) * self._nodes + sources
            if self._symmetric:
                yield sources.astype(np.int64) * self._nodes + targets
            self._read += len(sources)
            del sources, targets  # views of a chunk that the caller may have made, or a part of a file
            self._tell(what, self._read, self._expected)

    def _write(
        self, spiller: Spiller, buckets: list[Bucket], made: Path
    ) -> tuple[int, dict[str, StoredFile]]:
        """Sorts the buckets into the arrays of the graph; returns the number of nonzeros, and the files."""
        # A bucket is removed when it was written, in half of its bytes or less.
        largest = max((bucket.count for bucket in buckets), default=0)
        check_space(made, _OFFSET * (self._nodes + 1) + _COLUMN * largest, "writing the graph")
        total, done = sum(bucket.count for bucket in buckets), 0
        with CsrWriter(made, self._nodes, self._nodes) as writer:
            for keys, count in spiller.sorted(buckets):
                writer.append(keys)
                done += count
                self._tell("sort", done, total)
            files = writer.finish()
        return writer.nnz, files


def _check_target(path: Path, *, overwrite: bool) -> None:
    """Raises ValueError if something is in the place of a folder that is to be made."""
    if path.name in ("", ".."):
        bad_value("folder", f"got {str(path)!r}; accepted: a folder with a name of its own")
    if not path.parent.is_dir():
        bad_value("folder", f"there is no folder {path.parent} for {path.name}; accepted: one that exists")
    if not os.path.lexists(path):
        return
    names = sorted(os.listdir(path)) if path.is_dir() and not path.is_symlink() else None
    if names == []:
        return
    if names is None or not set(names) <= {HEADER, *FILES} or HEADER not in names:
        bad_value("folder", f"{path} is there and is no folder of a graph; accepted: a new folder")
    if not overwrite:
        bad_value(
            "folder",
            f"{path} has a graph; accepted: a new folder, or to replace it (overwrite=True, on the command "
            "line --overwrite)",
        )


@contextlib.contextmanager
def _building(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yields an empty folder beside `path`, which this process alone uses, and removes it in the end."""
    _check_target(path, overwrite=overwrite)
    part = path.with_name(path.name + ".part")
    lock = _locked(path, part)
    try:
        _restore(part, path)
        _clear(part)
        _check_target(path, overwrite=overwrite)  # another process may have built it since
        yield part
    finally:
        _restore(part, path)
        _clear(part)
        # The lock goes last: as soon as it is gone, another process may have the folder.
        with contextlib.suppress(OSError):
            (part / _LOCK).unlink()
            part.rmdir()
        lock.release()


def _locked(path: Path, part: Path) -> Any:
    """Returns the acquired lock of an unfinished folder, which is made if it is missing."""
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


def _clear(part: Path) -> None:
    """Removes all of an unfinished folder but its lock."""
    for name in (_BUCKETS, _MADE, _REPLACED):
        shutil.rmtree(part / name, ignore_errors=True)


def _restore(part: Path, path: Path) -> None:
    """Puts a graph back that was about to be replaced when its process was interrupted or killed."""
    if (part / _REPLACED).exists() and not os.path.lexists(path):
        os.rename(part / _REPLACED, path)


def _publish(part: Path, path: Path) -> None:
    """Gives a complete graph its name, in place of an older one."""
    if path.is_dir() and os.listdir(path):
        os.rename(path, part / _REPLACED)  # an interrupt from here on puts it back
    os.rename(part / _MADE, path)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """Waits until the names in a folder are on the disk, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
