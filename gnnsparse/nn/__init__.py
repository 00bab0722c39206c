"""Layers."""

from gnnsparse.nn.gcn_conv import GCNConv

__all__ = ["GCNConv"]
