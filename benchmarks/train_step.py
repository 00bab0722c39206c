"""Times a training step of a GCN or an AGNN on a large graph, and PyG's.

    python -m benchmarks.train_step --out benchmarks/results/train_step.json
    python -m benchmarks.train_step --model agnn --graph arxiv_like --out benchmarks/results/agnn_step.json

The GCN has 5 layers of 128 features, for which PyG gets a torch CSR adjacency. The AGNN has 4 propagation
layers of 32 features, for which PyG gets an edge_index. There are 602 input features and 41 classes. A step
is forward, cross entropy, backward and Adam, and all models run in one process. Labels are random. Every
model starts from weights drawn with one seed, so that equal losses show that all compute equal functions.
"captured" is the step in a CUDA graph, which does not wait for the CPU. Models that do not fit into memory
have no time.
"""

from __future__ import annotations

import gc
import itertools
import math
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

import gnnsparse
from benchmarks.pyg import with_pyg_layers
from benchmarks.script import record, script_parser
from gnnsparse.data import GENERATED_GRAPHS, graph_like
from gnnsparse.runtime.timing import capture, measure
from models import AGNN, GCN

FEATURES, CLASSES = 602, 41
#: Number of layers, and hidden features, by model.
SIZES = {"gcn": (5, 128), "agnn": (4, 32)}
PEERS = {"gcn": ("pyg csr fp32", "pyg csr half"), "agnn": ("pyg fp32",)}
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
CAPTURED = " captured"
AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}


class PyGModel(torch.nn.Module):
    """The GCN made of PyG's layers, for an adjacency that is normalised already."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import GCNConv

        count, hidden = SIZES["gcn"]
        widths = [FEATURES, *[hidden] * (count - 1), CLASSES]
        layers = (GCNConv(a, b, normalize=False) for a, b in itertools.pairwise(widths))
        self.convs = torch.nn.ModuleList(layers)

    def forward(self, x: torch.Tensor, adj: torch.Tensor) -> torch.Tensor:
        for conv in self.convs[:-1]:
            x = F.relu(conv(x, adj))
        return self.convs[-1](x, adj)


def make_step(
    model: torch.nn.Module, adj: Any, x: torch.Tensor, y: torch.Tensor, train: torch.Tensor,
    autocast: str | None,
) -> Callable[[], torch.Tensor]:  # fmt: skip
    eps = 1e-4 if x.dtype == torch.float16 else 1e-8
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=eps, fused=True, capturable=x.is_cuda)
    rows = train.nonzero().flatten()  # indexing by a mask would wait for the GPU in every step
    labels = y[rows]
    scaler = torch.amp.GradScaler("cuda", enabled=autocast == "fp16")
    context = torch.autocast("cuda", AUTOCAST[autocast]) if autocast in AUTOCAST else nullcontext()

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with context:
            loss = F.cross_entropy(model(x, adj)[rows].float(), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


def captured(step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Capture a step in a CUDA graph; returns a function that replays it and returns its loss."""
    kept: list[torch.Tensor] = []

    def keep() -> None:
        kept[:] = [step()]

    replay = capture(keep, 1)

    def again() -> torch.Tensor:
        replay()
        return kept[0]

    return again


def timed_step(
    kind: str, model: torch.nn.Module, adj: Any, x: torch.Tensor, y: torch.Tensor, train: torch.Tensor, *,
    repeats: int, warmup: int = 1, before: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Time a step, of a `kind` "fp16..." under autocast and of "... captured" in a CUDA graph.

    Its peak memory is that beyond `before` bytes, and its loss is None if it is not finite.
    """
    step = make_step(model, adj, x, y, train, "fp16" if kind.startswith("fp16") else None)
    for _ in range(warmup):
        loss = float(step())
    torch.cuda.reset_peak_memory_stats(x.device)
    if kind.endswith(CAPTURED):
        step = captured(step)
    ms = measure(step, x.device, repeats=repeats).median
    peak = (torch.cuda.max_memory_allocated(x.device) - before) / 1e9
    return {"ms": ms, "loss": loss if math.isfinite(loss) else None, "peak_gb": peak}


def torch_csr(a: gnnsparse.SparseOperand, dtype: torch.dtype) -> torch.Tensor:
    """Make a torch CSR tensor of the normalised adjacency, with int32 indices."""
    csr = a.kernels.csr
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that its CSR support is in beta
        return torch.sparse_csr_tensor(
            csr.indptr.int(), csr.indices, a.kernels.explicit_values.to(dtype), a.shape
        )


def make_model(
    model: str, name: str, graph: gnnsparse.SparseGraph
) -> tuple[torch.nn.Module, Any, torch.dtype, str | None]:
    """Make a model; returns it with its adjacency, the dtype of its features, and its autocast precision.

    Args:
        model: "gcn" or "agnn".
        name: "gnnsparse PRECISION", with CAPTURED or without, or one of PEERS.
        graph: the graph.
    """
    kind, _, precision = name.removesuffix(CAPTURED).partition(" ")
    layers, hidden = SIZES[model]
    if kind == "gnnsparse":
        adj = gnnsparse.prepare(graph, values="gcn", precision=precision, cache=False)
        built = {"gcn": GCN, "agnn": AGNN}[model](FEATURES, hidden, CLASSES, layers, dropout=0.0)
        return built, adj, torch.float32, precision
    if model == "agnn":
        edge_index = torch.stack([graph.csr.indices.long(), graph.csr.row_index()])
        built = AGNN(FEATURES, hidden, CLASSES, layers, dropout=0.0)
        return with_pyg_layers(built), edge_index, torch.float32, None
    dtype = torch.float16 if precision == "csr half" else torch.float32
    prepared = gnnsparse.prepare(graph, values="gcn", cache=False)
    return PyGModel(), torch_csr(prepared, dtype), dtype, None


def run(model: str, name: str, graph: gnnsparse.SparseGraph, repeats: int) -> dict[str, Any]:
    """Time one model; the arguments are those of `make_model`."""
    try:
        return _run(model, name, graph, repeats)
    except torch.OutOfMemoryError:
        return {"name": name, "ms": None, "error": "out of memory"}


def _run(model: str, name: str, graph: gnnsparse.SparseGraph, repeats: int) -> dict[str, Any]:
    generator = torch.Generator("cuda").manual_seed(0)
    n = graph.num_rows
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    x = torch.randn(n, FEATURES, device="cuda", generator=generator)
    y = torch.randint(0, CLASSES, (n,), device="cuda", generator=generator)
    train = torch.rand(n, device="cuda", generator=generator) < 0.66
    torch.set_float32_matmul_precision("high" if name.endswith("tf32") else "highest")
    torch.manual_seed(0)
    built, adj, dtype, autocast = make_model(model, name, graph)
    step = make_step(built.cuda().to(dtype), adj, x.to(dtype), y, train, autocast)
    first = float(step())
    if name.endswith(CAPTURED):
        step = captured(step)
    prepared = torch.cuda.max_memory_allocated() - before
    torch.cuda.reset_peak_memory_stats()
    time = measure(step, "cuda", warmup=3, repeats=repeats)
    return {
        "name": name,
        "ms": time.median,
        "fastest_ms": time.fastest,
        "slowest_ms": time.slowest,
        "peak_bytes": torch.cuda.max_memory_allocated() - before,
        "prepare_peak_bytes": prepared,
        "first_loss": first,
        "last_loss": float(step()),
    }


def shown(result: dict[str, Any]) -> str:
    if result["ms"] is None:
        return f"{result['name']:24s} {result['error']}"
    return (
        f"{result['name']:24s} {result['ms']:8.2f} ms  {result['peak_bytes'] / 1e9:6.2f} GB  "
        f"loss {result['first_loss']:.3f} -> {result['last_loss']:.3f}"
    )


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--model", choices=tuple(SIZES), default="gcn")
    parser.add_argument("--graph", choices=GENERATED_GRAPHS, default="reddit_like")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    graph = graph_like(options.graph, scale=options.scale, device="cuda")
    ours = [f"gnnsparse {precision}" for precision in PRECISIONS]
    names = [*PEERS[options.model], *ours, *(name + CAPTURED for name in ours)]
    layers, hidden = SIZES[options.model]
    about = {"model": options.model, "graph": options.graph, "layers": layers, "hidden": hidden}
    results = (run(options.model, name, graph, options.repeats) for name in names)
    record(results, options.out, "cuda", show=shown, **about, nodes=graph.num_rows, nnz=graph.nnz)


if __name__ == "__main__":
    main()
