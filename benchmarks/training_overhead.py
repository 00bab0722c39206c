"""Measures the overhead of gnnsparse.train against a plain PyTorch loop that does equal work.

python -m benchmarks.training_overhead [--planetoid DIR] [--epochs 200] [--repeats 5] [--out FILE]

Both train a GCN on one prepared graph, with a step and a validation in each epoch, and keep the weights of
the best epoch. The plain loop is written by hand and does not log. It is compared with the wall time of `fit`
in the way in which train.py calls it, with its CSV log and checkpoints, from start-up to the last write. The
two are run in turn, so that other load on the machine affects both.

--planetoid names a folder with Cora's files; without it a random graph of Cora's size is used.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from benchmarks.script import record, script_parser
from gnnsparse import SparseGraph
from gnnsparse.data import NodeDataset, load_dataset
from gnnsparse.train import (
    FullGraphData,
    GraphBatch,
    NodeClassifier,
    OptimizerConfig,
    PreprocessConfig,
    TrainerConfig,
    fit,
)
from models import GCN


def cora_sized(features: int) -> NodeDataset:
    """Make a random data set with Cora's numbers of nodes, edges, classes and nodes of each part."""
    generator = torch.Generator().manual_seed(0)
    nodes, edges = 2708, 5278
    half = torch.randint(nodes, (2, edges), generator=generator)
    graph = SparseGraph.from_edge_index(torch.cat([half, half.flip(0)], dim=1), nodes)
    order = torch.randperm(nodes, generator=generator)
    masks = [torch.zeros(nodes, dtype=torch.bool) for _ in range(3)]
    for mask, chosen in zip(masks, (order[:140], order[140:640], order[640:1640]), strict=True):
        mask[chosen] = True
    x = torch.rand(nodes, features, generator=generator) / features
    y = torch.randint(7, (nodes,), generator=generator)
    return NodeDataset(f"cora-sized, {features} features", graph, x, y, *masks, num_classes=7)


def build(dataset: NodeDataset) -> GCN:
    torch.manual_seed(0)
    return GCN(dataset.num_features, 16, dataset.num_classes)


def plain_loop(dataset: NodeDataset, batch: GraphBatch, epochs: int) -> float:
    """Train by a loop written by hand, and return its seconds."""
    model = build(dataset)
    groups = [
        {"params": model.convs[0].parameters(), "weight_decay": 5e-4},
        {"params": model.convs[1].parameters()},
    ]
    start = time.perf_counter()
    optimizer = torch.optim.Adam(groups, lr=0.01, fused=True)
    best, weights = -1.0, {}
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch.x, batch.adj)[batch.train.nodes], batch.train.y)
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            logits = model(batch.x, batch.adj)[batch.val.nodes]
            F.cross_entropy(logits, batch.val.y)
            accuracy = float((logits.argmax(dim=1) == batch.val.y).float().mean())
        if accuracy > best:
            best = accuracy
            weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(weights)
    return time.perf_counter() - start


def fitted(dataset: NodeDataset, data: FullGraphData, epochs: int) -> float:
    """Train by `fit`, and return its seconds."""
    model = build(dataset)
    module = NodeClassifier(model, dataset, OptimizerConfig(), epochs)
    with tempfile.TemporaryDirectory() as folder:
        result = fit(module, data, TrainerConfig(max_epochs=epochs, progress=False), folder=Path(folder))
    return result.fit_seconds


def compare(dataset: NodeDataset, epochs: int, repeats: int) -> dict[str, Any]:
    data = FullGraphData(dataset, preprocess=PreprocessConfig(cache=False))
    plain_loop(dataset, data.batch, 20)
    fitted(dataset, data, 20)
    pairs = [(plain_loop(dataset, data.batch, epochs), fitted(dataset, data, epochs)) for _ in range(repeats)]
    plain, ours = (1e3 / epochs * statistics.median(times) for times in zip(*pairs, strict=True))
    ratios = sorted(b / a for a, b in pairs)
    return {
        "dataset": dataset.name,
        "plain_milliseconds": plain,
        "fit_milliseconds": ours,
        "ratio": statistics.median(ratios),
        "ratio_range": [ratios[0], ratios[-1]],
    }


def shown(row: dict[str, Any]) -> str:
    return (
        f"{row['dataset']}: plain {row['plain_milliseconds']:.2f} ms an epoch, "
        f"fit {row['fit_milliseconds']:.2f} ms, ratio {row['ratio']:.2f} "
        f"({row['ratio_range'][0]:.2f} to {row['ratio_range'][1]:.2f})"
    )


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--planetoid", type=Path, help="folder with cora/raw/ind.cora.*")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    first = load_dataset("cora", root=args.planetoid / "cora") if args.planetoid else cora_sized(1433)
    rows = (compare(dataset, args.epochs, args.repeats) for dataset in (first, cora_sized(64)))
    record(rows, args.out, "cpu", show=shown, epochs=args.epochs, repeats=args.repeats)


if __name__ == "__main__":
    main()
