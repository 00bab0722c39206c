"""Times training steps of PyG's layers for typed graphs, as they are and accelerated, on a citation graph.

    python -m benchmarks.typed_layers --out benchmarks/results/typed_layers.json

The graph is that of the data set mag_like, in the sizes of ogbn-mag: papers, authors, institutions and
fields of study, four relations and their reverses, at --scale 1 1.94 million nodes and 42 million edges.
Features and labels are random. A model has two layers of 128 features and a linear classifier; a step is
forward, cross entropy of the papers, backward and Adam. Models that are compared run in one process, and
begin with the same weights, so that equal losses show equal functions. Those that do not fit into memory have
no time.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator
from typing import Any

import torch
import torch_geometric.nn as pyg

import gnnsparse.interop.pyg as interop
from benchmarks.script import device_of, record, script_parser
from benchmarks.train_step import timed_step
from gnnsparse.data.generated_typed import load_mag_like
from gnnsparse.runtime.timing import CaptureError

WIDTH, CLASSES, HEADS = 128, 349, 8
KINDS = ("pyg", "fp32", "fp32 captured", "fp16", "fp16 captured")
_WARMUP = 12

Typed = dict[tuple[str, str, str], torch.Tensor]


def typed_graph(scale: float, device: torch.device) -> tuple[dict[str, int], Typed]:
    """Return the number of nodes of each type, and the edges of each relation and of its reverse."""
    graph = load_mag_like(scale).graph
    return graph.num_nodes, {relation: edges.to(device) for relation, edges in graph.edges.items()}


class Homogeneous(torch.nn.Module):
    """Two layers on the nodes of all types, whose edges have the numbers of their relations."""

    def __init__(self, name: str, nodes: dict[str, int], edges: Typed) -> None:
        super().__init__()
        starts, at = {}, 0
        for kind, count in nodes.items():
            starts[kind], at = at, at + count
        apart = [
            ends + torch.tensor([[starts[kind[0]]], [starts[kind[2]]]], dtype=torch.int64, device=ends.device)
            for kind, ends in edges.items()
        ]
        counts = torch.tensor([ends.shape[1] for ends in apart], dtype=torch.int64, device=apart[0].device)
        self.edges, self.papers = torch.cat(apart, dim=1), nodes["paper"]
        numbers = torch.arange(len(apart), dtype=torch.int64, device=counts.device)
        self.types = numbers.repeat_interleave(counts)
        make = {
            "RGCN": lambda: pyg.RGCNConv(WIDTH, WIDTH, len(edges)),
            "RGAT": lambda: pyg.RGATConv(WIDTH, WIDTH // HEADS, len(edges), heads=HEADS),
        }[name]
        self.convs = torch.nn.ModuleList(make() for _ in range(2))
        self.lin = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor, edges: Typed) -> torch.Tensor:
        for conv in self.convs:
            x = conv(x, self.edges, self.types).relu()
        return self.lin(x[: self.papers])


class Hgt(torch.nn.Module):
    """Two layers of HGT on the nodes of each type."""

    def __init__(self, name: str, nodes: dict[str, int], edges: Typed) -> None:
        super().__init__()
        self.nodes, metadata = nodes, ([*nodes], [*edges])
        self.convs = torch.nn.ModuleList(pyg.HGTConv(WIDTH, WIDTH, metadata, HEADS) for _ in range(2))
        self.lin = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor, edges: Typed) -> torch.Tensor:
        of_types = dict(zip(self.nodes, x.split([*self.nodes.values()]), strict=True))
        for conv in self.convs:
            of_types = conv(of_types, edges)
        return self.lin(of_types["paper"])


MODELS: dict[str, Any] = {"RGCN": Homogeneous, "HGT": Hgt, "RGAT": Homogeneous}


def step_of(name: str, kind: str, nodes: dict[str, int], edges: Typed) -> dict[str, Any]:
    """Time one training step, of a kind in `KINDS`."""
    device = next(iter(edges.values())).device
    torch.manual_seed(0)
    model = MODELS[name](name, nodes, edges).to(device)
    if kind != "pyg":
        interop.accelerate(model)
    x = torch.randn(sum(nodes.values()), WIDTH, dtype=torch.float32, device=device)
    y = torch.randint(CLASSES, (nodes["paper"],), device=device)
    train = torch.rand(nodes["paper"], dtype=torch.float32, device=device) < 0.85
    before = torch.cuda.memory_allocated(device)
    found = timed_step(kind, model, edges, x, y, train, repeats=7, warmup=_WARMUP, before=before)
    ran_on = [line.strip() for line in str(interop.report(model)).splitlines()[:3]] if kind != "pyg" else []
    return {"layer": name, "name": kind, **found, "ran_on": ran_on}


def rows(arguments: argparse.Namespace, device: torch.device) -> Iterator[dict[str, Any]]:
    """Time all steps."""
    nodes, edges = typed_graph(arguments.scale, device)
    for name in arguments.layers:
        for kind in arguments.kinds:
            gc.collect()
            torch.cuda.empty_cache()
            try:
                yield step_of(name, kind, nodes, edges)
            except (CaptureError, RuntimeError) as problem:  # out of memory
                yield {"layer": name, "name": kind, "ms": None, "error": str(problem).splitlines()[0]}


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of nodes and edges")
    parser.add_argument("--layers", nargs="+", default=[*MODELS], choices=[*MODELS])
    parser.add_argument("--kinds", nargs="+", default=[*KINDS], choices=[*KINDS])
    arguments, device = parser.parse_args(), device_of("cuda")
    record(rows(arguments, device), arguments.out, device, "steps", scale=arguments.scale)


if __name__ == "__main__":
    main()
