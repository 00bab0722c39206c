"""The graph convolutional network of Kipf and Welling, with any number of layers."""

from __future__ import annotations

from gnnsparse.nn import GCNConv
from models.conv_stack import UniformStack
from models.registry import register_model

__all__ = ["GCN"]


@register_model("gcn", task="node", values="gcn")
class GCN(UniformStack):
    """A UniformStack of GCNConv layers, for operands prepared with values="gcn" and edge indices.

    With two layers and without normalisation and residuals it is the network of Kipf and Welling (2017,
    equation 9), with dropout of the input of each layer.
    """

    conv = GCNConv
    takes_targets = False
