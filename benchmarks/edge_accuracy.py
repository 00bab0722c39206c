"""Scores of models of edge functions after training, beside the same models with PyG's layers, on a CPU.

    OMP_NUM_THREADS=1 python -m benchmarks.edge_accuracy --data DATA
        --out benchmarks/results/edge_accuracy.json

DATA is the folder of published files, with `tu/PROTEINS.npz`. Both sides train the same code from the same
weights on the same batches, only the layers differ: GINEConv and ResGatedGraphConv are PyG's, and GatedGCN,
which PyG lacks, is a layer of plain torch. A seed draws weights and batches, and the split stays that of
fold or split 0, so that a deviation over the seeds does not hold what a split makes easy or hard. The rate
of learning falls to 0, and no epoch is chosen: the score is that of all graphs not trained on, at the end.

- proteins: PROTEINS, whose classes are enzymes and others. Features of an edge are 1 and 1 / sqrt(d_i d_j)
  of the degrees d of its ends.
- ring_of_six: generated molecules with kinds of atoms and of bonds, as NCI1 has them. Classes are whether a
  molecule has a ring of six atoms.
- molecules: the numbers of generated molecules, which depend on paths across them: the mean eccentricity, and
  the longest of the shortest paths. Scores are mean absolute errors in the numbers' own units.

A row has the scores of each seed, their means and standard deviations, and what `compare_paired` says of the
difference, ours less theirs; also in standard deviations of theirs. Equal layers do not give equal scores:
sums in another order differ in their last bits, and training enlarges that.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from benchmarks.pyg import with_pyg_layers
from benchmarks.script import record, script_parser
from gnnsparse import SparseOperand
from gnnsparse.data import GraphDataset
from gnnsparse.data.datasets import EdgeFeatures
from gnnsparse.data.molecules import load_molecules
from gnnsparse.data.tu import load_tu
from gnnsparse.nn import ResGatedGraphConv
from gnnsparse.train import PreprocessConfig
from gnnsparse.train.statistics import compare_paired, summarize
from gnnsparse.train.tasks.graph import GraphData, GraphsBatch
from models import MODELS as REGISTERED
from models.edge_stack import EdgeStack
from models.pooled import Pooled

EPOCHS, BATCH_SIZE, LAYERS, HIDDEN, LR = 12, 32, 3, 32, 0.01


class ResGated(EdgeStack):
    """An EdgeStack of ResGatedGraphConv layers."""

    least_edge_channels = 1

    def make_conv(self, width: int, norm: str) -> torch.nn.Module:
        """Make a layer to whose gates and values features of edges belong."""
        return ResGatedGraphConv(width, width, edge_dim=self.edge_channels)


class PooledResGated(Pooled):
    """Pooled with a ResGated."""

    encoder_class = ResGated


MODELS: dict[str, Callable[..., torch.nn.Module]] = {
    **{name: REGISTERED[name].for_task("graph").build for name in ("gine", "gatedgcn")},
    "resgated": PooledResGated,
}


@dataclass(frozen=True)
class Task:
    """What is trained: the graphs, and how nodes are pooled."""

    dataset: GraphDataset
    pool: str


def proteins(folder: Path) -> Task:
    dataset = load_tu("PROTEINS", folder / "tu", download=False)
    csr = dataset.graph.csr
    source, target = csr.indices.long(), csr.row_index()
    roots = csr.degrees.float().rsqrt()
    attr = torch.stack([torch.ones_like(roots[source]), roots[source] * roots[target]], dim=1)
    features = EdgeFeatures(torch.stack([source, target]), attr, None, {})
    return Task(dataclasses.replace(dataset, edge_features=features), "mean")


def ring_of_six(graphs: int) -> Task:
    """Molecules and whether they have a ring of six: whose rings are of five or six, and share no atoms."""
    import networkx

    dataset = load_molecules(graphs)
    features, bounds = dataset.edge_features, dataset.graph_ptr.tolist()
    assert features is not None
    whole = networkx.Graph(features.edge_index.T.tolist())
    rings = torch.tensor([ring[0] for ring in networkx.cycle_basis(whole) if len(ring) == 6], device="cpu")
    y = torch.zeros(len(bounds) - 1, dtype=torch.int64, device="cpu")
    y[torch.bucketize(rings, dataset.graph_ptr, right=True) - 1] = 1
    return Task(dataclasses.replace(dataset, y=y, metric="accuracy", class_names=("no", "yes")), "sum")


TASKS: dict[str, Callable[[Path, int], Task]] = {
    "proteins": lambda folder, _: proteins(folder),
    "ring_of_six": lambda _, graphs: ring_of_six(graphs),
    "molecules": lambda _, graphs: Task(load_molecules(graphs), "sum"),
}


def edge_index_of(adj: SparseOperand) -> torch.Tensor:
    """Return the edges of a batch, sources over targets, in the order of their features."""
    return adj.indices().flip(0)


class Run:
    """A model that is trained and scored.

    Args:
        data: the graphs on the device.
        model: the model.
        adjacency: makes of a batch's operand what the model takes.
    """

    def __init__(
        self, data: GraphData, model: torch.nn.Module, adjacency: Callable[[SparseOperand], Any]
    ) -> None:
        self._data, self.model, self._adjacency = data, model, adjacency
        self.is_regression = data.y.is_floating_point()
        train = data.y[data.parts["train"]]
        # Numbers of equal weight in the loss, whatever their units.
        self._scale = (train.mean(0), train.std(0)) if self.is_regression else (0.0, 1.0)

    def outputs(self, batch: GraphsBatch) -> torch.Tensor:
        """Return the scores of classes or the standardised numbers of a batch."""
        adj = self._adjacency(batch.adj)
        return self.model(batch.x, adj, batch.graph_ptr, batch.edge_attr)

    def train_epoch(self, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> None:
        self.model.train()
        mean, deviation = self._scale
        for batch in self._data.gather_all("train", ids.split(BATCH_SIZE)):
            out = self.outputs(batch)
            if self.is_regression:
                loss = F.l1_loss(out, (batch.y - mean) / deviation)
            else:
                loss = F.cross_entropy(out, batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    @torch.no_grad()
    def scores(self) -> list[float]:
        """Return the accuracy in per cent, or the mean absolute error of each number."""
        self.model.eval()
        mean, deviation = self._scale
        found = []
        for part in ("val", "test"):
            (batch,) = self._data.gather_all(part, [torch.arange(len(self._data.parts[part]), device="cpu")])
            out = self.outputs(batch)
            if self.is_regression:
                found.append((out * deviation + mean - batch.y).abs())
            else:
                found.append(100.0 * (out.argmax(1) == batch.y)[:, None])
        return torch.cat(found).mean(0).tolist()

    def trained(self, seed: int) -> list[float]:
        """Train, and return the scores of the test part."""
        optimizer = torch.optim.Adam(self.model.parameters(), lr=LR)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1 / EPOCHS, EPOCHS - 1)
        order = torch.Generator().manual_seed(seed)
        for _ in range(EPOCHS):
            self.train_epoch(optimizer, torch.randperm(self._data.train_items, generator=order, device="cpu"))
            schedule.step()
        return self.scores()


def runs(data: GraphData, pool: str, name: str, seed: int) -> dict[str, Run]:
    """Return both sides, with equal weights."""
    dataset = data.dataset
    assert dataset.edge_features is not None
    torch.manual_seed(seed)
    model = MODELS[name](
        dataset.num_features, HIDDEN, dataset.num_classes, pool, num_layers=LAYERS, dropout=0.0,
        edge_channels=dataset.edge_features.edge_attr.shape[1], norm="batch", residual=True,
    )  # fmt: skip
    peer = with_pyg_layers(copy.deepcopy(model))
    return {"ours": Run(data, model, lambda adj: adj), "peer": Run(data, peer, edge_index_of)}


def compared(ours: list[float], peer: list[float]) -> dict[str, Any]:
    """Return the statistics of both, and their difference in deviations of the peer's; None if that is 0."""
    found: dict[str, Any] = {
        side: {**dataclasses.asdict(summarize(scores)), "scores": scores}
        for side, scores in (("ours", ours), ("peer", peer))
    }
    pairs, deviation = compare_paired(ours, peer), found["peer"]["standard_deviation"]
    in_deviations = pairs.difference / deviation if deviation else None
    return {**found, **dataclasses.asdict(pairs), "difference_in_deviations": in_deviations}


def measured(name: str, task: Task, model: str, seeds: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of a task and a model, one for each metric."""
    data = GraphData(task.dataset, device="cpu", preprocess=PreprocessConfig(cache=False))
    found: dict[str, list[list[float]]] = {"ours": [], "peer": []}
    seconds = dict.fromkeys(found, 0.0)
    for seed in range(seeds):
        for kind, run in runs(data, task.pool, model, seed).items():
            start = time.perf_counter()
            found[kind].append(run.trained(seed))
            seconds[kind] += time.perf_counter() - start
    metrics = ["accuracy"]
    if task.dataset.metric == "mae":
        metrics = [f"mae of {of}" for of in task.dataset.class_names or ()]
    for at, metric in enumerate(metrics):
        scores = ([of[at] for of in found[kind]] for kind in ("ours", "peer"))
        yield {"task": name, "model": model, "metric": metric, **compared(*scores), "seconds": seconds}


def shown(row: dict[str, Any]) -> str:
    sides = [f"{of} {row[of]['mean']:.3f} ± {row[of]['standard_deviation']:.3f}" for of in ("ours", "peer")]
    return f"{row['task']} {row['model']} {row['metric']} {sides} {row['difference_in_deviations']}"


def main(arguments: list[str] | None = None) -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--data", type=Path, help="the folder of published files, for proteins")
    parser.add_argument("--tasks", nargs="+", choices=tuple(TASKS), default=list(TASKS))
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--graphs", type=int, default=1000, help="generated molecules")
    parser.add_argument("--seeds", type=int, default=5, help="2 or more")
    options = parser.parse_args(arguments)
    if options.seeds < 2:
        parser.error("--seeds: one seed has no deviation; accepted: 2 or more")
    if options.data is None and "proteins" in options.tasks:
        parser.error("--data: proteins is read from files; accepted: their folder, or --tasks without it")
    tasks = ((name, TASKS[name](options.data, options.graphs)) for name in options.tasks)
    rows = (
        row
        for name, task in tasks
        for model in options.models
        for row in measured(name, task, model, options.seeds)
    )
    record(rows, options.out, "cpu", show=shown)


if __name__ == "__main__":
    main()
