"""Graphs in tables: a list of edges and a table of nodes, as CSV, TSV or Parquet files."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gnnsparse.data.custom.content import PARTS, Content
from gnnsparse.data.optional import import_optional
from gnnsparse.errors import bad_type, bad_value, check_memory
from gnnsparse.opened import open_regular, open_text, reading

__all__ = ["ENDINGS", "Columns", "find_tables", "read_tables"]

#: The endings of the names of tables.
ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
#: Bytes that are read at a time, and bytes of memory for each byte of a text.
_CHUNK, _FACTOR = 2**24, 12
#: How many times the size of the other features a column is that there is a warning of.
_OUTSIZED = 500
#: The column of the split, and what its values mean.
_SPLIT = "split"
_PARTS = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test",
}  # fmt: skip


@dataclass(frozen=True)
class Columns:
    """Which columns of the tables mean what; None: the usual names.

    Attributes:
        source, target: columns of the edges; the usual names are source and target, src and dst, or else the
            first two columns.
        weight: column of the edges' weights; usual: weight.
        id: column of the nodes' ids; usual: id, node, or else the first column.
        label: column of labels, or several columns of 0 and 1; usual: label or y.
        features: columns of numbers; usual: all other columns of the nodes but that of the split and of the
            times.
        time: the column of times, which is no feature.

    Raises:
        TypeError: an attribute is of another type.
    """

    source: str | None = None
    target: str | None = None
    weight: str | None = None
    id: str | None = None
    label: str | Sequence[str] | None = None
    features: Sequence[str] | None = None
    time: str | None = None

    def __post_init__(self) -> None:
        for name in ("source", "target", "weight", "id"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                bad_type(name, value, "the name of a column")
        if self.features is not None:
            _names("feature_columns", self.features)
        if self.label is not None and not isinstance(self.label, str):
            _names("label", self.label)


def _names(name: str, value: Any) -> None:
    accepted = "a list of names of columns"
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        bad_type(name, value, accepted)
    if not value or not all(isinstance(item, str) for item in value):
        bad_value(name, f"got {str(list(value))[:100]}; accepted: {accepted}")


def find_tables(path: Path, edges: str | None, nodes: str | None) -> tuple[Path, Path | None]:
    """Returns the files of the edges and of the nodes.

    Args:
        path: a folder, or the file of the edges.
        edges: name of the file of the edges in the folder; None: edges with one of ENDINGS.
        nodes: name of the file of the nodes, beside that of the edges; None: nodes with one of ENDINGS, if
            there is such a file.

    Raises:
        ValueError: there is no such file, or an argument does not go with the path.
    """
    if path.is_dir():
        found = _file(path, "edges", edges, required=True)
        assert found is not None
        return found, _file(path, "nodes", nodes, required=nodes is not None)
    if edges is not None:
        bad_value("edges", f"got {edges!r}, and path is a file itself; accepted: a folder as path")
    return path, _file(path.parent, "nodes", nodes, required=nodes is not None)


def _file(folder: Path, option: str, name: str | None, required: bool) -> Path | None:
    for candidate in [name] if name is not None else [option + ending for ending in ENDINGS]:
        if (folder / candidate).is_file():
            if not candidate.endswith(ENDINGS):
                bad_value(option, f"got {candidate!r}; accepted: a file {', '.join(ENDINGS)}")
            return folder / candidate
    if required:
        wanted = name or f"{option}.csv, {option}.tsv or {option}.parquet"
        bad_value(option, f"there is no file {wanted} in {folder}; accepted: the name of a file there")
    return None


def read_tables(edges: Path, nodes: Path | None, columns: Columns) -> Content:
    """Reads a graph of a table of edges and a table of nodes, whose ids are texts.

    Args:
        edges: the file of the edges, a row for each.
        nodes: the file of the nodes, a row for each; None: the nodes are those of the edges.
        columns: what the columns mean.

    Raises:
        ValueError: a file is damaged, a column is missing, a node has two rows, an edge ends at no node, or
            what should be a number is none.
        MemoryError: a table does not fit into memory.
        ImportError: pandas, or for Parquet files pyarrow, is not installed.
        OSError: a file can't be read.
    """
    links = _Table(edges)
    source = links.choose("source", columns.source, ("source", "src", "from"), place=0)
    target = links.choose("target", columns.target, ("target", "dst", "to"), place=1)
    ends = {"source": links.texts("source", source), "target": links.texts("target", target)}
    weight = links.choose("weight", columns.weight, ("weight", "edge_weight"))
    weights = None if weight is None else links.numbers("weight", weight)
    content: dict[str, Any] = {"ids": _sorted_ids(list(ends.values()))}
    if nodes is not None:
        content = _nodes(_Table(nodes), columns)
    where = "edges" if nodes is None else nodes.name
    numbered = [_numbers(option, links.file, end, content["ids"], where) for option, end in ends.items()]
    return Content(len(content["ids"]), np.stack(numbered), weights, directed=False, **content)


def _sorted_ids(ends: list[np.ndarray]) -> tuple[str, ...]:
    found = sorted(set(np.concatenate(ends).tolist()))
    if all(text.removeprefix("-").isdecimal() and len(text) < 19 for text in found):
        found.sort(key=int)
    return tuple(found)


def _numbers(option: str, file: str, ends: np.ndarray, ids: tuple[str, ...], known: str) -> np.ndarray:
    """Returns the numbers of nodes, int64, after a check that all ids are those of nodes."""
    pandas = import_optional("pandas", "a table of edges")
    numbers: np.ndarray = pandas.Index(np.array(ids, dtype=object)).get_indexer(ends)
    wrong = numbers < 0
    if wrong.any():
        at = int(wrong.argmax())
        got = f"{file}: row {at + 1} has {ends[at][:80]!r}"
        bad_value(option, f"{got}; accepted: the ids of nodes in {known}")
    return numbers.astype(np.int64)


def _nodes(table: _Table, columns: Columns) -> dict[str, Any]:
    """Returns what a table of nodes says, as arguments of Content."""
    column = table.choose("id", columns.id, ("id", "node", "node_id"), place=0)
    ids = tuple(table.texts("id", column).tolist())
    if len(set(ids)) != len(ids):
        seen: set[str] = set()
        twice = next(text for text in ids if text in seen or seen.add(text))  # type: ignore[func-returns-value]
        bad_value("id", f"{table.file}: {twice[:80]!r} has two rows; accepted: one for each node")
    several = columns.label is not None and not isinstance(columns.label, str)
    labels = list(columns.label or ()) if several else []
    one = None if several else table.choose("label", columns.label, ("label", "y"))  # type: ignore[arg-type]
    y = None if one is None else table.values(one)
    if labels:
        y = np.stack([table.numbers("label", name, missing=True) for name in labels], axis=1)
    used = {column, one, *labels, _SPLIT, columns.time}
    chosen = (
        list(columns.features) if columns.features is not None else [n for n in table.names if n not in used]
    )
    features = [table.numbers("feature_columns", name) for name in chosen]
    if columns.features is None:
        _compare_sizes(table.file, dict(zip(chosen, features, strict=True)))
    rest = {name: table.values(name) for name in table.names if name not in {column, one, *labels}}
    return {
        "ids": ids,
        "x": np.stack(features, axis=1) if features else None,
        "y": y,
        "label_columns": tuple(labels) or None,
        "masks": _split(table),
        "columns": rest,
        "named": one is not None,
    }


def _compare_sizes(file: str, features: dict[str, np.ndarray]) -> None:
    """Warns of a column that nobody has chosen, next to which a model hardly sees the others, as a year."""
    sizes = {name: float(np.sqrt(np.mean(column**2))) for name, column in features.items() if column.size}
    for name, size in sizes.items():
        others = [other for key, other in sizes.items() if key != name and other > 0]
        usual = float(np.median(others)) if others else size
        if size > _OUTSIZED * usual:
            problem = (
                f"feature_columns: {file}: the values of {name!r} are about {size:.3g}, and those of the "
                f"others about {usual:.3g}, which a model then hardly sees; scale them, or name the columns"
            )
            warnings.warn(problem, UserWarning, stacklevel=2)


def _split(table: _Table) -> dict[str, np.ndarray]:
    """Returns masks of the column `split`, if there is one."""
    if _SPLIT not in table.names:
        return {}
    parts = table.texts("split", _SPLIT, missing=True)
    parts = np.array([text.lower() for text in parts.tolist()], dtype=object)
    for at, text in enumerate(parts.tolist()):
        if text and text not in _PARTS:
            got = f"{table.file}: row {at + 1} of column {_SPLIT!r} has {text[:40]!r}"
            bad_value("split", f"{got}; accepted: train, val, test, or nothing")
    of = np.array([_PARTS.get(text, "") for text in parts.tolist()], dtype=object)
    return {part: of == part for part in PARTS}


class _Table:
    """A table in a file, of which every value is a number or a text.

    Attributes:
        names: the names of the columns.
        file: the name of the file, for messages.
    """

    def __init__(self, path: Path) -> None:
        with reading(path):
            self._columns = _parquet(path) if path.name.endswith(".parquet") else _csv(path)
        self.file = path.name
        self.names = tuple(self._columns)

    def choose(self, option: str, given: str | None, usual: tuple[str, ...], place: int | None = None) -> Any:
        """Returns the name of a column: the given one, a usual one, or the one at a place; or None.

        Raises:
            ValueError: there is no such column.
        """
        for name in (given,) if given is not None else usual:
            if name in self._columns:
                return name
        known = ", ".join(self.names)[:300]
        if given is not None:
            bad_value(option, f"there is no column {given!r}; {self.file} has {known or 'none'}")
        if place is None:
            return None
        if place >= len(self.names):
            bad_value(
                option, f"{self.file} has the columns {known or 'none'}; accepted: at least {place + 1}"
            )
        return self.names[place]

    def values(self, name: str) -> np.ndarray:
        """Returns a column: numbers, or texts."""
        return self._columns[name]

    def texts(self, option: str, name: str, missing: bool = False) -> np.ndarray:
        """Returns a column as texts, an array of objects.

        Raises:
            ValueError: a value is missing, and `missing` is False.
        """
        texts = np.array([_text(value) for value in self._columns[name].tolist()], dtype=object)
        if not missing and (empty := texts == "").any():
            at = int(empty.argmax()) + 1
            bad_value(option, f"{self.file}: column {name!r} is empty in row {at}; accepted: a text")
        return texts

    def numbers(self, option: str, name: str, missing: bool = False) -> np.ndarray:
        """Returns a column as float64.

        Args:
            option: the option that chooses the column.
            name: the column.
            missing: whether values may be missing, which become NaN.

        Raises:
            ValueError: there is no such column, or a value is no finite number.
        """
        self.choose(option, name, ())
        column = self._columns[name]
        if column.dtype.kind in "biuf":
            numbers = column.astype(np.float64)
        else:
            pandas = import_optional("pandas", "a table of nodes")
            series = pandas.Series(column, dtype=object).astype(str).str.strip()
            numbers = pandas.to_numeric(series, errors="coerce").to_numpy(np.float64, na_value=np.nan)
            wrong = np.isnan(numbers) & ~series.str.lower().isin(["", "nan"]).to_numpy(bool)
            self._refuse(option, name, wrong, "numbers")
        wrong = np.isinf(numbers) if missing else ~np.isfinite(numbers)
        self._refuse(option, name, wrong, "finite numbers")
        return numbers

    def _refuse(self, option: str, name: str, wrong: np.ndarray, accepted: str) -> None:
        if wrong.any():
            at = int(wrong.argmax())
            got = _text(self._columns[name][at])[:80]
            where = f"{self.file}: column {name!r} has {got!r} in row {at + 1}"
            bad_value(option, f"{where}; accepted: {accepted}")


def _text(value: Any) -> str:
    if isinstance(value, float):
        return "" if value != value else str(int(value)) if value.is_integer() else str(value)
    return "" if value is None else str(value).strip()


def _csv(path: Path) -> dict[str, np.ndarray]:
    """Reads the columns of a table of texts, UTF-8, with a line of names."""
    pandas = import_optional("pandas", f"{path.name}")
    content = _content(path)
    separator = "\t" if ".tsv" in path.suffixes else ","
    try:
        table = pandas.read_csv(
            io.BytesIO(content), sep=separator, dtype=str, na_filter=False, encoding="utf-8-sig",
            index_col=False, skipinitialspace=True,
        )  # fmt: skip
    except Exception as error:  # pandas raises errors of many types
        if isinstance(error, MemoryError):
            raise
        raise ValueError(f"is no table ({type(error).__name__}: {str(error).strip()[:200]})") from error
    return _checked(
        {str(name).strip(): table[name].to_numpy(dtype=object) for name in table.columns}, len(table.columns)
    )


def _content(path: Path) -> bytes:
    """Returns the bytes of a text, decompressed, as far as memory has room for a table of them."""
    content = bytearray()
    with open_text(path) as (file, _):
        while chunk := file.read(_CHUNK):
            content += chunk
            check_memory("table", _FACTOR * len(content), f"a table of {len(content)} bytes or more")
    return bytes(content)


def _checked(columns: dict[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    if len(columns) != count:
        raise ValueError("has two columns of the same name; accepted: a different name for each column")
    return columns


def _parquet(path: Path) -> dict[str, np.ndarray]:
    """Reads the columns of a Parquet file: numbers, and everything else as texts."""
    arrow = import_optional("pyarrow", path.name)
    parquet = import_optional("pyarrow.parquet", path.name)
    with open_regular(path) as file:
        try:
            described = parquet.ParquetFile(file)
            size = sum(
                described.metadata.row_group(i).total_byte_size
                for i in range(described.metadata.num_row_groups)
            )
            check_memory("table", _FACTOR * size, f"a table of {size} bytes")
            table = described.read()
            columns = {}
            for name, column in zip(table.column_names, table.columns, strict=True):
                kind = column.type
                plain = arrow.types.is_floating(kind) or arrow.types.is_boolean(kind)
                if plain or (arrow.types.is_integer(kind) and not column.null_count):
                    columns[name] = column.to_numpy()
                    continue
                texts = column.cast(arrow.string()).to_pylist()
                columns[name] = np.array(["" if text is None else text for text in texts], dtype=object)
        except (arrow.ArrowException, TypeError, KeyError, UnicodeDecodeError) as error:
            raise ValueError(f"is no table ({type(error).__name__}: {str(error).strip()[:200]})") from error
    return _checked(columns, table.num_columns)
