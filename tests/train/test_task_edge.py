"""The task of edges: what the network computes, what is learned of both ends, and fit on PyG's data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.data import EdgeDataset, dataset_of_edges, load_custom
from gnnsparse.data.pyg_lists import divided
from gnnsparse.inference.predict import predict_dataset
from gnnsparse.nn.edge_head import EdgeHead, EdgeScorer
from gnnsparse.train.tasks import TASKS, RunOptions
from models import GCN, MODELS
from tests.tasks import edge_dataset

pyg = pytest.importorskip("torch_geometric.nn")
Data = pytest.importorskip("torch_geometric.data").Data


def graph(**changes: Any) -> Any:
    """A graph whose edges lead from one kind of nodes to another, or not; the label says which."""
    of = edge_dataset()
    return Data(x=of.x, edge_index=of.edge_index, edge_label=of.y, **changes)


def test_the_head_is_a_network_on_the_concatenation() -> None:
    torch.manual_seed(0)
    head = EdgeHead(4, 3, edge_channels=2).eval()
    features, attr = torch.randn(5, 4), torch.randn(6, 2)
    edges = torch.randint(5, (2, 6))
    with torch.no_grad():
        ends = features.relu()[edges]
        whole = torch.cat([ends[0], ends[1], attr], dim=1)
        assert head.of_edge is not None
        weight = torch.cat([head.source.weight, head.target.weight, head.of_edge.weight], dim=1)
        expected = head.out((whole @ weight.T + head.source.bias).relu())
        torch.testing.assert_close(head(features, edges, attr), expected)
        with pytest.raises(ValueError, match="edge_attr: has 0 columns; accepted: 2"):
            head(features, edges)


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if "edge" in model.tasks])
def test_models_tell_the_directions_of_edges(name: str) -> None:
    """By features of the nodes alone: the classes are those of (u, v), and not of (v, u)."""
    dataset, values = edge_dataset().without_weights(), MODELS[name].values_with({})
    torch.manual_seed(0)
    model = MODELS[name].for_task("edge").build(4, hidden_channels=16, out_channels=3, dropout=0.0)
    result = gnnsparse.fit(
        model, dataset, epochs=40, lr=0.02, device="cpu", class_weights="balanced", values=values
    )
    assert result.metrics["test"]["accuracy"] >= 0.8  # a third by chance
    assert [row["class"] for row in result.classes] == [0, 1, 2]
    found = result.predict().classes
    assert found.shape == (dataset.edge_index.shape[1],)
    assert float((found == dataset.y)[dataset.test_mask].float().mean()) == pytest.approx(
        result.metrics["test"]["accuracy"]
    )


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.SAGEConv(4, 16)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        embeddings: torch.Tensor = self.conv(x, edge_index)
        return embeddings


def test_a_model_of_pyg_gets_a_head(tmp_path: Path) -> None:
    whole = graph(edge_attr=torch.rand(400, 2))
    torch.manual_seed(0)
    result = gnnsparse.fit(Net(), whole, epochs=40, lr=0.02, device="cpu", folder=tmp_path / "run")
    assert isinstance(result.model, EdgeScorer)
    assert result.metrics["test"]["accuracy"] >= 0.8
    other = whole.clone()
    del other.edge_label
    torch.testing.assert_close(result.predict(other).logits, result.predict().logits)
    other.edge_attr = None
    with pytest.raises(ValueError, match=r"edge_features: lack 0, 1; accepted: the columns of the training"):
        result.predict(other)
    again = EdgeScorer(Net(), EdgeHead(16, 3, edge_channels=2))
    loaded = gnnsparse.load(tmp_path / "run", device="cpu", model=again)
    run = RunOptions(torch.device("cpu"), values=loaded.recipe.values)
    found = predict_dataset(loaded, TASKS["edge"], run, result.dataset, "data")
    assert found.metrics["test"] == pytest.approx(result.metrics["test"])
    torch.testing.assert_close(found.arrays["classes"], result.predict().classes)


def test_numbers_of_several_columns_and_an_operand() -> None:
    of = edge_dataset()
    ends = of.x[of.edge_index][:, :, 0]
    y = torch.stack([ends[0] - ends[1], ends[0] + 2 * ends[1]], dim=1)
    y[::10] = torch.nan
    numbers = EdgeDataset(
        "numbers", of.graph, of.x, of.edge_index, y, of.train_mask, of.val_mask, of.test_mask, 2, "r2"
    )
    torch.manual_seed(0)
    result = gnnsparse.fit(GCN(4, 16, 16, dropout=0.0), numbers, epochs=10, device="cpu", values="gcn")
    assert set(result.metrics["test"]) == {"mae", "mse", "r2"}
    assert result.predict().values.shape == (400, 2)


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (torch.nn.Flatten(0), graph, r"model: returns \(\d+,\); accepted: embeddings of the nodes"),
        (Net(), lambda: graph(train_mask=torch.ones(3, dtype=torch.bool)), "train_mask: has shape"),
        (Net(), lambda: graph(edge_label_index=torch.full((2, 400), 99)), "edge_index: element 0 is 99"),
    ],
)
def test_what_is_refused(model: torch.nn.Module, data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gnnsparse.fit(model, data(), epochs=1, device="cpu")
    with pytest.raises(TypeError, match="data: got int; accepted: a torch_geometric"):
        dataset_of_edges(3)


# Features of edges of a user's tables, for models of nodes and graphs that take them.


class OfAttributes(torch.nn.Module):
    """A model that keeps what it was called with."""

    def __init__(self, of_graphs: bool) -> None:
        super().__init__()
        self.conv, self.of_graphs = pyg.GATConv(2, 2, edge_dim=3), of_graphs
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def forward(self, x: torch.Tensor, edge_index: Any, edge_attr: Any, batch: Any = None) -> torch.Tensor:
        self.seen.append((edge_index, edge_attr))
        found: torch.Tensor = self.conv(x, edge_index, edge_attr)
        return pyg.global_add_pool(found, batch) if self.of_graphs else found


def tables(folder: Path, of_graphs: bool) -> Path:
    """Pairs of nodes, joined twice, with a number that says which edge it is, and a text."""
    parts = ["train", "val", "test"]
    nodes, edges = ["id,f,g,label,split,graph"], ["source,target,number,kind"]
    for pair in range(6):
        for end in "ab":
            label, graph = ("x", "y")[pair % 2], f"g{pair}" if of_graphs else ""
            nodes.append(f"{pair}{end},{pair},{1 + pair % 2},{label},{parts[pair // 2]},{graph}")
    for copy in range(2):
        edges += [f"{pair}a,{pair}b,{10 * copy + pair},{'uv'[pair % 2]}" for pair in reversed(range(6))]
    if not of_graphs:
        nodes = [line.rpartition(",")[0] for line in nodes]
    (folder / "nodes.csv").write_text("\n".join(nodes) + "\n")
    (folder / "edges.csv").write_text("\n".join(edges) + "\n")
    return folder


@pytest.mark.parametrize("of_graphs", [False, True])
def test_columns_of_edges_are_the_edge_attr_of_models(of_graphs: bool, tmp_path: Path) -> None:
    """Each with its edge, both ways, also where the edges of graphs stand in another order in the file."""
    with pytest.warns(UserWarning, match=r"number, kind; .*edge_features=\[number,kind\] gives them"):
        assert load_custom(tables(tmp_path, of_graphs)).edge_features is None
    dataset = load_custom(tmp_path, edge_features=["number", "kind"])
    model = OfAttributes(of_graphs)
    result = gnnsparse.fit(model, dataset, epochs=1, device="cpu", batch_size=2)
    for edge_index, attr in model.seen:
        assert edge_index.shape[1] == attr.shape[0] > 0
    if not of_graphs:
        edges, attr = model.seen[0]
        assert edges.shape == (2, 24)
        pair = edges[0] // 2
        torch.testing.assert_close(attr[:, 0] % 10, pair.float())
        torch.testing.assert_close(attr[:, 2], (pair % 2).float())
    else:
        graphs = divided(dataset, with_features=True)
        assert [graph.edge_attr[:, 0].tolist() for graph in graphs] == [
            [at, 10 + at, at, 10 + at] for at in range(6)
        ]
        assert all(graph.edge_index.tolist() == [[0, 0, 1, 1], [1, 1, 0, 0]] for graph in graphs)
    again = load_custom(
        tmp_path, edge_transform=dataset.edge_features.transform, transform=dataset.feature_transform
    )
    torch.testing.assert_close(result.predict(again).logits, result.predict().logits)
    with pytest.warns(UserWarning, match="does not take edge_attr, the attributes of the edges"):
        gnnsparse.fit(WithoutAttributes(of_graphs), dataset, epochs=1, device="cpu")


class WithoutAttributes(torch.nn.Module):
    def __init__(self, of_graphs: bool) -> None:
        super().__init__()
        self.conv, self.of_graphs = pyg.GCNConv(2, 2), of_graphs

    def forward(self, x: torch.Tensor, edge_index: Any, batch: Any = None) -> torch.Tensor:
        found: torch.Tensor = self.conv(x, edge_index)
        return pyg.global_add_pool(found, batch) if self.of_graphs else found
