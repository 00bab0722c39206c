"""Layers."""

from gnnsparse.nn.agnn_conv import AGNNConv
from gnnsparse.nn.dropout import dropout
from gnnsparse.nn.gcn_conv import GCNConv
from gnnsparse.nn.sparse_attention import SparseAttention, edge_bias
from gnnsparse.nn.sparse_linear import SparseLinear
from gnnsparse.nn.transformer import TransformerEncoder, TransformerEncoderLayer

__all__ = [
    "AGNNConv",
    "GCNConv",
    "SparseAttention",
    "SparseLinear",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "dropout",
    "edge_bias",
]
