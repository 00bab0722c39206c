"""Stories of scores: three precisions in one report, classes by name, and the best epoch by macro-F1."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from tests.stories.test_own_tables import SHORT, TRAIN, run, write


@pytest.mark.slow
def test_three_precisions_in_one_report(tmp_path: Path) -> None:
    sweep = "python train.py -m precision=fp32,fp16,bf16 trainer.max_epochs=3 trainer.plots=false device=cpu"
    done = run(f"{sweep} hydra.sweep.dir=sweep", tmp_path)
    assert done.status == 0, done.errors
    done = run("gnnsparse report sweep --out page.html --markdown page.md", tmp_path)
    assert (done.status, done.errors) == (0, "")
    *table, last, markdown = done.output.splitlines()
    assert [row.split()[1] for row in table if "MiB" in row] == ["fp32", "fp16", "bf16"]
    assert any("test macro f1" in row and "peak memory" in row for row in table)
    assert (last.endswith(" kB; open it in a browser"), markdown) == (True, "page.md")
    text, page = (tmp_path / "page.md").read_text(), (tmp_path / "page.html").read_text()
    rows = [line.split(" | ") for line in text.splitlines() if "| digits |" in line]
    assert [row[3] for row in rows] == ["fp32", "fp16", "bf16"]
    assert "test macro f1" in text
    assert page.count("validation accuracy") == 1
    for output in (done.output, text, page):
        assert "compared" not in output
        assert "lose" not in output


@pytest.mark.slow
def test_the_best_epoch_by_macro_f1_and_a_row_for_each_class(tmp_path: Path) -> None:
    write(tmp_path / "papers", "paper=id size field=label")
    done = run(f"{TRAIN} dataset.metric=macro_f1 {SHORT}", tmp_path)
    assert done.status == 0, done.errors
    assert "beside result.json: classes.csv (scores of each class), README.md (model card), " in done.output
    result = done.result()
    log = list(csv.DictReader(io.StringIO((tmp_path / "run/logs/csv/version_0/metrics.csv").read_text())))
    scores = [float(row["val/macro_f1"]) for row in log]
    assert result["best_epoch"] == 1 + scores.index(max(scores))
    assert list(result["metrics"]["test"]) == ["macro_f1", "accuracy"]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "run/classes.csv").read_text())))
    assert [row["class"] for row in rows] == [row["class"] for row in result["classes"]] == ["law", "math"]
    mean = sum(float(row["f1"]) for row in rows) / 2
    assert result["metrics"]["test"]["macro_f1"] == pytest.approx(mean, abs=1e-6)
