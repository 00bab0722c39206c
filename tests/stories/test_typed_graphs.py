"""Stories of graphs with types: a model of PyG through fit, a run on a data set, and items for new users."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stories.test_own_links import run

#: Papers with a field, which only their venue tells, and their authors; the model is one that PyG made.
TO_HETERO = """
import torch
from torch_geometric.data import HeteroData
from torch_geometric.nn import SAGEConv, to_hetero

import gnnsparse

field, paper = torch.randint(3, (300,)), torch.arange(300)
data = HeteroData()
data["paper"].x, data["paper"].y = torch.randn(300, 4), field
data["venue"].x, data["author"].x = torch.eye(6), torch.ones(50, 1)
data["venue", "prints", "paper"].edge_index = torch.stack([2 * field + paper % 2, paper])
data["paper", "in", "venue"].edge_index = data["venue", "prints", "paper"].edge_index.flip(0)
data["author", "writes", "paper"].edge_index = torch.stack([torch.randint(50, (900,)), paper.repeat(3)])
data["paper", "by", "author"].edge_index = data["author", "writes", "paper"].edge_index.flip(0)


class Sage(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = SAGEConv((-1, -1), 16), SAGEConv((-1, -1), 3)

    def forward(self, x, edge_index):
        return self.last(self.first(x, edge_index).relu(), edge_index)


model = to_hetero(Sage(), data.metadata())
result = gnnsparse.fit(model, data, epochs=60, split="random")
print(round(result.metrics["test"]["accuracy"], 2), (result.predict(data).classes == field).sum().item())
"""
#: Users like one of three kinds of items. They have no features of their own, but a 1 each, so that a user
#: who comes after the training is what he bought.
NEW_USERS = """
import torch

import gnnsparse
from gnnsparse.data import TypedLinkDataset
from gnnsparse.sparse.typed import TypedGraph
from models import MODELS


def graph_of(pairs, users):
    edges = {("user", "buys", "item"): pairs.T, ("item", "bought_by", "user"): pairs.T.flip(0)}
    return TypedGraph({"user": users, "item": 30}, edges)


everything = torch.cartesian_prod(torch.arange(70), torch.arange(30))
liked = everything[everything.sum(1) % 3 == 0]
old, new = liked[liked[:, 0] < 60], liked[liked[:, 0] >= 60]
train, val, test = old[torch.randperm(len(old))].split([len(old) - 100, 50, 50])
relation = ("user", "buys", "item")
data = TypedLinkDataset("shop", graph_of(train, 60), {"user": torch.ones(60, 1)}, relation, train, val, test)
types = {**data.types, "target": None, "link": ["user", "item"]}
model = MODELS["rgcn"].for_task("typed_link").build(
    1, out_channels=1, hidden_channels=16, dropout=0.0, types=types
)
result = gnnsparse.fit(model, data, epochs=60, weight_decay=0.0, folder="run")

model = gnnsparse.load("run")
bought = new[torch.rand(len(new)) < 0.5]  # by ten users whom the model has never seen
with torch.no_grad():
    features = model.module({"user": torch.ones(70, 1)}, graph_of(torch.cat([train, bought]), 70))
    scores = model.module.score(features, everything).view(70, 30)
scores[bought[:, 0], bought[:, 1]] = -torch.inf
users = torch.arange(60, 70)
are_liked = (scores[users].topk(3).indices + users[:, None]) % 3 == 0
print(round(result.metrics["test"]["mrr"], 2), round(are_liked.float().mean().item(), 2))
"""


@pytest.mark.slow
def test_a_model_that_pyg_made_of_types_is_trained(tmp_path: Path) -> None:
    done = run(TO_HETERO, tmp_path, "python")
    assert done.status == 0, done.errors
    accuracy, right = map(float, done.output.split())
    assert accuracy > 0.8
    assert right > 240


@pytest.mark.slow
def test_new_users_get_items_of_the_kind_that_they_bought(tmp_path: Path) -> None:
    done = run(NEW_USERS, tmp_path, "python")
    assert done.status == 0, done.errors
    rank, kind = map(float, done.output.split())
    assert rank > 0.5  # of 21 items any order has 0.17
    assert kind > 0.8  # a third by chance


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "score", "arrays"),
    [
        ("model=hgt dataset=mag_like sampler=neighbor sampler.fanouts=[4,4]", "accuracy", {"classes"}),
        ("model=rgcn dataset=mag_like", "accuracy", {"nodes", "classes"}),
        ("model=rgcn dataset=shop_like", "mrr", {"source", "target", "probability", "is_edge"}),
    ],
)  # fmt: skip
def test_a_run_on_a_data_set_with_types_goes_on_and_predicts(
    words: str, score: str, arrays: set[str], tmp_path: Path
) -> None:
    line = f"python train.py {words} dataset.scale=0.001 trainer.plots=false trainer.val_every=1"
    done = run(f"{line} trainer.max_epochs=3 hydra.run.dir=run", tmp_path)
    assert done.status == 0, done.errors
    done = run("python train.py resume=run trainer.max_epochs=4", tmp_path)
    assert done.status == 0, done.errors
    result = done.result()
    assert result["epochs"] == 4
    assert result["nodes"] == {k: n for k, n in result["nodes"].items() if n > 0}
    done = run("gnnsparse predict run --out found.npz", tmp_path)
    assert done.status == 0, done.errors
    assert arrays <= set(done.arrays("found.npz"))
    found = float(done.output.split(f"{score} ")[1].split()[0].rstrip(","))
    # Of samples, predictions for all nodes draw other neighbours than those of a part.
    assert found == pytest.approx(result["metrics"]["test"][score], abs=0.2 if "neighbor" in words else 1e-3)
