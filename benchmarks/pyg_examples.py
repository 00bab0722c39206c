"""Trains PyG models in PyG's own way, plain and accelerated, and compares their test accuracy.

    python -m benchmarks.pyg_examples --data DIR [--seeds 5] [--device auto] [--out FILE.json]

The models and settings are those of PyG's examples of GCN, GAT, AGNN and GIN (`gcn.py`, `gat.py`, `agnn.py`
and `mutag_gin.py`, written anew here), and of GraphSAGE with the settings of GCN. Plain and accelerated runs
differ in `gnnsparse.interop.pyg.accelerate(model)` alone: seeds, initial weights, the order of batches and
the loop are the same. Cora and PubMed are scored by the test accuracy at the best validation accuracy;
PROTEINS, in mini-batches of many graphs, by that of the last epoch on a random tenth.

DIR has `planetoid/cora/raw`, `planetoid/pubmed/raw` and `tu/PROTEINS.npz` (indptr, indices, graph_ptr,
node_labels and graph_labels of all graphs side by side).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

import gnnsparse.interop.pyg as interop
from benchmarks.script import device_of, record, script_parser
from gnnsparse.data import load_dataset

NODE_SETS = ("cora", "pubmed")
KINDS = ("pyg", "accelerated")


class TwoLayers(torch.nn.Module):
    """Two convolutions with an activation between them, and dropout before each."""

    def __init__(self, first: Any, second: Any, dropout: float, activation: Callable[..., Any]) -> None:
        super().__init__()
        self.conv1, self.conv2 = first, second
        self.dropout, self.activation = dropout, activation

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        x = F.dropout(x, self.dropout, training=self.training)
        x = self.activation(self.conv1(x, edge_index))
        x = F.dropout(x, self.dropout, training=self.training)
        return self.conv2(x, edge_index)


class Agnn(torch.nn.Module):
    """Two propagations between two linear layers, the first without a factor to learn."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.lin1, self.lin2 = torch.nn.Linear(features, 16), torch.nn.Linear(16, classes)
        self.prop1, self.prop2 = pyg.AGNNConv(requires_grad=False), pyg.AGNNConv(requires_grad=True)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.lin1(F.dropout(x, training=self.training)))
        x = self.prop2(self.prop1(x, edge_index), edge_index)
        return self.lin2(F.dropout(x, training=self.training))


class Gin(torch.nn.Module):
    """Five GIN layers of 32 channels, the sum over each graph, and a perceptron."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.gnn = pyg.GIN(features, 32, num_layers=5, dropout=0.5)
        self.mlp = pyg.MLP([32, 32, classes], norm=None, dropout=0.5)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, batch: torch.Tensor, count: int) -> Any:
        return self.mlp(pyg.global_add_pool(self.gnn(x, edge_index), batch, count))


def gcn(features: int, classes: int) -> torch.nn.Module:
    return TwoLayers(pyg.GCNConv(features, 16), pyg.GCNConv(16, classes), 0.5, F.relu)


def sage(features: int, classes: int) -> torch.nn.Module:
    return TwoLayers(pyg.SAGEConv(features, 16), pyg.SAGEConv(16, classes), 0.5, F.relu)


def gat(features: int, classes: int) -> torch.nn.Module:
    first = pyg.GATConv(features, 8, heads=8, dropout=0.6)
    return TwoLayers(first, pyg.GATConv(64, classes, heads=1, concat=False, dropout=0.6), 0.6, F.elu)


#: Model -> how it is made, learning rate, and whether weight decay is for the first layer alone.
NODE_MODELS: dict[str, tuple[Callable[[int, int], torch.nn.Module], float, bool]] = {
    "GCN": (gcn, 0.01, True),
    "SAGE": (sage, 0.01, True),
    "GAT": (gat, 0.005, False),
    "AGNN": (Agnn, 0.01, False),
}


def accuracy(scores: torch.Tensor, y: torch.Tensor) -> float:
    return 100 * float((scores.argmax(dim=-1) == y).float().mean())


def node_run(name: str, data: Any, accelerated: bool, seed: int, epochs: int) -> float:
    """Train on a whole graph; returns the test accuracy at the best validation accuracy."""
    torch.manual_seed(seed)
    make, rate, first_only = NODE_MODELS[name]
    model = make(data.x.shape[1], int(data.y.max()) + 1).to(data.x.device)
    groups: list[dict[str, Any]] = [{"params": list(model.parameters()), "weight_decay": 5e-4}]
    if first_only:
        groups = [
            {"params": list(model.conv1.parameters()), "weight_decay": 5e-4},
            {"params": list(model.conv2.parameters()), "weight_decay": 0.0},
        ]
    if accelerated:
        interop.accelerate(model)
    optimizer = torch.optim.Adam(groups, lr=rate)
    best, test = -1.0, 0.0
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(data.x, data.edge_index)[data.train], data.y[data.train]).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            out = model(data.x, data.edge_index)
        score = accuracy(out[data.val], data.y[data.val])
        if score > best:
            best, test = score, accuracy(out[data.test], data.y[data.test])
    return test


def load_nodes(name: str, root: Path, device: torch.device) -> Any:
    found = load_dataset(name, root=root / "planetoid" / name)
    csr = found.graph.csr
    edges = torch.stack([csr.indices.long(), csr.row_index()])
    masks = {"train": found.train_mask, "val": found.val_mask, "test": found.test_mask}
    x = found.x / found.x.sum(dim=1, keepdim=True).clamp(min=1e-12)  # rows add up to 1, as in the examples
    return Data(x=x, y=found.y, edge_index=edges, **masks).to(device)


def load_graphs(file: Path) -> list[Data]:
    """Return the graphs of a file, with node labels as features."""
    with np.load(file) as arrays:
        of = {key: torch.from_numpy(arrays[key].astype(np.int64)) for key in arrays.files}
    x = F.one_hot(of["node_labels"]).float()
    targets = torch.repeat_interleave(torch.arange(len(x)), of["indptr"].diff())
    graphs = []
    for number, (begin, end) in enumerate(zip(of["graph_ptr"][:-1], of["graph_ptr"][1:], strict=True)):
        edges = slice(int(of["indptr"][begin]), int(of["indptr"][end]))
        edge_index = torch.stack([of["indices"][edges], targets[edges]]) - begin
        graphs.append(Data(x=x[begin:end], edge_index=edge_index, y=of["graph_labels"][number].view(1)))
    return graphs


def graph_run(graphs: list[Data], accelerated: bool, seed: int, epochs: int, device: torch.device) -> float:
    """Train GIN on mini-batches of graphs; returns the accuracy on a tenth of them after the last epoch."""
    torch.manual_seed(seed)
    order = torch.randperm(len(graphs)).tolist()
    tenth = len(graphs) // 10
    test, train = ([graphs[i] for i in part] for part in (order[:tenth], order[tenth:]))
    model = Gin(graphs[0].x.shape[1], 2).to(device)
    if accelerated:
        interop.accelerate(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(train, batch_size=128, shuffle=True, generator=torch.Generator().manual_seed(seed))
    for _ in range(epochs):
        model.train()
        for batch in loader:
            batch = batch.to(device)
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index, batch.batch, batch.num_graphs)
            F.cross_entropy(out, batch.y).backward()
            optimizer.step()
    model.eval()
    right = 0.0
    with torch.no_grad():
        for batch in DataLoader(test, batch_size=128):
            batch = batch.to(device)
            out = model(batch.x, batch.edge_index, batch.batch, batch.num_graphs)
            right += accuracy(out, batch.y) * batch.num_graphs
    return right / len(test)


def compared(run: Callable[[bool, int], float], seeds: int) -> dict[str, Any]:
    """Run both with all seeds, and return the statistics of their accuracies."""
    found: dict[str, Any] = {"seeds": seeds}
    for kind in KINDS:
        begin = time.perf_counter()
        scores = [run(kind == "accelerated", seed) for seed in range(seeds)]
        found[f"{kind}_seconds"] = time.perf_counter() - begin
        found[f"{kind}_accuracies"] = scores
        found[f"{kind}_mean"] = statistics.fmean(scores)
        found[f"{kind}_deviation"] = statistics.pstdev(scores)
    return found


def rows(args: Any, device: torch.device) -> Iterator[dict[str, Any]]:
    for dataset in NODE_SETS:
        data = load_nodes(dataset, args.data, device)
        for name in args.models:
            if name in NODE_MODELS:
                run = partial(node_run, name, data, epochs=args.epochs or 200)
                yield {"model": name, "dataset": dataset, **compared(run, args.seeds)}
    if "GIN" in args.models:
        graphs = load_graphs(args.data / "tu" / "PROTEINS.npz")
        run = partial(graph_run, graphs, epochs=args.epochs or 100, device=device)
        yield {"model": "GIN", "dataset": "proteins", **compared(run, args.seeds)}


def shown(row: dict[str, Any]) -> str:
    sides = [f"{name} {row[f'{name}_mean']:.2f} ± {row[f'{name}_deviation']:.2f}" for name in KINDS]
    return f"{row['model']} {row['dataset']}: {', '.join(sides)}"


def main() -> None:
    parser = script_parser(__doc__, device="auto")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=None, help="instead of 200, and 100 of PROTEINS")
    parser.add_argument("--models", nargs="+", default=[*NODE_MODELS, "GIN"], choices=[*NODE_MODELS, "GIN"])
    args = parser.parse_args()
    device = device_of(args.device)
    record(rows(args, device), args.out, device, show=shown)


if __name__ == "__main__":
    main()
