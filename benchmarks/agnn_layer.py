"""Times one AGNNConv and PyG's: forward and backward on published graphs, on a CPU or a GPU.

    python -m benchmarks.agnn_layer --data DIR --out benchmarks/results/agnn_layer_cpu.json

DIR has planetoid/cora, planetoid/pubmed and heterophilous/tolokers.npz. All layers are called in turn, so
that other load on the machine affects all of them; times are medians. Outputs are compared with PyG's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch_geometric.nn import AGNNConv as PygAGNNConv

import gnnsparse
from gnnsparse.data import load_dataset
from gnnsparse.nn import AGNNConv
from gnnsparse.runtime.environment import describe_environment, write_json
from gnnsparse.train import resolve_device

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
) -> list[dict[str, Any]]:
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
    want = outputs["pyg fp32"]
    rows = []
    for name, samples in times.items():
        forward, backward = (1e3 * statistics.median(part) for part in zip(*samples, strict=True))
        error = float((outputs[name] - want).abs().max() / want.abs().max())
        rows.append({"name": name, "forward_ms": forward, "backward_ms": backward, "error": error})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--graphs", nargs="+", choices=tuple(GRAPHS), default=tuple(GRAPHS))
    parser.add_argument("--width", nargs="+", type=int, default=(16, 64))
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.empty(0, device=resolve_device(options.device)).device
    header, rows = describe_environment(device), []
    for name in options.graphs:
        graph = load_dataset(name, root=options.data / GRAPHS[name]).graph.to(device)
        for width in options.width:
            about = {"graph": name, "nodes": graph.num_rows, "edges": graph.nnz, "width": width}
            found = measure(graph, width, options.repeats, device)
            base = found[0]["forward_ms"] + found[0]["backward_ms"]
            for row in found:
                row["speed"] = base / (row["forward_ms"] + row["backward_ms"])
                print(
                    f"{name:9s} {width:3d}  {row['name']:15s} {row['forward_ms']:9.2f} + "
                    f"{row['backward_ms']:9.2f} ms  {row['speed']:6.2f}x  error {row['error']:.1e}",
                    flush=True,
                )
            rows += [{**about, **row} for row in found]
    if options.out:
        write_json(options.out, {**header, "rows": rows})


if __name__ == "__main__":
    main()
