"""train.py on graphs, on links, and on a user's own data: from tables to a trained model to predictions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.e2e.started import Run
from tests.own_graphs import NAMES, NODES, arrays, tensors, write_tables
from tests.train.test_task_link import write_ddi
from tests.tu_files import write_text


@pytest.mark.parametrize(
    ("words", "names", "count"),
    [
        (
            "model=gin dataset=proteins dataset.fold=3 dataset.validation=fold model.pool=max",
            {"graphs", "classes", "probabilities"}, 60,
        ),
        ("model=graphsage dataset=ogbl_ddi", {"pairs", "is_edge", "probabilities"}, 260),
    ],
    ids=["graphs", "links"],
)  # fmt: skip
def test_predictions_of_graphs_and_links(
    words: str, names: set[str], count: int, train: Callable[..., Run], tmp_path: Path
) -> None:
    """Stories of docs/stories.md show that they are learned."""
    root = write_text(tmp_path, count=60) if count == 60 else write_ddi(tmp_path / "ogbl_ddi.npz").parent
    first = train(*words.split(), f"dataset.root={root}", "trainer.max_epochs=2", "device=cpu")
    scores = first.result["metrics"]
    assert count != 60 or scores["val"] == scores["test"]
    run = train("mode=predict", f"checkpoint={first.folder}", "device=cpu")
    assert run.result["metrics"]["test"] == pytest.approx(scores["test"], abs=0.02)
    with np.load(run.folder / "predictions.npz") as arrays:
        assert set(arrays.files) == names
        assert len(arrays["probabilities"]) == count


def test_from_tables_to_predictions(train: Callable[..., Run], tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "papers", years=True)
    options = ["dataset=custom", f"dataset.path={folder}", "dataset.split=time:year", "trainer.max_epochs=40"]
    first = train(*options, "optimizer.lr=0.03")
    result = first.result
    assert (result["dataset"], result["nodes"]) == ("custom", NODES)
    assert result["metrics"]["test"]["accuracy"] > 0.6  # a third by chance
    # Without labels nothing is scored. The columns come in another order, with one more.
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
        found = dict(file.items())
    assert found["ids"].tolist() == [f"n{i}" for i in range(NODES)]
    assert found["class_names"].tolist() == list(NAMES)
    y = arrays()["y"]
    assert np.mean([NAMES[found["classes"][i]] == NAMES[y[i]] for i in range(NODES) if y[i] >= 0]) > 0.6
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
