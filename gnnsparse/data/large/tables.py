"""build_graph_of_tables: tables of edges of any size are read in pieces, and their ids become numbers."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gnnsparse.data.custom.build import FileOptions, sorted_texts, text_of
from gnnsparse.data.custom.delimited import SEPARATORS, decode, parse_text, with_points
from gnnsparse.data.custom.tables import ENDINGS, Table, array_of_arrow, columns_of_edges
from gnnsparse.data.large.build import LEAST_MEMORY, Progress, build_graph, check_target
from gnnsparse.data.large.folder import StoredGraph, folder_of, writing
from gnnsparse.data.optional import import_optional
from gnnsparse.errors import bad_value, check_flag, check_integer, path_of
from gnnsparse.runtime.safe_io import open_regular, open_text, reading
from gnnsparse.sparse.graph import node_count

_log = logging.getLogger("gnnsparse.data")

#: Bytes of a text by which its columns are found, and rows that are read at a time.
_SAMPLE, _ROWS = 1 << 20, 1 << 18
#: Numbers that are looked at at a time.
_NUMBERS = 1 << 20
#: Bytes of memory of the name of a node, about.
_NAME = 200
_MOST_NODES = 2**31 - 1
#: A whole number as Python writes it.
_WHOLE = r"0|[1-9]\d{0,17}"

#: Sources and targets, int64 or texts as objects, and weights.
_Piece = tuple[np.ndarray, np.ndarray, "np.ndarray | None"]


def build_graph_of_tables(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    folder: str | os.PathLike[str],
    num_nodes: int | None = None,
    *,
    source: str | None = None,
    target: str | None = None,
    weight: str | None = None,
    separator: str | None = None,
    symmetric: bool = False,
    memory: int = 2**30,
    overwrite: bool = False,
    about: str = "",
    progress: Progress | None = None,
) -> StoredGraph:
    """Build a graph of tables of edges that need not fit into memory, and write it to a folder.

    Tables are read as `load_custom` reads them, some rows at a time; a text's separator and columns are found
    by its first megabyte. Ids that are whole numbers stay if `num_nodes` is given, or if 0 and at least half
    of the numbers up to the largest one are among them. Other ids are numbered in their order, which is that
    of numbers if all are whole: `graph_ids` returns them. The logger "gnnsparse.data" says at the level INFO
    what columns are used for, and what became of the ids.

    Beside what `build_graph` takes, the ends and weights of edges are written to files without a name in the
    folder of the new one, 16 bytes for each edge and 4 for its weight, and memory holds the different names.
    The arguments that are not named here are those of `build_graph`.

    Args:
        files: a table of edges, or several whose edges are one graph: .csv, .tsv or .txt, also with .gz, or
            .parquet.
        folder: the folder to make. The one above it must exist.
        num_nodes: the number of nodes, whose ids are whole numbers below it; None: found.
        source: column of the sources, see `load_custom`.
        target: column of the targets.
        weight: column of the weights.
        separator: of texts, see `load_custom`.

    Returns:
        What the folder says of the graph.

    Raises:
        TypeError, ValueError: as `load_custom` and `build_graph`; or names need more than `memory`.
        OSError: a file can't be read or written, or the disk is too full.
    """
    options = FileOptions(source=source, target=target, weight=weight, separator=separator)
    check_integer("memory", memory, LEAST_MEMORY, f"a number of bytes, at least {LEAST_MEMORY}")
    nodes = None if num_nodes is None else node_count("num_nodes", num_nodes)
    given = [files] if isinstance(files, (str, os.PathLike)) else list(files)
    paths = [path_of("edges", file, "the path of a table") for file in given]
    for path in paths:
        if not path.name.lower().endswith(ENDINGS):
            bad_value("edges", f"got {str(path)!r}; accepted: a file {', '.join(ENDINGS)}")
    check_target(folder_of(folder), overwrite=check_flag("overwrite", overwrite))  # before hours of reading
    with contextlib.ExitStack() as stack:
        ends = _Ends(folder_of(folder).parent, memory, stack)
        for path in paths:
            for piece in _pieces(path, options):
                ends.add(path, *piece)
                if progress is not None:
                    progress("read", ends.count, None)
        count, ids = ends.finish(nodes)
        edges, weights = ends.arrays()
        return build_graph(
            edges, folder, count, weights=weights, ids=ids, symmetric=symmetric, memory=memory,
            overwrite=overwrite, about=about, progress=progress,
        )  # fmt: skip


class _Ends:
    """Ends and weights of edges in files that have no name, so that they end with the process.

    Ends are whole numbers until one is none; from then on they are the numbers of names, in the order in
    which these came.
    """

    def __init__(self, folder: Path, memory: int, stack: contextlib.ExitStack) -> None:
        self._folder, self._memory, self.count = folder, memory, 0
        self._ends: Any = stack.enter_context(tempfile.TemporaryFile(dir=folder))  # noqa: SIM115
        self._weights: Any = stack.enter_context(tempfile.TemporaryFile(dir=folder))  # noqa: SIM115
        self._weighted: bool | None = None
        self._names: dict[str, int] | None = None

    def add(self, path: Path, source: np.ndarray, target: np.ndarray, weights: np.ndarray | None) -> None:
        """Write the edges of a piece of a table."""
        if self._weighted not in (None, weights is not None):
            has = "no weights" if weights is None else "weights"
            bad_value("weight", f"{path} has {has}, unlike the tables before it; accepted: all with or none")
        self._weighted = weights is not None
        ends = [_whole(source), _whole(target)]
        if self._names is None and any(end is None for end in ends):
            self._name_all()
        if self._names is not None:
            ends = [self._numbers(source), self._numbers(target)]
        with writing(self._folder / "edges"):
            self._ends.write(np.stack(ends, axis=1).tobytes())  # type: ignore[arg-type]
            self._weights.write(b"" if weights is None else weights.astype(np.float32).tobytes())
        self.count += len(source)

    def _numbers(self, ids: np.ndarray) -> np.ndarray:
        """Return the numbers of ids, of which new ones get the next ones."""
        names, pandas = self._names, import_optional("pandas", "a table of edges")
        assert names is not None
        places, different = pandas.factorize(ids)
        found = [names.setdefault(str(name), len(names)) for name in different]
        if _NAME * len(names) > self._memory:
            accepted = "ids from 0 to N - 1 (num_nodes=N, on the command line --nodes N)"
            bad_value(
                "memory",
                f"got {self._memory} bytes, and more than {len(names)} ids that are names or far apart need "
                f"more; accepted: about {_NAME} bytes for each of them, or {accepted}",
            )
        return np.array(found, np.int64)[places]

    def _name_all(self) -> None:
        self._names = {}
        self._replace(lambda part: self._numbers(part.ravel()).reshape(part.shape))

    def _replace(self, of: Any) -> None:
        """Put other numbers in the place of those that were written."""
        if self.count:
            with writing(self._folder / "edges"):
                written = self._map("r+")
                for first in range(0, self.count, _NUMBERS):
                    written[first : first + _NUMBERS] = of(np.array(written[first : first + _NUMBERS]))
                written.flush()

    def _map(self, mode: Any) -> Any:
        self._ends.flush()
        return np.memmap(self._ends, np.int64, mode, shape=(self.count, 2))

    def finish(self, num_nodes: int | None) -> tuple[int, list[str] | None]:
        """Decide what numbers nodes have; return how many there are, and their names, if ids do not stay."""
        if not self.count:
            bad_value("edges", "have no row; accepted: tables with an edge or more")
        if self._names is None:
            if num_nodes is not None:
                return num_nodes, None
            largest, found = self._whole_numbers()
            if found is not None and found[0] and 2 * (there := int(found.sum())) > largest:
                alone = largest + 1 - there
                more = f"; {alone} of them have no edge" if alone else ""
                _log.info(f"nodes: 0 to {largest}, the ids of the tables{more}")
                return largest + 1, None
            self._name_all()
        names = self._names
        assert names is not None
        if num_nodes is not None:
            got = f"got {num_nodes}, and ids are no whole numbers, as {next(iter(names))[:80]!r}"
            bad_value("num_nodes", f"{got}; accepted: without it")
        ids = sorted_texts(names)
        rank = np.empty(len(ids), np.int64)
        rank[[names[name] for name in ids]] = np.arange(len(ids))
        self._replace(lambda part: rank[part])
        _log.info(
            f"nodes: {len(ids)} ids, from {ids[0]!r} to {ids[-1]!r}, are numbered in this order (ids.txt)"
        )
        return len(ids), ids

    def _whole_numbers(self) -> tuple[int, np.ndarray | None]:
        """Return the largest id, and which numbers up to it are ids; None: there are too many to look at."""
        ends = self._map("r")
        parts = range(0, self.count, _NUMBERS)
        largest = max(int(ends[first : first + _NUMBERS].max()) for first in parts)
        if largest >= min(_MOST_NODES, max(self._memory, 4 * self.count)):
            return largest, None
        found = np.zeros(largest + 1, bool)
        for first in parts:
            found[ends[first : first + _NUMBERS].ravel()] = True
        return largest, found

    def arrays(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the edges, int64 [2, edges], and their weights, float32 [edges], which are memory-mapped."""
        self._weights.flush()
        weights = np.memmap(self._weights, np.float32, "r", shape=(self.count,)) if self._weighted else None
        return self._map("r").T, weights


def _whole(ids: np.ndarray) -> np.ndarray | None:
    """Return ids as int64 if all are whole numbers from 0 on, written as usual; None: they are names."""
    if ids.dtype.kind in "iu":
        return None if len(ids) and int(ids.min()) < 0 else ids.astype(np.int64)
    texts = import_optional("pandas", "a table of edges").Series(ids, dtype=object)
    fits = texts.str.fullmatch(_WHOLE).all()
    return ids.astype(np.int64) if fits else None


def _pieces(path: Path, options: FileOptions) -> Iterator[_Piece]:
    """Yield the edges of a table, some rows at a time, after a line that says what columns are used for."""
    tables = _parquet_pieces if path.name.lower().endswith(".parquet") else _text_pieces
    with reading(path):
        for table, (source, target, weight), first in tables(path, options):
            ends = [_ids(table, option, name) for option, name in (("source", source), ("target", target))]
            try:
                yield ends[0], ends[1], None if weight is None else table.numbers("weight", weight)
            except ValueError as error:
                raise ValueError(
                    f"{error} (rows are counted from row {first + 1} on)" if first else error
                ) from error


def _ids(table: Table, option: str, name: str) -> np.ndarray:
    column = table.values(name)
    if column.dtype.kind in "iu":
        return column
    texts = column if column.dtype.kind == "O" else np.array([text_of(v) for v in column.tolist()], object)
    texts = import_optional("pandas", table.file).Series(texts, dtype=object).str.strip().to_numpy(object)
    if (empty := texts == "").any():
        table.refuse(option, name, int(empty.argmax()), "an id")
    return texts


def _parquet_pieces(path: Path, options: FileOptions) -> Iterator[tuple[Table, Any, int]]:
    parquet, done = import_optional("pyarrow.parquet", path.name), 0
    with open_regular(path) as file:
        try:
            described = parquet.ParquetFile(file)
        except Exception as error:  # pyarrow raises errors of many types
            raise ValueError(f"is no table ({type(error).__name__}: {str(error).strip()[:200]})") from error
        used: Any = None
        for batch in described.iter_batches(_ROWS):
            table = Table(path.name, tuple(batch.schema.names), tuple(map(array_of_arrow, batch.columns)))
            if used is None:
                _, used, line = columns_of_edges(table, options)
                _log.info(line)
            yield table, used, done
            done += len(batch)


def _text_pieces(path: Path, options: FileOptions) -> Iterator[tuple[Table, Any, int]]:
    pandas, done = import_optional("pandas", path.name), 0
    with open_text(path) as (file, _):
        begin = file.read(_SAMPLE)
        text, encoding = decode(path.name, begin, whole=len(begin) < _SAMPLE)
    if len(begin) == _SAMPLE:
        text = text[: text.rfind("\n") + 1] or text
    found = parse_text(path.name, text, options.separator, ".tsv" in path.name.lower())
    sample = Table(path.name, found.first, found.columns, not found.named, separator=found.separator)
    named, used, line = columns_of_edges(sample, options)
    _log.info(line)
    heading = 0 if named.nameless or found.named else 1
    with open_text(path) as (file, _), io.TextIOWrapper(file, encoding, newline="") as lines:
        for _ in range(found.skipped):
            lines.readline()
        separator = r"\s+" if found.separator == "space" else SEPARATORS[found.separator]
        rows = pandas.read_csv(
            lines, sep=separator, dtype=str, na_filter=False, header=None, index_col=False,
            skipinitialspace=True, chunksize=_ROWS,
        )  # fmt: skip
        for piece in rows:
            columns = [
                piece[column].to_numpy(dtype=object)[heading:] for column in piece.columns[: len(named.names)]
            ]
            if used[2] is not None and found.separator != "comma":
                at = named.names.index(used[2])
                columns[at] = with_points(columns[at])
            yield Table(path.name, named.names, tuple(columns)), used, done
            done, heading = done + len(columns[0]), 0
