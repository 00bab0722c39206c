"""Times attention on graphs on a GPU beside chains of separate operations.

    python -m benchmarks.attention --out benchmarks/results/attention.json
    python -m benchmarks.attention --graphs reddit_like --precision fp16 int8 fp8

Times are medians in milliseconds, forward and forward with backward, with random operands in fp16 and 64
features a head, in CUDA graphs if a call can be captured. There are two chains: this package's three
operations, and cuSPARSE's SDDMM and SpMM (torch's sampled_addmm and sparse matrix product, which exist in
fp32 only) around this package's softmax. `--precision int8 fp8` has K and V in 8 bits, too; `change` is how
far their output is from that in fp16. On patterns of Transformers `attention_peers` times attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

import gnnsparse
from benchmarks.graph_attention import times
from benchmarks.script import record, script_parser
from gnnsparse.data import graph_like
from gnnsparse.runtime.timing import measure

FEATURES = 64
GRAPHS = ("arxiv_like", "amazon_like", "reddit_like")
PRECISIONS = ("fp16", "int8", "fp8")
_Call = Callable[..., torch.Tensor]


def operands(length: int) -> list[torch.Tensor]:
    size = 1, 1, length, FEATURES
    return [torch.randn(size, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(3)]


def cusparse_chain(graph: gnnsparse.SparseGraph, a: gnnsparse.SparseOperand) -> _Call:
    """Return attention of one head in fp32: cuSPARSE's SDDMM, this package's softmax, cuSPARSE's SpMM."""
    csr, size = graph.csr, (graph.csr.rows, graph.csr.cols)
    indptr = csr.indptr.int()  # torch copies offsets of other dtypes in every call

    def sparse(values: torch.Tensor) -> torch.Tensor:
        return torch.sparse_csr_tensor(indptr, csr.indices, values, size, check_invariants=False)

    pattern = sparse(torch.zeros(graph.nnz, device="cuda"))

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x[0, 0].float() for x in (q, k, v))
        scores = torch.sparse.sampled_addmm(pattern, q, k.T, beta=0.0, alpha=FEATURES**-0.5)
        return (sparse(gnnsparse.edge_softmax(a, scores.values())) @ v)[None, None]

    return call


def relative_error(a: gnnsparse.SparseOperand, qkv: list[torch.Tensor]) -> float:
    """Return the relative error of the first head against the unfused chain, in the Frobenius norm."""
    with torch.no_grad():
        q, k, v = (x[:1, :1] for x in qkv)
        want = gnnsparse.attention(a, q, k, v, fused=False).float()
        return float((gnnsparse.attention(a, q, k, v).float() - want).norm() / want.norm())


def in_eight_bits(
    graph: gnnsparse.SparseGraph, a: gnnsparse.SparseOperand, precision: str, repeats: int
) -> dict[str, Any]:
    """Return times and errors of attention whose K and V have 8 bits, beside the operand `a` in fp16."""
    other, qkv = gnnsparse.prepare(graph, precision=precision, cache=False), operands(a.shape[0])
    found = times(lambda: gnnsparse.attention(other, *qkv), qkv, a.device, repeats)
    with torch.no_grad():
        rounded, fine = (gnnsparse.attention(x, *qkv).float() for x in (other, a))
        change = float((rounded - fine).norm() / fine.norm())
    return {**found, "error": relative_error(other, qkv), "change": change}


def on_graph(name: str, precisions: list[str], repeats: int) -> Iterator[dict[str, Any]]:
    graph = graph_like(name, device="cuda")
    a = gnnsparse.prepare(graph, precision="fp16", cache=False)
    qkv = operands(a.shape[0])
    row = {"pattern": name, "nnz": a.nnz, "batch": 1, "heads": 1, "length": a.shape[0]}
    for precision in precisions:
        if precision != "fp16":
            yield {**row, "kernel": f"gnnsparse {precision}", **in_eight_bits(graph, a, precision, repeats)}
    for fused in (None, False):
        call = partial(gnnsparse.attention, a, *qkv, fused=fused)
        call().sum().backward()  # makes the formats before memory is measured
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        found = times(call, qkv, a.device, repeats)
        peak = (torch.cuda.max_memory_allocated() - before) / 1e9
        kernel = "gnnsparse" if fused is None else "gnnsparse unfused"
        yield {**row, "kernel": kernel, **found, "peak_gb": peak, "error": relative_error(a, qkv)}
    chain = cusparse_chain(graph, a)
    with torch.no_grad():
        time = measure(lambda: chain(*qkv), "cuda", repeats=repeats, graph=True).median
    yield {**row, "kernel": "cusparse chain", "forward_ms": time}


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS))
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=["fp16"])
    parser.add_argument("--repeats", type=int, default=10)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs an NVIDIA GPU")
    rows = (row for name in args.graphs for row in on_graph(name, args.precision, args.repeats))
    record(rows, args.out, "cuda")


if __name__ == "__main__":
    main()
