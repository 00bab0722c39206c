"""benchmarks/counters.py: what it makes of the table of `ncu`, and the cases without a GPU."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import counters
from gnnsparse.bench.arguments import MatrixSpec
from gnnsparse.bench.kernels import Settings


def table(*kernels: tuple[str, float]) -> str:
    """What `ncu --csv --page raw` writes of launches of some nanoseconds, among its other lines."""
    out = io.StringIO()
    columns = ["ID", "Kernel Name", *counters.METRICS.values(), counters.STALL.format("wait"), "other"]
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(columns)
    writer.writerow(["", "", "ns", *["byte"] * (len(columns) - 3)])
    for number, (name, ns) in enumerate(kernels):
        rest = ["1,234.5"] * (len(counters.METRICS) - 1)
        writer.writerow([number, name, f"{ns:,.0f}", *rest, "0.25", "n/a"])
    return f"==PROF== Connected to process 7\n{out.getvalue()}==PROF== Disconnected\n"


def test_launches_are_those_before_each_mark() -> None:
    mark = f"{counters.MARK}(long)"
    text = table(
        ("pad(float)", 1500), ("csr<4>(int)", 20), (mark, 1), ("csrmv_v3", 1e6), (mark, 1), ("late", 1)
    )
    ours, theirs = counters.launches(text)
    assert [(one["kernel"], one["ns"]) for one in ours] == [("pad(float)", 1500.0), ("csr<4>(int)", 20.0)]
    assert [(one["kernel"], one["ns"]) for one in theirs] == [("csrmv_v3", 1e6)]
    assert theirs[0]["dram_read"] == 1234.5
    assert theirs[0]["stalls"] == {"wait": 0.25}
    assert counters.launches("==ERROR== The user has no permission\n") == []


def test_hubs_have_many_neighbours_and_the_others_few() -> None:
    degrees = counters.Hubs("hubs").load("cpu", nodes=2000, hubs=3).csr.degrees
    assert degrees.numel() == 2000
    # 440 drawn of 2,000 have repeats, of which one is left.
    assert bool((degrees[:3] > 350).all())
    assert bool((degrees[3:] <= 8).all())
    assert bool((degrees[3:] >= 6).any())


def test_the_rows_are_written_and_say_that_there_are_no_counters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "counters.json"
    small = [MatrixSpec("dd_like", generator="dd_like", scale=0.002)]
    asked = [Settings(tuple(small), widths=(1, 6), precisions=("fp32",), kernels=("auto", "csr"), repeats=2)]
    monkeypatch.setattr(counters, "cases", lambda options: asked)

    def here(command: list[str]) -> SimpleNamespace:
        assert counters.main(command[3:]) == 0
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(counters, "subprocess", SimpleNamespace(run=here))
    assert counters.main(["--device", "cpu", "--out", str(out)]) == 0
    content = json.loads(out.read_text())
    assert [(row["kernel"], row["width"], row["ok"]) for row in content["rows"]] == [
        ("auto", 1, True),
        ("csr", 1, True),
        ("auto", 6, True),
        ("csr", 6, True),
    ]
    # The plan takes csr, which is not called again.
    assert content["problem"].startswith("0 of 2 calls have counters")
    assert "counted" not in content["rows"][0]
    assert torch.device(content["device"]).type == "cpu"
    assert "0 of 2 calls" in capsys.readouterr().out


def test_ncu_is_asked_for_less_where_it_refuses_and_left_out_where_it_begins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, begun = tmp_path / "counters.json", list[list[str]]()
    out.write_text("of an earlier run")

    def refuse(command: list[str]) -> SimpleNamespace:
        begun.append(command)
        if command[0] == "ncu":
            Path(command[command.index("--log-file") + 1]).write_text("==ERROR== Failed to find metric\n")
            return SimpleNamespace(returncode=1)
        out.write_text(json.dumps({"rows": []}))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(counters, "subprocess", SimpleNamespace(run=refuse))
    monkeypatch.setattr(counters, "shutil", SimpleNamespace(which=lambda name: name))
    assert counters.main(["--out", str(out)]) == 0
    asked = [command[command.index("--metrics") + 1] for command in begun if "--metrics" in command]
    assert ["stalled" in metrics for metrics in asked] == [True, False]
    assert begun[2][1:] == ["-m", "benchmarks.counters", "--out", str(out), "--here"]
    assert json.loads(out.read_text()) == {"rows": [], "problem": ""}
