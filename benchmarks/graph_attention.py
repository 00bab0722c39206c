"""Times graph attention, and training steps of graph attention layers beside PyG's, on a GPU.

    python -m benchmarks.graph_attention --out benchmarks/results/graph_attention.json

"ops" are calls of gnnsparse.graph_attention on a graph like ogbn-arxiv, with tensors stored [nodes, heads,
features]. "edges" are attention with edge features on keys and values on bipartite graphs of the shape of a
weather model's encoder, processor and decoder: none, expanded to every head, and behind a linear map, of
which the products with the map are timed too. "steps" are training steps (forward, cross entropy, backward,
Adam) of three layers of 8 heads and 128 channels; "captured" is the step in a CUDA graph. All times are
medians, of forward alone and of forward with backward.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

import gnnsparse
from benchmarks.train_step import captured, make_step
from gnnsparse.data import graph_like
from gnnsparse.nn import GATConv, GATv2Conv, TransformerConv
from gnnsparse.runtime.environment import describe_environment, write_json
from gnnsparse.runtime.timing import measure

#: Score, heads and features of a head.
OPS = (("dot", 8, 16), ("dot", 4, 32), ("additive", 8, 16), ("gatv2", 8, 16), ("dot", 8, 8), ("dot", 1, 64))
DTYPES = {"fp16": torch.float16, "fp32": torch.float32}
#: Targets, sources, edges that are drawn, and how far from a target's place its sources lie.
MESHES = {
    "processor": (40_962, 40_962, 327_660, 600),
    "encoder": (40_962, 542_080, 1_600_000, 2000),
    "decoder": (542_080, 40_962, 1_626_240, 200),
}
HEADS, WIDTH, EDGE_WIDTH = 16, 64, 32
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
    call: Callable[[], torch.Tensor], leaves: list[torch.Tensor], device: torch.device, repeats: int
) -> dict[str, Any]:
    """Measure the milliseconds of a call, and of the call with its gradients if it has any, in CUDA graphs.

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
        name: measure(run, device, repeats=repeats, graph=device.type == "cuda")
        for name, run in (("forward", forward), ("both", both))
        if name == "forward" or has_gradients
    }
    problems = {f"{name}_problem": t.problem for name, t in timings.items() if t.problem is not None}
    return {**{f"{name}_ms": t.median for name, t in timings.items()}, **problems}


def ops(device: torch.device, repeats: int) -> Iterator[dict[str, Any]]:
    graph = graph_like("arxiv_like", device=device)
    n = graph.num_rows
    for precision, dtype in DTYPES.items():
        a = gnnsparse.prepare(graph, precision=precision, cache=False)
        for score, heads, width in OPS:
            inner = () if score == "additive" else (width,)
            shapes = [(n, heads, *inner), (n, heads, *inner), (n, heads, width)]
            leaves = [torch.randn(s, device=device, dtype=dtype, requires_grad=True) for s in shapes]
            att = None
            if score == "gatv2":
                att = torch.randn(heads, width, device=device, dtype=torch.float32, requires_grad=True)
            q, k, v = leaves
            leaves += [] if att is None else [att]

            def call(q: Any = q, k: Any = k, v: Any = v, att: Any = att, a: Any = a, s: str = score) -> Any:
                return gnnsparse.graph_attention(a, q, k, v, score=s, att=att)

            found = times(call, leaves, device, repeats)
            yield {"graph": "arxiv_like", "nnz": a.nnz, "precision": precision, "score": score,
                   "heads": heads, "width": width, **found}  # fmt: skip


def edges(device: torch.device, repeats: int) -> Iterator[dict[str, Any]]:
    for name in MESHES:
        a = gnnsparse.prepare(mesh(name, device), precision="fp16", cache=False)
        (rows, cols), half = a.shape, {"device": device, "dtype": torch.float16}
        q, k, v = (torch.randn(n, HEADS, WIDTH, requires_grad=True, **half) for n in (rows, cols, cols))
        features = torch.randn(a.nnz, EDGE_WIDTH, **half)
        weight = torch.randn(HEADS * WIDTH, EDGE_WIDTH, requires_grad=True, **half)
        for kind in ("none", "behind a map", "expanded"):
            terms: dict[str, Any] = {"edge_order": "operand"}
            leaves = [q, k, v]
            if kind == "expanded":
                terms["edge_features"] = torch.randn(a.nnz, HEADS, WIDTH, requires_grad=True, **half)
                leaves.append(terms["edge_features"])
            if kind == "behind a map":
                terms |= {"edge_features": features, "edge_weight": weight}
                leaves.append(weight)

            def call(terms: Any = terms, a: Any = a, q: Any = q, k: Any = k, v: Any = v) -> Any:
                return gnnsparse.graph_attention(a, q, k, v, **terms)

            yield {"graph": name, "nnz": a.nnz, "shape": list(a.shape), "heads": HEADS, "width": WIDTH,
                   "features": kind, **times(call, leaves, device, repeats)}  # fmt: skip


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
    autocast = precision if precision == "fp16" else None
    step = make_step(model.to(device), edge_index, x, y, train, autocast)
    loss = float(step())
    torch.cuda.reset_peak_memory_stats(device)
    if kind.endswith("captured"):
        step = captured(step)
    ms = measure(step, device, repeats=10).median
    return {"layer": name, "name": kind, "ms": ms, "loss": loss,
            "peak_gb": torch.cuda.max_memory_allocated(device) / 1e9}  # fmt: skip


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=None, help="JSON file to write")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--parts", nargs="+", default=["ops", "edges", "steps"])
    arguments = parser.parse_args()
    device = torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(0)
    results: dict[str, Any] = {**describe_environment(device)}
    parts = {
        "ops": lambda: ops(device, arguments.repeats),
        "edges": lambda: edges(device, arguments.repeats),
        "steps": lambda: steps(device),
    }
    for part in arguments.parts:
        results[part] = []
        for row in parts[part]():
            print(row, flush=True)
            results[part].append(row)
    if arguments.out is not None:
        write_json(arguments.out, results)


if __name__ == "__main__":
    main()
