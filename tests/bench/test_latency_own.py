"""`gnnsparse.bench.latency` and `gnnsparse bench latency --model FILE.py:NAME`: models of the user's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.bench import Latencies, latency, latency_own
from gnnsparse.bench.latency_own import own_arguments
from gnnsparse.cli.main import main
from gnnsparse.nn import GCNConv

pyg = pytest.importorskip("torch_geometric.nn")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

NODES = 40
QUICK: Any = {"calls": 5, "seconds": 0.05, "compiles": False}
MINE = """
import torch
from torch_geometric.nn import GCNConv, SAGEConv

class Net(torch.nn.Module):
    def __init__(self, in_channels, hidden, out_channels, aggr="mean"):
        super().__init__()
        self.a, self.b = GCNConv(in_channels, hidden), SAGEConv(hidden, out_channels, aggr)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x, edge_index):
        return self.b(self.dropout(self.a(x, edge_index)), edge_index)

class Broken(Net):
    def forward(self, x, edge_index):
        return x @ x.new_ones(99)

NUMBER = 3
"""
NET = "--model mine.py:Net --model-args hidden=4"


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, NODES, (2, 200), generator=generator)
    return torch.randn(NODES, 8, generator=generator), edges


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_geometric.data import Data

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    x, edges = inputs()
    Path("mine.py").write_text(MINE)
    torch.save({"weight": x}, "other.pt")
    torch.save(Data(x=x, edge_index=edges, y=torch.arange(NODES) % 3), "graph.pt")
    torch.save(Data(x=x, edge_index=edges), "bare.pt")
    torch.save(Data(x=x, edge_index=edges, edge_label=torch.arange(200) % 4), "edges.pt")


def names(found: Latencies) -> list[str]:
    return [row.name for row in found.rows]


def test_a_pyg_model_beside_its_accelerated_self() -> None:
    model = pyg.GCN(8, 16, num_layers=2, out_channels=3, dropout=0.5).train()
    found = latency(model, *inputs(), precisions=("fp32", "fp16"), **QUICK)
    assert names(found) == ["as it is", "accelerated", "accelerated, fp16"]
    assert all(row.ok and row.note == "" for row in found.rows)
    first, ours, half = found.rows
    assert first.difference is None
    assert ours.difference is not None
    assert half.difference is not None
    assert ours.difference < 1e-5 < half.difference < 1e-2
    for row in found.rows:
        assert row.p50_ms is not None
        assert row.p90_ms is not None
        assert row.p99_ms is not None
        assert 0 < row.p50_ms <= row.p90_ms <= row.p99_ms
        assert row.memory_mib is not None
        assert row.memory_mib >= NODES * 16 * 4 / 2**20  # the features between the layers at the least
    assert model.training
    assert not gnnsparse.interop.pyg.report(model).accelerated
    assert "as it is" in str(found).splitlines()[4]


@pytest.mark.parametrize("graph", ["edge_index", "operand"])
def test_a_model_of_our_layers_has_no_pyg_rows(graph: str) -> None:
    class Ours(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GCNConv(8, 3)

        def forward(self, x: torch.Tensor, adj: Any, scale: float) -> dict[str, Any]:
            return {"logits": self.conv(x, adj) * scale}

    x, edges = inputs()
    adj: Any = edges if graph == "edge_index" else gnnsparse.prepare(edges, num_nodes=NODES, values="gcn")
    assert names(latency(Ours(), x, adj, {"scale": 2.0}, **QUICK)) == ["as it is"]


def test_a_failure_is_a_row_and_a_wrong_output_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: Any, precision: Any) -> Any:
        return torch.nn.Module.apply(gnnsparse.interop.pyg.accelerate(model), _halve)

    def _halve(module: torch.nn.Module) -> None:
        for parameter in module.parameters(recurse=False):
            parameter.data.mul_(0.5)

    def no_compiler(model: Any, mode: Any) -> Any:
        def call(*arguments: Any) -> None:
            raise RuntimeError("no compiler here\nand much more")

        return call

    monkeypatch.setattr(latency_own, "_accelerated", broken)
    monkeypatch.setattr(torch, "compile", no_compiler)
    found = latency(pyg.GCN(8, 16, 2), *inputs(), **{**QUICK, "compiles": True})
    _, wrong, failed = found.rows
    assert not wrong.ok
    assert wrong.note.startswith("WRONG: its output differs by")
    assert (failed.ok, failed.p50_ms) == (False, None)
    assert failed.note == "failed: RuntimeError: no compiler here"
    assert "no compiler here" in str(found)


def test_layers_that_run_on_pyg_are_named() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = pyg.GCNConv(8, 8), pyg.PointNetConv()

        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x, edges), x[:, :3], edges)

    note = latency(Net(), *inputs(), **QUICK).rows[1].note
    assert note.startswith("1 of 2 layers accelerated; b: ")


def run(words: str) -> int:
    quick = "--device cpu --calls 5 --seconds 0.05 --backend pyg,gnnsparse"
    return main(["bench", "latency", *words.split(), *quick.split()])


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Weights are read; the file holds the rows."""
    state = latency_own.own_model("mine.py:Net", (8, 3), {"hidden": 4, "aggr": "max"}).state_dict()
    torch.save(state, "weights.pt")
    given = "--model mine.py:Net --graph graph.pt --weights weights.pt --out out.json"
    assert run(f"{given} --model-args hidden=4,aggr=max") == 0
    output = capsys.readouterr().out
    assert "Net on cpu" in output
    rows = json.loads(Path("out.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["as it is", "accelerated"]
    assert rows[1]["ok"]


@pytest.mark.parametrize(("file", "more"), [("bare.pt", ",out_channels=2"), ("edges.pt", "")])
def test_a_graph_needs_no_labels_and_may_have_those_of_edges(file: str, more: str) -> None:
    """The number of classes of edges is the model's number of outputs, too."""
    assert run(f"{NET}{more} --graph {file} --out out.json") == 0
    assert all(row["ok"] for row in json.loads(Path("out.json").read_text())["rows"])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (f"{NET} --layers 2", "argument --layers: is for models of this package"),
        (f"{NET} --graph bare.pt", "needs out_channels; accepted: --model-args out_channels=VALUE"),
        ("--model mine.py:Net", "argument --graph: is missing; accepted: a file or folder with your graph"),
        (
            "--graph graph.pt",
            "argument --graph: goes with a model of your own; accepted: --model FILE.py:NAME",
        ),
        ("--model mine.py:Net,gat --graph graph.pt", "argument --model: has several models"),
        ("--model other.py:Net --graph graph.pt", "argument --model: there is no file 'other.py'"),
        ("--model mine.py:Nat --graph graph.pt", "mine.py has no 'Nat'; accepted: Net, Broken"),
        ("--model mine.py:NUMBER --graph graph.pt", "mine.py has no 'NUMBER'"),
        ("--model mine.py:Net --graph graph.pt", "needs hidden; accepted: --model-args hidden=VALUE"),
        (
            "--model mine.py:Net --graph graph.pt --model-args hiden=4",
            "Net has no argument 'hiden'; accepted: in_c",
        ),
        (
            "--model mine.py:Net --graph graph.pt --model-args 4",
            "argument --model-args: got '4'; accepted: NAME=",
        ),
        (f"{NET} --graph graph.pt --hidden 4", "argument --hidden: is for models of this package; accepted"),
        (f"{NET} --graph graph.pt --dataset cora", "argument --dataset: is for models of this package"),
        ("--model mine.py:Net --graph there.pt", "argument --graph: there is no file 'there.pt'"),
        ("--model mine.py:Net --graph graph.pt --precision int8", "argument --precision: got 'int8'"),
        ("--model mine.py:Net --graph graph.pt --plot a.png", "argument --plot"),
        ("--model mine --graph graph.pt", "transformer, FILE.py:NAME)"),
        (f"{NET} --graph mine.py", "argument --graph: mine.py can't be read: "),
        (f"{NET} --graph graph.pt --weights mine.py", "argument --weights: mine.py does not fit: "),
        (f"{NET} --graph graph.pt --weights other.pt", "Missing key(s)"),
    ],
)
def test_bad_options_are_named(words: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run(words)
    assert stop.value.code == 2
    assert problem in capsys.readouterr().err


def test_errors_of_the_users_code_are_shown_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="99"):
        run("--model mine.py:Broken --graph graph.pt --model-args hidden=4")


def test_arguments_are_read_as_python_writes_them() -> None:
    found = own_arguments("hidden=64,p=0.5,norm=None,act=relu,flag=True")
    assert dict(found) == {"hidden": 64, "p": 0.5, "norm": None, "act": "relu", "flag": True}
