"""train.py that is ended at random moments and goes on as if it had not been; sweeps in which runs fail."""

from __future__ import annotations

import json
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.e2e.started import Run, Started, wait_for
from tests.own_graphs import arrays

#: Epochs of a run that takes a few seconds, most of them in its epochs, on a machine with nothing else to do.
EPOCHS = 2000
LONG = (f"trainer.max_epochs={EPOCHS}", "model.hidden_channels=4", "device=cpu", "seed=3")
SHORT = ("trainer.max_epochs=20", "device=cpu")
STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}


def outcome(folder: Path) -> tuple[object, str, dict[str, torch.Tensor]]:
    """Scores, log and weights of a finished run."""
    result = json.loads((folder / "result.json").read_text())
    last = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    log = (folder / "logs/csv/version_0/metrics.csv").read_text()
    return (result["epochs"], result["best_epoch"], result["metrics"]), log, last["state_dict"]


def same(one: Path, other: Path) -> None:
    """Asserts that two finished runs are equal bit for bit."""
    (scores, log, weights), (mine, own_log, own) = outcome(one), outcome(other)
    assert mine == scores
    assert own_log == log
    assert own.keys() == weights.keys()
    assert all(torch.equal(own[name], tensor) for name, tensor in weights.items())


def finished(run: Run) -> Run:
    assert (run.status, run.errors) == (0, "")
    return run


def run_whole(start: Callable[..., Started], folder: Path, *words: str) -> Path:
    return finished(start(*words, f"hydra.run.dir={folder}", folder=folder).wait()).folder


@pytest.fixture(scope="module")
def whole(start: Callable[..., Started], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nobody has interrupted."""
    return run_whole(start, tmp_path_factory.mktemp("whole"), *LONG)


@pytest.fixture(scope="module")
def with_seed_1(start: Callable[..., Started], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run as those of a sweep."""
    return run_whole(start, tmp_path_factory.mktemp("whole"), "seed=1", *SHORT)


def logged(folder: Path) -> int:
    """Bytes of the logs of all runs below a folder."""
    return sum(log.stat().st_size for log in folder.glob("outputs/*/*/logs/csv/*/metrics.csv"))


def begun(folder: Path) -> int:
    """When the last run below a folder began."""
    return max((mark.stat().st_mtime_ns for mark in folder.glob("outputs/*/*/run.lock")), default=0)


def test_signals_at_random_moments(start: Callable[..., Started], whole: Path, tmp_path: Path) -> None:
    """Each time one line says how to go on, which is done, and in the end nothing shows of it."""
    draw, folders, interrupted = random.Random(19), set(), 0
    words = LONG
    for early in [True, False, False, True, False, None]:
        signum = draw.choice([signal.SIGINT, signal.SIGTERM])
        before = logged(tmp_path), begun(tmp_path)
        process = start(*words, folder=tmp_path)
        if early is not None:
            if early:  # while data are loaded, or in one of the first epochs
                wait_for(lambda: begun(tmp_path) > before[1], process)  # noqa: B023  (called here alone)
                time.sleep(draw.uniform(0.0, 1.0))
            else:  # 50 epochs at least are trained by then
                wait_for(lambda: logged(tmp_path) > before[0], process)  # noqa: B023
                time.sleep(draw.uniform(0.0, 0.2))
            process.send(signum)
        run = process.wait()
        if run.status == 0:
            break
        assert run.status == STATUS[signum], run.errors
        assert run.errors.startswith(f"train.py: stopped by {signum.name}")
        assert run.errors.count("\n") == 1
        found = list(tmp_path.glob("outputs/*/*/checkpoints/last.ckpt"))
        if go_on := re.search(r"after epoch (\d+); to go on: python train\.py (resume=\S+)\n", run.errors):
            (last,) = found
            assert torch.load(last, weights_only=True)["global_step"] == int(go_on[1])
            words = (draw.choice([go_on[2], "resume=last"]),)
            interrupted += 1
        elif "after the last epoch" in run.errors:  # all is done but the exit status
            folders |= {path.parents[1] for path in found}
            break
        else:
            assert "before training began" in run.errors
            assert bool(found) == bool(folders), "what was there before is left, and nothing else"
            assert found or not (tmp_path / "outputs").exists()
        folders |= {path.parents[1] for path in found}
    assert interrupted >= 2
    (folder,) = folders
    same(whole, folder)


#: Ends the process, without a chance to do anything, when a model is scored for the nth time.
KILLED = """
import os, signal
import lightning.pytorch as pl

score, count = pl.Trainer.test, {}

def test(*args, **options):
    global count
    count -= 1
    if count == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return score(*args, **options)

pl.Trainer.test = test
"""


@pytest.mark.parametrize("early", [False, True])
def test_a_run_that_was_killed_before_its_scores_is_finished(
    start: Callable[..., Started], tmp_path: Path, early: bool
) -> None:
    """After its last epoch, or where it stopped early. A run that has its scores is not resumed."""
    words = ["trainer.max_epochs=60", "device=cpu", "trainer.plots=true"]
    words += ["trainer.patience=3", "optimizer.lr=0.1"] if early else []
    whole, killed = run_whole(start, tmp_path, *words), tmp_path / "killed"
    killed.mkdir()
    run = start(*words, "hydra.run.dir=.", folder=killed, change=KILLED.format(1)).wait()
    assert run.status == -signal.SIGKILL, run.errors
    assert not (killed / "result.json").exists()
    assert "best epoch" in finished(start("resume=.", folder=killed).wait()).output
    same(whole, killed)
    ours, theirs = (json.loads((folder / "result.json").read_text()) for folder in (killed, whole))
    assert (ours["epochs"] < 60) == early
    assert ours["epoch_milliseconds"] is None
    assert ours.keys() == theirs.keys()
    assert (killed / "README.md").is_file() == (whole / "README.md").is_file()
    again = start("resume=.", folder=killed).wait()
    option = (
        "trainer.patience: got 3; accepted: more" if early else "trainer.max_epochs: got 60; accepted: more"
    )
    assert again.status == 2
    assert option in again.errors
    assert json.loads((killed / "result.json").read_text()) == ours


def test_a_sweep_that_was_killed_before_the_scores_of_a_run_is_finished(
    start: Callable[..., Started], with_seed_1: Path, tmp_path: Path
) -> None:
    run = start("-m", "seed=0,1,2", *SHORT, folder=tmp_path, change=KILLED.format(2)).wait()
    assert run.status == -signal.SIGKILL, run.errors
    assert len(list(tmp_path.glob("outputs/*/*-sweep/*/result.json"))) == 1
    finished(start("resume=last", folder=tmp_path).wait())
    results = sorted(tmp_path.glob("outputs/*/*-sweep/*/result.json"))
    assert [json.loads(file.read_text())["epochs"] for file in results] == [20, 20, 20]
    (summary,) = tmp_path.glob("outputs/*/*-sweep/summary.csv")
    assert summary.read_text().splitlines()[1].startswith(",3,0,")
    same(with_seed_1, results[1].parent)


def test_a_sweep_goes_on_past_a_run_that_fails(start: Callable[..., Started], tmp_path: Path) -> None:
    options = ("optimizer.lr=0.01,1e38", "trainer.max_epochs=20", "trainer.log_every=5")
    run = start("-m", "seed=0,1", *options, "model.dropout=0.5,2", folder=tmp_path).wait()
    assert run.status == 1, run.errors
    assert run.errors.count("train.py: training diverged: the loss of epoch ") == 2
    assert run.errors.count("train.py: model.dropout: got 2; accepted: a number in [0, 1)") == 4
    assert run.errors.count("\n") == 6
    (folder,) = tmp_path.glob("outputs/*/*-sweep")
    numbers = sorted(int(path.parent.name.partition("-")[0]) for path in folder.glob("*/result.json"))
    assert numbers == [0, 4]
    jobs = sorted(int(path.name.partition("-")[0]) for path in folder.iterdir() if path.is_dir())
    assert jobs == [0, 2, 4, 6], "a refused run leaves no folder, one that has trained does"
    scores = [
        json.loads(path.read_text())["metrics"]["test"]["accuracy"] for path in folder.glob("*/result.json")
    ]
    mean = sum(scores) / 2
    deviation = abs(scores[0] - scores[1]) / 2**0.5
    assert f"{mean:.4f} ± {deviation:.4f}" in run.output
    rows = [line.split(",") for line in (folder / "summary.csv").read_text().splitlines()]
    columns = [f"{score} {of}" for score in ("accuracy", "macro_f1") for of in ("mean", "standard deviation")]
    assert rows[0] == ["options", "runs", "failed", *columns]
    assert rows[1][:3] == ["optimizer.lr=0.01 model.dropout=0.5", "2", "0"]
    assert [float(cell) for cell in rows[1][3:5]] == pytest.approx([mean, deviation])
    assert [row[1:] for row in rows[2:]] == [["0", "2", *[""] * 4]] * 3
    failed = [line for line in run.output.splitlines() if line.startswith("failed: ")]
    assert len(failed) == 6
    assert failed[0].startswith("failed: 1 (seed=0 optimizer.lr=0.01 trainer.max_epochs=20 ")
    assert failed[0].endswith("model.dropout=2): model.dropout: got 2; accepted: a number in [0, 1)")


def test_a_sweep_that_is_interrupted_goes_on(start: Callable[..., Started], tmp_path: Path) -> None:
    """The run that was interrupted from its checkpoint, those before it not again."""
    epochs = EPOCHS // 2
    process = start("-m", "seed=0,1", f"trainer.max_epochs={epochs}", *LONG[1:3], folder=tmp_path)
    wait_for(lambda: list(tmp_path.glob("outputs/*/*/1-*/logs/csv/*/metrics.csv")), process)
    process.send(signal.SIGTERM)
    run = process.wait()
    assert run.status == 143, run.errors
    (folder,) = tmp_path.glob("outputs/*/*-sweep")
    place = folder.relative_to(tmp_path)
    line = run.errors.splitlines()[-1]
    says = "to go on with the sweep: python train.py"
    assert re.fullmatch(rf"train\.py: stopped by SIGTERM after epoch \d+; {says} resume={place}", line)
    assert "Test scores" in run.output
    (first,) = folder.glob("0-*/result.json")
    (second,) = folder.glob("1-*/checkpoints/last.ckpt")
    assert len(list(folder.glob("*/result.json"))) == 1
    before = first.stat().st_mtime_ns
    finished(start("resume=last", folder=tmp_path).wait())
    assert len(list(folder.glob("*/result.json"))) == 2
    assert first.stat().st_mtime_ns == before
    log = second.parents[1] / "logs/csv/version_0/metrics.csv"
    column = [row.split(",")[0] for row in log.read_text().splitlines()[1:]]
    assert column == [str(epoch) for epoch in range(1, epochs + 1)]
    (row,) = (folder / "summary.csv").read_text().splitlines()[1:]
    assert row.startswith(",2,0,")
    refused = start("resume=last", f"trainer.max_epochs={epochs + 500}", folder=tmp_path).wait()
    assert refused.status == 2
    assert "accepted: a sweep without other options" in refused.errors


def test_a_reader_that_goes_away_does_not_end_the_run(start: Callable[..., Started], tmp_path: Path) -> None:
    """As in `python train.py | head -1`, with a line of progress each time there could be one."""
    gone = "import os; reader, writer = os.pipe(); os.close(reader); os.dup2(writer, 1)"
    words = ("trainer.max_epochs=5", f"hydra.run.dir={tmp_path / 'run'}")
    finished(start(*words, folder=tmp_path, change=gone).wait())
    assert json.loads((tmp_path / "run" / "result.json").read_text())["epochs"] == 5


#: The nth step of the run with seed 0, 1, 2, ... fails by what torch and Python raise without memory.
EXHAUSTED = """
import torch
from gnnsparse.train.tasks.node import NodeClassifier
from hydra.core.hydra_config import HydraConfig

step = NodeClassifier.training_step
errors = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB\\n\\nfree."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory"),
    MemoryError(),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
    OSError(12, "Cannot allocate memory"),
]

def training_step(self, batch):
    if self.trainer.global_step == {}:
        raise errors[HydraConfig.get().job.get("num", 0)]
    return step(self, batch)

NodeClassifier.training_step = training_step
"""


@pytest.mark.parametrize("step", [0, 7])
def test_memory_that_is_used_up_in_a_step(
    start: Callable[..., Started], with_seed_1: Path, tmp_path: Path, step: int
) -> None:
    """One line for each run, which goes on from its last checkpoint, or from the beginning without one."""
    count = 6 if step else 2  # all errors once
    words = ("-m", f"seed={','.join(map(str, range(count)))}", *SHORT, "trainer.checkpoint_seconds=0")
    run = start(*words, folder=tmp_path, change=EXHAUSTED.format(step)).wait()
    assert run.status == 1, run.errors
    lines = run.errors.splitlines()
    for number, line in enumerate(lines):
        assert line.startswith("train.py: out of memory on cpu ("), line
        assert "to need less: sampler=neighbor, a smaller model; to go on as it is: python train.py" in line
        assert re.search(rf"resume=outputs/\S+-sweep/{number}-\S+$", line)
    assert len(lines) == run.output.count("failed: ") == count
    lasts = list(tmp_path.glob("outputs/*/*-sweep/*/checkpoints/last.ckpt"))
    steps = [torch.load(last, weights_only=True)["global_step"] for last in lasts]
    assert steps == [step] * (count if step else 0)
    (sweep,) = tmp_path.glob("outputs/*/*-sweep")
    finished(start(lines[1].rpartition(" ")[2], folder=tmp_path).wait())
    (folder,) = sweep.glob("1-*")
    same(with_seed_1, folder)
    finished(start("resume=last", folder=tmp_path).wait())
    assert len(list(sweep.glob("*/result.json"))) == count


#: The address space ends a quarter of a gigabyte after the beginning of the training.
LIMITED = """
import resource
import lightning.pytorch as pl

fit = pl.Trainer.fit

def limited(*args, **options):
    end = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + 2**28
    resource.setrlimit(resource.RLIMIT_AS, (end, end))
    return fit(*args, **options)

pl.Trainer.fit = limited
"""


def test_a_process_without_memory(start: Callable[..., Started], tmp_path: Path) -> None:
    """A hidden layer of 180 MB, several times; the folder is resumed where there is more memory."""
    words = ("model.hidden_channels=25000", "trainer.max_epochs=1", "device=cpu", "trainer.progress=false")
    run = start(*words, folder=tmp_path, change=LIMITED).wait()
    assert run.status == 2, run.errors
    assert re.fullmatch(r"train\.py: out of memory on cpu \(.*memory.*\); to need less: .*\n", run.errors)
    finished(start(run.errors.split()[-1], folder=tmp_path).wait())
    (result,) = tmp_path.glob("outputs/*/*/result.json")
    assert json.loads(result.read_text())["epochs"] == 1


def test_data_that_have_changed(start: Callable[..., Started], tmp_path: Path) -> None:
    """It is said what has changed, and a run goes on with it once it is told to, that one time."""
    path, made = tmp_path / "graph.npz", arrays()
    np.savez(path, **made)
    words = ("dataset=custom", f"dataset.path={path}", "trainer.max_epochs=5", "device=cpu")
    run = start(*words, "hydra.run.dir=run", folder=tmp_path).wait()
    assert run.status == 0, run.errors

    np.savez_compressed(tmp_path / "same.npz", **made)  # another file with the same content is no change
    run = start(
        "resume=run", f"dataset.path={tmp_path / 'same.npz'}", "trainer.max_epochs=6", folder=tmp_path
    ).wait()
    assert run.status == 0, run.errors

    changed = {**made, "x": made["x"] + 1, "edge_index": made["edge_index"][:, 1:]}
    np.savez(path, **{**changed, "edge_weight": made["edge_weight"][1:]})
    more = ("resume=run", f"dataset.path={path}", "trainer.max_epochs=8")
    before = json.loads((tmp_path / "run" / "result.json").read_text())
    refused = start(*more, folder=tmp_path).wait()
    count = made["edge_index"].shape[1]
    said = (
        r"train\.py: resume: the data have changed since \S*last\.ckpt was written: "
        rf"edges \({count} edges of 60 nodes before, {count - 1} edges of 60 nodes now\), weights of edges "
        rf"\({count} before, {count - 1} now\), x \(other values\); accepted: the data of before, or "
        r"resume_data=changed to go on with these\n"
    )
    assert refused.status == 2
    assert re.fullmatch(said, refused.errors), refused.errors
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == before

    finished(start(*more, "resume_data=changed", folder=tmp_path).wait())
    assert json.loads((tmp_path / "run" / "result.json").read_text())["epochs"] == 8
    again = start("resume=run", "trainer.max_epochs=9", folder=tmp_path).wait()  # those are its data now
    assert again.status == 0, again.errors
    np.savez(path, **made)
    assert start("resume=run", "trainer.max_epochs=10", folder=tmp_path).wait().status == 2


def test_data_that_have_changed_in_a_sweep(start: Callable[..., Started], tmp_path: Path) -> None:
    path, made = tmp_path / "graph.npz", arrays()
    np.savez(path, **made)
    words = ("-m", "seed=0,1", "dataset=custom", f"dataset.path={path}", "trainer.max_epochs=5", "device=cpu")
    run = start(*words, folder=tmp_path, change=KILLED.format(2)).wait()
    assert run.status == -signal.SIGKILL, run.errors
    np.savez(path, **{**made, "y": np.roll(made["y"], 1)})
    refused = start("resume=last", folder=tmp_path).wait()
    assert refused.status == 1
    assert "resume: the data have changed" in refused.errors
    assert "y (other values)" in refused.errors
    finished(start("resume=last", "resume_data=changed", folder=tmp_path).wait())
    assert len(list(tmp_path.glob("outputs/*/*-sweep/*/result.json"))) == 2
