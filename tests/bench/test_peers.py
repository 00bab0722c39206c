"""Other libraries' products beside ours: right and wrong ones, those that end the process, and their build.

The libraries are stand-ins, compiled from a few lines of C that read CSR as the CPU has it.
"""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import peers
from benchmarks.peers import RIVALS
from gnnsparse.bench.candidates import PEERS, Peer, peer_precision
from gnnsparse.bench.workload import Workload, make_subject
from gnnsparse.precision import Precision
from gnnsparse.testing import random_graph

ROOT = Path(peers.__file__).parents[1]
COMPILER = shutil.which("cc") or shutil.which("gcc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a compiler of C")
#: y += A x in float32; {prepared} and {begin} are where a stand-in misbehaves.
SOURCE = """
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
typedef struct {{ int rows; const int *indptr, *indices; const float *values; }} Matrix;
void *prepare(int rows, int cols, int nnz, const int *indptr, const int *indices, const float *values,
              int variant) {{
  {prepared}
  Matrix *a = malloc(sizeof(Matrix));
  int *offsets = malloc((rows + 1) * sizeof(int)), *columns = malloc(nnz * sizeof(int));
  float *weights = malloc(nnz * sizeof(float));
  for (int i = 0; i <= rows; ++i) offsets[i] = indptr[i];
  for (int i = 0; i < nnz; ++i) columns[i] = indices[i], weights[i] = values[i];
  *a = (Matrix){{rows, offsets, columns, weights}};
  return a;
}}
int multiply(void *matrix, const void *x, void *y, int width) {{
  Matrix *a = matrix;
  {begin}
  for (int row = 0; row < a->rows; ++row)
    for (int i = a->indptr[row]; i < a->indptr[row + 1]; ++i)
      for (int j = 0; j < width; ++j)
        ((float *)y)[row * width + j] += a->values[i] * ((const float *)x)[a->indices[i] * width + j];
  return 0;
}}
"""


def stand_in(folder: Path, name: str = "RoDe", prepared: str = "", begin: str = "") -> None:
    """Compile a library that stands in for one of RIVALS."""
    source = folder / f"{name}.c"
    source.write_text(SOURCE.format(prepared=prepared, begin=begin))
    out = peers.library_of(name, folder)
    subprocess.run([str(COMPILER), "-w", "-shared", "-fPIC", "-o", out, source], check=True)


def measured(folder: Path, *options: str) -> tuple[dict[str, Any], str]:
    """Run the command as a user would, and return its file and what it printed."""
    out = folder / "peers.json"
    command = [sys.executable, "-m", "benchmarks.peers", "run", "--folder", folder, "--out", out]
    small = ["--device", "cpu", "--matrix", "dd_like:scale=0.003", "--precision", "fp32", "--repeats", "2"]
    ended = subprocess.run(
        [*command, *small, *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert out.exists(), ended.stderr
    return json.loads(out.read_text()), ended.stdout


def rows_of(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [row for row in found["rows"] if row["kernel"] == name]


@needs_compiler
def test_a_library_is_checked_and_timed_beside_ours_and_converts_once(tmp_path: Path) -> None:
    log = tmp_path / "conversions"
    log.touch()
    note = f'int file = open("{log}", O_WRONLY | O_APPEND); write(file, "x", 1); close(file);'
    stand_in(tmp_path, prepared=note, begin="a->rows -= a->rows / 3 * (width == 128);")
    found, _ = measured(tmp_path, "--width", "64", "128", "100")
    right, wrong = rows_of(found, "RoDe")
    assert (right["width"], right["precision"], right["ok"]) == (64, "fp32", True)
    assert right["ms"] > 0
    assert right["preprocess_ms"] >= 0
    assert (wrong["width"], wrong["ok"]) == (128, False)
    assert "error" in wrong["problem"]
    assert [row["ok"] for row in rows_of(found, "auto")] == [True] * 3
    assert log.read_text() == "x", "converted more than once"
    assert [case["reason"] for case in found["skipped"]] == ["100 columns; accepted: 64 n"]
    assert found["rivals"]["RoDe"] == {
        "how": f"github.com/CRAFT-THU/RoDe {RIVALS['RoDe'].commit}", "problem": None,
    }  # fmt: skip
    assert found["rivals"]["FlashSparse"]["problem"] == "is not built"
    assert found["commit"]
    assert found["date"]
    assert found["ended"] == {}


@needs_compiler
def test_the_run_goes_on_without_a_library_that_ends_it(tmp_path: Path) -> None:
    harm = {64: "*(volatile int *)0 = 1;", 128: "sleep(60);", 192: "exit(0);", 320: "return 9;"}
    stand_in(tmp_path, begin="".join(f"if (width == {n}) {{ {text} }}" for n, text in harm.items()))
    found, printed = measured(tmp_path, "--width", "64", "128", "192", "256", "320", "--patience", "2")
    assert [(row["width"], row["ok"]) for row in rows_of(found, "RoDe")] == [(256, True)]
    assert len(rows_of(found, "auto")) == 5
    reasons = ("crashed: SIGSEGV", "took more than 2 s", "ended the process")
    keys = [f"RoDe : dd_like:scale=0.003, fp32, {width} columns" for width in harm]
    assert found["ended"] == dict(zip(keys[:3], reasons, strict=True))
    assert all(f"{key}: {reason}" in printed for key, reason in found["ended"].items())
    assert all(case["failed"] for case in found["skipped"])
    told = [case["reason"].removeprefix("RuntimeError: ") for case in found["skipped"]]
    assert told == [*reasons, "cudaError_t 9 at the launch"]


@needs_compiler
def test_a_conversion_is_given_up_once_and_a_cut_run_goes_on_where_it_was(tmp_path: Path) -> None:
    widths = ("--width", "64", "128", "--patience", "2")
    stand_in(tmp_path, prepared="sleep(60);")
    found, _ = measured(tmp_path, *widths)
    assert found["ended"] == {"RoDe : dd_like:scale=0.003, conversion": "took more than 2 s"}
    assert [case["width"] for case in found["skipped"]] == [64, 128]
    kept, _ = rows_of(found, "auto")
    found["rows"].pop()
    (tmp_path / "peers.json").write_text(json.dumps(found))
    stand_in(tmp_path)
    found, _ = measured(tmp_path, *widths)
    assert [(row["width"], row["ok"]) for row in rows_of(found, "RoDe")] == [(64, True), (128, True)]
    again, anew = rows_of(found, "auto")
    assert (again["ms"], anew["width"]) == (kept["ms"], 128)
    assert found["skipped"] == []
    assert found["ended"] == {}


def test_a_library_that_does_not_compile_is_told_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler = tmp_path / "bin" / "nvcc"
    compiler.parent.mkdir()
    compiler.write_text('#!/bin/sh\necho "$@" >&2\necho "kernel.cu(3): error: no such thing" >&2\nexit 2\n')
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(compiler.parent), prepend=":")
    (tmp_path / "src" / "RoDe").mkdir(parents=True)  # it is there, so that nothing is fetched
    assert peers.main(["build", "--folder", str(tmp_path), "--rivals", "RoDe"]) == 1
    assert "RoDe: can't be built: kernel.cu(3): error: no such thing" in capsys.readouterr().out
    assert peers.main(["list", "--folder", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    assert "RoDe: can't be built" in listed
    assert "FlashSparse: is not built" in listed
    assert all(name in listed for name in (*RIVALS, *peers.OTHERS))


def test_each_library_has_a_file_that_its_functions_are_called_from() -> None:
    options = peers.parse(["build", "--folder", "/nowhere"])
    for name, rival in RIVALS.items():
        if not rival.torch:
            command = peers.compiler_of(name, rival, Path("/src"), Path("/out.so"), options)
            (glue,) = (Path(word) for word in command if word.endswith(".cu") and "rivals" in word)
            assert glue.exists()
    assert {path.stem for path in peers.GLUE.glob("*.cu")} == {name.split("-")[0].lower() for name in RIVALS}


def test_what_is_compiled_is_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)
    subject = make_subject("g", random_graph(30, 20, 0.2), "none")
    work = Workload(subject, "spmm", Precision.FP32, 8)
    want = torch.zeros(30, 20, dtype=torch.float64)
    want.index_put_((subject.csr.row_index(), subject.csr.indices.long()), want.new_ones(()), accumulate=True)
    assert torch.allclose(peers.compiled(work)().double(), want @ work.dense[0].double(), atol=1e-5)


def test_libraries_stay_out_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        peers.main(["build", "--folder", str(ROOT / "third_party")])
    assert "accepted: folders outside" in capsys.readouterr().err


def test_a_peer_that_has_tf32_is_compared_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(work: Any) -> Any:
        raise NotImplementedError

    monkeypatch.setitem(PEERS, "mine", Peer(("spmm",), ("cpu",), bind, ("tf32",)))
    assert peer_precision("mine", Precision.TF32) is Precision.TF32
    assert peer_precision("mine", Precision.FP16) is Precision.FP32
    assert peer_precision("sparse_mm", Precision.TF32) is Precision.FP32
