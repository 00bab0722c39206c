"""Published matrices in every published format: each nonzero comes back, stored zeros included.

A few matrices are read unless GNNSPARSE_TEST_ALL_DATA is set, with which all of the data folder are
(notes/testing.md).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from gnnsparse import SparseGraph
from gnnsparse.data import load_custom, load_dataset, load_matrix
from gnnsparse.formats import format_spec
from gnnsparse.formats.convert import convert
from gnnsparse.precision import Precision, round_operand
from tests.data_folder import data_file, data_folder, requires_data
from tests.helpers import FORMATS, FREE_FORMATS, precision_for

pytestmark = [pytest.mark.slow, requires_data]

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


@pytest.mark.parametrize("name", NAMES)
def test_every_nonzero_comes_back(name: str) -> None:
    graph = load(name)
    csr = graph.csr
    values = graph.values
    if values is None:  # a structure alone: values of every size, zeros of both signs among them
        values = ((torch.arange(csr.nnz) % 9).float() - 4) / 3
        values[4::18] = -0.0
    rows = csr.row_index()
    forms = [(form, None) for form in FORMATS if form not in FREE_FORMATS and form not in ("cvse", "hrpb")]
    for form, panel in (*forms, ("cvse", 8), ("cvse", 16), ("hrpb", 16), ("hrpb", 32)):
        precision = Precision(precision_for(form))
        stored = round_operand(values.clamp(-6e4, 6e4), precision)
        blocked = convert(csr, format_spec(form, precision, panel=panel), stored)
        row, col, found = blocked.decode()
        order = torch.argsort(row * csr.cols + col)
        assert torch.equal(row[order], rows), form
        assert torch.equal(col[order], csr.indices.long()), form
        assert found is not None
        assert torch.equal(found[order], stored), form
