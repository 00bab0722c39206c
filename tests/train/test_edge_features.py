"""Models that take features of edges in `gnnsparse.fit`, and what training tells them of the data."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.data import dataset_of_graphs, dataset_of_pyg
from models import GINE, MODELS, PNA

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.data import Batch, Data

CPU = {"device": "cpu", "lr": 0.01, "batch_size": 8}


def rings(count: int = 40) -> list[Data]:
    """Rings both ways, of whose bonds the first has another kind in every second one, as y says."""
    made = []
    for at in range(count):
        size = 4 + at % 3
        ring = torch.stack([torch.arange(size), (torch.arange(size) + 1) % size])
        kind = torch.full((size,), 3)
        kind[0] = 3 + at % 2
        index = torch.cat([ring, ring.flip(0)], dim=1)
        x = torch.stack([torch.ones(size), torch.arange(size) / size], dim=1)  # gates tell unequal ones apart
        made.append(Data(x=x, edge_index=index, edge_attr=kind.repeat(2), y=at % 2))
    return made


@pytest.mark.parametrize("name", ["gine", "gatedgcn", "pna", "meshgraphnet"])
def test_kinds_of_bonds_are_learned_and_predicted(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = MODELS[name].for_task("graph").build(2, 16, 2, edge_channels=2, num_layers=2)
    result = gnnsparse.fit(model, rings(), epochs=30, folder=tmp_path / "run", **CPU)
    assert result.metrics["test"]["accuracy"] == 1.0
    others = rings(10)[::-1]
    for data in others:
        del data.y
    want = [1, 0] * 5
    assert result.predict(others).classes.tolist() == want
    loaded = gnnsparse.load(tmp_path / "run", device="cpu")
    assert loaded.recipe.options["edge_channels"] == 2
    assert loaded.predict(others).classes.tolist() == want
    torch.testing.assert_close(loaded.predict(others).logits, result.predict(others).logits)
    with pytest.raises(ValueError, match="inputs: has edge_attr"):
        loaded.for_edges()
    bare = Data(x=others[0].x, edge_index=others[0].edge_index)
    with pytest.raises((TypeError, ValueError), match="edge_attr: "):
        loaded.predict([bare])


def test_nodes_of_one_graph(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(0, 60, (2, 300), generator=generator)
    attr = torch.rand(300, 1, generator=generator)
    most = torch.zeros(60).scatter_reduce(0, index[1], attr[:, 0], "amax")
    data = Data(x=torch.ones(60, 1), edge_index=index, edge_attr=attr, y=(most > 0.85).long())
    torch.manual_seed(0)
    result = gnnsparse.fit(PNA(1, 16, 2, edge_channels=1, num_layers=1), data, epochs=60, **CPU)
    assert result.metrics["test"]["accuracy"] > 0.8
    again = result.predict(data.clone())
    torch.testing.assert_close(again.logits, result.predict().logits)
    dataset = dataset_of_pyg(data, edge_features=True)
    degrees = index[1].bincount(minlength=60).double()
    assert torch.equal(dataset.train_degrees, degrees.long())
    scaler = result.model.convs[0].aggr_module
    assert scaler.avg_deg_log.item() == pytest.approx(degrees.log1p().mean().item())
    with pytest.raises(ValueError, match=r"data\.edge_attr: is missing"):
        result.predict(Data(x=data.x, edge_index=index, num_nodes=60))


class Own(torch.nn.Module):
    """A layer of ours in a model of the user's own, of graphs or of nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(2, 8)
        self.conv = gnnsparse.nn.GINEConv(torch.nn.Linear(8, 2), edge_dim=2)


class OwnOfGraphs(Own):
    def forward(self, x: Any, adj: Any, graph_ptr: Any, edge_attr: Any) -> torch.Tensor:
        return gnnsparse.nn.pool_graphs(self.conv(self.lin(x), adj, edge_attr), graph_ptr, "sum")


class OwnOfNodes(Own):
    def forward(self, x: Any, adj: Any, edge_attr: Any) -> torch.Tensor:
        return self.conv(self.lin(x), adj, edge_attr)


@pytest.mark.parametrize("make", [OwnOfGraphs, OwnOfNodes])
def test_models_of_ones_own_take_them_by_name(make: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    graphs: Any = rings()
    if make is OwnOfNodes:  # the class is the kind of the edge that leads there
        (graphs,) = rings(1)
        graphs.edge_attr[:2] = torch.tensor([4, 3])
        graphs.y = torch.tensor([0, 1, 0, 1])
        graphs = Batch.from_data_list([graphs] * 8)
        graphs = Data(x=graphs.x, edge_index=graphs.edge_index, edge_attr=graphs.edge_attr, y=graphs.y)
    result = gnnsparse.fit(make(), graphs, epochs=3, folder=tmp_path / "run", **CPU)
    again = gnnsparse.load(tmp_path / "run", device="cpu", model=make())
    torch.testing.assert_close(again.predict(graphs).logits, result.predict(graphs).logits)
    assert again.takes_edge_features


def test_degrees_are_those_of_graphs_to_train_on() -> None:
    graphs = rings(10)
    graphs[0].edge_index, graphs[0].edge_attr = torch.zeros(2, 0).long(), torch.zeros(0).long()
    for at, graph in enumerate(graphs):
        graph.split = "train" if at < 2 else "val" if at < 6 else "test"
    dataset = dataset_of_graphs(graphs, edge_features=True)
    assert dataset.train_degrees.tolist() == [0] * 4 + [2] * 5


def test_a_sampler_is_refused() -> None:
    index = torch.randint(0, 30, (2, 90))
    data = Data(x=torch.ones(30, 1), edge_index=index, edge_attr=torch.rand(90, 1), y=torch.arange(30) % 2)
    sampler = gnnsparse.train.SamplerConfig(name="neighbor", fanouts=[3, 3])
    with pytest.raises(ValueError, match="sampler: GINE takes the whole graph alone"):
        gnnsparse.fit(GINE(1, 8, 2, num_layers=2), data, epochs=1, sampler=sampler, **CPU)
