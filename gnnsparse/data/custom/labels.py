"""Labels of a user's nodes: classes, several labels a node, or numbers; some nodes may have none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gnnsparse.data.custom.content import Content
from gnnsparse.errors import bad_type, bad_value, check_integer, check_memory

__all__ = ["LABEL_KINDS", "Labels", "check_classes", "read_labels"]

#: What labels can be; "auto": what they look like.
LABEL_KINDS = ("auto", "class", "multilabel", "regression")
#: Texts that mean that there is no label.
_MISSING = ("", "nan", "NaN", "NA", "null", "None", "-1")
#: Nodes whose labels are names and no classes if all of them differ.
_MANY = 20


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of N nodes.

    Attributes:
        y: int64 [N], classes, -1 where there is none; or float32 [N, labels] of 0 and 1, or float32 [N,
            targets], NaN where there are none.
        present: bool [N], the nodes that have a label, or some of several.
        count: number of classes, labels or targets.
        kind: one of LABEL_KINDS but "auto".
        names: the names of the classes or labels; None: they are numbered.
    """

    y: torch.Tensor
    present: torch.Tensor
    count: int
    kind: str
    names: tuple[str, ...] | None = None


def check_classes(classes: Any) -> int | tuple[str, ...] | None:
    """Returns the option `classes`: a number of classes, their names, or None; else raises."""
    accepted = "the number of classes, or a list of their different names"
    if classes is None or (isinstance(classes, int) and not isinstance(classes, bool)):
        return None if classes is None else check_integer("classes", classes, 1, accepted, 2**31 - 1)
    if isinstance(classes, (str, bytes)) or not isinstance(classes, Sequence):
        bad_type("classes", classes, accepted)
    names = tuple(str(name) for name in classes)
    if not names or len(set(names)) != len(names):
        bad_value("classes", f"got {', '.join(names)[:200] or 'nothing'}; accepted: {accepted}")
    return names


def read_labels(content: Content, kind: str, classes: int | tuple[str, ...] | None) -> Labels:
    """Makes labels of what a file says of its nodes.

    Args:
        content: the file's content.
        kind: one of LABEL_KINDS. "auto": whole numbers and texts are classes, other numbers are targets of a
            regression, and a table of 0 and 1 with several columns has several labels a node.
        classes: the number of classes or labels, or their names in the order of their numbers; None: those
            that there are.

    Raises:
        ValueError: there are no labels and `classes` is None; or a label is out of range, infinite, or none
            of the names.
    """
    y = content.y
    if y is None:
        return _no_labels(content.nodes, kind, classes)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim == 1 and (content.named or y.dtype.kind not in "biuf") and kind != "regression":
        if kind == "multilabel":
            bad_value("label_kind", "got 'multilabel' for one column; accepted: class, regression or auto")
        if kind == "class" or not _are_fractions(y):
            return _named(_texts(y), classes)
    return _of_numbers(_numbers(y), kind, classes, content.label_columns)


def _no_labels(nodes: int, kind: str, classes: int | tuple[str, ...] | None) -> Labels:
    if classes is None:
        bad_value(
            "label",
            "there are no labels; accepted: y, a column of labels (label=COLUMN), or for predictions alone "
            "classes=, the number or the names of the classes",
        )
    names = classes if isinstance(classes, tuple) else None
    count = classes if isinstance(classes, int) else len(classes)
    present = torch.zeros(nodes, dtype=torch.bool, device="cpu")
    if kind in ("auto", "class"):
        return Labels(torch.full((nodes,), -1, device="cpu"), present, count, "class", names)
    y = torch.full((nodes, count), math.nan, dtype=torch.float32, device="cpu")
    return Labels(y, present, count, kind, names)


def _texts(y: np.ndarray) -> np.ndarray:
    """Returns labels as texts, "" where there is none."""
    if y.dtype.kind == "f":
        whole = np.isfinite(y) & (y == np.floor(y))
        return np.array(
            [str(int(v)) if w else "" if v != v else str(v) for v, w in zip(y, whole, strict=True)]
        )
    return np.array([str(value).strip() for value in y.tolist()], dtype=object)


def _are_fractions(y: np.ndarray) -> bool:
    """Whether labels are numbers that are not all whole."""
    try:
        numbers = _numbers(y)
    except ValueError:
        return False
    found = numbers[~np.isnan(numbers)]
    return bool(np.isfinite(found).all()) and bool((found != np.floor(found)).any())


def _named(texts: np.ndarray, classes: int | tuple[str, ...] | None) -> Labels:
    """Makes classes of names. Without `classes` they are sorted, as numbers if all of them are integers."""
    present = np.array([text not in _MISSING for text in texts.tolist()], dtype=bool)
    found = sorted(set(texts[present].tolist()))
    if all(_is_integer(name) for name in found):
        found.sort(key=int)
    if isinstance(classes, int):
        if not all(_is_integer(name) and 0 <= int(name) < classes for name in found):
            wrong = next(name for name in found if not (_is_integer(name) and 0 <= int(name) < classes))
            bad_value(
                "classes", f"got {classes}, and a label is {wrong!r}; accepted: labels below it, or names"
            )
        found = [str(number) for number in range(classes)]
    elif classes is not None:
        unknown = [name for name in found if name not in set(classes)]
        if unknown:
            bad_value("classes", f"lacks {unknown[0]!r}, which is a label in the file; accepted: all labels")
        found = list(classes)
    if not found:
        bad_value("label", "no node has a label; accepted: at least one that is not empty, NaN or -1")
    if classes is None and len(found) == int(present.sum()) >= _MANY:
        bad_value(
            "label",
            f"each of {len(found)} nodes has a label of its own, as a name is; accepted: classes of several "
            "nodes (label=COLUMN), or classes= for what they are",
        )
    number = {name: at for at, name in enumerate(found)}
    y = np.array([number[text] if have else -1 for text, have in zip(texts.tolist(), present, strict=True)])
    return Labels(
        torch.from_numpy(y.astype(np.int64)), torch.from_numpy(present), len(found), "class", tuple(found)
    )


def _is_integer(text: str) -> bool:
    return len(text) < 19 and text.removeprefix("-").isdecimal()


def _numbers(y: np.ndarray) -> np.ndarray:
    """Returns labels as float64, NaN where there is none."""
    if y.dtype.kind in "biuf":
        return y.astype(np.float64)
    check_memory("y", 8 * y.size, f"labels of shape {y.shape}")
    flat = np.empty(y.size)
    for at, value in enumerate(y.ravel().tolist()):
        text = str(value).strip()
        try:
            flat[at] = np.nan if text in _MISSING and text != "-1" else float(text)
        except ValueError:
            bad_value("label", f"node {at * len(y) // y.size} has {text[:80]!r}; accepted: numbers")
    return flat.reshape(y.shape)


def _of_numbers(
    y: np.ndarray, kind: str, classes: int | tuple[str, ...] | None, columns: tuple[str, ...] | None
) -> Labels:
    if np.isinf(y).any():
        bad_value(
            "y",
            f"node {int(np.isinf(y).reshape(len(y), -1).any(1).argmax())} has infinity; accepted: numbers",
        )
    known = y[~np.isnan(y)]
    if kind == "auto":
        whole = bool((known == np.floor(known)).all())
        several = y.ndim == 2 and bool(np.isin(known, (-1, 0, 1)).all())
        kind = "multilabel" if several else "class" if y.ndim == 1 and whole else "regression"
    if kind == "class":
        return _numbered(y, known, classes)
    table = y.reshape(len(y), -1)
    if kind == "multilabel":
        table = np.where(table == -1, np.nan, table)
        if not (np.isnan(table) | np.isin(table, (0, 1))).all():
            bad_value("y", "holds other numbers than 0 and 1; accepted: 1 for each label that a node has")
    present = ~np.isnan(table).all(axis=1)
    if not present.any():
        bad_value("y", "no node has a label; accepted: at least one that is not NaN")
    with np.errstate(over="ignore"):
        table = table.astype(np.float32)
    if np.isinf(table).any():
        bad_value("y", "holds a number beyond the range of float32; accepted: smaller ones")
    names = _names_of(classes, columns, table.shape[1])
    return Labels(torch.from_numpy(table), torch.from_numpy(present), table.shape[1], kind, names)


def _names_of(
    classes: int | tuple[str, ...] | None, columns: tuple[str, ...] | None, count: int
) -> tuple[str, ...] | None:
    """Returns the names of several labels or targets, after a check that there are so many."""
    given = classes if isinstance(classes, int) else count if classes is None else len(classes)
    if given != count:
        bad_value("classes", f"got {given}, and there are {count} columns of labels; accepted: as many")
    return classes if isinstance(classes, tuple) else columns


def _numbered(y: np.ndarray, known: np.ndarray, classes: int | tuple[str, ...] | None) -> Labels:
    """Makes classes of integers, which are the numbers of the classes."""
    accepted = f"0 to {len(y) - 1}, or -1 or NaN where there is none" if len(y) else "integers"
    if y.ndim != 1:
        bad_value("y", f"has shape {y.shape}; accepted: one class for each node")
    limit = len(y) if classes is None else classes if isinstance(classes, int) else len(classes)
    wrong = ~np.isnan(y) & ((y != np.floor(y)) | (y < -1) | (y >= limit))
    if wrong.any():
        at = int(wrong.argmax())
        if classes is not None:
            accepted = f"0 to {limit - 1}, as classes= says, or -1 or NaN where there is none"
        bad_value("y", f"node {at} has the class {y[at]:g}; accepted: {accepted}")
    found = known[known >= 0]
    if classes is None and not found.size:
        bad_value("y", "no node has a label; accepted: at least one that is not NaN or -1")
    count = limit if classes is not None else int(found.max()) + 1
    numbers = np.where(np.isnan(y), -1, y).astype(np.int64)
    names = classes if isinstance(classes, tuple) else None
    return Labels(torch.from_numpy(numbers), torch.from_numpy(numbers >= 0), count, "class", names)
