"""`gnnsparse doctor`: what it finds on machines where something is off, and that it finds a wrong kernel."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import gnnsparse
from gnnsparse import _native
from gnnsparse.cli import doctor, self_test
from gnnsparse.cli.doctor import BROKEN, NOTE, OK, OPTIONAL_PACKAGES, Section
from gnnsparse.cli.main import main
from gnnsparse.cli.self_test import cases_of
from gnnsparse.data import load_dataset
from gnnsparse.ops import sddmm_kernels
from gnnsparse.plan import KERNELS
from gnnsparse.precision import Precision
from gnnsparse.runtime.device import Device
from gnnsparse.testing import random_graph
from tests.helpers import overwrite


def texts(section: Section, level: str) -> list[str]:
    return [finding.text for finding in section.findings if finding.level == level]


def run_json(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    status = main(["doctor", "--json", *options])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_every_kernel_of_a_healthy_machine_is_right(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = run_json(capsys, "--seconds", "120")
    broken = [f for s in found["sections"].values() for f in s["findings"] if f["level"] == BROKEN]
    assert (status, found["broken"], broken) == (0, 0, [])
    assert set(found["sections"]) == {"Packages", "GPU", "CPU", "Cache", "Self-test"}
    facts = found["sections"]["Self-test"]["facts"]
    assert facts["left_out"] == 0
    assert facts["cases"] == len(facts["results"]) > 100
    for op, precision in itertools.product(("spmm", "sddmm", "attention"), Precision):
        case = device, op, precision.value
        tested = {r["kernel"] for r in facts["results"] if (r["device"], r["op"], r["precision"]) == case}
        # Those of other libraries are compared with exact results where they are used first.
        runnable = {k.name for k in KERNELS[op] if device in k.devices and not hasattr(k, "module")}
        assert tested <= runnable
        assert tested == runnable or precision not in (Precision.FP16, Precision.BF16)
    if device == "cuda":
        (gpu, *_) = found["sections"]["GPU"]["facts"]["gpus"]
        assert gpu["fit"] in ("built", "ptx")
        assert found["sections"]["GPU"]["facts"]["driver_cuda"] is not None


def test_the_text_names_every_section_and_a_check_that_fails_is_a_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["doctor", "--seconds", "0"]) == 0
    printed = capsys.readouterr().out
    versions = f"gnnsparse {gnnsparse.__version__}", f"torch {torch.__version__}"
    for text in (*versions, "no kernel was tested", "Cache", "0 broken"):
        assert text in printed
    monkeypatch.setattr(doctor, "check_cache", mock.Mock(side_effect=OSError("no such disk")))
    status, found = run_json(capsys, "--seconds", "0")
    assert status == 1
    (finding,) = found["sections"]["Cache"]["findings"]
    assert finding["level"] == BROKEN
    assert "no such disk" in finding["text"]


def test_missing_packages_are_named_with_what_they_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version

    def without(name: str) -> str:
        if name in OPTIONAL_PACKAGES:
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without)
    section = doctor.check_packages()
    notes = [finding for finding in section.findings if finding.level == NOTE]
    assert len(notes) == len(OPTIONAL_PACKAGES)
    assert all("pip install" in finding.advice for finding in notes)
    assert "dgl is not installed: DGL models need it" in texts(section, NOTE)
    assert texts(section, BROKEN) == []
    assert section.facts["optional"] == dict.fromkeys(OPTIONAL_PACKAGES)
    assert section.facts["required"]["torch"] == torch.__version__
    assert section.facts["required"]["numpy"] == version("numpy")


@pytest.mark.slow
def test_no_optional_package_is_imported() -> None:
    """Help imports no peer; with the packages out of reach the doctor says which are missing."""
    blocked = [*(name.replace("-", "_") for name in OPTIONAL_PACKAGES), "torch_geometric", "hydra", "sklearn"]
    code = f"""
import sys
from importlib import metadata
from gnnsparse.cli.main import main
try: main(["bench", "kernels", "--help"])
except SystemExit as end: assert end.code == 0
assert not {{"torch_geometric", "dgl", "matplotlib", "scipy"}} & set(sys.modules)
sys.modules.update(dict.fromkeys({blocked}))
version = metadata.version
def without(name):
    if name in {list(OPTIONAL_PACKAGES)}: raise metadata.PackageNotFoundError(name)
    return version(name)
metadata.version = without
sys.exit(main(["doctor", "--seconds", "0.2"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for text in (
        "--peers",
        "none of the optional packages is installed",
        "lightning is not installed: gnnsparse.train and train.py need it",
    ):
        assert text in done.stdout


def test_the_cache_is_described(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gnnsparse.prepare(random_graph(30, 30, 0.2), cache=True)
    (file,) = own_cache.glob("*.safetensors")
    facts = doctor.check_cache().facts
    assert (facts["folder"], facts["entries"], facts["bytes"]) == (str(own_cache), 1, file.stat().st_size)
    assert (facts["writable"], facts["damaged"], facts["unchecked"]) == (True, {}, 0)
    load_dataset("digits")  # a computed data set is no fault
    facts = doctor.check_cache().facts
    assert (facts["entries"], facts["damaged"]) == (2, {})
    monkeypatch.setattr(doctor, "_VERIFIED", 10)  # files beyond a size are not read
    section = doctor.check_cache()
    assert section.facts["unchecked"] == 2
    assert "the checksums of 2 files were not compared" in texts(section, NOTE)


@pytest.mark.parametrize("at", [0, -1])
def test_a_damaged_file_of_the_cache_is_named(own_cache: Path, at: int) -> None:
    gnnsparse.prepare(random_graph(30, 30, 0.2), cache=True)
    (file,) = own_cache.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[at] ^= 0xFF
    overwrite(file, content)
    section = doctor.check_cache()
    assert list(section.facts["damaged"]) == [file.name]
    assert any(file.name in text for text in texts(section, NOTE))
    assert file.exists()


def test_a_cache_that_can_not_be_written_and_a_size_that_is_no_number_are_notes(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    own_cache.mkdir()

    refuse = mock.Mock(side_effect=OSError(30, "Read-only file system"))
    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    for folder, said in (
        (str(tmp_path / "file" / "graphs"), "is no folder"),
        (None, "Read-only file system"),
    ):
        section = doctor.check_cache(folder)
        assert section.facts["writable"] is False
        (text,) = texts(section, NOTE)
        assert "can't be written" in text
        assert said in text
        assert texts(section, BROKEN) == []
    monkeypatch.setenv("GNNSPARSE_CACHE_MAX_BYTES", "much")
    assert any("GNNSPARSE_CACHE_MAX_BYTES is 'much'" in text for text in texts(doctor.check_cache(), NOTE))


@pytest.mark.parametrize(
    ("architectures", "capability", "fit"),
    [
        ("90a", (9, 0), "built"),
        ("90a", (10, 0), ""),
        ("80,90a", (8, 6), "built"),
        ("80,90a", (9, 0), "built"),
        ("75,80,86,89,90a,100,120", (12, 1), "built"),
        ("75,80", (9, 0), "ptx"),
        ("75,80,86,89,90a,100,120", (13, 0), "ptx"),
        ("100f", (10, 3), "built"),
        ("100f", (11, 0), ""),
        ("86", (8, 0), ""),
        ("native", (9, 0), "built"),
        ("", (9, 0), ""),
    ],
)
def test_architectures_fit_a_gpu_or_not(architectures: str, capability: tuple[int, int], fit: str) -> None:
    assert doctor.fit_of_architectures(architectures, capability) == fit


def gpu_section(
    monkeypatch: pytest.MonkeyPatch, *, kernels: bool = True, architectures: str = "90a", **device: Any
) -> Section:
    """What is found on a machine with one GPU."""
    described = {"name": "NVIDIA H200", "capability": (9, 0), "memory": 2**37, "multiprocessors": 132}
    monkeypatch.setattr(doctor, "describe_device", lambda _: Device("cuda", **{**described, **device}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(_native, "has_cuda", kernels)
    monkeypatch.setattr(_native, "cuda_architectures", architectures)
    return doctor.check_gpu()


@pytest.mark.parametrize(
    ("machine", "level", "text", "advice"),
    [
        ({}, OK, "plans are chosen by the record of NVIDIA H200", ""),
        ({"name": "NVIDIA GH200"}, NOTE, "there is no record of NVIDIA GH200: plans are chosen by that",
         "gnnsparse bench fit"),
        ({"capability": (8, 0)}, BROKEN, "the CUDA kernels (90a) can't run on compute capability 8.0",
         "build gnnsparse again"),
        ({"architectures": "75,80"}, NOTE, "the driver compiles the CUDA kernels",
         "GNNSPARSE_CUDA_ARCHITECTURES="),
        ({"kernels": False}, BROKEN, "gnnsparse was built without CUDA kernels", "build gnnsparse again"),
    ],
)  # fmt: skip
def test_what_is_said_of_a_gpu(
    machine: dict[str, Any], level: str, text: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = gpu_section(monkeypatch, **machine).findings
    assert {finding.level for finding in findings} == {OK, level}
    (finding,) = (found for found in findings if found.level == level and found.text.startswith(text))
    assert finding.advice.startswith(advice)


def test_a_damaged_record_is_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("{")
    monkeypatch.setenv("GNNSPARSE_GPU_RECORDS", str(tmp_path))
    for section in (gpu_section(monkeypatch), doctor.check_cpu()):
        (text,) = texts(section, BROKEN)
        assert "mine.json" in text


@pytest.mark.parametrize(
    ("driver", "cuda", "level", "said"),
    [
        (None, None, OK, "no NVIDIA GPU here: everything runs on the CPU"),
        ("580.65.06", None, NOTE, "there is an NVIDIA GPU, but this torch was built without CUDA"),
        ("580.65.06", "13.0", BROKEN, "there is an NVIDIA driver, but torch can't use a GPU: torch.cuda.is_"),
    ],
)
def test_no_gpu_is_no_problem_but_one_that_torch_can_not_use_is(
    driver: str | None, cuda: str | None, level: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(doctor, "driver_versions", lambda: (driver, driver and "13.0"))
    section = doctor.check_gpu()
    assert {finding.level for finding in section.findings} == {OK, level}
    assert any(text.startswith(said) for text in texts(section, level))


def test_the_instruction_set_stays_and_too_many_threads_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _native.cpu_isa()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1000)
    section = doctor.check_cpu()
    assert any("1000 threads on" in text for text in texts(section, NOTE))
    assert section.facts["instruction_set"] == _native.cpu_isa() == before
    assert section.facts["instruction_set"] == section.facts["instruction_sets"][-1]


@pytest.mark.parametrize("wrong", ["a factor", "a row", "nan", "an error"])
def test_a_wrong_kernel_is_found(
    wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = sddmm_kernels._on_cpu

    def bind(*arguments: Any, **options: Any) -> Any:
        run = right(*arguments, **options)

        def damaged(*tensors: torch.Tensor) -> torch.Tensor:
            if wrong == "an error":
                raise RuntimeError("the kernel failed")
            result = run(*tensors)
            if wrong == "a factor":
                return result * 1.01
            result[: result.numel() // 20] = float("nan") if wrong == "nan" else 0.0
            return result

        return damaged

    monkeypatch.setattr(sddmm_kernels, "_on_cpu", bind)
    monkeypatch.setattr(self_test, "INSTRUCTION_SETS", (_native.cpu_isa(),))
    monkeypatch.setattr(self_test, "devices_here", lambda: ("cpu",))
    status, found = run_json(capsys, "--seconds", "120")
    assert status == 1
    blamed = {r["op"] for r in found["sections"]["Self-test"]["facts"]["results"] if not r["ok"]}
    assert "sddmm" in blamed
    assert "edge_softmax" not in blamed


def test_runs_that_differ_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(cases_of(Precision.FP32, "cpu"))
    run, count = self_test.Case.run, iter(range(9))

    def drifting(self: Any) -> list[torch.Tensor]:
        results = run(self)
        results[0] += next(count) * 1e-9
        return results

    monkeypatch.setattr(self_test.Case, "run", drifting)
    (result,) = self_test.run_case(case, Precision.FP32, "cpu", (_native.cpu_isa(),), 1)
    _native.set_cpu_isa("auto")
    assert (result.ok, result.problem) == (False, "two runs differ")


def test_cases_beyond_the_time_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    status, found = run_json(capsys, "--seconds", "1e-9")
    facts = found["sections"]["Self-test"]["facts"]
    assert (status, facts["cases"]) == (0, 0)
    assert facts["left_out"] > 40
    assert torch.get_num_threads() == threads
