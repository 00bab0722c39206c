"""`EdgeModel`, which calls a model that takes other things than an operand as one that takes an operand."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gnnsparse.errors import bad_value
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["EdgeModel"]


class EdgeModel(torch.nn.Module):
    """A model of an `edge_index`, as PyG's are, or of the features alone, which is called with an operand.

    Args:
        model: the model.
        inputs: what its `forward` takes beside the features, see `ModelRecipe.inputs`.

    Attributes:
        model, inputs: the arguments.
    """

    def __init__(self, model: torch.nn.Module, inputs: Sequence[str]) -> None:
        super().__init__()
        self.model, self.inputs = model, tuple(inputs)

    def forward(self, x: torch.Tensor, adj: SparseOperand | torch.Tensor) -> torch.Tensor:
        """Computes what the model does.

        Args:
            x: features [nodes, F].
            adj: an operand with the weights of the graph's edges; or an `edge_index`, which is passed on.

        Raises:
            ValueError: the model was trained with features of edges, which an operand does not have.
        """
        if not self.inputs:
            return self.model(x)
        if "edge_attr" in self.inputs:
            bad_value("graph", "has no edge_attr, which the model was trained with; accepted: .module.model, "
                      "called as it was in training")  # fmt: skip
        if isinstance(adj, torch.Tensor):
            return self.model(x, adj)
        matrix = adj.to_torch_sparse("coo")
        edge_index = matrix.indices().flip(0)  # row v collects what arrives at v
        more = {"edge_weight": matrix.values()} if "edge_weight" in self.inputs else {}
        return self.model(x, edge_index, **more)
