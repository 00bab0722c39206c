"""SequenceData and SequenceClassifier: batches, order, padding, training, resuming."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse import masks
from gnnsparse.data import SequenceDataset, SequencePart
from gnnsparse.train import (
    FitResult,
    OptimizerConfig,
    PreprocessConfig,
    SequenceClassifier,
    SequenceData,
    TrainerConfig,
    fit,
)
from models import Transformer
from tests.tasks import rows_of, toy_sequences

LENGTH = 12


def data_of(dataset: SequenceDataset | None = None, **options: Any) -> SequenceData:
    options = {"batch_size": 8, "preprocess": PreprocessConfig(cache=False), **options}
    return SequenceData(dataset or toy_sequences(), masks.window(LENGTH, 3), **options)


def train(
    epochs: int, folder: Path | None = None, resume: Path | None = None, device: str = "cpu", **config: Any
) -> tuple[FitResult, SequenceClassifier, SequenceData]:
    torch.manual_seed(0)
    data = data_of(device=device)
    model = Transformer(5, 16, 2, num_layers=1, heads=2, feed_forward=16, dropout=0.1)
    optimizer = OptimizerConfig(lr=0.01, weight_decay=0.0, decay="all")
    module = SequenceClassifier(model, data.dataset, optimizer, epochs * data.steps_per_epoch)
    settings = TrainerConfig(max_epochs=epochs, progress=False, **config)
    return fit(module, data, settings, folder=folder, resume=resume), module, data


def test_an_epoch_sees_every_sequence_once() -> None:
    data = data_of()
    assert (data.steps_per_epoch, data.fixed_batch) == (7, None)
    batches = list(itertools.islice(data.train_dataloader(), 14))
    assert [len(batch.y) for batch in batches] == 2 * [8, 8, 8, 8, 8, 8, 2]
    epochs = [torch.cat([batch.tokens for batch in batches[i : i + 7]]) for i in (0, 7)]
    for seen in epochs:
        assert sorted(map(tuple, seen.tolist())) == sorted(map(tuple, data.dataset.train.tokens.tolist()))
    assert not torch.equal(*epochs), "each epoch has its own order"
    again = next(iter(data_of().train_dataloader()))
    assert torch.equal(again.tokens, batches[0].tokens)
    other = next(iter(data_of(seed=1).train_dataloader()))
    assert not torch.equal(other.tokens, batches[0].tokens)


def test_batches(device: str) -> None:
    data = data_of(device=device)
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
    batch = next(iter(data_of(SequenceDataset("full", part, part, part, 2, 1)).train_dataloader()))
    assert batch.padding is None
    assert [data_of(preprocess=PreprocessConfig()).cache_hit for _ in range(2)] == [False, True]


def test_it_learns_and_patience_counts_epochs() -> None:
    """Better than half, the fraction of the larger class, by far."""
    result, _, data = train(12)
    assert result.epochs == 12
    assert 1 <= result.best_epoch <= 12
    assert result.metrics["train"]["accuracy"] > 0.85
    assert max(float((data.dataset.train.y == c).float().mean()) for c in (0, 1)) < 0.7
    result, _, _ = train(60, patience=2)
    assert result.best_epoch + 2 == result.epochs < 60


def test_losses_scores_and_what_is_logged(tmp_path: Path) -> None:
    """Each step is logged, with scores at the ends of epochs; loss and scores are by definition."""
    result, module, data = train(3, folder=tmp_path)
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


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_on_a_gpu(precision: str) -> None:
    torch.manual_seed(0)
    data = data_of(device="cuda", precision=precision)
    model = Transformer(5, 32, 2, num_layers=1, heads=2, feed_forward=16)
    steps = 10 * data.steps_per_epoch
    module = SequenceClassifier(model, data.dataset, OptimizerConfig(lr=0.01, decay="all"), steps)
    result = fit(module, data, TrainerConfig(max_epochs=10, progress=False))
    assert result.metrics["train"]["accuracy"] > 0.7


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"pattern: is 5 x 5; accepted: 12 x 12"):
        SequenceData(toy_sequences(), masks.window(5, 1))
    with pytest.raises(ValueError, match=r"batch_size: got 0"):
        data_of(batch_size=0)
    with pytest.raises(ValueError, match=r"seed: got -1"):
        data_of(seed=-1)
    data = data_of()
    with pytest.raises(ValueError, match=r"device: the trainer runs on meta, the data was put on cpu"):
        data.transfer_batch_to_device(next(data.chunks("val")), torch.device("meta"), 0)
