"""Models of this project with PyG's layers."""

from __future__ import annotations

import torch

from models import AGNN


def with_pyg_layers(model: AGNN) -> AGNN:
    """Replaces the layers of an AGNN by PyG's, in place; its adjacency is then an edge_index."""
    from torch_geometric.nn import AGNNConv

    model.convs = torch.nn.ModuleList(AGNNConv(requires_grad=conv.requires_grad) for conv in model.convs)
    return model
