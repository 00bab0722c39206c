"""Times products and training steps of odd widths beside those of the next whole sectors.

    python -m benchmarks.whole_rows --out benchmarks/results/whole_rows.json

"packed" is a product or a step with a contiguous X of the odd width, "apart" one with an X whose rows lie
apart to be whole sectors, as layers and data sets of this project have them, and "even" one of the next
width that fills whole sectors by itself. "before" is a step whose layers leave no room between rows. A step
is one of a GCN of two layers with 128 hidden features, whose parameters have the dtype in which X is stored.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F  # noqa: N812

import gnnsparse
from benchmarks.script import record, script_parser
from gnnsparse.data import graph_like
from gnnsparse.nn import GCNConv, linear
from gnnsparse.ops.dense import padded_rows, padded_width
from gnnsparse.runtime.timing import measure
from gnnsparse.sparse.operand import SparseOperand

HIDDEN = 128
#: Features and classes of Reddit, and of ogbn-products in the second layer alone.
STEPS = ((602, 41), (128, 47))


def step_of(a: SparseOperand, x: torch.Tensor, classes: int) -> Callable[[], object]:
    """Return a training step, forward and backward, without an optimizer."""
    torch.manual_seed(0)
    first, last = (
        GCNConv(*sizes).to(x.device, x.dtype) for sizes in ((x.shape[1], HIDDEN), (HIDDEN, classes))
    )
    labels = torch.randint(classes, (x.shape[0],), device=x.device)
    parameters = [*first.parameters(), *last.parameters()]

    def step() -> object:
        out = last(first(x, a).relu(), a)
        return torch.autograd.grad(F.cross_entropy(out.float(), labels), parameters)

    return step


def calls_of(a: SparseOperand, width: int, classes: int | None) -> dict[str, Callable[[], object]]:
    """Return products of `width` columns, with `classes` steps, by the name of how their rows lie."""
    dtype = a.precision.storage
    x, even = (
        torch.randn(a.shape[1], n, dtype=dtype, device=a.device) for n in (width, padded_width(width, dtype))
    )
    features = {"packed": x, "apart": padded_rows(x), "even": even}
    if classes is None:
        return {name: partial(gnnsparse.spmm, a, given) for name, given in features.items()}
    counts = {"packed": classes, "apart": classes, "even": padded_width(classes, dtype)}
    return {name: step_of(a, given, counts[name]) for name, given in features.items()}


def rows_of(options: Any, device: torch.device) -> Iterator[dict[str, Any]]:
    def timed(call: Callable[[], object]) -> float:
        return measure(call, device, repeats=options.repeats, graph=device.type == "cuda").median

    cases = [*((width, None) for width in options.widths), *STEPS]
    for graph, precision in itertools.product(options.graphs, options.precisions):
        made = graph_like(graph, scale=options.scale, device=device)
        a = gnnsparse.prepare(made, values="gcn", precision=precision, cache=False).to(device)
        for width, classes in cases:
            found = {name: timed(call) for name, call in calls_of(a, width, classes).items()}
            if classes is not None:
                with mock.patch.object(linear, "MANY_ROWS", sys.maxsize):
                    call = calls_of(a, width, classes)["packed"]
                    found["before"] = timed(call)
            case = f"A @ x, {width} columns" if classes is None else f"step, {width} -> {classes}"
            yield {"graph": graph, "precision": precision, "case": case, **found}


def shown(row: dict[str, Any]) -> str:
    even = row["even"]
    others = (name for name in ("before", "packed", "apart") if name in row)
    times = ", ".join(f"{name} {row[name]:.3f} ({row[name] / even:.2f})" for name in others)
    return f"{row['graph']:12s} {row['precision']:5s} {row['case']:20s}: {times}, even {even:.3f} ms"


def main(arguments: list[str] | None = None) -> None:
    parser = script_parser(__doc__, device="cuda")
    parser.add_argument("--graphs", nargs="+", default=["dd_like", "arxiv_like"])
    parser.add_argument("--precisions", nargs="+", default=["fp16", "tf32", "fp32"])
    parser.add_argument("--widths", nargs="+", type=int, default=[41, 130, 602])
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the graphs' nodes and edges")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    record(rows_of(options, device), options.out, device, show=shown, scale=options.scale)


if __name__ == "__main__":
    main()
