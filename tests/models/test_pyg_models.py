"""Models with PyG's layers in place of ours, as the benchmarks compare them, and a layer of GPS."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.data import graph_like
from gnnsparse.runtime.environment import write_json
from gnnsparse.testing import assert_accurate, assert_all_accurate, in_float64, with_gradients
from models import GPS, MODELS
from tests.helpers import FLOOR
from tests.nn.pyg_layers import loss_curve, pyg
from tests.tasks import toy_task

accuracy: Any = pytest.importorskip("benchmarks.accuracy")
from benchmarks import train_step  # noqa: E402
from benchmarks.pyg import with_pyg_layers  # noqa: E402

NODES, WIDTH = 30, 8
NAMES = [n for n, model in MODELS.items() if model.task == "node" and model.edge_features == "none"]


def edges() -> torch.Tensor:
    """Edges without repeats and self-loops."""
    index = torch.randint(0, NODES, (2, 100), generator=torch.Generator().manual_seed(1)).unique(dim=1)
    return index[:, index[0] != index[1]]


def models_of(name: str, **options: Any) -> tuple[Any, Any]:
    """The model, and an equal one with PyG's layers."""
    torch.manual_seed(3)
    ours = MODELS[name].build(6, out_channels=3, hidden_channels=8, **options)
    torch.manual_seed(3)
    theirs = MODELS[name].build(6, out_channels=3, hidden_channels=8, **options)
    state = torch.get_rng_state()
    theirs = with_pyg_layers(theirs)
    assert torch.equal(torch.get_rng_state(), state), "the random numbers of training are those of ours"
    return ours, theirs


@pytest.mark.parametrize("name", NAMES)
def test_equal_models_give_equal_results_and_train_alike(name: str) -> None:
    ours, theirs = (model.eval() for model in models_of(name, dropout=0.0))
    kinds = {type(module).__module__.partition(".")[0] for module in theirs.modules()}
    assert "torch_geometric" in kinds
    assert not any(isinstance(module, gnnsparse.nn.SparseAttention) for module in theirs.modules())
    index, x, y = edges(), torch.randn(NODES, 6), torch.randint(0, 3, (NODES,))
    a = gnnsparse.prepare(index, num_nodes=NODES, values=MODELS[name].values, cache=False)
    got = with_gradients(lambda x: ours(x, a), [x])
    plain = with_gradients(lambda x: theirs(x, index), [x])
    with in_float64(theirs):
        exact = with_gradients(lambda x: theirs(x, index), [x.double()])
    assert_all_accurate(got, plain, exact)
    wide = copy.deepcopy(theirs.train()).double()
    losses, of_plain = loss_curve(ours.train(), x, a, y, 15), loss_curve(theirs, x, index, y, 15)
    # Rounding errors of gradients, which Adam divides by their size, grow from step to step.
    assert_accurate(losses, of_plain, loss_curve(wide, x.double(), index, y, 15), floor=1e-4)
    assert losses[-1] < 0.95 * losses[0]


@pytest.mark.parametrize("model", train_step.SIZES)
def test_the_steps_of_the_benchmark_compute_the_same(model: str) -> None:
    graph = graph_like("arxiv_like", scale=0.01)
    x = torch.randn(graph.num_rows, train_step.FEATURES)
    y = torch.randint(0, train_step.CLASSES, (graph.num_rows,))
    train = torch.rand(graph.num_rows) < 0.66

    def losses(name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        torch.manual_seed(0)
        built, adj, _, _ = train_step.make_model(model, name, graph)
        adj = adj.to(dtype) if isinstance(adj, torch.Tensor) and adj.is_floating_point() else adj
        step = train_step.make_step(built.to(dtype), adj, x.to(dtype), y, train, None)
        return torch.stack([step() for _ in range(4)])

    got, peer = losses("gnnsparse fp32"), train_step.PEERS[model][0]
    assert_accurate(got, losses(peer), losses(peer, torch.float64))
    assert got[-1] < got[0]


@pytest.mark.parametrize("name", NAMES)
def test_the_benchmark_trains_both(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = accuracy.options_of(name, "digits", None, "cpu")
    cfg.trainer.max_epochs = 3
    monkeypatch.setattr(accuracy, "options_of", lambda *_: cfg)
    monkeypatch.setattr(accuracy, "dataset_of", lambda *_: toy_task(name="digits"))
    subject = accuracy.Subject(name, "digits", None, "cpu")
    ours = accuracy.scores_of(replace(subject, precision="fp32"), 2, None)
    theirs = accuracy.baseline_of(subject, 2, None)
    assert len(ours["accuracies"]) == len(theirs["baseline_accuracies"]) == 2
    assert ours["metric"] == "accuracy"
    assert all(0 <= score <= 100 for score in ours["accuracies"] + theirs["baseline_accuracies"])


def test_rows_of_other_runs_are_kept(tmp_path: Path) -> None:
    header = {"device_name": "a", "threads": 2, "versions": {"torch": "1"}}
    row = {"model": "gat", "dataset": "cora", "precision": "fp32", "seeds": 10, "mean": 1.0}
    file = tmp_path / "rows.json"
    assert accuracy.kept_rows(file, header, 10) == accuracy.kept_rows(None, header, 10) == []
    rows = accuracy.with_row(accuracy.with_row([], row), {**row, "precision": "fp16"})
    rows = accuracy.with_row(rows, {**row, "mean": 2.0})
    assert [(r["precision"], r["mean"]) for r in rows] == [("fp32", 2.0), ("fp16", 1.0)]
    write_json(file, {**header, "rows": rows})
    assert accuracy.kept_rows(file, header, 10) == rows
    with pytest.raises(ValueError, match="another number of seeds than 3"):
        accuracy.kept_rows(file, header, 3)
    with pytest.raises(ValueError, match="has threads 2, this run 1"):
        accuracy.kept_rows(file, {**header, "threads": 1}, 10)


def twin_of(block: Any, attention: Any, conv: str, norm: str) -> Any:
    """PyG's layer with the parameters of ours."""
    if conv == "gcn":
        local = pyg.GCNConv(WIDTH, WIDTH)
    else:
        linears = torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)
        local = pyg.GINConv(torch.nn.Sequential(*linears))
    # PyG's "layer_norm" is over the nodes of a graph too, ours and the paper's over the features of a node.
    theirs = pyg.GPSConv(WIDTH, local, heads=2, norm="batch_norm" if norm == "batch" else None)
    theirs.conv.load_state_dict(block.conv.state_dict())
    theirs.attn.load_state_dict(attention.state_dict())
    theirs.mlp[0].load_state_dict(block.linear1.state_dict())
    theirs.mlp[3].load_state_dict(block.linear2.state_dict())
    for number in (1, 2, 3):
        ours = getattr(block, f"norm{number}")
        if norm == "batch":
            getattr(theirs, f"norm{number}").module.load_state_dict(ours.state_dict())
        elif norm == "layer":
            setattr(theirs, f"norm{number}", torch.nn.LayerNorm(WIDTH))
            getattr(theirs, f"norm{number}").load_state_dict(ours.state_dict())
    return theirs


@pytest.mark.parametrize("conv", ["gcn", "gin"])
@pytest.mark.parametrize("norm", ["none", "batch", "layer"])
def test_a_layer_of_gps_is_pygs(conv: str, norm: str) -> None:
    model = GPS(WIDTH, WIDTH, 3, num_layers=1, heads=2, conv=conv, attention="full", dropout=0.0, norm=norm)
    (block,), (attention,) = model.blocks, model.attentions
    for parameter in [*block.parameters(), *attention.parameters()]:
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter)  # those that are 0 or 1 at first
    theirs = twin_of(block, attention, conv, norm)
    index = edges()
    values = "gcn" if conv == "gcn" else None
    adj = gnnsparse.prepare(index, num_nodes=NODES, values=values, cache=False)
    pairs = gnnsparse.prepare(gnnsparse.masks.full(NODES), cache=False)
    x = torch.randn(NODES, WIDTH)
    got = with_gradients(lambda x: block(x, adj, attention(x, x, x, pairs)), [x])
    plain = with_gradients(lambda x: theirs(x, index), [x])
    with in_float64(theirs):
        exact = with_gradients(lambda x: theirs(x, index), [x.double()])
    assert_all_accurate(got, plain, exact, floor=FLOOR)
    # The model is this layer between two linear layers.
    y = model.lin2(block(model.lin1(x), adj, attention(*[model.lin1(x)] * 3, pairs)))
    assert torch.equal(model(x, adj), y)
