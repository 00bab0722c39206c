"""Features of edges from a user's data to a trained model to predictions."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from gnnsparse.cli.main import main
from gnnsparse.data.molecules import load_molecules
from gnnsparse.data.weather import load_weather
from tests.e2e.started import Run


def predict(*words: str) -> tuple[int, str]:
    said, status = io.StringIO(), 2
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of columns that are not used
        with contextlib.suppress(SystemExit):
            status = main(["predict", *words, "--device", "cpu"])
    return status, said.getvalue()


def test_a_regression_on_generated_molecules(train: Callable[..., Run], tmp_path: Path) -> None:
    run = train(
        "dataset=generated_molecules", "dataset.graphs=500", "model=gine", "model.hidden_channels=32",
        "trainer.max_epochs=20", "device=cpu",
    )  # fmt: skip
    dataset = load_molecules(500)
    y = dataset.y[dataset.test_mask]
    of_mean = (y - dataset.y[dataset.train_mask].mean(dim=0)).abs().mean().item()
    assert run.result["metrics"]["test"]["mae"] < 0.5 * of_mean
    status, said = predict(str(run.folder), "--out", str(tmp_path / "out.npz"))
    assert (status, "500 predictions on generated_molecules" in said) == (0, True), said
    with np.load(tmp_path / "out.npz") as found:
        got = torch.from_numpy(found["values"])[dataset.test_mask]
    assert (got - y).abs().mean().item() == pytest.approx(run.result["metrics"]["test"]["mae"], rel=1e-3)


def test_meshgraphnet_learns_what_winds_do_to_fields(train: Callable[..., Run]) -> None:
    run = train(
        "dataset=generated_weather", "dataset.points=200", "model=meshgraphnet", "model.hidden_channels=16",
        "trainer.max_epochs=40", "device=cpu",
    )  # fmt: skip
    dataset = load_weather(200)
    change = (dataset.x[:, 0] - dataset.y)[dataset.test_mask].square().mean().item()
    assert run.result["metrics"]["test"]["mse"] < 0.6 * change


def write_tables(folder: Path, columns: tuple[str, ...] = ("kind", "size"), graphs: int = 60) -> Path:
    """Rings, of whose edges one has a kind of its own in every second graph: it alone tells the classes."""
    folder.mkdir()
    nodes, edges = ["id,graph_id,f,label"], ["source,target," + ",".join(columns)]
    for graph in range(graphs):
        size = 4 + graph % 3
        for at in range(size):
            nodes.append(f"{graph}.{at},g{graph},1.{at},{'ab'[graph % 2]}")
            kind = "double" if graph % 2 and at == 0 else "single"
            row = {"kind": kind, "size": str(at), "other": "7"}
            edges.append(f"{graph}.{at},{graph}.{(at + 1) % size}," + ",".join(row[c] for c in columns))
    (folder / "nodes.csv").write_text("\n".join(nodes) + "\n")
    (folder / "edges.csv").write_text("\n".join(edges) + "\n")
    return folder


def test_columns_of_ones_own_edges(train: Callable[..., Run], tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "rings")
    given = ["dataset=custom", f"dataset.path={folder}", "dataset.edge_features=[kind,size]", "device=cpu"]
    run = train(*given, "model=gine", "trainer.max_epochs=30", "trainer.batch_size=8", "model.dropout=0")
    assert run.result["metrics"]["test"]["accuracy"] == 1.0  # one half without the kinds of edges
    other, found = write_tables(tmp_path / "other", ("other", "size", "kind")), []
    for data in ([], [str(other)]):
        status, said = predict(str(run.folder), *data, "--out", str(tmp_path / "out.npz"))
        assert status == 0, said
        with np.load(tmp_path / "out.npz") as arrays:
            found.append(arrays["probabilities"])
    assert (found[0].argmax(axis=1) == np.arange(60) % 2).mean() > 0.9
    np.testing.assert_allclose(found[1], found[0], atol=1e-5)
    lacking = write_tables(tmp_path / "lacking", ("kind",))
    status, said = predict(str(run.folder), str(lacking), "--out", str(tmp_path / "out.npz"))
    assert (status, "edge_features: there is no column 'size'" in said) == (2, True), said
    refused = train(*given, "model=gcn")
    said = "dataset.edge_features: got [kind,size], and gcn takes no features of edges; accepted: null, or "
    assert (refused.status, said + "model=gine" in refused.errors) == (2, True), refused.errors
    refused = train(*given[:2], "device=cpu", "model=gine")
    said = "train.py: model: gine needs features of edges, and rings has none; accepted: dataset.edge_feature"
    assert (refused.status, said in refused.errors) == (2, True), refused.errors


def test_nodes_of_a_graph_of_pyg_with_kinds_of_edges(train: Callable[..., Run], tmp_path: Path) -> None:
    """The class of a node is that of the one edge of its own kind; edges are repeated with other kinds."""
    generator = torch.Generator().manual_seed(0)
    nodes, kinds = 90, torch.arange(90) % 3
    source = torch.randint(nodes, (2 * nodes,), generator=generator)
    index = torch.stack([source, torch.arange(nodes).repeat(2)])
    index = torch.cat([index, index[:, :nodes]], dim=1)
    attr = torch.cat([kinds + 1, torch.full((2 * nodes,), 9)])
    graph = {"edge_index": index, "x": torch.ones(nodes, 2), "y": kinds, "edge_attr": attr}
    torch.save(graph, tmp_path / "graph.pt")
    given = ["dataset=custom", f"dataset.path={tmp_path / 'graph.pt'}", "device=cpu", "trainer.max_epochs=40"]
    run = train(*given, "model=gine", "model.num_layers=2", "optimizer.lr=0.02")
    assert run.result["metrics"]["test"]["accuracy"] > 0.9  # a third by chance
    status, said = predict(str(run.folder), "--out", str(tmp_path / "out.npz"))
    assert (status, "90 predictions" in said) == (0, True), said
    plain = train(*given, "model=gcn")
    assert plain.status == 0
    assert "train.py: model: gcn takes no features of edges; these do: gine" in plain.errors
