"""benchmarks.published_levels: which runs are repeated, and what rows say of their scores."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.published_levels import (
    CASES,
    MACHINE,
    RUNS,
    commands_of,
    curve_of,
    kept_rows,
    row_of,
    run_once,
)

#: Stands in for train.py: it writes its result and its curve into the folder of the run, as a new version.
TRAIN = """
import json, pathlib, sys
run = pathlib.Path(sys.argv[-1].partition("=")[2])
logs = run / "logs" / "csv"
log = logs / f"version_{len(list(logs.glob('*')))}"
log.mkdir(parents=True)
(log / "metrics.csv").write_text("epoch,val/accuracy\\n0,0.5\\n0,\\n1,0.75\\n")
if "fail" in sys.argv:
    sys.exit(3)
(run / "result.json").write_text(json.dumps({"seconds": 1}))
"""


def test_a_run_that_was_interrupted_is_begun_anew_and_one_that_ended_is_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TRAIN]
    with pytest.raises(RuntimeError, match=r"output\.txt: train\.py ended with status 3"):
        run_once([*command, "fail"], tmp_path)
    assert run_once(command, tmp_path) == {"seconds": 1}
    assert curve_of(tmp_path, "accuracy") == [0.5, 0.75]
    assert run_once(["nothing would run"], tmp_path) == {"seconds": 1}


def result(score: float) -> dict[str, Any]:
    return {"metrics": {"test": {"accuracy": score}}, "fit_seconds": 2.0, **dict.fromkeys(MACHINE, "here")}


def test_a_row_has_the_mean_beside_the_published_one() -> None:
    case = CASES["gin-proteins"]
    row = row_of("gin-proteins", case, [result(0.70), result(0.72)], [])
    assert row["scores"] == pytest.approx([70, 72])
    assert (row["mean"], row["standard_deviation"]) == pytest.approx((71, 2**0.5))
    assert row["within_deviation"]  # of 73.3 +- 4.0
    assert not row_of("gin-proteins", case, [result(0.69), result(0.69)], [])["within_deviation"]


def test_the_epoch_of_the_best_mean_counts_with_folds_as_validation(tmp_path: Path) -> None:
    folders = [tmp_path / str(fold) for fold in range(2)]
    for folder, curve in zip(folders, ("0.9,0.6", "0.1,0.6"), strict=True):
        folder.mkdir()
        (folder / "metrics.csv").write_text("val/accuracy\n" + curve.replace(",", "\n") + "\n")
    row = row_of("gin-proteins-xu", CASES["gin-proteins-xu"], [result(0.0)] * 2, folders)
    assert (row["epoch"], row["scores"]) == (2, pytest.approx([60, 60]))


def test_each_case_has_its_commands_and_other_rows_are_kept(tmp_path: Path) -> None:
    for case in CASES.values():
        commands = commands_of(case, tmp_path, "cpu")
        assert len({tuple(command) for command in commands}) == RUNS
        assert all(("trainer.val_every=1" in command) == case.best_mean for command in commands)
    file = tmp_path / "rows.json"
    assert kept_rows(file, []) == kept_rows(None, []) == []
    file.write_text(json.dumps({"rows": [{"case": "gin-dd"}, {"case": "sage-ddi"}]}))
    assert kept_rows(file, ["gin-dd"]) == [{"case": "sage-ddi"}]
