"""Times sums over messages of edges and their gradients, beside torch, on a GPU.

    python -m benchmarks.edge_functions --out benchmarks/results/edge_functions.json

The graph is like ogbn-arxiv, with 128 features. "gine" is the sum of relu(x_j + W a_ij) with 8 numbers of an
edge, "resgated" that of sigmoid(k_i + q_j) * v_j. Times are medians in CUDA graphs, of forward alone and of
forward with backward: of gnnsparse, of torch's operations, and of these compiled. "gather floor" is the time
in which the GPU reads the rows of x that the edges name.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

import gnnsparse
from benchmarks.graph_attention import DTYPES, times
from gnnsparse.data import graph_like
from gnnsparse.precision import dense_view
from gnnsparse.runtime.device import GATHER_FLOOR_WORDS, path
from gnnsparse.runtime.environment import describe_environment, write_json
from gnnsparse.runtime.timing import measure

WIDTH, NUMBERS = 128, 8


def functions(graph: gnnsparse.SparseGraph, a: gnnsparse.SparseOperand, dtype: torch.dtype) -> dict[str, Any]:
    """Return for each message the tensors with gradients, and functions of gnnsparse and of torch."""
    device, n = graph.csr.indices.device, graph.num_rows
    source, target = graph.csr.indices.long(), graph.csr.row_index()
    new: dict[str, Any] = {"device": device, "dtype": dtype}
    x, q, k = (torch.randn(n, WIDTH, requires_grad=True, **new) for _ in range(3))
    numbers = torch.randn(a.num_edges, NUMBERS, **new)
    weight = torch.randn(WIDTH, NUMBERS, requires_grad=True, **new)

    def reduced(messages: torch.Tensor) -> torch.Tensor:
        return torch.zeros(n, WIDTH, **new).index_add(0, target, messages)

    return {
        "gine": (
            [x, weight],
            lambda: gnnsparse.aggregate_edges(
                a, lambda x_j, e_ij, w: F.relu(x_j + F.linear(e_ij, w)), x_j=x, e_ij=numbers, w=weight
            ),
            lambda: reduced(F.relu(x[source] + F.linear(numbers, weight))),
        ),
        "resgated": (
            [x, q, k],
            lambda: gnnsparse.aggregate_edges(
                a, lambda k_i, q_j, v_j: torch.sigmoid(k_i + q_j) * v_j, k_i=k, q_j=q, v_j=x
            ),
            lambda: reduced(torch.sigmoid(k[target] + q[source]) * x[source]),
        ),
    }


def gather_floor(graph: gnnsparse.SparseGraph, x: torch.Tensor, repeats: int) -> float:
    """Measure the milliseconds in which the rows of x are read."""
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    out = torch.empty(processors, GATHER_FLOOR_WORDS, dtype=torch.int32, device=x.device)

    def call() -> None:
        stream = path().stream(x.device)
        path().native.cuda_gather_floor(graph.csr.indices, dense_view(x), WIDTH, out, stream)

    return measure(call, x.device, repeats=repeats, graph=True).median


def rows(device: torch.device, repeats: int) -> Iterator[dict[str, Any]]:
    graph = graph_like("arxiv_like", device=device)
    for precision, dtype in DTYPES.items():
        a = gnnsparse.prepare(graph, precision=precision, cache=False)
        for name, (leaves, own, eager) in functions(graph, a, dtype).items():
            calls: dict[str, Callable[[], torch.Tensor]] = {
                "gnnsparse": own, "torch": eager, "torch.compile": torch.compile(eager)
            }  # fmt: skip
            # A graph of gradients that is alive would keep `times` from capturing.
            with torch.no_grad():
                error = float((own() - eager()).abs().max() / eager().abs().max())
            for kind, call in calls.items():
                found = times(call, leaves, device, repeats)
                yield {"message": name, "precision": precision, "name": kind, "nnz": a.nnz, **found,
                       "error": error}  # fmt: skip
        x = torch.randn(graph.num_cols, WIDTH, device=device, dtype=dtype)
        yield {"precision": precision, "name": "gather floor", "forward_ms": gather_floor(graph, x, repeats)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=None, help="JSON file to write")
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    device = torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(0)
    results: dict[str, Any] = {**describe_environment(device), "functions": []}
    for row in rows(device, arguments.repeats):
        print(row, flush=True)
        results["functions"].append(row)
    if arguments.out is not None:
        write_json(arguments.out, results)


if __name__ == "__main__":
    main()
