"""The task "graph": batches, models, training, scores, prediction."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnsparse.data import GraphDataset
from gnnsparse.inference import load
from gnnsparse.train import OptimizerConfig, PreprocessConfig, TrainerConfig, fit
from gnnsparse.train.tasks import TASKS, RunOptions
from gnnsparse.train.tasks.graph import GraphData, GraphPredictor
from gnnsparse.train.trained import ModelRecipe
from models import MODELS
from tests.tu_files import graph_dataset

GRAPH_MODELS = [name for name, model in MODELS.items() if "graph" in model.tasks]

PLAIN = OptimizerConfig(lr=0.01, weight_decay=0.0, decay="all")


def data_of(dataset: GraphDataset | None = None, **options: Any) -> GraphData:
    options = {"batch_size": 8, "preprocess": PreprocessConfig(cache=False), **options}
    return GraphData(dataset or graph_dataset(), **options)


def train(
    metric: str = "accuracy", epochs: int = 30, model: str = "gin", device: str = "cpu", **more: Any
) -> Any:
    torch.manual_seed(0)
    dataset = graph_dataset(metric=metric)
    dataset = replace(dataset, x=torch.ones(dataset.num_nodes, 3))  # their structure is what tells them apart
    entry = MODELS[model].for_task("graph")
    data = data_of(dataset, values=entry.values, device=device)
    sizes = {"hidden_channels": 16, "out_channels": dataset.num_classes}
    options = {"dropout": 0.0, "norm": "batch" if metric == "accuracy" else "none"}
    built = entry.build(dataset.num_features, **sizes, **options)
    module = GraphPredictor(built, dataset, PLAIN, epochs * data.steps_per_epoch)
    config = TrainerConfig(max_epochs=epochs, progress=False, logger="none")
    return fit(module, data, config, **more), module, data


def test_an_epoch_sees_every_graph_once() -> None:
    data = data_of()
    graphs = data.dataset.parts["train"]
    assert (data.train_items, data.steps_per_epoch) == (20, 3)
    batches = list(itertools.islice(data.train_dataloader(), 6))
    assert [len(batch.y) for batch in batches] == 2 * [8, 8, 4]
    sizes = data.dataset.graph_ptr.diff()[graphs].sort().values
    for epoch in (batches[:3], batches[3:]):
        seen = torch.cat([batch.graph_ptr.diff() for batch in epoch])
        assert torch.equal(seen.sort().values, sizes)
    assert not torch.equal(batches[0].x, batches[3].x), "each epoch has its own order"
    assert torch.equal(next(iter(data_of().train_dataloader())).x, batches[0].x)
    assert not torch.equal(next(iter(data_of(seed=1).train_dataloader())).x, batches[0].x)


@pytest.mark.parametrize("most", [1, 400, 10**6])
def test_batches_do_not_depend_on_how_many_are_made_at_once(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_of()
    order = torch.randperm(data.train_items).split(6)
    single = [data.gather("train", ids) for ids in order]
    monkeypatch.setattr("gnnsparse.train.tasks.graph._PACKED_ELEMENTS", most)
    packed = [len(batches) for batches in data._packed("train", order)]
    assert (packed == [1] * len(order)) == (most == 1)
    assert (packed == [len(order)]) == (most == 10**6)
    for batch, one in zip(data.gather_all("train", order), single, strict=True):
        for name in ("x", "graph_ptr", "y"):
            assert torch.equal(getattr(batch, name), getattr(one, name))
        assert torch.equal(batch.adj.to_dense(), one.adj.to_dense())


@pytest.mark.parametrize("name", GRAPH_MODELS)
def test_outputs_of_a_batch_are_those_of_its_graphs(device: str, name: str) -> None:
    entry = MODELS[name].for_task("graph")
    data = data_of(graph_dataset(12), values=entry.values, device=device)
    torch.manual_seed(1)
    model = entry.build(3, hidden_channels=8, out_channels=4).to(device).eval()

    def outputs(*graphs: int) -> torch.Tensor:
        batch = data.gather("train", torch.tensor(graphs))
        assert (len(batch.graph_ptr), int(batch.graph_ptr[-1])) == (len(graphs) + 1, batch.x.shape[0])
        return model(batch.x, batch.adj, batch.graph_ptr)

    torch.testing.assert_close(outputs(3, 0, 5), torch.cat([outputs(3), outputs(0), outputs(5)]))
    assert outputs(3, 0, 5).shape == (3, 4)
    with pytest.raises(ValueError, match="pool: got 'median'; accepted: sum, mean, max"):
        entry.build(3, hidden_channels=8, out_channels=2, pool="median")


def test_gin_is_the_sum_of_its_readouts() -> None:
    """Equation 4.2 of Xu et al. (2019), computed with dense matrices."""
    torch.manual_seed(2)
    batch = data_of(graph_dataset(8)).gather("train", torch.arange(4))
    model = MODELS["gin"].for_task("graph").build(3, hidden_channels=8, out_channels=2, num_layers=3).eval()
    found = model(batch.x, batch.adj, batch.graph_ptr).double()
    model.double()
    adjacency, x = batch.adj.to_dense().double(), batch.x.double()
    pool = torch.repeat_interleave(torch.arange(4), batch.graph_ptr.diff())
    pool = torch.nn.functional.one_hot(pool).double().T
    want = model.readouts[0](pool @ x)
    for conv, readout in zip(model.convs, model.readouts[1:], strict=True):
        x = conv.nn(x + adjacency @ x)
        want = want + readout(pool @ x)
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", ["gin", "gcn"])
def test_it_learns_rings_and_stars_and_can_be_loaded(device: str, model: str, tmp_path: Path) -> None:
    options = {"hidden_channels": 16, "dropout": 0.0, "norm": "batch"}
    values = MODELS[model].for_task("graph").values
    recipe = ModelRecipe("models:MODELS", model, options, 3, 2, task="graph", values=values)
    result, module, data = train(model=model, device=device, folder=tmp_path / "run", recipe=recipe)
    assert result.metrics["test"]["accuracy"] >= 0.9
    assert set(result.metrics) == {"train", "val", "test"}
    confusion = module.confusion
    assert int(confusion.sum()) == data.dataset.parts["test"].numel()
    assert float(confusion.trace() / confusion.sum()) == pytest.approx(result.metrics["test"]["accuracy"])
    loaded = load(tmp_path / "run", device=device)
    arrays, scores = TASKS["graph"].predict(loaded, data)
    assert scores["test"]["accuracy"] == pytest.approx(result.metrics["test"]["accuracy"])
    assert torch.equal(arrays["graphs"], data.dataset.parts["test"])
    assert arrays["classes"].shape == arrays["graphs"].shape
    first = int(data.dataset.graph_ptr[1])
    whole = data.dataset.graph.to_dense()[:first, :first].to_sparse()
    assert loaded.predict(data.dataset.x[:first], whole).logits.shape == (1, 2)
    with pytest.raises(ValueError, match="padding: goes with models of sequences"):
        loaded.predict(data.dataset.x[:first], whole, padding=torch.ones(1, 1, dtype=torch.bool))


@pytest.mark.parametrize(
    ("metric", "bound", "better"), [("mae", 0.12, -1), ("r2", 0.5, 1), ("mean_roc_auc", 0.9, 1)]
)
def test_numbers_and_labels(metric: str, bound: float, better: int) -> None:
    result, module, _ = train(metric=metric, epochs=40)
    score = result.metrics["test"][metric]
    assert better * score >= better * bound
    assert module.smaller_is_better == (better < 0)
    assert module.confusion is None


def test_graphs_without_a_target_are_left_out() -> None:
    dataset = graph_dataset(16)
    y = dataset.y.clone()
    known = dataset.parts["train"][:2]
    y[dataset.parts["train"][2:]] = -1
    data = data_of(replace(dataset, y=y))
    assert data.train_items == 2
    assert data.gather("train", torch.arange(2)).y.tolist() == dataset.y[known].tolist()
    y[dataset.parts["val"]] = -1
    with pytest.raises(ValueError, match="val_mask: has no graph of which a target is known"):
        data_of(replace(dataset, y=y))


@pytest.mark.parametrize(
    ("option", "value", "accepted"), [("reorder", "rcm", "none"), ("format", "cvse", "auto, csr")]
)
def test_what_can_not_be_gathered(option: str, value: str, accepted: str) -> None:
    preprocess = PreprocessConfig(**{option: value})
    message = f"preprocess.{option}: got {value!r} for batches of graphs; accepted: {accepted}"
    for call in (
        lambda: data_of(preprocess=preprocess),
        lambda: TASKS["graph"].check(RunOptions(torch.device("cpu"), preprocess=preprocess)),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            call()


def test_a_model_for_several_tasks() -> None:
    assert MODELS["gin"].tasks == ("node", "graph")
    assert MODELS["gin"].for_task("node") is MODELS["gin"]
    assert "pool" in MODELS["gcn"].for_task("graph").options
    assert "pool" not in MODELS["gcn"].options
    with pytest.raises(ValueError, match="task: got 'sequence'; accepted: node, graph"):
        MODELS["gin"].for_task("sequence")
