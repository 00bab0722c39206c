"""`python train.py experiment=NAME` as a user runs it, in processes of its own."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.started import Run, Started, wait_for

RUN = ("dataset=digits", "model=gcn", "device=cpu", "trainer.max_epochs=8")
SMALL = ("experiment=precision", "seeds=2", *RUN)


def study_of(run: Run) -> dict[str, Any]:
    return json.loads((run.folder / "study.json").read_text())


@pytest.fixture(scope="module")
def small(train: Callable[..., Run]) -> Run:
    return train(*SMALL, "precision=fp32,fp16", fresh=True)


def test_a_small_study(small: Run) -> None:
    assert small.status == 0, small.errors
    found = study_of(small)
    assert [(row["variant"], row["seeds"]) for row in found["rows"]] == [("fp32", [0, 1]), ("fp16", [0, 1])]
    for row in found["rows"]:
        assert all(20 < score <= 100 for score in row["scores"])
        assert row["epochs"] == 8
        assert row["epoch_milliseconds"] > 0
        assert row["peak_memory_bytes"] > 2**26
    assert found["rows"][1]["compared_seeds"] == 2
    assert (found["failed"], found["unfinished"], found["skipped"]) == ([], 0, [])
    assert "Test scores in per cent" in small.output
    assert "4/4 gcn on digits, fp16, seed 1" in small.errors
    names = {str(path.relative_to(small.folder)) for path in small.folder.rglob("*") if path.is_file()}
    runs = {f"runs/digits-gcn-{p}-seed{s}.json" for p in ("fp32", "fp16") for s in (0, 1)}
    assert runs | {"study.json", "study.md", "study.csv", "run.lock"} <= names
    assert names <= runs | {"study.json", "study.md", "study.csv", "study.png", "run.lock"}


def test_a_score_is_that_of_a_single_run(small: Run, train: Callable[..., Run]) -> None:
    single = train(*RUN, "seed=1", "precision=fp16").result
    kept = json.loads((small.folder / "runs" / "digits-gcn-fp16-seed1.json").read_text())
    assert (kept["metrics"], kept["best_epoch"]) == (single["metrics"], single["best_epoch"])


def test_a_study_goes_on(small: Run, train: Callable[..., Run]) -> None:
    """Finished runs are not trained again, missing ones are, and lists may grow."""
    kept = small.folder / "runs" / "digits-gcn-fp32-seed0.json"
    before = kept.stat().st_mtime_ns
    (small.folder / "runs" / "digits-gcn-fp16-seed0.json").unlink()
    more = train(*SMALL, "precision=fp32,fp16,bf16", "peers=pyg", folder=small.folder)
    assert more.status == 0, more.errors
    assert "3 of 8 runs are finished" in more.errors
    assert kept.stat().st_mtime_ns == before
    rows = study_of(more)["rows"]
    assert [row["variant"] for row in rows] == ["fp32", "fp16", "bf16", "pyg"]
    assert rows[0]["scores"] == rows[3]["scores"]  # PyG's layers, from the same seeds and weights
    again = train(*SMALL, "precision=fp32,fp16", folder=small.folder, GNNSPARSE_COMMIT="later")
    assert "later" not in [study_of(again)["commit"], *study_of(again)["commits"]]  # nothing was trained then
    assert "4 of 4 runs are finished" in again.errors
    assert again.status == 0


def test_a_changed_option_is_refused(small: Run, train: Callable[..., Run]) -> None:
    before = (small.folder / "study.json").read_bytes()
    run = train(*SMALL, "optimizer.lr=0.02", folder=small.folder)
    assert run.status == 2
    last = run.errors.strip().splitlines()[-1]
    assert "optimizer.lr = 0.01, and this study has 0.02; accepted: another folder" in last
    assert (small.folder / "study.json").read_bytes() == before


@pytest.mark.gpu
def test_a_study_on_a_gpu(train: Callable[..., Run]) -> None:
    """Every precision learns, its memory is the GPU's, and PyG trains beside it."""
    options = [option for option in SMALL if not option.startswith(("device=", "trainer."))]
    run = train(*options, "device=cuda", "peers=pyg", "trainer.max_epochs=60", fresh=True)
    assert run.status == 0, run.errors
    rows = study_of(run)["rows"]
    assert [row["variant"] for row in rows] == ["fp32", "tf32", "fp16", "bf16", "pyg"]
    for row in rows:
        assert row["device"] == "cuda"
        assert row["mean"] > 90
        assert 2**16 < row["peak_memory_bytes"] < 2**30


def test_failing_runs_are_reported_tried_again_and_do_not_end_the_study(
    train: Callable[..., Run], tmp_path: Path
) -> None:
    """One data set is missing, and the other diverges in the first epochs."""
    options = [option for option in SMALL if not option.startswith("dataset=")]
    diverging = ("precision=fp32,fp16", "optimizer.lr=1e30", f"data={tmp_path}")
    failing = train(*options, "dataset=cora,digits", *diverging)
    assert failing.status == 1
    found = study_of(failing)
    reasons = {entry["run"]: entry["reason"] for entry in found["failed"]}
    assert len(reasons) == 8
    assert "data: no folder in" in reasons["gcn on cora, fp16, seed 1"]
    assert "FloatingPointError: training diverged" in reasons["gcn on digits, fp32, seed 0"]
    assert found["rows"] == []
    assert "FAILED: gcn on cora, fp32, seed 0 and 3 more: data: no folder in" in failing.output
    assert failing.errors.count("FAILED: ") == 8
    run = train(*SMALL, "precision=fp32", "optimizer.lr=1e30", folder=failing.folder)
    assert "0 of" not in run.errors
    assert "FAILED: FloatingPointError" in run.errors
    assert run.status == 1


def test_an_interrupted_study_reports_what_it_has(start: Callable[..., Started], tmp_path: Path) -> None:
    folder = tmp_path / "study"
    process = start(SMALL[0], "seeds=500", *RUN, f"hydra.run.dir={folder}", folder=tmp_path)
    wait_for(lambda: len(list(folder.glob("runs/*.json"))) >= 3, process)
    process.send(signal.SIGINT)
    run = process.wait()
    assert run.status == 130
    assert "the same command goes on" in run.errors
    found = json.loads((folder / "study.json").read_text())
    finished = len(list(folder.glob("runs/*.json")))
    assert found["unfinished"] == 4 * 500 - finished
    assert f"Unfinished: {found['unfinished']} runs." in run.output
    assert len(found["rows"][0]["seeds"]) == finished
