"""Files of predictions."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnnsparse.errors import bad_value
from gnnsparse.runtime.environment import write_bytes

__all__ = ["ENDINGS", "write_predictions"]

#: The endings of files that predictions can be written to.
ENDINGS = (".npz", ".csv")
#: A formula of a spreadsheet begins with one of these, or a full-width form (OWASP's page on CSV injection).
#: The apostrophe is here so that one that was put in front is told from one of the text.
_FORMULA = tuple("=+-@\t\r\n'\uff1d\uff0b\uff0d\uff20")
#: A text that a spreadsheet reads as a number, and not as a formula.
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


def write_predictions(
    path: Path, arrays: Mapping[str, torch.Tensor], names: Mapping[str, np.ndarray] | None = None
) -> None:
    """Writes predictions to a file, which appears whole or not at all.

    A CSV file has a row for each element of the first dimension. An array of one dimension is a column with
    its name, and the columns of one of two dimensions have numbers, or the names of the classes where they
    are known: probabilities_0, probabilities_1, ..., or probabilities_law, ... A column `class_name` then has
    the name of the class. A text that begins like a formula of a spreadsheet, with one of = + - @, a tab or a
    line break, or with an apostrophe, gets an apostrophe in front, unless it is a number.

    Args:
        path: a file that ends in .npz or .csv; an existing one is replaced.
        arrays: tensors [N] or [N, C] by name, on the CPU, all of the same N for a CSV file.
        names: arrays of texts by name, which say what numbers in `arrays` are called: "ids", a text for each
            row, which stands before what was predicted in a CSV file, and "class_names", a text for each
            class.

    Raises:
        ValueError: the name has another ending, or the arrays have several lengths in a CSV file.
        OSError: the file can't be written.
    """
    if path.suffix not in ENDINGS:
        bad_value("path", f"got {str(path)!r}; accepted: a name in {', '.join(ENDINGS)}")
    named: dict[str, Any] = {name: array.numpy() for name, array in arrays.items()}
    content = io.BytesIO()
    if path.suffix == ".npz":
        np.savez(content, **{**named, **(names or {})})
    else:
        content.write(_as_csv(named, names or {}).encode())
    write_bytes(path, content.getbuffer())


def _as_csv(arrays: dict[str, Any], names: Mapping[str, np.ndarray]) -> str:
    columns: dict[str, Any] = {}
    ids, classes = names.get("ids"), names.get("class_names")
    for name, array in arrays.items():
        if array.ndim == 1:
            columns[name] = array
            if name == "classes" and classes is not None:
                columns["class_name"] = classes[array]
            if len(columns) == 1 and ids is not None and len(ids) == len(array):
                columns["ids"] = ids
        elif array.ndim == 2:
            count = array.shape[1]
            titles = classes if classes is not None and len(classes) == count else range(count)
            columns |= {f"{name}_{title}": array[:, at] for at, title in enumerate(titles)}
        else:
            bad_value("arrays", f"{name} has shape {array.shape}; accepted: one or two dimensions, or .npz")
    if len(lengths := {len(column) for column in columns.values()}) > 1:
        bad_value("arrays", f"have the lengths {sorted(lengths)}; accepted: one length, or a file in .npz")
    # As Python's numbers: of a float32 they would otherwise show NumPy's type.
    rows = [columns, *zip(*(_texts(column) for column in columns.values()), strict=True)]
    # Not csv.writer, which before Python 3.13 leaves a carriage return unquoted where lines end without one.
    return "".join(",".join(_quoted(str(cell)) for cell in row) + "\n" for row in rows)


def _quoted(cell: str) -> str:
    return '"{}"'.format(cell.replace('"', '""')) if set(cell) & set(',"\r\n') else cell


def _texts(column: Any) -> Any:
    """Return the cells of a column, of floats with the digits that tell float32 numbers apart."""
    if column.dtype.kind in "OU":
        return [_harmless(str(text)) for text in column.tolist()]
    if column.dtype.kind == "f":
        return [f"{value:.9g}" for value in column.tolist()]
    return column.astype(int).tolist() if column.dtype.kind == "b" else column.tolist()


def _harmless(text: str) -> str:
    """Return a text that no spreadsheet runs, from which `removeprefix("'")` makes the text again."""
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text
