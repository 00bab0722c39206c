"""Times sums over messages of edges and their gradients, beside torch, on a GPU.

    python -m benchmarks.edge_functions --out benchmarks/results/edge_functions.json

The graph is like ogbn-arxiv, with 128 features. "gine" is the sum of relu(x_j + W a_ij) with 8 numbers of an
edge, "resgated" that of sigmoid(k_i + q_j) * v_j. Times are medians in CUDA graphs, of forward alone and of
forward with backward: of gnnsparse, of torch's operations, and of these compiled. "gather floor" is the time
in which the GPU reads the rows of x that the edges name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

import gnnsparse
from benchmarks.graph_attention import DTYPES, times
from benchmarks.script import device_of, record, script_parser
from gnnsparse.bench.kernels import gather_floor
from gnnsparse.data import graph_like

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
        floor = gather_floor(graph.csr.indices, x, WIDTH, repeats, graph=True)
        yield {"precision": precision, "name": "gather floor", "forward_ms": floor}


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    arguments, device = parser.parse_args(), device_of("cuda")
    torch.manual_seed(0)
    record(rows(device, arguments.repeats), arguments.out, device, "functions")


if __name__ == "__main__":
    main()
