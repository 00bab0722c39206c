"""Data sets of graphs: checks, files of TU Dortmund, folds."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnsparse import SparseGraph
from gnnsparse.data import DatasetUnavailableError, block_diagonal
from gnnsparse.data.tu import load_tu, stratified_folds
from tests.tu_files import TITLE, graph_dataset, small_graphs, write_npz, write_text

PTR, ONE = graph_dataset(8).graph_ptr, torch.tensor(1)


def test_sizes() -> None:
    data = graph_dataset(8)
    assert (data.num_graphs, data.num_nodes, data.num_features) == (8, data.graph.num_rows, 3)
    assert (data.multi_label, data.regression) == (False, False)
    assert graph_dataset(8, "mae").regression
    assert replace(data, y=torch.zeros(8, 2), metric="mae").regression, "two numbers a graph"
    assert graph_dataset(8, "micro_f1").multi_label
    parts = data.parts
    assert torch.cat(list(parts.values())).sort().values.tolist() == list(range(8))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"graph": 3}, TypeError, "graph: got int; accepted: a SparseGraph"),
        ({"graph_ptr": torch.tensor([0, 5])}, ValueError, "graph_ptr: does not lead from 0 to"),
        ({"graph_ptr": PTR.index_fill(0, ONE, int(PTR[1]) - 1)}, ValueError, "graph: has an edge from node"),
        ({"graph_ptr": PTR.index_fill(0, ONE, 0)}, ValueError, "graph_ptr: graph 0 has no nodes"),
        ({"graph_ptr": torch.tensor([0.0])}, TypeError, "graph_ptr: got a tensor of dtype"),
        ({"y": torch.full((8,), 2)}, ValueError, "y: holds classes 2 to 2; accepted: 0 to 1, and -1"),
        ({"y": torch.zeros(7, dtype=torch.int64)}, ValueError, "y: has shape (7,)"),
        ({"y": torch.full((8, 2), 0.5)}, ValueError, "y: holds other numbers than 0 and 1"),
        ({"y": torch.full((8,), torch.inf), "metric": "mae", "num_classes": 1}, ValueError, "y: holds"),
        ({"val_mask": torch.ones(8, dtype=torch.bool)}, ValueError, "train_mask: has a graph of another"),
        ({"test_mask": torch.ones(8)}, TypeError, "test_mask: got a tensor of dtype"),
        ({"metric": "f1"}, ValueError, "metric: got 'f1'; accepted: accuracy, macro_f1, roc_auc"),
    ],
)  # fmt: skip
def test_what_is_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        replace(graph_dataset(8), **change)


def test_block_diagonal_is_the_matrix_of_blocks() -> None:
    graphs, _, _ = small_graphs(5)
    graphs[2] = SparseGraph(graphs[2].csr, torch.arange(graphs[2].nnz, dtype=torch.float32))
    whole, ptr = block_diagonal(graphs)
    want = torch.block_diag(*(graph.to_dense() for graph in graphs))
    assert torch.equal(whole.to_dense(), want)
    assert ptr.tolist() == [0, *torch.tensor([g.num_rows for g in graphs]).cumsum(0).tolist()]


@pytest.mark.parametrize(
    ("graphs", "error", "message"),
    [
        ([], ValueError, "graphs: is empty"),
        ([3], TypeError, "graphs[0]: got int"),
        ([SparseGraph.from_edge_index(torch.zeros(2, 0, dtype=int), (2, 3))], ValueError, "has shape (3, 2)"),
        ([SparseGraph.from_edge_index(torch.zeros(2, 0, dtype=int), 0)], ValueError, "has shape (0, 0)"),
    ],
)
def test_blocks_that_are_refused(graphs: list[Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        block_diagonal(graphs)


@pytest.mark.parametrize("place", [".", "raw", TITLE, f"{TITLE}/raw"])
def test_text_files(tmp_path: Path, place: str) -> None:
    write_text(tmp_path / place)
    data, want = load_tu(TITLE, tmp_path), graph_dataset()
    assert torch.equal(data.graph.to_dense(), want.graph.to_dense())
    assert all(torch.equal(getattr(data, name), getattr(want, name)) for name in ("graph_ptr", "x", "y"))
    assert (data.name, data.num_classes, data.metric) == ("proteins", 2, "accuracy")


@pytest.mark.parametrize(("place", "root"), [(".", "."), ("tu", "."), (".", f"{TITLE}.npz")])
def test_npz(tmp_path: Path, place: str, root: str) -> None:
    write_npz(tmp_path / place)
    data, want = load_tu(TITLE, tmp_path / root, fold=3), graph_dataset()
    assert torch.equal(data.graph.to_dense(), want.graph.to_dense())
    assert torch.equal(data.x, want.x)
    assert data.parts["test"].tolist() == [6, 7, 26, 27]
    assert 0 not in load_tu(TITLE, tmp_path / root, fold=0).parts["test"]


def test_attributes(tmp_path: Path) -> None:
    data = load_tu(TITLE, write_text(tmp_path, attributes=True), node_attributes=True)
    assert data.num_features == 5
    assert torch.equal(data.x[:, 1], -torch.arange(data.num_nodes).float())
    with pytest.raises(ValueError, match=r"node_attributes: the files of PROTEINS have none; accepted: f"):
        load_tu(TITLE, write_npz(tmp_path / "npz"), node_attributes=True)


def test_folds_partition_the_graphs(tmp_path: Path) -> None:
    write_text(tmp_path)
    for validation in ("holdout", "fold"):
        folds = [load_tu(TITLE, tmp_path, fold=fold, validation=validation) for fold in range(10)]
        tested = torch.stack([data.test_mask for data in folds])
        assert torch.equal(tested.sum(0), torch.ones(40, dtype=torch.int64))
        for data in folds:
            assert int(data.test_mask.sum()) == 4
            assert int(data.y[data.test_mask].sum()) == 2, "as many graphs of each class"
            assert torch.equal(data.val_mask, data.test_mask) == (validation == "fold")
            assert torch.equal(data.train_mask, ~(data.val_mask | data.test_mask))
    one, other = (load_tu(TITLE, tmp_path, seed=seed).test_mask for seed in (0, 1))
    assert not torch.equal(one, other)
    assert torch.equal(one, load_tu(TITLE, tmp_path).test_mask)
    with pytest.raises(ValueError, match="fold: 5 graphs can't be divided into 10 folds"):
        stratified_folds(torch.zeros(5, dtype=torch.int64), 10, 0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"fold": 10}, ValueError, "fold: got 10; accepted: 0 to 9"),
        ({"fold": -1}, ValueError, "fold: got -1"),
        ({"fold": "a"}, TypeError, "fold: got str"),
        ({"seed": -1}, ValueError, "seed: got -1"),
        ({"validation": "test"}, ValueError, "validation: got 'test'; accepted: holdout, fold"),
        ({"node_attributes": 1}, TypeError, "node_attributes: got int"),
        ({"root": 3}, TypeError, "root: got int"),
    ],
)
def test_options_of_folds(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    write_text(tmp_path)
    with pytest.raises(error, match=re.escape(message)):
        load_tu(TITLE, **{"root": tmp_path, **options})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("A", "1, 999\n", "A.txt: holds other than pairs of nodes from 1 to"),
        ("A", "1, 30\n", "graph: has an edge from node 29 to node 0 of another graph"),
        ("A", "one, two\n", "could not convert"),
        ("A", "", "is empty"),
        ("graph_indicator", "1\n" * 295, "graph_indicator.txt: does not count from 1 to 40"),
        ("node_labels", "1\n", "node_attributes.txt: have other rows than 295 nodes"),
        ("graph_labels", None, "lacks PROTEINS_graph_labels.txt"),
    ],
)
@pytest.mark.filterwarnings("ignore:loadtxt. input contained no data:UserWarning")
def test_damaged_text_files(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    file = write_text(tmp_path) / f"{TITLE}_{name}.txt"
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(DatasetUnavailableError, match=re.escape(message)):
        load_tu(TITLE, tmp_path)


def test_damaged_npz(tmp_path: Path) -> None:
    file = write_npz(tmp_path) / f"{TITLE}.npz"
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(DatasetUnavailableError, match=r"root: the files of PROTEINS can't be read"):
        load_tu(TITLE, tmp_path)
    with pytest.raises(DatasetUnavailableError, match="root: no complete raw files of proteins"):
        load_tu(TITLE, tmp_path / "nothing")
