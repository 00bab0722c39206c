"""Test accuracy of GraphSAGE trained on sampled neighbours, beside PyG's layers on samples of DGL.

    python -m benchmarks.sampled_accuracy --root-of amazon_computers=DIR coauthor_physics=DIR
        --out benchmarks/results/sampled_accuracy.json

Both train equal models from equal weights: two layers of 128 features, Adam, batches of 512 nodes. 60 % of
the nodes are for training and 20 % for validation, drawn anew for each seed. Ours is what
`train.py model=graphsage sampler=neighbor` does. The peer is a loop of PyTorch over PyG's SAGEConv, on
batches of DGL's NeighborSampler: PyG's own NeighborLoader needs pyg-lib or torch-sparse, of which there are
no wheels on PyPI. Both score the whole graph after each epoch, and report the test accuracy of the epoch with
the best validation accuracy, the first one if several are equal.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from benchmarks.pyg import with_pyg_layers
from benchmarks.script import roots_of, script_parser
from gnnsparse.data import NodeDataset, load_dataset
from gnnsparse.data.splits import random_split
from gnnsparse.interop.dgl import import_dgl
from gnnsparse.runtime.environment import describe_environment, write_json
from gnnsparse.train import OptimizerConfig, PreprocessConfig, SamplerConfig, TrainerConfig, fit
from gnnsparse.train.tasks.node import FullGraphData, NodeClassifier
from models import MODELS


@dataclass(frozen=True)
class Setting:
    """How both are trained.

    Attributes:
        epochs: passes over the training nodes.
        fanouts: neighbours that are drawn for a node of each layer.
        batch_size: training nodes of a step.
        lr: learning rate of Adam.
        weight_decay: its weight decay.
        dropout: of the inputs of both layers.
        hidden: features between the layers.
    """

    epochs: int = 20
    fanouts: tuple[int, ...] = (10, 10)
    batch_size: int = 512
    lr: float = 0.003
    weight_decay: float = 5e-4
    dropout: float = 0.2
    hidden: int = 128


#: The features of coauthor_physics are 8,415 numbers: most of a step's time, so that fewer are made.
SETTINGS = {"amazon_computers": Setting(), "coauthor_physics": Setting(epochs=3, fanouts=(5, 5))}


def split_of(dataset: NodeDataset, seed: int) -> NodeDataset:
    masks = random_split(dataset.num_nodes, torch.Generator().manual_seed(seed), 0.6, 0.2)
    train, val, test = masks
    return replace(dataset, train_mask=train, val_mask=val, test_mask=test)


def model_of(dataset: NodeDataset, setting: Setting, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return MODELS["graphsage"].build(
        dataset.num_features, out_channels=dataset.num_classes, hidden_channels=setting.hidden,
        num_layers=len(setting.fanouts), dropout=setting.dropout,
    )  # fmt: skip


def ours(dataset: NodeDataset, setting: Setting, seed: int, device: str) -> float:
    """Return the test accuracy of this project."""
    sampler = SamplerConfig(
        name="neighbor", fanouts=list(setting.fanouts), batch_size=setting.batch_size, prefetch=0
    )
    data = FullGraphData(
        dataset, values="mean", device=device, sampler=sampler, seed=seed,
        preprocess=PreprocessConfig(cache=False),
    )  # fmt: skip
    optimizer = OptimizerConfig(lr=setting.lr, weight_decay=setting.weight_decay, decay="all")
    steps = setting.epochs * data.steps_per_epoch
    module = NodeClassifier(model_of(dataset, setting, seed), dataset, optimizer, steps)
    trainer = TrainerConfig(max_epochs=setting.epochs, progress=False, logger="none")
    return fit(module, data, trainer).metrics["test"]["accuracy"]


class Peer:
    """PyG's layers on batches of DGL.

    Args:
        dataset: the graph.
        setting: how it is trained.
        seed: of weights, batches and dropout.
        device: where it is trained; samples are drawn on the CPU.
    """

    def __init__(self, dataset: NodeDataset, setting: Setting, seed: int, device: str) -> None:
        dgl = import_dgl()
        self._dataset, self._setting, self._device = dataset, setting, device
        model = with_pyg_layers(copy.deepcopy(model_of(dataset, setting, seed))).to(device)
        self._model, self._convs = model, list(model.convs)  # type: ignore[arg-type]
        self._optimizer = torch.optim.Adam(
            model.parameters(), lr=setting.lr, weight_decay=setting.weight_decay
        )
        csr = dataset.graph.csr
        target, source = csr.row_index(), csr.indices.long()
        self._edge_index = torch.stack([source, target]).to(device)
        self._x, self._y = dataset.x.to(device), dataset.y.to(device)
        dgl.seed(seed)
        self._batches = dgl.dataloading.DataLoader(
            dgl.graph((source, target), num_nodes=dataset.num_nodes), dataset.train_mask.nonzero().flatten(),
            dgl.dataloading.NeighborSampler(list(setting.fanouts)), batch_size=setting.batch_size,
            shuffle=True, num_workers=0,
        )  # fmt: skip

    def _layers(self, x: torch.Tensor, sides: list[tuple[torch.Tensor, int]]) -> torch.Tensor:
        """Compute the logits by edges from sources to targets, the first of the sources, of each layer."""
        for index, (edge_index, targets) in enumerate(sides):
            x = F.dropout(x, self._setting.dropout, self._model.training)
            x = self._convs[index]((x, x[:targets]), edge_index)
            x = F.relu(x) if index + 1 < len(sides) else x
        return x

    def _epoch(self) -> None:
        self._model.train()
        for nodes, seeds, blocks in self._batches:
            edges = [torch.stack(block.edges()).to(self._device) for block in blocks]
            sides = [
                (edge_index, block.num_dst_nodes()) for edge_index, block in zip(edges, blocks, strict=True)
            ]
            loss = F.cross_entropy(self._layers(self._x[nodes], sides), self._y[seeds])
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()

    @torch.no_grad()
    def _scores(self) -> tuple[float, float]:
        self._model.eval()
        whole = [(self._edge_index, self._dataset.num_nodes)] * len(self._convs)
        right = self._layers(self._x, whole).argmax(1) == self._y
        masks = self._dataset.val_mask, self._dataset.test_mask
        val, test = (float(right[mask.to(self._device)].float().mean()) for mask in masks)
        return val, test

    def accuracy(self) -> float:
        """Train, and return the test accuracy."""
        best = (-1.0, 0.0)
        for _ in range(self._setting.epochs):
            self._epoch()
            scores = self._scores()
            best = scores if scores[0] > best[0] else best
        return best[1]


def theirs(dataset: NodeDataset, setting: Setting, seed: int, device: str) -> float:
    """Return the test accuracy of the peer."""
    return Peer(dataset, setting, seed, device).accuracy()


def statistics_of(accuracies: list[float]) -> dict[str, Any]:
    scores = [100 * accuracy for accuracy in accuracies]
    mean, deviation = statistics.fmean(scores), statistics.pstdev(scores)
    return {"mean": mean, "standard_deviation": deviation, "accuracies": scores}


def measured(name: str, root: Path | None, seeds: int, device: str) -> Iterator[dict[str, Any]]:
    """Yield the row of a data set after each seed."""
    whole, setting = load_dataset(name, root=root), SETTINGS[name]
    found: dict[str, list[float]] = {"ours": [], "peer": []}
    seconds = dict.fromkeys(found, 0.0)
    for seed in range(seeds):
        dataset = split_of(whole, seed)
        for kind, train in (("ours", ours), ("peer", theirs)):
            start = time.perf_counter()
            found[kind].append(train(dataset, setting, seed, device))
            seconds[kind] += time.perf_counter() - start
        print(name, seed, *(f"{kind} {100 * scores[-1]:.2f}" for kind, scores in found.items()), flush=True)
        scores = {kind: statistics_of(of) for kind, of in found.items()}
        yield {"dataset": name, "seeds": seed + 1, **scores, "seconds": dict(seconds)}


def main(arguments: list[str] | None = None) -> None:
    parser = script_parser(__doc__, device="cpu")
    parser.add_argument("--datasets", nargs="+", choices=tuple(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--root-of", nargs="+", default=[], metavar="NAME=DIR", help="default: downloaded")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args(arguments)
    roots = roots_of(options.root_of)
    rows: dict[str, dict[str, Any]] = {}
    for name in options.datasets:
        for row in measured(name, roots.get(name), options.seeds, options.device):
            rows[name] = row
            if options.out is not None:  # after each seed, because a run takes long
                content = {**describe_environment(options.device), "rows": list(rows.values())}
                write_json(options.out, content)


if __name__ == "__main__":
    main()
