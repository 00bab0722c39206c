"""Sparse products on Tensor Cores, for training graph neural networks and sparse Transformers.

A = gnnsparse.prepare(edge_index, num_nodes=n, values="gcn", precision="fp16")
y = A @ x
"""

import torch as _torch  # noqa: F401  (before the native module, which shares torch's OpenMP runtime)

from gnnsparse.inference import load
from gnnsparse.ops import (
    StoredFeatures,
    aggregate_edges,
    attention,
    edge_softmax,
    graph_attention,
    sddmm,
    spmm,
    store_features,
)
from gnnsparse.patterns import masks
from gnnsparse.plan import Plan
from gnnsparse.precision import Precision
from gnnsparse.preprocess.api import prepare
from gnnsparse.preprocess.reorder import reorder
from gnnsparse.runtime.cache import CacheWarning
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.sparse.typed import TypedGraph
from gnnsparse.train.api import Fitted, fit

__version__ = "0.1.0"

__all__ = [
    "CacheWarning", "Fitted", "Plan", "Precision", "SparseGraph", "SparseOperand", "StoredFeatures",
    "TypedGraph", "aggregate_edges", "attention", "edge_softmax", "fit", "graph_attention", "load", "masks",
    "prepare", "reorder", "sddmm", "spmm", "store_features",
]  # fmt: skip
