"""One training step of a GCN on a Reddit-sized graph, beside PyG with a torch CSR adjacency.

    python -m benchmarks.train_step --out benchmarks/results/train_step.json

5 layers, hidden 128, 602 features, 41 classes: forward, cross entropy, backward and Adam, in one process.
Labels are random; every model starts from weights drawn with the same seed, and the losses show that all
of them compute the same.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

import gnnsparse
from gnnsparse.data import graph_like
from gnnsparse.environment import describe_environment, write_json
from gnnsparse.timing import measure
from models.gcn import GCN

FEATURES, CLASSES, HIDDEN, LAYERS = 602, 41, 128, 5
AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}


class PyGModel(torch.nn.Module):
    """The same network of PyG's layers, on an adjacency that is normalised already."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import GCNConv

        widths = [FEATURES, *[HIDDEN] * (LAYERS - 1), CLASSES]
        layers = (GCNConv(a, b, normalize=False) for a, b in itertools.pairwise(widths))
        self.convs = torch.nn.ModuleList(layers)

    def forward(self, x: torch.Tensor, adj: torch.Tensor) -> torch.Tensor:
        for conv in self.convs[:-1]:
            x = F.relu(conv(x, adj))
        return self.convs[-1](x, adj)


def make_step(
    model: torch.nn.Module,
    adj: Any,
    x: torch.Tensor,
    y: torch.Tensor,
    train: torch.Tensor,
    autocast: str | None,
) -> Callable[[], torch.Tensor]:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-4 if x.dtype == torch.float16 else 1e-8)
    scaler = torch.amp.GradScaler("cuda", enabled=autocast == "fp16")
    context = torch.autocast("cuda", AUTOCAST[autocast]) if autocast in AUTOCAST else nullcontext()

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with context:
            loss = F.cross_entropy(model(x, adj)[train].float(), y[train])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


def torch_csr(a: gnnsparse.SparseOperand, dtype: torch.dtype) -> torch.Tensor:
    """The normalised adjacency as a torch CSR tensor with int32 indices."""
    csr = a.side.csr
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls its CSR support a beta
        return torch.sparse_csr_tensor(
            csr.indptr.int(), csr.indices, a.side.explicit_values.to(dtype), a.shape
        )


def run(name: str, graph: gnnsparse.SparseGraph, repeats: int) -> dict[str, Any]:
    """Times one model: "gnnsparse PRECISION" or "pyg csr fp32|half"."""
    generator = torch.Generator("cuda").manual_seed(0)
    n = graph.num_rows
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    x = torch.randn(n, FEATURES, device="cuda", generator=generator)
    y = torch.randint(0, CLASSES, (n,), device="cuda", generator=generator)
    train = torch.rand(n, device="cuda", generator=generator) < 0.66
    torch.manual_seed(0)
    kind, _, precision = name.partition(" ")
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    if kind == "gnnsparse":
        adj: Any = gnnsparse.prepare(graph, values="gcn", precision=precision, cache=False)
        model = GCN(FEATURES, HIDDEN, CLASSES, LAYERS, dropout=0.0).cuda()
        step = make_step(model, adj, x, y, train, precision)
    else:
        dtype = torch.float16 if precision == "csr half" else torch.float32
        adj = torch_csr(gnnsparse.prepare(graph, values="gcn", cache=False), dtype)
        model = PyGModel().cuda().to(dtype)
        step = make_step(model, adj, x.to(dtype), y, train, None)
    first = float(step())
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    graph = graph_like("reddit_like", scale=options.scale, device="cuda")
    names = ["pyg csr fp32", "pyg csr half", *(f"gnnsparse {p}" for p in ("fp32", "tf32", "bf16", "fp16"))]
    results = []
    for name in names:
        results.append(run(name, graph, options.repeats))
        r = results[-1]
        print(
            f"{name:16s} {r['ms']:8.2f} ms  {results[0]['ms'] / r['ms']:5.2f}x  "
            f"{r['peak_bytes'] / 1e9:6.2f} GB  loss {r['first_loss']:.3f} -> {r['last_loss']:.3f}",
            flush=True,
        )
    about = {"layers": LAYERS, "hidden": HIDDEN, "nodes": graph.num_rows, "nnz": graph.nnz}
    if options.out:
        write_json(options.out, {**describe_environment("cuda"), **about, "rows": results})


if __name__ == "__main__":
    main()
