"""The tasks "graph" and "sequence": batches, order, padding, models, training, scores, prediction."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse import masks
from gnnsparse.data import GraphDataset, SequenceDataset, SequencePart
from gnnsparse.inference import load
from gnnsparse.train import (
    FitResult,
    OptimizerConfig,
    PreprocessConfig,
    SequenceClassifier,
    SequenceData,
    TrainerConfig,
    fit,
)
from gnnsparse.train.tasks import TASKS, RunOptions
from gnnsparse.train.tasks.graph import GraphData, GraphPredictor
from gnnsparse.train.trained import ModelRecipe
from models import MODELS, Transformer
from tests.helpers import PRECISIONS
from tests.tasks import rows_of, toy_sequences
from tests.train.test_task_link import data_of as links_of
from tests.tu_files import graph_dataset

GRAPH_MODELS = [n for n, of in MODELS.items() if "graph" in of.tasks and of.edge_features == "none"]

LENGTH = 12
PLAIN = OptimizerConfig(lr=0.01, weight_decay=0.0, decay="all")


def data_of(dataset: GraphDataset | None = None, **options: Any) -> GraphData:
    options = {"batch_size": 8, "preprocess": PreprocessConfig(cache=False), **options}
    return GraphData(dataset or graph_dataset(), **options)


def sequences_of(dataset: SequenceDataset | None = None, **options: Any) -> SequenceData:
    options = {"batch_size": 8, "preprocess": PreprocessConfig(cache=False), **options}
    return SequenceData(dataset or toy_sequences(), masks.window(LENGTH, 3), **options)


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


@pytest.mark.parametrize(
    ("made", "of_batch", "all_items", "sizes"),
    [
        (data_of, lambda b: b.graph_ptr.diff(), lambda d: d.graph_ptr.diff()[d.parts["train"]], [8, 8, 4]),
        (sequences_of, lambda b: b.tokens, lambda d: d.train.tokens, [8] * 6 + [2]),
        (links_of, lambda b: b.positive, lambda d: d.train_edges, [200, 200, 100]),
    ],
    ids=["graph", "sequence", "link"],
)
def test_an_epoch_sees_every_item_once_in_an_order_of_its_own(
    made: Any, of_batch: Any, all_items: Any, sizes: list[int]
) -> None:
    data = made()
    assert (data.train_items, data.steps_per_epoch, data.fixed_batch) == (sum(sizes), len(sizes), None)
    batches = [of_batch(batch) for batch in itertools.islice(data.train_dataloader(), 2 * len(sizes))]
    assert [len(batch) for batch in batches] == 2 * sizes
    epochs = [torch.cat(batches[: len(sizes)]), torch.cat(batches[len(sizes) :])]
    for seen in epochs:
        assert sorted(seen.tolist()) == sorted(all_items(data.dataset).tolist())
    assert not torch.equal(*epochs)
    again, other = (of_batch(next(iter(made(**seed).train_dataloader()))) for seed in ({}, {"seed": 1}))
    assert torch.equal(again, batches[0])
    assert not torch.equal(other, batches[0])


@pytest.mark.parametrize("most", [1, 400, 10**6])
def test_batches_do_not_depend_on_how_many_are_made_at_once(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_of()
    order = torch.randperm(data.train_items).split(6)
    single = [data.gather("train", ids) for ids in order]
    monkeypatch.setattr("gnnsparse.train.tasks.graph._PACKED_ELEMENTS", most)
    packed = [len(batches) for batches in data._packed([data.parts["train"][ids] for ids in order])]
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


def test_gin_is_the_sum_of_its_readouts() -> None:
    """Equation 4.2 of Xu et al. (2019), computed with dense matrices."""
    torch.manual_seed(2)
    batch = data_of(graph_dataset(8)).gather("train", torch.arange(4))
    model = MODELS["gin"].for_task("graph").build(3, hidden_channels=8, out_channels=2, num_layers=3).eval()
    found = model(batch.x, batch.adj, batch.graph_ptr).double()
    model.double()
    adjacency, x = batch.adj.to_dense().double(), batch.x.double()
    pool = torch.repeat_interleave(torch.arange(4), batch.graph_ptr.diff())
    pool = F.one_hot(pool).double().T
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
    assert torch.equal(arrays["graphs"], torch.arange(data.dataset.num_graphs))
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
    data, run = data_of(replace(dataset, y=y)), RunOptions(torch.device("cpu"))
    with pytest.raises(ValueError, match="val_mask: has no graph of which a target is known"):
        TASKS["graph"].make_module(torch.nn.Linear(3, 2), data, run)


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


# Sequences.


def train_sequences(
    epochs: int, folder: Path | None = None, given: dict[str, str] | None = None, **config: Any
) -> tuple[FitResult, SequenceClassifier, SequenceData]:
    data, model = (
        sequences_of(**(given or {})),
        Transformer(5, 16, 2, num_layers=1, heads=2, feed_forward=16, dropout=0.1),
    )
    module = SequenceClassifier(model, data.dataset, PLAIN, epochs * data.steps_per_epoch)
    settings = TrainerConfig(max_epochs=epochs, progress=False, **config)
    return fit(module, data, settings, folder=folder), module, data


def test_batches_of_sequences(device: str) -> None:
    data = sequences_of(device=device)
    batch = next(iter(data.train_dataloader()))
    assert batch.tokens.device.type == device
    assert batch.padding is not None
    assert torch.equal(batch.padding, batch.tokens == 0)
    labels = dict(zip(map(tuple, data.dataset.train.tokens.tolist()), data.dataset.train.y, strict=True))
    assert [int(labels[tuple(t)]) for t in batch.tokens.tolist()] == batch.y.tolist()
    chunks = list(data.chunks("val"))
    assert torch.equal(torch.cat([c.tokens for c in chunks]).cpu(), data.dataset.val.tokens)
    assert torch.equal(torch.cat([c.y for c in chunks]).cpu(), data.dataset.val.y)


def test_no_padding_is_none_and_the_pattern_is_prepared_once(own_cache: Path) -> None:
    part = SequencePart(torch.ones(4, LENGTH, dtype=torch.int16), torch.zeros(4, dtype=torch.int64))
    batch = next(iter(sequences_of(SequenceDataset("full", part, part, part, 2, 1)).train_dataloader()))
    assert batch.padding is None
    assert [sequences_of(preprocess=PreprocessConfig()).cache_hit for _ in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("device", "precision"),
    [("cpu", "fp32"), *(pytest.param("cuda", precision, marks=pytest.mark.gpu) for precision in PRECISIONS)],
)
def test_it_learns_and_patience_counts_epochs(device: str, precision: str) -> None:
    """Better than half, the fraction of the larger class, by far."""
    given = {"device": device, "precision": precision}
    result, _, data = train_sequences(12, given=given)
    assert result.epochs == 12
    assert 1 <= result.best_epoch <= 12
    assert result.metrics["train"]["accuracy"] > (0.85 if device == "cpu" else 0.7)
    assert max(float((data.dataset.train.y == c).float().mean()) for c in (0, 1)) < 0.7
    result, _, _ = train_sequences(60, given=given, patience=2)
    assert result.best_epoch + 2 == result.epochs < 60


def test_losses_scores_and_what_is_logged(tmp_path: Path) -> None:
    """Each step is logged, with scores at the ends of epochs; loss and scores are by definition."""
    result, module, data = train_sequences(3, folder=tmp_path)
    rows = rows_of(tmp_path)
    assert [row["epoch"] for row in rows] == ["1"] * 7 + ["2"] * 7 + ["3"] * 7
    assert [i for i, row in enumerate(rows, 1) if row["val/accuracy"]] == [7, 14, 21]
    accuracies = [float(row["val/accuracy"]) for row in rows if row["val/accuracy"]]
    assert result.best_epoch == 1 + accuracies.index(max(accuracies))
    assert result.metrics["val"]["accuracy"] == max(accuracies)
    model, batch, val = module.model.eval(), next(iter(data.train_dataloader())), data.dataset.val
    with torch.no_grad():
        logits = model(val.tokens, batch.adj, val.tokens == 0)
        want = F.cross_entropy(model(batch.tokens, batch.adj, batch.padding), batch.y)
        torch.testing.assert_close(module.training_step(batch), want)
        scores = module.validation_step(batch)
    right = logits.argmax(dim=1) == val.y
    assert float(scores["accuracy"]) == float(right.float().mean()) == max(accuracies)
    torch.testing.assert_close(scores["loss"], F.cross_entropy(logits, val.y))


def test_what_sequences_refuse() -> None:
    with pytest.raises(ValueError, match=r"pattern: is 5 x 5; accepted: 12 x 12"):
        SequenceData(toy_sequences(), masks.window(5, 1))
    with pytest.raises(ValueError, match=r"batch_size: got 0"):
        sequences_of(batch_size=0)
    with pytest.raises(ValueError, match=r"seed: got -1"):
        sequences_of(seed=-1)
    data = sequences_of()
    with pytest.raises(ValueError, match=r"device: the trainer runs on meta, the data was put on cpu"):
        data.transfer_batch_to_device(next(data.chunks("val")), torch.device("meta"), 0)
