"""Times epochs of GIN on batches of small graphs, beside the same model with PyG's layers and DataLoader.

    python -m benchmarks.graph_batches --root DIR [--device cuda] [--capture auto|off|on] [--out FILE.json]

Both train the model of `model=gin` (Xu et al. 2019) on all training graphs of a fold, with the same optimiser
in a plain loop, in one process. PyG's loop has its in-memory data set, its DataLoader, which puts 128 Data
objects together on the CPU, the copy to the device, and the step. Ours puts the batches together on the
device (gnnsparse.data.BlockBatches). Their epochs alternate, so that both see the same load of the machine,
and the least of each is compared: of wall time, and of the processor time of all threads, which other
programs change less. `dense` is what the model's linear layers, normalisations and activations take alone,
which both have in common. The losses of an epoch over the same batches show that both train the same model.

`train` is an epoch of gnnsparse.train.fit, by which train.py trains: what a run of many epochs takes more
than one of half as many, loggers and validation left out. On a GPU its steps are captured in CUDA graphs;
`train_off` is the same with steps that are launched one by one (--capture off measures that alone).
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_add_pool

from benchmarks.script import device_of, record, script_parser
from gnnsparse.data import GraphDataset
from gnnsparse.data.tu import load_tu
from gnnsparse.train import OptimizerConfig, PreprocessConfig, TrainerConfig, fit
from gnnsparse.train.tasks.graph import GraphData, GraphPredictor
from models import MODELS
from models.gin import gin_layers

TITLES = ("PROTEINS", "ENZYMES", "DD")
HIDDEN, LAYERS = 32, 4


class PygGIN(torch.nn.Module):
    """The network of models.gin_graphs.GraphGIN with PyG's layers and pooling, and its parameters' names."""

    def __init__(self, in_channels: int, out_channels: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        ours = gin_layers(in_channels, HIDDEN, LAYERS, "batch", train_eps=False)
        self.convs = torch.nn.ModuleList(GINConv(layer.nn) for layer in ours)
        widths = (in_channels, *[HIDDEN] * LAYERS)
        self.readouts = torch.nn.ModuleList(torch.nn.Linear(width, out_channels) for width in widths)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, batch: torch.Tensor, size: int) -> Any:
        score = F.dropout(self.readouts[0](global_add_pool(x, batch, size)), self.dropout, self.training)
        for conv, readout in zip(self.convs, self.readouts[1:], strict=True):
            x = conv(x, edge_index)
            score = score + F.dropout(readout(global_add_pool(x, batch, size)), self.dropout, self.training)
        return score


def as_pyg(dataset: GraphDataset) -> list[Data]:
    """Return the training graphs as PyG's objects."""
    csr, ptr = dataset.graph.csr, dataset.graph_ptr.tolist()
    edges = torch.stack([csr.indices.long(), csr.row_index()])
    ends = csr.indptr[dataset.graph_ptr].tolist()
    found = []
    for g in dataset.parts["train"].tolist():
        own = edges[:, ends[g] : ends[g + 1]] - ptr[g]
        found.append(Data(x=dataset.x[ptr[g] : ptr[g + 1]], edge_index=own, y=dataset.y[g : g + 1]))
    return found


class PygGraphs(InMemoryDataset):
    """Graphs in one storage, as PyG's TUDataset holds them."""

    def __init__(self, graphs: list[Data]) -> None:
        super().__init__()
        self.data, self.slices = self.collate(graphs)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def epoch(
    batches: Iterable[Any], forward: Callable[[Any], tuple[Any, Any]], model: torch.nn.Module, optimizer: Any
) -> list[torch.Tensor]:
    """Train one epoch in a plain loop, and return the losses."""
    model.train()
    losses = []
    for batch in batches:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(*forward(batch))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


class Ours:
    """Training by our batches and layers."""

    def __init__(self, dataset: GraphDataset, device: torch.device, batch_size: int, dropout: float) -> None:
        self.data = GraphData(
            dataset, batch_size=batch_size, device=device, preprocess=PreprocessConfig(cache=False)
        )
        make = MODELS["gin"].for_task("graph").build
        sizes = {"hidden_channels": HIDDEN, "out_channels": dataset.num_classes, "num_layers": LAYERS}
        self.model = make(dataset.num_features, dropout=dropout, **sizes).to(device)
        self.batches = iter(self.data.train_dataloader())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01, fused=True)

    def loader(self) -> Iterable[Any]:
        """Yield the batches of the next epoch."""
        return islice(self.batches, self.data.steps_per_epoch)

    def forward(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores and targets."""
        return self.model(batch.x, batch.adj, batch.graph_ptr), batch.y


class Pyg:
    """Training by PyG's loader and layers."""

    def __init__(self, dataset: GraphDataset, device: torch.device, batch_size: int, dropout: float) -> None:
        self.graphs, self.device = as_pyg(dataset), device
        self.batches = DataLoader(PygGraphs(self.graphs), batch_size=batch_size, shuffle=True)
        self.model = PygGIN(dataset.num_features, dataset.num_classes, dropout).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01, fused=True)

    def loader(self) -> Iterable[Any]:
        """Yield the batches of the next epoch."""
        return (batch.to(self.device) for batch in self.batches)

    def forward(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores and targets."""
        return self.model(batch.x, batch.edge_index, batch.batch, batch.num_graphs), batch.y


class Dense:
    """The linear layers, normalisations and activations of our model, on batches that are there already."""

    def __init__(self, ours: Ours) -> None:
        self.model, self.optimizer, self.batches = ours.model, ours.optimizer, list(ours.loader())

    def loader(self) -> Iterable[Any]:
        """Yield the batches."""
        return self.batches

    def forward(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scores of the first nodes, and targets."""
        x, count = batch.x, batch.y.shape[0]
        score = self.model.readouts[0](x[:count])
        for conv, readout in zip(self.model.convs, self.model.readouts[1:], strict=True):
            x = conv.nn(x)
            score = score + readout(x[:count])
        return score, batch.y


def train_milliseconds(
    dataset: GraphDataset, device: torch.device, batch_size: int, capture: str, epochs: int
) -> dict[str, Any]:
    """Measure epochs of `fit`: wall time of an epoch, the median of its steps, and how steps were run."""
    seconds, result = [], None
    for count in (epochs, 2 * epochs):
        torch.manual_seed(0)
        ours = Ours(dataset, device, batch_size, 0.5)
        optimizer = OptimizerConfig(lr=0.01, weight_decay=0.0, decay="all")
        module = GraphPredictor(ours.model, dataset, optimizer, count * ours.data.steps_per_epoch)
        config = TrainerConfig(
            max_epochs=count, val_every=count, capture=capture, progress=False, logger="none"
        )
        result = fit(module, ours.data, config)
        seconds.append(result.fit_seconds)
    assert result is not None
    return {
        "ms": 1e3 * (seconds[1] - seconds[0]) / epochs,
        "median_ms": result.epoch_milliseconds,
        "capture": result.capture,
        "peak_memory_bytes": result.peak_memory_bytes,
    }


def difference_of_losses(dataset: GraphDataset, device: torch.device, batch_size: int) -> float:
    """Return the largest difference of losses over an epoch of equal batches, as a share of the largest."""
    torch.manual_seed(0)
    ours, pyg = (kind(dataset, device, batch_size, 0.0) for kind in (Ours, Pyg))
    pyg.model.load_state_dict(ours.model.state_dict())
    order = torch.arange(len(pyg.graphs)).split(batch_size)
    mine = epoch(ours.data.gather_all("train", order), ours.forward, ours.model, ours.optimizer)
    batches = (Batch.from_data_list([pyg.graphs[i] for i in ids]).to(device) for ids in order)
    theirs = epoch(batches, pyg.forward, pyg.model, pyg.optimizer)
    found, right = torch.stack(mine), torch.stack(theirs)
    return float((found - right).abs().max() / right.abs().max())


def milliseconds(call: Callable[[], Any], device: torch.device) -> tuple[float, float]:
    """Return the wall time and the processor time of a call, to the end of what it has queued on a GPU."""
    _wait(device)
    start = time.perf_counter(), time.process_time()
    call()
    _wait(device)
    return 1e3 * (time.perf_counter() - start[0]), 1e3 * (time.process_time() - start[1])


def measure(
    title: str, root: Path, device: torch.device, batch_size: int, rounds: int, capture: str, epochs: int
) -> dict[str, Any]:
    """Measure a data set, and return a row of the JSON file."""
    dataset = load_tu(title, root / f"{title}.npz")
    torch.manual_seed(0)
    ours, pyg = Ours(dataset, device, batch_size, 0.5), Pyg(dataset, device, batch_size, 0.5)
    calls: dict[str, Callable[[], Any]] = {
        f"{name}_epoch": partial(_epoch_of, side)
        for name, side in (("gnnsparse", ours), ("pyg", pyg), ("dense", Dense(ours)))
    }
    calls["gnnsparse_batches"] = lambda: [None for _ in ours.loader()]
    calls["pyg_batches"] = lambda: [None for _ in pyg.loader()]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for number in range(rounds + 1):  # the first is a warm-up
        for name, call in calls.items():
            taken = milliseconds(call, device)
            if number:
                times[name].append(taken)
    row: dict[str, Any] = {"dataset": title, "graphs": len(pyg.graphs), "steps": ours.data.steps_per_epoch}
    for name, taken_by in times.items():
        wall, processor = zip(*taken_by, strict=True)
        row[f"{name}_ms"], row[f"{name}_median_ms"] = min(wall), statistics.median(wall)
        row[f"{name}_processor_ms"] = min(processor)
    for kind in ("ms", "median_ms", "processor_ms"):
        row[f"speedup_{kind}"] = row[f"pyg_epoch_{kind}"] / row[f"gnnsparse_epoch_{kind}"]
    ways = {"train": capture}
    if capture != "off" and device.type != "cpu":
        ways["train_off"] = "off"
    for name, way in ways.items():
        # Steps that are launched one by one take several times as long: fewer of them are enough.
        taken = train_milliseconds(
            dataset, device, batch_size, way, epochs if way != "off" else -(-epochs // 8)
        )
        row |= {f"{name}_{kind}": value for kind, value in taken.items()}
        row[f"speedup_{name}_ms"] = row["pyg_epoch_ms"] / taken["ms"]
    row["difference_of_losses"] = difference_of_losses(dataset, device, batch_size)
    return row


def _epoch_of(side: Any) -> None:
    epoch(side.loader(), side.forward, side.model, side.optimizer)


def main() -> None:
    parser = script_parser(__doc__, device="cpu")
    parser.add_argument(
        "--root", type=Path, required=True, help="the folder with PROTEINS.npz and the others"
    )
    parser.add_argument("--datasets", nargs="+", default=list(TITLES), choices=TITLES)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=20)
    text = "trainer.capture of the epochs of fit"
    parser.add_argument("--capture", default="auto", choices=("auto", "on", "off"), help=text)
    parser.add_argument("--fit-epochs", type=int, default=160, help="epochs of fit that are timed")
    given = parser.parse_args()
    device = device_of(given.device)
    settings = {
        "batch_size": given.batch_size, "hidden_channels": HIDDEN, "num_layers": LAYERS,
        "rounds": given.rounds, "capture": given.capture, "fit_epochs": given.fit_epochs,
        "load_average": round(os.getloadavg()[0], 1),
    }  # fmt: skip
    how = given.batch_size, given.rounds, given.capture, given.fit_epochs
    rows = (measure(title, given.root, device, *how) for title in given.datasets)
    record(rows, given.out, device, settings=settings)


if __name__ == "__main__":
    main()
