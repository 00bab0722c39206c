"""The block of edge networks such as MeshGraphNet and GraphCast, found by `gnnsparse.nn`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from gnnsparse.errors import bad_value, check_choice, check_flag, check_integer
from gnnsparse.nn.edges import EdgeLayer, both, edge_rows
from gnnsparse.nn.inputs import MOST_FEATURES, Nodes, check_channels, check_nodes, graph_size, is_plain_linear
from gnnsparse.ops import aggregate_edges
from gnnsparse.ops.edges.network import Options, can_run, edge_network
from gnnsparse.ops.edges.trace import fixed
from gnnsparse.precision import Precision
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["InteractionBlock"]


def _first(act: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return the message of the first layer, of its products with targets, sources and edges."""

    def message(p_i: Any, q_j: Any, r_ij: Any) -> Any:
        return act(p_i + q_j + r_ij)

    return fixed(message)


@fixed
def _of_target(x_i: Any) -> Any:
    return x_i


@fixed
def _of_source(x_j: Any) -> Any:
    return x_j


@fixed
def _updated(e_ij: Any, change_ij: Any) -> Any:
    new = e_ij + change_ij
    return new, new


#: Activations: the first layer of the edges' network with it, and the module for further layers.
_ACTIVATIONS: dict[str, tuple[Any, type[torch.nn.Module]]] = {
    "silu": (_first(F.silu), torch.nn.SiLU), "relu": (_first(F.relu), torch.nn.ReLU),
    "gelu": (_first(F.gelu), torch.nn.GELU),
}  # fmt: skip


def _network(sizes: list[int], act: type[torch.nn.Module], norm: bool) -> torch.nn.Sequential:
    """Make linear layers between these sizes, with activations between them and a layer norm behind."""
    layers: list[torch.nn.Module] = []
    for i, (size, to) in enumerate(itertools.pairwise(sizes)):
        layers += [*([act()] if i else []), torch.nn.Linear(size, to)]
    return torch.nn.Sequential(*layers, *([torch.nn.LayerNorm(sizes[-1])] if norm else []))


def _layers_of(network: Any, act: type[torch.nn.Module]) -> tuple[list[Any], list[Any]]:
    """Return the layers of what `_network` makes without the last norm, and this, as lists; else none.

    Modules with hooks or computed parameters, and others that were put in their place, have to be called.
    """
    if not is_plain_linear(network, torch.nn.Sequential):
        return [], []
    layers = list(network)
    count = len(layers) - (type(layers[-1]) is torch.nn.LayerNorm if layers else 0)
    kinds: list[Any] = [torch.nn.Linear, act] * (count // 2)
    kinds += [torch.nn.Linear, torch.nn.LayerNorm]
    is_ours = count >= 3 and count % 2 == 1 and all(map(is_plain_linear, layers, kinds))
    if is_ours and all(getattr(layer, "approximate", "none") == "none" for layer in layers):  # of GELU
        return layers[:count], layers[count:]
    return [], []


def _behind_first(layers: list[Any], norm: list[Any], edge_dim: int) -> list[Any] | None:
    """Return the second layer's parameters and the norm's, or None for each; None: no kernel takes them."""
    sizes = edge_dim, layers[0].out_features
    found = [layers[2].weight, layers[2].bias, *((norm[0].weight, norm[0].bias) if norm else ())]
    shapes = [None if t is None else t.shape for t in found]
    if len(layers) != 3 or shapes != [sizes, *[sizes[:1]] * (len(shapes) - 1)]:
        return None
    return found if norm else [*found, None, None]


class InteractionBlock(EdgeLayer):
    """e'_ij = e_ij + f([e_ij, x_i, x_j]) and x'_i = x_i + g([x_i, sum_j e'_ij]), where f and g are networks.

    The processor of "Learning Mesh-Based Simulation with Graph Networks" (Pfaff et al. 2021) and of GraphCast
    (Lam et al. 2023). The first layer of f is split into maps of nodes and of edges, so that the features of
    nodes are multiplied once a node and not once an edge, and what it has of an edge is added, and put
    through the activation, in one pass over the edges; the new edges are written and summed in another.
    Parameters are those of networks of concatenated features: `edge_mlp` and `node_mlp`, each linear layers
    with activations between them (`0.weight` [hidden, sum of inputs], `2.weight`, ...) and a layer norm. An
    `edge_mlp` that has hooks or parametrizations, or was changed otherwise, is called with [edges, inputs].

    Args:
        in_channels: features of a node, or a pair: of a source and of a target.
        edge_dim: features of an edge.
        hidden_channels: features between the layers of the networks; None: as many as of a target.
        num_layers: linear layers of each network, at least 2.
        act: the activation: "silu", "relu" or "gelu".
        norm: whether each network ends in a layer norm.
        recompute: whether the backward pass computes the networks of edges again, so that what is between
            their layers is not stored for each edge.
        precision: as in GCNConv; the errors are also as there.
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        edge_dim: int,
        hidden_channels: int | None = None,
        num_layers: int = 2,
        act: str = "silu",
        norm: bool = True,
        recompute: bool = True,
        *,
        precision: Precision | str | None = None,
    ) -> None:
        super().__init__(precision)
        self.in_channels, self._channels = in_channels, check_channels(in_channels)
        self.edge_dim = check_integer("edge_dim", edge_dim, most=MOST_FEATURES)
        sources, targets = self._channels
        hidden = targets if hidden_channels is None else hidden_channels
        self.hidden_channels = check_integer("hidden_channels", hidden, most=MOST_FEATURES)
        if check_integer("num_layers", num_layers) < 2:
            bad_value("num_layers", f"got {num_layers}; accepted: an integer, at least 2")
        self.act, self.recompute = act, check_flag("recompute", recompute)
        self._first, self._act = _ACTIVATIONS[check_choice("act", act, tuple(_ACTIVATIONS))]
        between, check = [hidden] * (num_layers - 1), check_flag("norm", norm)
        self.edge_mlp = _network([edge_dim + targets + sources, *between, edge_dim], self._act, check)
        self.node_mlp = _network([targets + edge_dim, *between, targets], self._act, check)

    def forward(
        self, x: torch.Tensor | Nodes, adj: SparseOperand | torch.Tensor, edge_attr: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the new features of targets and of edges.

        Args:
            x: the argument of SAGEConv.forward, but the features of targets are needed.
            adj: an edge_index [2, edges], see GCNConv.forward, or a SparseOperand [targets, sources], whose
                weights are not used.
            edge_attr: [edges, edge_dim], in the order of the edge_index, or of the edges that the operand was
                prepared from.

        Returns:
            [targets, in_channels] and [edges, edge_dim].

        The errors are those of ResGatedGraphConv.forward.
        """
        parameter = next(self.parameters(), None)
        nodes = check_nodes(x, self._channels, parameter)
        sources, targets = both(nodes)
        operand = self._operand(adj, graph_size(nodes, None, adj))
        edges = edge_rows(operand, edge_attr, self.edge_dim, parameter)
        new, total = self._of_edges(operand, sources, targets, edges)
        return targets + self.node_mlp(torch.cat([targets, total], dim=1)), new

    def _of_edges(
        self, operand: SparseOperand, sources: torch.Tensor, targets: torch.Tensor, edges: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the new features of edges, and their sums at targets."""
        layers, norm = _layers_of(self.edge_mlp, self._act)
        options = Options(self.act, norm[0].eps if norm else None)
        weights = _behind_first(layers, norm, self.edge_dim) if self.recompute and layers else None

        def first_layer(x_i: torch.Tensor, x_j: torch.Tensor) -> list[torch.Tensor]:
            """Return what the first layer makes of nodes, and its weight of edges."""
            of_edge, of_target, of_source = layers[0].weight.split(
                [self.edge_dim, targets.shape[1], sources.shape[1]], dim=1
            )
            return [F.linear(x_i, of_target, layers[0].bias), F.linear(x_j, of_source), of_edge]

        stored = edges.dtype if edges.dtype.itemsize == 2 else operand.precision.storage
        if weights is not None and can_run(operand, stored, tuple(weights[0].shape), sources, edges):
            *of_nodes, of_edge = first_layer(targets, sources)
            rows = [x.to(stored) for x in (edges, *of_nodes)]
            pair = edge_network(operand, options, *rows, of_edge, *weights)
            return pair[0].to(edges.dtype), pair[1].to(edges.dtype)

        def change(e: torch.Tensor, x_i: torch.Tensor, x_j: torch.Tensor) -> torch.Tensor:
            if not layers:
                of_targets = aggregate_edges(operand, _of_target, reduce="none", x_i=x_i)
                of_sources = aggregate_edges(operand, _of_source, reduce="none", x_j=x_j)
                return cast(torch.Tensor, self.edge_mlp(torch.cat([e, of_targets, of_sources], dim=1)))
            p_i, q_j, of_edge = first_layer(x_i, x_j)
            hidden = aggregate_edges(
                operand, self._first, reduce="none", p_i=p_i, q_j=q_j, r_ij=F.linear(e, of_edge)
            )
            for layer in (*layers[2:], *norm):  # the activation is the first one's
                hidden = layer(hidden)
            return hidden

        inputs = edges, targets, sources
        # Modules of others are called once.
        again = self.recompute and bool(layers) and torch.is_grad_enabled()
        found: torch.Tensor = checkpoint(change, *inputs, use_reentrant=False) if again else change(*inputs)
        new, total = aggregate_edges(operand, _updated, reduce=("none", "sum"), e_ij=edges, change_ij=found)
        return new, total

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, edge_dim={self.edge_dim}, act={self.act})"
