"""SpMM and SDDMM kernels of one GPU beside cuSPARSE, in one process, every result checked.

    python -m benchmarks.spmm --out benchmarks/results/spmm.json

Graphs are the generators' (gnnsparse.data.graph_like) with GCN-normalised weights. A peer is called
as a torch user would: cuSPARSE through `torch.sparse_csr_tensor @ x` with int32 indices.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import gnnsparse
from gnnsparse.bench.timing import measure
from gnnsparse.data import graph_like
from gnnsparse.environment import describe_environment, write_json
from gnnsparse.plan import csr_plan, window_plan

#: Measured ceilings of one H200 (TB/s): copy through DRAM, and random rows out of L2.
DRAM_TBS, GATHER_TBS = 4.31, 9.2
GRAPHS = ("reddit_like", "products_like", "amazon_like", "arxiv_like", "dd_like")


@dataclass(frozen=True)
class Case:
    """A kernel, how to call it, and how many rows of X it gathers."""

    kernel: str
    call: Callable[[], torch.Tensor]
    gathered: int


def exact_rows(a: gnnsparse.SparseOperand, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows of A x in float64, from the graph's own definition: D^-1/2 (A + I) D^-1/2."""
    csr = a.side.csr
    scale = csr.degrees.double().rsqrt()
    out = torch.zeros(rows.numel(), x.shape[1], dtype=torch.float64, device=x.device)
    for i, row in enumerate(rows.tolist()):
        columns = csr.indices[csr.indptr[row] : csr.indptr[row + 1]].long()
        out[i] = scale[row] * (scale[columns, None] * x[columns].double()).sum(0)
    return out


def error_of(a: gnnsparse.SparseOperand, x: torch.Tensor, y: torch.Tensor) -> float:
    """Relative error of 500 rows, the longest among them; NaN counts as infinite."""
    sample = torch.randint(0, a.shape[0], (500,), generator=torch.Generator().manual_seed(0))
    rows = torch.cat([sample.to(x.device), a.side.csr.degrees.topk(20).indices])
    exact = exact_rows(a, x, rows)
    error = float((y[rows].double() - exact).norm() / exact.norm())
    return error if error == error else float("inf")


def floor_ms(gathered: int, a: gnnsparse.SparseOperand, width: int, itemsize: int) -> float:
    """The larger of what must cross DRAM once and the gather out of L2."""
    row = width * itemsize
    dram = (a.shape[0] + a.shape[1]) * row + 4 * min(gathered, a.nnz)
    return 1e3 * max(dram / (DRAM_TBS * 1e12), gathered * row / (GATHER_TBS * 1e12))


def peer(a: gnnsparse.SparseOperand, dtype: torch.dtype) -> torch.Tensor:
    """The same matrix as a torch CSR tensor with int32 indices."""
    csr = a.side.csr
    scale = csr.degrees.double().rsqrt().float()
    values = scale[csr.row_index()] * scale[csr.indices.long()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls its CSR support a beta
        return torch.sparse_csr_tensor(csr.indptr.int(), csr.indices, values.to(dtype), a.shape)


def spmm_calls(a: gnnsparse.SparseOperand, x: torch.Tensor, sparse: torch.Tensor | None) -> list[Case]:
    """Everything that is compared for one operand and width."""
    cases = []
    if sparse is not None:
        cases.append(Case("cusparse", partial(torch.matmul, sparse, x), a.nnz))
    problem = a.side.problem("spmm", x.shape[1], False)
    cases.append(Case("csr", partial(gnnsparse.spmm, a, x, plan=csr_plan(problem)), a.nnz))
    if a.side.blocked is not None:
        call = partial(gnnsparse.spmm, a, x, plan=window_plan(problem))
        cases.append(Case("window", call, a.side.blocked.slots))
    return cases


def bench_precision(
    graph: gnnsparse.SparseGraph, precision: str, widths: list[int], repeats: int
) -> Iterator[dict[str, Any]]:
    a = gnnsparse.prepare(graph, values="gcn", precision=precision, cache=False)
    storage = a.precision.storage
    sparse = peer(a, storage) if precision in ("fp16", "fp32") else None
    for width in widths:
        x = torch.randn(graph.num_rows, width, device="cuda").to(storage)
        for case in spmm_calls(a, x, sparse):
            poison = torch.full_like(x, float("nan"))  # an element nobody writes shows
            del poison
            error = error_of(a, x, case.call())
            time = measure(case.call, "cuda", repeats=repeats)
            floor = floor_ms(case.gathered, a, width, storage.itemsize)
            yield {
                "op": "spmm", "width": width, "kernel": case.kernel, "precision": precision,
                "ms": time.median, "fastest_ms": time.fastest, "slowest_ms": time.slowest,
                "error": error, "floor_ms": floor, "of_floor": floor / time.median,
                "gflops": 2 * a.nnz * width / time.median / 1e6,
            }  # fmt: skip


def bench_graph(name: str, widths: list[int], repeats: int) -> Iterator[dict[str, Any]]:
    graph = graph_like(name, device="cuda")
    about = {"graph": name, "nodes": graph.num_rows, "nnz": graph.nnz}
    for precision in ("fp16", "bf16", "tf32", "fp32"):
        for result in bench_precision(graph, precision, widths, repeats):
            yield {**about, **result}
        torch.cuda.empty_cache()


def add_ratios(results: list[dict[str, Any]]) -> None:
    """Each time beside that of cuSPARSE with operands of the same size."""
    peers = {(r["graph"], r["width"], r["precision"]): r["ms"] for r in results if r["kernel"] == "cusparse"}
    for r in results:
        base = peers.get(
            (r["graph"], r["width"], {"bf16": "fp16", "tf32": "fp32"}.get(r["precision"], r["precision"]))
        )
        r["over_cusparse"] = base / r["ms"] if base else None


def print_table(results: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("graph", "N", "kernel", "precision", "ms", "x cuSPARSE", "of floor", "error")
    for r in results:
        ratio = f"{r['over_cusparse']:.2f}" if r["over_cusparse"] else ""
        table.add_row(
            r["graph"], str(r["width"]), r["kernel"], r["precision"], f"{r['ms']:.3f}", ratio,
            f"{r['of_floor']:.2f}", f"{r['error']:.1e}",
        )  # fmt: skip
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS), choices=GRAPHS)
    parser.add_argument("--widths", nargs="+", type=int, default=[64, 128, 256])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    for name in options.graphs:
        results += bench_graph(name, options.widths, options.repeats)
        torch.cuda.empty_cache()
    add_ratios(results)
    print_table(results)
    if options.out:
        write_json(options.out, {**describe_environment("cuda"), "rows": results})


if __name__ == "__main__":
    main()
