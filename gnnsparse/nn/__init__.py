"""Layers."""

from gnnsparse.nn.dropout import dropout
from gnnsparse.nn.gcn_conv import GCNConv

__all__ = ["GCNConv", "dropout"]
