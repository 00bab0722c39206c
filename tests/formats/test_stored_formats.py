"""What a blocked format stores: it decodes to the matrix, and packed entries are its nonzeros."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnsparse import SparseGraph, _native
from gnnsparse.data import load_matrix
from gnnsparse.formats import BlockedMatrix, FormatSpec, format_spec
from gnnsparse.formats.convert import convert, count_slots
from gnnsparse.formats.packing import entry_parts
from gnnsparse.precision import ROUNDED_PRECISIONS, Precision, round_operand
from gnnsparse.testing import random_graph
from tests.data_folder import data_file, requires_data

LOW = (Precision.FP16, Precision.BF16, Precision.TF32)
CASES = [
    ("window", None), ("me-bcrs", None), ("cvse", None), ("tiled-csr", None), ("hrpb", 16), ("hrpb", 32),
    ("rs-tile", None), ("panel", 16), ("panel", 32),
]  # fmt: skip


def dense_of(graph: SparseGraph, values: torch.Tensor) -> torch.Tensor:
    dense = torch.zeros(graph.num_rows, graph.num_cols, dtype=torch.float64)
    dense[graph.csr.row_index(), graph.csr.indices.long()] = values.double()
    return dense


@given(
    rows=st.integers(1, 50),
    cols=st.integers(1, 80),
    density=st.sampled_from([0.0, 0.03, 0.3, 1.0]),
    case=st.sampled_from(CASES),
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


def panels(graph: SparseGraph, precision: Precision, height: int, values: bool) -> BlockedMatrix:
    spec = format_spec("panel-values" if values else "panel", precision, panel=height)
    stored = round_operand(graph.values, precision) if values and graph.values is not None else None
    return convert(graph.csr, spec, stored)


@pytest.mark.parametrize(
    ("height", "values"), [(16, False), (16, True), (32, False), (32, True), (64, False)]
)
def test_decode_reads_back_what_was_converted(height: int, values: bool) -> None:
    graph = random_graph(75, 61, 0.2, hubs=1, empty_rows=0.1)
    panel = panels(graph, Precision.FP32, height, values)
    assert torch.equal(panel.panel_ptr.diff(), count_slots(graph.csr, panel.spec))
    row, col, stored = panel.decode()
    order = torch.argsort(row * 61 + col)
    assert torch.equal(row[order], graph.csr.row_index())
    assert torch.equal(col[order], graph.csr.indices.long())
    if values:
        assert stored is not None
        assert graph.values is not None
        assert torch.equal(stored[order], graph.values)


@given(
    rows=st.integers(0, 70), cols=st.integers(1, 100), density=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    hubs=st.integers(0, 3), precision=st.sampled_from(ROUNDED_PRECISIONS), seed=st.integers(0, 2**20),
)  # fmt: skip
def test_entries_are_the_nonzeros(
    rows: int, cols: int, density: float, hubs: int, precision: Precision, seed: int
) -> None:
    graph = random_graph(rows, cols, density, seed=seed, hubs=hubs, empty_rows=0.2)
    panel = panels(graph, precision, 32, True)
    assert panel.values is not None
    assert panel.value_ptr is not None
    size = precision.storage.itemsize
    assert panel.value_ptr.numel() == panel.slots // 32 + 1
    assert not (panel.value_ptr % (4 if size == 2 else 16)).any()
    assert panel.values.nbytes == (size + 2) * int(panel.value_ptr[-1])
    values, places = entry_parts(panel.values, size)
    real = places < 1024 * size
    assert int(real.sum()) == graph.nnz
    assert not values[~real].any()
    assert set(places[~real].tolist()) <= {1024 * size}
    row, col, stored = panel.decode()
    order = torch.argsort(row * cols + col)
    assert torch.equal(row[order], graph.csr.row_index())
    assert torch.equal(col[order], graph.csr.indices.long())
    assert stored is not None
    assert graph.values is not None
    assert torch.equal(stored[order], round_operand(graph.values, precision))


def accesses(words: torch.Tensor) -> int:
    """How often shared memory is accessed when a warp stores entries at these words, four a lane."""
    found = 0
    for vectors_of_warp in words.reshape(-1, 4).split(32):
        for store in vectors_of_warp.T:
            found += int(torch.bincount(store.unique() % 32).max())
    return found


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.FP32])
@pytest.mark.parametrize(("density", "share"), [(0.08, 0.75), (0.3, 0.6), (1.0, 0.4)])
def test_stores_of_entries_hardly_meet_in_a_bank(density: float, share: float, precision: Precision) -> None:
    panel = panels(random_graph(64, 640, density), precision, 32, True)
    assert panel.values is not None
    assert panel.value_ptr is not None
    words = entry_parts(panel.values, precision.storage.itemsize)[1] // 4
    stages = words.split(panel.value_ptr.diff().tolist())
    stored = sum(accesses(stage) for stage in stages)
    assert stored < share * sum(accesses(stage[torch.randperm(stage.numel())]) for stage in stages)


def test_formats_that_do_not_exist_are_refused() -> None:
    graph = random_graph(20, 20, 0.2)
    with pytest.raises(ValueError, match="lane_order"):
        _native.Blocked(8, 8, 16, 16, True, 1, 20, 20, 3)
    with pytest.raises(ValueError, match="encoding: entries go with panels of 32 rows"):
        _native.Blocked(16, 16, 32, 32, True, 2, 20, 20, 3)
    with pytest.raises(ValueError, match="encoding: entries go with panels of 32 rows"):
        _native.Blocked(16, 16, 32, 32, True, 3, 20, 20, 3)
    with pytest.raises(ValueError, match="encoding: must be 0"):
        _native.Blocked(8, 8, 16, 16, False, 4, 20, 20, 3)
    with pytest.raises(TypeError, match="values"):
        convert(graph.csr, format_spec("panel-values", "fp16", panel=32), None)
    for precision, dtype in (("fp16", torch.float32), ("fp32", torch.float16)):
        wrong = torch.ones(graph.nnz).to(dtype)
        with pytest.raises(TypeError, match=r"values of the nonzeros in (16|32) bits"):
            convert(graph.csr, format_spec("panel-values", precision, panel=32), wrong)
    dense = convert(graph.csr, format_spec("panel-values", "fp32", panel=16), torch.ones(graph.nnz))
    with pytest.raises(ValueError, match="stores no entries"):
        _native.fill_entries(graph.csr.view, dense.view(), None, None, None, 1)


def with_zeros(graph: SparseGraph) -> SparseGraph:
    """Returns the graph with every third value 0, some -0.0, and some that fp16 rounds to 0."""
    assert graph.values is not None
    values = graph.values.clone()
    values[::3], values[1::7], values[2::11] = 0.0, -0.0, 1e-30
    return replace(graph, values=values)


def check_all_come_back(graph: SparseGraph, spec: FormatSpec, precision: Precision) -> None:
    """Checks that a format gives back every nonzero of a graph, those whose value is 0 too."""
    values = round_operand(graph.values, precision)
    row, col, stored = convert(graph.csr, spec, values if spec.stores_values else None).decode()
    order = torch.argsort(row * graph.num_cols + col)
    assert torch.equal(row[order], graph.csr.row_index())
    assert torch.equal(col[order], graph.csr.indices.long())
    assert stored is None or torch.equal(stored[order], values)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("precision", list(ROUNDED_PRECISIONS))
def test_zeros_of_the_matrix_come_back(case: tuple[str, int | None], precision: Precision) -> None:
    graph = with_zeros(random_graph(50, 60, 0.2, seed=1))
    check_all_come_back(graph, format_spec(case[0], precision, 0.2, case[1]), precision)


@pytest.mark.parametrize("height", [16, 32])
@pytest.mark.parametrize("precision", list(ROUNDED_PRECISIONS))
def test_zeros_come_back_from_panels_with_values(height: int, precision: Precision) -> None:
    graph = with_zeros(random_graph(50, 60, 0.2, seed=1))
    check_all_come_back(graph, format_spec("panel-values", precision, panel=height), precision)


@pytest.mark.slow
@requires_data
@pytest.mark.parametrize("case", CASES)
def test_a_published_matrix_with_zeros(case: tuple[str, int | None]) -> None:
    graph = load_matrix(data_file("suitesparse/memplus.mtx.gz"))
    assert int((graph.values == 0).sum()) > 20_000
    check_all_come_back(graph, format_spec(case[0], "tf32", 0.0, case[1]), Precision.TF32)
