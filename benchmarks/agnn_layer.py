"""Times one AGNNConv and PyG's: forward and backward on published graphs, on a CPU or a GPU.

    python -m benchmarks.agnn_layer --data DIR --out benchmarks/results/agnn_layer_cpu.json

DIR has planetoid/cora, planetoid/pubmed and heterophilous/tolokers.npz. All layers are called in turn, so
that other load on the machine affects all of them; times are medians. Outputs are compared with PyG's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch_geometric.nn import AGNNConv as PygAGNNConv

import gnnsparse
from benchmarks.script import device_of, record, script_parser
from gnnsparse.data import load_dataset
from gnnsparse.nn import AGNNConv

GRAPHS = {"cora": "planetoid/cora", "pubmed": "planetoid/pubmed", "tolokers": "heterophilous"}
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")


def seconds_of(call: Callable[[], torch.Tensor], device: torch.device) -> tuple[float, float, torch.Tensor]:
    """Return the seconds of a forward and of a backward pass, and the output."""

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    begin = now()
    y = call()
    middle = now()
    y.sum().backward()
    return middle - begin, now() - middle, y.detach()


def measure(
    graph: gnnsparse.SparseGraph, width: int, repeats: int, device: torch.device
) -> Iterator[dict[str, Any]]:
    edge_index = torch.stack([graph.csr.indices.long(), graph.csr.row_index()])
    x = torch.randn(graph.num_rows, width, device=device, requires_grad=True)
    layers: dict[str, tuple[torch.nn.Module, Any]] = {"pyg fp32": (PygAGNNConv().to(device), edge_index)}
    for precision in PRECISIONS:
        adj = gnnsparse.prepare(graph, values="gcn", precision=precision, cache=False)
        layers[f"gnnsparse {precision}"] = (AGNNConv().to(device), adj)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in layers}
    outputs: dict[str, torch.Tensor] = {}
    for turn in range(repeats + 1):
        for name, (layer, adj) in layers.items():
            *seconds, outputs[name] = seconds_of(lambda layer=layer, adj=adj: layer(x, adj), device)
            if turn:  # the first turn is the warm-up
                times[name].append((seconds[0], seconds[1]))
    want, base = outputs["pyg fp32"], 0.0
    for name, samples in times.items():
        forward, backward = (1e3 * statistics.median(part) for part in zip(*samples, strict=True))
        base = base or forward + backward
        error = float((outputs[name] - want).abs().max() / want.abs().max())
        yield {"name": name, "forward_ms": forward, "backward_ms": backward, "error": error,
               "speed": base / (forward + backward)}  # fmt: skip


def rows_of(options: Any, device: torch.device) -> Iterator[dict[str, Any]]:
    for name in options.graphs:
        graph = load_dataset(name, root=options.data / GRAPHS[name]).graph.to(device)
        for width in options.width:
            about = {"graph": name, "nodes": graph.num_rows, "edges": graph.nnz, "width": width}
            yield from ({**about, **row} for row in measure(graph, width, options.repeats, device))


def main() -> None:
    parser = script_parser(__doc__, device="auto")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--graphs", nargs="+", choices=tuple(GRAPHS), default=tuple(GRAPHS))
    parser.add_argument("--width", nargs="+", type=int, default=(16, 64))
    parser.add_argument("--repeats", type=int, default=11)
    options = parser.parse_args()
    device = device_of(options.device)
    record(rows_of(options, device), options.out, device)


if __name__ == "__main__":
    main()
