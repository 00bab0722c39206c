"""train.py on several processes of a CPU: the results of one, checkpoints of any number, ranks that die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from gnnsparse.data import build_graph
from tests.e2e.started import Run, Started, wait_for
from tests.tasks import rows_of

OPTIONS = (
    "dataset=digits", "model=gcn", "device=cpu", "model.norm=batch", "model.dropout=0",
    "model.hidden_channels=8", "trainer.log_every=1", "trainer.plots=false", "seed=1",
)  # fmt: skip


def losses(folder: Path) -> torch.Tensor:
    """The training losses of all steps, whichever runs wrote them."""
    rows = rows_of(folder)
    assert [row["step"] for row in rows] == [str(step) for step in range(1, len(rows) + 1)]
    return torch.tensor([float(row["train/loss"]) for row in rows])


def test_two_and_three_processes_train_as_one_and_go_on_from_each_others_checkpoints(
    train: Callable[..., Run], tmp_path: Path
) -> None:
    """Two train six epochs, three go on to ten, and one goes on from them: as one that trains all.

    Two and three divide the optimiser's state.
    """
    whole, shared, divided = tmp_path / "one", tmp_path / "shared", "trainer.shard_optimizer=true"
    for folder in (whole, shared):
        folder.mkdir()
    assert train(*OPTIONS, "trainer.max_epochs=12", folder=whole).status == 0
    done = train(*OPTIONS, "trainer.max_epochs=6", "trainer.devices=2", divided, folder=shared)
    assert done.result["devices"] == 2
    assert done.errors == ""
    resume = f"resume={shared}/checkpoints/last.ckpt"
    again = train(*OPTIONS, "trainer.max_epochs=10", "trainer.devices=3", divided, resume, folder=shared)
    assert again.result["devices"] == 3
    last = train(*OPTIONS, "trainer.max_epochs=12", resume, folder=shared).result
    assert len(losses(whole)) == 12
    torch.testing.assert_close(losses(shared), losses(whole), rtol=1e-4, atol=1e-5)
    metrics = json.loads((whole / "result.json").read_text())["metrics"]
    for part, scores in last["metrics"].items():
        for name, score in scores.items():
            assert abs(score - metrics[part][name]) < 0.01


def test_two_processes_share_the_samples_of_one(train: Callable[..., Run], tmp_path: Path) -> None:
    options = (
        "dataset=digits", "model=graphsage", "device=cpu", "model.dropout=0", "model.hidden_channels=8",
        "sampler=neighbor", "sampler.batch_size=150", "trainer.log_every=1", "trainer.plots=false", "seed=1",
        "trainer.max_epochs=3",
    )  # fmt: skip
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    assert train(*options, folder=one).status == 0
    done = train(*options, "trainer.devices=2", folder=two, fresh=True)
    assert done.errors == ""
    assert done.result["devices"] == 2
    assert losses(one).numel() > 6
    torch.testing.assert_close(losses(two), losses(one), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "devices", "rtol"),
    [
        ("model=gcn precision=fp16", 2, 2e-2),
        ("model=agnn precision=fp16", 4, 2e-2),
        ("model=graph_transformer", 3, 1e-3),
        ("model=graphsage sampler=neighbor", 4, None),  # batch norms count nodes that two ranks have twice
    ],
)
def test_models_train_on_several_devices_by_the_defaults_of_a_data_set(
    train: Callable[..., Run], tmp_path: Path, words: str, devices: int, rtol: float | None
) -> None:
    """Of products_like, a thousandth: `auto` decides how products and nodes are divided."""
    options = (*words.split(), "dataset=products_like", "dataset.scale=0.001", "device=cpu", "seed=1")
    for count in (1, devices):
        (tmp_path / str(count)).mkdir()
        more = ("trainer.max_epochs=3", "trainer.log_every=1", "model.dropout=0", f"trainer.devices={count}")
        done = train(*options, *more, folder=tmp_path / str(count))
        assert (done.status, done.errors) == (0, "")
        assert done.result.get("devices", 1) == count
    found, alone = losses(tmp_path / str(devices)), losses(tmp_path / "1")
    assert found.shape == alone.shape
    assert found.isfinite().all()
    if rtol is not None:
        torch.testing.assert_close(found, alone, rtol=rtol, atol=0.0)


@pytest.mark.parametrize(
    ("model", "whole"), [("graphsage", "false"), ("gcn", "false"), ("gcn", "true")], ids=str
)
def test_two_processes_train_on_a_graph_on_disk_as_one(
    train: Callable[..., Run], tmp_path: Path, model: str, whole: str
) -> None:
    """By samples of the mapped graph, or all of it, with the weights that it has."""
    draw, disk = torch.Generator().manual_seed(0), tmp_path / "net"
    y = torch.randint(3, (400,), generator=draw)
    ends = torch.randint(400, (2, 5000), generator=draw)
    ends = ends[:, (y[ends[0]] == y[ends[1]]) | (torch.rand(5000, generator=draw) < 0.1)]
    weights = torch.rand(ends.shape[1], generator=draw)
    build_graph(ends, disk, num_nodes=400, weights=weights)
    np.save(disk / "x.npy", torch.nn.functional.one_hot(y, 8).float() + torch.randn(400, 8, generator=draw))
    np.save(disk / "y.npy", y)
    options = (
        "dataset=custom", f"dataset.path={disk}", f"dataset.in_memory={whole}", f"model={model}",
        "device=cpu", "model.dropout=0", "trainer.log_every=1", "trainer.plots=false", "seed=1",
        "trainer.max_epochs=3",
    )  # fmt: skip
    for devices in (1, 2):
        (tmp_path / str(devices)).mkdir()
        done = train(*options, f"trainer.devices={devices}", folder=tmp_path / str(devices))
        assert (done.status, done.errors) == (0, "")
        assert ("sampler=neighbor" in done.output) == (whole == "false")
    found, alone = losses(tmp_path / "2"), losses(tmp_path / "1")
    assert found.numel() >= 3
    torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5)


def test_a_killed_process_ends_the_run_with_one_line(start: Callable[..., Started], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = (*OPTIONS, "trainer.devices=2", "trainer.max_epochs=100000", f"hydra.run.dir={folder}")
    noted = "import os; open('leader', 'w').write(str(os.getpid()))"
    run = start(*options, folder=tmp_path, change=noted)
    wait_for(lambda: list(folder.glob("logs/csv/*/metrics.csv")), run)
    found = subprocess.run(["pgrep", "-P", (tmp_path / "leader").read_text()], capture_output=True, text=True)
    other = int(found.stdout)
    os.kill(other, signal.SIGKILL)
    done = run.wait()
    assert done.status == 2
    assert done.errors.splitlines() == ["train.py: rank 1 was ended by SIGKILL"]
    assert not Path(f"/proc/{other}").exists()


def test_a_disk_that_is_full_for_checkpoints_does_not_stop_the_ranks(
    start: Callable[..., Started], tmp_path: Path
) -> None:
    words = [*OPTIONS, "trainer.devices=2", "trainer.max_epochs=3", "model.hidden_channels=64"]
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (12_288, 12_288))"
    done = start(*words, f"hydra.run.dir={tmp_path}/run", folder=tmp_path, change=full).wait()
    assert done.status == 0, done.errors
    assert f"the checkpoints in {tmp_path}/run/checkpoints can't be written" in done.errors
    assert json.loads((tmp_path / "run/result.json").read_text())["epochs"] == 3
    assert not (tmp_path / "run/checkpoints/last.ckpt").exists()
