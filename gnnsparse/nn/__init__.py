"""Layers."""

from gnnsparse.nn.dropout import dropout
from gnnsparse.nn.gcn_conv import GCNConv
from gnnsparse.nn.sparse_linear import SparseLinear

__all__ = ["GCNConv", "SparseLinear", "dropout"]
