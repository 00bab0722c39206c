"""Signals that end a training: after the step, with a checkpoint, from which it goes on as if nothing was."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnsparse.train import FitResult, NodeClassifier, StopRequest, TrainingInterrupted
from tests.tasks import classifier, toy_task, train_toy

TASK = toy_task()
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


def train(
    folder: Path | None,
    at: dict[int, int] | None = None,
    resume: Path | None = None,
    stop: StopRequest | None = None,
    **config: Any,
) -> tuple[FitResult, Interrupting]:
    module: Any = classifier(TASK, EPOCHS, Interrupting, options={"dropout": 0.5}, schedule="cosine")
    module.at = at or {}
    given = {"resume": resume, **({} if stop is None else {"stop": stop})}
    epochs = config.pop("max_epochs", EPOCHS)
    return train_toy(folder, TASK, epochs, module=module, given=given, **config)[0], module


def log_of(folder: Path) -> str:
    return (folder / "logs/csv/version_0/metrics.csv").read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[FitResult, dict[str, torch.Tensor], str]:
    folder = tmp_path_factory.mktemp("whole")
    result, module = train(folder)
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
            train(tmp_path, {step: signum}, last, log_every=logs)
        last = tmp_path / "checkpoints" / "last.ckpt"
        found = stopped.value
        assert (found.signum, found.epochs, found.checkpoint) == (signum, step, last)
        assert torch.load(last, weights_only=True)["global_step"] == step
    result, module = train(tmp_path, resume=last, log_every=logs)
    want = EPOCHS, whole[0].best_epoch, whole[0].metrics
    assert (result.epochs, result.best_epoch, result.metrics) == want
    torch.testing.assert_close(module.model.state_dict(), whole[1], rtol=0.0, atol=0.0)
    assert log_of(tmp_path) == whole[2]


def test_without_checkpoints_nothing_is_kept(tmp_path: Path) -> None:
    with pytest.raises(TrainingInterrupted) as stopped:
        train(tmp_path, {3: signal.SIGTERM}, checkpoint=False)
    assert (stopped.value.epochs, stopped.value.checkpoint) == (3, None)
    with pytest.raises(TrainingInterrupted, match="stopped by SIGINT after epoch 2"):
        train(None, {2: signal.SIGINT})


def test_a_signal_in_the_last_step_comes_after_the_scores() -> None:
    """The caller who notes the signals has the result; otherwise they do afterwards what they did before."""
    with StopRequest() as stop:
        result, _ = train(None, {4: signal.SIGTERM}, stop=stop, max_epochs=4)
    assert (result.epochs, stop.signum) == (4, signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt) as stopped:
        train(None, {4: signal.SIGINT}, max_epochs=4)
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
    thread = threading.Thread(target=lambda: found.append(train(None, max_epochs=2)[0].epochs))
    thread.start()
    thread.join()
    assert found == [2]
