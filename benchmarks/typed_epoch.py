"""Times training steps on sampled neighbours in a graph with types, beside PyG's NeighborLoader.

    python -m benchmarks.typed_epoch --scale .25 --workers 16 --out benchmarks/results/typed_epoch.json

The graph is that of the data set mag_like, without the years of papers: PyG samples by times with pyg_lib
alone. Both draw the same numbers of neighbours for each relation and the same batches of papers, and train
two layers of HGT with Adam. PyG's loader draws in processes of its own on the host, and features are copied
to the device for each batch; ours draws on the device, one batch ahead. In rows named "captured" CUDA graphs
hold the draws and the steps, as in train.py; `launched` counts steps that had no room in their arrays. An
epoch is the time of a step, over --steps of them, times the steps of an epoch.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
import torch_geometric.nn as pyg
from torch_geometric.data import HeteroData
from torch_geometric.loader import NeighborLoader

from benchmarks.script import device_of, record, script_parser
from gnnsparse.data.generated_typed import load_mag_like
from gnnsparse.data.typed import TypedNodeDataset
from gnnsparse.precision import Precision
from gnnsparse.train.data import StepInput
from gnnsparse.train.device import numerics
from gnnsparse.train.settings import SamplerConfig
from gnnsparse.train.steps import Program, Recorder
from gnnsparse.train.tasks.typed_node import TypedNodeData, TypedNodeTask
from gnnsparse.train.trained import set_precision
from models import HGT

WIDTH, HEADS, FANOUTS, WARMUP = 128, 8, [15, 10], 5
KINDS = ("pyg", "fp32", "fp16", "fp32_captured", "fp16_captured")


class PygHgt(torch.nn.Module):
    """The layers of `models.HGT` in PyG."""

    def __init__(self, dataset: TypedNodeDataset) -> None:
        super().__init__()
        graph = dataset.graph
        self.target, metadata = dataset.target, ([*graph.num_nodes], [*graph.relations])
        self.lins = pyg.HeteroDictLinear({kind: x.shape[1] for kind, x in dataset.x.items()}, WIDTH)
        self.embeddings = torch.nn.ModuleDict(
            {
                kind: torch.nn.Embedding(n, WIDTH)
                for kind, n in graph.num_nodes.items()
                if kind not in dataset.x
            }
        )
        self.convs = torch.nn.ModuleList(pyg.HGTConv(WIDTH, WIDTH, metadata, HEADS) for _ in FANOUTS)
        self.head = torch.nn.Linear(WIDTH, dataset.num_classes)

    def forward(self, batch: Any) -> torch.Tensor:
        x = self.lins({kind: batch[kind].x for kind in self.lins.lins})
        x |= {kind: of(batch[kind].n_id) for kind, of in self.embeddings.items()}
        for conv in self.convs:
            x = conv(x, batch.edge_index_dict)
        return self.head(x[self.target][: batch[self.target].batch_size])


def pyg_batches(dataset: TypedNodeDataset, batch: int, workers: int, device: torch.device) -> Iterator[Any]:
    """Yield batches of PyG's loader on the device, without end."""
    data = HeteroData()
    for kind, count in dataset.graph.num_nodes.items():
        data[kind].num_nodes = count
        if kind in dataset.x:
            data[kind].x = dataset.x[kind]
    data[dataset.target].y = dataset.y
    for relation, edges in dataset.graph.edges.items():
        data[relation].edge_index = edges
    loader = NeighborLoader(
        data, FANOUTS, batch_size=batch, input_nodes=(dataset.target, dataset.train_mask), shuffle=True,
        num_workers=workers, persistent_workers=workers > 0, pin_memory=device.type == "cuda",
    )  # fmt: skip
    while True:
        for found in loader:
            yield found.to(device, non_blocking=True)


def our_data(dataset: TypedNodeDataset, batch: int, precision: Precision, device: torch.device) -> Any:
    """Return the data of a run of train.py."""
    sampler = SamplerConfig("neighbor", fanouts=FANOUTS, batch_size=batch)
    of: Any = dataset
    data = TypedNodeData(of, values=None, sampler=sampler, seed=0, precision=precision, device=device)
    data.prepare_data()
    data.setup("fit")
    return data


def our_steps(data: Any, captured: bool) -> Iterator[StepInput]:
    """Yield the inputs of steps as train.py makes them, without end."""
    while True:
        yield from data.batch_source().steps if captured else map(input_of, data.train_dataloader())


def input_of(batch: Any) -> StepInput:
    return StepInput(lambda: batch)


def milliseconds(
    model: Any, inputs: Iterator[StepInput], loss_of: Any, steps: int, device: torch.device
) -> dict[str, Any]:
    """Return the mean time of a step, what makes its batch included, and how many were launched."""
    is_gpu = device.type == "cuda"
    optimizer = torch.optim.Adam(model.parameters(), fused=is_gpu, capturable=is_gpu)
    recorder, programs = Recorder(device, required=False), dict[Any, Program]()
    last, begin, launched = torch.zeros((), dtype=torch.float32, device=device), 0.0, 0

    def train(make: Callable[[], Any]) -> None:
        optimizer.zero_grad()
        loss = loss_of(model, make())
        loss.backward()
        optimizer.step()
        last.copy_(loss.detach())

    for step, given in enumerate(itertools.islice(inputs, WARMUP + steps)):
        if step == WARMUP:
            last.item()  # waits for the step before
            begin, launched = time.perf_counter(), 0
        if given.buffers is None or recorder.problem is not None:
            train(given.single)
            launched += 1
            continue
        given.load()
        if given.buffers not in programs:
            programs[given.buffers] = Program(partial(train, given.static), recorder)
        programs[given.buffers]()
    loss, ms = last.item(), 1e3 * (time.perf_counter() - begin) / steps
    return {"ms": ms, "launched": launched, "loss": loss, "problem": recorder.problem}


def pyg_loss(model: Any, batch: Any) -> torch.Tensor:
    of = batch[model.target]
    return F.cross_entropy(model(batch), of.y[: of.batch_size])


def our_loss(model: Any, batch: Any) -> torch.Tensor:
    with numerics(batch.data.precision, batch.data.device):  # as train.py runs it
        out = model(batch.x, batch.adj)
    return F.cross_entropy(out[: len(batch.y)].float(), batch.y)


def rows(options: argparse.Namespace, device: torch.device) -> Iterator[dict[str, Any]]:
    """Time all kinds."""
    dataset = replace(load_mag_like(options.scale), times=None)
    epoch = math.ceil(int(dataset.train_mask.sum()) / options.batch)
    for kind in options.kinds:
        if "captured" in kind and device.type != "cuda":
            continue
        torch.manual_seed(0)
        if kind == "pyg":
            model: Any = PygHgt(dataset).to(device)
            batches = pyg_batches(dataset, options.batch, options.workers, device)
            inputs: Iterator[StepInput] = map(input_of, batches)
            loss = pyg_loss
        else:
            model = HGT(
                next(iter(dataset.x.values())).shape[1], WIDTH, dataset.num_classes, len(FANOUTS),
                heads=HEADS, dropout=0.0, **TypedNodeTask().model_options(dataset),
            ).to(device)  # fmt: skip
            precision, _, captured = kind.partition("_")
            set_precision(model, Precision(precision))
            data, loss = our_data(dataset, options.batch, Precision(precision), device), our_loss
            inputs = our_steps(data, bool(captured))
        found = milliseconds(model, inputs, loss, options.steps, device)
        yield {
            "name": kind, **found, "epoch_seconds": found["ms"] * epoch / 1e3, "workers": options.workers
        }  # fmt: skip


def main() -> None:
    parser = script_parser(__doc__, device="cuda")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of nodes and edges")
    parser.add_argument("--kinds", nargs="+", default=[*KINDS], choices=KINDS)
    parser.add_argument("--batch", type=int, default=1024, help="papers of a step")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--workers", type=int, default=16, help="processes of PyG's loader")
    options = parser.parse_args()
    device = device_of(options.device)
    record(
        rows(options, device), options.out, device, scale=options.scale, batch=options.batch, fanouts=FANOUTS
    )


if __name__ == "__main__":
    main()
