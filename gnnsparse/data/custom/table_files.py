"""Files with tables: their rows, the names of their columns, and each column as texts or as numbers."""

from __future__ import annotations

import io
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from gnnsparse.data.array_files import read_text
from gnnsparse.data.optional import import_optional
from gnnsparse.errors import bad_value, check_memory
from gnnsparse.runtime.safe_io import open_regular, reading

__all__ = ["ENDINGS", "Table", "is_number", "read_table", "text_of"]

#: The endings of the names of tables.
ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
#: Bytes of memory for each byte of a text.
_FACTOR = 12
#: Names of columns to which nobody gave one: pandas' in texts and in Parquet files.
_UNNAMED = re.compile(r"|Unnamed: \d+(_level_\d+)?|__index_level_\d+__")


@dataclass(frozen=True, eq=False)
class Table:
    """The columns of a table: arrays [rows] of numbers, or of texts as objects.

    Attributes:
        file: the name of the file, for messages.
        first_row: whether the names are the first row of a text, which may be values.
        nameless: whether the columns have no names, but numbers: column 1, column 2 and so on.
    """

    file: str
    names: tuple[str, ...]
    columns: tuple[np.ndarray, ...]
    first_row: bool = False
    nameless: bool = False

    def headless(self) -> Table:
        """Return the table whose first row is values and whose columns have no names."""
        columns = [
            np.concatenate([np.array([name], dtype=object), column])
            for name, column in zip(self.names, self.columns, strict=True)
        ]
        while len(columns) > 1 and not any(columns[-1].tolist()):  # each line ends with a separator
            columns.pop()
        names = tuple(f"column {number + 1}" for number in range(len(columns)))
        return Table(self.file, names, tuple(columns), nameless=True)

    def with_names(self) -> Table:
        """Return the table itself if no two of its columns have the same name, else raise."""
        twice = next((name for at, name in enumerate(self.names) if name in self.names[:at]), None)
        if twice is not None:
            bad_value("path", f"{self.file} has two columns {twice!r}; accepted: a different name for each")
        return self

    def choose(self, option: str, name: str) -> str:
        """Return the name of the column that an option chooses, if there is such a column, else raise."""
        if name not in self.names:
            known = ", ".join(self.names)[:300]
            bad_value(option, f"there is no column {name!r}; {self.file} has {known or 'none'}")
        return name

    def called(self, usual: Collection[str]) -> list[str]:
        """Return the names of columns that are one of some usual names, in capital or small letters."""
        return [name for name in self.names if name.casefold() in usual]

    def unnamed(self) -> list[str]:
        """Return the columns to which nobody gave a name."""
        return [name for name in self.names if _UNNAMED.fullmatch(name)]

    def row_numbers(self) -> list[str]:
        """Return the columns without a name in which a library numbers rows, and those that are empty."""
        return [name for name in self.unnamed() if self.counts_rows(name)]

    def counts_rows(self, name: str) -> bool:
        """Return whether a column has a different whole number in each row, as an index has, or nothing."""
        texts = self.texts(name).tolist()
        return not any(texts) or (len(set(texts)) == len(texts) and all(t.isdecimal() for t in texts))

    def values(self, name: str) -> np.ndarray:
        """Return a column: numbers, or texts."""
        return self.columns[self.names.index(name)]

    def texts(self, name: str) -> np.ndarray:
        """Return a column as texts, an array of objects, "" where a value is missing."""
        return np.array([text_of(value) for value in self.values(name).tolist()], dtype=object)

    def full_texts(self, option: str, name: str) -> np.ndarray:
        """Return a column as texts, an array of objects, of which none may be missing."""
        texts = self.texts(name)
        if (empty := texts == "").any():
            self.refuse(option, name, int(empty.argmax()), "a text")
        return texts

    def numbers(
        self, option: str, name: str, missing: bool = False, accepted: str = "finite numbers"
    ) -> np.ndarray:
        """Return the column of an option as finite numbers, float64, or NaN where values may be missing."""
        numbers, wrong = self._parsed(name)
        wrong |= np.isinf(numbers) if missing else ~np.isfinite(numbers)
        if wrong.any():
            self.refuse(option, name, int(wrong.argmax()), accepted)
        return numbers

    def is_numeric(self, name: str) -> bool:
        """Return whether each value of a column is a finite number."""
        return bool(np.isfinite(self._parsed(name)[0]).all())

    def refuse(self, option: str, name: str, at: int, accepted: str) -> NoReturn:
        """Raise ValueError about an element of a column."""
        got = text_of(self.values(name)[at])[:80]
        what = f"has {got!r}" if got else "is empty"
        bad_value(option, f"{self.file}: column {name!r} {what} in row {at + 1}; accepted: {accepted}")

    def _parsed(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return a column as float64, NaN where there is no number, and where something else is, bool."""
        column = self.values(name)
        if column.dtype.kind in "biuf":
            return column.astype(np.float64), np.zeros(len(column), bool)
        pandas = import_optional("pandas", self.file)
        series = pandas.Series(column, dtype=object).astype(str).str.strip()
        numbers = pandas.to_numeric(series, errors="coerce").to_numpy(np.float64, na_value=np.nan)
        return numbers, np.isnan(numbers) & ~series.str.lower().isin(["", "nan"]).to_numpy(bool)


def is_number(text: str) -> bool:
    """Return whether a text is a finite number."""
    try:
        return bool(np.isfinite(float(text))) and "_" not in text  # which Python reads over
    except ValueError:
        return False


def text_of(value: Any) -> str:
    """Return a value of a table as a text, "" if it is missing."""
    if isinstance(value, (float, np.floating)):
        return "" if value != value else str(int(value)) if value.is_integer() else str(value)
    return "" if value is None else str(value).strip()


def read_table(path: Path) -> Table:
    """Read a table: a text in UTF-8, separated by commas, or by tabs in `.tsv`; or a Parquet file."""
    is_parquet = path.name.endswith(".parquet")
    with (
        reading(path),
        open_regular(path) if is_parquet else io.BytesIO(read_text(path, _FACTOR)) as file,
    ):
        try:
            return _parquet(path.name, file) if is_parquet else _csv(path.name, file)
        except (MemoryError, ImportError, OSError):
            raise
        except Exception as error:  # pandas and pyarrow raise errors of many types
            raise ValueError(f"is no table ({type(error).__name__}: {str(error).strip()[:200]})") from error


def _csv(name: str, file: BinaryIO) -> Table:
    """Read a table of texts; every cell stays as it is written, so that only an empty one is missing."""
    pandas = import_optional("pandas", name)
    table = pandas.read_csv(
        file, sep="\t" if name.endswith((".tsv", ".tsv.gz")) else ",", dtype=str, na_filter=False,
        encoding="utf-8-sig", header=None, index_col=False, skipinitialspace=True,
    )  # fmt: skip
    cells = [table[name].to_numpy(dtype=object) for name in table.columns]
    names = tuple(str(column[0]).strip() for column in cells)
    return Table(name, names, tuple(column[1:] for column in cells), first_row=True)


def _parquet(name: str, file: BinaryIO) -> Table:
    """Read a Parquet file: numbers, and everything else as texts."""
    types = import_optional("pyarrow", name).types
    described = import_optional("pyarrow.parquet", name).ParquetFile(file)
    groups = range(described.metadata.num_row_groups)
    size = sum(described.metadata.row_group(i).total_byte_size for i in groups)
    check_memory("table", _FACTOR * size, f"a table of {size} bytes")
    table, columns = described.read(), []
    for column in table.columns:
        is_real = types.is_floating(column.type) or types.is_boolean(column.type)
        if is_real or (types.is_integer(column.type) and not column.null_count):
            columns.append(column.to_numpy())
        else:
            texts = column.cast("string").to_pylist()
            columns.append(np.array(["" if text is None else text for text in texts], dtype=object))
    return Table(name, tuple(table.column_names), tuple(columns))
