"""The benchmark of the papers' formats: what it measures, and that it goes on where it stopped."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gnnsparse.bench.arguments import parse_matrix
from gnnsparse.bench.kernels import Settings
from gnnsparse.formats import PRESETS
from gnnsparse.precision import Precision
from papers.speed import PAPER_FORMATS, FormatCase, PresetBench, precision_of
from tests.scripts import load_script

presets = load_script("../benchmarks/presets")

MATRIX = "arxiv_like:scale=0.01"


def run(device: str, cases: tuple[FormatCase, ...], **settings: Any) -> PresetBench:
    settings = {"precisions": ("fp16",), "widths": (32,), "values": ("random",), **settings}
    bench = PresetBench(
        Settings(tuple(parse_matrix(MATRIX)), device=device, kernels=("auto",), repeats=2, **settings)
    )
    bench.cases = cases
    bench.run()
    return bench


def test_every_format_is_measured_and_right(device: str) -> None:
    for name in PAPER_FORMATS:
        precision = precision_of(name)
        bench = run(device, (FormatCase(name, "mine"), FormatCase(name, "ordered", reorder="degree")),
                    precisions=(precision,))  # fmt: skip
        assert [row["kernel"] for row in bench.rows] == ["auto", "mine", "ordered"], bench.skipped
        assert all(row["ok"] and row["ours"] and row["ms"] > 0 for row in bench.rows), bench.rows
        if device == "cuda":  # the format's own kernel, not the one that auto chooses
            assert not any(row["plan"].startswith("csr") for row in bench.rows[1:])


def test_a_case_that_can_not_run_is_named_with_the_reason(device: str) -> None:
    plain = FormatCase("me-bcrs", "plain", policy={"no_such_switch": True})
    bench = run(device, (plain, FormatCase("hrpb", "64", panel=64)), precisions=("tf32",))
    assert [row["kernel"] for row in bench.rows] == ["auto"]
    reasons = {skipped["name"]: skipped["reason"] for skipped in bench.skipped}
    assert set(reasons) == {"plain", "64"}
    assert "panel: got 64" in reasons["64"]


def test_a_format_is_measured_in_the_first_precision_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    only = SimpleNamespace(precisions=(Precision.FP32, Precision.TF32))
    monkeypatch.setitem(PRESETS._entries, "hrpb", only)
    assert precision_of("hrpb") == "tf32"
    assert precision_of("hrpb", ("fp32", "tf32")) == "fp32"
    assert precision_of("hrpb", ("fp16",)) == "fp16"  # refused when it is prepared, with the reason
    with pytest.raises(ValueError, match="format: got 'ell'"):
        precision_of("ell")


@pytest.mark.gpu
def test_switches_of_a_policy_are_changed() -> None:
    cases = (
        FormatCase("me-bcrs", "coalesced"),
        FormatCase("me-bcrs", "plain", policy={"x_load": "plain", "shuffle": False}),
        FormatCase("me-bcrs", "16x1", panel=16, policy={"swapped": False}),
        FormatCase("me-bcrs", "no", policy={"k": 4}),
    )
    bench = run("cuda", cases)
    assert [row["kernel"] for row in bench.rows] == ["auto", "coalesced", "plain", "16x1"]
    assert all(row["ok"] for row in bench.rows), bench.rows
    (skipped,) = bench.skipped
    assert "no mma of depth 4 in fp16" in skipped["reason"]


def arguments(tmp_path: Path, *more: str) -> list[str]:
    return ["graphs", "--device", "cpu", "--scale", "0.01", "--repeats", "1", "--formats", "me-bcrs",
            "--precision", "fp16", "--out", str(tmp_path / "out.json"), *more]  # fmt: skip


def test_the_script_goes_on_with_a_file_of_the_same_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(presets, "GENERATED_GRAPHS", ("arxiv_like", "dd_like"))
    assert presets.main(arguments(tmp_path)) == 0
    whole = json.loads((tmp_path / "out.json").read_text())
    first = [row for row in whole["rows"] if row["graph"].startswith("arxiv_like")]
    assert len(first) < len(whole["rows"])
    (tmp_path / "out.json").write_text(json.dumps({**whole, "rows": first}))
    capsys.readouterr()
    assert presets.main(arguments(tmp_path)) == 0
    assert "arxiv_like" not in capsys.readouterr().err
    again = json.loads((tmp_path / "out.json").read_text())
    assert again["rows"][: len(first)] == first
    assert [row["kernel"] for row in again["rows"]] == [row["kernel"] for row in whole["rows"]]
    with pytest.raises(SystemExit):
        presets.main(arguments(tmp_path, "--precision", "bf16"))
    assert "was measured with precisions" in capsys.readouterr().err
    assert json.loads((tmp_path / "out.json").read_text()) == again


def test_pruned_weights_need_their_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        presets.main(["dlmc", "--out", str(tmp_path / "out.json")])
    assert "--data: dlmc needs the folder that has a folder dlmc" in capsys.readouterr().err
