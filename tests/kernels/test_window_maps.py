"""The index maps of the window kernels, without a GPU.

The native module can run the window kernels on the CPU, lane by lane: registers are filled by the
very functions the kernels use, and multiplied by a table of the PTX fragment layouts. The table is
compared here with the PTX ISA's formulas, the products with float64.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnsparse import SparseGraph, _native
from gnnsparse.csr import address
from gnnsparse.formats import BlockedMatrix, format_spec
from gnnsparse.precision import DTYPE_CODES, Precision, round_operand
from gnnsparse.preprocess.balance import cut_windows
from gnnsparse.preprocess.convert import convert
from gnnsparse.testing import random_graph

LOW = (Precision.FP16, Precision.BF16, Precision.TF32)
CASES = [
    ("window", None), ("me-bcrs", None), ("cvse", None), ("tiled-csr", None), ("hrpb", 16), ("hrpb", 32),
    ("rs-tile", None),
]  # fmt: skip


def ptx_m16n8k16(operand: str) -> list[tuple[int, int]]:
    """PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type": element index i."""
    elements = []
    for lane in range(32):
        group, thread = lane >> 2, lane % 4
        for i in range({"a": 8, "b": 4, "c": 4}[operand]):
            if operand == "a":
                row = group if i < 2 or 4 <= i < 6 else group + 8
                col = thread * 2 + (i & 1) + (0 if i < 4 else 8)
            elif operand == "b":
                row, col = thread * 2 + (i & 1) + (0 if i < 2 else 8), group
            else:
                row, col = group if i < 2 else group + 8, thread * 2 + (i & 1)
            elements.append((row, col))
    return elements


def ptx_m16n8k8_tf32(operand: str) -> list[tuple[int, int]]:
    """PTX ISA, "Matrix Fragments for mma.m16n8k8", .tf32."""
    elements = []
    for lane in range(32):
        group, thread = lane >> 2, lane % 4
        for i in range({"a": 4, "b": 2, "c": 4}[operand]):
            if operand == "a":
                row = group if i in (0, 2) else group + 8
                col = thread if i < 2 else thread + 4
            elif operand == "b":
                row, col = thread if i == 0 else thread + 4, group
            else:
                row, col = group if i < 2 else group + 8, thread * 2 + (i & 1)
            elements.append((row, col))
    return elements


@pytest.mark.parametrize("operand", ["a", "b", "c"])
def test_fragment_tables_are_those_of_the_ptx_isa(operand: str) -> None:
    assert _native.fragment_map("m16n8k16", operand) == ptx_m16n8k16(operand)
    assert _native.fragment_map("m16n8k8", operand) == ptx_m16n8k8_tf32(operand)


def test_unknown_fragments_are_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        _native.fragment_map("m8n8k4", "a")
    with pytest.raises(ValueError, match="operand"):
        _native.fragment_map("m16n8k8", "d")


def vectors(x: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Rounded, rows padded to whole 16 bytes with NaN: padding must not matter."""
    per_vector = 16 // precision.storage.itemsize
    padded = torch.full((x.shape[0], -(-x.shape[1] // per_vector) * per_vector), float("nan"))
    padded[:, : x.shape[1]] = x
    return round_operand(padded, precision)[:, : x.shape[1]]


def view(x: torch.Tensor) -> _native.Dense:
    return _native.Dense(address(x), x.stride(0), DTYPE_CODES[x.dtype])


def emulate_spmm(
    graph: SparseGraph, blocked: BlockedMatrix, x: torch.Tensor, precision: Precision, limit: int,
    edge_values: torch.Tensor | None = None, scale: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    segments = cut_windows(blocked, graph.csr, limit)
    y = torch.full((graph.num_rows, x.shape[1]), float("nan"))
    _native.emulate_window_spmm(
        blocked.view(scale), segments.view, address(graph.csr.indptr), address(edge_values), 0, 0,
        view(x), view(y), x.shape[1], precision.code,
    )  # fmt: skip
    return y


def dense_of(graph: SparseGraph, values: torch.Tensor) -> torch.Tensor:
    dense = torch.zeros(graph.num_rows, graph.num_cols, dtype=torch.float64)
    dense[graph.csr.row_index(), graph.csr.indices.long()] = values.double()
    return dense


def assert_same(actual: torch.Tensor, exact: torch.Tensor) -> None:
    """Products of rounded operands are exact; what is left is the float32 sum."""
    largest = float(exact.abs().max()) if exact.numel() else 0.0
    assert torch.allclose(actual.double(), exact, rtol=1e-5, atol=1e-5 * (largest + 1))


@pytest.mark.parametrize("precision", LOW)
@pytest.mark.parametrize(("name", "panel"), CASES)
@pytest.mark.parametrize(
    "shape", [(100, 70, 0.1), (61, 200, 0.05), (16, 16, 0.9), (300, 300, 0.004), (1, 1, 1.0)]
)
@pytest.mark.parametrize("limit", [2, 1000])
def test_spmm_of_every_format(
    name: str, panel: int | None, precision: Precision, shape: tuple[int, int, float], limit: int
) -> None:
    graph = random_graph(*shape, hubs=1, empty_rows=0.1)
    values = round_operand(graph.values, precision)
    spec = format_spec(name, precision, shape[2], panel)
    blocked = convert(graph.csr, spec, values if spec.stores_values else None)
    x = vectors(torch.randn(shape[1], 71), precision)
    dense = dense_of(graph, values if spec.stores_values else torch.ones(graph.nnz))
    if blocked.residual_rows is not None:
        dense[blocked.residual_rows.long()] = 0  # the csr kernel adds these
    assert_same(emulate_spmm(graph, blocked, x, precision, limit), dense @ x.double())


@pytest.mark.parametrize("precision", LOW)
@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_edge_values_in_row_order(precision: Precision, limit: int) -> None:
    graph = random_graph(61, 300, 0.1, hubs=2, empty_rows=0.1)
    values = round_operand(graph.values, precision)
    blocked = convert(graph.csr, format_spec("window"), None)
    x = vectors(torch.randn(300, 40), precision)
    y = emulate_spmm(graph, blocked, x, precision, limit, edge_values=values)
    assert_same(y, dense_of(graph, values) @ x.double())


@pytest.mark.parametrize("precision", LOW)
def test_weights_of_the_column_slots(precision: Precision) -> None:
    graph = random_graph(61, 300, 0.1, hubs=2)
    blocked = convert(graph.csr, format_spec("window"), None)
    column_weight = round_operand(torch.randn(300), precision)
    x = vectors(torch.randn(300, 40), precision)
    y = emulate_spmm(graph, blocked, x, precision, 5, scale=column_weight[blocked.columns.long()])
    exact = dense_of(graph, torch.ones(graph.nnz)) * column_weight.double()
    assert_same(y, exact @ x.double())


@given(
    rows=st.integers(1, 40),
    cols=st.integers(1, 60),
    density=st.sampled_from([0.0, 0.05, 0.4, 1.0]),
    d=st.integers(1, 70),
    limit=st.integers(1, 4),
    precision=st.sampled_from(LOW),
    seed=st.integers(0, 2**20),
)
def test_sddmm(
    rows: int, cols: int, density: float, d: int, limit: int, precision: Precision, seed: int
) -> None:
    graph = random_graph(rows, cols, density, seed=seed)
    blocked = convert(graph.csr, format_spec("window"), None)
    segments = cut_windows(blocked, graph.csr, limit)
    generator = torch.Generator().manual_seed(seed)
    q = vectors(torch.randn(rows, d, generator=generator), precision)
    k = vectors(torch.randn(cols, d, generator=generator), precision)
    out = torch.full((graph.nnz,), float("nan"))
    _native.emulate_window_sddmm(
        blocked.view(), segments.view, address(graph.csr.indptr), 0, view(q), view(k), address(out), 0, d,
        precision.code,
    )  # fmt: skip
    exact = (q.double() @ k.double().T)[graph.csr.row_index(), graph.csr.indices.long()]
    assert_same(out, exact)


@given(
    rows=st.integers(1, 50),
    cols=st.integers(1, 80),
    density=st.sampled_from([0.0, 0.03, 0.3, 1.0]),
    case=st.sampled_from([*CASES, ("panel", 16), ("panel", 32)]),
    precision=st.sampled_from(LOW),
    seed=st.integers(0, 2**20),
)
def test_formats_decode_to_what_they_were_made_of(
    rows: int, cols: int, density: float, case: tuple[str, int | None], precision: Precision, seed: int
) -> None:
    graph = random_graph(rows, cols, density, seed=seed)
    values = round_operand(graph.values, precision)
    spec = format_spec(case[0], precision, density, case[1])
    blocked = convert(graph.csr, spec, values if spec.stores_values else None)
    row, col, stored = blocked.decode()
    got = torch.zeros(rows, cols, dtype=torch.float64)
    got[row, col] = torch.ones(row.numel()).double() if stored is None else stored.double()
    assert torch.equal(got, dense_of(graph, torch.ones(graph.nnz) if stored is None else values))
