"""fit: the same training as a loop by hand, resuming, stopping, signals, what it writes and keeps."""

from __future__ import annotations

import inspect
import itertools
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import create_autospec

import lightning.pytorch as pl
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.data import NodeDataset
from gnnsparse.testing import assert_accurate
from gnnsparse.train import (
    FitResult,
    GraphBatch,
    NodeClassifier,
    StopRequest,
    TrainingInterrupted,
)
from gnnsparse.train.callbacks import BestEpoch, Checkpoints
from gnnsparse.train.settings import TrainerConfig
from models import GCN
from tests.helpers import PRECISIONS, reference_layers
from tests.tasks import classifier, prepared, rows_of, toy_task, train_toy


def train(
    task: NodeDataset, epochs: int = 30, folder: Path | None = None, resume: Path | None = None, **config: Any
) -> tuple[FitResult, NodeClassifier]:
    given = {"resume": resume, "identity": {"task": task.name}}
    return train_toy(folder, task, epochs, given=given, **config)


def by_hand(
    task: NodeDataset, batch: GraphBatch, epochs: int, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """Kipf and Welling's training: losses, validation and test accuracies of all epochs."""
    torch.manual_seed(0)
    model, x = GCN(task.num_features, 16, task.num_classes).to(dtype), batch.x.to(dtype)
    groups = [
        {"params": model.convs[0].parameters(), "weight_decay": 5e-4},
        {"params": model.convs[1].parameters(), "weight_decay": 0.0},
    ]
    optimizer = torch.optim.Adam(groups, lr=0.01)
    found: dict[str, Any] = {"loss": [], "val": [], "test": []}
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, batch.adj)[task.train_mask], task.y[task.train_mask])
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            hits = model(x, batch.adj).argmax(dim=1) == task.y
        found["loss"].append(loss.item())
        found["val"].append(float(hits[task.val_mask].float().mean()))
        found["test"].append(float(hits[task.test_mask].float().mean()))
    return found


PATIENT = {"patience": 4, "val_every": 2}


def test_it_trains_as_a_loop_by_hand_does(tmp_path: Path) -> None:
    task = toy_task()
    result, module = train(task, 40, tmp_path, log_every=7)
    batch = prepared(task).batch
    want = by_hand(task, batch, 40)
    with reference_layers():
        exact = by_hand(task, batch, 40, torch.float64)["loss"]
    rows = rows_of(tmp_path)
    assert [int(row["step"]) for row in rows] == list(range(1, 41))
    losses = torch.tensor([float(row["train/loss"]) for row in rows])
    assert_accurate(losses, torch.tensor(want["loss"]), torch.tensor(exact, dtype=torch.float64))
    assert [float(row["val/accuracy"]) for row in rows] == want["val"]
    best = max(range(40), key=lambda epoch: want["val"][epoch])  # the first one of equals
    assert result.best_epoch == best + 1
    assert result.metrics["val"]["accuracy"] == want["val"][best]
    assert result.metrics["test"]["accuracy"] == want["test"][best]
    assert set(result.metrics) == {"train", "val", "test"}
    assert len(set(want["val"])) > 5  # there was something to choose from
    assert result.epochs == 40
    assert 0 < result.epoch_milliseconds * 40 < 1e3 * result.fit_seconds * 3
    assert result.peak_memory_bytes > 10**7
    assert result.parameters == 8 * 16 + 16 + 16 * 3 + 3
    # The module holds the best weights, and best.ckpt does too.
    kept = torch.load(tmp_path / "checkpoints" / "best.ckpt", weights_only=True)
    assert kept["epoch"] == result.best_epoch
    assert kept["score"] == result.metrics["val"]["accuracy"]
    torch.testing.assert_close(kept["state_dict"], dict(module.model.state_dict()), rtol=0.0, atol=0.0)


def test_resumed_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a checkpoint that was written in the middle, where these are asked for."""
    task = toy_task()
    whole, module = train(task, 24, tmp_path / "whole")
    step, write, written = NodeClassifier.training_step, Checkpoints._write, []

    def crash(self: NodeClassifier, batch: GraphBatch) -> torch.Tensor:
        if self.trainer.global_step == 13:
            raise RuntimeError("power cut")
        return step(self, batch)

    def note(self: Checkpoints, trainer: pl.Trainer, module: NodeClassifier) -> None:
        written.append(trainer.global_step)
        write(self, trainer, module)

    monkeypatch.setattr(Checkpoints, "_write", note)
    with monkeypatch.context() as patch:
        patch.setattr(NodeClassifier, "training_step", crash)
        with pytest.raises(RuntimeError, match="power cut"):
            train(task, 24, tmp_path / "crashed", checkpoint_seconds=0.0)
    assert written == list(range(1, 14))
    assert len(rows_of(tmp_path / "crashed")) == 13
    last = tmp_path / "crashed" / "checkpoints" / "last.ckpt"
    result, resumed = train(task, 24, tmp_path / "resumed", last)
    assert written[13:] == [24], "otherwise they are rare"
    assert (result.epochs, result.best_epoch, result.metrics) == (24, whole.best_epoch, whole.metrics)
    torch.testing.assert_close(resumed.state_dict(), module.state_dict(), rtol=0.0, atol=0.0)


@pytest.mark.parametrize(
    ("config", "has_best"),
    [({}, True), ({"val_every": 5}, False), (PATIENT, True), (PATIENT, False)],
    ids=str,
)
def test_resumed_after_the_last_epoch(
    config: dict[str, Any], has_best: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ended before its scores is scored, and not trained; that is no different from one run."""
    task = toy_task()
    whole, module = train(task, 40, tmp_path / "whole", **config)

    def crash(*_: Any) -> None:
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(NodeClassifier, "test_step", crash)
        with pytest.raises(RuntimeError, match="power cut"):
            train(task, 40, tmp_path / "run", **config)
    last, best = (tmp_path / "run" / "checkpoints" / name for name in ("last.ckpt", "best.ckpt"))
    if not has_best:  # the kill came before it was written
        best.unlink()
    before = last.read_bytes(), rows_of(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(NodeClassifier, "training_step", crash)
        result, again = train(task, 40, tmp_path / "run", last, **config)
    assert (result.epochs, result.best_epoch, result.metrics) == (
        whole.epochs, whole.best_epoch, whole.metrics,
    )  # fmt: skip
    assert (result.epochs < 40) == ("patience" in config)
    assert result.epoch_milliseconds is None
    assert (last.read_bytes(), rows_of(tmp_path / "run")) == before
    written, other = (
        torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True)
        for folder in (tmp_path / "run", tmp_path / "whole")
    )
    assert written["gnnsparse_sum"] == other["gnnsparse_sum"]
    torch.testing.assert_close(again.state_dict(), module.state_dict(), rtol=0.0, atol=0.0)


@pytest.mark.parametrize(
    ("every", "epochs", "want"), [(4, 12, [4, 8, 12]), (5, 12, [5, 10, 12]), (50, 7, [7])]
)
def test_validation_every_few_epochs_and_after_the_last(
    tmp_path: Path, every: int, epochs: int, want: list[int]
) -> None:
    result, _ = train(toy_task(), epochs, tmp_path, val_every=every)
    rows = rows_of(tmp_path)
    assert [int(row["step"]) for row in rows if row["val/accuracy"]] == want
    assert len(rows) == epochs
    assert result.best_epoch in want


def test_the_first_of_equal_epochs_is_the_best_and_without_a_score_the_last_weights_stay() -> None:
    nan = float("nan")
    for scores, epoch, weight in (([0.25, 0.75, 0.5, 0.75, nan, 0.625], 2, 2), ([nan, nan], 0, 2)):
        module = type("Module", (), {"model": torch.nn.Linear(1, 1)})()
        best = BestEpoch("accuracy", None)
        for number, score in enumerate(scores, start=1):
            torch.nn.init.constant_(module.model.weight, number)
            best.update({"accuracy": torch.tensor(score)}, number, module)
        best.restore(module)
        assert (best.epoch, module.model.weight.item()) == (epoch, weight)
        assert best.score == (0.75 if epoch else -torch.inf)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_precisions_on_the_cpu(precision: str, tmp_path: Path) -> None:
    """Sparse products round: the losses are as near those of float64 as plain products in the precision."""
    task, curves = toy_task(), {}
    for name in {"fp32", precision}:
        train_toy(tmp_path / name, task, 10, data={"precision": name})
        curves[name] = torch.tensor([float(row["train/loss"]) for row in rows_of(tmp_path / name)])
    batch = prepared(task, precision=precision).batch
    with reference_layers():
        plain, exact = (
            torch.tensor(by_hand(task, batch, 10, dtype)["loss"], dtype=dtype)
            for dtype in (torch.float32, torch.float64)
        )
    assert_accurate(curves[precision], plain, exact)
    assert torch.equal(curves["fp32"], curves[precision]) == (precision == "fp32")
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("norm", ["none", "batch"])
def test_precisions_on_a_gpu(precision: str, norm: str) -> None:
    """Learns as the CPU does, and puts torch's settings back."""
    task, scores = toy_task(nodes=600), {}
    for device in ("cpu", "cuda"):
        module = classifier(task, 80, options={"norm": norm})
        data = {"precision": precision, "device": device}
        result, _ = train_toy(task=task, epochs=80, module=module, data=data)
        scores[device] = result.metrics["test"]["accuracy"]
        assert result.epoch_milliseconds > 0
        assert result.peak_memory_bytes > 0
    assert abs(scores["cuda"] - scores["cpu"]) < 0.06
    assert torch.get_float32_matmul_precision() == "highest"


def test_the_cpu_beside_a_gpu_is_no_reason_to_warn(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lightning.pytorch.trainer.setup.CUDAAccelerator.is_available", lambda: True)
    train(toy_task(), 2)
    assert capfd.readouterr() == ("", "")


def test_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for logger, files in (("none", 0), ("csv", 1), ("tensorboard", 2), ("both", 3)):
        train(toy_task(), 3, tmp_path / logger, logger=logger, checkpoint=logger == "csv")
        written = [path.name for path in (tmp_path / logger).glob("logs/*/version_0/*")]
        assert len(written) == files, written
        assert (tmp_path / logger / "checkpoints").exists() == (logger == "csv")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    train(toy_task(), 3)
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize(("service", "name"), [("wandb", "WandbLogger"), ("mlflow", "MLFlowLogger")])
def test_a_service_is_told_of_the_run_beside_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: str, name: str
) -> None:
    """A recorder stands for Lightning's logger, whose package is not installed for tests."""
    problem = rf"trainer.logger: {service} is not installed; accepted: csv, .*, or pip install {service}$"
    monkeypatch.setitem(sys.modules, service, None)
    with pytest.raises(ValueError, match=problem):
        TrainerConfig(logger=service)
    stub = ModuleType(service)
    stub.__spec__ = ModuleSpec(service, None)
    monkeypatch.setitem(sys.modules, service, stub)
    kind = getattr(pl.loggers, name)
    told, made = create_autospec(kind, instance=True), []

    def make(*args: Any, **options: Any) -> Any:
        made.append(inspect.signature(kind).bind(*args, **options))
        return told

    monkeypatch.setattr(f"gnnsparse.train.callbacks.{name}", make)
    train(toy_task(), 3, tmp_path / "run", logger=service)
    train(toy_task(), 5, tmp_path / "run", tmp_path / "run" / "checkpoints" / "last.ckpt", logger=service)
    assert made[0] == made[1]  # the same run of the service
    assert [call.kwargs["step"] for call in told.log_metrics.call_args_list] == [1, 2, 3, 4, 5]
    assert told.log_metrics.call_args_list[0].args[0].keys() >= {"epoch", "train/loss", "val/accuracy"}
    assert len(rows_of(tmp_path / "run")) == 5


def test_a_run_that_goes_on_in_its_folder_goes_on_with_the_log(tmp_path: Path) -> None:
    """A run that was killed has logged steps that are trained again, and half of a row: they are dropped."""
    train(toy_task(), 3, tmp_path)
    (log,) = tmp_path.glob("logs/csv/*/metrics.csv")
    before, last = log.read_text(), rows_of(tmp_path)[-1]
    with log.open("a") as file:
        file.write("4," + ",".join(["4", *["0.5"] * (len(last) - 2)]) + "\n5,5,0.")
    train(toy_task(), 5, tmp_path, tmp_path / "checkpoints" / "last.ckpt", logger="both")
    assert log.read_text().startswith(before)
    assert len(list(tmp_path.glob("logs/*/version_0"))) == 2
    train(toy_task(), 5, tmp_path / "whole")
    assert rows_of(tmp_path) == rows_of(tmp_path / "whole")
    assert [row["epoch"] for row in rows_of(tmp_path)] == ["1", "2", "3", "4", "5"]


# The optimiser: what weight decay acts on, and the schedule of the learning rate.


def test_what_weight_decay_acts_on() -> None:
    module = classifier(toy_task(), 5, weight_decay=0.25)
    for group, layer, decay in zip(
        module.configure_optimizers().param_groups, module.model.convs, (0.25, 0.0), strict=True
    ):
        assert group["weight_decay"] == decay
        assert {id(p) for p in group["params"]} == {id(p) for p in layer.parameters()}
    (group,) = classifier(toy_task(), 5, decay="all").configure_optimizers().param_groups
    assert (group["weight_decay"], len(group["params"])) == (5e-4, 4)


def test_cosine_goes_from_lr_to_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []

    def note(self: Any, trainer: pl.Trainer, *_: Any) -> None:
        rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    monkeypatch.setattr(BestEpoch, "on_train_batch_start", note, raising=False)
    train_toy(epochs=10, module=classifier(toy_task(), 10, schedule="cosine", lr=0.1))
    assert rates[0] == pytest.approx(0.1)
    assert rates[5] == pytest.approx(0.05)
    assert all(later < earlier for earlier, later in itertools.pairwise(rates))
    assert rates[-1] == pytest.approx(0.1 * 0.5 * (1 + torch.cos(torch.tensor(torch.pi * 0.9)).item()))


# Signals end a training after the step, with a checkpoint, from which it goes on as if nothing was.


EPOCHS = 24
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def handlers_are_put_back() -> Iterator[None]:
    before = [signal.getsignal(signum) for signum in SIGNALS]
    yield
    assert [signal.getsignal(signum) for signum in SIGNALS] == before


class Interrupting(NodeClassifier):
    """Sends signals to its own process in the middle of a step."""

    at: dict[int, int]

    def training_step(self, batch: Any) -> torch.Tensor:
        loss = super().training_step(batch)
        if (signum := self.at.get(self.trainer.global_step + 1)) is not None:
            os.kill(os.getpid(), signum)
        return loss


def interrupted(
    folder: Path | None,
    at: dict[int, int] | None = None,
    epochs: int = EPOCHS,
    *,
    given: dict[str, Any] | None = None,
    **config: Any,
) -> tuple[FitResult, Interrupting]:
    module: Any = classifier(toy_task(), EPOCHS, Interrupting, options={"dropout": 0.5}, schedule="cosine")
    module.at = at or {}
    return train_toy(folder, toy_task(), epochs, module=module, given=given, **config)[0], module


def log_of(folder: Path) -> str:
    return (folder / "logs/csv/version_0/metrics.csv").read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[FitResult, dict[str, torch.Tensor], str]:
    folder = tmp_path_factory.mktemp("whole")
    result, module = interrupted(folder)
    return result, module.model.state_dict(), log_of(folder)


@pytest.mark.parametrize("signum", SIGNALS)
@pytest.mark.parametrize("logs", [1, 50])
def test_it_goes_on_as_if_nothing_was(
    signum: int, logs: int, whole: tuple[Any, Any, str], tmp_path: Path
) -> None:
    """Interrupted twice, at random steps: the same weights, scores and log, bit for bit."""
    places = sorted(random.Random(f"{signum} {logs}").sample(range(1, EPOCHS), 2))
    last = None
    for step in places:
        with pytest.raises(TrainingInterrupted) as stopped:
            interrupted(tmp_path, {step: signum}, given={"resume": last}, log_every=logs)
        last = tmp_path / "checkpoints" / "last.ckpt"
        found = stopped.value
        assert (found.signum, found.epochs, found.checkpoint) == (signum, step, last)
        assert torch.load(last, weights_only=True)["global_step"] == step
    result, module = interrupted(tmp_path, given={"resume": last}, log_every=logs)
    want = EPOCHS, whole[0].best_epoch, whole[0].metrics
    assert (result.epochs, result.best_epoch, result.metrics) == want
    torch.testing.assert_close(module.model.state_dict(), whole[1], rtol=0.0, atol=0.0)
    assert log_of(tmp_path) == whole[2]


def test_without_checkpoints_nothing_is_kept(tmp_path: Path) -> None:
    with pytest.raises(TrainingInterrupted) as stopped:
        interrupted(tmp_path, {3: signal.SIGTERM}, checkpoint=False)
    assert (stopped.value.epochs, stopped.value.checkpoint) == (3, None)
    with pytest.raises(TrainingInterrupted, match="stopped by SIGINT after epoch 2"):
        interrupted(None, {2: signal.SIGINT})


def test_a_signal_in_the_last_step_comes_after_the_scores() -> None:
    """The caller who notes the signals has the result; otherwise they do afterwards what they did before."""
    with StopRequest() as stop:
        result, _ = interrupted(None, {4: signal.SIGTERM}, 4, given={"stop": stop})
    assert (result.epochs, stop.signum) == (4, signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt) as stopped:
        interrupted(None, {4: signal.SIGINT}, 4)
    assert not isinstance(stopped.value, TrainingInterrupted)


def test_a_second_signal_ends_at_once_unless_it_is_the_same_request(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("gnnsparse.train.interruption.time.monotonic", lambda: now)
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        now = 100.5
        signal.raise_signal(signal.SIGINT)  # of the launcher, say
        assert stop.signum == signal.SIGINT
        now = 102.0
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_ignored_signals_and_other_threads() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGTERM)
            assert stop.signum is None
    finally:
        signal.signal(signal.SIGTERM, before)
    found = []
    thread = threading.Thread(target=lambda: found.append(interrupted(None, epochs=2)[0].epochs))
    thread.start()
    thread.join()
    assert found == [2]
