"""A further format in a file of its own, which is all that it takes: products run by its arrays."""

from __future__ import annotations

import importlib.util
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import gnnsparse
from gnnsparse.registry import temporary_registrations
from gnnsparse.testing import random_graph
from tests.helpers import dense_matrix
from tests.ops.test_spmm import check

#: Blocks of 16 x 8 with all values, padded: those of TC-GNN (Wang et al., USENIX ATC 2023, section 4.1).
FILE = """
    from gnnsparse.formats import FormatSpec, register_preset
    from gnnsparse.precision import Precision


    def paper_bytes(matrix):
        return 4 * (matrix.panels + matrix.slots) + matrix.values.nbytes


    register_preset(
        FormatSpec("tc-blocks", window=16, panel=16, block=8, brick=8, encoding="dense", pad=8),
        source="TC-GNN, section 4.1",
        precisions=(Precision.TF32, Precision.FP16),
        added=(Precision.FP16,),
        paper_bytes=paper_bytes,
    )
"""


@pytest.mark.parametrize("precision", ["tf32", "fp16"])
def test_a_format_in_one_file(device: str, precision: str, tmp_path: Path) -> None:
    path = tmp_path / "tc_blocks.py"
    path.write_text(textwrap.dedent(FILE))
    spec = importlib.util.spec_from_file_location("tc_blocks", path)
    assert spec is not None
    assert spec.loader is not None
    with temporary_registrations():
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
        graph = random_graph(150, 110, 0.06, hubs=2, empty_rows=0.1)
        a = gnnsparse.prepare(graph.to(device), format="tc-blocks", precision=precision, cache=False)
        blocked = a.kernels.require_blocked()
        assert a.plan(40).kernel == ("blocked" if device == "cpu" else "window")
        assert a.stats()["format_bytes"] == {
            "stored": blocked.nbytes,
            "paper": 4 * (blocked.panels + blocked.slots) + blocked.values.nbytes,
        }
        for width in (1, 40, 128):
            check(a, dense_matrix(graph, None), torch.randn(110, width))
            check(a.T, dense_matrix(graph, None).T, torch.randn(150, width))
        prepared, x = a.prepared, torch.randn(110, 16, device=device)
        doubled = prepared.forward.with_blocked(replace(blocked, values=2 * blocked.values))
        other = gnnsparse.SparseOperand(replace(prepared, forward=doubled))
        assert torch.equal(other @ x, 2 * (a @ x)), "the product is that of the format's own values"
        with pytest.raises(ValueError, match=r"precision: got 'bf16' .* whose paper has tf32"):
            gnnsparse.prepare(graph, format="tc-blocks", precision="bf16", cache=False)
        with pytest.raises(ValueError, match=r"A: asks for sddmm, which the format tc-blocks \(TC-GNN"):
            gnnsparse.sddmm(a, torch.randn(150, 4, device=device), torch.randn(110, 4, device=device))
