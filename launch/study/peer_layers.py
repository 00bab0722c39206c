"""The layers of PyG and DGL in the models of this project. Importing this takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from benchmarks.pyg import with_pyg_layers
from gnnsparse.data import NodeDataset
from gnnsparse.nn import AGNNConv, GATConv, GCNConv
from gnnsparse.train.tasks.node import FullGraphData, GraphBatch

__all__ = ["LAYERS", "PeerData", "with_dgl_layers"]


class PeerData(FullGraphData):
    """FullGraphData in fp32 with a graph of another library in place of the operand.

    Args:
        dataset: the graph with its features, labels and split.
        device: the device for the features, the labels and the graph.
        make_graph: makes the graph of an edge_index, int64 [2, edges], source over target, and the number of
            nodes.
    """

    def __init__(
        self, dataset: NodeDataset, device: torch.device | str, make_graph: Callable[[torch.Tensor, int], Any]
    ) -> None:
        self._make_graph = make_graph
        super().__init__(dataset, values=None, device=device)

    def _on_device(self, adj: Any) -> GraphBatch:
        csr = self.dataset.graph.csr
        edge_index = torch.stack([csr.indices.long(), csr.row_index()]).to(self.device)
        return replace(super()._on_device(adj), adj=self._make_graph(edge_index, self.dataset.num_nodes))


def _edge_index(edge_index: torch.Tensor, nodes: int) -> torch.Tensor:
    return edge_index


def _dgl_graph(edge_index: torch.Tensor, nodes: int) -> Any:
    """Makes a DGL graph in which every node has one self-loop, as the layers here and PyG's add them."""
    from gnnsparse.interop.dgl import import_dgl

    dgl = import_dgl()
    graph = dgl.graph((edge_index[0], edge_index[1]), num_nodes=nodes)
    return dgl.add_self_loop(dgl.remove_self_loop(graph))


class _DglGCNConv(torch.nn.Module):
    def __init__(self, conv: GCNConv) -> None:
        super().__init__()
        import dgl.nn.pytorch as dglnn

        self.conv = dglnn.GraphConv(conv.in_channels, conv.out_channels, norm="both")
        ours = conv.state_dict()
        self.conv.load_state_dict({"weight": ours["lin.weight"].T, "bias": ours["bias"]})

    def forward(self, x: torch.Tensor, graph: Any) -> torch.Tensor:
        return self.conv(graph, x)


class _DglAGNNConv(torch.nn.Module):
    def __init__(self, conv: AGNNConv) -> None:
        super().__init__()
        import dgl.nn.pytorch as dglnn

        self.conv = dglnn.AGNNConv(learn_beta=conv.requires_grad)
        with torch.no_grad():
            self.conv.beta.copy_(conv.beta)

    def forward(self, x: torch.Tensor, graph: Any) -> torch.Tensor:
        return self.conv(graph, x)


class _DglGATConv(torch.nn.Module):
    def __init__(self, conv: GATConv) -> None:
        super().__init__()
        import dgl.nn.pytorch as dglnn

        self.concat = conv.concat
        width, heads = conv.out_channels, conv.heads
        self.conv = dglnn.GATConv(
            conv.in_channels, width, heads, attn_drop=conv.dropout, negative_slope=conv.negative_slope,
            bias=False,
        )  # fmt: skip
        ours = conv.state_dict()
        names = {"fc.weight": "lin.weight", "attn_l": "att_src", "attn_r": "att_dst"}
        self.conv.load_state_dict({theirs: ours[name] for theirs, name in names.items()})
        # DGL adds a bias to each head before they are averaged; these layers and PyG's add one afterwards.
        self.bias = torch.nn.Parameter(ours["bias"].clone())

    def forward(self, x: torch.Tensor, graph: Any) -> torch.Tensor:
        out = self.conv(graph, x)
        return (out.flatten(1) if self.concat else out.mean(1)) + self.bias


_DGL_LAYERS: dict[type[torch.nn.Module], Callable[[Any], torch.nn.Module]] = {
    GCNConv: _DglGCNConv,
    AGNNConv: _DglAGNNConv,
    GATConv: _DglGATConv,
}


def with_dgl_layers(model: torch.nn.Module) -> torch.nn.Module:
    """Replaces the graph layers of a model by DGL's with the same parameters, in place."""
    with torch.random.fork_rng(devices=[]):  # what DGL draws is replaced
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if type(child) in _DGL_LAYERS:
                    setattr(parent, name, _DGL_LAYERS[type(child)](child))
    return model


#: Peer -> what makes its graph of an edge_index and a number of nodes, and what replaces a model's layers.
LAYERS: dict[
    str,
    tuple[Callable[[torch.Tensor, int], Any], Callable[[torch.nn.Module], torch.nn.Module]],
] = {"pyg": (_edge_index, with_pyg_layers), "dgl": (_dgl_graph, with_dgl_layers)}
