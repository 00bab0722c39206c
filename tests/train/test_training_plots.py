"""Plots of a run: the files, what is drawn, and what happens without matplotlib."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from gnnsparse.train import RunFolderWarning
from gnnsparse.train.plots import confusion_matrix, write_plots
from tests.tasks import toy_task, train_toy

PNG = b"\x89PNG\r\n\x1a\n"


def test_a_run_draws_its_plots(tmp_path: Path) -> None:
    train_toy(tmp_path / "run", epochs=4, plots=True, logger="none")
    files = sorted((tmp_path / "run" / "plots").iterdir())
    assert [file.name for file in files] == ["confusion.png", "curves.png"]
    assert all(file.read_bytes().startswith(PNG) for file in files)
    train_toy(tmp_path / "other", epochs=4, logger="none")
    assert not (tmp_path / "other" / "plots").exists()


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
        assert write_plots(tmp_path / "plots", [], None, steps_per_epoch=1, title="") == []
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.warns(RunFolderWarning, match="no plots are drawn, as matplotlib is missing"):
        assert write_plots(tmp_path, [], None, steps_per_epoch=1, title="") == []


def test_many_classes(tmp_path: Path) -> None:
    counts = torch.eye(40, dtype=torch.int64)
    written = write_plots(tmp_path, [], counts, steps_per_epoch=1, title="toy")
    assert [file.name for file in written] == ["curves.png", "confusion.png"]
