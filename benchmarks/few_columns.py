"""Times plans of SpMM with few columns: those of the csr kernel, and every kernel by its default plan.

    python -m benchmarks.few_columns --out benchmarks/results/few_columns.json
    python -m benchmarks.few_columns --graphs reddit_like --precisions fp32 --widths 7 --kernels

A product of a few columns is bound by other things than a wide one, and the cost model is fitted from 32
columns on. So `gnnsparse.plan.csr` has rules for it, which this benchmark is behind: "auto" is what the plan
chooses. With --kernels the default plans of all kernels are timed, else the lanes of a row, the limit of its
length and the sizes of groups are varied. X is stored in the precision of the product.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import torch

import gnnsparse
from benchmarks.script import record, script_parser
from gnnsparse.bench.candidates import KERNELS
from gnnsparse.data import graph_like
from gnnsparse.plan import Plan
from gnnsparse.plan.csr import CsrPlan
from gnnsparse.runtime.device import VECTOR_BYTES
from gnnsparse.runtime.timing import measure
from gnnsparse.sparse.kernel_cache import Product
from gnnsparse.sparse.operand import SparseOperand

ROW_LIMITS = (64, 128, 256, 1024)
GROUPS = ((32, 64), (32, 256), (128, 64), (128, 256), (128, 1024), (512, 1024))
NARROW = ((64, 256), (128, 256), (256, 256), (256, 1024), (512, 1024), (1024, 1024))
#: Columns up to which the kernel of very few columns is timed.
MOST_NARROW = 4


def csr_plans(width: int, itemsize: int) -> Iterator[CsrPlan]:
    """Yield plans of the csr kernel, all of which scale X before the product."""
    lanes = 1
    while lanes * VECTOR_BYTES < width * itemsize:
        lanes *= 2
    row_lanes = (1 << shift for shift in range(6))
    for own, limit in itertools.product((own for own in row_lanes if own >= lanes), ROW_LIMITS):
        yield CsrPlan(lanes, own, limit, prescale=True)
    for group, limit in GROUPS:
        yield CsrPlan(lanes, lanes, limit, group, prescale=True)
    for group, limit in NARROW if width <= MOST_NARROW else ():
        yield CsrPlan(row_limit=limit, group=group, prescale=True, narrow=True)


def kernel_plans(a: SparseOperand, width: int) -> Iterator[Plan]:
    """Yield the default plan of each kernel that can run the product."""
    problem = a.kernels.problem(Product("spmm", width))
    for name, make in KERNELS.items():
        if name != "auto" and (plan := make(problem)) is not None:
            yield plan


def timed(a: SparseOperand, x: torch.Tensor, plan: Plan | None, repeats: int) -> float:
    """Return the median milliseconds of a product; on a GPU in a CUDA graph of several."""
    on_gpu = x.device.type == "cuda"
    return measure(lambda: gnnsparse.spmm(a, x, plan=plan), x.device, repeats=repeats, graph=on_gpu).median


def measured(a: SparseOperand, width: int, kernels: bool, repeats: int) -> dict[str, Any]:
    x = torch.randn(a.shape[1], width, device=a.device).to(a.precision.storage)
    chosen = a.plan(width)
    plans = kernel_plans(a, width) if kernels else csr_plans(width, x.element_size())
    rows = [{**described(plan), "ms": timed(a, x, plan, repeats)} for plan in plans]
    return {"auto": {**described(chosen), "ms": timed(a, x, None, repeats)}, "plans": rows}


def described(plan: Plan) -> dict[str, Any]:
    fields = asdict(plan)
    del fields["reasons"]
    return {"kernel": plan.kernel, **fields}


def operand(name: str, scale: float, precision: str, values: str, device: torch.device) -> SparseOperand:
    graph = graph_like(name, scale=scale, device=device)
    if values == "random":
        graph = replace(graph, values=torch.rand(graph.nnz, device=device) + 0.5)
    normalization = "gcn" if values == "gcn" else None
    return gnnsparse.prepare(graph, values=normalization, precision=precision, cache=False).to(device)


def rows_of(options: Any, device: torch.device) -> Iterator[dict[str, Any]]:
    for graph, precision, values in itertools.product(options.graphs, options.precisions, options.values):
        a = operand(graph, options.scale, precision, values, device)
        for width in options.widths:
            found = measured(a, width, options.kernels, options.repeats)
            yield {"graph": graph, "precision": precision, "values": values, "width": width, **found}


def shown(row: dict[str, Any]) -> str:
    best = min(row["plans"], key=lambda plan: plan["ms"])
    text = ", ".join(f"{name}={value}" for name, value in best.items() if name != "ms")
    case = f"{row['graph']:14s} {row['precision']:5s} {row['values']:7s} {row['width']:3d} columns"
    return f"{case}: auto {row['auto']['ms']:.4f} ms, best {best['ms']:.4f} by {text}"


def main(arguments: list[str] | None = None) -> None:
    parser = script_parser(__doc__, device="cuda")
    parser.add_argument("--graphs", nargs="+", default=["arxiv_like", "amazon_like", "dd_like"])
    parser.add_argument("--precisions", nargs="+", default=["fp32", "fp16", "tf32"])
    parser.add_argument("--values", nargs="+", choices=("gcn", "random"), default=["gcn", "random"])
    parser.add_argument("--widths", nargs="+", type=int, default=[1, 2, 3, 4, 7, 8, 16])
    parser.add_argument("--kernels", action="store_true", help="the default plan of each kernel")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the graphs' nodes and edges")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    record(rows_of(options, device), options.out, device, show=shown, scale=options.scale)


if __name__ == "__main__":
    main()
