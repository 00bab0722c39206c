"""The CPU kernels of every instruction set this machine has."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import gnnsparse
from gnnsparse import _native
from gnnsparse.precision import ROUNDED_PRECISIONS, Precision, round_operand
from gnnsparse.testing import assert_accurate, assert_all_accurate, random_graph
from tests.helpers import ROUNDING, dense_matrix, make, needs_installed_module, plain_product, product_scale
from tests.ops.attention_oracle import exact, make_case, plain, run
from tests.ops.quantized import stored_matrix
from tests.ops.reductions import compare, on_grid
from tests.ops.test_sddmm import check as check_scores


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", ROUNDED_PRECISIONS)
@pytest.mark.parametrize("width", [1, 3, 4, 15, 16, 17, 31, 64, 65, 127, 200, 300])
@pytest.mark.parametrize("weights", [None, "gcn"])
def test_spmm(isa: str, precision: Precision, width: int, weights: str | None) -> None:
    """Products of rounded operands are exact in float64: what remains is the float32 sum."""
    graph = random_graph(70, 70, 0.1, weighted=weights is None, hubs=1, empty_rows=0.1)
    a = make(graph, "cpu", values=weights, precision=precision)
    x = torch.randn(70, width)
    matrix, by_row = stored_matrix(a)
    by_column = torch.ones(70) if a.kernels.col_scale is None else a.kernels.col_scale
    matrix = by_row[:, None] * matrix * by_column.double()
    rounded, dense = round_operand(x, precision).float(), dense_matrix(graph, weights)
    exact = matrix @ rounded.double()
    assert _native.cpu_isa() == isa
    assert_accurate(a @ x, matrix.float() @ rounded, exact, scale=product_scale(matrix, rounded))
    assert_accurate(exact, plain_product(dense, x, precision), dense @ x.double(), floor=ROUNDING[precision])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_output_rounding(isa: str, dtype: torch.dtype) -> None:
    a = make(random_graph(40, 50, 0.2), "cpu")
    x = torch.randn(50, 37).to(dtype)
    wide = a @ x.float()
    assert torch.equal(a @ x, wide.to(dtype))


@pytest.mark.parametrize("d", [1, 5, 16, 33, 64, 100])
@pytest.mark.parametrize("precision", ROUNDED_PRECISIONS)
def test_sddmm(isa: str, d: int, precision: Precision) -> None:
    a = make(random_graph(40, 50, 0.2, hubs=1), "cpu", precision=precision)
    check_scores(a, torch.randn(40, d), torch.randn(50, d))


def test_edge_softmax(isa: str) -> None:
    a = make(random_graph(60, 400, 0.1, hubs=2), "cpu")
    scores = 20 * torch.randn(a.nnz)
    scores[::7] = float("-inf")
    plain, exact = (gnnsparse.edge_softmax(a, s, impl="reference") for s in (scores, scores.double()))
    got = gnnsparse.edge_softmax(a, scores)
    assert_accurate(got, plain, exact)
    # Each weight for itself, however small: the logarithm is near minus the score's distance from the top.
    some = (
        plain > 2 * torch.finfo(torch.float32).tiny
    )  # below, a rounding may make it no normal number, and 0
    assert_accurate(*(torch.where(some, p, 1.0).log() for p in (got, plain, exact)))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", ROUNDED_PRECISIONS)
@pytest.mark.parametrize("shape", [(1, 70), (2, 16), (16, 1), (3, 5), (20, 4), (4, 32), (5, 17)])
def test_heads(isa: str, precision: Precision, shape: tuple[int, int]) -> None:
    """Heads of whole vectors and of parts of them; the maximum; the gradients of both."""
    a = make(random_graph(40, 60, 0.1, hubs=1, empty_rows=0.2), "cpu", precision=precision)
    q, x = on_grid(40, *shape), on_grid(60, *shape, seed=1)
    values = on_grid(a.nnz, shape[0], seed=2, step=0.5)
    assert _native.cpu_isa() == isa
    for reduce in ("sum", "mean", "max", "min"):
        compare(gnnsparse.spmm, a, [x, values], reduce=reduce)
        compare(gnnsparse.spmm, a, [x, values[:, 0]], reduce=reduce)
        compare(gnnsparse.spmm, a, [x.flatten(1)], reduce=reduce)
    compare(gnnsparse.sddmm, a, [q, x])
    compare(gnnsparse.edge_softmax, a, [values])


@pytest.mark.parametrize("d", [1, 5, 16, 33, 100])
@pytest.mark.parametrize("precision", ROUNDED_PRECISIONS)
def test_attention(isa: str, d: int, precision: Precision) -> None:
    a = make(random_graph(40, 60, 0.3, hubs=1, empty_rows=0.1), "cpu", precision=precision)
    case = make_case(a, d, d, bias=(3,), dropout_p=0.3)
    assert _native.cpu_isa() == isa
    assert_all_accurate(run(a, case), plain(a, case), lambda: exact(a, case))


def usable(cap: str) -> subprocess.CompletedProcess[str]:
    """What a process prints that imports the native module under a cap: its choice, and what it may take."""
    code = (
        "import importlib.util as of, sys\n"
        "spec = of.spec_from_file_location('_native', sys.argv[1])\n"
        "native = of.module_from_spec(spec)\n"
        "spec.loader.exec_module(native)\n"
        "print(native.cpu_isa(), *[x for x in ('portable', 'avx2', 'avx512') if native.set_cpu_isa(x)])\n"
    )
    command = [sys.executable, "-c", code, _native.__file__]
    return subprocess.run(
        command, env={**os.environ, "GNNSPARSE_ISA": cap}, capture_output=True, text=True, check=False
    )


@needs_installed_module
@pytest.mark.parametrize("cap", ["portable", "avx2", "avx512"])
def test_the_environment_caps_the_instruction_set(cap: str) -> None:
    """The largest one up to the cap is taken, and none above it can be asked for."""
    everything = usable("").stdout.split()[1:]
    names = ("portable", "avx2", "avx512")
    allowed = [name for name in everything if names.index(name) <= names.index(cap)]
    assert usable(cap).stdout.split() == [allowed[-1], *allowed]


@needs_installed_module
def test_a_wrong_cap_is_an_error_of_the_import() -> None:
    result = usable("AVX2")
    assert result.returncode == 1
    assert "ImportError: GNNSPARSE_ISA: got AVX2; accepted: portable, avx2, avx512" in result.stderr


def test_unknown_instruction_set() -> None:
    before = _native.cpu_isa()
    assert not _native.set_cpu_isa("altivec")
    assert _native.cpu_isa() == before


@pytest.mark.parametrize("precision", [Precision.TF32, Precision.FP16, Precision.BF16])
def test_rounding_is_that_of_the_hardware(precision: Precision) -> None:
    """tf32 keeps as many mantissa bits as fp16; ties go to even."""
    bits = {"tf32": 10, "fp16": 10, "bf16": 7}[precision.value]
    step = 2.0**-bits
    one = torch.tensor([1 + step / 2, 1 + 1.5 * step, 1 + step / 2.01, -1 - step / 2])
    assert round_operand(one, precision).float().tolist() == [1.0, 1 + 2 * step, 1.0, -1.0]
    special = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0])
    rounded = round_operand(special, precision).float()
    assert torch.equal(rounded[:2], special[:2])
    assert torch.isnan(rounded[2])
    assert torch.equal(rounded[3:].signbit(), special[3:].signbit())
