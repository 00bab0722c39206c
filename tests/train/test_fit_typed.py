"""gnnsparse.fit of a HeteroData: models of PyG and of this project, predictions, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.data import dataset_of_hetero
from gnnsparse.nn import HGTConv
from gnnsparse.train import SamplerConfig
from models import MODELS
from tests.tasks import typed_links, typed_nodes

pyg = pytest.importorskip("torch_geometric")
pyg_nn = pytest.importorskip("torch_geometric.nn")


def hetero(features: bool = True) -> Any:
    """The toy data set as PyG has it, without the relation that has no edges; with features of all types."""
    of, data = typed_nodes(200), pyg.data.HeteroData()
    for kind, count in of.graph.num_nodes.items():
        data[kind].num_nodes = count
        if kind in of.x or features:
            data[kind].x = of.x.get(kind, torch.ones(count, 2))
    for relation, edges in of.graph.edges.items():
        if edges.numel():
            data[relation].edge_index = edges
    data["paper", "is_in", "venue"].edge_index = data["venue", "publishes", "paper"].edge_index.flip(0)
    data["paper"].y = of.y
    for part in ("train", "val", "test"):
        data["paper"][f"{part}_mask"] = getattr(of, f"{part}_mask")
    return data


def to_hetero(data: Any) -> torch.nn.Module:
    """A PyG model of two layers of one type, made one of all types of the data, whose sizes it finds out."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = pyg_nn.SAGEConv((-1, -1), 16)
            self.conv2 = pyg_nn.SAGEConv((-1, -1), 3)

        def forward(self, x: Any, edge_index: Any) -> Any:
            return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    made: torch.nn.Module = pyg_nn.to_hetero(Net(), data.metadata())
    return made


class Layers(torch.nn.Module):
    """A layer of this project on features that are mapped to one size, called as PyG's models are."""

    def __init__(self, data: Any) -> None:
        super().__init__()
        sizes = {kind: data[kind].num_features for kind in data.node_types}
        self.conv = HGTConv(sizes, 8, data.metadata(), heads=2)
        self.lin = torch.nn.Linear(8, 3)

    def forward(self, x: Any, edges: Any) -> torch.Tensor:
        found: torch.Tensor = self.lin(self.conv(x, edges)["paper"].relu())
        return found


@pytest.mark.parametrize("make", [to_hetero, Layers])
@pytest.mark.parametrize("sampler", [None, SamplerConfig("neighbor", (5, 5), batch_size=8, prefetch=0)])
def test_a_model_of_pyg_learns_and_predicts(make: Any, sampler: SamplerConfig | None) -> None:
    data = hetero()
    torch.manual_seed(0)
    found = gnnsparse.fit(
        make(data),
        data,
        epochs=80 if sampler is None else 10,
        sampler=sampler,
        weight_decay=0.0,
        device="cpu",
        progress=False,
    )
    assert found.metrics["test"]["accuracy"] > 0.6, found.metrics
    own, again = found.predict(), found.predict(data)
    assert own.classes.shape == (200,)
    torch.testing.assert_close(again.logits, own.logits)
    with torch.no_grad():
        outputs = found.model.eval()(data.x_dict, data.edge_index_dict)
    expected = outputs["paper"] if isinstance(outputs, dict) else outputs
    torch.testing.assert_close(own.logits, expected)
    right = (own.classes == data["paper"].y)[data["paper"].test_mask].float().mean()
    assert float(right) == pytest.approx(found.metrics["test"]["accuracy"])
    other = hetero()
    other["venue"].x = other["venue"].x.flip(0)
    assert not torch.equal(found.predict(other).classes, own.classes)


@pytest.mark.parametrize("name", ["rgcn", "hgt"])
def test_a_registered_model_is_made_anew_by_its_checkpoint(name: str, tmp_path: Path) -> None:
    dataset = dataset_of_hetero(hetero(features=False))
    types = {**dataset.types, "target": "paper"}
    torch.manual_seed(0)
    model = MODELS[name].build(4, out_channels=3, hidden_channels=8, types=types)
    found = gnnsparse.fit(model, dataset, epochs=5, folder=tmp_path / "run", device="cpu", progress=False)
    loaded = gnnsparse.load(tmp_path / "run", device="cpu")
    with torch.no_grad():
        logits = loaded.module(dataset.x, dataset.graph)
    torch.testing.assert_close(logits, found.predict().logits, rtol=1e-4, atol=1e-5)


def test_links_go_through_fit_as_well() -> None:
    dataset = typed_links()
    types = {**dataset.types, "target": None, "link": ["user", "item"]}
    torch.manual_seed(0)
    model = (
        MODELS["rgcn"]
        .for_task("typed_link")
        .build(0, out_channels=1, hidden_channels=8, dropout=0.0, types=types)
    )
    found = gnnsparse.fit(model, dataset, epochs=30, device="cpu", weight_decay=0.0, progress=False)
    assert found.metrics["test"]["mrr"] > 0.5  # 0.3 by chance


def test_targets_of_all_kinds_are_read() -> None:
    data = hetero()
    made = dataset_of_hetero(data)
    assert (made.target, made.metric, made.num_classes) == ("paper", "accuracy", 3)
    data["paper"].y = torch.eye(3)[data["paper"].y]
    assert (dataset_of_hetero(data).metric, dataset_of_hetero(data).multi_label) == ("micro_f1", True)
    data["paper"].y = torch.randn(200, 1)
    assert (dataset_of_hetero(data).metric, dataset_of_hetero(data).num_classes) == ("mae", 1)


def test_what_is_missing_is_named() -> None:
    data = hetero()
    model = to_hetero(data)
    data["author"].y = torch.zeros(10, dtype=torch.int64)
    assert dataset_of_hetero(data).target == "paper", "the type with masks"
    data["author"].train_mask = torch.ones(10, dtype=torch.bool)
    with pytest.raises(ValueError, match="data: 'paper' and 'author' have y; accepted: y and masks of one"):
        gnnsparse.fit(model, data)
    with pytest.raises(ValueError, match="y: all authors with a label, 10, have '0'; accepted: two"):
        gnnsparse.fit(model, data, target="author")
    with pytest.raises(ValueError, match="target: got 'editor'; accepted: paper, author, venue"):
        gnnsparse.fit(model, data, target="editor")
    with pytest.raises(ValueError, match="target: got 'a' for a TypedNodeDataset; accepted: None"):
        gnnsparse.fit(model, typed_nodes(), target="a")
    bare = hetero()
    del bare["paper"].y
    with pytest.raises(ValueError, match="data: no type of nodes has y; accepted: y and masks of one type"):
        gnnsparse.fit(model, bare)
    with pytest.raises(TypeError, match="data: got dict; accepted: a torch_geometric"):
        dataset_of_hetero({})

    class Other(torch.nn.Module):
        def forward(self, x: Any, edges: Any) -> Any:
            return {"venue": x["venue"]}

    with pytest.raises(ValueError, match="model: returns outputs of 'venue'; accepted: of 'paper'"):
        gnnsparse.fit(Other(), hetero(), device="cpu")
