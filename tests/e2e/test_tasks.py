"""train.py on graphs and on links, and what it refuses there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.launch import Run
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
