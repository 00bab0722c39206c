"""build_graph_of_tables: the graph that load_custom makes of the same tables, whatever the pieces."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

from gnnsparse.data import build_graph, build_graph_of_tables, graph_ids, load_custom, open_graph
from tests.large import LEAST

DRAW = np.random.default_rng(0)
ENDS = DRAW.integers(0, 40, (2, 900))
WEIGHTS = DRAW.integers(1, 100, 900) / 4


def text(
    separator: str = ",", header: str = "source,target,weight", ids: str = "{}", comma: bool = False
) -> str:
    rows = [[ids.format(s), ids.format(t), str(w)] for s, t, w in zip(*ENDS, WEIGHTS, strict=True)]
    names = [header.split(",")] if header else []
    made = "".join(
        separator.join(row[: len(header.split(",")) if header else 3]) + "\n" for row in names + rows
    )
    return made.replace(".", ",") if comma else made


def write_parquet(path: Path) -> None:
    ids = [f"n{node}" for node in ENDS[0]], [f"n{node}" for node in ENDS[1]]
    pandas.DataFrame({"src": ids[0], "W": WEIGHTS, "dst": ids[1]}).to_parquet(path)


TABLES: dict[str, Callable[[Path], Any]] = {
    "e.csv": lambda path: path.write_text(text()),
    "names.csv": lambda path: path.write_text(text(ids="n {}")),
    "ends.csv": lambda path: path.write_text(text(header="From,To")),
    "zeros.csv": lambda path: path.write_text(text(ids="0{}")),
    "semicolons.csv": lambda path: path.write_text(text(";", "Source,Target,WEIGHT", comma=True)),
    "mark.csv": lambda path: path.write_text(text("|"), encoding="utf-8-sig"),
    "wide.txt": lambda path: path.write_text(text("\t", ids="ö{}"), encoding="utf-16"),
    "snap.txt.gz": lambda path: path.write_bytes(gzip.compress(("# FromNodeId\n" + text("\t", "")).encode())),
    "spaces.txt": lambda path: path.write_text(text(" ", "")),
    "e.parquet": write_parquet,
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("symmetric", [False, True])
def test_the_graph_is_that_of_load_custom(
    name: str, symmetric: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnnsparse.data.large.tables._SAMPLE", 2001)
    monkeypatch.setattr("gnnsparse.data.large.tables._ROWS", 70)
    monkeypatch.setattr("gnnsparse.data.large.tables._NUMBERS", 64)
    TABLES[name](tmp_path / name)
    made = build_graph_of_tables(tmp_path / name, tmp_path / "g", symmetric=symmetric, memory=LEAST)
    wanted = load_custom(tmp_path / name, features="degree", directed=not symmetric, classes=2)
    graph = open_graph(tmp_path / "g")
    assert graph.csr.equals(wanted.graph.csr)
    assert (graph.values is None) == (name == "ends.csv"), "repeats are merged, and not counted"
    if graph.values is not None:
        assert wanted.graph.values is not None
        torch.testing.assert_close(graph.values, wanted.graph.values)
    named = name in ("names.csv", "zeros.csv", "wide.txt", "e.parquet")
    assert graph_ids(tmp_path / "g") == (wanted.node_ids if named else None)
    assert made.num_edges == 900
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted((name, "g"))


def test_weights_of_an_array_are_kept_when_buckets_are_split(tmp_path: Path) -> None:
    edges = np.concatenate([DRAW.integers(0, 300, (2, 20_000)), np.full((2, 9000), 7)], axis=1)
    weights = DRAW.random(29_000)
    build_graph(edges, tmp_path / "g", 300, weights=weights, symmetric=True, memory=LEAST)
    found = open_graph(tmp_path / "g").to_dense()
    wanted = np.zeros((300, 300))
    np.add.at(wanted, (edges[1], edges[0]), weights)
    beside = edges[0] != edges[1]
    np.add.at(wanted, (edges[0][beside], edges[1][beside]), weights[beside])
    torch.testing.assert_close(found, torch.from_numpy(wanted).float(), atol=0, rtol=1e-6)


#: Rows of one table, `num_nodes`, and the nodes and names of the graph.
IDS = [
    ("0,1\n1,2\n", None, 3, None),
    ("0,1\n1,3\n", None, 4, None),
    ("0,1\n1,3\n", 9, 9, None),
    ("1,2\n2,3\n", None, 3, ("1", "2", "3")),
    ("0,9\n9,1000\n", None, 3, ("0", "9", "1000")),
    ("0,1\n1,07\n", None, 3, ("0", "1", "07")),
    ("0,1\n-1,0\n", None, 3, ("-1", "0", "1")),
]


@pytest.mark.parametrize(("rows", "given", "nodes", "names"), IDS)
def test_whole_numbers_stay_and_others_are_numbered(
    rows: str, given: int | None, nodes: int, names: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "e.csv").write_text("source,target\n" + rows)
    with caplog.at_level(logging.INFO, "gnnsparse.data"):
        made = build_graph_of_tables(tmp_path / "e.csv", tmp_path / "g", given)
    assert (made.num_nodes, graph_ids(tmp_path / "g")) == (nodes, names)
    assert "e.csv: source, target = ends" in caplog.messages
    assert any("(ids.txt)" in line for line in caplog.messages) == (names is not None)


def test_several_tables_are_one_graph(tmp_path: Path) -> None:
    for number, rows in enumerate(("source,target\n0,1\n", "1,2\n2,3\n", "target,source\na,0\n")):
        (tmp_path / f"{number}.csv").write_text(rows)
    made = build_graph_of_tables([tmp_path / f"{number}.csv" for number in range(3)], tmp_path / "g")
    assert graph_ids(made.folder) == ("0", "1", "2", "3", "a")
    assert open_graph(made.folder).to_dense().nonzero().tolist() == [[1, 0], [2, 1], [3, 2], [4, 0]]


#: Tables, options, and what is refused.
REFUSED: list[tuple[list[str], dict[str, Any], str]] = [
    (["source,target\n"], {}, r"^edges: have no row; accepted: tables with an edge"),
    (
        ["source,target\n0,1\n2,\n"],
        {},
        r"0\.csv: target: 0\.csv: column 'target' is empty in row 2; accepted: an id",
    ),
    (["source,target,w\n0,1,x\n"], {}, r"weight: 0\.csv: column 'w' has 'x' in row 1; accepted: finite"),
    (
        ["source,target,w\n0,1,2\n", "source,target\n0,1\n"],
        {},
        r"1\.csv has no weights, unlike the tables before",
    ),
    (["source,target\n0,1\n0,1,2\n"], {}, r"0\.csv: .*3"),
    (["source,target\n0,5\n"], {"num_nodes": 3}, r"^edges: element \[1, 0\] is 5; accepted: 0 to 2"),
    (["source,target\n0,a\n"], {"num_nodes": 3}, r"^num_nodes: got 3, and ids are no whole numbers"),
    (["a,b\nx,y\n"], {"weight": "c"}, r"first row, a,b, may be names of columns or an edge"),
    (
        ["source,target\n" + "".join(f"a{n},b{n}\n" for n in range(200))],
        {"memory": LEAST},
        r"^memory: got 65536 bytes",
    ),
]


@pytest.mark.parametrize(("texts", "options", "said"), REFUSED)
def test_wrong_tables_are_refused_and_leave_nothing(
    texts: list[str], options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    for number, rows in enumerate(texts):
        (tmp_path / f"{number}.csv").write_text(rows)
    with pytest.raises(ValueError, match=said):
        build_graph_of_tables(
            [tmp_path / f"{number}.csv" for number in range(len(texts))], tmp_path / "g", **options
        )
    assert len(list(tmp_path.iterdir())) == len(texts)
