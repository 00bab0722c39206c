"""Times training steps of PyG models as they are, compiled, and accelerated by gnnsparse.interop.pyg.

    python -m benchmarks.interop_pyg --out benchmarks/results/interop_pyg.json

"layers" are forward and backward of one layer on a random graph of 50,000 nodes and a million edges with 64
features, on the CPU. "steps" are training steps (forward, cross entropy, backward, Adam) of three layers of
128 channels on a GPU, on a graph like ogbn-arxiv and on one of Cora's size: PyG's, PyG's compiled,
accelerated in fp32 and under autocast with fp16, each eager and in a CUDA graph, with peak memory. Models
that are compared run in one process. All times are medians. "calls" are forward and backward of one layer of
16 channels on small graphs, on one thread of the CPU, in microseconds: there the fastest of fifty calls is
compared, as a machine is shared.
"""

from __future__ import annotations

import copy
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
import torch_geometric.nn as pyg

import gnnsparse.interop.pyg as interop
from benchmarks.script import device_of, record, script_parser
from benchmarks.train_step import timed_step
from gnnsparse.data import graph_like
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
#: By the number of channels.
CONVS: dict[str, Callable[[int], Any]] = {
    "GCN": lambda c: pyg.GCNConv(c, c),
    "SAGE": lambda c: pyg.SAGEConv(c, c),
    "GIN": lambda c: pyg.GINConv(torch.nn.Linear(c, c)),
    "GAT": lambda c: pyg.GATConv(c, c // HEADS, heads=HEADS),
    "GATv2": lambda c: pyg.GATv2Conv(c, c // HEADS, heads=HEADS),
    "TransformerConv": lambda c: pyg.TransformerConv(c, c // HEADS, heads=HEADS),
    "GINE": lambda c: pyg.GINEConv(torch.nn.Linear(c, c), edge_dim=EDGE_DIM),
    "ResGated": lambda c: pyg.ResGatedGraphConv(c, c),
    "GEN": lambda c: pyg.GENConv(c, c),
    "PNA": lambda c: pyg.PNAConv(
        c, c, ["mean", "max", "min", "std"], ["identity", "amplification"], torch.arange(64)
    ),
    "CG": lambda c: pyg.CGConv(c),
    "FiLM": lambda c: pyg.FiLMConv(c, c),
    "RGCN": lambda c: pyg.RGCNConv(c, c, RELATIONS),
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
#: Graphs of the part "calls": the size of Cora, a batch of molecules, and one of them.
SMALL = {"cora": CORA, "molecules": (600, 1300), "molecule": (30, 64)}
SMALL_CHANNELS = 16


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
        found: dict[str, Any] = {"layer": name, "nodes": NODES, "edges": EDGES, "width": WIDTH}
        for kind, model in models.items():

            def step(model: Any = model, more: list[torch.Tensor] = more) -> None:
                model.zero_grad(set_to_none=True)
                model(x, edge_index, *more).sum().backward()

            found[f"{kind}_ms"] = measure(step, cpu, repeats=repeats).median
        yield {**found, "ratio": found["pyg_ms"] / found["accelerated_ms"]}


def calls(repeats: int, names: list[str]) -> Iterator[dict[str, Any]]:
    """Forward and backward of one layer on small graphs, on a thread of the CPU, PyG's in turns with ours."""
    cpu = torch.device("cpu")
    torch.set_num_threads(1)
    for (graph, (nodes, edges)), name in itertools.product(SMALL.items(), names):
        torch.manual_seed(0)
        edge_index = torch.randint(0, nodes, (2, edges), device=cpu)
        x = torch.randn(nodes, SMALL_CHANNELS, dtype=torch.float32, device=cpu).requires_grad_()
        more = [MORE[name](edges, cpu)] if name in MORE else []
        plain = CONVS[name](SMALL_CHANNELS)
        models = {"pyg": plain}
        for convert in ("auto", "always"):
            models[convert] = interop.accelerate(copy.deepcopy(plain), convert=convert)
        times: dict[str, list[float]] = {kind: [] for kind in models}
        for at in range(_WARMUP + repeats):
            for kind, model in models.items():
                start = time.perf_counter()
                model.zero_grad(set_to_none=True)
                model(x, edge_index, *more).sum().backward()
                if at >= _WARMUP:
                    times[kind].append((time.perf_counter() - start) * 1e6)
        found: dict[str, Any] = {"layer": name, "graph": graph, "nodes": nodes, "edges": edges}
        for kind, of in times.items():
            ordered = sorted(of)
            found[f"{kind}_us"] = {"median": statistics.median(of), "fastest": ordered[len(of) // 50]}
        fastest = {kind: found[f"{kind}_us"]["fastest"] for kind in models}
        yield {**found, **{f"ratio_{k}": fastest["pyg"] / fastest[k] for k in ("auto", "always")}}


class Model(torch.nn.Module):
    """Three layers of one kind with ReLU between them, and a linear classifier."""

    def __init__(self, name: str, edges: int, device: torch.device) -> None:
        super().__init__()
        self.more = [MORE[name](edges, device)] if name in MORE else []
        self.convs = torch.nn.ModuleList(CONVS[name](CHANNELS) for _ in range(3))
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
    repeats = 20 if nodes > 10_000 else 200  # steps on a small graph take what the host takes, which varies
    found = timed_step(kind, model, edge_index, x, y, train, repeats=repeats, warmup=_WARMUP, before=before)
    return {"layer": name, "name": kind, "nodes": nodes, **found}


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
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--parts", nargs="+", default=None, choices=["layers", "calls", "steps"])
    parser.add_argument("--layers", nargs="+", default=[*CONVS, "APPNP"], choices=[*CONVS, "APPNP"])
    graphs = ["arxiv_like", "cora_like"]
    parser.add_argument("--graphs", nargs="+", default=graphs, choices=graphs, help="of the steps")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS), help="of the steps")
    arguments, device, results = parser.parse_args(), device_of("auto"), dict[str, Any]()
    for part in arguments.parts or (["layers", "steps"] if device.type == "cuda" else ["layers"]):
        chosen = [name for name in arguments.layers if name in CONVS]
        rows = {
            "layers": layers(arguments.repeats, [name for name in arguments.layers if name in LAYERS]),
            "calls": calls(arguments.repeats, chosen),
            "steps": steps(device, chosen, arguments.graphs, arguments.kinds),
        }[part]
        results[part] = record(rows, arguments.out, device, part, **results)


if __name__ == "__main__":
    main()
