"""Layers, each in a file of its own. A layer in a file's `__all__` is importable from this package."""

import torch

from gnnsparse.errors import bad_value
from gnnsparse.nn.agnn_conv import AGNNConv
from gnnsparse.nn.dropout import dropout
from gnnsparse.nn.gcn_conv import GCNConv
from gnnsparse.nn.sparse_attention import SparseAttention, edge_bias
from gnnsparse.nn.sparse_linear import SparseLinear
from gnnsparse.nn.transformer import TransformerEncoder, TransformerEncoderLayer
from gnnsparse.registry import discover

# Type checkers know the names that are imported above; layers of other files are found when this is run.
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


def find_layers() -> None:
    """Makes the layers of every file in this folder importable from the package.

    Raises:
        ValueError: two files define a layer of one name.
    """
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
