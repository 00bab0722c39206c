"""Every published graph and matrix goes through prepare, spmm and sddmm, and matches SciPy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import gnnsparse
from gnnsparse.data import load_matrix
from gnnsparse.testing import assert_accurate
from tests.data_folder import data_folder

pytestmark = pytest.mark.slow

FOLDER = data_folder()
PATTERNS = ("graphs/*.npz", "tu/*.npz", "suitesparse/*.mtx.gz", "dlmc/**/*.smtx.gz", "amazon/*/raw/*.npz",
            "coauthor/*/raw/*.npz", "attributed/*.npz")  # fmt: skip
FILES = sorted(f for pattern in PATTERNS for f in FOLDER.glob(pattern)) if FOLDER else []


def check(graph: gnnsparse.SparseGraph, device: str, precision: str) -> None:
    a = gnnsparse.prepare(graph.to(device), precision=precision, cache=False)
    matrix = graph.to_scipy().astype(np.float64)
    generator = torch.Generator().manual_seed(0)
    for operand, exact in ((a, matrix), (a.T, matrix.T)):
        x = torch.randn(operand.shape[1], 24, generator=generator)
        plain = gnnsparse.spmm(operand, x.to(device), impl="reference")
        want = torch.from_numpy(exact @ x.double().numpy())
        assert_accurate((operand @ x.to(device)).cpu(), plain.cpu(), want)
    q, k = (torch.randn(n, 24, generator=generator) for n in a.shape)
    row, col = a.indices().cpu()
    plain = gnnsparse.sddmm(a, q.to(device), k.to(device), impl="reference")
    exact_dots = (q.double()[row] * k.double()[col]).sum(1)
    assert_accurate(gnnsparse.sddmm(a, q.to(device), k.to(device)).cpu(), plain.cpu(), exact_dots)


@pytest.mark.skipif(not FILES, reason="the folder of published matrices is not there")
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name.split(".")[0])
@pytest.mark.parametrize("precision", ["fp32", pytest.param("fp16", marks=pytest.mark.gpu)])
def test_matches_scipy(device: str, path: Path, precision: str) -> None:
    graph = load_matrix(path)
    values = graph.values
    if precision == "fp16" and values is not None and float(values.abs().max()) > 65504:
        with pytest.raises(ValueError, match="values: the largest"):
            gnnsparse.prepare(graph, precision=precision, cache=False)
        graph = replace(graph, values=values / values.abs().max())
    check(graph, device, precision)


@pytest.mark.skipif(not FILES, reason="the folder of published matrices is not there")
def test_every_kind_of_file_is_there() -> None:
    assert {f.parents[0].name for f in FILES} >= {"graphs", "tu", "suitesparse", "raw", "attributed"}
    assert len(FILES) > 100
