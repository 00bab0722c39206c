"""train.py on graphs, on links, and on a user's own data: from tables to a trained model to predictions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.e2e.started import Run
from tests.own_graphs import NAMES, NODES, arrays, tensors, write_tables
from tests.train.test_task_link import write_ddi
from tests.tu_files import write_text

PNG = b"\x89PNG\r\n\x1a\n"


def test_graphs(train: Callable[..., Run], tmp_path: Path) -> None:
    root = write_text(tmp_path / "tu", count=60)
    trained = train(
        "model=gin", "dataset=proteins", f"dataset.root={root}", "model.dropout=0", "trainer.max_epochs=20",
        "trainer.batch_size=8", "trainer.plots=true", "device=cpu",
    )  # fmt: skip
    result = trained.result
    assert (result["task"], result["graphs"], result["model"]) == ("graph", 60, "gin")
    assert result["metrics"]["test"]["accuracy"] >= 0.8
    assert set(result["metrics"]) == {"train", "val", "test"}
    assert "CUDA graphs need a GPU" in result["capture"]
    plots = sorted((trained.folder / "plots").iterdir())
    assert [file.name for file in plots] == ["confusion.png", "curves.png"]
    assert all(file.read_bytes().startswith(PNG) for file in plots)
    assert "gin on proteins" in trained.output
    run = train("mode=predict", f"checkpoint={trained.folder}", "device=cpu")
    assert run.result["metrics"]["test"] == pytest.approx(result["metrics"]["test"])
    with np.load(run.folder / "predictions.npz") as arrays:
        assert set(arrays.files) == {"graphs", "classes", "probabilities"}
        assert arrays["classes"].shape == arrays["graphs"].shape == (6,)
    run = train(  # another model, and another fold
        "model=graphsage", "dataset=proteins", f"dataset.root={root}", "dataset.fold=3",
        "dataset.validation=fold", "model.pool=max", "trainer.max_epochs=2", "device=cpu",
    )  # fmt: skip
    assert run.result["metrics"]["val"] == run.result["metrics"]["test"]


def test_links(train: Callable[..., Run], tmp_path: Path) -> None:
    write_ddi(tmp_path / "data" / "ogbl_ddi.npz")
    run = train(
        "model=graphsage", "dataset=ogbl_ddi", f"dataset.root={tmp_path / 'data'}",
        "model.hidden_channels=16", "trainer.max_epochs=20", "trainer.batch_size=200", "trainer.val_every=1",
        "device=cpu",
    )  # fmt: skip
    result = run.result
    assert (result["task"], result["nodes"], result["train_edges"]) == ("link", 60, 500)
    assert result["metrics"]["test"]["hits@20"] > 0.9
    predicted = train("mode=predict", f"checkpoint={run.folder}", "device=cpu")
    with np.load(predicted.folder / "predictions.npz") as arrays:
        assert set(arrays.files) == {"pairs", "is_edge", "probabilities"}
    again = json.loads((predicted.folder / "result.json").read_text())["metrics"]["test"]
    assert again == pytest.approx(result["metrics"]["test"], abs=0.02)


def test_from_tables_to_predictions(train: Callable[..., Run], tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "papers", years=True)
    options = ["dataset=custom", f"dataset.path={folder}", "dataset.split=time:year", "trainer.max_epochs=40"]
    first = train(*options, "optimizer.lr=0.03")
    result = first.result
    assert (result["dataset"], result["nodes"]) == ("custom", NODES)
    assert result["metrics"]["test"]["accuracy"] > 0.6  # a third by chance
    run = train("mode=predict", f"checkpoint={first.folder}")
    assert run.result["metrics"]["test"] == pytest.approx(result["metrics"]["test"], abs=1e-6)
    with np.load(run.folder / "predictions.npz") as file:
        found = dict(file.items())
    assert found["ids"].tolist() == [f"n{i}" for i in range(NODES)]
    assert found["class_names"].tolist() == list(NAMES)
    named = found["class_names"][found["classes"]]
    y = arrays()["y"]
    hits = [named[i] == NAMES[y[i]] for i in range(NODES) if y[i] >= 0]
    assert np.mean(hits) > 0.6
    # New nodes without labels: the classes keep their numbers, and nothing is scored. Their columns come in
    # another order, with one more.
    new = write_tables(tmp_path / "new", split=False)
    rows = [line.split(",") for line in (new / "nodes.csv").read_text().splitlines()]
    lines = [
        f"{f2},{f0},{'city' if at == 0 else 'Graz'},{i},{f1}" for at, (i, f0, f1, f2, _) in enumerate(rows)
    ]
    (new / "nodes.csv").write_text("\n".join(lines))
    run = train("mode=predict", f"checkpoint={first.folder}", "dataset=custom", f"dataset.path={new}")
    assert run.result["metrics"] == {}
    assert "60 predictions; no labels" in run.output
    said = "nodes.csv: id = ids; f0, f1, f2 = features; not used: city\n"
    assert run.output.startswith(f"edges.csv: source, target = ends; weight = weights\n{said}")
    with np.load(run.folder / "predictions.npz") as file:
        assert np.array_equal(file["classes"], found["classes"])
        assert np.array_equal(file["class_names"], found["class_names"])
    (new / "nodes.csv").write_text("\n".join(line.split(",", 1)[1] for line in lines))
    run = train("mode=predict", f"checkpoint={first.folder}", "dataset=custom", f"dataset.path={new}")
    assert run.status == 2
    assert run.errors.startswith(
        "train.py: dataset.feature_columns: there is no column 'f2'; nodes.csv has f0,"
    )


def test_a_graph_of_pyg_and_a_regression(train: Callable[..., Run], tmp_path: Path) -> None:
    torch.save(tensors(y=torch.as_tensor(arrays()["x"][:, 0] * 2)), tmp_path / "graph.pt")
    options = ["dataset=custom", f"dataset.path={tmp_path / 'graph.pt'}", "trainer.max_epochs=5"]
    first = train(*options)
    assert set(first.result["metrics"]["test"]) == {"mae", "mse", "r2"}
    run = train("mode=predict", f"checkpoint={first.folder}")
    with np.load(run.folder / "predictions.npz") as file:
        assert file["values"].shape == (NODES, 1)


def test_attention_says_that_it_ignores_weights(train: Callable[..., Run], tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "papers")
    run = train("dataset=custom", f"dataset.path={folder}", "model=gat", "trainer.max_epochs=2")
    assert run.status == 0
    assert "model: gat does not use the weights of the edges" in run.errors
