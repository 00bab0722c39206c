"""train.py that is ended at random moments and goes on as if it had not been; sweeps in which runs fail."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.e2e.conftest import environment_with
from tests.e2e.launch import TRAIN, Run, Started

#: Epochs of a run that takes a few seconds, most of them in its epochs, on a machine with nothing else to do.
EPOCHS = 2000
LONG = (f"trainer.max_epochs={EPOCHS}", "model.hidden_channels=4", "device=cpu", "seed=3")
STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}


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


@pytest.fixture(scope="module")
def whole(start: Callable[..., Started], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nobody has interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    run = start(*LONG, f"hydra.run.dir={folder}", folder=folder).wait()
    assert run.status == 0, run.errors
    return folder


def wait_for(condition: Callable[[], object], process: Started) -> None:
    end = time.monotonic() + 120
    while not condition() and process.runs:
        assert time.monotonic() < end
        time.sleep(0.01)


def logged(folder: Path) -> int:
    """Bytes of the logs of all runs below a folder."""
    return sum(log.stat().st_size for log in folder.glob("outputs/*/*/logs/csv/*/metrics.csv"))


def begun(folder: Path) -> int:
    """When the last run below a folder began."""
    return max((mark.stat().st_mtime_ns for mark in folder.glob("outputs/*/*/run.lock")), default=0)


def test_signals_at_random_moments(start: Callable[..., Started], whole: Path, tmp_path: Path) -> None:
    """Each time one line says how to go on, which is done, and in the end nothing shows of it."""
    draw, folders, interrupted = random.Random(19), set(), 0
    words, status = LONG, None
    for early in [True, False, False, True, False, *[None] * 5]:
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
        status = run.status
        if status == 0:
            break
        assert status == STATUS[signum], run.errors
        assert run.errors.startswith(f"train.py: stopped by {signum.name}")
        assert run.errors.count("\n") == 1
        found = list(tmp_path.glob("outputs/*/*/checkpoints/last.ckpt"))
        if go_on := re.search(r"after epoch (\d+); to go on: python train\.py (resume=\S+)\n", run.errors):
            (last,) = found
            assert torch.load(last, weights_only=True)["global_step"] == int(go_on[1])
            words = (draw.choice([go_on[2], "resume=last"]),)
            interrupted += 1
        elif "after the last epoch" in run.errors:  # all is done but the exit status
            status = 0
            folders |= {path.parents[1] for path in found}
            break
        else:
            assert "before training began" in run.errors
            assert bool(found) == bool(folders), "what was there before is left, and nothing else"
            assert found or not (tmp_path / "outputs").exists()
        folders |= {path.parents[1] for path in found}
    assert status == 0
    assert interrupted >= 2
    (folder,) = folders
    same(whole, folder)


def test_a_run_that_is_killed_loses_ten_seconds_at_most(
    start: Callable[..., Started], whole: Path, tmp_path: Path
) -> None:
    """With the defaults; the log goes on where the checkpoint is, and its rows after it are not doubled."""
    last = tmp_path / "checkpoints" / "last.ckpt"
    slow = [word for word in LONG if not word.startswith("trainer.")]
    process = start(*slow, "trainer.max_epochs=100000", f"hydra.run.dir={tmp_path}", folder=tmp_path)
    wait_for(last.exists, process)
    time.sleep(random.Random(9).uniform(0, 1.5))
    process.send(signal.SIGKILL)
    killed = time.time()
    assert process.wait().status == -9
    assert killed - last.stat().st_mtime < 10
    done = torch.load(last, weights_only=True)["global_step"]
    more = start("resume=.", f"trainer.max_epochs={max(done + 5, EPOCHS)}", folder=tmp_path).wait()
    assert more.status == 0, more.errors
    rows = (tmp_path / "logs/csv/version_0/metrics.csv").read_text().splitlines()[1:]
    column = [row.split(",")[0] for row in rows]
    assert column == [str(epoch) for epoch in range(1, max(done + 5, EPOCHS) + 1)]
    if done + 5 <= EPOCHS:
        same(whole, tmp_path)
    else:  # a fast machine: what both have done is equal
        assert rows[:EPOCHS] == outcome(whole)[1].splitlines()[1:]


def test_a_run_that_was_begun_for_longer_is_not_resumed_for_less(
    start: Callable[..., Started], whole: Path
) -> None:
    run = start(f"resume={whole}", folder=whole).wait()
    assert run.status == 2
    assert f"trainer.max_epochs: got {EPOCHS}; accepted: more than {EPOCHS}" in run.errors


#: train.py in a process that ends, without a chance to do anything, when a model is scored for the nth time.
KILLED = """
import os, runpy, signal, sys
import lightning.pytorch as pl

count, score = int(sys.argv.pop(1)), pl.Trainer.test

def test(*args, **options):
    global count
    count -= 1
    if count == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return score(*args, **options)

pl.Trainer.test = test
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def kill_at_score(number: int, *words: str, folder: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(number), str(TRAIN), *words]
    environment = environment_with(folder.parent / f"{folder.name}-cache")
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("early", [False, True])
def test_a_run_that_was_killed_before_its_scores_is_finished(
    start: Callable[..., Started], tmp_path: Path, early: bool
) -> None:
    """After its last epoch, or where it stopped early. A run that has its scores is not resumed."""
    words = ["trainer.max_epochs=60", "device=cpu", "trainer.plots=true"]
    words += ["trainer.patience=3", "optimizer.lr=0.1"] if early else []
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    run = start(*words, f"hydra.run.dir={whole}", folder=whole).wait()
    assert run.status == 0, run.errors
    kill_at_score(1, *words, "hydra.run.dir=.", folder=killed)
    assert not (killed / "result.json").exists()
    run = start("resume=.", folder=killed).wait()
    assert (run.status, run.errors) == (0, "")
    assert "best epoch" in run.output
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
    start: Callable[..., Started], tmp_path: Path
) -> None:
    words = ["-m", "seed=0,1,2", "trainer.max_epochs=20", "device=cpu"]
    kill_at_score(2, *words, folder=tmp_path)
    assert len(list(tmp_path.glob("outputs/*/*-sweep/*/result.json"))) == 1
    run = start("resume=last", folder=tmp_path).wait()
    assert run.status == 0, run.errors
    results = sorted(tmp_path.glob("outputs/*/*-sweep/*/result.json"))
    assert [json.loads(file.read_text())["epochs"] for file in results] == [20, 20, 20]
    (summary,) = tmp_path.glob("outputs/*/*-sweep/summary.csv")
    assert summary.read_text().splitlines()[1].startswith(",3,0,")
    whole = tmp_path / "whole"
    whole.mkdir()
    alone = start("seed=1", *words[2:], f"hydra.run.dir={whole}", folder=tmp_path).wait()
    assert alone.status == 0, alone.errors
    same(whole, results[1].parent)


SWEEP = ("-m", "seed=0,1", "optimizer.lr=0.01,1e38", "trainer.max_epochs=20", "trainer.log_every=5")


def test_a_sweep_goes_on_past_a_run_that_fails(start: Callable[..., Started], tmp_path: Path) -> None:
    run = start(*SWEEP, "model.dropout=0.5,2", folder=tmp_path).wait()
    assert run.status == 1, run.errors
    assert run.errors.count("training diverged") == 2
    assert run.errors.count("train.py: model.dropout: got 2; accepted: a number in [0, 1)") == 4
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
    assert rows[0] == ["options", "runs", "failed", "accuracy mean", "accuracy standard deviation"]
    assert rows[1][:3] == ["optimizer.lr=0.01 model.dropout=0.5", "2", "0"]
    assert [float(cell) for cell in rows[1][3:]] == pytest.approx([mean, deviation])
    assert [row[1:] for row in rows[2:]] == [["0", "2", "", ""]] * 3
    failed = [line for line in run.output.splitlines() if line.startswith("failed: ")]
    assert len(failed) == 6
    assert failed[0].startswith("failed: 1 (seed=0 optimizer.lr=0.01 trainer.max_epochs=20 ")
    assert failed[0].endswith("model.dropout=2): model.dropout: got 2; accepted: a number in [0, 1)")


def test_a_sweep_that_is_interrupted_goes_on(start: Callable[..., Started], tmp_path: Path) -> None:
    """The run that was interrupted from its checkpoint, those before it not again."""
    process = start("-m", "seed=0,1", *LONG[:3], folder=tmp_path)
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
    more = start("resume=last", folder=tmp_path).wait()
    assert more.status == 0, more.errors
    assert len(list(folder.glob("*/result.json"))) == 2
    assert first.stat().st_mtime_ns == before
    log = second.parents[1] / "logs/csv/version_0/metrics.csv"
    column = [row.split(",")[0] for row in log.read_text().splitlines()[1:]]
    assert column == [str(epoch) for epoch in range(1, EPOCHS + 1)]
    (row,) = (folder / "summary.csv").read_text().splitlines()[1:]
    assert row.startswith(",2,0,")
    refused = start("resume=last", f"trainer.max_epochs={EPOCHS + 500}", folder=tmp_path).wait()
    assert refused.status == 2
    assert "accepted: a sweep without other options" in refused.errors


def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path: Path) -> None:
    """As in `python train.py | head -1`, with a line of progress each time there could be one."""
    environment = environment_with(tmp_path / "cache")
    words = [sys.executable, str(TRAIN), "trainer.max_epochs=5", f"hydra.run.dir={tmp_path / 'run'}"]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
    )
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    errors = process.communicate()[1]
    assert (process.returncode, errors) == (0, "")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["epochs"] == 5


def test_lines_of_progress_in_a_log_file(train: Callable[..., Run], whole: Path) -> None:
    """Whether there is one depends on how fast the machine is; what is printed is nothing else."""
    process = train(*LONG[1:], "trainer.max_epochs=50")
    assert process.status == 0, process.errors
    place = r"epoch \d+ of 50: train/loss \S+, val/loss \S+, val/accuracy \S+; \d+:\d\d:\d\d left"
    assert all(re.fullmatch(place, line) for line in process.output.splitlines() if line.startswith("epoch "))
    assert os.linesep not in process.errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["resume=last"], "resume: got last, but there is no run in "),
        (["resume=nowhere"], "resume: there is no file nowhere; accepted: last, the folder of a run"),
        (["resume=empty"], "resume: empty has no checkpoint checkpoints/last.ckpt; accepted: last, "),
    ],
)
def test_nothing_to_go_on_with(
    words: list[str], said: str, start: Callable[..., Started], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    run = start(*words, folder=tmp_path).wait()
    assert (run.status, run.output, run.errors.count("\n")) == (2, "", 1)
    assert run.errors.startswith(f"train.py: {said}")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
