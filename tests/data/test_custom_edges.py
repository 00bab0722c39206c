"""Labels and features of edges in a user's tables and PyG graphs: which task it is, and what is refused."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnnsparse.data import EdgeDataset, NodeDataset, load_custom
from tests.own_graphs import write_table

NODES = {"id": ["a", "b", "c"], "f": [0.5, 1, 2]}
EDGES = {
    "source": ["a", "b", "c", "a", "c", "a", "b"],
    "target": ["b", "c", "a", "b", "b", "c", "a"],
    "weight": [1, 2, 3, 4, 5, 6, 7],
    "label": ["x", "y", "x", "y", "x", "y", ""],
    "split": ["train", "train", "val", "val", "test", "test", ""],
    "by": ["card", "cash", "", "card", "card", "bank", "cash"],
    "size": [1.0, 3.0, 5.0, np.nan, 2.0, 1.0, 2.0],
}


def write(folder: Path, nodes: Any = NODES, drop: tuple[str, ...] = (), **edges: Any) -> Path:
    columns = {name: column for name, column in {**EDGES, **edges}.items() if name not in drop}
    write_table(folder / "edges.csv", columns)
    if nodes is not None:
        write_table(folder / "nodes.csv", nodes)
    return folder


def edges_of(folder: Path, **options: Any) -> EdgeDataset:
    found = load_custom(folder, **options)
    assert isinstance(found, EdgeDataset)
    return found


def test_labels_and_features_of_edges(tmp_path: Path) -> None:
    """Repeated edges have labels of their own; what no training edge has is the mean, or 0."""
    with pytest.warns(UserWarning, match="no training row has what others have: by=bank"):
        found = edges_of(write(tmp_path))
    assert found.edge_index.tolist() == [[0, 1, 2, 0, 2, 0, 1], [1, 2, 0, 1, 1, 2, 0]]
    assert (found.y.tolist(), found.class_names) == ([0, 1, 0, 1, 0, 1, -1], ("x", "y"))
    assert [mask.nonzero().flatten().tolist() for mask in (found.train_mask, found.val_mask)] == [
        [0, 1],
        [2, 3],
    ]
    assert found.edge_attr is not None
    assert found.edge_attr.tolist() == [
        [1, 0, 1], [0, 1, 3], [0, 0, 5], [1, 0, 2], [1, 0, 2], [0, 0, 1], [0, 1, 2],
    ]  # fmt: skip
    assert found.graph.to_scipy().toarray()[1, 0] == 1 + 4 + 7  # edges lead both ways, and weights add up
    with pytest.warns(UserWarning, match="no training row has what others have: by=bank"):
        again = edges_of(tmp_path, edge_transform=found.edge_transform, transform=found.feature_transform)
    torch.testing.assert_close(again.edge_attr, found.edge_attr)


LABELLED = {**NODES, "label": ["u", "v", "v"]}
SPLIT = {"split": ["train", "val", "test"]}


@pytest.mark.filterwarnings("ignore::UserWarning")  # of columns that are not used, or of new texts
@pytest.mark.parametrize(
    ("nodes", "options", "kind", "said"),
    [
        (NODES, {}, EdgeDataset, "task = edge, classes of edges (2): edges.csv has a column 'label'"),
        (None, {}, EdgeDataset, "task = edge, classes of edges (2): edges.csv has a column 'label'"),
        (LABELLED, {"task": "edge"}, EdgeDataset, None),
        (LABELLED, {"edge_label": "by"}, EdgeDataset, "task = edge, classes of edges (3)"),
        ({**LABELLED, **SPLIT}, {}, NodeDataset, "task = node"),
    ],
)
def test_which_task_it_is(
    nodes: Any, options: Any, kind: type, said: str | None, tmp_path: Path, caplog: Any
) -> None:
    split = {} if kind is NodeDataset else {"split": "random"}
    with caplog.at_level(logging.INFO, "gnnsparse.data"), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert isinstance(load_custom(write(tmp_path, nodes), **split, **options), kind)
    assert ("task = " in caplog.text) == (said is not None)
    assert said is None or said in caplog.text
    hint = (
        "columns that are not used: label, split, by, size; edge_features=[by,size] gives them to models of "
    )
    found = [str(one.message) for one in told if hint in str(one.message)]
    assert len(found) == (kind is NodeDataset)
    assert all("; task=edge learns labels of edges" in text for text in found)


def test_numbers_of_edges_by_time(tmp_path: Path) -> None:
    columns = {"when": [7, 6, 5, 4, 3, 2, 1], "p": [0.5, 1, 2, 3, 4, 5, 6], "q": [1.5, 2, 3, np.nan, 5, 6, 7]}
    write(tmp_path, None, ("label", "split", "by", "size"), **columns)
    found = edges_of(tmp_path, edge_label=["p", "q"], split="time:when", train_fraction=0.5)
    assert (found.regression, found.class_names, found.edge_attr) == (True, ("p", "q"), None)
    assert found.train_mask.nonzero().flatten().tolist() == [4, 5, 6]
    assert found.x.shape == (3, 32)  # degrees, as nodes have no features
    assert torch.isnan(found.y[3, 1])


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("drop", "options", "message"),
    [
        (("label",), {"task": "edge"}, "edge_label: no column has the labels of the edges; edges.csv has so"),
        ((), {"edge_label": "no"}, "edge_label: there is no column 'no'; edges.csv has source, target"),
        ((), {"edge_label": "by", "task": "node"}, "edge_label: got 'by' for task=node; accepted: task=edge"),
        ((), {"edge_features": ["no"]}, "edge_features: there is no column 'no'"),
        ((), {"edge_features": 5}, "edge_features: got int; accepted: a list of names of columns"),
        ((), {"split": "time:no"}, "split: got 'time:no', and the edges have no such column; they have: no"),
        ((), {"edge_transform": {"x": 1}}, "edge_transform: got .*; accepted: what a data set has as edge_t"),
        (("size",), {"edge_transform": {"columns": ["size"]}}, "edge_features: there is no column 'size'"),
        (
            ("nodes",),
            {"transform": {"columns": ["f"]}},
            "features: .*; accepted: nodes with the columns .*, f",
        ),
        ((), {"task": "graph"}, "graph: no column of the nodes has the ids of graphs"),
    ],
)
def test_what_is_refused(drop: Any, options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        load_custom(write(tmp_path, None if "nodes" in drop else NODES, drop), **options)


def test_columns_that_are_no_features(tmp_path: Path) -> None:
    names = [f"payment {number}" for number in range(30)]
    ends = {"source": ["a", "b", "c"] * 10, "target": ["b", "c", "a"] * 10, "label": ["x", "y"] * 15}
    write_table(tmp_path / "edges.csv", {**ends, "name": names, "size": range(30)})
    with pytest.warns(UserWarning, match=r"edges\.csv: columns that are not used: name$"):
        found = edges_of(tmp_path)
    assert found.edge_transform is not None
    assert found.edge_transform["columns"] == ["size"]
    with pytest.raises(ValueError, match=r"edge_features: edges\.csv: column 'name' has 30 different texts"):
        load_custom(tmp_path, edge_features=["name"])


def test_a_saved_graph_of_pyg(tmp_path: Path) -> None:
    pairs = torch.tensor([[0, 1, 2, 0, 1, 2, 0, 1, 2, 0], [1, 2, 0, 2, 0, 1, 1, 2, 0, 2]])
    graph = {
        "x": torch.rand(3, 2), "edge_index": pairs, "edge_label": torch.arange(10) % 2,
        "edge_attr": torch.rand(10), "y": torch.tensor([0, 1, 1]),
    }  # fmt: skip
    file = tmp_path / "graph.pt"
    torch.save(graph, file)
    found = edges_of(file, task="edge")
    assert (found.num_classes, found.edge_index.tolist()) == (2, pairs.tolist())
    torch.testing.assert_close(found.edge_attr, graph["edge_attr"][:, None])
    chosen = torch.tensor([[0, 0, 1, 2], [2, 1, 0, 0]])
    masks = {"train_mask": [1, 1, 0, 0], "val_mask": [0, 0, 1, 0], "test_mask": [0, 0, 0, 1]}
    of_edges = {name: torch.tensor(mask, dtype=torch.bool) for name, mask in masks.items()}
    more = {"edge_label_index": chosen, "edge_label": torch.rand(4, 2), "y": None}
    torch.save({**graph, **more, **of_edges}, file)
    with pytest.warns(UserWarning, match="edge_attr: it is not used, as edge_label_index has other edges"):
        found = edges_of(file)
    assert (found.regression, found.edge_index.tolist(), found.edge_attr) == (True, chosen.tolist(), None)
    assert found.val_mask.tolist() == [False, False, True, False]
    torch.save({**graph, "edge_label": torch.arange(4)}, file)
    with pytest.raises(ValueError, match=r"edge_label: has shape \(4,\); accepted: a row for each of 10"):
        load_custom(file, task="edge")
