"""Layers. Each kind has a file of its own, as one of yours would, and is found by its `__all__`."""

import torch

from gnnsparse.errors import bad_value
from gnnsparse.nn.agnn_conv import AGNNConv
from gnnsparse.nn.attention_edges import edge_bias
from gnnsparse.nn.edge_conv import EdgeConv, PointNetConv
from gnnsparse.nn.edge_convs import CGConv, FiLMConv, GENConv, ResGatedGraphConv
from gnnsparse.nn.fa_conv import FAConv
from gnnsparse.nn.functional import dropout, pool_graphs
from gnnsparse.nn.gat_conv import GATConv, GATv2Conv
from gnnsparse.nn.gated_gcn import GatedGCNConv
from gnnsparse.nn.gcn_conv import GCNConv
from gnnsparse.nn.gin_conv import GINConv, GINEConv
from gnnsparse.nn.han_conv import HANConv
from gnnsparse.nn.hgt_conv import HGTConv
from gnnsparse.nn.interaction import InteractionBlock
from gnnsparse.nn.key_value_cache import KeyValueCache
from gnnsparse.nn.pna_conv import PNAConv
from gnnsparse.nn.rgat_conv import RGATConv
from gnnsparse.nn.rgcn_conv import RGCNConv
from gnnsparse.nn.sage_conv import GraphConv, SAGEConv
from gnnsparse.nn.sparse_attention import SparseAttention
from gnnsparse.nn.sparse_linear import SparseLinear
from gnnsparse.nn.transformer import TransformerEncoder, TransformerEncoderLayer
from gnnsparse.nn.transformer_conv import TransformerConv
from gnnsparse.registry import discover

# Type checkers see the names that are imported above; `find_layers` adds the layers of other files.
__all__ = [
    "AGNNConv", "CGConv", "EdgeConv", "FAConv", "FiLMConv", "GATConv", "GATv2Conv", "GCNConv", "GENConv",
    "GINConv", "GINEConv", "GatedGCNConv", "GraphConv", "HANConv", "HGTConv", "InteractionBlock",
    "KeyValueCache", "PNAConv", "PointNetConv", "RGATConv", "RGCNConv", "ResGatedGraphConv", "SAGEConv",
    "SparseAttention", "SparseLinear", "TransformerConv", "TransformerEncoder", "TransformerEncoderLayer",
    "dropout", "edge_bias", "pool_graphs",
]  # fmt: skip


def find_layers() -> None:
    """Import every file in this folder, and add its layers to this package; raise if two have one name."""
    for module in discover(__name__):
        for name in getattr(module, "__all__", ()):
            layer = getattr(module, name)
            if not (isinstance(layer, type) and issubclass(layer, torch.nn.Module)):
                continue
            if globals().setdefault(name, layer) is not layer:
                bad_value("layer", f"got {name!r} in {module.__name__}; accepted: a name that is not taken")
            if name not in __all__:
                __all__.append(name)


find_layers()
