"""Models of this project with PyG's layers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse import SparseOperand
from gnnsparse.nn import (
    AGNNConv,
    GATConv,
    GatedGCNConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GINEConv,
    ResGatedGraphConv,
    SAGEConv,
    SparseAttention,
)
from models.exphormer import CLAMP, TypedAttention
from models.patterns import Pattern

Model = TypeVar("Model", bound=torch.nn.Module)


class PygAttention(torch.nn.Module):
    """SparseAttention by PyG's TransformerConv: a node attends to its neighbours and itself.

    Args:
        attention: the layer whose parameters are taken.
    """

    def __init__(self, attention: SparseAttention) -> None:
        from torch_geometric.nn import TransformerConv

        super().__init__()
        width, heads = attention.embed_dim, attention.num_heads
        self.conv = TransformerConv(
            width, width // heads, heads, dropout=attention.dropout, root_weight=False
        )
        self.conv.lin_skip = torch.nn.Identity()  # it would have no gradient
        linears = self.conv.lin_query, self.conv.lin_key, self.conv.lin_value
        parts = zip(attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3), strict=True)
        with torch.no_grad():
            for linear, (weight, bias) in zip(linears, parts, strict=True):
                linear.weight.copy_(weight)
                linear.bias.copy_(bias)
        self.out_proj = attention.out_proj
        self._known: tuple[Any, Any] = (None, None)

    def _with_loops(self, edge_index: torch.Tensor | SparseOperand, nodes: int) -> torch.Tensor:
        """Add self-loops where they are missing, once for an edge_index, so that steps can be captured."""
        from torch_geometric.utils import add_remaining_self_loops

        if self._known[0] is not edge_index:
            plain = edge_index
            if isinstance(edge_index, SparseOperand):  # a pattern that the model makes itself
                plain = edge_index.indices().flip(0)
            self._known = edge_index, add_remaining_self_loops(plain, num_nodes=nodes)[0]
        return self._known[1]

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        edge_index: torch.Tensor | SparseOperand,
    ) -> torch.Tensor:
        """Compute attention of `query`, which must be `key` and `value`, over the edges and self-loops."""
        assert query is key
        assert key is value
        return self.out_proj(self.conv(query, self._with_loops(edge_index, len(query))))


class PygTypedAttention(torch.nn.Module):
    """Exphormer's attention by rows for each edge and PyG's softmax and sum.

    Args:
        attention: the layer whose parameters are taken.
    """

    def __init__(self, attention: TypedAttention) -> None:
        super().__init__()
        self.heads, self.dropout = attention.heads, attention.dropout
        self.in_proj, self.out_proj = attention.in_proj, attention.out_proj
        self.of_types = attention.of_types

    def forward(self, x: torch.Tensor, pattern: Pattern) -> torch.Tensor:
        """Compute attention over the edges of a pattern."""
        from torch_geometric.utils import scatter, softmax

        assert pattern.types is not None
        target, source = pattern.operand.indices()
        q, k, v = (part.view(len(x), self.heads, -1) for part in self.in_proj(x).chunk(3, dim=1))
        of_edges = self.of_types[pattern.types.argmax(dim=1)].view(-1, *k.shape[1:])
        scores = (q[target] * k[source] * of_edges).sum(dim=2) / k.shape[2] ** 0.5
        weights = softmax(scores.clamp(-CLAMP, CLAMP), target, num_nodes=len(x))
        weights = F.dropout(weights, self.dropout, self.training)
        sums = scatter(weights[..., None] * v[source], target, dim_size=len(x), reduce="sum")
        return self.out_proj(sums.flatten(1))


class PygGatedGCN(torch.nn.Module):
    """GatedGCNConv by rows for each edge and PyG's sum, as PyG has no layer with features of edges as result.

    Args:
        conv: the layer whose parameters are taken.
    """

    def __init__(self, conv: GatedGCNConv) -> None:
        super().__init__()
        self.residual, self.dropout = conv.residual, conv.dropout
        for name, child in conv.named_children():
            self.add_module(name, child)
        self.norms = conv.bn_node_h, conv.bn_node_e  # of which None is no child

    def forward(
        self, x: torch.Tensor, edge_index: torch.Tensor, edge_attr: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the new features of nodes and of edges."""
        from torch_geometric.utils import scatter

        source, target = edge_index
        edges = self.D(x)[source] + self.E(x)[target]
        if edge_attr is not None:
            edges = edges + self.C(edge_attr)
        gates = torch.sigmoid(edges)
        total, of_gates = (
            scatter(rows, target, dim_size=len(x), reduce="sum")
            for rows in (gates * self.B(x)[source], gates)
        )
        nodes = self.A(x) + total / (of_gates + 1e-6)
        return self._behind(nodes, self.norms[0], x), self._behind(edges, self.norms[1], edge_attr)

    def _behind(
        self, rows: torch.Tensor, norm: torch.nn.Module | None, before: torch.Tensor | None
    ) -> torch.Tensor:
        rows = F.relu(rows if norm is None else norm(rows))
        if self.residual and before is not None and before.shape == rows.shape:
            rows = before + rows
        return F.dropout(rows, self.dropout, self.training)


def _heads(conv: Any) -> dict[str, Any]:
    return {"heads": conv.heads, "concat": conv.concat, "dropout": conv.dropout}


#: Class of a layer -> its counterpart in PyG, with parameters of its own.
_TWINS: dict[type[torch.nn.Module], Callable[[Any, Any], torch.nn.Module]] = {
    AGNNConv: lambda pyg, conv: pyg.AGNNConv(requires_grad=conv.requires_grad),
    GATConv: lambda pyg, conv: pyg.GATConv(conv.in_channels, conv.out_channels, **_heads(conv)),
    GATv2Conv: lambda pyg, conv: pyg.GATv2Conv(conv.in_channels, conv.out_channels, **_heads(conv)),
    GCNConv: lambda pyg, conv: pyg.GCNConv(conv.in_channels, conv.out_channels),
    GINConv: lambda pyg, conv: pyg.GINConv(
        copy.deepcopy(conv.nn), conv.initial_eps, isinstance(conv.eps, torch.nn.Parameter)
    ),
    GINEConv: lambda pyg, conv: pyg.GINEConv(
        copy.deepcopy(conv.nn), conv.initial_eps, isinstance(conv.eps, torch.nn.Parameter), conv.edge_dim
    ),
    ResGatedGraphConv: lambda pyg, conv: pyg.ResGatedGraphConv(
        conv.in_channels, conv.out_channels, conv.act, conv.edge_dim, conv.root_weight, conv.bias is not None
    ),
    SAGEConv: lambda pyg, conv: pyg.SAGEConv(conv.in_channels, conv.out_channels),
}
#: Class of a layer that PyG lacks -> one of PyG's functions, which takes the parameters.
_WRAPPERS: dict[type[torch.nn.Module], Callable[[Any], torch.nn.Module]] = {
    GatedGCNConv: PygGatedGCN,
    SparseAttention: PygAttention,
    TypedAttention: PygTypedAttention,
}


def _twin(conv: torch.nn.Module) -> torch.nn.Module:
    import torch_geometric.nn as pyg

    for kind, wrapper in _WRAPPERS.items():
        if isinstance(conv, kind):
            return wrapper(conv)
    twin = _TWINS[type(conv)](pyg, conv)
    twin.load_state_dict(conv.state_dict())
    return twin


def with_pyg_layers(model: Model) -> Model:
    """Replace the graph layers of a model by PyG's with the same parameters, in place.

    The model's adjacency is then an edge_index without repeats.
    """
    kinds = (*_TWINS, *_WRAPPERS)
    with torch.random.fork_rng(devices=[]):  # what PyG draws is replaced
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, kinds):
                    setattr(parent, name, _twin(child))
    return model
