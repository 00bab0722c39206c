"""Labels of a user's nodes: classes, several labels a node, or numbers; some nodes may have none."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gnnsparse.data.custom.content import MISSING_WORDS, Content
from gnnsparse.data.custom.table_files import is_number
from gnnsparse.errors import bad_type, bad_value, check_integer, check_memory

__all__ = ["LABEL_KINDS", "Labels", "check_classes", "read_labels"]

#: What labels can be; "auto": what they look like.
LABEL_KINDS = ("auto", "class", "multilabel", "regression")
#: What means that there is no label among numbers of classes, and may be the name of a class elsewhere.
_NO_CLASS = "-1"
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
            that there are. An empty text is a missing label, and so is -1 unless it is one of the names.

    Raises:
        ValueError: there are no labels and `classes` is None; there are fewer than two classes; a label is
            out of range, infinite, or none of the names; or it may be a class or a missing label.
    """
    y = content.y
    if y is None:
        return _no_labels(content.nodes, kind, classes)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim == 1 and (content.named or y.dtype.kind not in "biuf") and kind != "regression":
        if kind == "multilabel":
            bad_value("label_kind", "got 'multilabel' for one column; accepted: class, regression or auto")
        texts = _texts(y)
        if kind == "class" or not _are_fractions(texts):
            return _named(texts, classes)
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
        _check_count(classes)
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


def _are_fractions(texts: np.ndarray) -> bool:
    """Return whether labels are numbers that are not all whole.

    Raises:
        ValueError: some are, and others are no numbers.
    """
    words = set(texts.tolist()) - {""}
    if not any(is_number(word) and not float(word).is_integer() for word in words):
        return False
    others = sorted(word for word in words if not is_number(word) and word.casefold() != "nan")
    if others:
        bad_value(
            "label",
            f"some labels are numbers, and others are not, as {others[0][:80]!r}; accepted: an empty cell "
            "where there is no number, or label_kind=class",
        )
    return True


def _check_count(classes: int | tuple[str, ...]) -> int:
    """Return the number of classes that the option `classes` says; raise unless it is two or more."""
    count = classes if isinstance(classes, int) else len(classes)
    if count < 2:
        got = classes if isinstance(classes, int) else classes[0]
        bad_value("classes", f"got {got}, one class; accepted: two or more")
    return count


def _named(texts: np.ndarray, classes: int | tuple[str, ...] | None) -> Labels:
    """Makes classes of names. Without `classes` they are sorted, as numbers if all of them are integers."""
    words = set(texts.tolist()) - {""}
    if classes is None:
        _check_words(words, texts)
    elif isinstance(classes, int) or _NO_CLASS not in classes:
        words.discard(_NO_CLASS)
    found = sorted(words)
    if all(_is_integer(name) for name in found):
        found.sort(key=int)
    if isinstance(classes, int):
        wrong = next((name for name in found if not (_is_integer(name) and 0 <= int(name) < classes)), None)
        if wrong is not None:
            bad_value(
                "classes", f"got {classes}, and a label is {wrong!r}; accepted: labels below it, or names"
            )
    elif classes is not None:
        unknown = [name for name in found if name not in set(classes)]
        if unknown:
            bad_value("classes", f"lacks {unknown[0]!r}, which is a label in the file; accepted: all labels")
    if classes is not None:
        _check_count(classes)
    present = np.array([text in words for text in texts.tolist()], dtype=bool)
    if not found:
        bad_value("label", "no node has a label; accepted: at least one that is not empty")
    if classes is None and len(found) == int(present.sum()) >= _MANY:
        bad_value(
            "label",
            f"each of {len(found)} nodes has a label of its own, as a name is; accepted: classes of several "
            "nodes (label=COLUMN), or classes= for what they are",
        )
    if classes is None and len(found) < 2:
        _refuse_one_class("label", found[0], int(present.sum()))
    if isinstance(classes, int):
        number = {name: int(name) for name in found}
        names = tuple(map(str, range(classes)))
    else:
        names = classes or tuple(found)
        number = {name: at for at, name in enumerate(names)}
    y = np.array([number[text] if have else -1 for text, have in zip(texts.tolist(), present, strict=True)])
    return Labels(torch.from_numpy(y.astype(np.int64)), torch.from_numpy(present), len(names), "class", names)


def _refuse_one_class(option: str, name: object, nodes: int) -> None:
    bad_value(
        option,
        f"all nodes with a label, {nodes}, have {str(name)[:80]!r}; accepted: two classes or more, or "
        "classes= with the names of all for predictions",
    )


def _check_words(words: set[str], texts: np.ndarray) -> None:
    """Raise ValueError if a label may be a class or a missing one; warn of a class with such a name."""
    accepted = "an empty cell where there is no label, or classes= with the names of all classes"
    doubt = "which may be a class or a missing label"
    if _NO_CLASS in words:
        count = int((texts == _NO_CLASS).sum())
        bad_value("label", f"got '-1' ({count} times), {doubt}; accepted: {accepted}, -1 among them or not")
    doubtful = sorted(word for word in words if word.casefold() in MISSING_WORDS)
    if not doubtful:
        return
    got = f"got {doubtful[0]!r} ({int((texts == doubtful[0]).sum())} times)"
    if all(is_number(word) for word in words - set(doubtful)):
        bad_value("label", f"{got} and beside it numbers or nothing, {doubt}; accepted: {accepted}")
    warnings.warn(f"label: {got}, which is taken as a class; accepted without this warning: {accepted}",
                  UserWarning, stacklevel=2)  # fmt: skip


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
            flat[at] = float(text or "nan")
        except ValueError:
            got = f"node {at * len(y) // y.size} has {text[:80]!r}"
            bad_value("label", f"{got}; accepted: numbers, or an empty cell where there is none")
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
        if np.isin(y, -1).any() and not (table == 0).any():
            bad_value("y", "holds -1 and no 0; accepted: 0 for a label that a node does not have, and -1 or "
                      "NaN where it is not known")  # fmt: skip
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
    limit = len(y) if classes is None else _check_count(classes)
    wrong = ~np.isnan(y) & ((y != np.floor(y)) | (y < -1) | (y >= limit))
    if wrong.any():
        at = int(wrong.argmax())
        if classes is not None:
            accepted = f"0 to {limit - 1}, as classes= says, or -1 or NaN where there is none"
        bad_value("y", f"node {at} has the class {y[at]:g}; accepted: {accepted}")
    found = known[known >= 0]
    if classes is None and not found.size:
        bad_value("y", "no node has a label; accepted: at least one that is not NaN or -1")
    if classes is None and len(set(found.tolist())) < 2:
        _refuse_one_class("y", int(found[0]), found.size)
    count = limit if classes is not None else int(found.max()) + 1
    numbers = np.where(np.isnan(y), -1, y).astype(np.int64)
    names = classes if isinstance(classes, tuple) else None
    return Labels(torch.from_numpy(numbers), torch.from_numpy(numbers >= 0), count, "class", names)
