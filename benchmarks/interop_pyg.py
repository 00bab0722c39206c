"""Times training steps of PyG models as they are, compiled, and accelerated by gnnsparse.interop.pyg.

    python -m benchmarks.interop_pyg --out benchmarks/results/interop_pyg.json

"layers" are forward and backward of one layer on a random graph of 50,000 nodes and a million edges with 64
features, on the CPU. "steps" are training steps (forward, cross entropy, backward, Adam) of three layers of
128 channels on a GPU, on a graph like ogbn-arxiv and on one of Cora's size: PyG's, PyG's compiled,
accelerated in fp32 and under autocast with fp16, each eager and in a CUDA graph, with peak memory. Models
that are compared run in one process. All times are medians.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
import torch_geometric.nn as pyg

import gnnsparse.interop.pyg as interop
from benchmarks.train_step import captured, make_step
from gnnsparse.data import graph_like
from gnnsparse.runtime.environment import describe_environment, write_json
from gnnsparse.runtime.timing import CaptureError, measure

NODES, EDGES, WIDTH = 50_000, 1_000_000, 64
CHANNELS, CLASSES, HEADS = 128, 40, 8
EDGE_DIM, RELATIONS = 8, 4
LAYERS: dict[str, Callable[[], Any]] = {
    "GCN": lambda: pyg.GCNConv(WIDTH, WIDTH),
    "SAGE": lambda: pyg.SAGEConv(WIDTH, WIDTH),
    "APPNP": lambda: pyg.APPNP(10, 0.1),
    "GAT": lambda: pyg.GATConv(WIDTH, WIDTH // 4, heads=4),
    "GINE": lambda: pyg.GINEConv(torch.nn.Linear(WIDTH, WIDTH), edge_dim=EDGE_DIM),
    "ResGated": lambda: pyg.ResGatedGraphConv(WIDTH, WIDTH),
}
CONVS: dict[str, Callable[[], Any]] = {
    "GCN": lambda: pyg.GCNConv(CHANNELS, CHANNELS),
    "SAGE": lambda: pyg.SAGEConv(CHANNELS, CHANNELS),
    "GIN": lambda: pyg.GINConv(torch.nn.Linear(CHANNELS, CHANNELS)),
    "GAT": lambda: pyg.GATConv(CHANNELS, CHANNELS // HEADS, heads=HEADS),
    "GATv2": lambda: pyg.GATv2Conv(CHANNELS, CHANNELS // HEADS, heads=HEADS),
    "TransformerConv": lambda: pyg.TransformerConv(CHANNELS, CHANNELS // HEADS, heads=HEADS),
    "GINE": lambda: pyg.GINEConv(torch.nn.Linear(CHANNELS, CHANNELS), edge_dim=EDGE_DIM),
    "ResGated": lambda: pyg.ResGatedGraphConv(CHANNELS, CHANNELS),
    "GEN": lambda: pyg.GENConv(CHANNELS, CHANNELS),
    "PNA": lambda: pyg.PNAConv(
        CHANNELS, CHANNELS, ["mean", "max", "min", "std"], ["identity", "amplification"], torch.arange(64)
    ),
    "CG": lambda: pyg.CGConv(CHANNELS),
    "FiLM": lambda: pyg.FiLMConv(CHANNELS, CHANNELS),
    "RGCN": lambda: pyg.RGCNConv(CHANNELS, CHANNELS, RELATIONS),
}
#: What layers take besides, for a number of edges.
MORE: dict[str, Callable[[int, torch.device], torch.Tensor]] = {
    "GINE": lambda edges, device: torch.randn(edges, EDGE_DIM, dtype=torch.float32, device=device),
    "RGCN": lambda edges, device: torch.randint(RELATIONS, (edges,), dtype=torch.int64, device=device),
}
KINDS = (
    "pyg", "pyg compiled", "pyg captured", "fp32", "fp32 captured", "fp16", "fp16 captured",
)  # fmt: skip
#: Layers of PyG that a CUDA graph can have: GCN that keeps what it normalises. The others select edges by a
#: mask in each call, whose number the host has to know; a capture that fails ends all others of a process.
CAPTURABLE = ("GCN", "SAGE", "GIN", "TransformerConv")
#: Steps before the timed ones. A small graph is converted when its products so far would have paid for it.
_WARMUP = 15
#: Nodes and edges of Cora, whose edges are stored in both directions.
CORA = (2708, 10556)


def layers(repeats: int, names: list[str]) -> Iterator[dict[str, Any]]:
    """Forward and backward of one layer on the CPU, PyG's and accelerated."""
    cpu = torch.device("cpu")
    generator = torch.Generator(device=cpu).manual_seed(0)
    edge_index = torch.randint(0, NODES, (2, EDGES), generator=generator, device=cpu)
    x = torch.randn(NODES, WIDTH, generator=generator, device=cpu).requires_grad_()
    for name in names:
        plain = LAYERS[name]()
        models = {"pyg": plain, "accelerated": interop.accelerate(copy.deepcopy(plain))}
        more = [MORE[name](EDGES, cpu)] if name in MORE else []
        found = {"layer": name, "nodes": NODES, "edges": EDGES, "width": WIDTH}
        for kind, model in models.items():

            def step(model: Any = model, more: list[torch.Tensor] = more) -> None:
                model.zero_grad(set_to_none=True)
                model(x, edge_index, *more).sum().backward()

            found[f"{kind}_ms"] = measure(step, cpu, repeats=repeats).median
        yield {**found, "ratio": found["pyg_ms"] / found["accelerated_ms"]}


class Model(torch.nn.Module):
    """Three layers of one kind with ReLU between them, and a linear classifier."""

    def __init__(self, name: str, edges: int, device: torch.device) -> None:
        super().__init__()
        self.more = [MORE[name](edges, device)] if name in MORE else []
        self.convs = torch.nn.ModuleList(CONVS[name]() for _ in range(3))
        self.lin = torch.nn.Linear(CHANNELS, CLASSES)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        for conv in self.convs:
            x = F.relu(conv(x, edge_index, *self.more))
        return self.lin(x)


def step_of(kind: str, name: str, edge_index: torch.Tensor, nodes: int) -> dict[str, Any]:
    """Time one training step, of a kind in `KINDS`."""
    device = edge_index.device
    if kind == "pyg captured" and name not in CAPTURABLE:
        raise CaptureError("PyG selects edges by a mask in every call")
    torch.manual_seed(0)
    before = torch.cuda.memory_allocated(device)  # by compiled code and graphs of earlier models
    model: Any = Model(name, edge_index.shape[1], device).to(device)
    if kind == "pyg captured" and name == "GCN":
        for conv in model.convs:
            conv.cached = True
    if not kind.startswith("pyg"):
        interop.accelerate(model)
    if kind == "pyg compiled":
        torch._dynamo.reset()
        model = torch.compile(model)
    x = torch.randn(nodes, CHANNELS, dtype=torch.float32, device=device)
    y = torch.randint(CLASSES, (nodes,), device=device)
    train = torch.rand(nodes, dtype=torch.float32, device=device) < 0.5
    step = make_step(model, edge_index, x, y, train, "fp16" if kind.startswith("fp16") else None)
    for _ in range(_WARMUP):
        loss = float(step())
    torch.cuda.reset_peak_memory_stats(device)
    if kind.endswith("captured"):
        step = captured(step)
    # Steps on a small graph take what the host takes, which varies.
    ms = measure(step, device, repeats=20 if nodes > 10_000 else 200).median
    peak = (torch.cuda.max_memory_allocated(device) - before) / 1e9
    # GIN's sums over the neighbours of hubs are too large for half precision, PyG's too.
    shown = loss if math.isfinite(loss) else None
    return {"layer": name, "name": kind, "nodes": nodes, "ms": ms, "loss": shown, "peak_gb": peak}


def steps(
    device: torch.device, names: list[str], graphs: list[str], kinds: list[str]
) -> Iterator[dict[str, Any]]:
    """Training steps on a GPU."""
    graph = graph_like("arxiv_like", device=device)
    arxiv = torch.stack([graph.csr.indices.long(), graph.csr.row_index()])
    cora = torch.randint(0, CORA[0], (2, CORA[1]), device=device)
    for graph_name, edges, nodes in (("arxiv_like", arxiv, graph.num_rows), ("cora_like", cora, CORA[0])):
        for name, kind in itertools.product(names, kinds if graph_name in graphs else []):
            torch.cuda.empty_cache()
            try:
                yield {"graph": graph_name, **step_of(kind, name, edges, nodes)}
            except (CaptureError, RuntimeError, torch._dynamo.exc.TorchDynamoException) as problem:
                # Out of memory; edges that PyG selects by a mask can't be captured, nor always compiled.
                why = str(problem).splitlines()[0]
                yield {"graph": graph_name, "layer": name, "name": kind, "ms": None, "error": why}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=None, help="JSON file to write")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--parts", nargs="+", default=None, choices=["layers", "steps"])
    parser.add_argument("--layers", nargs="+", default=[*CONVS, "APPNP"], choices=[*CONVS, "APPNP"])
    graphs = ["arxiv_like", "cora_like"]
    parser.add_argument("--graphs", nargs="+", default=graphs, choices=graphs, help="of the steps")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS), help="of the steps")
    arguments = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    parts = arguments.parts or (["layers", "steps"] if on_gpu else ["layers"])
    results: dict[str, Any] = {**describe_environment(device)}
    for part in parts:
        results[part] = []
        chosen = [name for name in arguments.layers if name in CONVS], arguments.graphs, arguments.kinds
        on_cpu = [name for name in arguments.layers if name in LAYERS]
        for row in layers(arguments.repeats, on_cpu) if part == "layers" else steps(device, *chosen):
            print(row, flush=True)
            results[part].append(row)
    if arguments.out is not None:
        write_json(arguments.out, results)


if __name__ == "__main__":
    main()
