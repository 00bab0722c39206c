"""What a run prints while it trains."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from gnnsparse.train.callbacks import History, ProgressReport

#: More scores than a task has, with long names.
SCORES = {"loss": 0.9877, "accuracy": 0.87654, "micro_f1": 0.76543, "roc_auc": 0.65432}


def reported(steps: int, scale: int, **options: Any) -> None:
    """Steps of a training of `scale` times 20 epochs, each with a validation."""
    history = History(1000, steps)
    report = ProgressReport(history, steps, **options)
    trainer: Any = SimpleNamespace(loggers=[], global_step=0, max_steps=20 * scale * steps)
    report.on_train_start(trainer, None)
    for step in range(1, 4 * steps + 1):
        trainer.global_step = step
        history.on_train_batch_end(trainer, None, {"loss": torch.tensor(1.23456)})
        history.validated({name: torch.tensor(value) for name, value in SCORES.items()})
        report.on_train_batch_end(trainer, None)
    report.on_train_end(trainer, None)


NUMBERS = ("1.235", "0.9877", "0.8765", "0.7654", "0.6543")


@pytest.mark.parametrize("steps", [1, 7])
def test_lines_in_a_pipe(steps: int) -> None:
    file = io.StringIO()
    reported(steps, 1, seconds=0.0, redraw=0.0, console=Console(file=file))
    lines = file.getvalue().splitlines()
    assert len(lines) == 4 * steps
    place = "epoch 4 of 20" if steps == 1 else "epoch 4 of 20, step 28 of 140"
    values = ", ".join(f"val/{name} {SCORES[name]:.4g}" for name in SCORES)
    assert re.fullmatch(rf"{place}: train/loss 1\.235, {values}; \d+:\d\d:\d\d left", lines[-1])
    assert not any("\x1b" in line for line in lines)


@pytest.mark.parametrize(("terminal", "seconds", "lines"), [(False, 60.0, 0), (True, 0.0, 4)])
def test_lines_are_few_and_a_dumb_terminal_gets_them(
    terminal: bool, seconds: float, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    file = io.StringIO()
    reported(1, 1, seconds=seconds, redraw=0.0, console=Console(file=file, force_terminal=terminal))
    assert len(file.getvalue().splitlines()) == lines


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_bar_shows_every_number(width: int) -> None:
    """Also those of a long run; no line is longer than the terminal."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, color_system=None, legacy_windows=False)
    reported(1, 100_000, seconds=0.0, redraw=0.0, console=console)
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", file.getvalue())
    lines = [line.rstrip() for line in drawn.replace("\r", "\n").split("\n") if line.strip()]
    assert max(map(len, lines)) <= width
    text = " ".join(lines)
    assert all(number in text for number in NUMBERS)
    assert "4/2000000" in text
    assert "…" not in text


def test_a_reader_that_has_gone_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        monkeypatch.setattr("sys.stdout", pipe)
        reported(1, 1, seconds=0.0, redraw=0.0)
        print("to nobody", flush=True)


def test_a_full_disk_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as file:
        monkeypatch.setattr("sys.stdout", file)
        reported(1, 1, seconds=0.0, redraw=0.0)
