"""The GPU kernel of edge functions, in the emulator and on a GPU: every form of pass beside float64."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnsparse.formats.csr import Csr
from gnnsparse.ops.edges import cuda
from gnnsparse.ops.edges.cuda import program_text
from gnnsparse.ops.edges.program import Pass
from gnnsparse.ops.edges.rows import Rows
from gnnsparse.sparse.kernel_cache import KernelCache
from tests.ops.conftest import Place
from tests.ops.edge_oracle import interpret, make_arguments, make_outputs
from tests.ops.edge_passes import CASES, FUNCTIONS, Case, kernel_name, passes_of, variants

ROWS, COLUMNS, HUB = 70, 40, 600


@pytest.fixture
def edge_place(gpu_place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Emulated kernels are found by the names of their programs, and not compiled."""
    monkeypatch.setattr(cuda, "_kernels", {})
    if gpu_place.path is not None:
        monkeypatch.setattr(cuda, "compile_program", lambda text, _: kernel_name(text).encode())
    return gpu_place


@pytest.mark.gpu
def test_a_pass_is_captured() -> None:
    """In a CUDA graph, after a call that compiled it, and reads what its arguments hold later."""
    case = Case("gine", torch.float32, 128)
    for pass_ in passes_of(FUNCTIONS["gine"]):
        rows = _rows("cuda")
        arguments = _arguments(pass_, rows, case)
        outputs, captured = (make_outputs(pass_, rows, case.width) for _ in range(2))
        cuda.bind(pass_, rows, case.width, case.dtype)(arguments, outputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            cuda.bind(pass_, rows, case.width, case.dtype)(arguments, captured)
        arguments[0].mul_(2)
        graph.replay()
        cuda.bind(pass_, rows, case.width, case.dtype)(arguments, outputs)
        assert rows.edge_ids is not None
        used = rows.edge_ids.long()
        for (kind, _), one, other in zip(pass_.outputs, outputs, captured, strict=True):
            keep: Any = used if kind == "mapped_edge" else slice(None)
            assert torch.equal(one[keep], other[keep])


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_programs_compile(name: str, tmp_path: Path) -> None:
    """By NVRTC where it is, or else by nvcc."""
    programs = [program_text(variant.text()) for variant in variants(name)]
    if (compiler := cuda.nvrtc()) is not None:
        for program in programs[:3]:
            assert compiler.compile(program, "sm_90")[1:4] == b"ELF"
        with pytest.raises(RuntimeError, match="nothing_of_this_name"):
            compiler.compile(programs[0].replace("edge_rows(", "edge_rows(nothing_of_this_name "), "sm_90")
        return
    if (nvcc := shutil.which("nvcc")) is None:
        pytest.skip("needs NVRTC or nvcc")
    native, file = Path(__file__).parents[2] / "native", tmp_path / "program.cu"
    file.write_text(programs[0])
    flags = ["-std=c++17", "-arch=sm_90a", "--expt-relaxed-constexpr", "-Werror=all-warnings", "-cubin"]
    includes = [f"-I{native / folder}" for folder in ("include", "cuda")]
    subprocess.run([nvcc, *flags, *includes, str(file), "-o", str(tmp_path / "cubin")], check=True)


def _rows(device: str, row_ids: bool = True, edge_ids: bool = True) -> Rows:
    """Rows in another order than the caller's, of 0 to 9 edges and one hub, some columns repeated."""
    counts = torch.randint(0, 10, (ROWS,)) * (torch.rand(ROWS) < 0.8)
    counts[ROWS // 2] = HUB
    indptr = torch.zeros(ROWS + 1, dtype=torch.int64)
    indptr[1:] = counts.cumsum(0)
    nnz = int(indptr[-1])
    columns = torch.randint(0, COLUMNS, (nnz,), dtype=torch.int32)
    csr = Csr(indptr.to(device), columns.to(device), COLUMNS)
    ids = torch.randperm(ROWS).to(torch.int32).to(device) if row_ids else None
    # Some numbers of edges are not used.
    edges = torch.randperm(nnz + 5)[:nnz].to(torch.int32).to(device) if edge_ids else None
    return Rows(KernelCache(csr, ids), edges, nnz + 5 if edge_ids else nnz)


def _arguments(pass_: Pass, rows: Rows, case: Case) -> list[torch.Tensor]:
    """Random arguments of a pass of a case; products and sums of extremes are exact, and often equal."""
    quarters = (lambda t: t.clamp(-2, 2).mul(4).round().div(4)) if case.name == "extremes" else (lambda t: t)
    return make_arguments(pass_, rows, case.width, case.dtype, seed=case.width, number=quarters)


def test_nan_wins_and_of_several_the_first(edge_place: Place) -> None:
    """As torch.amax; a row of NaN and infinities has winners, too."""
    torch.manual_seed(3)
    case = Case("extremes", torch.float32, 4)
    pass_, rows = passes_of(FUNCTIONS["extremes"])[0], _rows(edge_place.device)
    x, numbers, of_row = _arguments(pass_, rows, case)
    x[::5, 0], x[1::2, 1], x[:, 2], x[:, 3] = torch.nan, torch.inf, -torch.inf, torch.nan
    arguments = [x, numbers.abs() + 1, of_row]
    found = make_outputs(pass_, rows, case.width)
    cuda.bind(pass_, rows, case.width, case.dtype)(arguments, found)
    for one, want in zip(found, interpret(pass_, rows, arguments, case.width), strict=True):
        torch.testing.assert_close(one.cpu().double(), want.cpu().double(), equal_nan=True)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.name}-{c.dtype}-{c.width}".replace("torch.", ""))
def test_a_pass_computes_what_its_code_says(edge_place: Place, case: Case) -> None:
    torch.manual_seed(case.width)
    device = edge_place.device
    for number, pass_ in enumerate(passes_of(FUNCTIONS[case.name])):
        rows = _rows(device, number != 1, number != 2)
        arguments = _arguments(pass_, rows, case)
        dtype = torch.float32 if number == 0 else case.dtype
        expected = [t.cpu() for t in interpret(pass_, rows, arguments, case.width)]
        found = [make_outputs(pass_, rows, case.width, dtype) for _ in range(2)]
        for outputs in found:
            cuda.bind(pass_, rows, case.width, case.dtype)(arguments, outputs)
        used = torch.zeros(rows.num_edges, dtype=torch.bool)
        used[slice(None) if rows.edge_ids is None else rows.edge_ids.long().cpu()] = True
        kinds: list[str] = []
        for kind, _ in pass_.outputs:
            kinds += [kind, "winner"] if kind in ("max", "min") else [kind]
        for kind, want, one, again in zip(kinds, expected, *found, strict=True):
            keep: Any = used if kind in ("edge", "edge_number", "mapped_edge") else slice(None)
            assert torch.equal(one[keep], again[keep])  # the same bits
            if kind == "winner":
                assert torch.equal(one.cpu(), want)
                continue
            rounding = torch.finfo(one.dtype).eps if one.dtype != torch.float32 else 2e-6
            scale = want[keep].abs().amax().clamp(min=1)
            error = (one.cpu().double()[keep] - want[keep]).abs().amax() / scale
            assert error < 2 * rounding, (pass_, kind, float(error))


@pytest.mark.parametrize("name", ["gine", "extremes"])
def test_a_warp_takes_many_rows(edge_place: Place, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """And one between them is cut into parts, which other warps take."""
    monkeypatch.setattr(sys.modules[__name__], "ROWS", 400)
    test_a_pass_computes_what_its_code_says(edge_place, next(case for case in CASES if case.name == name))
