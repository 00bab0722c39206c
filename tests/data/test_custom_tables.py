"""Which column of a table is used for what: by names, by what it holds, or refused and named."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

from gnnsparse.data import load_custom
from tests.fuzz.tables import GENERATOR
from tests.own_graphs import write_table

NODES = {"id": ["a", "b", "c", "d"], "f": [0.5, 1, 2, 3], "g": [4, 5, 6.5, 7], "label": ["x", "x", "y", "y"]}
SPLIT = {"split": ["train", "val", "train", "test"]}
EDGES = {"source": ["a", "b", "c"], "target": ["b", "c", "a"]}
ONE_WAY = {"directed": True, "split": "given"}


def write(folder: Path, edges: Any = None, nodes: Any = None) -> Path:
    """Writes tables: a dict of columns, or the text of a file."""
    for name, content in (("edges", edges or EDGES), ("nodes", nodes or {**NODES, **SPLIT})):
        if isinstance(content, str):
            (folder / f"{name}.csv").write_text(content)
        else:
            write_table(folder / f"{name}.csv", content)
    return folder


def matrix(folder: Path, **options: Any) -> list[list[float]]:
    """A[target, source] of the nodes a, b, c and d, or of the numbers in the file."""
    return load_custom(folder, **{**ONE_WAY, **options}).graph.to_scipy().toarray().tolist()


def test_tables_are_read_as_they_were_written_or_refused() -> None:
    found = GENERATOR.run(seed=int(torch.randint(10**6, ())), count=150)
    assert found.failures == []
    assert found.calls >= 150
    assert 0 < found.accepted < found.calls


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("a,b\nb,c\nc,a\n", [1, 1, 1]),  # the nodes have such ids
        ("a,b,\nb,c,\nc,a,\n", [1, 1, 1]),
        ("a,b,2\nb,c,3.5\nc,a,4\n", [2, 3.5, 4]),
        ("a;b;0,5\nb;c;3\nc;a;4\n", [0.5, 3, 4]),
        ("source,target\na,b\nb,c\nc,a\n", [1, 1, 1]),
        ("Target,Source\nb,a\nc,b\na,c\n", [1, 1, 1]),
        ("W,dst,src\n2,b,a\n3,c,b\n4,a,c\n", [2, 3, 4]),
        ("u,v\na,b\nb,c\nc,a\n", [1, 1, 1]),  # no node is called u or v
        ("u,weight,v\na,2,b\nb,3,c\nc,4,a\n", [2, 3, 4]),
        ("source,v\na,b\nb,c\nc,a\n", [1, 1, 1]),
        ("target,v\nb,a\nc,b\na,c\n", [1, 1, 1]),
        (",source,target\n0,a,b\n1,b,c\n2,c,a\n", [1, 1, 1]),
        ("Unnamed: 0,u,v,w\n7,a,b,2\n5,b,c,3\n6,c,a,4\n", [2, 3, 4]),
        (",0,1\n0,a,b\n1,b,c\n2,c,a\n", [1, 1, 1]),  # as pandas writes an array
    ],
)
def test_ends_and_weights(text: str, weights: list[float], tmp_path: Path) -> None:
    first, second, third = weights
    assert matrix(write(tmp_path, text)) == [
        [0, 0, third, 0],
        [first, 0, 0, 0],
        [0, second, 0, 0],
        [0, 0, 0, 0],
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,2\n2,4\n4,1\n", [[0, 0, 1], [1, 0, 0], [0, 1, 0]]),
        ("1,2,\n2,4,\n4,1,\n", [[0, 0, 1], [1, 0, 0], [0, 1, 0]]),
        ("1,2,0.5\n2,4,3\n4,1,7\n", [[0, 0, 7], [0.5, 0, 0], [0, 3, 0]]),
        ("1,2,5\n1,4,6\n", [[0, 0, 0], [5, 0, 0], [6, 0, 0]]),
    ],
)
def test_rows_of_numbers_without_names_are_all_read(
    text: str, expected: list[list[float]], tmp_path: Path
) -> None:
    (tmp_path / "edges.csv").write_text(text)
    got = load_custom(tmp_path / "edges.csv", features="constant", classes=2, directed=True)
    assert got.node_ids == ("1", "2", "4")
    assert got.graph.to_scipy().toarray().tolist() == expected


def test_ids_may_be_texts_and_numbers(tmp_path: Path) -> None:
    nodes = {**NODES, **SPLIT, "id": ["a", "2", "3", "4"]}
    assert matrix(write(tmp_path, "a,2\n3,4\n", nodes)) == [[0] * 4, [1, 0, 0, 0], [0] * 4, [0, 0, 1, 0]]


def test_numbers_that_may_be_those_of_columns_are_an_edge_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("0,1\n1,2\n")
    options: dict[str, Any] = {"features": "constant", "classes": 2, "directed": True}
    with pytest.warns(UserWarning, match=r"^source: edges.csv: the first row, 0,1, is read as an edge; if"):
        got = load_custom(tmp_path / "edges.csv", **options)
    assert got.graph.csr.nnz == 2
    got = load_custom(tmp_path / "edges.csv", source="0", target="1", **options)
    assert (got.graph.csr.nnz, got.node_ids) == (1, ("1", "2"))


def test_a_line_says_what_columns_are_used_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    edges = {"": range(3), **EDGES, "kind": ["x", "y", "z"], "w": [1, 2, 3]}
    folder = write(tmp_path, edges, {"": range(4), **NODES, **SPLIT})
    said = r"^weight: edges.csv: columns that are not used: kind; edge_features=.kind. gives them to"
    with caplog.at_level(logging.INFO, "gnnsparse.data"), pytest.warns(UserWarning, match=said):
        load_custom(folder)
    assert [record.getMessage() for record in caplog.records] == [
        "edges.csv: source, target = ends; w = weights; not used: '' (row numbers), kind",
        "nodes.csv: id = ids; f, g = features; label = labels; split = split; not used: '' (row numbers)",
        "task = node, classes of nodes (2): there is one graph",
    ]


def test_a_column_that_may_have_weights_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, {**EDGES, "length": [5, 6, 7]})
    said = r"^weight: .* not used: length; weight=COLUMN if one of them has the weights of the edges"
    with pytest.warns(UserWarning, match=said):
        assert matrix(folder)[1][0] == 1
    assert matrix(folder, weight="length")[1][0] == 5


def test_an_index_that_was_made_a_column_is_no_feature(tmp_path: Path) -> None:
    folder = write(tmp_path, nodes={"index": [3, 1, 0, 2], **NODES, **SPLIT})
    with pytest.warns(UserWarning, match=r"^feature_columns: nodes.csv: columns that are not used: index;"):
        got = load_custom(folder)
    assert got.feature_names == ("f", "g")
    got = load_custom(folder, feature_columns=["g", "index"])
    assert got.feature_names == ("g", "index")
    assert got.x.tolist() == [[4, 3], [5, 1], [6.5, 0], [7, 2]]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_what_pandas_writes_with_its_index(ending: str, tmp_path: Path) -> None:
    """An index of numbers is no feature and no end of an edge; one of names has the ids."""
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    nodes = pandas.DataFrame({**NODES, **SPLIT})
    edges = pandas.DataFrame(EDGES, index=[9, 3, 6])
    for table in (nodes.set_index("id").rename_axis(None), nodes.sort_values("g", ascending=False)):
        for name, frame in (("nodes", table), ("edges", edges)):
            path = str(tmp_path / f"{name}.{ending}")
            frame.to_csv(path) if ending == "csv" else frame.to_parquet(path)
        got = load_custom(tmp_path, **ONE_WAY)
        assert got.feature_names == ("f", "g")
        assert got.node_ids is not None
        assert dict(zip(got.node_ids, got.x.tolist(), strict=True))["c"] == [2, 6.5]
        place = {name: at for at, name in enumerate(got.node_ids)}
        assert got.graph.to_scipy().toarray()[place["b"], place["a"]] == 1
        assert got.graph.csr.nnz == 3


@pytest.mark.parametrize(
    ("edges", "options", "message"),
    [
        ("a,b,kind\na,b,c\n", {}, "source: edges.csv: its first row, a,b,kind, may be names of col"),
        ("z,b,2\nb,c,3\nc,a,4\n", {}, "source: edges.csv: its first row, z,b,2, may be names of columns"),
        ("a,z\nb,c\n", {}, "source: edges.csv: its first row, a,z, may be names of columns or an edge"),
        ({"u": ["a"], "v": ["b"], "w": [2], "kind": ["c"]}, {}, "source: edges.csv has the columns u, v, w"),
        ({**EDGES, "target": ["b", "z", "a"]}, {}, "target: edges.csv: row 2 has 'z'; accepted: the ids of"),
        ({**EDGES, "source": ["", "b", "c"]}, {}, "source: edges.csv: column 'source' is empty in row 1"),
        ({**EDGES, "weight": [1, 2, "much"]}, {}, "weight: edges.csv: column 'weight' has 'much' in row 3"),
        (
            {**EDGES, "weight": [1, 2, "inf"]},
            {},
            "weight: edges.csv: .*'inf' in row 3; accepted: finite numb",
        ),
        (EDGES, {"source": "from"}, "source: there is no column 'from'; edges.csv has source, target"),
        (EDGES, {"nodes": "people.csv"}, "nodes: there is no file people.csv in .*; accepted: the name of"),
        ({**EDGES, "src": ["a"] * 3, "dst": ["b"] * 3}, {}, "source: edges.csv has the columns source, tar"),
        ({**EDGES, "weight": [1] * 3, "w": [2] * 3}, {}, "weight: edges.csv has weight and w; accepted: we"),
        ({**EDGES, "": ["x", "y", "z"]}, {}, "edges: edges.csv: column 3 has no name, and holds no row num"),
        ("source,target,source\na,b,c\n", {}, "path: edges.csv has two columns 'source'; accepted: a diff"),
        (EDGES, {"source": "target", "target": "target"}, "target: got 'target', which is the column of sou"),
        ("1,2,3,4\n", {}, "source: edges.csv has 4 columns without names; accepted: a first row of names"),
        ("0.5,1,2\n1.5,2,3\n", {}, "source: edges.csv: column 'column 1' has '0.5' in row 1; accepted: who"),
        ("0,5,7\n1,6,8\n2,7,9\n", {}, "source: edges.csv: its first column has the numbers of the rows, "),
    ],
)
def test_wrong_edges_and_those_that_could_be_several_things_are_refused(
    edges: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        load_custom(write(tmp_path, edges), **options)


@pytest.mark.parametrize(
    ("nodes", "options", "message"),
    [
        ("0,1,2,3\n5,6,7,8\n", {}, "id: nodes.csv: its first row, 0,1,2,3, may be a node; accepted: a first"),
        ("a,0.5,x\nb,1.5,y\nc,1,y\n", {}, "id: nodes.csv: its first row, a,0.5,x, may be a node; accepted"),
        ({"node": [1, 2, 3, 4]}, {}, "feature_columns: nodes.csv: 'node' may be something else"),
        ({"id": [1, 2, 3, 4], "node": [5, 6, 7, 8]}, {}, "id: no column of nodes.csv has each end"),
        ({"node": NODES["id"]}, {}, "id: nodes.csv: the columns id, node all have the ends of the"),
        ({"y": [1, 2, 3, 4]}, {}, "label: nodes.csv has label and y; accepted: label=COLUMN"),
        ({"y": [1, 2, 1, 2]}, {"label": "label"}, "feature_columns: nodes.csv: 'y' may be something"),
        ({"test_mask": [0, 1, 1, 0]}, {}, "feature_columns: nodes.csv: 'test_mask' may be something"),
        ("id,f,label\n", {}, "nodes: nodes.csv has names of columns and no row; accepted: a row for each"),
        ({"id": [1.5, 2, 3, 4]}, {}, "source: edges.csv: row 1 has 'a'; .* column 'id', such as '1.5'"),
        ({"": [1.5, 2, 3, 4]}, {}, "nodes: nodes.csv: column 5 has no name, and holds no row numbers"),
        ({"when": ["3.4.20"] * 4}, {}, r"feature_columns: .*'when' has '3.4.20'.*=\[f,g\] without this"),
        ({"f": [1, "1.234,5", 2, 3]}, {}, r"feature_columns: .*'f' has '1.234,5' in row 2; .*=\[g\] with"),
        ({"f": [1, "inf", 2, 3]}, {}, "feature_columns: .*'f' has 'inf' in row 2; accepted: a number, or"),
        ({"id": ["a", "b", "b", "d"]}, {}, "id: nodes.csv: 'b' has two rows; accepted: one for each no"),
        ({"f": ["x", 1, "y", 3]}, {}, "feature_columns: nodes.csv: column 'f' has 'x' in row 1; accepted: a"),
        ({}, {"separator": ":"}, "separator: got ':'; accepted: comma, semicolon, tab, pipe, space"),
        ({}, {"separator": "tab"}, "id: nodes.csv: its first row|source: .*separator is taken to be a tab"),
        ({}, {"feature_columns": ["h"]}, "feature_columns: there is no column 'h'; nodes.csv has id, f"),
        ({}, {"feature_columns": "f"}, "feature_columns: got str; accepted: a list of names"),
        ({}, {"label": "kind"}, "label: there is no column 'kind'; nodes.csv has"),
        ({}, {"label": ["label"]}, "label: nodes.csv: column 'label' has 'x' in row 1; accepted: finit"),
        ({"split": ["train", "val", "later", ""]}, {}, "split: nodes.csv: row 3 of column 'split' has"),
        ({"split": ["train", "val", "val", ""]}, {}, "split: 'auto' of 4 nodes with a label leaves non"),
        ({"when": [1, 2, "x", 4]}, {"split": "time:when"}, "split: column 'when' has 'x' for node 2; a"),
        ({"when": [1, 1, 1, 2]}, {"split": "time:when"}, "split: column 'when' has less than three dif"),
        ({}, {"classes": 2}, "classes: got 2, and a label is 'x'; accepted: labels below it, or names"),
        ({"label": ["", "", " ", ""]}, {}, "label: no node has a label"),
        ({}, {"feature_columns": ["f", "label"]}, "feature_columns: has 'label', the column of labels; acc"),
        ({}, {"feature_columns": ["f", "f"]}, "feature_columns: got .*; accepted: each column once"),
        ({}, {"label": "g", "feature_columns": ["f", "g"]}, "feature_columns: has 'g', the column of labels"),
    ],
)
def test_wrong_nodes_and_those_that_could_be_several_things_are_refused(
    nodes: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{message}"):
        load_custom(write(tmp_path, nodes=nodes if isinstance(nodes, str) else {**NODES, **nodes}), **options)


def test_the_column_of_ids_is_found_at_any_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes = {"f": [1, 2, 3, 4], "label": NODES["label"], **SPLIT}
    got = load_custom(write(tmp_path, nodes={**nodes, "paper": NODES["id"]}))
    assert (got.node_ids, got.feature_names) == (("a", "b", "c", "d"), ("f",))
    with caplog.at_level(logging.INFO, "gnnsparse.data"):
        got = load_custom(write(tmp_path, {"source": [2, 4], "target": [4, 9]}, {"": [4, 2, 7, 9], **nodes}))
    assert got.node_ids == ("4", "2", "7", "9")
    assert caplog.messages[1] == "nodes.csv: '' = ids; f = features; label = labels; split = split"
    cities = {**NODES, **SPLIT, "city": ["Graz"] * 4}  # features made of the graph need no columns of numbers
    got = load_custom(write(tmp_path, nodes=cities), features="degree")
    assert (got.num_features, got.feature_names) == (32, None)


@pytest.mark.parametrize("names", [("US", "?", "NA"), ("None", "null", "x"), ("nan", "N/A", "b")])
def test_classes_may_be_called_as_missing_values_are(names: tuple[str, ...], tmp_path: Path) -> None:
    ids = [f"n{i}" for i in range(12)]
    labels = [names[i % 3] if i < 9 else "" for i in range(12)]
    write(tmp_path, {"source": ids, "target": ids[::-1]}, {"id": ids, "f": range(12), "label": labels})
    with pytest.warns(UserWarning, match=r"^label: got '.*' \(3 times\), which is taken as a class; acc"):
        found = [load_custom(tmp_path), load_custom(tmp_path, classes=list(names))]
    for got in found:
        assert set(got.class_names or ()) == set(names)
        assert [(got.class_names or ())[y] if y >= 0 else "" for y in got.y.tolist()] == labels


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (["0", "1", "NA", "1"], {}, r"label: got 'NA' \(1 times\) and beside it numbers or nothing, which"),
        (["1", "1", "-1", "-1"], {}, r"label: got '-1' \(2 times\), which may be a class or a missing lab"),
        (["0.5", "1", "old", ""], {}, "label: some labels are numbers, and others are not, as 'old'; acc"),
        (["0.5", "1", "NA", ""], {"label_kind": "regression"}, "label: node 2 has 'NA'; accepted: numbers,"),
        (["x", "x", "", ""], {}, "label: all nodes with a label, 2, have 'x'; accepted: two classes or more"),
        (["x", "NA", "x", "NA"], {"classes": ["x", "y"]}, "classes: lacks 'NA', which is a label in the fi"),
        (["x", "", "x", "x"], {"classes": ["x"]}, "classes: got x, one class; accepted: two or more"),
    ],
)
def test_labels_that_may_be_missing_are_refused(
    labels: list[str], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        load_custom(write(tmp_path, nodes={**NODES, **SPLIT, "label": labels}), **options)


def test_whole_numbers_with_a_point_are_the_classes_without(tmp_path: Path) -> None:
    folder = write(
        tmp_path, nodes={**NODES, "split": ["train", "val", "test", ""], "label": ["1.0", "2.0", "1.0", ""]}
    )
    for options in ({}, {"classes": ["1", "2"]}):
        got = load_custom(folder, **options)  # type: ignore[arg-type]
        assert (got.class_names, got.y.tolist()) == (("1", "2"), [0, 1, 0, -1])
    assert load_custom(folder, classes=["1.0", "2.0"]).class_names == ("1.0", "2.0")


def test_tables_without_edges_warn_and_the_table_of_nodes_alone_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, "source,target\n", {**NODES, **SPLIT})
    with pytest.warns(UserWarning, match=r"^edges: edges\.csv: has no row, so that no node has a neighbour"):
        assert load_custom(folder).graph.nnz == 0
    with pytest.raises(
        ValueError, match=r"^path: got .*nodes\.csv, the table of nodes; accepted: its folder"
    ):
        load_custom(folder / "nodes.csv")


def test_minus_one_is_a_class_if_the_names_have_it(tmp_path: Path) -> None:
    nodes = {**NODES, "split": ["train", "train", "val", "test"]}
    folder = write(tmp_path, nodes={**nodes, "label": ["1", "-1", "-1", "1"]})
    assert load_custom(folder, classes=["-1", "1"]).y.tolist() == [1, 0, 0, 1]
    folder = write(tmp_path, nodes={**nodes, "label": ["1", "-1", "0", "1"]})
    for classes in (2, ["0", "1"]):
        assert load_custom(folder, classes=classes).y.tolist() == [1, -1, 0, 1]


def test_missing_numbers_of_a_regression(tmp_path: Path) -> None:
    got = load_custom(write(tmp_path, nodes={**NODES, **SPLIT, "label": ["0.5", "1", "nan", "2"]}))
    assert got.regression
    assert np.array_equal(got.y.numpy().ravel(), [0.5, 1, np.nan, 2], equal_nan=True)
