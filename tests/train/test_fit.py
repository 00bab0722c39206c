"""`gnnsparse.fit` with graphs of PyG, models of any kind and the data sets of every task."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.cli.main import main
from gnnsparse.data import dataset_of_pyg, load_custom
from gnnsparse.inference import LoadedModel, LoadError, load
from gnnsparse.inference.predict import predict_run
from gnnsparse.nn import GATConv, GCNConv, GINConv, SAGEConv
from gnnsparse.testing import assert_accurate
from gnnsparse.train import CheckpointError, OptimizerConfig, SamplerConfig, TrainerConfig
from gnnsparse.train import fit as train
from gnnsparse.train.tasks import TASKS, RunOptions
from models import GCN, MODELS
from tests.own_graphs import NODES, tensors, write_tables
from tests.tasks import edge_dataset, toy_sequences, toy_task
from tests.train.test_task_link import link_dataset
from tests.tu_files import graph_dataset

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch_geometric.nn as pyg
    from torch_geometric.data import Data


def data(**more: Any) -> Data:
    return Data(**{name: value for name, value in {**tensors(), **more}.items() if value is not None})


class Stack(torch.nn.Module):
    """Two layers with dropout, called with whatever the layers take."""

    def __init__(self, layer: Any, inputs: int = 3, outputs: int = 3, dropout: float = 0.2) -> None:
        super().__init__()
        self.first, self.last, self.dropout = layer(inputs, 16), layer(16, outputs), dropout

    def forward(self, x: torch.Tensor, adj: Any) -> torch.Tensor:
        hidden = torch.nn.functional.dropout(self.first(x, adj).relu(), self.dropout, self.training)
        return self.last(hidden, adj)


class WithWeights(Stack):
    """A model of PyG that takes weights of edges."""

    def forward(self, x: torch.Tensor, edge_index: Any, edge_weight: Any = None) -> torch.Tensor:
        return self.last(self.first(x, edge_index, edge_weight).relu(), edge_index, edge_weight)


@pytest.fixture
def task(device: str) -> dict[str, Any]:
    return {"device": device, "epochs": 60, "lr": 0.03}


def test_our_layers(task: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = Stack(GCNConv)
    result = gnnsparse.fit(model, data(), **task)
    assert result.metrics["test"]["accuracy"] > 0.7  # a third by chance
    assert [row["epoch"] for row in result.history] == list(range(1, 61))
    assert set(result.history[-1]) == {"epoch", "train/loss", "val/loss", "val/accuracy", "val/macro_f1"}
    assert result.history[-1]["train/loss"] < result.history[0]["train/loss"]
    scores = [row["val/accuracy"] for row in result.history]
    assert result.best_epoch == scores.index(max(scores)) + 1
    predicted = result.predict()
    dataset = result.dataset
    right = predicted.classes == dataset.y
    for part in ("train", "val", "test"):
        mask = getattr(dataset, f"{part}_mask")
        assert float(right[mask].float().mean()) == pytest.approx(result.metrics[part]["accuracy"])
    assert torch.equal(result.predict(data()).classes, predicted.classes)
    assert not dataset.train_mask[dataset.y < 0].any()


@pytest.mark.parametrize("seed", [0, None])
def test_a_run_is_repeated_bit_for_bit(seed: int | None) -> None:
    """And a seed leaves the random numbers of the program alone."""
    losses = []
    for _ in range(2):
        torch.manual_seed(0)
        model, before = Stack(GCNConv), torch.get_rng_state()
        result = gnnsparse.fit(model, data(), epochs=5, seed=seed, device="cpu")
        assert torch.equal(torch.get_rng_state(), before) == (seed == 0)
        losses.append([row["train/loss"] for row in result.history])
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    "make", [lambda: WithWeights(pyg.GCNConv), lambda: Stack(GCNConv, dropout=0.0)], ids=["pyg", "ours"]
)
@pytest.mark.parametrize("weights", ["none", (1, 3, 0.5)])
def test_the_same_training_as_by_hand(make: Any, weights: Any) -> None:
    """`fit` takes the steps that a loop of Adam takes: the loss curves are equal to rounding."""
    torch.manual_seed(0)
    model = make()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    options: dict[str, Any] = {"lr": 0.02, "weight_decay": 1e-3, "class_weights": weights, "device": "cpu"}
    result = gnnsparse.fit(model, data(), epochs=20, **options)
    curves = [torch.tensor([row["train/loss"] for row in result.history], dtype=torch.float64)]
    for dtype in (torch.float32, torch.float64):
        other = WithWeights(pyg.GCNConv)
        other.load_state_dict(start)
        other.to(dtype)
        graph, losses = data(), []
        mask = graph.train_mask & (graph.y >= 0)
        weight = None if weights == "none" else torch.tensor(weights, dtype=dtype)
        optimizer = torch.optim.Adam(other.parameters(), lr=0.02, weight_decay=1e-3)
        for _ in range(20):
            optimizer.zero_grad()
            out = other(graph.x.to(dtype), graph.edge_index, graph.edge_weight.to(dtype))
            loss = torch.nn.functional.cross_entropy(out[mask], graph.y[mask], weight)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        curves.append(torch.tensor(losses, dtype=torch.float64))
    assert_accurate(curves[0].float(), curves[1].float(), curves[2])


@pytest.mark.parametrize("name", ["pyg", "linear", "gat", "sage", "gin"])
def test_models_without_weights_of_edges(name: str, task: dict[str, Any]) -> None:
    """Sizes of PyG's model are found out, and so are the weights of an operand that our layers need."""
    models = {
        "pyg": lambda: pyg.GCN(-1, 16, 2, 3), "linear": lambda: torch.nn.Linear(3, 3),
        "gat": lambda: Stack(GATConv), "sage": lambda: Stack(SAGEConv),
        "gin": lambda: Stack(lambda i, o: GINConv(torch.nn.Linear(i, o))),
    }  # fmt: skip
    torch.manual_seed(0)
    model = models[name]()
    result = gnnsparse.fit(model, data(edge_weight=None), **task)
    assert result.epochs == 60
    assert name != "pyg" or result.metrics["test"]["accuracy"] > 0.7
    again, logits = result.predict(data(edge_weight=None)).logits, result.predict().logits
    # PyG adds messages by atomics on a GPU, in another order each time.
    tolerance = 1e-5 if name == "pyg" and task["device"] == "cuda" else 0.0
    torch.testing.assert_close(again, logits, rtol=tolerance, atol=tolerance)
    if name == "linear":
        assert torch.equal(logits, model(data().x.to(model.weight.device)).detach().cpu())


@pytest.mark.parametrize(
    ("metric", "scores"),
    [
        ("roc_auc", ["roc_auc", "accuracy", "macro_f1"]),
        ("micro_f1", ["micro_f1", "macro_f1"]),
        ("mae", ["mae", "mse", "r2"]),
    ],
)
def test_labels_and_numbers(metric: str, scores: list[str]) -> None:
    outputs = {"roc_auc": 2, "micro_f1": 4, "mae": 1}[metric]
    dataset = toy_task(150, outputs, "accuracy" if metric == "mae" else metric)
    if metric == "mae":
        dataset = replace(dataset, y=dataset.x[:, :1] * 2, metric=metric)
    model = Stack(GCNConv, inputs=8, outputs=outputs)
    first, last = (gnnsparse.fit(model, dataset, epochs=epochs, device="cpu") for epochs in (1, 60))
    for part in ("train", "val", "test"):
        assert list(last.metrics[part]) == scores
    before, after = (result.metrics["train"][metric] for result in (first, last))
    assert after < before if metric == "mae" else after > max(0.6, before)
    prediction = last.predict()
    assert (prediction.several_labels, prediction.regression) == (metric == "micro_f1", metric == "mae")


class OfData(torch.nn.Linear):
    """A model without layers of a package by which one could tell how it is called."""

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return super().forward(data)


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x, edge_index, batch: None,
        lambda self, x, edge_index, *, flag: None,
        lambda self: None,
    ],
    ids=["batch", "flag", "nothing"],
)
@pytest.mark.parametrize("base", [lambda: Stack(GCNConv), lambda: Stack(pyg.GCNConv), lambda: OfData(3, 3)])
def test_a_forward_that_takes_something_else(base: Any, forward: Any) -> None:
    model = base()
    model.__class__ = type("Mine", (type(model),), {"forward": forward})
    said = r"model: got Mine with forward\(.*\), which is called as forward\(x.*accepted: forward\(x, A\)"
    with pytest.raises(TypeError, match=said):
        gnnsparse.fit(model, data(), epochs=1, device="cpu")


def test_features_may_be_called_data_and_can_be_made_of_the_graph() -> None:
    """As the errors say that one gets without the argument `inputs`, and without features."""
    given: dict[str, Any] = {"epochs": 1, "device": "cpu"}
    with pytest.raises(TypeError, match=r"called with PyG's Data, raised .*accepted: inputs='none' if it"):
        gnnsparse.fit(OfData(3, 3), data(edge_weight=None), **given)
    assert gnnsparse.fit(OfData(3, 3), data(edge_weight=None), inputs="none", **given).epochs == 1
    made = dataset_of_pyg(data(x=None), features="degree")
    assert gnnsparse.fit(Stack(GCNConv, inputs=32), made, **given).epochs == 1


@pytest.mark.parametrize("layer", [GATConv, pyg.GCNConv])
def test_unused_weights_of_edges_are_reported(layer: Any) -> None:
    with pytest.warns(UserWarning, match="data: Stack does not use the weights of the edges"):
        gnnsparse.fit(Stack(layer), data(), epochs=1, device="cpu")


def mixed() -> torch.nn.Module:
    return Stack(lambda inputs, outputs: (GCNConv if inputs == 3 else SAGEConv)(inputs, outputs))


@pytest.mark.parametrize(
    ("model", "given", "options", "message"),
    [
        (lambda: 3, {}, {}, "model: got int; accepted: a torch.nn.Module"),
        (lambda: Stack(GCNConv, outputs=4), {}, {}, r"model: returns \(60, 4\); accepted: .* \(60, 3\)"),
        (mixed, {}, {}, r"values: layers need different ones \(GCNConv 'gcn', SAGEConv 'mean'\)"),
        (lambda: Stack(GCNConv), {}, {"inputs": "graph"}, "inputs: got 'graph'; accepted: auto, operand"),
        (lambda: Stack(GCNConv), {}, {"values": "rank"}, "values: got 'rank'; accepted: auto, gcn, mean"),
        (lambda: Stack(GCNConv), {}, {"decay": "first"}, "optimizer.decay: 'first' needs a model with"),
        (lambda: Stack(GCNConv), {}, {"seed": "a"}, "seed: got str"),
        (lambda: Stack(GCNConv), {"x": None}, {}, r"data.x: is missing; .*dataset_of_pyg\(data, features="),
        (lambda: Stack(GCNConv), {"y": None}, {}, "data.y: is missing; accepted: classes of the nodes"),
        (lambda: Stack(GCNConv), {"edge_index": None}, {}, "edge_index: is missing"),
        (lambda: Stack(GCNConv), {"y": torch.zeros(9)}, {}, r"y: has shape \(9,\); accepted: a row"),
        (lambda: Stack(GCNConv), {}, {"split": "soon"}, "split: got 'soon'; accepted"),
    ],
)  # fmt: skip
def test_wrong_arguments(model: Any, given: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        gnnsparse.fit(model(), data(**given), **{"epochs": 1, "device": "cpu", **options})


def test_other_data() -> None:
    for call, message in (
        (
            lambda: gnnsparse.fit(Stack(GCNConv), tensors()),
            "torch_geometric.data.Data or HeteroData, a list of Data, or a gnnsparse",
        ),
        (lambda: dataset_of_pyg(tensors()), "torch_geometric.data.Data with edge_index"),
    ):
        with pytest.raises(TypeError, match=f"data: got dict; accepted: a {message}"):
            call()
    with pytest.raises(ValueError, match=r"split: got 'random' for a NodeDataset, which has its split"):
        gnnsparse.fit(Stack(GCNConv), toy_task(), split="random")
    result = gnnsparse.fit(Stack(GCNConv), data(), epochs=1, device="cpu")
    with pytest.raises(ValueError, match=r"data.x: has shape \(60, 2\); accepted: \(nodes, 3\)"):
        result.predict(data(x=torch.zeros(60, 2)))
    with pytest.raises(TypeError, match="data: got a tensor"):
        result.predict(data().x)


def test_features_of_other_tables_are_made_as_in_the_training(tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "papers")
    result = gnnsparse.fit(Stack(GCNConv), load_custom(folder, standardize=True), epochs=1, device="cpu")
    logits = result.predict().logits
    again = load_custom(folder, transform=result.dataset.feature_transform)
    assert torch.equal(result.predict(again).logits, logits)
    for options in ({}, {"feature_columns": ["f1", "f0", "f2"], "standardize": True}):
        with pytest.raises(
            ValueError, match=r"^data: has features that are not made as in the training; acc"
        ):
            result.predict(load_custom(folder, **options))


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_prepare_takes_a_graph_or_an_adjacency_of_pyg(device: str) -> None:
    graph, x = data().to(device), torch.randn(NODES, 5, device=device)

    def product(*given: Any, **options: Any) -> torch.Tensor:
        return gnnsparse.prepare(*given, cache=False, **options) @ x

    for options in ({}, {"values": "gcn"}, {"values": "mean"}):
        weights = {"edge_weight" if options else "values": graph.edge_weight}
        want = product(graph.edge_index, num_nodes=NODES, **options, **weights)
        assert torch.equal(product(graph, **options), want)
    assert gnnsparse.prepare(data(edge_weight=None), cache=False).shape == (NODES, NODES)
    other = torch.arange(1.0, graph.num_edges + 1, device=device)
    want = product(graph.edge_index, num_nodes=NODES, values=other)
    assert torch.equal(product(graph, values=other), want)
    graph, x, size = data(), x.cpu(), (NODES, NODES)
    matrix = torch.sparse_coo_tensor(graph.edge_index.flip(0), graph.edge_weight, size).to_sparse_csr()
    assert torch.equal(product(Data(x=graph.x, adj_t=matrix)), product(graph))
    with pytest.raises(ValueError, match="graph: is a Data without edge_index; accepted: one with edge_i"):
        gnnsparse.prepare(Data(x=graph.x))
    with pytest.raises(ValueError, match="num_nodes: does not go with PyG's Data"):
        gnnsparse.prepare(graph, num_nodes=3)


# Loading what was trained


def same_predictions(result: gnnsparse.Fitted, loaded: LoadedModel, graph: Any) -> None:
    got, expected = loaded.predict(result.dataset.x, graph).logits, result.predict().logits
    assert torch.equal(got, expected)


def test_a_registered_model_is_loaded_by_its_folder(tmp_path: Path) -> None:
    model = GCN(3, hidden_channels=8, out_channels=3, num_layers=3, dropout=0.0)
    result = gnnsparse.fit(model, data(), epochs=5, folder=tmp_path / "run", device="cpu", seed=4)
    loaded = gnnsparse.load(tmp_path / "run", device="cpu")
    assert (loaded.recipe.registry, loaded.recipe.name) == ("models:MODELS", "gcn")
    assert loaded.recipe.options == {"hidden_channels": 8, "num_layers": 3, "dropout": 0.0}
    assert (loaded.recipe.values, loaded.recipe.run["seed"]) == ("gcn", 4)
    same_predictions(result, loaded, result.dataset.graph)
    with pytest.raises(ValueError, match="data: got nothing, and the checkpoint does not say what"):
        predict_run(tmp_path / "run")


def test_what_load_refuses(tmp_path: Path) -> None:
    changed = GCN(3, 8, 3)
    changed.convs[0] = GCNConv(3, 8, bias=False)
    folders = {"registered": changed, "own": Stack(GCNConv)}
    for name, model in folders.items():
        gnnsparse.fit(model, data(), epochs=2, folder=tmp_path / name, device="cpu")
    for name, given, error, message in (
        ("registered", {}, LoadError, r"model: is a GCN, which is in no registry; accepted: gnns"),
        ("own", {"model": Stack(GCNConv, inputs=4)}, LoadError, r"weight: is \(16, 3\); accepted: \(16, 4\)"),
        ("own", {"model": "gcn"}, TypeError, r"model: got str; accepted: a torch\.nn\.Module"),
        ("own", {"model": Stack(GCNConv), "registry": MODELS}, ValueError, "model: got one together with r"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            gnnsparse.load(tmp_path / name, device="cpu", **given)


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (lambda: Stack(SAGEConv), ("operand",)),
        (lambda: WithWeights(pyg.GCNConv), ("edge_index", "edge_weight")),
        (lambda: torch.nn.Linear(3, 3), ()),
    ],
    ids=["operand", "edges", "features"],
)
def test_another_model_is_given(make: Any, inputs: tuple[str, ...], tmp_path: Path) -> None:
    torch.manual_seed(0)
    graph = data() if inputs else data(edge_weight=None)
    result = gnnsparse.fit(make(), graph, epochs=5, folder=tmp_path / "run", device="cpu")
    with pytest.raises(SystemExit):
        main(["predict", str(tmp_path / "run"), "--out", str(tmp_path / "p.csv")])
    loaded = gnnsparse.load(tmp_path / "run", device="cpu", model=make())
    assert loaded.recipe.inputs == inputs
    out = loaded.predict(graph.x, loaded.prepare(graph)).logits
    assert_accurate(out, result.predict().logits, result.predict().logits.double())


def test_a_model_of_pyg_is_called_with_the_edges_as_they_are(tmp_path: Path) -> None:
    graph = data(edge_weight=None)
    graph.edge_index = torch.cat([graph.edge_index, graph.edge_index[:, :30]], dim=1)  # repeated edges
    result = gnnsparse.fit(Stack(pyg.SAGEConv), graph, epochs=5, folder=tmp_path / "run", device="cpu")
    loaded = gnnsparse.load(tmp_path / "run", device="cpu", model=Stack(pyg.SAGEConv))
    same_predictions(result, loaded, graph.edge_index)


def test_features_of_edges_are_missed(tmp_path: Path) -> None:
    class OfEdges(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = pyg.GATConv(3, 3, edge_dim=1)

        def forward(self, x: torch.Tensor, edge_index: Any, edge_attr: Any) -> torch.Tensor:
            return self.conv(x, edge_index, edge_attr)

    graph = data(edge_weight=None, edge_attr=torch.randn(tensors()["edge_index"].shape[1], 1))
    gnnsparse.fit(OfEdges(), graph, epochs=2, folder=tmp_path / "run", device="cpu")
    loaded = gnnsparse.load(tmp_path / "run", device="cpu", model=OfEdges())
    with pytest.raises(ValueError, match=r"data\.edge_attr: is missing, and the model was trained with it"):
        loaded.predict(graph.x, graph.edge_index)


# The data sets of every task: it takes the steps that train.py takes.


PATTERN = {"name": "window", "radius": 3}
SAMPLER = SamplerConfig("neighbor", fanouts=(5, 5), batch_size=16)
CASES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "edge": (edge_dataset, "gcn", {}),
    "graph": (graph_dataset, "gin", {}),
    "link": (link_dataset, "gcn", {}),
    "sequence": (lambda: toy_sequences(sizes=(30, 10, 10)), "transformer", {"pattern": PATTERN}),
    "node": (lambda: toy_task(150), "gcn", {"sampler": SAMPLER}),
}


def model_for(task: str, dataset: Any) -> torch.nn.Module:
    torch.manual_seed(1)
    sizes = TASKS[task].model_sizes(dataset)
    entry = MODELS[CASES[task][1]].for_task(task)
    model: torch.nn.Module = entry.build(sizes[0], hidden_channels=8, out_channels=sizes[1], num_layers=2)
    return model


@pytest.mark.parametrize("name", CASES)
def test_every_task_and_resumed_as_uninterrupted(name: str, tmp_path: Path) -> None:
    """With the batches, the samples and the dropped numbers of a run that was not interrupted."""
    dataset, task, options = CASES[name][0](), TASKS[name], CASES[name][2]
    size = 100 if name == "link" else 16

    def run(epochs: int, folder: str, resume: Path | None = None) -> tuple[Any, dict[str, torch.Tensor]]:
        model = model_for(name, dataset)
        result = gnnsparse.fit(
            model, dataset, epochs=epochs, batch_size=size, device="cpu", seed=5, folder=tmp_path / folder,
            resume=resume, **options,
        )  # fmt: skip
        return result, model.state_dict()

    first, of_first = run(2, "first")
    loaded = load(tmp_path / "first", device="cpu")
    assert loaded.recipe.task == name
    torch.testing.assert_close(loaded.module.state_dict(), of_first, rtol=0.0, atol=0.0)
    settings = RunOptions(
        torch.device("cpu"),
        seed=5,
        values=loaded.recipe.values,
        trainer=TrainerConfig(max_epochs=2, batch_size=size, progress=False),
        optimizer=OptimizerConfig(decay="all"),
        sampler=options.get("sampler", SamplerConfig()),
        groups={"pattern": PATTERN} if name == "sequence" else {},
    )
    other = model_for(name, dataset)
    torch.manual_seed(5)
    data = task.make_data(dataset, settings)
    expected = train(task.make_module(other, data, settings), data, settings.trainer)
    assert first.metrics == expected.metrics
    torch.testing.assert_close(of_first, other.state_dict(), rtol=0.0, atol=0.0)
    whole, weights = run(4, "whole")
    last = tmp_path / "first" / "checkpoints" / "last.ckpt"
    rest, resumed = run(4, "second", last)
    assert (rest.epochs, rest.best_epoch, rest.metrics) == (4, whole.best_epoch, whole.metrics)
    assert [row["epoch"] for row in whole.history] == [1.0, 2.0, 3.0, 4.0]
    assert (first.history, rest.history) == (whole.history[:2], whole.history[2:])
    torch.testing.assert_close(resumed, weights, rtol=0.0, atol=0.0)
    with pytest.raises(CheckpointError, match=r"trainer.max_epochs: got 1; accepted: at least 2"):
        run(1, "third", last)
    if name in ("node", "graph", "edge"):
        shapes = {"node": (150, 3), "graph": (40, 2), "edge": (400, 3)}
        assert first.predict().logits.shape == shapes[name]
    else:
        with pytest.raises(ValueError, match=r"are no nodes, edges or graphs; accepted: gnnsparse\.load"):
            first.predict()


def test_a_row_of_the_history_is_an_epoch() -> None:
    dataset = toy_sequences()
    result = gnnsparse.fit(
        model_for("sequence", dataset), dataset, epochs=3, val_every=2, batch_size=20,
        device="cpu", pattern=PATTERN,
    )  # fmt: skip
    assert ["val/loss" in row for row in result.history] == [False, True, True]
    assert all(row["train/loss"] > 0 for row in result.history)


def test_what_goes_with_nodes_or_the_whole_graph_alone() -> None:
    for name, options, message in (
        ("graph", {"inputs": "none"}, "inputs: got 'none' for graphs; accepted: auto, operand, edge"),
        ("sequence", {}, "pattern: got nothing; accepted: "),
        ("graph", {"split": "random"}, "split: got 'random' for a GraphDataset, which has its split"),
        ("graph", {"class_weights": [1]}, r"trainer.class_weights: got \[1\]; accepted: \d numbers, one a"),
        ("link", {"class_weights": [1]}, "class_weights: goes with nodes, graphs and edges; accepted for a"),
    ):
        dataset = CASES[name][0]()
        with pytest.raises(ValueError, match=message):
            gnnsparse.fit(model_for(name, dataset), dataset, device="cpu", **options)
    with pytest.raises(ValueError, match="sampler: Linear takes the whole graph alone; accepted: none"):
        gnnsparse.fit(torch.nn.Linear(8, 3), toy_task().without_weights(), sampler=SAMPLER, device="cpu")
