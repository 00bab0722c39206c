"""Times training steps of an interaction block beside the same block of PyG, eager and compiled, on a GPU.

    python -m benchmarks.edge_network --out benchmarks/results/edge_network.json

The mesh is like a weather model's processor, with 256 features of nodes, edges and between layers. A step is
the block and the gradients of its inputs and parameters, for given gradients of its results. All blocks have
the same numbers, in 16 bits or, for "autocast", in float32 under torch.autocast; "torch.compile" is of PyG's.
"ms" is a step's median, "captured_ms" in a CUDA graph, "step_gb" the memory it takes besides its arguments.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch_geometric.nn import MessagePassing

import gnnsparse
from benchmarks.graph_attention import mesh
from benchmarks.script import device_of, record, script_parser
from gnnsparse.nn import InteractionBlock
from gnnsparse.runtime.timing import CaptureError, measure

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
WIDTH = 256


class PygBlock(MessagePassing):
    """The block as PyG's users write it, with the parameters of ours."""

    def __init__(self, block: InteractionBlock) -> None:
        super().__init__(aggr="sum")
        self.edge_mlp, self.node_mlp = block.edge_mlp, block.node_mlp

    def forward(
        self, x: torch.Tensor, edge_index: torch.Tensor, e: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        source, target = edge_index
        e = e + self.edge_mlp(torch.cat([e, x[target], x[source]], dim=1))
        return x + self.node_mlp(torch.cat([x, self.propagate(edge_index, e=e)], dim=1)), e

    def message(self, e: torch.Tensor) -> torch.Tensor:
        return e


def blocks(graph: gnnsparse.SparseGraph, precision: str) -> Iterator[tuple[str, Any, Any, torch.dtype]]:
    """Yield names, blocks, what they take for the graph, and the dtype of their numbers."""
    device, dtype = graph.csr.indices.device, DTYPES[precision]
    edge_index = torch.stack([graph.csr.indices.long(), graph.csr.row_index()])
    operand = gnnsparse.prepare(graph, precision=precision, cache=False)
    torch.manual_seed(0)
    block = InteractionBlock(WIDTH, WIDTH).to(device)
    half = copy.deepcopy(block).to(dtype)
    half.precision = gnnsparse.Precision.parse(precision)
    yield "gnnsparse", half, operand, dtype
    for name, of, storage in (("pyg", half, dtype), ("pyg autocast", block, torch.float32)):
        theirs = PygBlock(of)
        yield name, theirs, edge_index, storage
        torch._dynamo.reset()
        yield f"{name}, torch.compile", torch.compile(theirs), edge_index, storage


def step_of(
    block: Any, adj: Any, inputs: list[torch.Tensor], grads: list[torch.Tensor], autocast: torch.dtype | None
) -> Callable[[], list[torch.Tensor]]:
    leaves = [*inputs, *block.parameters()]

    def step() -> list[torch.Tensor]:
        with torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
            results = block(inputs[0], adj, inputs[1])
        given = [g.to(r.dtype) for g, r in zip(grads, results, strict=True)]
        return [*(r.detach() for r in results), *torch.autograd.grad(results, leaves, given)]

    return step


def forward_of(block: Any, adj: Any, inputs: list[torch.Tensor], autocast: torch.dtype | None) -> Any:
    def forward() -> None:
        with torch.no_grad(), torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
            block(inputs[0], adj, inputs[1])

    return forward


def rows(device: torch.device, repeats: int) -> Iterator[dict[str, Any]]:
    graph = mesh("processor", device)
    nodes, edges = graph.num_rows, graph.csr.nnz
    generator = torch.Generator(device=device).manual_seed(1)
    wide = [
        torch.randn(count, WIDTH, dtype=torch.float32, device=device, generator=generator)
        for count in (nodes, edges, nodes, edges)
    ]
    for precision in DTYPES:
        first: list[torch.Tensor] = []
        for name, block, adj, dtype in blocks(graph, precision):
            autocast = DTYPES[precision] if "autocast" in name else None
            inputs = [t.to(dtype).requires_grad_() for t in wide[:2]]
            step = step_of(block, adj, inputs, [t.to(dtype) for t in wide[2:]], autocast)
            found = step()
            first = first or [t.float().cpu() for t in found]
            error = max(
                float((one - t.float().cpu()).abs().max() / one.abs().max())
                for one, t in zip(first, found, strict=True)
            )
            del found
            for _ in range(5):
                step()
            torch.cuda.synchronize(device)
            before = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
            step()
            peak = (torch.cuda.max_memory_allocated(device) - before) / 1e9
            row = {"precision": precision, "name": name, "edges": edges, "width": WIDTH, "step_gb": peak,
                   "error": error, "ms": measure(step, device, repeats=repeats).median}  # fmt: skip
            row["forward_ms"] = measure(
                forward_of(block, adj, inputs, autocast), device, repeats=repeats
            ).median
            try:
                row["captured_ms"] = measure(step, device, repeats=repeats, graph=True).median
            except CaptureError as problem:
                row["captured_ms"] = str(problem)
            yield row


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    arguments, device = parser.parse_args(), device_of("cuda")
    record(rows(device, arguments.repeats), arguments.out, device, "steps")


if __name__ == "__main__":
    main()
