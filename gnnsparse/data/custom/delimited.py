"""Delimited texts as people's programs write them: what they say of themselves is found by their content.

These are the encoding, comments before the table, the separator, and whether numbers have decimal commas.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gnnsparse.data.optional import import_optional
from gnnsparse.errors import bad_type, bad_value

#: Words, in small letters, that programs write where a value is missing, and that may be names as well.
MISSING_WORDS = ("na", "n/a", "#n/a", "<na>", "nan", "null", "none", "?")
#: The separators by name.
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|", "space": " "}
#: Characters and lines of a text by which its separator is found.
_SAMPLE, _LINES = 2**16, 200
#: A number with a decimal comma, or without a fraction.
_COMMA = r"[+-]?(?:\d+,?\d*|,\d+)(?:[eE][+-]?\d+)?"


@dataclass(frozen=True, eq=False)
class Delimited:
    """The cells of a text: its first row, and columns of the others, objects [rows], as they are written."""

    first: tuple[str, ...]
    columns: tuple[np.ndarray, ...]
    separator: str  # its name
    named: bool  # whether the first row has the names of columns for certain: it stood in a comment
    skipped: int = 0  # lines before the table: comments and what says the separator


def is_number(text: str) -> bool:
    """Return whether a text is a finite number."""
    try:
        return bool(np.isfinite(float(text))) and "_" not in text  # which Python reads over
    except ValueError:
        return False


def separator_of(name: object) -> str | None:
    """Return the name of a separator that is given by its name or as it is; None: it is to be found."""
    accepted = ", ".join(SEPARATORS)
    if name is None:
        return None
    if not isinstance(name, str):
        bad_type("separator", name, accepted)
    found = next((key for key, character in SEPARATORS.items() if name in (key, character)), None)
    return found or bad_value("separator", f"got {name!r}; accepted: {accepted}")


def parse(file: str, content: bytes, separator: str | None, tabs: bool) -> Delimited:
    """Parse a text; a cell stays as it is, so that only an empty one is missing.

    Args:
        file: its name, for messages.
        content: its bytes.
        separator: a name in SEPARATORS; None: it is found, and `tabs` says which of several is likely.
    """
    return parse_text(file, decode(file, content)[0], separator, tabs)


def parse_text(file: str, whole: str, separator: str | None, tabs: bool) -> Delimited:
    """Parse a text that was decoded, or the lines that it begins with; see `parse`."""
    pandas = import_optional("pandas", file)
    text, comment = _without_comments(whole)
    if hint := re.match(r"sep=(.)\r?\n", text, re.IGNORECASE):  # as Excel takes it
        separator, text = separator or separator_of(hint[1]), text[hint.end() :]
    sample = text[:_SAMPLE].splitlines(keepends=True)
    sample = (sample[:-1] if len(text) > _SAMPLE else sample)[:_LINES]
    name = separator or _find_separator(sample, tabs)
    try:
        table = pandas.read_csv(
            io.StringIO(text), sep=r"\s+" if name == "space" else SEPARATORS[name], dtype=str,
            na_filter=False, header=None, index_col=False, skipinitialspace=True,
        )  # fmt: skip
    except pandas.errors.EmptyDataError:
        raise ValueError("is no table, as it is empty; accepted: rows") from None
    except pandas.errors.ParserError as error:
        reason = str(error).replace("Error tokenizing data. C error: ", "").strip()[:200]
        raise ValueError(
            f"is no table whose separator is a {name} ({reason}); accepted: rows of as many cells, or "
            f"separator= ({', '.join(SEPARATORS)})"
        ) from error
    cells = [table[column].to_numpy(dtype=object) for column in table.columns]
    header = tuple(_rows(comment, name)[0]) if comment else ()
    named = len(header) == len(cells) > 1 and not any(map(is_number, header))
    first = header if named else tuple(str(column[0]).strip() for column in cells)
    columns = cells if named else [column[1:] for column in cells]
    if name != "comma" and "," in text:
        first = tuple(str(with_points(np.array([cell], dtype=object))[0]) for cell in first)
        columns = [with_points(column) for column in columns]
    skipped = whole[: len(whole) - len(text)].count("\n")
    return Delimited(tuple(cell.strip() for cell in first), tuple(columns), name, named, skipped)


def decode(file: str, content: bytes, *, whole: bool = True) -> tuple[str, str]:
    """Decode UTF-8, UTF-16 with its mark, and with a warning what Windows writes in western Europe.

    Without `whole` the content is the begin of a file, which may end within a character. Returns the text and
    the name of its encoding.
    """

    def decoded(encoding: str) -> str:
        return codecs.getincrementaldecoder(encoding)().decode(content, final=whole)

    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text, encoding = decoded("utf-16"), "utf-16"
    else:
        try:
            text, encoding = decoded("utf-8-sig"), "utf-8-sig"
        except UnicodeDecodeError:
            try:
                text, encoding = decoded("cp1252"), "cp1252"
            except UnicodeDecodeError:
                text, encoding = decoded("latin-1"), "latin-1"
            problem = f"{file} is not in UTF-8, and was read as {encoding}"
            hint = "save it as UTF-8 if names look wrong"
            warnings.warn(f"{problem}; {hint}", UserWarning, stacklevel=2)
    if "\0" in text:
        raise ValueError("has null characters, and is no text")
    return text, encoding


def _without_comments(text: str) -> tuple[str, list[str]]:
    """Return a text after the lines at its top that begin with #, as SNAP's do, and the last of these."""
    at, comment = 0, ""
    while text.startswith("#", at):
        end = text.find("\n", at) + 1 or len(text)
        at, comment = end, text[at:end]
    if not text[at:].strip():
        return text, []  # the rows themselves begin so
    return text[at:], [comment.lstrip("#").strip()] if comment else []


def _rows(lines: Sequence[str], separator: str) -> list[list[str]]:
    """Return the cells of some lines that are not empty."""
    if separator == "space":
        return [line.split() for line in lines if line.strip()]
    rows = csv.reader(lines, delimiter=SEPARATORS[separator], skipinitialspace=True)
    return [row for row in rows if row] or [[]]


def _find_separator(lines: Sequence[str], tabs: bool) -> str:
    """Return the separator that divides all lines into the same number of cells, two or more.

    A comma beside another one is a decimal comma if all cells with one are numbers then, else the separator.
    """
    found: dict[str, list[list[str]]] = {}
    for name in SEPARATORS:
        try:
            rows = _rows(lines, name)
        except csv.Error:
            continue
        counts = {len(row) for row in rows}
        if len(counts) == 1 and counts != {1} and counts != {0}:
            found[name] = rows
    if tabs and "tab" in found:
        return "tab"
    for name in ("tab", "semicolon", "pipe"):
        if name in found and ("comma" not in found or _has_decimal_commas(found[name])):
            return name
    for name in ("comma", "space"):
        if name in found:
            return name
    # Rows of several lengths, or of one cell: the first one has most of what is meant.
    usual = "tab" if tabs else "comma"
    others = [name for name in SEPARATORS if name not in ("space", usual)]
    return max((usual, *others), key=lambda name: len(_rows(lines[:1], name)[0]) if lines else 0)


def _has_decimal_commas(rows: list[list[str]]) -> bool:
    cells = np.array([cell for row in rows for cell in row if "," in cell], dtype=object)
    return not any("," in cell for cell in with_points(cells).tolist())


def with_points(column: np.ndarray) -> np.ndarray:
    """Return a column of texts with decimal points, if it has numbers with decimal commas and no others."""
    pandas = import_optional("pandas", "a table")
    texts = pandas.Series(column, dtype=object).str.strip()
    if not texts.str.contains(",", regex=False).any():
        return column
    fits = texts.str.fullmatch(_COMMA) | texts.str.lower().isin(["", *MISSING_WORDS])
    return texts.str.replace(",", ".", regex=False).to_numpy(dtype=object) if fits.all() else column
