"""A Transformer encoder that classifies sequences by attention over a pattern."""

from __future__ import annotations

import math

import torch

from gnnsparse import SparseOperand
from gnnsparse.errors import bad_value, check_choice, check_flag, check_integer, check_share
from gnnsparse.nn import TransformerEncoder, TransformerEncoderLayer, dropout
from models.parts import check_heads, check_layers
from models.registry import register_model

__all__ = ["POOLS", "Transformer", "sinusoids"]

#: Values of `pool`.
POOLS = ("mean", "first")


@register_model("transformer", task="sequence")
class Transformer(torch.nn.Module):
    """An embedding with sinusoidal positions, encoder layers, pooling, and a linear layer.

    It is the encoder of Vaswani et al. (2017) in the form in which the Long Range Arena (Tay et al. 2021)
    classifies sequences.

    Args:
        in_channels: size of the vocabulary; token 0 is padding.
        hidden_channels: features of a token, an even number.
        out_channels: number of classes.
        num_layers: number of encoder layers.
        heads: number of heads, a divisor of hidden_channels.
        feed_forward: features between the two layers of the feed-forward networks.
        dropout: probability of dropout in training, in [0, 1), for embeddings, attention weights and blocks.
        norm_first: whether layer norms come before each block instead of after it.
        activation: "relu" or "gelu".
        pool: the features that are classified: the "mean" over a sequence's tokens, or its "first" token.
        fused: None: the plan decides; False: attention is computed by three operations; True: a fused kernel
            runs, or an error is raised if none can.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int = 4,
        heads: int = 4,
        feed_forward: int = 512,
        dropout: float = 0.1,
        norm_first: bool = True,
        activation: str = "gelu",
        pool: str = "mean",
        fused: bool | None = None,
    ) -> None:
        super().__init__()
        self.dropout = check_share("dropout", dropout)
        self.pool = check_choice("pool", pool, POOLS)
        if check_integer("hidden_channels", hidden_channels) % 2:
            bad_value("hidden_channels", f"got {hidden_channels}; accepted: an even number")
        self.embedding = torch.nn.Embedding(in_channels, hidden_channels, padding_idx=0)
        fused = None if fused is None else check_flag("fused", fused)
        layer = TransformerEncoderLayer(
            hidden_channels, check_heads(heads, hidden_channels), feed_forward, dropout, activation,
            batch_first=True, norm_first=norm_first, fused=fused,
        )  # fmt: skip
        last = torch.nn.LayerNorm(hidden_channels) if norm_first else None
        self.encoder = TransformerEncoder(layer, check_layers(num_layers), last)
        self.encoder.reset_parameters()
        self.head = torch.nn.Linear(hidden_channels, out_channels)

    @property
    def first_layer(self) -> torch.nn.Module:
        """The layer whose parameters have weight decay with `optimizer.decay="first"`."""
        return self.embedding

    def forward(
        self, tokens: torch.Tensor, pattern: SparseOperand, padding: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute the logits.

        Args:
            tokens: integers [batch, length].
            pattern: an operand [length, length].
            padding: bool [batch, length], True for padding; None: there is no padding.

        Returns:
            [batch, out_channels].
        """
        x = self.embedding(tokens.long())
        x = x + sinusoids(x.shape[1], x.shape[2], x.device).to(x.dtype)
        x = dropout(x, self.dropout, self.training)
        return self.head(self._pooled(self.encoder(x, pattern, padding), padding))

    def _pooled(self, x: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        if self.pool == "first":
            return x[:, 0]
        if padding is None:
            return x.mean(dim=1)
        count = (~padding).sum(dim=1, keepdim=True).clamp(min=1)
        return x.masked_fill(padding[..., None], 0).sum(dim=1) / count


def sinusoids(length: int, width: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Compute the positions of Vaswani et al. (2017): sines, then cosines, float32 [length, width]."""
    rate = torch.exp(torch.arange(0, width, 2, device=device) * (-math.log(10_000.0) / width))
    angle = torch.arange(length, device=device)[:, None] * rate
    return torch.cat([angle.sin(), angle.cos()], dim=1)
