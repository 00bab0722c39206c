"""Times attention on a GPU: on patterns with dense attention and FlexAttention, on graphs with chains.

    python -m benchmarks.attention --out benchmarks/results/attention.json
    python -m benchmarks.attention --graphs reddit_like --only-graphs --precision fp16 int8 fp8

Times are medians in milliseconds, forward and forward with backward, with random operands in fp16 and 64
features a head, in CUDA graphs if a call can be captured. On each pattern the output of the first head is
compared with the unfused chain's. FlexAttention is compiled and gets the pattern as a block mask. On graphs
there are two chains: this package's three operations, and cuSPARSE's SDDMM and SpMM (torch's sampled_addmm
and sparse matrix product, which exist in fp32 only) around this package's softmax. `--precision int8 fp8` has
graphs with K and V in 8 bits, too; `change` is how far their output is from that in fp16.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

import gnnsparse
from gnnsparse import masks
from gnnsparse.data import graph_like
from gnnsparse.runtime.environment import describe_environment, write_json
from gnnsparse.runtime.timing import measure

FEATURES = 64
GRAPHS = ("arxiv_like", "amazon_like", "reddit_like")
PRECISIONS = ("fp16", "int8", "fp8")
#: Rows and columns of a block of the block mask, and the share of blocks that are kept.
BLOCK, KEPT = 128, 0.094
_Call = Callable[..., torch.Tensor]
_Mask = Callable[..., torch.Tensor]


def operands(batch: int, heads: int, length: int) -> list[torch.Tensor]:
    return [
        torch.randn(batch, heads, length, FEATURES, device="cuda", dtype=torch.float16, requires_grad=True)
        for _ in range(3)
    ]


def times(call: _Call, qkv: list[torch.Tensor], repeats: int) -> dict[str, Any]:
    """Return the milliseconds of the forward pass, and of forward and backward pass together."""
    grad = torch.randn_like(call(*qkv))

    def both() -> None:
        for x in qkv:
            x.grad = None
        call(*qkv).backward(grad)

    with torch.no_grad():
        forward = measure(lambda: call(*qkv), "cuda", repeats=repeats, graph=True)
    backward = measure(both, "cuda", repeats=repeats, graph=True)
    timing = {"forward_timing": forward.method, "both_timing": backward.method}
    return {"forward_ms": forward.median, "both_ms": backward.median, **timing}


def patterns(length: int) -> Iterator[tuple[str, gnnsparse.SparseGraph, _Mask | None]]:
    """Yield names and patterns, and for FlexAttention functions that tell if a query attends to a key."""
    for sparsity in (0.9, 0.95, 0.98):
        yield f"vector-wise 8, {sparsity:.0%}", masks.vector_wise(length, sparsity, 8, seed=0), None
    yield "window +-128", masks.window(length, 128), lambda b, h, q, k: (q - k).abs() <= 128
    count = length // BLOCK
    kept = torch.rand(count, count, generator=torch.Generator().manual_seed(0)) < KEPT
    on_device = kept.cuda()
    see = lambda b, h, q, k: on_device[q // BLOCK, k // BLOCK]  # noqa: E731
    yield f"blocks of {BLOCK}, {KEPT:.1%} kept", masks.block(kept, BLOCK), see


def flex(see: _Mask, length: int) -> _Call:
    """Return torch's FlexAttention, compiled, with the pattern as a block mask."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(see, None, None, length, length, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v: compiled(q, k, v, block_mask=mask)


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


def on_patterns(batch: int, heads: int, length: int, repeats: int) -> Iterator[dict[str, Any]]:
    qkv, size = operands(batch, heads, length), {"batch": batch, "heads": heads, "length": length}

    def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v)

    peer = times(dense, qkv, repeats)
    yield {"pattern": "dense", "kernel": "cudnn", **size, **peer}
    for name, graph, see in patterns(length):
        a = gnnsparse.prepare(graph, precision="fp16", cache=False).cuda()
        found = times(lambda q, k, v, a=a: gnnsparse.attention(a, q, k, v), qkv, repeats)
        speed = {f"over_dense_{key}": peer[f"{key}_ms"] / found[f"{key}_ms"] for key in ("forward", "both")}
        error = {"error": relative_error(a, qkv)}
        yield {"pattern": name, "kernel": "gnnsparse", "nnz": a.nnz, **size, **found, **speed, **error}
        if see is not None:
            other = times(flex(see, length), qkv, repeats)
            speed = {
                f"ours_over_it_{key}": other[f"{key}_ms"] / found[f"{key}_ms"] for key in ("forward", "both")
            }
            yield {"pattern": name, "kernel": "flex_attention", "nnz": a.nnz, **size, **other, **speed}


def in_eight_bits(
    graph: gnnsparse.SparseGraph, a: gnnsparse.SparseOperand, precision: str, repeats: int
) -> dict[str, Any]:
    """Return times and errors of attention whose K and V have 8 bits, beside the operand `a` in fp16."""
    other, qkv = gnnsparse.prepare(graph, precision=precision, cache=False), operands(1, 1, a.shape[0])
    found = times(lambda q, k, v: gnnsparse.attention(other, q, k, v), qkv, repeats)
    with torch.no_grad():
        rounded, fine = (gnnsparse.attention(x, *qkv).float() for x in (other, a))
        change = float((rounded - fine).norm() / fine.norm())
    return {**found, "error": relative_error(other, qkv), "change": change}


def on_graph(name: str, precisions: list[str], repeats: int) -> Iterator[dict[str, Any]]:
    graph = graph_like(name, device="cuda")
    a = gnnsparse.prepare(graph, precision="fp16", cache=False)
    qkv = operands(1, 1, a.shape[0])
    row = {"pattern": name, "nnz": a.nnz, "batch": 1, "heads": 1, "length": a.shape[0]}
    for precision in precisions:
        if precision != "fp16":
            yield {**row, "kernel": f"gnnsparse {precision}", **in_eight_bits(graph, a, precision, repeats)}
    for fused in (None, False):
        call = lambda q, k, v, fused=fused: gnnsparse.attention(a, q, k, v, fused=fused)  # noqa: E731
        call(*qkv).sum().backward()  # makes the formats before memory is measured
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        found = times(call, qkv, repeats)
        peak = (torch.cuda.max_memory_allocated() - before) / 1e9
        kernel = "gnnsparse" if fused is None else "gnnsparse unfused"
        yield {**row, "kernel": kernel, **found, "peak_gb": peak, "error": relative_error(a, qkv)}
    chain = cusparse_chain(graph, a)
    with torch.no_grad():
        time = measure(lambda: chain(*qkv), "cuda", repeats=repeats, graph=True).median
    yield {**row, "kernel": "cusparse chain", "forward_ms": time}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS))
    parser.add_argument("--only-graphs", action="store_true", help="no patterns")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=["fp16"], help="of graphs")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs an NVIDIA GPU")
    rows: list[dict[str, Any]] = []
    for batch, heads in () if args.only_graphs else ((8, 8), (2, 4)):
        rows += on_patterns(batch, heads, args.length, args.repeats)
    for name in args.graphs:
        rows += on_graph(name, args.precision, args.repeats)
    for row in rows:
        print(
            ", ".join(
                f"{key} {value:.4g}" if isinstance(value, float) else f"{value}" for key, value in row.items()
            )
        )
    if args.out is not None:
        write_json(args.out, {**describe_environment(torch.device("cuda")), "rows": rows})


if __name__ == "__main__":
    main()
