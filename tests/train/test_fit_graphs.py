"""`gnnsparse.fit` on lists of PyG's graphs, and models that take PyG's Data or attributes of it by name."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.data import dataset_of_graphs
from gnnsparse.data.splits import split_generator
from models import MODELS
from tests.tu_files import graph_dataset, small_graphs

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch_geometric.nn as pyg
    from torch_geometric.data import Batch, Data, InMemoryDataset

CPU: dict[str, Any] = {"device": "cpu", "epochs": 2}


def graphs(count: int = 40, **changes: Any) -> list[Data]:
    """Rings and stars; `changes` are attributes, or functions of a graph that make them."""
    structures, kinds, classes = small_graphs(count)
    made = []
    for graph, kind, y in zip(structures, kinds, classes.tolist(), strict=True):
        edges = torch.stack([graph.csr.indices.long(), graph.csr.row_index()])
        data = Data(x=torch.nn.functional.one_hot(kind, 3).float(), edge_index=edges, y=torch.tensor([y]))
        for name, change in changes.items():
            data[name] = change(data) if callable(change) else change
        made.append(data)
    return made


def weights(data: Data) -> torch.Tensor:
    return torch.linspace(0.5, 1.5, data.edge_index.shape[1])


class Net(torch.nn.Module):
    """One layer of PyG, pooled; the classes below differ in what `forward` takes."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv, self.last = pyg.GraphConv(3, 8), torch.nn.Linear(8, outputs)

    def run(self, x: Any, edge_index: Any, batch: Any, edge_weight: Any = None) -> torch.Tensor:
        hidden = self.conv(x, edge_index, edge_weight).relu()
        return self.last(pyg.global_add_pool(hidden, batch))


class ByOrder(Net):
    def forward(self, x: Any, edge_index: Any, batch: Any) -> torch.Tensor:
        return self.run(x, edge_index, batch)


class ByName(Net):
    def forward(self, edge_weight: Any, batch: Any, edge_index: Any, x: Any) -> torch.Tensor:
        return self.run(x, edge_index, batch, edge_weight)


class OfData(Net):
    def forward(self, data: Any) -> torch.Tensor:
        return self.run(data.x, data.edge_index, data.batch, data.edge_weight)


class OfAttributes(Net):
    """It takes attributes of edges, and one that nobody knows but its user."""

    def forward(self, x: Any, edge_index: Any, edge_attr: Any, batch: Any, charge: Any) -> torch.Tensor:
        return self.run(x, edge_index, batch, edge_attr[:, 0]) + charge[:, None]


MODELS_OF_PYG = [ByOrder, ByName, OfData, OfAttributes]


def given_to(kind: type[Net]) -> list[Data]:
    if kind is ByOrder:
        return graphs()
    if kind is OfAttributes:
        return graphs(edge_attr=lambda data: weights(data)[:, None], charge=torch.tensor([0.5]))
    return graphs(edge_weight=weights)


def own_loop(model: Net, data: list[Data], call: Any, epochs: int, size: int, seed: int) -> None:
    """What a user of PyG would write, with the order of the graphs that `fit` takes."""
    chosen = dataset_of_graphs(data, seed=seed).parts["train"]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(epochs):
        order = torch.randperm(len(chosen), generator=split_generator(epoch, seed))
        for ids in order.split(size):
            batch = Batch.from_data_list([data[at] for at in chosen[ids].tolist()])
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(call(model, batch), batch.y).backward()
            optimizer.step()


CALLS = {
    ByOrder: lambda model, b: model(b.x, b.edge_index, b.batch),
    ByName: lambda model, b: model(b.edge_weight, b.batch, b.edge_index, b.x),
    OfData: lambda model, b: model(b),
    OfAttributes: lambda model, b: model(b.x, b.edge_index, b.edge_attr, b.batch, b.charge),
}


@pytest.mark.parametrize("kind", MODELS_OF_PYG)
def test_steps_are_those_of_a_users_own_loop(kind: type[Net], tmp_path: Path) -> None:
    data, model, own = given_to(kind), kind(), kind()
    result = gnnsparse.fit(model, data, device="cpu", epochs=1, batch_size=8, seed=4, folder=tmp_path / "run")
    own_loop(own, data, CALLS[kind], epochs=1, size=8, seed=4)
    torch.testing.assert_close(model.state_dict(), own.state_dict(), rtol=1e-5, atol=1e-6)

    whole = Batch.from_data_list(data)
    expected = CALLS[kind](own.eval(), whole)
    torch.testing.assert_close(result.predict().logits, expected, rtol=1e-4, atol=1e-5)
    some = copy.deepcopy(data[5:9])
    for graph in some:
        del graph.y
    torch.testing.assert_close(result.predict(some).logits, expected[5:9], rtol=1e-4, atol=1e-5)
    loaded = gnnsparse.load(tmp_path / "run", device="cpu", model=kind())
    torch.testing.assert_close(loaded.predict(some).logits, expected[5:9], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(loaded.predict(some[0]).logits, expected[5:6], rtol=1e-4, atol=1e-5)
    with pytest.raises(gnnsparse.inference.loading.LoadError, match="which is in no registry"):
        gnnsparse.load(tmp_path / "run", device="cpu")


def test_it_learns_and_goes_on_as_uninterrupted(tmp_path: Path) -> None:
    options: dict[str, Any] = {"device": "cpu", "batch_size": 16, "lr": 0.05}
    whole = gnnsparse.fit(ByOrder(), graphs(80), epochs=16, **options)
    assert whole.metrics["test"]["accuracy"] > 0.8
    gnnsparse.fit(ByOrder(), graphs(80), epochs=6, folder=tmp_path / "a", **options)
    last = tmp_path / "a" / "checkpoints" / "last.ckpt"
    rest = gnnsparse.fit(ByOrder(), graphs(80), epochs=16, folder=tmp_path / "b", resume=last, **options)
    torch.testing.assert_close(rest.model.state_dict(), whole.model.state_dict(), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("precision", ["tf32", "fp16", "bf16"])
def test_precisions(precision: str) -> None:
    result = gnnsparse.fit(ByOrder(), graphs(), precision=precision, batch_size=8, **CPU)
    assert result.predict().classes.shape == (40,)


class Flat(ByOrder):
    def forward(self, x: Any, edge_index: Any, batch: Any) -> torch.Tensor:
        return super().forward(x, edge_index, batch)[:, 0]


def test_one_number_of_a_graph_needs_no_column() -> None:
    numbers = graphs(y=lambda data: data.num_nodes / 10 + 0.05)
    results = [gnnsparse.fit(model, numbers, **CPU) for model in (Flat(1), ByOrder(1))]
    assert results[0].metrics == results[1].metrics
    assert results[0].predict().values.shape == (40, 1)


def test_repeated_edges_are_no_weights() -> None:
    double = graphs(edge_index=lambda data: data.edge_index.repeat(1, 2))
    gnnsparse.fit(ByOrder(), double, **CPU)  # warnings are errors


def test_kinds_of_targets() -> None:
    numbers = graphs(y=lambda data: torch.tensor([[data.num_nodes / 10, -data.num_nodes / 7]]))
    result = gnnsparse.fit(ByOrder(), numbers, **CPU)
    assert result.predict(numbers[:3]).values.shape == (3, 2)
    labels = graphs(y=lambda data: torch.tensor([[data.num_nodes > 7, data.num_nodes % 2]]).float())
    assert gnnsparse.fit(ByOrder(), labels, **CPU).predict().classes.dtype == torch.bool


class Saved(InMemoryDataset):
    def __init__(self, data: list[Data]) -> None:
        super().__init__(None)
        self.data, self.slices = self.collate(data)


def test_data_sets_of_pyg_and_of_ours_are_lists_too() -> None:
    listed = gnnsparse.fit(ByOrder(), graphs(), **CPU)
    for data in (tuple(graphs()), Saved(graphs())):
        assert gnnsparse.fit(ByOrder(), data, **CPU).metrics == listed.metrics
    dataset = graph_dataset()
    result = gnnsparse.fit(ByOrder(), dataset, **CPU)
    expected = ByOrder.forward(
        result.model, *(lambda b: (b.x, b.edge_index, b.batch))(Batch.from_data_list(graphs()))
    )
    torch.testing.assert_close(result.predict(dataset).logits, expected, rtol=1e-4, atol=1e-5)
    one = Saved([Data(x=torch.randn(30, 3), edge_index=torch.randint(30, (2, 90)), y=torch.arange(30) % 2)])
    assert gnnsparse.fit(pyg.GCN(3, 8, 1, 2), one, **CPU).predict().logits.shape == (30, 2)


@pytest.mark.parametrize("name", ["gin", "gcn"])
def test_models_of_ours_take_lists_too(name: str, tmp_path: Path) -> None:
    entry = MODELS[name].for_task("graph")
    model = entry.build(3, out_channels=2, hidden_channels=8)
    given = {} if entry.values is None else {"values": entry.values}
    result = gnnsparse.fit(model, graphs(), folder=tmp_path / "run", **given, **CPU)
    loaded = gnnsparse.load(tmp_path / "run", device="cpu")
    some = result.predict(graphs()[:7]).logits
    torch.testing.assert_close(some, result.predict().logits[:7], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(loaded.predict(graphs()[:7]).logits, some, rtol=1e-4, atol=1e-5)


class Nodes(torch.nn.Module):
    """Models of nodes that are given what their layers need."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv = pyg.GraphConv(3, 2)


class DataOfNodes(Nodes):
    def forward(self, data: Any) -> torch.Tensor:
        return self.conv(data.x, data.edge_index, data.edge_weight)


class WeightsOfNodes(Nodes):
    def forward(self, x: Any, edge_weight: Any, edge_index: Any) -> torch.Tensor:
        return self.conv(x, edge_index, edge_weight)


@pytest.mark.parametrize("kind", [DataOfNodes, WeightsOfNodes])
def test_models_of_nodes_get_what_they_need(kind: type[Nodes], tmp_path: Path) -> None:
    whole = Batch.from_data_list(graphs(edge_weight=weights))
    data = Data(x=whole.x, edge_index=whole.edge_index, edge_weight=whole.edge_weight, y=whole.y[whole.batch])
    model = kind()
    result = gnnsparse.fit(model, data, folder=tmp_path / "run", **CPU)
    expected = model.conv(data.x, data.edge_index, data.edge_weight)
    torch.testing.assert_close(result.predict().logits, expected)
    loaded = gnnsparse.load(tmp_path / "run", device="cpu", model=kind())
    torch.testing.assert_close(loaded.predict(data).logits, expected)


@pytest.mark.parametrize(
    ("model", "data", "options", "error", "said"),
    [
        (
            ByName,
            graphs,
            {},
            TypeError,
            r"the data have no edge_weight; accepted: forward\(x, A, graph_ptr\)",
        ),
        (OfAttributes, graphs, {}, TypeError, "the data have no edge_attr, charge; accepted"),
        (ByOrder, lambda: [], {}, ValueError, "^data: has no graph; accepted: a list of one or more"),
        (
            ByOrder,
            lambda: [graphs()[0], 3],
            {},
            TypeError,
            r"^data\[1\]: got int; accepted: a torch_geometric",
        ),
        (lambda: ByOrder(3), graphs, {}, ValueError, r"^model: returns \(40, 3\); .*a row for each graph"),
        (ByOrder, graphs, {"inputs": "none"}, ValueError, "^inputs: got 'none' for graphs; accepted: auto"),
        (ByOrder, lambda: graphs(x=None), {}, ValueError, "^features: got 'file', and the file has no feat"),
        (ByOrder, graphs, {"split": "given"}, ValueError, "^split: got 'given', and the file has no split"),
    ],
)
def test_what_is_refused(model: Any, data: Any, options: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        gnnsparse.fit(model(), data(), **options, **CPU)


def test_attributes_of_edges_that_are_not_taken_are_reported() -> None:
    with pytest.warns(UserWarning, match="^data: ByOrder does not take edge_attr"):
        gnnsparse.fit(ByOrder(), graphs(edge_attr=lambda data: weights(data)[:, None]), **CPU)
    with pytest.warns(UserWarning, match="^data: ByOrder does not use the weights of the edges"):
        gnnsparse.fit(ByOrder(), graphs(edge_weight=weights), **CPU)


def test_features_that_a_prediction_lacks_are_missed() -> None:
    result = gnnsparse.fit(ByName(), graphs(edge_weight=weights), **CPU)
    with pytest.raises(
        ValueError, match=r"^data\.edge_weight: is missing, and the model was trained with it"
    ):
        result.predict(graphs())
