"""`gnnsparse bench kernels --resume`: a run that goes on with the file of another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gnnsparse.bench.kernels import Bench
from gnnsparse.cli.main import main

FIRST, SECOND = "arxiv_like:scale=0.01", "dd_like:scale=0.002"
OPTIONS = ["--width", "8", "--repeats", "2", "--device", "cpu", "--precision", "fp32", "--peers", "sparse_mm"]


def bench(out: Path, *options: str) -> int:
    return main(["bench", "kernels", *OPTIONS, "--out", str(out), *options])


def times(found: dict[str, Any], graph: str) -> list[float]:
    return [row["ms"] for row in found["rows"] if row["graph"] == graph]


def test_a_run_measures_what_the_file_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.json"
    assert bench(out, "--matrix", FIRST, "--resume") == 0  # there is no file yet
    first, measured = json.loads(out.read_text()), []
    out.write_text(json.dumps({**first, "commits": ["before"]}))
    run = Bench.run_matrix
    monkeypatch.setattr(Bench, "run_matrix", lambda self, spec: (measured.append(spec.name), run(self, spec)))
    assert bench(out, "--matrix", FIRST, SECOND, "--resume") == 0
    both = json.loads(out.read_text())
    assert measured == [SECOND]
    assert both["settings"]["matrices"] == [FIRST, SECOND]
    assert both["commits"] == ["before", first["commit"]]
    assert times(both, FIRST) == times(first, FIRST)
    assert len(times(both, SECOND)) == len(times(first, FIRST))
    assert len(both["noise"]["reference_ms"]) == len(first["noise"]["reference_ms"]) + 2
    assert {mean["matrices"] for mean in both["means"]} == {2}
    capsys.readouterr()
    assert bench(out, "--matrix", SECOND, "--resume") == 0
    assert measured == [SECOND]
    assert json.loads(out.read_text()) == both  # nothing was measured, nothing written
    assert FIRST in capsys.readouterr().out  # the report is of all


def test_a_matrix_that_could_not_be_read_is_tried_again(tmp_path: Path) -> None:
    out, matrix = tmp_path / "result.json", tmp_path / "a.mtx"
    matrix.write_text("nothing")
    assert bench(out, "--matrix", str(matrix), "--values", "none") == 1
    matrix.write_text("%%MatrixMarket matrix coordinate real general\n2 2 1\n1 2 1.5\n")
    assert bench(out, "--matrix", str(matrix), "--values", "none", "--resume") == 0
    found = json.loads(out.read_text())
    assert times(found, "a.mtx")
    assert not any(case["failed"] for case in found["skipped"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"commits": None}, "no file that this benchmark wrote"),
        ({"device_name": "another"}, "device_name"),
        ({"versions": {}}, "versions"),
        ({"rows": None}, "no file that this benchmark wrote"),
        ({"skipped": [{"a": 1}]}, "no file that this benchmark wrote"),
        (None, "no file that this benchmark wrote"),
    ],
)
def test_a_file_of_another_run_is_refused(
    tmp_path: Path, change: dict[str, Any] | None, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.json"
    bench(out, "--matrix", FIRST)
    text = "[" if change is None else json.dumps({**json.loads(out.read_text()), **change})
    out.write_text(text)
    with pytest.raises(SystemExit) as stopped:
        bench(out, "--matrix", SECOND, "--resume")
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err
    assert out.read_text() == text


def test_other_options_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "result.json"
    bench(out, "--matrix", FIRST)
    with pytest.raises(SystemExit):
        bench(out, "--matrix", SECOND, "--values", "none", "--resume")
    assert "values" in capsys.readouterr().err
