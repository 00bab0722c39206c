"""`trainer.profile`: which steps of a run are profiled, what is written, and what happens if it can't be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnsparse.train import TrainerConfig
from gnnsparse.train.folders import RunFolderWarning
from tests.tasks import classifier, toy_task, train_toy


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
def test_that_many_steps_are_profiled(epochs: int, steps: int, seen: int, tmp_path: Path) -> None:
    assert run(tmp_path / "run", epochs, profile=steps)[0] == epochs
    assert steps_in(tmp_path / "run") == seen


def test_a_profiled_run_trains_the_same_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a folder too, where nothing is profiled."""
    _, plain = run(tmp_path / "plain")
    _, unseen = run(None, profile=4)
    assert capsys.readouterr().out == ""
    _, profiled = run(tmp_path / "profiled", profile=4)
    assert all(map(torch.equal, plain, profiled))
    assert all(map(torch.equal, plain, unseen))
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


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, "3"])
def test_senseless_counts_are_refused(steps: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"trainer\.profile"):
        TrainerConfig(profile=steps)
