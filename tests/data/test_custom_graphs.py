"""Own data of many graphs: lists of PyG's, folders of TU Dortmund, and tables with ids of graphs."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnnsparse.data import GraphDataset, NodeDataset, dataset_of_graphs, load_custom
from gnnsparse.data.custom.build import FileOptions
from gnnsparse.data.custom.graphs import read_graph_tables
from tests import tu_files

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.data import Data, InMemoryDataset

COUNT = 20


def graphs(**changes: Callable[[int], Any]) -> list[Data]:
    """Paths of 1 to 5 nodes in one direction, so that every fifth has no edge; `changes` set attributes."""
    made = []
    for at in range(COUNT):
        nodes = at % 5 + 1
        edges = torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)])
        data = Data(x=torch.full((nodes, 2), float(at)), edge_index=edges, y=torch.tensor(at % 2))
        for name, change in changes.items():
            data[name] = change(at)
        made.append(data)
    return made


def save(folder: Path, found: list[Data], form: str = "list") -> Path:
    path = folder / "molecules.pt"
    if form == "collated":
        InMemoryDataset.save(found, str(path))
    else:
        torch.save([data.to_dict() for data in found] if form == "dicts" else found, path)
    return path


def load(path: Path, **options: Any) -> GraphDataset:
    found = load_custom(path, **options)
    assert isinstance(found, GraphDataset)
    return found


@pytest.mark.parametrize("form", ["list", "dicts", "collated"])
def test_saved_graphs(form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gnnsparse.data"):
        got = load(save(tmp_path, graphs(edge_weight=lambda at: torch.arange(1.0, at % 5 + 1)), form))
    assert caplog.messages == ["task = graph, classes of graphs (2): molecules.pt holds 20 graphs"]
    assert got.graph_ptr.diff().tolist() == [1, 2, 3, 4, 5] * 4
    assert got.x[:, 0].tolist() == [float(at) for at in range(COUNT) for _ in range(at % 5 + 1)]
    assert (got.y.tolist(), got.num_classes, got.metric) == ([0, 1] * 10, 2, "accuracy")
    third = got.graph.to_dense()[3:6, 3:6]  # A[target, source]
    assert third.tolist() == [[0, 0, 0], [1, 0, 0], [0, 2, 0]]
    assert got.graph.num_edges == sum(at % 5 for at in range(COUNT))
    parts = {name: got.y[ids].bincount().tolist() for name, ids in got.parts.items()}
    assert parts == {"train": [6, 6], "val": [2, 2], "test": [2, 2]}


@pytest.mark.parametrize(
    ("y", "kind", "shape"),
    [
        (lambda at: at + 0.5, "mae", (COUNT, 1)),
        (lambda at: torch.tensor([[at, 0.5]]), "mae", (COUNT, 2)),
        (lambda at: torch.tensor([at / 2, 0.5, 1]), "mae", (COUNT, 3)),
        (lambda at: torch.tensor([[at % 2, 1 - at % 2]]), "micro_f1", (COUNT, 2)),
        (lambda at: "toxic" if at % 3 else "safe", "accuracy", (COUNT,)),
        (lambda at: None if at == 0 else torch.tensor([at % 3]), "accuracy", (COUNT,)),
    ],
)  # fmt: skip
def test_kinds_of_targets(y: Callable[[int], Any], kind: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    got = load(save(tmp_path, graphs(y=y)))
    assert (got.metric, tuple(got.y.shape)) == (kind, shape)
    if kind == "mae":
        assert float(got.y[4].reshape(-1)[0]) == pytest.approx(float(np.ravel(y(4))[0]))
    if y(0) == "safe":
        assert (got.class_names, got.y[:2].tolist()) == (("safe", "toxic"), [0, 1])
    if y(0) is None:
        assert int(got.y[0]) == -1
        assert not any(bool(mask[0]) for mask in (got.train_mask, got.val_mask, got.test_mask))


def test_splits_names_and_features_of_graphs(tmp_path: Path) -> None:
    part = ["train", "valid", "test", "train", ""]
    found = graphs(split=lambda at: part[at % 5], name=lambda at: f"m{at}")
    for data in found:
        del data.x
        data.num_nodes = 5
    got = load(save(tmp_path, found), features="degree")
    assert got.graph_ids is not None
    assert got.graph_ids[3] == "m3"
    assert got.parts["train"].tolist() == [at for at in range(COUNT) if at % 5 in (0, 3)]
    assert got.parts["val"].tolist() == [1, 6, 11, 16]
    assert (got.num_nodes, got.num_features) == (5 * COUNT, 32)
    drawn = [load(save(tmp_path, found), features="constant", split="random", seed=s) for s in (1, 1, 2)]
    assert torch.equal(drawn[0].train_mask, drawn[1].train_mask)
    assert not torch.equal(drawn[0].train_mask, drawn[2].train_mask)


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        (
            {},
            {"task": "node"},
            r"^task: got 'node', and molecules\.pt holds 20 graphs; accepted: auto, graph",
        ),
        ({}, {"task": "link"}, r"^task: got 'link', and molecules.pt holds 20 graphs"),
        ({}, {"features": "identity"}, r"^features: got 'identity' for many graphs; accepted: file, degree"),
        ({"y": lambda at: torch.zeros(at % 5 + 1)}, {}, "y: has a row for each node"),
        ({"y": lambda at: torch.ones(1 + at // 19)}, {}, "y: graph 0 has 1 numbers, and others have 2"),
        ({"y": lambda at: 1}, {}, "all graphs with a label, 20, have '1'"),
        ({"y": lambda at: None}, {}, "^label: there are no labels"),
        ({"x": lambda at: torch.ones(at % 5 + 1, 2 + at // 19)}, {}, r"x: graph 19 has x of shape \(5, 3\)"),
        ({"x": lambda at: None if at == 7 else torch.ones(at % 5 + 1, 2)}, {}, "x: graph 7 has no x"),
        (
            {"edge_index": lambda at: torch.tensor([[0], [at % 5 + 1]])},
            {},
            "graph 0: edge_index: has node 1;",
        ),
        ({"split": lambda at: "tran"}, {}, "^split: graph 0 has 'tran'; accepted: train, val, test"),
    ],
)
def test_graphs_that_are_refused(changes: Any, options: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        load_custom(save(tmp_path, graphs(**changes)), **options)


def test_attributes_of_edges_are_features_of_edges(tmp_path: Path) -> None:
    """Integers of kinds have a column for each of them, and numbers are as they are."""

    def attr(at: int) -> torch.Tensor:
        kinds = torch.arange(at % 5) % 3 + 4
        return torch.stack([kinds, kinds % 2, torch.arange(at % 5) * 100 + at], dim=1)

    found = load(save(tmp_path, graphs(edge_attr=attr))).edge_features
    assert found is not None
    assert found.transform == {
        "columns": ["0", "1", "2"], "categories": {"0": ["4", "5", "6"]}, "fill": found.transform["fill"],
    }  # fmt: skip
    whole = torch.cat([attr(at) for at in range(COUNT)])
    kinds = torch.nn.functional.one_hot(whole[:, 0] - 4, 3)
    torch.testing.assert_close(found.edge_attr, torch.cat([kinds, whole[:, 1:]], dim=1).float())
    assert found.edge_index.shape == (2, 40)
    other = dataset_of_graphs(
        graphs(edge_attr=lambda at: attr(at).clamp(min=5).double()),
        edge_features=True, edge_transform=found.transform,
    )  # fmt: skip
    assert other.edge_features is not None
    assert other.edge_features.edge_attr[:, :3].sum(dim=0).tolist() == [0, 32, 8]
    assert dataset_of_graphs(graphs(edge_attr=attr)).edge_features is None


@pytest.mark.parametrize(
    ("attr", "said"),
    [
        (lambda at: torch.ones(3, 2), "edge_attr: graph 0 has shape .3, 2.; accepted: a row for each of 0"),
        (lambda at: torch.ones(at % 5, 2 + (at == 7)), "edge_attr: graph 7 has edge_attr of shape .2, 3."),
        (
            lambda at: None if at == 3 else torch.ones(at % 5),
            "edge_attr: graph 3 has no edge_attr, and other",
        ),
    ],
)
def test_attributes_of_edges_that_are_refused(attr: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        load(save(tmp_path, graphs(edge_attr=attr)))


def test_a_folder_with_labels_and_attributes_of_edges(tmp_path: Path) -> None:
    """In the order in which the files list the edges, some of them twice."""
    folder = tu_files.write_text(tmp_path / "tu")
    file = next(folder.rglob("*_A.txt"))
    lines = file.read_text().splitlines()
    lines = [*reversed(lines), lines[0]]
    file.write_text("\n".join(lines))
    name = file.name.removesuffix("_A.txt")
    labels, numbers = [2 + at % 3 for at in range(len(lines))], [at / 2 for at in range(len(lines))]
    for part, rows in (("labels", labels), ("attributes", numbers)):
        (file.parent / f"{name}_edge_{part}.txt").write_text("\n".join(map(str, rows)))
    found = load(folder).edge_features
    assert found is not None
    pairs = torch.tensor([[int(end) - 1 for end in line.split(",")] for line in lines]).T.flip(0)
    assert torch.equal(found.edge_index, pairs)
    assert found.edge_attr[:, :3].argmax(dim=1).tolist() == [at % 3 for at in range(len(lines))]
    assert found.edge_attr[:, 3].tolist() == numbers
    (file.parent / f"{name}_edge_labels.txt").write_text("1\n2\n")
    with pytest.raises(ValueError, match=r"_edge_labels\.txt, _edge_attributes\.txt: have other rows than"):
        load(folder)


def test_one_graph_is_of_nodes_unless_the_task_says_otherwise(tmp_path: Path) -> None:
    one = graphs()[4]
    one.y = torch.tensor([0, 1, 0, 1, 0])
    torch.save([one], tmp_path / "molecules.pt")
    assert isinstance(load_custom(tmp_path / "molecules.pt"), NodeDataset)
    del one.y
    torch.save(one, tmp_path / "one.pt")
    got = load(tmp_path / "one.pt", task="graph", classes=2)
    assert (got.num_graphs, got.y.tolist()) == (1, [-1])


@pytest.mark.parametrize("attributes", [False, True])
def test_a_folder_of_tu_dortmund(attributes: bool, tmp_path: Path) -> None:
    folder = tu_files.write_text(tmp_path / "mine", attributes=attributes)
    labels = folder / "PROTEINS_graph_labels.txt"
    labels.write_text(labels.read_text().replace("2", "-1"))
    got, wanted = load(folder), tu_files.graph_dataset()
    assert (got.graph.to_dense() == wanted.graph.to_dense()).all()
    assert got.class_names == ("-1", "1")
    assert got.y.tolist() == (1 - wanted.y).tolist()
    assert torch.equal(got.x[:, -3:], wanted.x)
    assert got.num_features == (5 if attributes else 3)
    (folder / "PROTEINS_node_labels.txt").unlink()
    assert load(folder, features="degree").num_features == 32
    labels.unlink()
    (folder / "PROTEINS_graph_attributes.txt").write_text("0.5, 2\n" * 40)
    assert load(folder, features="degree").y.tolist() == [[0.5, 2]] * 40


def write(folder: Path, **tables: dict[str, list[Any]]) -> Path:
    for name, columns in tables.items():
        rows = zip(*columns.values(), strict=True)
        lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder


EDGES: dict[str, list[Any]] = {"source": ["a", "c", "d", "f"], "target": ["b", "e", "c", "g"]}
#: Of three graphs, whose rows are mixed.
NODES: dict[str, list[Any]] = {
    "id": list("acbdefg"), "mass": [1, 3, 2, 4, 5, 6, 7], "graph_id": ["u", "w", "u", "w", "w", "v", "v"],
}  # fmt: skip
SPLIT = {"split": ["train", "val", "test"]}


def test_tables_of_graphs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = {"graph_id": ["w", "v", "u"], "label": ["yes", "no", "yes"], **SPLIT}
    with caplog.at_level(logging.INFO, "gnnsparse.data"):
        got = load(write(tmp_path, edges=EDGES, nodes=NODES, graphs=table))
    assert caplog.messages[1:] == [
        "nodes.csv: id = ids; mass = features; graph_id = graphs",
        "graphs.csv: graph_id = ids; label = labels; split = split",
        "task = graph, classes of graphs (2): there is a table graphs.csv",
    ]
    assert (got.graph_ids, got.class_names) == (("w", "v", "u"), ("no", "yes"))
    assert got.y.tolist() == [1, 0, 1]
    assert got.x.flatten().tolist() == [3, 4, 5, 6, 7, 1, 2]
    assert got.graph_ptr.tolist() == [0, 3, 5, 7]
    assert got.graph.to_dense()[:3, :3].tolist() == [[0, 1, 1], [1, 0, 0], [1, 0, 0]]
    assert [ids.tolist() for ids in got.parts.values()] == [[0], [1], [2]]
    scaled = load(tmp_path, standardize=True).x.flatten()  # by the nodes of the graph to train on
    assert scaled.tolist() == pytest.approx([(x - 4) / (2 / 3) ** 0.5 for x in (3, 4, 5, 6, 7, 1, 2)])


def test_ids_of_nodes_that_begin_anew_in_each_graph(tmp_path: Path) -> None:
    own = {"id": [0, 1, 0, 1, 2], "mass": [1, 2, 3, 4, 5], "graph": ["u", "u", "v", "v", "v"]}
    edges = {"graph": ["v", "u", "v"], "source": [0, 0, 2], "target": [1, 1, 0]}
    table = {"id": ["u", "v"], "y": [0.5, 1.5]}
    folder = write(tmp_path, edges=edges, nodes=own, graphs=table)
    content = read_graph_tables(folder, FileOptions())
    assert content.graph_ptr is not None
    assert content.graph_ptr.tolist() == [0, 2, 5]
    assert content.ids == ("u/0", "u/1", "v/0", "v/1", "v/2")
    assert content.edges.tolist() == [[2, 0, 4], [3, 1, 2]]
    del edges["graph"]
    with pytest.raises(ValueError, match=r"'0' has two rows; accepted: one for each node, or graph in the"):
        load_custom(write(tmp_path, edges=edges, nodes=own, graphs=table))


def test_labels_that_are_the_same_in_a_graph_are_its_own(tmp_path: Path) -> None:
    own = {"group": NODES["graph_id"], "y": [0, 1, 0, 1, 1, 0, 0]}
    split = {"split": ["test", "train", "test", "train", "train", "val", "val"]}
    nodes = {"id": NODES["id"], "mass": NODES["mass"], **own, **split}
    got = load(write(tmp_path, edges=EDGES, nodes=nodes), graph="group")
    assert (got.graph_ids, got.y.tolist()) == (("u", "w", "v"), [0, 1, 0])
    assert [ids.tolist() for ids in got.parts.values()] == [[1], [2], [0]]
    nodes["y"] = [0, 1, 1, 1, 1, 0, 0]
    del nodes["split"]
    folder = write(tmp_path, edges=EDGES, nodes=nodes)
    assert isinstance(load_custom(folder, graph="group"), NodeDataset)
    with pytest.raises(
        ValueError, match=r"^label: the nodes of graph 'u' have several labels; accepted: one"
    ):
        load_custom(folder, graph="group", task="graph")


@pytest.mark.parametrize(
    ("nodes", "table", "options", "said"),
    [
        ({"graph_id": list("uvuvvvv")}, {}, {}, "^graph: an edge joins 'f' and 'g' of two"),
        ({"graph_id": ["u", "", *"uvvvv"]}, {}, {}, "^graph: column 'graph_id' is empty in row 2"),
        (
            {},
            {"id": ["u", "w"], "label": [0, 1]},
            {},
            r"^graph: a node is of graph 'v', which graphs\.csv lacks",
        ),
        ({}, {"id": ["u", "w", "v", "z"], "label": [0, 1, 0, 1]}, {}, "^graph: graph 'z' has no node"),
        ({}, {"id": ["u", "u", "v"], "label": [0, 1, 0]}, {}, r"^graph: graphs\.csv: 'u' has two rows"),
        ({}, {}, {"graph": "group"}, "^graph: the nodes have no column 'group'; they have"),
        ({"graph_id": None}, {}, {"task": "graph"}, "^graph: no column of the nodes has the ids of graphs"),
    ],
)
def test_tables_that_are_refused(nodes: Any, table: Any, options: Any, said: str, tmp_path: Path) -> None:
    own = {name: column for name, column in {**NODES, **nodes}.items() if column is not None}
    edges = {name: ends[:3] if nodes.get("graph_id", "") is None else ends for name, ends in EDGES.items()}
    if nodes.get("graph_id") == list("uvuvvvv"):
        own["graph_id"] = list("uvuvvuv")
    with pytest.raises(ValueError, match=said):
        load_custom(
            write(tmp_path, edges=edges, nodes=own, **({"graphs": table} if table else {})), **options
        )


def test_graphs_in_python_are_read_alike(tmp_path: Path) -> None:
    found = graphs()
    got, saved = dataset_of_graphs(found, seed=3), load(save(tmp_path, found), seed=3)
    assert all(torch.equal(getattr(got, name), getattr(saved, name)) for name in ("x", "y", "train_mask"))
    with pytest.raises(TypeError, match=r"^data\[1\]: got dict; accepted: a torch_geometric\.data\.Data"):
        dataset_of_graphs([found[0], found[1].to_dict()])
    found[2].edge_index = None
    with pytest.raises(ValueError, match=r"^data\[2\]: edge_index: is missing"):
        dataset_of_graphs(found)
