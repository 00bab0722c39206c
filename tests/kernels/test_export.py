"""Saved programs of torch.export: none can run on an operand that happens to have the right number."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse import SparseOperand
from gnnsparse.nn import GCNConv
from gnnsparse.testing import random_graph
from tests.helpers import make

# torch's exporter warns about itself.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class Calls(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


@pytest.fixture
def operand() -> SparseOperand:
    return make(random_graph(20, 20, 0.2, seed=1), "cpu")


@pytest.mark.skipif(not hasattr(torch.compiler, "is_exporting"), reason="this torch can't tell an export")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ["spmm", "sddmm", "edge_softmax", "attention", "layer"])
def test_export_is_refused(operand: SparseOperand, name: str, strict: bool) -> None:
    x, conv = torch.randn(20, 8), GCNConv(8, 4)
    functions: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
        "spmm": (lambda x: operand @ x, x),
        "sddmm": (lambda x: gnnsparse.sddmm(operand, x, x), x),
        "edge_softmax": (lambda v: gnnsparse.edge_softmax(operand, v), torch.randn(operand.nnz)),
        "attention": (lambda x: gnnsparse.attention(operand, x, x, x), x),
        "layer": (lambda x: conv(x, operand), x),
    }
    function, argument = functions[name]
    # A strict export is traced by torch.compile, which puts the message into one of its own.
    kind: Any = torch._dynamo.exc.Unsupported if strict else RuntimeError
    with pytest.raises(kind, match=r"torch\.export can't export operations of gnnsparse"):
        torch.export.export(Calls(function), (argument,), strict=strict)


def test_a_handle_means_nothing_in_another_process(operand: SparseOperand, tmp_path: Path) -> None:
    handle, path = operand.handle, tmp_path / "program.pt2"
    by_operator = Calls(lambda x: torch.ops.gnnsparse.spmm(x, None, handle))
    torch.export.save(torch.export.export(by_operator, (torch.randn(20, 8),)), path)
    assert torch.equal(
        torch.export.load(path).module()(x := torch.randn(20, 8)), operand @ x
    )  # as long as the operand lives
    code = f"""
import torch, gnnsparse
from gnnsparse.testing import random_graph
made = [gnnsparse.prepare(random_graph(20, 20, 0.2, seed=s), cache=False) for s in range(8)]
try:
    torch.export.load({str(path)!r}).module()(torch.randn(20, 8))
except RuntimeError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    assert f"operand {handle} no longer exists, or was made in another process" in done.stdout


def test_handles_are_not_counted() -> None:
    handles = [make(random_graph(5, 5, 0.5, seed=s), "cpu").handle for s in range(20)]
    assert len(set(handles)) == 20
    assert all(0 <= handle < 2**63 for handle in handles)
    assert min(handles) > 2**32  # the chance of a smaller one is 1 in 10^8
