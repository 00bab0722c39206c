"""Tables of random graphs, as people and libraries write them: each is read right, or refused.

A case draws a graph, writes it with columns of any names in any order, and knows from what it wrote whether
the tables say all. What they say is compared with the graph; what could be several things has to be refused.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gnnsparse.data import NodeDataset, load_custom
from tests.fuzz import worker
from tests.fuzz.common import Draw, FailedCallError, Trial

#: Names of classes, of which those in capitals or small letters below are what programs write for missing.
_CLASSES = (("law", "math"), ("US", "DE", "NA"), ("None", "null", "N/A", "nan", "x"), ("0", "1", "2"),
            ("-1", "1"), ("NA", "nan"), ("1", "2", "NA"), ("true", "false"), ("1.5", "old"))  # fmt: skip
_MISSING = ("NA", "None", "null", "N/A", "nan")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_PARTS = ("train", "val", "test")


@dataclass
class Written:
    """Tables in a folder, and what they say: of the nodes, and the weights, or counts, [target, source]."""

    options: dict[str, Any] = field(default_factory=lambda: {"directed": True})
    refused: list[str] = field(default_factory=list)  # options of which an error has to name one
    ids: list[str] = field(default_factory=list)
    x: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    features: list[str] = field(default_factory=list)
    labels: list[str | None] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    matrix: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))


Columns = list[tuple[str, list[str]]]


def draw_tables(draw: Draw, folder: Path) -> Written:
    made = Written()
    count = draw.integer(4, 9)
    numbered = draw.chance(0.4)
    names = [str(3 * i + 1) for i in range(count)] if numbered else [f"n{i}" for i in range(count)]
    if not numbered and draw.chance(0.3):
        names[:3] = ["NA", "null", "Ann Lee"]
    made.ids = draw.shuffled(names)
    pairs = [(draw.below(count), draw.below(count)) for _ in range(draw.integer(3, 12))]
    weights = [draw.integer(1, 9) + 0.5 for _ in pairs] if draw.chance(0.6) else None
    made.matrix = np.zeros((count, count))
    for at, (source, target) in enumerate(pairs):
        made.matrix[target, source] += 1 if weights is None else weights[at]
    nodes, id_is_named = _nodes(draw, made, pairs)
    edges, header = _edges(draw, made, pairs, weights, numbered, id_is_named)
    ending = draw.choice([".csv", ".tsv", ".csv.gz", ".tsv.gz"])
    _write(draw, folder / f"nodes{ending}", nodes, header=True)
    _write(draw, folder / f"edges{ending}", edges, header)
    return made


def _nodes(draw: Draw, made: Written, pairs: list[tuple[int, int]]) -> tuple[Columns, bool]:
    """Returns the columns of the nodes, and whether a name or an option says which one has the ids."""
    count = len(made.ids)
    name = draw.choice(["id", "ID", "Node", "node_id", "paper"])
    id_is_named = name != "paper"
    if not id_is_named and draw.chance(0.5):
        made.options["id"], id_is_named = name, True
    names = draw.shuffled(["f0", "pages", "2019", "weight", "Größe"])[: draw.integer(1, 3)]
    # No id is such a number, so that no feature has all ends of edges.
    features = [(name, [str((draw.integer(-8, 8) * 4 + 1) / 4) for _ in range(count)]) for name in names]
    labels, label = _labels(draw, made)
    parts = [_PARTS[i % 3] for i in range(count)]
    columns = draw.shuffled([(name, made.ids), (label, labels), ("split", parts), *features])
    by_name = dict(columns)
    made.features = [name for name, _ in columns if name in names]
    if draw.chance(0.2):
        made.features = draw.shuffled(made.features)
        made.options["feature_columns"] = list(made.features)
        columns.append(("city", ["Graz"] * count))
    elif draw.chance(0.1):
        columns.append((draw.choice(["label", "y", "train_mask"]), ["1"] * count))
        made.refused += ["label", "feature_columns", "path"]  # the last where two names are equal
    made.x = np.array([by_name[name] for name in made.features], dtype=np.float32).T
    if draw.chance(0.3):
        _damage(draw, made, by_name)
    if draw.chance(0.3):
        columns.insert(0, (draw.choice(["", "Unnamed: 0"]), _row_numbers(draw, count)))
    return columns, id_is_named


def _damage(draw: Draw, made: Written, columns: dict[str, list[str]]) -> None:
    """Empties a cell of a feature, which is filled in, or writes what is no number."""
    name, at = draw.choice(made.features), draw.below(len(made.ids))
    columns[name][at] = draw.choice(["", "NA", "nan", "inf", "many"])
    if columns[name][at] in ("inf", "many"):
        made.refused.append("feature_columns")
        return
    column = made.features.index(name)
    train = [i for i, label in enumerate(made.labels) if i % 3 == 0 and label is not None]
    made.x[at, column] = np.mean([made.x[i, column] for i in train if i != at])
    if at in train:
        made.features.insert(column + 1, f"{name} is missing")
        made.x = np.insert(made.x, column + 1, np.arange(len(made.ids)) == at, axis=1)


def _row_numbers(draw: Draw, count: int) -> list[str]:
    numbers = [str(1000 + number) for number in range(count)]
    return draw.shuffled(numbers) if draw.chance(0.5) else numbers


def _labels(draw: Draw, made: Written) -> tuple[list[str], str]:
    """Returns the labels of the nodes as they are written, and the name of their column."""
    classes = draw.choice(_CLASSES)
    count = len(made.ids)
    # Each part has a node of each of two classes, if there are so many nodes.
    made.labels = [classes[i % 2] if i < 4 else draw.choice([*classes, None]) for i in range(count)]
    used = sorted({label for label in made.labels if label is not None})
    name = draw.choice(["label", "Label", "y", "kind"])
    if name == "kind":
        made.options["label"] = name
    made.classes = sorted(used, key=int) if all(word.lstrip("-").isdigit() for word in used) else used
    if draw.chance(0.4):
        made.classes = draw.shuffled(list(classes))
        if draw.chance(0.2):
            made.classes.remove(draw.choice(used))
            made.refused.append("classes")
        # "auto" would make numbers to predict of fractions.
        made.options |= {"classes": list(made.classes), "label_kind": "class"}
    else:
        words = [word for word in used if word not in _MISSING]
        in_doubt = len(words) < len(used) and all(word.isdigit() for word in words)
        if in_doubt or "-1" in used or "1.5" in used:
            made.refused.append("label")
    return ["" if label is None else label for label in made.labels], name


def _edges(
    draw: Draw, made: Written, pairs: list[tuple[int, int]], weights: list[float] | None, numbered: bool,
    id_is_named: bool,
) -> tuple[Columns, bool]:  # fmt: skip
    """Returns the columns of the edges, and whether their names are the first row."""
    ends = [[made.ids[pair[at]] for pair in pairs] for at in (0, 1)]
    style = draw.choice(["usual", "options", "unknown", "none"])
    names = draw.choice([("source", "target"), ("Source", "Target"), ("src", "dst"), ("from", "to")])
    if style in ("options", "unknown"):
        names = draw.choice([("a", "b"), ("who", "whom")])
    if style == "options":
        made.options |= {"source": names[0], "target": names[1]}
    columns = list(zip(names, ends, strict=True))
    weight = draw.choice(["weight", "W", "edge_weight", "strength"])
    if weights is not None:
        columns.append((weight, [str(value) for value in weights]))
    if style == "none":
        # Columns of texts are known to be edges if two in the first row are ids of nodes.
        if not numbered and not id_is_named:
            made.refused.append("source")
        return columns, False
    if weights is not None and weight == "strength":
        made.options["weight"] = weight
    if style != "unknown":
        if draw.chance(0.3):
            columns.append((draw.choice(["kind", "length"]), [str(draw.below(3)) for _ in pairs]))
        columns = draw.shuffled(columns)
    has_index = draw.chance(0.3)
    if has_index:
        columns.insert(0, (draw.choice(["", "Unnamed: 0"]), _row_numbers(draw, len(pairs))))
    if style == "unknown" and not (numbered or has_index or weights is not None or id_is_named):
        made.refused.append("source")  # the first row may be an edge
    return columns, True


def _write(draw: Draw, path: Path, columns: Columns, header: bool) -> None:
    """Writes a table with or without names, with or without quotes, spaces and a byte order mark."""
    separator = "\t" if ".tsv" in path.suffixes else draw.choice(",,;|")
    rows = [[name for name, _ in columns]] if header else []
    cells = [values for _, values in columns]
    if separator != "," and draw.chance(0.5):
        cells = [[v.replace(".", ",") for v in c] if all(map(_NUMBER.fullmatch, c)) else c for c in cells]
    rows += [list(row) for row in zip(*cells, strict=True)]
    style = draw.choice(["plain", "quoted", "spaced"])
    if style == "spaced":
        text = "".join(f"{separator} ".join(row) + "\n" for row in rows)
    else:
        stream = io.StringIO()
        quoting = csv.QUOTE_ALL if style == "quoted" else csv.QUOTE_MINIMAL
        csv.writer(stream, delimiter=separator, quoting=quoting, lineterminator="\n").writerows(rows)
        text = stream.getvalue()
    content = text.encode(draw.choice(["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16"]))
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def verify(trial: Trial, made: Written, folder: Path) -> None:
    """Reads the tables, and compares what they say with what was written."""
    label = f"load_custom {made.options}"

    def read() -> NodeDataset:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return load_custom(folder, **made.options)

    def refused() -> NodeDataset:
        try:
            return read()
        except ValueError as error:
            if str(error).partition(":")[0] not in made.refused:
                raise FailedCallError("error", f"names no option of {made.refused}: {error}") from error
            raise

    if made.refused:
        trial.refuse(label, refused)
        return
    found = trial.call(label, read)
    names = found.class_names or ()
    labels = [None if number < 0 else names[number] for number in found.y.tolist()]
    matrix = found.graph.to_scipy().toarray()
    trial.check(found.node_ids == tuple(made.ids), f"the ids are {found.node_ids}")
    trial.check(found.feature_names == tuple(made.features), f"the features are {found.feature_names}")
    trial.check(np.allclose(found.x.numpy(), made.x, rtol=1e-6), "features have other values")
    trial.check(names == tuple(made.classes), f"the classes are {names}")
    trial.check(labels == made.labels, f"the labels are {labels}")
    trial.check(np.array_equal(matrix, made.matrix), "edges have other ends or weights")


def _case(trial: Trial) -> None:
    with tempfile.TemporaryDirectory(prefix="gnnsparse-tables-") as folder:
        verify(trial, draw_tables(trial.draw, Path(folder)), Path(folder))


GENERATOR = worker.Generator("tables", _case)
