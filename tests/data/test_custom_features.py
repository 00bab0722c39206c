"""What features are made of columns: texts, empty cells, scaled numbers; and how tables are written."""

from __future__ import annotations

import gzip
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnnsparse.data import NodeDataset, dataset_of_pyg, load_custom
from gnnsparse.data.custom.delimited import parse
from gnnsparse.data.custom.features import FeatureTransform
from tests.own_graphs import tensors

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.data import Data

EDGES = "source,target\na,b\nb,c\nc,d\nd,e\ne,f\n"
PARTS = ["train", "train", "train", "train", "val", "test"]
LABELS = ["x", "y", "x", "y", "x", "y"]


def load(folder: Path, columns: dict[str, list[Any]], **options: Any) -> NodeDataset:
    """The data set of nodes a to f, of which the first four are for training."""
    table = {"id": list("abcdef"), **columns, "label": LABELS, "split": PARTS}
    return load_rows(folder, table, **options)


def load_rows(folder: Path, table: dict[str, list[Any]], edges: str = EDGES, **options: Any) -> NodeDataset:
    rows = [list(table), *zip(*table.values(), strict=True)]
    (folder / "nodes.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    (folder / "edges.csv").write_text(edges)
    return load_custom(folder, **options)


def test_a_text_becomes_a_feature_for_each_of_the_training_nodes(tmp_path: Path) -> None:
    columns = {"city": ["Graz", "Linz", "", "Graz", "Graz", ""], "f": [1, 2, 3, 4, 5, 6]}
    got = load(tmp_path, columns)
    assert got.feature_names == ("city=Graz", "city=Linz", "city is missing", "f")
    rows = [[1, 0, 0, 1], [0, 1, 0, 2], [0, 0, 1, 3], [1, 0, 0, 4], [1, 0, 0, 5], [0, 0, 1, 6]]
    assert got.x.tolist() == rows
    columns["city"][4:] = ["Wien", "Wien"]
    said = r"^features: no training row has what others have: city=Wien \(2 rows\), read as 0$"
    with pytest.warns(UserWarning, match=said):
        got = load(tmp_path, columns)
    assert got.x[4:].tolist() == [[0, 0, 0, 5], [0, 0, 0, 6]]


def test_empty_cells_get_the_mean_of_the_training_nodes(tmp_path: Path) -> None:
    got = load(
        tmp_path, {"f": [1, "", "NA", 4, 100, ""], "open": ["True", "false", "", "TRUE", "True", "False"]}
    )
    assert got.feature_names == ("f", "f is missing", "open", "open is missing")
    assert got.x[:, 0].tolist() == [1, 2.5, 2.5, 4, 100, 2.5]
    assert got.x[:, 1].tolist() == [0, 1, 1, 0, 0, 1]
    assert got.x[:, 2].tolist() == pytest.approx([1, 0, 2 / 3, 1, 1, 0])
    with pytest.warns(UserWarning, match=r"others have: f is empty \(1 rows\), read as the mean$"):
        got = load(tmp_path, {"f": [1, 2, 3, 4, "", 6]})  # which no training node has
    assert (got.feature_names, got.x[4].tolist()) == (("f",), [2.5])


def test_numbers_are_scaled_by_the_training_nodes(tmp_path: Path) -> None:
    columns = {"f": [1, 3, 1, 3, 100, -5], "same": [7, 7, 7, 7, 9, 9], "city": ["u", "v", "u", "v", "u", "v"]}
    got = load(tmp_path, {**columns, "part": [4, "", 2, 2, "", 9]}, standardize=True)
    assert got.x[:, 0].tolist() == [-1, 1, -1, 1, 98, -7]
    assert got.x[:, 1].tolist() == [7, 7, 7, 7, 9, 9]
    assert got.x[:, 2].tolist() == [1, 0, 1, 0, 1, 0]
    known = np.array([4, 2, 2])
    assert got.x[0, 4].item() == pytest.approx((4 - known.mean()) / known.std())
    assert (got.feature_names or ())[4:] == ("part", "part is missing")
    assert got.x[1, 4:].tolist() == [0, 1]


def test_arrays_are_scaled_too() -> None:
    made = tensors()
    got = dataset_of_pyg(Data(**made), standardize=True)
    rows = got.x[got.train_mask].double()
    assert rows.mean(0).abs().max() < 1e-6
    assert torch.allclose(rows.std(0, correction=0), torch.ones(3, dtype=torch.float64), atol=1e-6)
    again = dataset_of_pyg(Data(**{**made, "x": made["x"][:, [0, 1, 2]]}), transform=got.feature_transform)
    assert torch.equal(again.x, got.x)
    with pytest.raises(
        ValueError, match=r"^x: has 2 columns of numbers; accepted: a table with the 3 columns"
    ):
        dataset_of_pyg(Data(**{**made, "x": made["x"][:, :2]}), transform=got.feature_transform)


def test_another_table_has_the_same_features_by_the_names_of_columns(tmp_path: Path) -> None:
    columns = {"f": [1, 3, "", 3, 2, 4], "city": ["Graz", "Linz", "Graz", "Linz", "Graz", "Linz"]}
    trained = load(tmp_path, columns, standardize=True)
    given = {
        "transform": trained.feature_transform,
        "classes": ["x", "y"],
        "split": "given",
        "label": "label",
    }
    assert torch.equal(load(tmp_path, columns, **given).x, trained.x)
    table = {"city": ["Linz", "Graz"], "more": [5, 6], "who": ["p", "q"], "f": ["", 3]}
    with pytest.warns(
        UserWarning, match=r"^feature_columns: nodes.csv: columns that the model does .*: more$"
    ):
        other = load_rows(tmp_path, table, "source,target\np,q\n", **given)
    assert other.feature_names == trained.feature_names == ("f", "f is missing", "city=Graz", "city=Linz")
    assert torch.equal(other.x[0], torch.tensor([trained.x[2, 0].item(), 1, 0, 1]))
    assert torch.equal(other.x[1], torch.tensor([trained.x[1, 0].item(), 0, 1, 0]))
    assert other.y.tolist() == [-1, -1]
    del table["city"], table["f"]
    said = r"^feature_columns: there is no column 'f', 'city'; nodes.csv has more, who; accepted: all columns"
    with pytest.raises(ValueError, match=said):
        load_rows(tmp_path, table, "source,target\np,q\n", **given)
    table = {"city": ["Linz", "Graz"], "who": ["p", "q"], "f": ["old", 3]}
    with pytest.raises(
        ValueError, match=r"^feature_columns: nodes.csv: column 'f' has 'old' in row 1; accepted"
    ):
        load_rows(tmp_path, table, "source,target\np,q\n", **given)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"f": [f"name {i}" for i in range(120)]},
            "column 'f' has 120 different texts in 120 rows, as names a",
        ),
        (
            {"f": [f"name {i % 101}" for i in range(120)]},
            "column 'f' has 101 different texts in 120 rows, as n",
        ),
        ({"f=a": [1] * 120, "f": list("ab") * 60}, "two features are called 'f=a'; accepted: another name"),
    ],
)
def test_columns_that_are_no_features(columns: dict[str, list[Any]], message: str, tmp_path: Path) -> None:
    ids = [str(i) for i in range(120)]
    table = {"id": ids, **columns, "label": ["x", "y"] * 60}
    with pytest.raises(ValueError, match=f"^feature_columns: (nodes.csv: )?{message}"):
        load_rows(tmp_path, table, "source,target\n0,1\n")


def test_an_empty_column_is_not_used(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="^feature_columns: nodes.csv: .* not used, as they are empty: f$"):
        got = load(tmp_path, {"f": [""] * 6, "g": [1, 2, 3, 4, 5, 6]})
    assert got.feature_names == ("g",)


@pytest.mark.parametrize(
    "content",
    [
        None, [], {"columns": [1]}, {"columns": ["a"], "fill": {"b": 1.0}}, {"columns": ["a"], "other": 1},
        {"columns": ["a"], "fill": {"a": "much"}}, {"columns": ["a"], "scale": {"a": [0.0, 0.0]}},
        {"columns": ["a"], "fill": {"a": float("nan")}}, {"columns": ["a"], "categories": {"a": [2]}},
    ],
)  # fmt: skip
def test_damaged_transforms_are_refused(content: Any) -> None:
    good = {"columns": ["a", "b"], "categories": {"b": ["u"]}, "scale": {"a": [1.5, 2.0]}, "missing": ["b"]}
    assert FeatureTransform.read(good).to_dict() == good
    with pytest.raises(
        ValueError, match=r"^transform: got .*; accepted: what a data set has as feature_transf"
    ):
        FeatureTransform.read(content if content != [] else 5)


NUMBERS = [["s", "t", "w"], ["a", "b", "0.5"], ["b", "c", "1.5"]]


def cells(content: bytes, separator: str | None = None, tabs: bool = False) -> list[list[str]]:
    found = parse("edges.csv", content, separator, tabs)
    return [list(found.first), *map(list, zip(*found.columns, strict=True))]


@pytest.mark.parametrize(
    ("text", "separator"),
    [
        ("s,t,w\na,b,0.5\nb,c,1.5\n", "comma"),
        ("s;t;w\na;b;0,5\nb;c;1,5\n", "semicolon"),
        ("s\tt\tw\r\na\tb\t0,5\r\nb\tc\t1,5\r\n", "tab"),
        ("s|t|w\na|b|0.5\nb|c|1.5\n", "pipe"),
        ("s t w\na b 0.5\nb c 1.5\n", "space"),
        ('"s";"t";"w"\n"a";"b";"0,5"\n"b";"c";"1,5"\n', "semicolon"),
        ("sep=;\r\ns;t;w\r\na;b;0,5\r\nb;c;1,5\r\n", "semicolon"),
        ("# a comment\n# and; another\ns;t;w\na;b;0,5\nb;c;1,5\n", "semicolon"),
        ("# Nodes: 3 Edges: 2\n# s\tt\tw\na\tb\t0.5\nb\tc\t1.5\n", "tab"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_the_separator_is_found(text: str, separator: str, encoding: str) -> None:
    assert parse("edges.csv", text.encode(encoding), None, False).separator == separator
    assert cells(text.encode(encoding)) == NUMBERS
    assert cells(text.encode(encoding), separator) == NUMBERS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1;2;0,5\n2;3;1\n", [["1", "2", "0.5"], ["2", "3", "1"]]),
        ("a;b,c;d\ne;f,g;h\n", [["a;b", "c;d"], ["e;f", "g;h"]]),  # no cell with a comma is a number
        ("id,tags\na,x;y\nb,z;u\n", [["id", "tags"], ["a", "x;y"], ["b", "z;u"]]),
        ("id;price\na;1.234,5\nb;2,5\n", [["id", "price"], ["a", "1.234,5"], ["b", "2,5"]]),
        ('id,t\na,"x;y,z"\n', [["id", "t"], ["a", "x;y,z"]]),
        ("#a,#b\n#b,#c\n", [["#a", "#b"], ["#b", "#c"]]),  # no comments, as nothing else is there
        ("id\na b\nc\n", [["id"], ["a b"], ["c"]]),
    ],
)
def test_texts_in_which_there_are_several_separators(text: str, expected: list[list[str]]) -> None:
    assert cells(text.encode()) == expected


@pytest.mark.parametrize(("name", "encoding"), [("Größe €", "cp1252"), ("Gr\x81", "latin-1")])
def test_what_is_not_in_utf_8_is_read_with_a_warning(name: str, encoding: str) -> None:
    with pytest.warns(UserWarning, match=f"^edges.csv is not in UTF-8, and was read as {encoding}; save"):
        assert cells(f"id,{name}\na,b\n".encode(encoding))[0] == ["id", name]


def test_a_wrong_separator_is_named(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("source^target\na^b\n")
    with pytest.raises(
        ValueError, match=r"^source: .* columns source\^target; .* is taken to be a comma; separ"
    ):
        load_custom(tmp_path, features="constant", classes=2)
    (tmp_path / "edges.csv").write_text("source;target\na;b\na;b;c;d\n")
    with pytest.raises(
        ValueError, match=r"is no table whose separator is a semicolon \(Expected 2 .*; accepted"
    ):
        load_custom(tmp_path, features="constant", classes=2)
    (tmp_path / "edges.csv").write_text("source|target\na|b\n")
    got = load_custom(tmp_path, features="constant", classes=2, separator="|")
    assert got.node_ids == ("a", "b")


def test_edges_as_snap_writes_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "# Directed graph\n# Nodes: 3 Edges: 3\n# FromNodeId\tToNodeId\n0\t1\n0\t2\n2\t1\n"
    (tmp_path / "roads.txt.gz").write_bytes(gzip.compress(text.encode()))
    with caplog.at_level(logging.INFO, "gnnsparse.data"):
        got = load_custom(tmp_path / "roads.txt.gz", features="degree", classes=2, directed=True)
    assert got.graph.to_scipy().toarray().tolist() == [[0, 0, 0], [1, 0, 1], [1, 0, 0]]
    assert caplog.messages[0] == "roads.txt.gz: FromNodeId, ToNodeId = ends"


def test_names_of_columns_in_any_case(tmp_path: Path) -> None:
    edges = "SOURCE,Target,WEIGHT\na,b,2\n"
    table = {"ID": list("abcdef"), "f": [1, 2, 3, 4, 5, 6], "Field": LABELS, "Split": PARTS}
    got = load_rows(tmp_path, table, edges, label="field", feature_columns=["F"])
    assert (got.class_names, got.feature_names) == (("x", "y"), ("f",))
    assert got.graph.to_scipy().toarray()[1, 0] == 2


@pytest.mark.parametrize("names", [["nan", "-1"], ["", "x"], ["0.5", "1"], ["NA", "None"]])
def test_classes_may_have_any_name_that_is_given(names: list[str], tmp_path: Path) -> None:
    table = {"id": list("abcdef"), "f": [1, 2, 3, 4, 5, 6], "label": names * 3, "split": PARTS}
    got = load_rows(tmp_path, table, classes=names)
    assert (got.class_names, got.y.tolist()) == (tuple(names), [0, 1] * 3)
