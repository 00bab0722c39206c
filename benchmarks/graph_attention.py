"""Times training steps of graph attention layers beside PyG's on a GPU.

    python -m benchmarks.graph_attention --out benchmarks/results/graph_attention.json

"steps" are training steps (forward, cross entropy, backward, Adam) of three layers of 8 heads and 128
channels on a graph like ogbn-arxiv; "captured" is the step in a CUDA graph. Times are medians. Other scripts
take the graphs of a weather model and `times` from here; `attention_peers` times the operation itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

import gnnsparse
from benchmarks.script import device_of, record, script_parser
from benchmarks.train_step import timed_step
from gnnsparse.data import graph_like
from gnnsparse.nn import GATConv, GATv2Conv, TransformerConv
from gnnsparse.runtime.timing import measure

DTYPES = {"fp16": torch.float16, "fp32": torch.float32}
#: Targets, sources, edges that are drawn, and how far from a target's place its sources lie.
MESHES = {
    "processor": (40_962, 40_962, 327_660, 600),
    "encoder": (40_962, 542_080, 1_600_000, 2000),
    "decoder": (542_080, 40_962, 1_626_240, 200),
}
CHANNELS, CLASSES = 128, 40
LAYERS: dict[str, Any] = {"GATConv": GATConv, "GATv2Conv": GATv2Conv, "TransformerConv": TransformerConv}


def mesh(name: str, device: torch.device) -> gnnsparse.SparseGraph:
    """Make a bipartite graph whose edges lead to sources near the target's place."""
    targets, sources, edges, reach = MESHES[name]
    generator = torch.Generator(device=device).manual_seed(1)

    def draw(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high, (edges,), generator=generator, device=device)

    target = draw(0, targets)
    source = (target * sources // targets + draw(-reach, reach + 1)).clamp(0, sources - 1)
    keys = torch.unique(target * sources + source)
    row, col = keys // sources, keys % sources
    indptr = torch.zeros(targets + 1, dtype=torch.int64, device=device)
    indptr[1:] = torch.bincount(row, minlength=targets).cumsum(0)
    return gnnsparse.SparseGraph.from_csr(indptr, col, num_cols=sources)


def times(
    call: Callable[[], torch.Tensor], leaves: list[torch.Tensor], device: torch.device, repeats: int,
    graph: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Measure the milliseconds of a call, and of the call with its gradients if it has any, in CUDA graphs.

    `graph` False: without them, for kernels that are launched on a stream of their own, which no graph has.

    "forward_problem" and "both_problem" say why a call could not be captured, and was timed with its Python.
    """
    out = call()
    grad, has_gradients = torch.randn_like(out), out.requires_grad
    del out  # while its graph lives, the leaves belong to this stream, and no capture can use them on another

    def both() -> None:
        torch.autograd.grad(call(), leaves, grad)

    def forward() -> None:
        with torch.no_grad():
            call()

    timings = {
        name: measure(run, device, repeats=repeats, graph=graph and device.type == "cuda")
        for name, run in (("forward", forward), ("both", both))
        if name == "forward" or has_gradients
    }
    problems = {f"{name}_problem": t.problem for name, t in timings.items() if t.problem is not None}
    return {**{f"{name}_ms": t.median for name, t in timings.items()}, **problems}


class Layers(torch.nn.Module):
    """Three layers of one kind with ELU between them, and a linear classifier."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(layer(CHANNELS, CHANNELS // 8, heads=8) for _ in range(3))
        self.lin = torch.nn.Linear(CHANNELS, CLASSES)

    def forward(self, x: torch.Tensor, adj: Any) -> torch.Tensor:
        for conv in self.convs:
            x = F.elu(conv(x, adj))
        return self.lin(x)


def step_of(kind: str, name: str, graph: gnnsparse.SparseGraph) -> dict[str, Any]:
    """Time one training step: of `kind` "pyg" or a precision of gnnsparse, with " captured" or without."""
    precision = kind.removesuffix(" captured")
    device = graph.csr.indices.device
    torch.manual_seed(0)
    if precision == "pyg":
        import torch_geometric.nn

        model: torch.nn.Module = Layers(getattr(torch_geometric.nn, name))
    else:
        model = Layers(lambda *sizes, **options: LAYERS[name](*sizes, precision=precision, **options))
    x = torch.randn(graph.num_rows, CHANNELS, device=device)
    y = torch.randint(CLASSES, (graph.num_rows,), device=device)
    edge_index = torch.stack([graph.csr.indices.long(), graph.csr.row_index()])
    train = torch.rand(graph.num_rows, device=device) < 0.5
    found = timed_step(kind, model.to(device), edge_index, x, y, train, repeats=10)
    return {"layer": name, "name": kind, **found}


def steps(device: torch.device) -> Iterator[dict[str, Any]]:
    graph = graph_like("arxiv_like", device=device)
    for name in LAYERS:
        for kind in ("pyg", "fp32", "fp16", "fp16 captured"):
            torch.cuda.empty_cache()
            try:
                yield step_of(kind, name, graph)
            except torch.OutOfMemoryError:
                yield {"layer": name, "name": kind, "ms": None, "error": "out of memory"}


def main() -> None:
    arguments, device = script_parser(__doc__).parse_args(), device_of("cuda")
    torch.manual_seed(0)
    record(steps(device), arguments.out, device, "steps")


if __name__ == "__main__":
    main()
