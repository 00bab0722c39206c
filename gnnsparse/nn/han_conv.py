"""The layer of heterogeneous graph attention networks, found by `gnnsparse.nn`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import check_flag, check_number, check_share
from gnnsparse.nn.adjacency import GraphLayer
from gnnsparse.nn.edges import attend, glorot_
from gnnsparse.nn.hgt_conv import ModulesOfTypes, check_typed, key_of, typed_counts, typed_edges
from gnnsparse.precision import Precision
from gnnsparse.sparse.typed import Relation, TypedGraph

__all__ = ["HANConv"]


class HANConv(GraphLayer):
    """y_i = sum_r b_r relu(sum_j p_ijr W x_j), p the softmax over j in each relation, b over relations.

    "Heterogeneous Graph Attention Network" (Wang et al. 2019), equations 1 to 9; a relation stands for a
    meta-path. The score of an edge is leaky_relu(a_r . W x_j + c_r . W x_i) in each head; W is of the type of
    the node. All relations are one launch, over rows of pairs (relation, target). b is the softmax of
    q . mean_i tanh(K y_ir + k) over the relations that end at a type. Arguments, parameters and `state_dict`
    are those of PyG's HANConv, and outputs agree with it: `q` [1, out]; `k_lin` [out, out] and `proj.<type>`
    [out, in] with biases; `lin_src.<relation>` and `lin_dst.<relation>` [1, heads, out / heads].

    Args:
        in_channels: the argument of HGTConv, as are out_channels and metadata.
        out_channels: features of a node in the outputs.
        metadata: the types of nodes, and the relations.
        heads: number of heads.
        negative_slope: slope of the leaky ReLU for negative scores.
        dropout: the argument of GATConv.
        precision: the argument of GCNConv; the errors are those of HGTConv.
    """

    in_channels: dict[str, int]

    def __init__(
        self,
        in_channels: int | dict[str, int],
        out_channels: int,
        metadata: tuple[list[str], list[Relation]],
        heads: int = 1,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        *,
        precision: Precision | str | None = None,
    ) -> None:
        super().__init__(precision)
        self.in_channels, relations = check_typed(in_channels, out_channels, heads, metadata)
        self.metadata, self.out_channels, self.heads = metadata, out_channels, heads
        self.negative_slope = check_number("negative_slope", negative_slope)
        self.dropout = check_share("dropout", dropout)
        self.k_lin = torch.nn.Linear(out_channels, out_channels)
        self.q = torch.nn.Parameter(torch.empty(1, out_channels))
        linears = {kind: torch.nn.Linear(n, out_channels) for kind, n in self.in_channels.items()}
        self.proj = ModulesOfTypes(linears)
        self.lin_src, self.lin_dst = torch.nn.ParameterDict(), torch.nn.ParameterDict()
        for relation in relations:
            for vectors in (self.lin_src, self.lin_dst):
                vectors[key_of(relation)] = torch.nn.Parameter(torch.empty(1, heads, out_channels // heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw maps uniformly from +-1/sqrt(inputs), vectors by Glorot and Bengio (2010); drop an operand."""
        for linear in (self.k_lin, *self.proj.values()):
            linear.reset_parameters()  # type: ignore[operator]
        for vectors in (self.q, *self.lin_src.values(), *self.lin_dst.values()):
            glorot_(vectors)
        self._memo.clear()

    def forward(
        self,
        x_dict: dict[str, torch.Tensor],
        edge_index_dict: dict[Relation, torch.Tensor] | TypedGraph,
        return_semantic_attention_weights: bool = False,
    ) -> Any:
        """Compute the layer's outputs.

        Args:
            x_dict: the argument of HGTConv.forward, as is edge_index_dict.
            edge_index_dict: edges by relation, or a TypedGraph.
            return_semantic_attention_weights: whether b is returned too.

        Returns:
            For each type [nodes, out_channels], or None if no relation ends at it. With
            return_semantic_attention_weights a pair of this and b for each type, [relations], in the order of
            the relations that end at it, or None for a type without nodes.

        The errors are those of HGTConv.forward.
        """
        check_flag("return_semantic_attention_weights", return_semantic_attention_weights)
        counts, known = typed_counts(x_dict, self.proj), [tuple(relation) for relation in self.metadata[1]]
        edges, relations, _ = typed_edges(self, counts, edge_index_dict, known, by_relation=True)  # type: ignore[arg-type]
        mapped = {kind: self.proj[kind](x).unflatten(1, (self.heads, -1)) for kind, x in x_dict.items()}
        q = [(mapped[r[2]] * self.lin_dst[key_of(r)]).sum(-1) for r in relations]
        k = [(mapped[r[0]] * self.lin_src[key_of(r)]).sum(-1) for r in relations]
        v = torch.cat([mapped[relation[0]] for relation in relations])
        options: dict[str, Any] = {"score": "additive", "negative_slope": self.negative_slope}
        dropped = self.dropout if self.training else 0.0
        sums = attend(edges, torch.cat(q), torch.cat(k), v, None, False, dropout_p=dropped, **options)[0]
        parts = sums.flatten(1).relu().split([counts[relation[2]] for relation in relations])
        outs: dict[str, torch.Tensor | None] = {}
        weights: dict[str, torch.Tensor | None] = {}
        for kind in x_dict:
            found = [part for part, relation in zip(parts, relations, strict=True) if relation[2] == kind]
            outs[kind], weights[kind] = self._joined(found) if found else (None, None)
        return (outs, weights) if return_semantic_attention_weights else outs

    def _joined(self, parts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the sum of what relations give the nodes of a type, weighted, and the weights."""
        if len(parts[0]) == 0:
            return parts[0], None
        every = torch.stack(parts)
        weights = F.softmax((self.q * self.k_lin(every).tanh().mean(1)).sum(-1), dim=0)
        return (weights[:, None, None] * every).sum(0), weights

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.out_channels}, heads={self.heads})"
