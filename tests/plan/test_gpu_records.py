"""Records of GPUs: which one a GPU takes, what is refused, and what a fit makes of measurements."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnnsparse
from gnnsparse.bench import fit_command as fit_cases
from gnnsparse.bench.fit_command import (
    Case,
    Table,
    _resident_bytes,
    fit_record,
    measure_cases,
    quality_of,
    read_cases,
    write_cases,
)
from gnnsparse.cli.main import main
from gnnsparse.plan import Plan, choose_plan
from gnnsparse.plan.choose import kernel_of
from gnnsparse.plan.gpu_records import (
    GpuRecord,
    RecordError,
    load_record,
    record_for,
    records,
    save_record,
    using,
)
from gnnsparse.plan.gpu_records.model import panel_variant
from gnnsparse.plan.gpu_records.record import PanelVariant
from gnnsparse.runtime import device as device_module
from gnnsparse.runtime.device import Device
from gnnsparse.runtime.serialization import to_plain
from gnnsparse.testing import random_graph
from tests.gpu_paths import H200, StandInPath

A100 = Device("cuda", (8, 0), 108, 80 * 2**30, "NVIDIA A100-SXM4-80GB", 40 * 2**20)


@pytest.fixture
def user_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GNNSPARSE_GPU_RECORDS", str(tmp_path / "records"))
    return tmp_path / "records"


# Which record


def test_a_record_from_before_tiles_were_measured_is_read(tmp_path: Path) -> None:
    plain = to_plain(records()[0])
    del plain["attention"]["tiles"]
    (tmp_path / "own.json").write_text(json.dumps(plain))
    assert load_record(tmp_path / "own.json").attention.tiles == {}


def test_every_record_of_the_package_is_valid_and_named_once() -> None:
    folder = Path(gnnsparse.__file__).parent / "plan" / "gpu_records"
    files = sorted(folder.glob("*.json"))
    assert files
    names = [load_record(file).name for file in files]
    assert len(set(names)) == len(names)
    assert {record.name for record in records()} >= set(names)
    assert "NVIDIA H200" in names


def test_a_gpu_takes_its_own_record_or_the_nearest_and_the_plan_says_so() -> None:
    for device in (H200, A100):
        with device_module.use(StandInPath(None, device=device)):
            a = gnnsparse.prepare(random_graph(50, 50, 0.2), precision="fp16", cache=False)
            name = record_for(device).name
            assert (name == device.name) is (device is H200)
            for op in ("spmm", "sddmm", "attention"):
                says = f"no record of {device.name}: by that of {name}" in str(a.plan(64, op))
                assert says is (device is A100), op


def test_resemblance_is_compute_capability_then_size(user_records: Path) -> None:
    """The user's own record of a GPU wins; what is not valid is not written."""
    start = record_for(H200)
    ampere = replace(start, name="ampere", capability=(8, 0), multiprocessors=100)
    small = replace(start, name="small", multiprocessors=60, l2_bytes=30 * 2**20, memory_bytes=40 * 2**30)
    for record in (ampere, small, start):
        file = user_records / f"{record.name}.json"
        save_record(record, file)
        assert to_plain(load_record(file)) == to_plain(record)
    assert record_for(A100).name == "ampere"
    half = Device("cuda", (9, 0), 66, 48 * 2**30, "half of an H200", 30 * 2**20)
    assert record_for(half).name == "small"
    assert record_for(replace(H200, name="another name")).name == "NVIDIA H200"
    save_record(replace(start, csr=replace(start.csr, start_us=7.0)), file)
    assert record_for(H200).csr.start_us == 7.0
    with pytest.raises(RecordError, match="multiprocessors: got 0"):
        save_record(replace(start, multiprocessors=0), user_records / "wrong.json")
    assert not (user_records / "wrong.json").exists()


def test_what_a_record_does_not_have_costs_what_is_like_it() -> None:
    """A stored value of each nonzero adds as much work in words as in 16 bits, where that is known."""
    variants = {
        "half": PanelVariant(1.0, 1.0), "fp32": PanelVariant(0.5, 1.5), "half_stored": PanelVariant(0.3, 1.2)
    }  # fmt: skip
    row = replace(record_for(H200).panel.heights[32], variants=variants)
    assert panel_variant(row, "fp32") == PanelVariant(0.5, 1.5)
    assert panel_variant(row, "fp32_stored") == PanelVariant(0.5, 1.5 * 1.2)
    assert panel_variant(row, "tf32_stored") == PanelVariant(1.0, 1.2)
    assert panel_variant(row, "tf32") == panel_variant(row, "tf32_rounded") == PanelVariant(1.0, 1.0)
    less = replace(row, variants={**variants, "half_stored": PanelVariant(0.3, 0.8)})
    assert panel_variant(less, "fp32_stored") == PanelVariant(0.5, 1.5)
    without = replace(row, variants={"half": variants["half"], "fp32": variants["fp32"]})
    assert panel_variant(without, "fp32_stored") == PanelVariant(0.5, 1.5)
    given = PanelVariant(0.7, 3.0)
    assert panel_variant(replace(row, variants={**variants, "fp32_stored": given}), "fp32_stored") == given


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (("memory", "l2"), [[0, 10.0]], r"memory\.l2: has sizes"),
        (("memory", "l2"), [[0, 10.0], [5, -1.0]], r"memory\.l2\[1\]\[1\]: got -1"),
        (("memory", "pass_tbs"), 0, r"memory\.pass_tbs: got 0"),
        (("memory", "pass_tbs"), math.inf, "got inf; accepted: a finite number"),
        (("csr", "warps"), 2.5, r"csr\.warps: got 2\.5; accepted: an integer"),
        (("csr", "near"), 1.5, r"csr\.near: got 1\.5; accepted: from 0 to 1"),
        (("csr", "near"), math.nan, r"csr\.near: got nan"),
        (("multiprocessors",), 10**400, r"multiprocessors: got 1000.*integers below"),
        (("multiprocessors",), -7, r"multiprocessors: got -7"),
        (("multiprocessors",), json.loads("[" * 500 + "]" * 500), r"multiprocessors: got "),
        (("csr", "row_gather"), {"half": 1.0}, "accepted: half, tf32 and fp32"),
        (("panel", "heights"), {}, "has no row 16"),
        (("panel", "heights"), {"tall": {}}, "'tall'; accepted: a positive integer"),
        (("name",), 3, "name: got 3; accepted: a text"),
        (("surplus",), 1, "has the entry 'surplus'"),
        (("attention",), None, "attention: got NoneType; accepted: an object"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(
    tmp_path: Path, at: tuple[str, ...], value: Any, message: str
) -> None:
    content = json.loads(json.dumps(to_plain(record_for(H200))))
    inner = content
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    file = tmp_path / "record.json"
    file.write_text(json.dumps(content))
    with pytest.raises(RecordError, match=message):
        load_record(file)


def test_unreadable_files_and_missing_entries_are_named(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    with pytest.raises(RecordError, match=r"record\.json"):
        load_record(file)
    for text, problem in (("{", ""), ("[" * 100_000, ".*is damaged .RecursionError")):
        file.write_text(text)
        with pytest.raises(RecordError, match=rf"record\.json{problem}"):
            load_record(file)
    file.write_text("{}")
    with pytest.raises(RecordError, match="has no name"):
        load_record(file)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(RecordError, match="pipe"):
        load_record(file)


# The fit, on measurements that are made up


def another_gpu() -> GpuRecord:
    """A GPU whose kernels cost other things than an H200's."""
    start = record_for(H200)
    rows = {
        height: replace(
            row, warp_us=factor * row.warp_us, tile_us=factor * row.tile_us, wait_us=row.wait_us / factor
        )
        for (height, row), factor in zip(start.panel.heights.items(), (2.5, 0.6), strict=True)
    }
    csr = replace(start.csr, row_us=5 * start.csr.row_us, group_row_us=5 * start.csr.group_row_us)
    return replace(start, csr=csr, panel=replace(start.panel, heights=rows))


@pytest.fixture(scope="module")
def made_up() -> list[Case]:
    """Cases of small graphs, each plan taking what another GPU's record says, with 1 % of noise."""
    hidden, noise = another_gpu(), np.random.default_rng(0)

    def runner(kernels: Any, product: Any) -> Any:
        assert kernels.problem(product).device == H200

        def modelled(plan: Plan) -> float:
            with using(hidden):
                problem = kernels.problem(product)
                us = kernel_of(problem.op, plan).time_us(problem, plan)
            assert us is not None
            return 1e-3 * us * float(np.exp(0.01 * noise.standard_normal()))

        return modelled

    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch, device_module.use(StandInPath(None)):
        patch.setattr(fit_cases, "runner", runner)
        patch.setattr(fit_cases, "milliseconds", lambda run, plan, device, repeats: run(plan))
        patch.setattr(torch.cuda, "empty_cache", lambda: None)
        patch.setattr(
            fit_cases, "SUITE", ("dd_like:scale=0.01", "arxiv_like:scale=0.01", "arxiv_like:scale=0.05")
        )
        found = measure_cases(torch.device("cpu"), (), told.append)
    assert len(told) == 3
    return found


@pytest.mark.slow
def test_a_fit_finds_what_chooses_well(made_up: list[Case]) -> None:
    start, table = record_for(H200), Table(made_up)
    ideal = quality_of(another_gpu(), table)
    fit = fit_record(start, made_up, steps=8, tries=100)
    assert fit.before == quality_of(start, table)
    assert fit.before.lost > 5 + ideal.lost  # the start is wrong about this GPU
    assert fit.after.lost <= max(2, 0.1 * fit.before.lost)
    assert fit.after.mean > 0.995
    save = json.loads(json.dumps(to_plain(fit.record)))
    assert save["memory"] == json.loads(json.dumps(to_plain(start.memory)))  # measured, not fitted


def test_a_good_record_is_left_alone(made_up: list[Case]) -> None:
    hidden = another_gpu()
    fit = fit_record(hidden, made_up, steps=2, tries=20)
    assert fit.after.lost <= fit.before.lost
    assert fit.after.mean >= fit.before.mean - 1e-3


def test_the_table_models_what_plans_model(made_up: list[Case]) -> None:
    """Arrays of loads and single plans go through one model; they differ by how float64 rounds their sums."""
    record = another_gpu()
    modelled = Table(made_up).model(record)
    at = 0
    with using(record):
        for case in made_up:
            fresh = replace(case.problem)
            for plan in case.times:
                if plan.kernel == "window":
                    continue
                us = kernel_of(fresh.op, plan).time_us(fresh, plan)
                assert us is not None
                assert math.log(us) == pytest.approx(modelled[at], rel=1e-9)
                at += 1
    assert at == modelled.size


def test_choices_among_measured_plans_are_those_of_the_planner(made_up: list[Case]) -> None:
    record = record_for(H200)
    table = Table(made_up)
    regret = table.chosen_regret(table.model(record))
    for case, lost in zip(made_up, regret, strict=True):
        with using(record):
            plan = replace(choose_plan(replace(case.problem)), reasons=())
        if plan in case.times:
            best = min(ms for p, ms in case.times.items() if p.kernel != "window")
            # Most of what is lost is 0, so that a relative difference would say nothing.
            assert math.log(case.times[plan] / best) == pytest.approx(lost, abs=1e-9)


def test_resident_bytes_end_where_the_rate_falls() -> None:
    rates = [(4e6, 10.0), (30e6, 10.0), (60e6, 8.0), (640e6, 5.0)]
    assert 30e6 < _resident_bytes(rates) < 60e6
    assert _resident_bytes([(4e6, 10.0), (640e6, 9.9)]) == 640e6


def test_measurements_can_be_fitted_again_from_their_file(
    made_up: list[Case], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, out = tmp_path / "kept.json", tmp_path / "record.json"
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit) as end:
            main(["bench", "fit"])
        assert end.value.code == 2
        assert "--measured" in capsys.readouterr().err
    write_cases(kept, replace(record_for(H200), name="made up"), made_up, {"from": "NVIDIA H200"})
    start, cases, about = read_cases(kept)
    assert (start.name, about) == ("made up", {"from": "NVIDIA H200"})
    assert [case.times for case in cases] == [case.times for case in made_up]
    assert [case.problem for case in cases] == [case.problem for case in made_up]
    monkeypatch.setattr("gnnsparse.bench.fit_command.fit_record", lambda *a: fit_record(*a, steps=1, tries=5))
    assert main(["bench", "fit", "--measured", str(kept), "--out", str(out)]) == 0
    made = load_record(out)
    assert made.name == "made up"
    assert made.fitted["quality"]["cases"] == len(made_up)
    assert "choices below 0.97" in capsys.readouterr().out
    content = json.loads(kept.read_text())
    content["cases"][0]["times"][0][0]["kernel"] = "magic"
    kept.write_text(json.dumps(content))
    with pytest.raises(SystemExit) as end:
        main(["bench", "fit", "--measured", str(kept)])
    assert end.value.code == 2
    assert "a plan that no kernel knows" in capsys.readouterr().err
