"""A Transformer that classifies nodes by attention over the edges of the graph."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse import SparseOperand
from gnnsparse.nn import SparseAttention, dropout
from gnnsparse.nn.adjacency import check_self_loops
from models.parts import GraphModel, check_heads, check_layers, make_norm, of_layer, of_targets
from models.registry import register_model

__all__ = ["GraphTransformer"]


# Prepared with values="gcn" for its self-loops: attention ignores the weights.
@register_model("graph_transformer", task="node", values="gcn", edge_weights=False)
class GraphTransformer(GraphModel):
    """A linear layer, Transformer blocks with attention over the edges, and another linear layer.

    It is the graph Transformer of Dwivedi and Bresson (2021) without edge features and positional encodings:
    a node attends to its neighbours and to itself.

    Args:
        in_channels: features of a node.
        hidden_channels: features of the blocks.
        out_channels: number of classes or labels.
        num_layers: number of blocks.
        heads: number of heads, a divisor of hidden_channels.
        dropout: probability of dropout in training, in [0, 1), for the model's input, the attention weights,
            and the outputs of attention and feed-forward networks.
        norm: normalisation of the inputs of attention and feed-forward networks: "none", "batch" or "layer".
        residual: whether the inputs of attention and feed-forward networks are added to their outputs.

    The errors are those of GraphModel.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int = 2,
        heads: int = 4,
        dropout: float = 0.5,
        norm: str = "layer",
        residual: bool = True,
    ) -> None:
        super().__init__(hidden_channels, dropout, residual)
        self.lin1 = torch.nn.Linear(in_channels, hidden_channels)
        self.blocks = torch.nn.ModuleList(
            _Block(hidden_channels, check_heads(heads, hidden_channels), dropout, norm, residual)
            for _ in range(check_layers(num_layers))
        )
        self.norm = make_norm(norm, hidden_channels)
        self.lin2 = torch.nn.Linear(hidden_channels, out_channels)

    @property
    def num_convolutions(self) -> int:
        """The number of sampled blocks that `forward` takes in place of one graph."""
        return len(self.blocks)

    def forward(self, x: torch.Tensor, adj: SparseOperand | list[SparseOperand]) -> torch.Tensor:
        """Compute the logits.

        Args:
            x: [nodes, in_channels], float32, or float16 or bfloat16 under autocast.
            adj: an operand with self-loops, prepared with values="gcn", or the operands of sampled blocks
                with self-loops, one for each Transformer block.

        Returns:
            [nodes, out_channels], of the targets of the last sampled block.

        Raises:
            ValueError: the operand lacks self-loops.
        """
        x = self.lin1(dropout(x, self.dropout, self.training))
        if isinstance(adj, SparseOperand):
            check_self_loops(adj, "SparseAttention for attention without them")
        for index, block in enumerate(self.blocks):
            x = block(x, of_layer(adj, index))
        return self.lin2(self.norm(x))


class _Block(torch.nn.Module):
    """Attention and a feed-forward network, each with normalisation before it (Xiong et al. 2020)."""

    def __init__(self, width: int, heads: int, dropout: float, norm: str, residual: bool) -> None:
        super().__init__()
        self.dropout, self.residual = dropout, residual
        self.norm1, self.norm2 = make_norm(norm, width), make_norm(norm, width)
        self.attention = SparseAttention(width, heads, dropout)
        self.linear1, self.linear2 = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor, adj: SparseOperand) -> torch.Tensor:
        y = self.norm1(x)
        x = self._joined(of_targets(x, adj), self.attention(of_targets(y, adj), y, y, adj))
        return self._joined(x, self.linear2(F.gelu(self.linear1(self.norm2(x)))))

    def _joined(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y = dropout(y, self.dropout, self.training)
        return x + y if self.residual else y
