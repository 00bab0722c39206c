"""A graph whose edges are an input of a program of torch.export, in which no operand can be made.

Layers take it as they take an operand. What they compute becomes an operator of torch.library, which gets the
edges with the other tensors, and finds or makes the operand when the program runs.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, NoReturn

import torch

from gnnsparse import ops
from gnnsparse.errors import bad_value, check_tensor
from gnnsparse.nn.adjacency import ContentMemo
from gnnsparse.ops.dispatch import register
from gnnsparse.precision import Precision
from gnnsparse.preprocess.api import prepare
from gnnsparse.runtime.functorch import outside
from gnnsparse.sparse.operand import SparseOperand

_memo = ContentMemo()


def graph_of(
    edge_index: torch.Tensor, edge_weight: torch.Tensor | None, nodes: int, values: str | None, precision: str
) -> SparseOperand:
    """Return the operand of edges: one that was made of equal ones lately, or a TracedGraph in a trace.

    Args:
        edge_index: int64 [2, edges], sources over targets.
        edge_weight: floating-point [edges], or None for 1 each.
        nodes: number of nodes.
        values, precision: the arguments of `prepare`, whose errors this raises.
    """
    if torch.compiler.is_compiling():
        return TracedGraph(edge_index, edge_weight, nodes, values, precision)
    check_tensor("edge_index", edge_index, dtypes=(torch.int64,), shape=(2, None))
    how: dict[str, Any] = {"values": values, "precision": precision, "cache": False}
    if edge_weight is not None:
        how["edge_weight" if values else "values"] = edge_weight.detach()

    def make() -> SparseOperand:
        with outside():
            return prepare(edge_index, num_nodes=nodes, **how)

    return _memo.find([edge_index, edge_weight], (nodes, values, precision), make)


class TracedGraph(SparseOperand):
    """The operand that `graph_of` makes when the program runs, of which a trace knows the size alone.

    Products, `attention` and `graph_attention` can be traced with it; what has a number for each nonzero
    can't, and raises a ValueError.
    """

    def __init__(
        self, edge_index: torch.Tensor, edge_weight: torch.Tensor | None, nodes: int, values: str | None,
        precision: str,
    ) -> None:  # fmt: skip
        self._given = edge_index, edge_weight, nodes, values, precision
        loops = values == "gcn"
        self._prepared: Any = SimpleNamespace(
            precision=Precision.parse(precision), device=edge_index.device, normalization=values,
            added_loops=1.0 if loops else None, has_self_loops=loops,
        )  # fmt: skip
        self.operations = self

    def _refuse(self, *_: Any) -> NoReturn:
        accepted = "sums and means of neighbours, and attention over them"
        bad_value("edge_index", f"is an input of a program, which is traced; accepted: {accepted}")

    T: Any = property(_refuse)
    whole: Any = property(_refuse)
    nnz: Any = property(_refuse)
    kernels: Any = property(_refuse)
    _kernels: Any = property(_refuse)
    sddmm = edge_softmax = of_edges = _refuse

    @property
    def shape(self) -> tuple[int, int]:
        """(nodes, nodes), which may be symbolic."""
        return self._given[2], self._given[2]

    @property
    def num_edges(self) -> int:
        """Number of edges given, which may be symbolic."""
        return self._given[0].shape[1]

    def spmm(self, x: torch.Tensor, values: torch.Tensor | None, reduce: str, *_: Any) -> torch.Tensor:
        """Trace a product, as `gnnsparse.spmm` computes it."""
        if values is not None or reduce in ("max", "min"):
            self._refuse()
        return self._call("spmm", {"x": x}, {"reduce": reduce})

    def attention(self, q: Any, k: Any, v: Any, options: dict[str, Any]) -> torch.Tensor:
        """Trace attention, as `gnnsparse.attention` computes it."""
        return self._call("attention", {"v": v, "q": q, "k": k}, options)

    def graph_attention(self, q: Any, k: Any, v: Any, options: dict[str, Any]) -> torch.Tensor:
        """Trace attention, as `gnnsparse.graph_attention` computes it."""
        return self._call("graph_attention", {"v": v, "q": q, "k": k}, options)

    def _call(self, name: str, tensors: dict[str, torch.Tensor], options: dict[str, Any]) -> torch.Tensor:
        if options.get("return_weights") or options.get("plan") is not None:
            self._refuse()
        tensors = tensors | {key: t for key, t in options.items() if isinstance(t, torch.Tensor)}
        rest = {key: value for key, value in options.items() if key not in tensors}
        edge_index, edge_weight, nodes, values, precision = self._given
        call = json.dumps({"operation": name, "tensors": [*tensors], "options": rest})
        return torch.ops.gnnsparse.of_edges(
            [*tensors.values()], edge_index, edge_weight, nodes, values, precision, call
        )


def _run(
    tensors: list[torch.Tensor], edge_index: torch.Tensor, edge_weight: torch.Tensor | None, nodes: int,
    values: str | None, precision: str, call: str,
) -> torch.Tensor:  # fmt: skip
    how = json.loads(call)
    operand = graph_of(edge_index, edge_weight, nodes, values, precision)
    named = dict(zip(how["tensors"], tensors, strict=True))
    out: torch.Tensor = getattr(ops, how["operation"])(operand, **named, **how["options"])
    return out.contiguous()  # compiled code relies on the strides of `_fake`


def _fake(tensors: list[torch.Tensor], *_: Any) -> torch.Tensor:
    return tensors[0].new_empty(tensors[0].shape)  # of a square matrix, what it maps has the shape of x or v


register(
    "of_edges(Tensor[] tensors, Tensor edge_index, Tensor? edge_weight, SymInt nodes, str? values, "
    "str precision, str call) -> Tensor",
    _run,
    _fake,
)
