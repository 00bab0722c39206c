"""What a blocked format stores: it decodes to the matrix, and packed entries are its nonzeros."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnsparse import SparseGraph
from gnnsparse.data import load_custom, load_dataset, load_matrix
from gnnsparse.formats import ARRAYS, BlockedMatrix, FormatSpec, check_blocked, format_spec
from gnnsparse.formats.convert import convert, count_slots
from gnnsparse.formats.packing import entry_parts
from gnnsparse.precision import ROUNDED_PRECISIONS, Precision, round_operand
from gnnsparse.testing import random_graph
from papers.decode import decode
from tests.data_folder import data_file, data_folder, requires_data
from tests.formats.conftest import CASES, converted
from tests.helpers import precision_for


def with_zeros(graph: SparseGraph) -> SparseGraph:
    """Returns the graph with every third value 0, some -0.0, and some that fp16 rounds to 0."""
    assert graph.values is not None
    values = graph.values.clone()
    values[::3], values[1::7], values[2::11] = 0.0, -0.0, 1e-30
    return replace(graph, values=values)


def check_all_come_back(graph: SparseGraph, spec: FormatSpec, precision: Precision) -> BlockedMatrix:
    """Checks that a format is valid and gives back every nonzero, those whose value is 0 too."""
    values = round_operand(graph.values, precision)
    blocked = convert(graph.csr, spec, values if spec.stores_values else None)
    check_blocked("x", blocked, graph.csr, precision.storage)
    assert set(blocked.arrays) == {name for name, rule in ARRAYS.items() if rule.present(spec)}
    row, col, stored = decode(blocked)
    order = torch.argsort(row * graph.num_cols + col)
    assert torch.equal(row[order], graph.csr.row_index())
    assert torch.equal(col[order], graph.csr.indices.long())
    assert (stored is not None) == spec.stores_values
    assert stored is None or torch.equal(stored[order], values)
    return blocked


@given(
    rows=st.integers(0, 80), cols=st.integers(1, 100), density=st.sampled_from([0.0, 0.03, 0.3, 1.0]),
    hubs=st.integers(0, 2), zeros=st.booleans(), case=st.sampled_from(CASES), threshold=st.integers(0, 8),
    precision=st.sampled_from(ROUNDED_PRECISIONS), seed=st.integers(0, 2**20),
)  # fmt: skip
def test_formats_decode_to_what_they_were_made_of(
    rows: int, cols: int, density: float, hubs: int, zeros: bool, case: tuple[str, int | None],
    threshold: int, precision: Precision, seed: int,
) -> None:  # fmt: skip
    graph = random_graph(rows, cols, density, seed=seed, hubs=min(hubs, rows), empty_rows=0.2)
    options = {"threshold": threshold} if case[0] == "rs-tile" else {}
    spec = format_spec(case[0], precision, density, case[1], options)
    check_all_come_back(with_zeros(graph) if zeros else graph, spec, precision)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("precision", ROUNDED_PRECISIONS)
def test_zeros_of_the_matrix_come_back(case: tuple[str, int | None], precision: Precision) -> None:
    graph = with_zeros(random_graph(75, 61, 0.2, seed=1, hubs=1, empty_rows=0.1))
    blocked = check_all_come_back(graph, format_spec(case[0], precision, 0.2, case[1]), precision)
    if case[0].startswith("panel"):
        assert torch.equal(blocked.panel_ptr.diff(), count_slots(graph.csr, blocked.spec))


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
    panel = converted(random_graph(64, 640, density), "panel-values", precision, 32)
    assert panel.values is not None
    assert panel.value_ptr is not None
    words = entry_parts(panel.values, precision.storage.itemsize)[1] // 4
    stages = words.split(panel.value_ptr.diff().tolist())
    stored = sum(accesses(stage) for stage in stages)
    assert stored < share * sum(accesses(stage[torch.randperm(stage.numel())]) for stage in stages)


def test_formats_of_values_need_them_in_their_dtype() -> None:
    graph = random_graph(20, 20, 0.2)
    with pytest.raises(TypeError, match="values: got NoneType; accepted: the values of the nonzeros"):
        convert(graph.csr, format_spec("hrpb", "tf32"), None)
    ones = torch.ones(graph.nnz)
    for precision, wrong in (("fp16", ones), ("fp32", ones.half()), ("fp16", None)):
        with pytest.raises(TypeError, match=r"values of the nonzeros in (16|32) bits"):
            convert(graph.csr, format_spec("panel-values", precision, panel=32), wrong)


# Published matrices: a few, or with GNNSPARSE_TEST_ALL_DATA all of the data folder (notes/testing.md).

#: A matrix with stored zeros, one whose rows are short, a pruned layer, a graph, and a data set.
SAMPLE = (
    "suitesparse/memplus.mtx.gz", "suitesparse/wing.mtx.gz", "graphs/ppi_homo_sapiens.npz", "tu/ENZYMES.npz",
    "dlmc/transformer/magnitude_pruning/0.9/body_decoder_layer_3_ffn_conv1_fully_connected.smtx.gz",
    "planetoid/cora",
)  # fmt: skip
#: What `load_matrix` does not read: data sets, by their folders or files.
DATASETS = {
    "planetoid/cora": "cora", "planetoid/citeseer": "citeseer", "planetoid/pubmed": "pubmed",
    "heterophilous/minesweeper.npz": "minesweeper", "heterophilous/tolokers.npz": "tolokers",
}  # fmt: skip


def everything() -> list[str]:
    """The matrices and data sets of the data folder."""
    root = data_folder()
    if root is None:
        return []
    names = [
        str(path.relative_to(root))
        for ending in (".mtx.gz", ".smtx.gz", ".npz")
        for path in root.rglob(f"*{ending}")
    ]
    return sorted({*names, *DATASETS})


def load(name: str) -> SparseGraph:
    path: Path = data_file(*name.split("/"))
    if path.parent.name == "heterophilous" and name not in DATASETS:
        return load_custom(path).graph
    if name not in DATASETS:
        return load_matrix(path)
    return load_dataset(DATASETS[name], root=str(path if path.is_dir() else path.parent)).graph


NAMES = everything() if os.environ.get("GNNSPARSE_TEST_ALL_DATA") else SAMPLE


@pytest.mark.slow
@requires_data
@pytest.mark.parametrize("name", NAMES)
def test_every_nonzero_of_a_published_matrix_comes_back(name: str) -> None:
    graph = load(name)
    values = graph.values
    if values is None:  # a structure alone: values of every size, zeros of both signs among them
        values = ((torch.arange(graph.nnz) % 9).float() - 4) / 3
        values[4::18] = -0.0
    graph = replace(graph, values=values.clamp(-6e4, 6e4))
    for form, panel in CASES:
        precision = Precision(precision_for(form))
        check_all_come_back(graph, format_spec(form, precision, 0.0, panel), precision)
