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
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

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
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_exported_program_gives_the_same_bits(operand: SparseOperand, name: str, strict: bool) -> None:
    function = partial(FUNCTIONS[name], operand)
    arguments = torch.randn(20, 8), torch.randn(operand.nnz), torch.randn(20, 2, 4)
    with torch.no_grad():
        program = torch.export.export(Calls(function), arguments, strict=strict)
        assert torch.equal(program.module()(*arguments), function(*arguments))


class Model(torch.nn.Module):
    """Two layers that hold their graph."""

    def __init__(self, operand: SparseOperand) -> None:
        super().__init__()
        self.first, self.last = GCNConv(8, 16, normalize=False), GCNConv(16, 4, normalize=False)
        self.operand = operand

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x, self.operand).relu(), self.operand)


@pytest.mark.parametrize("strict", [False, True])
def test_a_model_is_exported(operand: SparseOperand, strict: bool) -> None:
    model, x = Model(operand), torch.randn(20, 8)
    program = torch.export.export(model, (x,), strict=strict)
    assert torch.equal(program.module()(x), model(x))
    assert program.state_dict.keys() == model.state_dict().keys()


def test_a_compiled_package_gives_the_same_bits(operand: SparseOperand, tmp_path: Path) -> None:
    model, x = Calls(lambda x: gnnsparse.attention(operand, operand @ x, x, x)), torch.randn(20, 8)
    with torch.no_grad():
        program = torch.export.export(model, (x,))
        package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
        assert torch.equal(torch._inductor.aoti_load_package(package)(x), model(x))
        torch.save((operand, x, model(x)), tmp_path / "operand.pt")
    run_elsewhere(
        f"""
found = torch._inductor.aoti_load_package({package!r})(x)
assert torch.equal(found, right)
""",
        tmp_path / "operand.pt",
    )


def test_a_program_runs_elsewhere_with_the_pickled_operand(operand: SparseOperand, tmp_path: Path) -> None:
    x = torch.randn(20, 8)
    program = torch.export.export(Calls(lambda x: operand @ (operand.T @ x)), (x,))
    torch.export.save(program, tmp_path / "program.pt2")
    torch.save((operand, x, operand @ (operand.T @ x)), tmp_path / "operand.pt")
    run_elsewhere(
        f"""
program = torch.export.load({str(tmp_path / "program.pt2")!r}).module()
assert torch.equal(program(x), right)
again = torch.load({str(tmp_path / "operand.pt")!r}, weights_only=False)[0]
assert again is operand
del operand, again
try:
    program(x)
except RuntimeError as error:
    assert "no longer exists" in str(error)
else:
    assert False
""",
        tmp_path / "operand.pt",
    )


def test_a_pickled_transpose_keeps_its_handle(operand: SparseOperand, tmp_path: Path) -> None:
    x = torch.randn(20, 8)
    torch.export.save(torch.export.export(Calls(lambda x: operand.T @ x), (x,)), tmp_path / "program.pt2")
    torch.save((operand.T, x, operand.T @ x), tmp_path / "operand.pt")
    code = f"assert torch.equal(torch.export.load({str(tmp_path / 'program.pt2')!r}).module()(x), right)"
    run_elsewhere(code, tmp_path / "operand.pt")


def run_elsewhere(code: str, saved: Path) -> None:
    """Runs code in another process, after `operand, x, right` have been loaded."""
    start = f"""
import torch, gnnsparse
operand, x, right = torch.load({str(saved)!r}, weights_only=False)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", start + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


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
