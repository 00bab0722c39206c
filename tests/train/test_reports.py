"""What a run prints while it trains, profiles and draws."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from gnnsparse.train import RunFolderWarning
from gnnsparse.train.callbacks import History, ProgressReport
from gnnsparse.train.plots import confusion_matrix, write_plots
from tests.tasks import classifier, toy_task, train_toy

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


@pytest.mark.parametrize(
    ("steps", "terminal", "seconds", "lines"),
    [(1, False, 0.0, 4), (7, False, 0.0, 28), (1, False, 60.0, 0), (1, True, 0.0, 4)],
)
def test_lines_in_a_pipe_and_on_a_dumb_terminal(
    steps: int, terminal: bool, seconds: float, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    file = io.StringIO()
    reported(steps, 1, seconds=seconds, redraw=0.0, console=Console(file=file, force_terminal=terminal))
    written = file.getvalue().splitlines()
    assert len(written) == lines
    assert not any("\x1b" in line for line in written)
    place = "epoch 4 of 20" if steps == 1 else "epoch 4 of 20, step 28 of 140"
    values = ", ".join(f"val/{name} {SCORES[name]:.4g}" for name in SCORES)
    for line in written[-1:]:
        assert re.fullmatch(rf"{place}: train/loss 1\.235, {values}; \d+:\d\d:\d\d left", line)


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


@pytest.mark.parametrize("full", [False, True])
def test_a_reader_that_has_gone_and_a_full_disk_do_not_end_the_run(
    full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if full and not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    read, write = os.pipe()
    os.close(read)
    with open("/dev/full", "w") if full else os.fdopen(write, "w") as file:
        monkeypatch.setattr("sys.stdout", file)
        reported(1, 1, seconds=0.0, redraw=0.0)
        print("to nobody", flush=True)


# `trainer.profile`: which steps of a run are profiled, what is written, and what happens if it can't be.


def run(folder: Path | None, epochs: int = 12, **options: Any) -> tuple[int, list[torch.Tensor]]:
    """Trains a small model, and returns the number of epochs and the weights."""
    result, module = train_toy(folder, epochs=epochs, logger="none", **options)
    return result.epochs, [parameter.detach().clone() for parameter in module.parameters()]


def steps_in(folder: Path) -> int:
    events = json.loads((folder / "profile" / "trace.json").read_text())["traceEvents"]
    return sum(event.get("name") == "aten::nll_loss_backward" for event in events)


@pytest.mark.parametrize(
    ("epochs", "steps", "seen"), [(12, 3, 3), (12, 7, 7), (12, 9, 9), (2, 5, 2), (7, 5, 5)]
)
def test_that_many_steps_are_profiled_and_the_weights_are_those_of_a_plain_run(
    epochs: int, steps: int, seen: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a folder nothing is profiled."""
    plain, unseen = run(None, epochs), run(None, epochs, profile=steps)
    assert capsys.readouterr().out == ""
    profiled = run(tmp_path / "run", epochs, profile=steps)
    assert plain[0] == unseen[0] == profiled[0] == epochs
    assert all(map(torch.equal, plain[1], profiled[1]))
    assert all(map(torch.equal, plain[1], unseen[1]))
    assert steps_in(tmp_path / "run") == seen
    assert "Operations and ranges, for a step" in capsys.readouterr().out


def test_a_trace_that_can_not_be_written_is_a_warning(tmp_path: Path) -> None:
    trace = tmp_path / "run" / "profile" / "trace.json"
    trace.mkdir(parents=True)
    with pytest.warns(RunFolderWarning, match=r"trainer\.profile: .*trace\.json can't be written"):
        assert run(tmp_path / "run", profile=2)[0] == 12


def test_a_run_that_stops_early_is_profiled_as_far_as_it_came(tmp_path: Path) -> None:
    module = classifier(toy_task())
    with torch.no_grad():
        next(module.parameters()).fill_(float("nan"))
    with pytest.raises(FloatingPointError):  # the loss is looked at when it is logged
        train_toy(tmp_path / "run", module=module, log_every=1, profile=100)
    assert not (tmp_path / "run" / "profile" / "trace.json").exists()
    assert run(tmp_path / "next", profile=2)[0] == 12  # no profiler is left behind


# Plots: the files, what is drawn, and what happens without matplotlib.


def test_a_run_draws_its_plots(tmp_path: Path) -> None:
    train_toy(tmp_path / "run", epochs=4, plots=True, logger="none")
    files = sorted((tmp_path / "run" / "plots").iterdir())
    assert [file.name for file in files] == ["confusion.png", "curves.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") for file in files)
    train_toy(tmp_path / "other", epochs=4, logger="none")
    assert not (tmp_path / "other" / "plots").exists()
    many_classes = torch.eye(40, dtype=torch.int64)
    write_plots(tmp_path / "many", [], many_classes, steps_per_epoch=1, title="toy")
    assert {file.name for file in (tmp_path / "many").iterdir()} == {"curves.png", "confusion.png"}


def test_classes_have_their_names_in_plots_and_in_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    drawn: list[list[str]] = []

    def look(figure: Figure, path: Path, **_: Any) -> None:
        drawn.extend([text.get_text() for text in axes.get_yticklabels()] for axes in figure.axes[:1])

    monkeypatch.setattr(Figure, "savefig", look)
    named = dataclasses.replace(toy_task(), class_names=("law, old", "$art$", "b" * 30))
    result, _ = train_toy(tmp_path, named, epochs=3, plots=True, logger="none")
    assert drawn[1] == ["law, old", r"\$art\$", "b" * 24]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "classes.csv").read_text())))
    assert rows == [{name: str(value) for name, value in row.items()} for row in result.classes]
    assert [row["class"] for row in rows] == list(named.class_names or ())
    assert sum(row["count"] for row in result.classes) == int(named.test_mask.sum())


def test_confusion_is_torchmetrics() -> None:
    from torchmetrics.functional.classification import multiclass_confusion_matrix

    torch.manual_seed(0)
    dataset = toy_task()
    logits, y = torch.randn(40, 3), torch.randint(3, (40,))
    found = confusion_matrix(dataset, logits, y)
    assert torch.equal(found, multiclass_confusion_matrix(logits, y, 3))
    y[:7] = -1
    rest = multiclass_confusion_matrix(logits[7:], y[7:], 3)
    assert torch.equal(confusion_matrix(dataset, logits, y), rest)
    several = toy_task(metric="micro_f1")
    assert confusion_matrix(several, logits, several.y) is None


def test_what_can_not_be_drawn_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plots").write_text("a file")
    with pytest.warns(RunFolderWarning, match=r"curves\.png can't be written"):
        write_plots(tmp_path / "plots", [], None, steps_per_epoch=1, title="")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.warns(RunFolderWarning, match="no plots are drawn, as matplotlib is missing"):
        write_plots(tmp_path, [], None, steps_per_epoch=1, title="")
    assert not list(tmp_path.glob("*.png"))
