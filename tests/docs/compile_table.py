"""The table of docs/api/compile.md: what torch.compile makes of each operation and layer.

python -m tests.docs.compile_table    measures it, and writes it into the page
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import gnnsparse
from gnnsparse import nn
from gnnsparse.bench.render import markdown_table
from gnnsparse.nn.functional import pool_graphs
from gnnsparse.patterns import masks
from gnnsparse.testing import random_graph, with_gradients
from tests.docs.blocks import ROOT

PAGE = ROOT / "docs" / "api" / "compile.md"
COLUMNS = ("forward", "backward", "other batch", "other width", "other graph")
WHOLE, PIECES, NEVER = "whole", "in pieces", "no"
ONCE, AGAIN, NONE = "same program", "compiled again", "n/a"
NODES, WIDTH = 24, 8
_BEGIN, _END = "<!-- compile table -->\n", "<!-- end of the table -->"


@dataclass(frozen=True)
class Case:
    """A row of the table.

    `call` gets an operand and `inputs` tensors, of `NODES` rows, or batches of those where `batched`. Where
    `width` is false the width of features is that of a layer's weights; where `graph` is false, the graph
    belongs to the layer.
    """

    call: Callable[..., torch.Tensor]
    inputs: int = 1
    batched: bool = False
    width: bool = True
    graph: bool = True
    edges: bool = False
    values: str | None = "gcn"


def _attention(a: gnnsparse.SparseOperand, *tensors: torch.Tensor, **options: Any) -> torch.Tensor:
    q, k, v = (x.unflatten(-1, (2, -1)).transpose(-2, -3) for x in tensors)
    out: torch.Tensor = gnnsparse.attention(a, q, k, v, **options)
    return out


def _graph_attention(score: str) -> Case:
    def call(a: gnnsparse.SparseOperand, *tensors: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = gnnsparse.graph_attention(
            a, *(x.unflatten(-1, (2, -1)) for x in tensors), score=score
        )
        return out

    return Case(call, inputs=3)


def _layer(layer: torch.nn.Module, **options: Any) -> Case:
    return Case(lambda a, x: layer(x, a), width=False, **options)


def _encoder() -> Case:
    torch.manual_seed(0)
    pattern = masks.window(NODES, 2)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True, pattern=pattern)
    return Case(lambda a, x: layer(x), batched=True, width=False, graph=False)


def _edge_layer(layer: torch.nn.Module) -> Case:
    def call(a: gnnsparse.SparseOperand, x: torch.Tensor) -> torch.Tensor:
        out = layer(x, a, x.new_ones(a.num_edges, 4))
        return out[0] if isinstance(out, tuple) else out  # the others return the features of edges too

    return Case(call, width=False, values=None)


def _accelerated() -> Case:
    from torch_geometric.nn import GCNConv

    from gnnsparse.interop.pyg import accelerate

    return _layer(accelerate(GCNConv(WIDTH, 4), convert="always"), edges=True)


def _product(**options: Any) -> Case:
    return Case(lambda a, x: gnnsparse.spmm(a, x, **options))


_PTR = torch.tensor([0, 5, 5, NODES])
#: The rows, made when they are measured.
CASES: dict[str, Callable[[], Case]] = {
    "`A @ x`": lambda: Case(lambda a, x: a @ x, batched=True),
    "`A.T @ x`": lambda: Case(lambda a, x: a.T @ x, batched=True),
    '`spmm(A, x, reduce="mean")`': lambda: _product(reduce="mean"),
    '`spmm(A, x, reduce="max")`': lambda: _product(reduce="max"),
    "`spmm(A, x, values)`, `sddmm(A, q, k)`": lambda: Case(
        lambda a, x, y: gnnsparse.spmm(a, x, gnnsparse.sddmm(a, x, y)), inputs=2
    ),
    "`edge_softmax(A, scores)`": lambda: Case(
        lambda a, x, y: gnnsparse.edge_softmax(a, gnnsparse.sddmm(a, x, y)), inputs=2
    ),
    "`attention(A, q, k, v)`": lambda: Case(_attention, inputs=3, batched=True),
    '`graph_attention(A, q, k, v, score="dot")`': lambda: _graph_attention("dot"),
    '`graph_attention(A, q, k, v, score="cosine")`': lambda: _graph_attention("cosine"),
    "`aggregate_edges(A, message, x_j=x)`": lambda: Case(
        lambda a, x: gnnsparse.aggregate_edges(a, lambda x_j: x_j.tanh(), x_j=x)
    ),
    "`nn.pool_graphs(x, ptr)`": lambda: Case(lambda a, x: pool_graphs(x, _PTR), graph=False),
    "`nn.GCNConv`": lambda: _layer(nn.GCNConv(WIDTH, 4)),
    "`nn.GCNConv`, with an `edge_index`": lambda: _layer(nn.GCNConv(WIDTH, 4), edges=True),
    "`nn.GraphConv`": lambda: _layer(nn.GraphConv(WIDTH, 4), values=None),
    "`nn.SAGEConv`": lambda: _layer(nn.SAGEConv(WIDTH, 4), values="mean"),
    "`nn.GINConv`": lambda: _layer(nn.GINConv(torch.nn.Linear(WIDTH, 4)), values=None),
    "`nn.GATConv`": lambda: _layer(nn.GATConv(WIDTH, 4)),
    "`nn.GATConv`, with an `edge_index`": lambda: _layer(nn.GATConv(WIDTH, 4), edges=True),
    "`nn.GATv2Conv`": lambda: _layer(nn.GATv2Conv(WIDTH, 4)),
    "`nn.TransformerConv`": lambda: _layer(nn.TransformerConv(WIDTH, 4)),
    "`nn.AGNNConv`": lambda: _layer(nn.AGNNConv()),
    "`nn.GINEConv`": lambda: _edge_layer(nn.GINEConv(torch.nn.Linear(WIDTH, 4), edge_dim=4)),
    "`nn.ResGatedGraphConv`": lambda: _edge_layer(nn.ResGatedGraphConv(WIDTH, 4, edge_dim=4)),
    "`nn.GatedGCNConv`": lambda: _edge_layer(nn.GatedGCNConv(WIDTH, 4, 4)),
    "`nn.PNAConv`": lambda: _edge_layer(
        nn.PNAConv(WIDTH, 4, ["mean", "max", "std"], ["identity"], torch.ones(2), edge_dim=4)
    ),
    "`nn.InteractionBlock`": lambda: _edge_layer(nn.InteractionBlock(WIDTH, 4)),
    "`nn.TransformerEncoderLayer`": _encoder,
    "`accelerate(GCNConv)`, with an `edge_index`": _accelerated,
}


def _graph(case: Case, seed: int = 1) -> Any:
    """Return the operand, or the edges, of one of several graphs."""
    if case.edges:
        chosen = torch.randperm(NODES**2, generator=torch.Generator().manual_seed(seed))[: 60 + seed]
        return torch.stack([chosen // NODES, chosen % NODES])
    graph = random_graph(NODES, NODES, 0.2, seed=seed, weighted=False)
    a = gnnsparse.prepare(graph, values=case.values, cache=False)
    _ = a.T, a.has_self_loops  # what gradients and layers read, which can't be traced
    return a


def _inputs(case: Case, batch: int = 2, width: int = WIDTH) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(width + batch)
    shape = (batch, NODES, width) if case.batched else (NODES, width)
    return [torch.randn(shape, generator=generator) for _ in range(case.inputs)]


def _agree(compiled: Any, case: Case, a: Any, inputs: list[torch.Tensor], backward: bool = True) -> None:
    """Raise AssertionError unless the compiled call gives the results of the call, and its gradients."""
    if backward:
        results = [with_gradients(lambda *x, f=f: f(a, *x), inputs) for f in (compiled, case.call)]
    else:
        results = [[f(a, *inputs)] for f in (compiled, case.call)]
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


def _support(case: Case) -> list[str]:
    """Return whether a call, and one with gradients, is compiled: as one graph of operations or in pieces."""
    words = []
    for backward in (False, True):
        words.append(NEVER)
        for whole, word in ((True, WHOLE), (False, PIECES)):
            compiled = torch.compile(case.call, fullgraph=whole, backend="aot_eager")
            try:
                _agree(compiled, case, _graph(case), _inputs(case), backward)
            except torch._dynamo.exc.TorchDynamoException:
                continue
            words[-1] = word
            break
    return words


def _reuse(case: Case) -> list[str]:
    """Return whether the program that was compiled for one call serves others; all give what they should."""
    compiled, a = torch.compile(case.call, backend="aot_eager", dynamic=True), _graph(case)
    _agree(compiled, case, a, _inputs(case))
    others = [
        (a, _inputs(case, batch=5)) if case.batched else None,
        (a, _inputs(case, width=12)) if case.width else None,
        (_graph(case, seed=2), _inputs(case)) if case.graph else None,
    ]
    words = []
    with torch._dynamo.config.patch(error_on_recompile=True):
        for other in others:
            words.append(NONE if other is None else ONCE)
            try:
                _ = other and _agree(compiled, case, *other)
            except torch._dynamo.exc.RecompileError:
                words[-1] = AGAIN
    for other, word in zip(others, words, strict=True):
        if other and word == AGAIN:
            _agree(compiled, case, *other)
    return words


def measure(name: str) -> list[str]:
    """Return the cells of a row."""
    words = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's tools and PyG warn about themselves
        case = CASES[name]()
        for part in (_support, _reuse):
            torch._dynamo.reset()
            words += part(case)
    return words


def written() -> dict[str, list[str]]:
    """Return the rows of the page by their names."""
    lines = PAGE.read_text().split(_BEGIN)[1].split(_END)[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    return {name: cells for name, *cells in rows}


def main() -> int:
    """Write the table into the page."""
    rows = [[name, *measure(name)] for name in CASES]
    before, rest = PAGE.read_text().split(_BEGIN)
    table = markdown_table(["", *COLUMNS], rows)
    PAGE.write_text(f"{before}{_BEGIN}{table}\n\n{_END}{rest.split(_END)[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
