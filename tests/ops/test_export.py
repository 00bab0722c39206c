"""Programs of torch.export and AOTInductor run here, and elsewhere with the pickled operand alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
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
    def __init__(self, function: Callable[..., Any], *layers: torch.nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, torch.nn.ModuleList(layers)

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


@pytest.fixture
def operand() -> SparseOperand:
    return make(random_graph(20, 20, 0.2, seed=1), "cpu")


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "spmm": lambda a, x, v, q: a @ x,
    "transposed": lambda a, x, v, q: a.T @ x,
    "values": lambda a, x, v, q: gnnsparse.spmm(a, x, v),
    "maximum": lambda a, x, v, q: gnnsparse.spmm(a, x, reduce="max"),
    "sddmm": lambda a, x, v, q: gnnsparse.sddmm(a, x, x),
    "edge_softmax": lambda a, x, v, q: gnnsparse.edge_softmax(a, v),
    "attention": lambda a, x, v, q: gnnsparse.attention(a, x, x, x),
    "graph_attention": lambda a, x, v, q: gnnsparse.graph_attention(a, q, q, q, score="cosine"),
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", [*FUNCTIONS, "model"])
def test_an_exported_program_gives_the_same_bits(operand: SparseOperand, name: str, strict: bool) -> None:
    arguments = torch.randn(20, 8), torch.randn(operand.nnz), torch.randn(20, 2, 4)
    if name == "model":
        first, last = GCNConv(8, 16, normalize=False), GCNConv(16, 4, normalize=False)
        model = Calls(lambda x, v, q: last(first(x, operand).relu(), operand), first, last)
    else:
        model = Calls(partial(FUNCTIONS[name], operand))
    program = torch.export.export(model, arguments, strict=strict)
    assert torch.equal(program.module()(*arguments), model(*arguments))
    assert program.state_dict.keys() == model.state_dict().keys()


ELSEWHERE = """
import torch, gnnsparse
from gnnsparse.testing import random_graph

def refused(program, x):
    try:
        program(x)
    except RuntimeError as error:
        print(error)

by_handle = torch.export.load("by_handle.pt2").module()
made = [gnnsparse.prepare(random_graph(20, 20, 0.2, seed=s), cache=False) for s in range(8)]
refused(by_handle, torch.zeros(20, 8))
transpose, x, right = torch.load("transpose.pt", weights_only=False)
assert torch.equal(torch.export.load("transpose.pt2").module()(x), right)
operand, x, right, compiled = torch.load("operand.pt", weights_only=False)
assert torch.equal(by_handle(x), operand @ x)
assert torch.equal(torch._inductor.aoti_load_package("compiled.pt2")(x), compiled)
program = torch.export.load("both.pt2").module()
assert torch.equal(program(x), right)
again = torch.load("operand.pt", weights_only=False)[0]
assert again is operand
del operand, again, transpose
refused(program, x)
"""


def test_programs_run_elsewhere_with_the_pickled_operand_alone(
    operand: SparseOperand, tmp_path: Path
) -> None:
    """Also a compiled package and a pickled transpose; a handle alone means nothing in another process."""
    x, handle, other = torch.randn(20, 8), operand.handle, make(random_graph(20, 20, 0.2, seed=2), "cpu")
    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "by_handle": lambda x: torch.ops.gnnsparse.spmm(x, None, handle),
        "both": lambda x: operand @ (operand.T @ x),
        "transpose": lambda x: other.T @ x,
        "compiled": lambda x: gnnsparse.attention(operand, operand @ x, x, x),
    }
    with torch.no_grad():
        for name, function in functions.items():
            program, path = torch.export.export(Calls(function), (x,)), tmp_path / f"{name}.pt2"
            if name == "compiled":
                torch._inductor.aoti_compile_and_package(program, package_path=str(path))
                run = torch._inductor.aoti_load_package(str(path))
            else:
                torch.export.save(program, path)
                run = torch.export.load(path).module()
            assert torch.equal(run(x), function(x))
        torch.save((other.T, x, other.T @ x), tmp_path / "transpose.pt")
        both, compiled = functions["both"](x), functions["compiled"](x)
        torch.save((operand, x, both, compiled), tmp_path / "operand.pt")
    command = [sys.executable, "-W", "ignore", "-c", ELSEWHERE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert f"operand {handle} no longer exists, or was made in another process" in first
    assert "no longer exists" in second


def test_handles_are_not_counted() -> None:
    handles = [make(random_graph(5, 5, 0.5, seed=s), "cpu").handle for s in range(20)]
    assert len(set(handles)) == 20
    assert all(0 <= handle < 2**63 for handle in handles)
    assert min(handles) > 2**32  # the chance of a smaller one is 1 in 10^8
